"""Tackling Data Heterogeneity in Federated Learning through Knowledge Distillation with Inequitable Aggregation (KDIA).

Xing Ma. Preprint, 2025. https://arxiv.org/abs/2506.20431, https://github.com/maxiaum/KDIA
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import torch
from annotated_types import Ge, MultipleOf
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equipoise.client import Client
from equipoise.losses import kl_divergence
from equipoise.losses.generation import diversity_loss, heads, label_pool
from equipoise.losses.terms import Batch, Loss, frozen_logits, supervised, term
from equipoise.method import Count, Method, NonNegative, Positive, Served, Ups, Weights
from equipoise.models import Generator, Model, Network, Outputs, shape_after
from equipoise.models.network import evaluating
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.task import Task
from equipoise.tree import Tree, combine
from equipoise.weighting import trifreqs


@dataclass(frozen=True)
class KDIA(Method):
    """A teacher averaged from the last models of all clients, and generated features, help each client's training (Algorithms 1-2).

    The student is FedAvg over this round's clients; the teacher is the mean of the last models of all clients seen so far. The generator
    makes features of any class, so that a client's head also sees classes of which the client has no samples.
    """

    paper = "Ma, Tackling Data Heterogeneity in Federated Learning through Knowledge Distillation with Inequitable Aggregation"
    family, year, fairness, passes = "distillation", 2025, "participation", "E·T + F"
    composable_update: ClassVar[bool] = True

    lambda_kd: NonNegative = 0.5  # weight of the distillation from the teacher; 0: without it
    # weight of the generated features; 0: without them and without a generator
    lambda_gen: NonNegative = 1.0
    temperature: Positive = 2.0  # of the distillation
    tau_squared: bool = False  # multiply the distillation by temperature^2, as other methods do
    # KL(teacher || student); or as the released code does
    kd_direction: Literal["teacher_student", "student_teacher"] = "teacher_student"
    # geometric: triFreqs
    teacher_weights: Literal["geometric", "arithmetic", "interval", "count", "size"] = "geometric"
    # of generated features: uniform, from a pool per round; or those of the real batch
    labels: Literal["pool", "real"] = "pool"
    noise: Count = 100  # size of the generator's random input
    out_act: Literal["sigmoid", "relu", "softplus"] = "sigmoid"  # last activation of the generator
    diversity: NonNegative = 1.0  # weight of the generator's diversity loss
    gen_steps: Count = 2000  # steps of the generator in each round
    # batches in its pool of labels, which is shuffled whenever it is used up
    gen_batches: Count = 200
    # its batch size; even, since the diversity loss compares two halves
    gen_batch: Annotated[int, Ge(2), MultipleOf(2)] = 64
    gen_lr: Positive = 1e-3  # its learning rate
    gen_decay: NonNegative = 1e-5  # its weight decay
    # quick: at most 50 steps of the generator in each round
    preset: Literal["paper", "quick"] = "paper"

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """A head, and class labels unless only the teacher is used."""
        return ("classes", "head") if self.lambda_kd or self.lambda_gen else ("head",)

    def check(self, task: Task) -> None:
        if not task.classifies and (self.lambda_kd or self.lambda_gen):
            raise ValueError(
                "KDIA works on classes, but the task is regression; set lambda_kd=0 and lambda_gen=0 for its teacher alone"
            )

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        def generator() -> Generator:
            network = cast(Network, others["model"]())
            if not list(network.head.parameters()):
                raise ValueError(
                    f"KDIA needs a model with a trained `head`, got {network.head}; split it so, or set lambda_gen=0"
                )
            return Generator(
                shape_after(network.features, task.shape), task.outputs, self.noise, self.out_act
            )

        return {"generator": generator} if self.lambda_gen and "model" in others else {}

    def start(self, server: Server) -> State:
        return super().start(server).with_(last=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        # Algorithm 1, line 4; the first teacher is the student
        down = Down(model=state.model, teacher=state.get("teacher", state.model))
        return down.with_(generator=state.generator) if "generator" in state else down

    def client(self, client: Client, down: Down) -> Up:
        model, loss = client.load(down.model), supervised
        if self.lambda_kd:
            loss += self.lambda_kd * self._distilled(client.teacher(client.load(down.teacher)))
        if self.lambda_gen:
            loss += self.lambda_gen * self._generated(
                client, client.load(down.get("generator"), model="generator")
            )
        client.fit(model, loss)  # Eq. 13
        return Up(model=model)

    def _distilled(self, teacher: Tensor | Model) -> Loss:
        def value(outputs: Outputs, batch: Batch) -> Tensor:
            target, own = (
                frozen_logits(teacher, batch) / self.temperature,
                outputs.logits / self.temperature,
            )
            return (
                kl_divergence(target, own)
                if self.kd_direction == "teacher_student"
                else kl_divergence(own, target)
            ).mean()  # Eq. 11

        return (self.temperature**2 if self.tau_squared else 1.0) * term(value)

    def _generated(self, client: Client, generator: Model) -> Loss:
        size, samples, noise = client.training.batch, len(client.train), client.stream("kdia noise")
        epochs = (
            math.ceil(client.training.steps / max(1, samples // size))
            if client.training.steps
            else client.training.epochs
        )
        pool = label_pool(
            samples, client.task.outputs, epochs, samples < size, client.stream("kdia labels")
        )
        generator.net.eval()

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            labels = (
                batch.y
                if self.labels == "real"
                else pool[batch.epoch, batch.position * size :][: len(batch.y)].to(batch.y.device)
            )
            head = cast(Network, outputs.model.net).head
            with torch.no_grad():
                features = generator.net(
                    torch.randn(len(labels), self.noise, generator=noise).to(labels.device), labels
                )
            with evaluating(head):  # generated features must not enter batch-norm statistics
                return cross_entropy(head(features), labels)  # Eq. 12

        return term(value)

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        last, rounds = state.last.put(ups.table("model")), [*server.joined, ups.ids]
        seen, counts = (
            {client: t for t, ids in enumerate(rounds, 1) for client in ids},
            Counter(client for ids in rounds for client in ids),
        )
        rows = [
            (len(rounds) - seen.get(client, 0), counts[client], server.sizes[client])
            for client in server.ids
        ]
        gaps, times, sizes = np.array(rows, dtype=np.float64).T
        shares = trifreqs(gaps, times, sizes, self.teacher_weights)  # Eq. 5-9
        # of clients never seen, to which only the alternatives give weight
        initial = server.initial(ups[0].model.model)
        trees = [
            last.get(client, initial) if share else None
            for client, share in zip(server.ids, shares, strict=True)
        ]
        # Eq. 10
        return state.with_(last=last, teacher=combine(trees, shares.tolist(), float(shares.sum())))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        state = super().update(server, state, ups, weights)
        return (
            state.with_(generator=self._trained(server, state, ups.values("model"), weights.shares))
            if self.lambda_gen
            else state
        )

    def _trained(
        self, server: Server, state: State, trees: Sequence[Tree], shares: np.ndarray
    ) -> Model:
        """The generator after this round: its features are what the uploaded heads together take for their labels."""
        generator, noise = (
            server.load(state.get("generator"), model="generator"),
            server.stream("kdia noise"),
        )
        steps = min(self.gen_steps, 50) if self.preset == "quick" else self.gen_steps
        epochs, device = math.ceil(steps / self.gen_batches), server.device
        pool = label_pool(
            self.gen_batches * self.gen_batch,
            server.task.outputs,
            epochs,
            False,
            server.stream("kdia labels"),
        )
        batches, answer = (
            pool.view(-1, self.gen_batch).to(device),
            heads(server.load(trees[0]), trees, shares),
        )
        generator.net.train()

        def loss(step: int) -> Tensor:
            drawn = torch.randn(self.gen_batch, self.noise, generator=noise).to(device)
            features = generator.net(drawn, batches[step])
            return cross_entropy(answer(features), batches[step]) + self.diversity * diversity_loss(
                drawn, features
            )  # Eq. 3-4

        server.minimise(generator.trained, loss, steps, lr=self.gen_lr, weight_decay=self.gen_decay)
        return generator

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        return {
            "global": Served(client.load(down.model), same_for_all=True, main=True),
            "teacher": Served(client.load(down.teacher), same_for_all=True),
        }
