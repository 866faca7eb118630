"""FedCOG (Ye et al., 2024).

Rui Ye, Yaxin Du, Zhenyang Ni, Siheng Chen and Yanfeng Wang. Fake It Till Make It: Federated
Learning with Consensus-Oriented Generation. The Twelfth International Conference on Learning
Representations (ICLR), 2024. https://arxiv.org/abs/2312.05966
"""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.client import Client
from equipoise.losses import disagreement, distillation_loss
from equipoise.losses.generation import lacking_labels
from equipoise.losses.terms import Batch, Loss, supervised, term
from equipoise.method import Count, Method, NonNegative, Positive
from equipoise.models import Outputs
from equipoise.models.network import evaluating, frozen
from equipoise.records import Down, State, Up
from equipoise.server import Server

log = logging.getLogger("equipoise")


@dataclass(frozen=True)
class FedCOG(Method):
    """Each client generates images of the classes it lacks and learns the global model's outputs.

    The images are pixels, optimised so that the frozen global model is certain of their class and
    the client's own last model disagrees with it.

    Attributes:
        lambda_kd: Weight of the distillation on generated images, lambda_kd in the paper; 0 is
            FedAvg. Not used with weighting="ratio".
        lambda_dis: Weight of the disagreement between global and last local model, lambda_dis in
            the paper.
        start_round: The first round with generated images; before it training is FedAvg's.
            Default from the released code, which has 50 rounds of FedAvg first.
        images: Number of images at most, shared among the classes that a client lacks.
        steps: Steps of the optimisation of their pixels in each round.
        pixel_lr: Learning rate of that optimisation.
        temperature: Temperature tau of the distillation.
        weighting: "ratio" weighs the losses by the numbers of real and lacking samples, as the
            released code does.
    """

    paper = (
        "Ye et al., Fake It Till Make It: Federated Learning with Consensus-Oriented "
        "Generation, ICLR 2024, Algorithm 1"
    )
    family = "distillation"
    year = 2024
    fairness = "none"
    passes = "E·T, 2·steps passes of the made samples, and a made batch per step"
    needs = ("classes",)

    lambda_kd: NonNegative = 0.01
    lambda_dis: NonNegative = 0.1
    start_round: Count = 51
    images: Count = 256
    steps: Count = 500
    pixel_lr: Positive = 0.01
    temperature: Positive = 1.0
    weighting: Literal["lambda", "ratio"] = "lambda"

    def advice(self, rounds: int) -> str:
        """Warn if the run ends before the first round with images."""
        if self.start_round <= rounds:
            return ""
        return (
            f"FedCOG makes images from round {self.start_round} on, but the run has {rounds} "
            "rounds, so that it equals FedAvg; set method.start_round to a round of the run, or "
            "train longer"
        )

    def start(self, server: Server) -> State:
        """Return the initial model and log the advice, if any."""
        if advice := self.advice(server.rounds):
            log.warning(advice)
        return super().start(server)

    def client(self, client: Client, down: Down) -> Up:
        """Generate images of lacking classes and distil the global model on them."""
        model = client.load(down.model)
        loss = supervised
        active = bool(self.lambda_kd) or self.weighting == "ratio"
        counts = torch.bincount(client.train.y, minlength=client.task.outputs)
        labels = lacking_labels(counts, self.images)
        if active and client.round >= self.start_round and len(labels):
            real_weight, image_weight = self._loss_weights(counts)
            images, logits = self.generated(client, down, labels.to(client.device))
            distilled = self._distilled(client, images, logits)
            loss = real_weight * supervised + image_weight * distilled
        client.fit(model, loss)
        if active and self.start_round <= client.rounds:
            client.state["previous"] = model
        return Up(model=model)

    def _loss_weights(self, counts: Tensor) -> tuple[float, float]:
        """Return the weights of the supervised loss and of the distillation on images."""
        if self.weighting == "lambda":
            return 1.0, self.lambda_kd
        real = int(counts.sum())
        lacking = int((counts.max() - counts).sum())
        return real / (real + lacking), lacking / (real + lacking)

    def generated(self, client: Client, down: Down, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Optimise pixels from noise for some labels.

        Returns:
            The images with the smallest loss during the optimisation, and the logits of the
            global model on them.
        """
        shared = client.load(down.model)
        previous = client.load(client.state.get("previous", down.model))
        # Without a model of its own, the client has nothing that disagrees.
        compares = "previous" in client.state and self.lambda_dis > 0
        generator = client.stream("fedcog pixels")
        pixels = torch.randn(len(labels), *client.task.shape, generator=generator)
        pixels = pixels.to(client.device)
        best_value = math.inf
        best = (pixels, pixels)

        def loss(step: int) -> Tensor:
            nonlocal best_value, best
            logits = shared(pixels).logits
            value = cross_entropy(logits, labels)
            if compares:
                gap = disagreement(previous(pixels).logits, logits).clamp(0, 1)
                value = value + self.lambda_dis * (1 - gap)
            if not step or float(value.detach()) < best_value:
                best_value = float(value.detach())
                # Copies, because the pixels still move.
                best = (pixels.detach().clone(), logits.detach().clone())
            return value

        with ExitStack() as stack:
            for model in (shared, previous):
                stack.enter_context(frozen(model.net))
                stack.enter_context(evaluating(model.net))
            optimised = {"pixels": pixels.requires_grad_()}
            client.minimise(optimised, loss, self.steps, lr=self.pixel_lr, betas=(0.5, 0.9))
        return best

    def _distilled(self, client: Client, images: Tensor, targets: Tensor) -> Loss:
        """Return tau^2 KL(global || local) on one batch of images per step.

        The images are used in random order, all of them before any is used again.
        """
        order = client.stream("fedcog batches")
        size = client.training.batch
        queue = torch.empty(0, dtype=torch.int64)

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            nonlocal queue
            if not len(queue):
                queue = torch.randperm(len(images), generator=order)
            chosen = queue[:size].to(images.device)
            queue = queue[size:]
            # Generated images must not enter batch-norm statistics.
            with evaluating(outputs.model.net):
                logits = outputs.model(images[chosen]).logits
                distilled: Tensor = distillation_loss(logits, targets[chosen], self.temperature)
            return distilled

        return term(value)
