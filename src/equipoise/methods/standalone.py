"""Standalone: local training without a federation.

No paper: it is the baseline that shows which clients gain by joining.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.client import Client
from equipoise.method import Cohort, Method
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server


@dataclass(frozen=True)
class Standalone(Method):
    """Each client trains alone, from the common initial model, with the budget of the federation.

    Attributes:
        model: The model of the experiment that is trained.
    """

    family = "reference"
    year = None
    fairness = "none"
    passes = "E·T"
    served_models = ("personal",)
    exchanges = "1"
    weighs: ClassVar[bool] = False
    uploads_model: ClassVar[bool] = False
    shares_model: ClassVar[bool] = False

    model: str = "model"

    def start(self, server: Server) -> State:
        """Return an empty state: the server holds no model."""
        return State()

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Return an empty message."""
        return Down()

    def client(self, client: Client, down: Down) -> Up:
        """Continue the training of the client's own model."""
        model = client.load(client.state.get("local"), model=self.model)
        fit = client.fit(model, memory=client.state.get("optimiser"))
        client.state["local"] = model
        if client.training.keep_optimiser:
            client.state["optimiser"] = fit.memory
        return Up()

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Let the clients train; nothing is aggregated."""
        cohort.run(self.client, each=lambda client: self.deliver(server, state, client))
        return state

    def serves(self, client: Client, down: Down) -> dict[str, Model]:
        """Return the client's own model."""
        return {"personal": client.load(client.state.get("local"), model=self.model)}
