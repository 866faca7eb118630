"""FedAVE: Adaptive Data Value Evaluation Framework for Collaborative Fairness in Federated Learning.

Zihui Wang, Zhaopeng Peng, Xiaoliang Fan, Zheng Wang, Shangbin Wu, Rongshan Yu, Peizhen Yang, Chuanpan Zheng and Cheng Wang. Neurocomputing,
volume 574, article 127227, 2024. https://doi.org/10.1016/j.neucom.2023.127227, https://github.com/wangzihuixmu/FedAVE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.client import Client
from equipoise.method import Count, Fraction, Method, Positive, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting import batch_losses, largest, loss_divergence

LEAST = 1e-3  # a reputation never falls to zero


@dataclass(frozen=True)
class FedAVE(Method):
    """Each client has its own model and is paid in numbers of the common step, by the value of its data.

    Data are worth more the more accurate the model that they train, and the less its losses on them differ from those on the server's
    validation data.
    """

    paper = "Wang et al., FedAVE: Adaptive Data Value Evaluation Framework for Collaborative Fairness in Federated Learning, Neurocomputing 2024"
    family, year, fairness, passes = "rewards", 2024, "collaborative", "E·T + F + 2K·V"
    uploads_model = False
    needs = ("classes", "validation")

    gamma: Positive = 0.5  # length of every client's step, so that a round moves no model farther
    alpha: Fraction = 0.9  # how much of a reputation stays from round to round
    beta: Positive = 1.0  # the larger, the more alike are the rewards of different reputations
    # samples per loss of the two lists that are compared, in the order of the data
    batch: Count = 64
    # seed: what a comparison called FedAVE, without values of data; to reproduce it
    variant: Literal["original", "seed"] = "original"
    upload: Fraction = 0.5  # seed: share of its update that a client uploads
    download: Fraction = 0.3  # seed: share of the common update that everybody downloads

    def start(self, server: Server) -> State:
        if self.variant == "seed":
            return super().start(server).with_(reputation=PerClient(), rewards=PerClient())
        return State(models=PerClient(), reputation=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        if self.variant == "seed":
            return Down(model=state.model, **state.rewards.get(client_id, {}))
        return Down(model=_model(server, state, client_id))

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        losses = (
            batch_losses(client.predict(model), client.train.y, self.batch)
            if self.variant == "original"
            else []
        )  # L_i
        client.fit(model)
        trained = model.tree()
        update = trained - down.model
        if self.variant == "seed":
            client.state["trained"] = trained
            return Up(update=largest(update, self.upload), rest=trained.rest)
        return Up(update=update, rest=trained.rest, losses=losses)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        if self.variant == "seed":
            return self._seed(server, state, ups, weights)
        before = {client: _model(server, state, client) for client in ups.ids}
        lengths = self.gamma / (np.array([up.update.norm() for up in ups]) + 1e-7)
        # u_g, the mean of u_i = gamma Delta_i / |Delta_i|
        step = ups.sum("update", lengths * weights.shares / weights.shares.sum())
        rest = ups.mean("rest", weights.shares)
        likeness = self._likeness(server, ups, before)  # kappa_i
        reputation, held = self._reputation(
            server, state, ups, _accuracies(server, ups, before) * likeness**2
        )
        quota = np.tanh(self.beta * reputation)
        quota = quota / quota.max() * likeness  # q_i
        models = {
            client: (before[client] + largest(step, float(share), per_tensor=True)).with_rest(rest)
            for client, share in zip(ups.ids, quota, strict=True)
        }
        return state.with_(models=state.models.put(models), reputation=state.reputation.put(held))

    def _likeness(self, server: Server, ups: Ups, models: dict[str, Tree]) -> NDArray[np.float64]:
        """1 / KL_i over the largest: the median for clients whose losses are too few to compare."""
        model, y = server.load(None), server.validation.y
        found = np.full(len(ups), np.nan)
        for place, (client, up) in enumerate(zip(ups.ids, ups, strict=True)):
            divergence = loss_divergence(
                up.losses, batch_losses(server.predict(model.put(models[client])), y, self.batch)
            )  # V_i
            found[place] = np.nan if divergence is None else 1 / divergence
        known = found[np.isfinite(found)]
        return (
            np.where(np.isfinite(found), found, np.median(known)) / known.max()
            if len(known)
            else np.ones(len(ups))
        )

    def _reputation(
        self, server: Server, state: State, ups: Ups, value: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], dict[str, float]]:
        """r_i, shared out over the clients that answered; and as it is kept, where all clients' sum to 1 and those of the absent stay."""
        total = sum(state.reputation.get(client, 1 / len(server.ids)) for client in ups.ids)
        known = [client in state.reputation for client in ups.ids]
        before = np.array([state.reputation.get(client, 0.0) for client in ups.ids]) / total
        found = np.maximum(
            np.where(known, self.alpha * before + (1 - self.alpha) * value, value), LEAST
        )
        found /= found.sum()
        return found, dict(zip(ups.ids, (total * found).tolist(), strict=True))

    def _seed(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """One global model that all start from; by their reputations clients download more or less of its update, on top of their own."""
        common = ups.mean("update", weights.shares)
        reputation, held = self._reputation(
            server, state, ups, _accuracies(server, ups, dict.fromkeys(ups.ids, state.model))
        )
        quota = self.download + (1 - self.download) * np.tanh(self.beta * reputation)
        rewards = {
            client: {"reward": largest(common, float(share))}
            for client, share in zip(ups.ids, quota, strict=True)
        }
        model = (state.model + common).with_rest(ups.mean("rest", weights.shares))
        return state.with_(
            model=model, rewards=state.rewards.put(rewards), reputation=state.reputation.put(held)
        )

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        own = client.load(down.model)
        if self.variant == "original":
            return {"personal": Served(own, main=True)}
        if "reward" in down:
            own.put(client.state["trained"] + down.reward)
        return {"personal": Served(own, main=True), "global": Served(client.load(down.model))}


def _model(server: Server, state: State, client: str) -> Tree:
    """The model that a client holds: the initial one, and on it every reward so far."""
    model: Tree = state.models.get(client, server.initial())
    return model


def _accuracies(server: Server, ups: Ups, before: dict[str, Tree]) -> NDArray[np.float64]:
    """A_i: what the trained models get right of the validation data."""
    model = server.load(None)
    return np.array(
        [
            server.accuracy(model.put((before[client] + up.update).with_rest(up.rest)))
            for client, up in zip(ups.ids, ups, strict=True)
        ]
    )
