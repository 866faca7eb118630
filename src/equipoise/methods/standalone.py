"""Standalone: the reference of every statement on who gains.

No paper: it is what every paper compares with.
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
    """Each client trains alone, from the common initial model, with the same budget as in the federation."""

    family, year, fairness, passes = "reference", None, "none", "E·T"
    exchanges = "1"
    weighs: ClassVar[bool] = False
    uploads_model: ClassVar[bool] = False
    shares_model: ClassVar[bool] = False

    model: str = "model"  # which of the experiment's models is trained

    def start(self, server: Server) -> State:
        return State()

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down()

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(client.state.get("local"), model=self.model)
        done = client.fit(model, memory=client.state.get("optimiser"))
        client.state["local"] = model
        if client.training.keep_optimiser:
            client.state["optimiser"] = done.memory
        return Up()

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        cohort.run(self.client, each=lambda client: self.deliver(server, state, client))
        return state

    def serves(self, client: Client, down: Down) -> dict[str, Model]:
        return {"personal": client.load(client.state.get("local"), model=self.model)}
