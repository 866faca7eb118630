"""Fake It Till Make It: Federated Learning with Consensus-Oriented Generation (FedCOG).

Rui Ye, Yaxin Du, Zhenyang Ni, Siheng Chen and Yanfeng Wang. The Twelfth International Conference on Learning Representations (ICLR), 2024.
https://arxiv.org/abs/2312.05966
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.client import Client
from equipoise.losses import distillation_loss
from equipoise.losses.terms import Batch, Loss, supervised, term
from equipoise.method import Count, Method, NonNegative, Positive
from equipoise.models import Outputs
from equipoise.models.network import evaluating, frozen
from equipoise.records import Down, State, Up
from equipoise.server import Server

log = logging.getLogger("equipoise")


@dataclass(frozen=True)
class FedCOG(Method):
    """A client makes images of the classes it lacks, on which the global model is sure and its own last model disagrees, and learns from them.

    The images are pixels, optimised against the two frozen models; what the client learns on them are the global model's answers.
    """

    paper = "Ye et al., Fake It Till Make It: Federated Learning with Consensus-Oriented Generation, ICLR 2024, Algorithm 1"
    family, year, fairness, passes = (
        "distillation",
        2024,
        "none",
        "E·T, 2·steps passes of the made samples, and a made batch per step",
    )
    needs = ("classes",)

    lambda_kd: NonNegative = 0.01  # weight of the distillation on made images; 0: FedAvg. Not used where weighting is ratio
    # weight of the disagreement between global and last local model in making images
    lambda_dis: NonNegative = 0.1
    start_round: Count = 51  # the first round with made images; before it the training is FedAvg's
    # how many are made at most, shared out among the classes that a client lacks
    images: Count = 256
    steps: Count = 500  # of the optimisation of their pixels, in each round
    pixel_lr: Positive = 0.01  # its learning rate
    temperature: Positive = 1.0  # of the distillation
    # ratio: losses by numbers of real and lacking samples, as the released code does
    weighting: Literal["lambda", "ratio"] = "lambda"

    def advice(self, rounds: int) -> str:
        if self.start_round <= rounds:
            return ""
        return (
            f"FedCOG makes images from round {self.start_round} on, but the run has {rounds} rounds, so that it equals FedAvg; "
            "set method.start_round to a round of the run, or train longer"
        )

    def start(self, server: Server) -> State:
        if advice := self.advice(server.rounds):
            log.warning(advice)
        return super().start(server)

    def client(self, client: Client, down: Down) -> Up:
        model, loss, acts = (
            client.load(down.model),
            supervised,
            bool(self.lambda_kd) or self.weighting == "ratio",
        )
        counts = torch.bincount(client.train.y, minlength=client.task.outputs)
        labels = allocated(counts, self.images)
        if acts and client.round >= self.start_round and len(labels):
            real, made = self._balance(counts)
            loss = real * supervised + made * self._distilled(
                client, *self._made(client, down, labels.to(client.device))
            )
        client.fit(model, loss)
        if acts and self.start_round <= client.rounds:
            client.state["previous"] = model
        return Up(model=model)

    def _balance(self, counts: Tensor) -> tuple[float, float]:
        """Of the supervised loss and of the distillation on made images."""
        if self.weighting == "lambda":
            return 1.0, self.lambda_kd
        real, lacking = int(counts.sum()), int((counts.max() - counts).sum())
        return real / (real + lacking), lacking / (real + lacking)

    def _made(self, client: Client, down: Down, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The images with the least loss on the way, and the global model's logits on them."""
        shared, previous = (
            client.load(down.model),
            client.load(client.state.get("previous", down.model)),
        )
        # without a model of its own, or a weight, they disagree nowhere
        known = "previous" in client.state and self.lambda_dis > 0
        pixels = torch.randn(
            len(labels), *client.task.shape, generator=client.stream("fedcog pixels")
        ).to(client.device)
        best, kept = math.inf, (pixels, pixels)

        def loss(step: int) -> Tensor:
            nonlocal best, kept
            logits = shared(pixels).logits
            value = cross_entropy(logits, labels)
            if known:
                value = value + self.lambda_dis * (
                    1 - disagreement(previous(pixels).logits, logits).clamp(0, 1)
                )
            if not step or float(value.detach()) < best:
                # Copies: the pixels go on moving, and the logits must stay those of the images that are kept.
                best, kept = (
                    float(value.detach()),
                    (pixels.detach().clone(), logits.detach().clone()),
                )
            return value

        with (
            frozen(shared.net),
            frozen(previous.net),
            evaluating(shared.net),
            evaluating(previous.net),
        ):
            client.minimise(
                {"pixels": pixels.requires_grad_()},
                loss,
                self.steps,
                lr=self.pixel_lr,
                betas=(0.5, 0.9),
            )
        return kept

    def _distilled(self, client: Client, images: Tensor, answers: Tensor) -> Loss:
        """tau^2 KL(global || local) on a batch of made images per step, all of them in turn and in an order of their own."""
        order, queue = client.stream("fedcog batches"), torch.empty(0, dtype=torch.int64)

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            nonlocal queue
            if not len(queue):
                queue = torch.randperm(len(images), generator=order)
            chosen, queue = (
                queue[: client.training.batch].to(images.device),
                queue[client.training.batch :],
            )
            with evaluating(outputs.model.net):  # made images must not enter batch-norm statistics
                found: Tensor = distillation_loss(
                    outputs.model(images[chosen]).logits, answers[chosen], self.temperature
                )
            return found

        return term(value)


def allocated(counts: Tensor, images: int) -> Tensor:
    """Labels of the images to make: of class c the share (max - n_c) / sum of these, rounded down; none for a balanced client.

    >>> allocated(torch.tensor([5, 0, 2]), 10).bincount(minlength=3).tolist()
    [0, 6, 3]
    """
    lacking = counts.max() - counts
    return torch.repeat_interleave(
        torch.arange(len(counts)), images * lacking // max(1, int(lacking.sum()))
    )


def disagreement(logits: Tensor, others: Tensor) -> Tensor:
    """The batch mean of the Jensen-Shannon divergence between two predictions, their probabilities kept between 0.01 and 0.99.

    >>> float(disagreement(torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]]))).__round__(4)
    0.6371
    """
    p, q = logits.softmax(1).clamp(0.01, 0.99), others.softmax(1).clamp(0.01, 0.99)
    middle = ((p + q) / 2).log()
    return (p * (p.log() - middle) + q * (q.log() - middle)).sum(1).mean() / 2
