"""Salvaging Federated Learning by Local Adaptation: FedAvg with fine-tuning, the simplest personal model, and a strong one.

Tao Yu, Eugene Bagdasaryan and Vitaly Shmatikov. Preprint, 2020. https://arxiv.org/abs/2002.04758
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.client import Client
from equipoise.method import Cohort, Count, Served
from equipoise.methods.fedavg import FedAvg
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server


@dataclass(frozen=True)
class Finetune(FedAvg):
    """FedAvg; after the last round each client trains a copy of the global model on its own data, and serves that.

    A client that was away then serves the global model until it returns.
    """

    paper = "Yu, Bagdasaryan and Shmatikov, Salvaging Federated Learning by Local Adaptation, 2020"
    family, year, fairness, passes = "personal", 2020, "none", "E·T, and at the end e·T"
    exchanges = "1; at the end 1"
    composable_finish: ClassVar[bool] = True

    # of fine-tuning, with the optimiser and the learning rate of the last round
    tune_epochs: Count = 5

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        everyone.run(self.tune, each=lambda client: self.deliver(server, state, client))
        return state

    def tune(self, client: Client, down: Down) -> Up:
        client.state["tuned"] = tuned(client, client.load(down.model), self.tune_epochs)
        return Up()

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        personal = client.load(client.state.get("tuned", down.model))
        return {
            "personal": Served(personal, main=True),
            "global": Served(client.load(down.model), same_for_all=True),
        }


def tuned(client: Client, model: Model, epochs: int, purpose: str = "tune") -> Model:
    """A copy of a model, trained on the client's own data."""
    own = client.load(model.tree())
    client.fit(own, epochs=epochs, purpose=purpose)
    return own
