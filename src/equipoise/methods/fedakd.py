"""FedAKD (Yu et al., 2025).

Tianrun Yu, Jiaqi Wang, Haoyu Wang, Mingquan Lin, Han Liu, Nelson S. Yee and Fenglong Ma. Towards
Collaborative Fairness in Federated Learning Under Imbalanced Covariate Shift. Proceedings of the
31st ACM SIGKDD Conference on Knowledge Discovery and Data Mining (KDD), 2025.
https://doi.org/10.1145/3711896.3737161, https://github.com/Tianrun-Yu/FedAKD
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
    """Asynchronous distillation between the global model and a personal model of each client.

    The global model teaches the personal one, which teaches it back on the samples that it
    classifies correctly. The personal model is never sent: a client uploads the copy of the global
    model that its personal model has taught. A client whose personal model classifies no sample
    correctly returns the global model unchanged.

    Attributes:
        alpha: Weight alpha of the distillation from the global to the personal model (Eq. 3).
        beta: Weight beta of the distillation from the personal to the global model (Eq. 6).
        temperature: Temperature of both distillations.
        personal: "copy" takes the received model as the personal one (ablation Single-Dist);
            "copy_train" trains it then.
        teach_on: Samples on which the personal model teaches; "all" is the ablation All-Data.
        order: "code" teaches first and then learns from the new global model, as the released
            code does.
        average: Aggregation weights: training samples, or correctly classified ones (ablation
            Correct-Agg).
    """

    paper = (
        "Yu et al., Towards Collaborative Fairness in Federated Learning Under Imbalanced "
        "Covariate Shift, KDD 2025, Algorithm 1"
    )
    family = "distillation"
    year = 2025
    fairness = "collaborative"
    passes = "E·T + up to E·T + 2F"
    served_models = ("personal", "global")
    exchanges = "1"

    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    temperature: Positive = 1.0
    personal: Literal["distil", "copy", "copy_train"] = "distil"
    teach_on: Literal["correct", "all"] = "correct"
    order: Literal["paper", "code"] = "paper"
    average: Literal["size", "correct"] = "size"

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Class labels, where samples are selected by them; otherwise also numbers."""
        return ("classes",) if "correct" in (self.teach_on, self.average) else ("labels",)

    def check(self, task: Task) -> None:
        """Refuse regression if samples are selected by their class."""
        if not task.classifies and "correct" in (self.teach_on, self.average):
            raise ValueError(
                "FedAKD selects correctly classified samples, got a regression task; set "
                'teach_on="all" and average="size"'
            )

    def client(self, client: Client, down: Down) -> Up:
        """Let the personal model learn (step 1) and teach the global model (step 2)."""
        shared = client.load(down.model)  # line 10
        if self.order == "code":
            # The last round has trained the personal model; at first it is the initial one.
            personal = client.load(client.state.get("local"))
            logits = client.predict(personal)
            all_samples = torch.ones(len(client.train), dtype=torch.bool)
            correct = client.state.get("correct", all_samples)
        else:
            personal = self.personal_model(client, down, shared)
            logits = client.predict(personal)
            correct = logits.argmax(1) == client.train.y  # Eq. 4
        # The pass that selects the samples also gives the teacher's outputs.
        teacher = personal if client.random_inputs else logits
        loss = supervised + self.beta * distillation(teacher, self.temperature)
        client.fit(shared, loss, on=correct if self.teach_on == "correct" else None)  # Eq. 5-6
        up = Up(model=shared)
        if self.average == "correct":
            up = up.with_(correct=int(correct.sum()))
        return up

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Do one round; in the order of the code, with a second exchange after aggregation."""
        state = super().round(server, state, cohort)
        if self.order == "code":
            cohort.run(self.learn, each=lambda client: self.deliver(server, state, client))
        return state

    def learn(self, client: Client, down: Down) -> None:
        """Train the personal model and select the samples of the next round (order="code")."""
        personal = self.personal_model(client, down, client.load(down.model))
        client.state["local"] = personal
        client.state["correct"] = client.predict(personal).argmax(1) == client.train.y

    def personal_model(self, client: Client, down: Down, shared: Model) -> Model:
        """Return the personal model of this round (step 1, Eq. 2-3)."""
        if self.personal == "copy":
            return client.load(down.model)
        if self.personal == "copy_train":
            personal = client.load(down.model)
            loss = supervised
        else:
            personal = client.load(client.state.get("local"))  # line 3: at first the initial model
            loss = supervised + self.alpha * distillation(client.teacher(shared), self.temperature)
        client.fit(personal, loss)
        client.state["local"] = personal
        return personal

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the sizes (line 25), or the numbers of correctly classified samples."""
        if self.average == "size":
            return super().weights(server, state, ups)
        if "correct" not in ups[0]:  # The clients run another method, composed with this rule.
            raise ValueError(
                'average="correct" weighs by counts that only clients of '
                'FedAKD(average="correct") send; set average="size"'
            )
        correct = ups.numbers("correct")
        if not correct.any():  # The global model stays.
            return Weights(np.ones(len(ups)), step=0.0)
        return Weights(correct)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the personal model and the global one."""
        personal = client.load(client.state.get("local", down.model))
        return {
            "personal": Served(personal, main=True),
            "global": Served(client.load(down.model), same_for_all=True),
        }
