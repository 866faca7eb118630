"""Methods for each slot of a composition, with names that clash with those of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.client import Client, Inputs
from equipoise.method import Cohort, Method, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import Tree


@dataclass(frozen=True)
class ByLoss(Method):
    """Weighs by the loss of the received model.

    `loss`, `visits` and `seen` are names that the base uses, too.
    """

    composable_weights: ClassVar[bool] = True

    power: float = 1.0  # of the loss

    def start(self, server: Server) -> State:
        return super().start(server).with_(visits=0)

    def before(self, client: Client, received: Tree | None) -> Up:
        assert received is not None
        client.state["seen"] = client.state.get("seen", 0) + 1
        return Up(loss=client.loss(client.load(received)))

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        assert received is not None and uploaded is not None
        return Up(moved=(uploaded - received).norm())

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        assert min(ups.numbers("moved")) > 0
        return state.with_(visits=state.visits + len(ups), model_seen=state.model.norm())

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(ups.numbers("loss") ** self.power)


@dataclass(frozen=True)
class Slow(Method):
    """A companion that remembers the mean of all models so far, and serves it."""

    def start(self, server: Server) -> State:
        state = super().start(server)
        return state.with_(past=state.model, rounds=1)

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        total = state.past * state.rounds + ups.mean("model", np.ones(len(ups))).params
        return state.with_(
            past=(total / (state.rounds + 1)).with_rest(state.past.rest), rounds=state.rounds + 1
        )

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=state.model, past=state.past)

    def serves(self, client: Client, down: Down) -> dict[str, Model]:
        return {"global": client.load(down.past), "teacher": client.load(down.past)}


@dataclass(frozen=True)
class Shifted(Method):
    """Changes inputs by what clients measured before round 1."""

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        return state.with_(shift=everyone.run(self.centre).mean("centre", np.ones(len(server.ids))))

    def centre(self, client: Client, down: Down) -> Up:
        client.state["asked"] = True
        return Up(centre=float(client.train.x.mean()))

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(shift=state.shift)

    def inputs(self, client: Client, down: Down) -> Inputs:
        return Inputs(
            train=lambda x, noise: x - down.shift, other=lambda x: x - down.shift, random=False
        )
