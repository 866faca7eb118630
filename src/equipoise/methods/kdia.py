"""KDIA (Ma, 2025).

Xing Ma. Tackling Data Heterogeneity in Federated Learning through Knowledge Distillation with
Inequitable Aggregation. Preprint, 2025. https://arxiv.org/abs/2506.20431,
https://github.com/maxiaum/KDIA
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
    """A teacher averaged over all clients and generated features support local training.

    The student is FedAvg over this round's clients; the teacher is the mean of the last models of
    all clients seen so far. The generator makes features of any class, so that a client's head
    also sees classes of which the client has no samples. See Algorithms 1 and 2.

    Attributes:
        lambda_kd: Weight of the distillation from the teacher; 0 disables it.
        lambda_gen: Weight of the generated features; 0 disables them and the generator (the paper:
            1 for Dirichlet 0.5, 0.01 for 0.1 and 5.0).
        temperature: Temperature of the distillation.
        tau_squared: Multiply the distillation by temperature^2, as other methods do.
        kd_direction: KL(teacher || student), or the reverse, as in the released code.
        teacher_weights: Weights of the teacher: "geometric" is triFreqs of Eq. 5-9.
        labels: Labels of generated features: uniform, from a pool per round, or those of the real
            batch.
        noise: Size of the generator's random input.
        out_act: Last activation of the generator.
        diversity: Weight of the generator's diversity loss (Eq. 4).
        gen_steps: Steps of the generator in each round.
        gen_batches: Batches in its pool of labels, which is shuffled whenever it is used up.
        gen_batch: Its batch size; even, because the diversity loss compares two halves.
        gen_lr: Its learning rate.
        gen_decay: Its weight decay.
        preset: "quick" trains the generator for at most 50 steps in each round.
    """

    paper = (
        "Ma, Tackling Data Heterogeneity in Federated Learning through Knowledge Distillation "
        "with Inequitable Aggregation"
    )
    family = "distillation"
    year = 2025
    fairness = "participation"
    passes = "E·T + F"
    served_models = ("global", "teacher")
    composable_update: ClassVar[bool] = True

    lambda_kd: NonNegative = 0.5
    lambda_gen: NonNegative = 1.0
    temperature: Positive = 2.0
    tau_squared: bool = False
    kd_direction: Literal["teacher_student", "student_teacher"] = "teacher_student"
    teacher_weights: Literal["geometric", "arithmetic", "interval", "count", "size"] = "geometric"
    labels: Literal["pool", "real"] = "pool"
    noise: Count = 100
    out_act: Literal["sigmoid", "relu", "softplus"] = "sigmoid"
    diversity: NonNegative = 1.0
    gen_steps: Count = 2000
    gen_batches: Count = 200
    gen_batch: Annotated[int, Ge(2), MultipleOf(2)] = 64
    gen_lr: Positive = 1e-3
    gen_decay: NonNegative = 1e-5
    preset: Literal["paper", "quick"] = "paper"

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """A head, and class labels unless only the teacher is used."""
        return ("classes", "head") if self.lambda_kd or self.lambda_gen else ("head",)

    def check(self, task: Task) -> None:
        """Refuse regression unless only the teacher is used."""
        if not task.classifies and (self.lambda_kd or self.lambda_gen):
            raise ValueError(
                "KDIA works on classes, but the task is regression; set lambda_kd=0 and "
                "lambda_gen=0 for its teacher alone"
            )

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return the generator of features, if it is used."""
        if not self.lambda_gen or "model" not in others:
            return {}

        def generator() -> Generator:
            network = cast(Network, others["model"]())
            if not list(network.head.parameters()):
                raise ValueError(
                    f"KDIA needs a model with a trained `head`, got {network.head}; split it so, "
                    "or set lambda_gen=0"
                )
            shape = shape_after(network.features, task.shape)
            return Generator(shape, task.outputs, self.noise, self.out_act)

        return {"generator": generator}

    def start(self, server: Server) -> State:
        """Return the initial model without models of clients."""
        return super().start(server).with_(last=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send student, teacher and generator; the first teacher is the student (line 4)."""
        down = Down(model=state.model, teacher=state.get("teacher", state.model))
        if "generator" not in state:
            return down
        return down.with_(generator=state.generator)

    def client(self, client: Client, down: Down) -> Up:
        """Train with distillation and generated features (Eq. 13)."""
        model = client.load(down.model)
        loss = supervised
        if self.lambda_kd:
            teacher = client.teacher(client.load(down.teacher))
            loss += self.lambda_kd * self.distilled(teacher)
        if self.lambda_gen:
            generator = client.load(down.get("generator"), model="generator")
            loss += self.lambda_gen * self._generated(client, generator)
        client.fit(model, loss)
        return Up(model=model)

    def distilled(self, teacher: Tensor | Model) -> Loss:
        """Return the distillation from the teacher (Eq. 11)."""

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            target = frozen_logits(teacher, batch) / self.temperature
            own = outputs.logits / self.temperature
            if self.kd_direction == "teacher_student":
                divergence = kl_divergence(target, own)
            else:
                divergence = kl_divergence(own, target)
            return divergence.mean()

        factor = self.temperature**2 if self.tau_squared else 1.0
        return factor * term(value)

    def _generated(self, client: Client, generator: Model) -> Loss:
        """Return the cross-entropy of the head on generated features (Eq. 12)."""
        size = client.training.batch
        samples = len(client.train)
        noise = client.stream("kdia noise")
        epochs = client.training.epochs
        if client.training.steps:
            epochs = math.ceil(client.training.steps / max(1, samples // size))
        stream = client.stream("kdia labels")
        pool = label_pool(samples, client.task.outputs, epochs, samples < size, stream)
        generator.net.eval()

        def value(outputs: Outputs, batch: Batch) -> Tensor:
            labels = batch.y
            if self.labels == "pool":
                start = batch.position * size
                labels = pool[batch.epoch, start:][: len(batch.y)].to(batch.y.device)
            head = cast(Network, outputs.model.net).head
            drawn = torch.randn(len(labels), self.noise, generator=noise).to(labels.device)
            with torch.no_grad():
                features = generator.net(drawn, labels)
            with evaluating(head):  # Generated features must not enter batch-norm statistics.
                return cross_entropy(head(features), labels)

        return term(value)

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Store the uploaded models and average those of all clients to the teacher (Eq. 5-10)."""
        last = state.last.put(ups.table("model"))
        rounds = [*server.joined, ups.ids]
        last_round = {client: t for t, ids in enumerate(rounds, 1) for client in ids}
        counts = Counter(client for ids in rounds for client in ids)
        intervals = [len(rounds) - last_round.get(client, 0) for client in server.ids]
        shares = trifreqs(
            np.array(intervals, dtype=np.float64),
            np.array([counts[client] for client in server.ids], dtype=np.float64),
            np.array([server.sizes[client] for client in server.ids], dtype=np.float64),
            self.teacher_weights,
        )
        weights = dict(zip(server.ids, (shares / shares.sum()).tolist(), strict=True))
        server.log_contributions("teacher_weight", weights)  # F_k
        # The alternatives to triFreqs also give weight to clients that were never seen.
        initial = server.initial(ups[0].model.model)
        trees = [
            last.get(client, initial) if share else None
            for client, share in zip(server.ids, shares, strict=True)
        ]
        teacher = combine(trees, shares.tolist(), float(shares.sum()))
        return state.with_(last=last, teacher=teacher)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Average the student and train the generator."""
        state = super().update(server, state, ups, weights)
        if not self.lambda_gen:
            return state
        generator = self._trained(server, state, ups.values("model"), weights.shares)
        return state.with_(generator=generator)

    def _trained(
        self, server: Server, state: State, trees: Sequence[Tree], shares: np.ndarray
    ) -> Model:
        """Train the generator so that the uploaded heads recognise its labels (Eq. 3-4)."""
        generator = server.load(state.get("generator"), model="generator")
        noise = server.stream("kdia noise")
        device = server.device
        steps = min(self.gen_steps, 50) if self.preset == "quick" else self.gen_steps
        epochs = math.ceil(steps / self.gen_batches)
        labels = self.gen_batches * self.gen_batch
        stream = server.stream("kdia labels")
        pool = label_pool(labels, server.task.outputs, epochs, False, stream)
        batches = pool.view(-1, self.gen_batch).to(device)
        mean_head = heads(server.load(trees[0]), trees, shares)
        generator.net.train()

        def loss(step: int) -> Tensor:
            drawn = torch.randn(self.gen_batch, self.noise, generator=noise).to(device)
            features = generator.net(drawn, batches[step])
            recognised = cross_entropy(mean_head(features), batches[step])
            return recognised + self.diversity * diversity_loss(drawn, features)

        server.minimise(generator.trained, loss, steps, lr=self.gen_lr, weight_decay=self.gen_decay)
        return generator

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the student and the teacher."""
        return {
            "global": Served(client.load(down.model), same_for_all=True, main=True),
            "teacher": Served(client.load(down.teacher), same_for_all=True),
        }
