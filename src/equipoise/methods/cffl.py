"""CFFL (Lyu et al., 2020).

Lingjuan Lyu, Xinyi Xu, Qian Wang and Han Yu. Collaborative Fairness in Federated Learning. In:
Federated Learning: Privacy and Incentive, Lecture Notes in Computer Science 12500, Springer, pages
189-204, 2020. https://arxiv.org/abs/2008.12161
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from equipoise.client import Client
from equipoise.method import Fraction, Method, Positive, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting import largest

MIN_REPUTATION = 1e-9  # A reputation of exactly 0 marks a client that was expelled.


@dataclass(frozen=True)
class CFFL(Method):
    """Reward each client with as much of the common update as its uploads have earned.

    Each client keeps its own model. The server measures every upload on its validation data.
    Clients whose reputation falls too low are expelled and train alone from then on.

    Attributes:
        upload: Share of its update that a client uploads, the entries of largest magnitude;
            theta_u in the paper (the authors: 0.1 or 1).
        clip: Largest norm of an update; a huge value such as 1e9 disables it (the authors clamp
            every entry to 0.01 instead).
        alpha: Slope alpha of the reward: reputations are sinh(alpha c). Near 0 they are
            proportional to accuracy (the authors: 5, growing with the rounds).
        memory: Share of a reputation that remains from round to round.
        threshold: Clients whose reputation is below this share of the mean are expelled, c_th in
            the paper; 0 expels nobody (the authors: 1/3, with few classes per client 1/6).
    """

    paper = (
        "Lyu et al., Collaborative Fairness in Federated Learning, Federated Learning: Privacy "
        "and Incentive, 2020, Algorithm 1"
    )
    family = "rewards"
    year = 2020
    fairness = "collaborative"
    passes = "E·T + K·V"
    served_models = ("personal",)
    uploads_model = False
    needs = ("classes", "validation")

    upload: Fraction = 0.5
    clip: Positive = 5.0
    alpha: Annotated[float, Gt(0), Le(100)] = 1.0
    memory: Annotated[float, Ge(0), Lt(1)] = 0.8
    threshold: Annotated[float, Ge(0), Lt(1)] = 0.5

    def start(self, server: Server) -> State:
        """Return the initial model without reputations and rewards."""
        return super().start(server).with_(reputation=PerClient(), rewards=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the reward of the client's last round; nothing before it or once expelled."""
        return Down(state.rewards.get(client_id, {}))

    def client(self, client: Client, down: Down) -> Up:
        """Train on the client's own model, clip the update and upload its largest entries."""
        model = _rewarded(client, down)
        before = model.tree()
        client.fit(model)
        after = model.tree()
        update = after - before  # Delta_j
        update = min(1.0, self.clip / max(update.norm(), 1e-12)) * update
        uploaded = largest(update, self.upload)  # Delta_j^u
        client.state["model"] = (before + update).with_rest(after.rest)
        client.state["uploaded"] = uploaded
        return Up(update=uploaded, rest=after.rest)

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Renew the reputations c_j of the clients that replied and are not expelled."""
        ids = _trusted(state, ups)
        accuracies = self._accuracies(server, state, ups.of(ids))  # v_j
        initial = 1 / len(server.ids)
        reputation = np.array([state.reputation.get(client, initial) for client in ids])
        if accuracies.any():  # Otherwise the clients do not differ, and reputations stay.
            # All reputations sum to 1. These clients share what they held together, so that
            # those of absent clients stay.
            total = reputation.sum()
            before = np.array([state.reputation.get(client, 0.0) for client in ids]) / total
            earned = (1 - self.memory) * accuracies / accuracies.sum()
            merged = np.sinh(self.alpha * (self.memory * before + earned))
            merged = np.maximum(merged / merged.sum(), MIN_REPUTATION)
            merged[merged < self.threshold / len(ids)] = 0  # expelled: below c_th
            reputation = total * merged / merged.sum()
        renewed = dict(zip(ids, reputation.tolist(), strict=True))
        server.log_contributions("reputation", renewed)
        return state.with_(reputation=state.reputation.put(renewed))

    def _accuracies(self, server: Server, state: State, ups: Ups) -> NDArray[np.float64]:
        """Return the validation accuracy of the global model with each update alone, v_j."""
        model = server.load(None)
        accuracies = []
        for up in ups:
            model.put((state.model + up.update).with_rest(up.rest))
            accuracies.append(server.accuracy(model))
        return np.array(accuracies)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the sizes n_j of trusted clients, and 0 for expelled ones."""
        trusted = _trusted(state, ups)
        sizes = [server.sizes[client] if client in trusted else 0.0 for client in ups.ids]
        return Weights(np.array(sizes))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Move the global model and compute the reward of each client."""
        rewards: dict[str, dict[str, Tree | float]] = {client: {} for client in ups.ids}
        if not weights.shares.any():  # All clients that replied were expelled or have no data.
            return state.with_(rewards=state.rewards.put(rewards))
        trusted = _trusted(state, ups)
        common = ups.mean("update", weights.shares)  # Delta_g
        best = max(state.reputation[client] for client in trusted)
        for client in trusted:
            size = server.sizes[client] / weights.shares.max()  # n_j / max n
            reward = largest(common, size * (state.reputation[client] / best))
            rewards[client] = {"reward": reward, "own": size}
        model = (state.model + common).with_rest(ups.mean("rest", weights.shares))
        return state.with_(model=model, rewards=state.rewards.put(rewards))

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the client's own model with its last reward."""
        return {"personal": Served(_rewarded(client, down), main=True)}


def _trusted(state: State, ups: Ups) -> list[str]:
    """Return the clients that replied and have not been expelled."""
    return [client for client in ups.ids if state.reputation.get(client) != 0]


def _rewarded(client: Client, down: Down) -> Model:
    """Return w_j with the reward of the last round, without the client's own part of it."""
    model = client.load(client.state.get("model"))
    if "reward" not in down:
        return model
    reward = down.reward - down.own * client.state["uploaded"]
    return model.put(model.tree() + reward)
