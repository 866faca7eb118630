"""Towards Collaborative Fairness in Federated Learning Under Imbalanced Covariate Shift (FedAKD).

Tianrun Yu, Jiaqi Wang, Haoyu Wang, Mingquan Lin, Han Liu, Nelson S. Yee and Fenglong Ma. Proceedings of the 31st ACM SIGKDD Conference on
Knowledge Discovery and Data Mining (KDD), 2025. https://doi.org/10.1145/3711896.3737161, https://github.com/Tianrun-Yu/FedAKD
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from equipoise.client import Client
from equipoise.losses.terms import distillation, supervised
from equipoise.method import Cohort, Method, NonNegative, Positive, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task


@dataclass(frozen=True)
class FedAKD(Method):
    """Asynchronous distillation: the global model teaches a personal one, which teaches it back on the samples it gets right.

    Each client keeps a personal model and never sends it. What it uploads is the copy of the global model that its personal model has
    taught. A client whose personal model gets nothing right sends the global model back as it came.
    """

    paper = "Yu et al., Towards Collaborative Fairness in Federated Learning Under Imbalanced Covariate Shift, KDD 2025, Algorithm 1"
    family, year, fairness, passes = "distillation", 2025, "collaborative", "E·T + up to E·T + 2F"
    exchanges = "1"

    alpha: NonNegative = 1.0  # weight of the distillation from the global to the personal model
    beta: NonNegative = 1.0  # weight of the distillation from the personal to the global model
    temperature: Positive = 1.0  # of both distillations
    # copy: the received model (Single-Dist); copy_train: then trained
    personal: Literal["distil", "copy", "copy_train"] = "distil"
    # samples on which the personal model teaches; all: All-Data
    teach_on: Literal["correct", "all"] = "correct"
    # code: a round teaches first and learns from the new global model then, as the released code
    order: Literal["paper", "code"] = "paper"
    # replies are weighed by samples, or by those the personal model gets right (Correct-Agg)
    average: Literal["size", "correct"] = "size"

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Class labels, where samples are selected by them."""
        return ("classes",) if "correct" in (self.teach_on, self.average) else ()

    def check(self, task: Task) -> None:
        if not task.classifies and "correct" in (self.teach_on, self.average):
            raise ValueError(
                'FedAKD selects correctly classified samples, got a regression task; set teach_on="all" and average="size"'
            )

    def client(self, client: Client, down: Down) -> Up:
        shared = client.load(down.model)  # line 10
        # what the last round left; at first the initial model and all samples
        if self.order == "code":
            local = client.load(client.state.get("local"))
            logits, correct = (
                client.predict(local),
                client.state.get("correct", torch.ones(len(client.train), dtype=torch.bool)),
            )
        else:
            local = self._personal(client, down, shared)
            logits = client.predict(local)
            correct = logits.argmax(1) == client.train.y  # Eq. 4
        # the pass that selects the samples also gives the teacher's answers
        teacher = local if client.random_inputs else logits
        on = correct if self.teach_on == "correct" else None
        # Eq. 5-6
        client.fit(shared, supervised + self.beta * distillation(teacher, self.temperature), on=on)
        up = Up(model=shared)
        return up.with_(correct=int(correct.sum())) if self.average == "correct" else up

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        state = super().round(server, state, cohort)
        if self.order == "code":
            cohort.run(self.learn, each=lambda client: self.deliver(server, state, client))
        return state

    def learn(self, client: Client, down: Down) -> None:
        """The second half of a round in the order of the code: the personal model learns, and selects the samples of the next round."""
        local = self._personal(client, down, client.load(down.model))
        client.state["local"], client.state["correct"] = (
            local,
            client.predict(local).argmax(1) == client.train.y,
        )

    def _personal(self, client: Client, down: Down, shared: Model) -> Model:
        """Step 1: the personal model of this round."""
        if self.personal == "copy":
            return client.load(down.model)
        if self.personal == "copy_train":
            local, loss = client.load(down.model), supervised
        else:
            local = client.load(client.state.get("local"))  # line 3: at first the initial model
            loss = supervised + self.alpha * distillation(client.teacher(shared), self.temperature)
        client.fit(local, loss)  # Eq. 2-3
        client.state["local"] = local
        return local

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        if self.average == "size":
            return super().weights(server, state, ups)  # line 25
        # it fills the slot `weights` of a method that counts no correct samples
        if "correct" not in ups[0]:
            raise ValueError(
                'average="correct" weighs by counts that only clients of FedAKD(average="correct") send; set average="size"'
            )
        correct = ups.numbers("correct")
        # nobody is right: the global model stays
        return Weights(correct) if correct.any() else Weights(np.ones(len(ups)), step=0.0)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        personal = client.load(client.state.get("local", down.model))
        return {
            "personal": Served(personal, main=True),
            "global": Served(client.load(down.model), same_for_all=True),
        }
