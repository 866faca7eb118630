"""Collaborative Fairness in Federated Learning (CFFL).

Lingjuan Lyu, Xinyi Xu, Qian Wang and Han Yu. In: Federated Learning: Privacy and Incentive, Lecture Notes in Computer Science 12500,
Springer, pages 189-204, 2020. https://arxiv.org/abs/2008.12161
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from equipoise.client import Client
from equipoise.method import Fraction, Method, Positive, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting import largest

LEAST = 1e-9  # of a reputation: exactly 0 is that of a client that was expelled


@dataclass(frozen=True)
class CFFL(Method):
    """Each client keeps its own model and downloads as much of the common update as the accuracy of its uploads has earned.

    The server measures every upload on its validation data. Clients whose reputation falls too low are expelled and train alone from then on.
    """

    paper = "Lyu et al., Collaborative Fairness in Federated Learning, Federated Learning: Privacy and Incentive, 2020, Algorithm 1"
    family, year, fairness, passes = "rewards", 2020, "collaborative", "E·T + K·V"
    uploads_model = False
    needs = ("classes", "validation")

    # share of its update that a client uploads: the numbers of largest magnitude (theta_u)
    upload: Fraction = 0.5
    clip: Positive = 5.0  # largest norm of an update; a huge one such as 1e9: any
    # how much more the accurate earn: reputations are sinh(alpha c); near 0: in proportion
    alpha: Annotated[float, Gt(0), Le(100)] = 1.0
    # how much of a reputation stays from round to round
    memory: Annotated[float, Ge(0), Lt(1)] = 0.8
    # reputations below this share of the mean expel; 0: nobody is expelled
    threshold: Annotated[float, Ge(0), Lt(1)] = 0.5

    def start(self, server: Server) -> State:
        return super().start(server).with_(reputation=PerClient(), rewards=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        # of the client's last round; nothing before it, and once it is expelled
        return Down(state.rewards.get(client_id, {}))

    def client(self, client: Client, down: Down) -> Up:
        model = _rewarded(client, down)
        before = model.tree()
        client.fit(model)
        after = model.tree()
        update = after - before
        update = min(1.0, self.clip / max(update.norm(), 1e-12)) * update
        uploaded = largest(update, self.upload)
        client.state["model"], client.state["uploaded"] = (
            (before + update).with_rest(after.rest),
            uploaded,
        )
        return Up(update=uploaded, rest=after.rest)

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """The reputations of those that answered, from the accuracy of the global model with the update of each alone."""
        ids = _trusted(state, ups)
        model, accuracies = server.load(None), []
        for up in ups.of(ids):
            accuracies.append(
                server.accuracy(model.put((state.model + up.update).with_rest(up.rest)))
            )
        earned = np.array(accuracies)
        held = np.array([state.reputation.get(client, 1 / len(server.ids)) for client in ids])
        if earned.any():  # else nobody can be told from another: all keep what they have
            total = held.sum()  # of all reputations, which sum to 1: those of absent clients stay
            before = np.array([state.reputation.get(client, 0.0) for client in ids]) / total
            merged = np.sinh(
                self.alpha * (self.memory * before + (1 - self.memory) * earned / earned.sum())
            )
            merged = np.maximum(merged / merged.sum(), LEAST)
            merged[merged < self.threshold / len(ids)] = 0  # expelled: below c_th
            held = total * merged / merged.sum()
        return state.with_(
            reputation=state.reputation.put(dict(zip(ids, held.tolist(), strict=True)))
        )

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        trusted = _trusted(state, ups)
        return Weights(
            np.array([server.sizes[client] if client in trusted else 0.0 for client in ups.ids])
        )

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        nothing: dict[str, dict[str, Tree | float]] = {client: {} for client in ups.ids}
        trusted = _trusted(state, ups)
        if not weights.shares.any():  # all that answered were expelled, or have no data
            return state.with_(rewards=state.rewards.put(nothing))
        common = ups.mean("update", weights.shares)  # Delta_g
        sizes = {client: server.sizes[client] / weights.shares.max() for client in trusted}
        best = max(state.reputation[client] for client in trusted)
        rewards = {
            client: {
                "reward": largest(common, sizes[client] * (state.reputation[client] / best)),
                "own": sizes[client],
            }
            for client in trusted
        }
        model = (state.model + common).with_rest(ups.mean("rest", weights.shares))
        return state.with_(model=model, rewards=state.rewards.put({**nothing, **rewards}))

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        return {"personal": Served(_rewarded(client, down), main=True)}


def _trusted(state: State, ups: Ups) -> list[str]:
    """Those that answered and have not been expelled."""
    return [client for client in ups.ids if state.reputation.get(client) != 0]


def _rewarded(client: Client, down: Down) -> Model:
    """w_j: the client's model with the reward of its last round, and without what it contributed to that itself."""
    model = client.load(client.state.get("model"))
    return (
        model.put(model.tree() + (down.reward - down.own * client.state["uploaded"]))
        if "reward" in down
        else model
    )
