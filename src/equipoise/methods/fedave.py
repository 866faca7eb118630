"""FedAVE (Wang et al., 2024).

Zihui Wang, Zhaopeng Peng, Xiaoliang Fan, Zheng Wang, Shangbin Wu, Rongshan Yu, Peizhen Yang,
Chuanpan Zheng and Cheng Wang. FedAVE: Adaptive Data Value Evaluation Framework for Collaborative
Fairness in Federated Learning. Neurocomputing, volume 574, article 127227, 2024.
https://doi.org/10.1016/j.neucom.2023.127227, https://github.com/wangzihuixmu/FedAVE
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

MIN_REPUTATION = 1e-3  # A reputation never falls to zero.


@dataclass(frozen=True)
class FedAVE(Method):
    """Reward each client with entries of the common step, by the value of its data.

    Each client has its own model. Data are worth more the more accurate the model that they
    train, and the less its losses on them differ from those on the server's validation data.

    Attributes:
        gamma: Length of every client's step; a round moves no model farther.
        alpha: Share alpha of a reputation that remains from round to round.
        beta: Altruism beta: the larger, the more equal are the rewards (the authors: 2 or 5).
        batch: Samples per loss of the two lists of losses that are compared.
        variant: "seed" is the method that the comparison in FedAKD calls FedAVE, which does not
            value data; to reproduce it.
        upload: Share of its update that a client uploads (variant "seed").
        download: Share of the common update that every client downloads (variant "seed").
    """

    paper = (
        "Wang et al., FedAVE: Adaptive Data Value Evaluation Framework for Collaborative "
        "Fairness in Federated Learning, Neurocomputing 2024"
    )
    family = "rewards"
    year = 2024
    fairness = "collaborative"
    passes = "E·T + F + 2K·V"
    served_models = ("personal", "global")
    uploads_model = False
    needs = ("classes", "validation")

    gamma: Positive = 0.5
    alpha: Fraction = 0.9
    beta: Positive = 1.0
    batch: Count = 64
    variant: Literal["original", "seed"] = "original"
    upload: Fraction = 0.5
    download: Fraction = 0.3

    def start(self, server: Server) -> State:
        """Return the state without models and reputations of clients."""
        if self.variant == "seed":
            return super().start(server).with_(reputation=PerClient(), rewards=PerClient())
        return State(models=PerClient(), reputation=PerClient())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the client's own model; in the variant "seed" the global one and the reward."""
        if self.variant == "seed":
            return Down(model=state.model, **state.rewards.get(client_id, {}))
        return Down(model=_model(server, state, client_id))

    def client(self, client: Client, down: Down) -> Up:
        """Train and upload the update with the losses L_i of the received model."""
        model = client.load(down.model)
        losses: list[float] = []
        if self.variant == "original":
            losses = batch_losses(client.predict(model), client.train.y, self.batch)
        client.fit(model)
        trained = model.tree()
        update = trained - down.model
        if self.variant == "seed":
            client.state["trained"] = trained
            return Up(update=largest(update, self.upload), rest=trained.rest)
        return Up(update=update, rest=trained.rest, losses=losses)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Renew reputations r_i by the value of data, and reward each client by its quota q_i."""
        if self.variant == "seed":
            return self._update_seed(server, state, ups, weights)
        before = {client: _model(server, state, client) for client in ups.ids}
        lengths = self.gamma / (np.array([up.update.norm() for up in ups]) + 1e-7)
        # u_g, the mean of u_i = gamma Delta_i / |Delta_i|
        step = ups.sum("update", lengths * weights.shares / weights.shares.sum())
        rest = ups.mean("rest", weights.shares)
        likeness = self.likeness(server, ups, before)  # kappa_i
        value = _accuracies(server, ups, before) * likeness**2
        reputation, stored = self.reputation(server, state, ups, value)
        quota = np.tanh(self.beta * reputation)
        quota = quota / quota.max() * likeness  # q_i
        models = {}
        for client, share in zip(ups.ids, quota, strict=True):
            reward = largest(step, float(share), per_tensor=True)
            models[client] = (before[client] + reward).with_rest(rest)
        return state.with_(models=state.models.put(models), reputation=state.reputation.put(stored))

    def likeness(self, server: Server, ups: Ups, models: dict[str, Tree]) -> NDArray[np.float64]:
        """Return 1 / KL_i, divided by the largest, of training and validation losses.

        Clients whose losses are too few to compare take the median.
        """
        model = server.load(None)
        y = server.validation.y
        likeness = np.full(len(ups), np.nan)
        for position, (client, up) in enumerate(zip(ups.ids, ups, strict=True)):
            logits = server.predict(model.put(models[client]))
            divergence = loss_divergence(up.losses, batch_losses(logits, y, self.batch))  # V_i
            if divergence is not None:
                likeness[position] = 1 / divergence
        finite = np.isfinite(likeness)
        if not finite.any():
            return np.ones(len(ups))
        known = likeness[finite]
        filled: NDArray[np.float64] = np.where(finite, likeness, np.median(known)) / known.max()
        return filled

    def reputation(
        self, server: Server, state: State, ups: Ups, value: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Renew the reputations of the clients that replied.

        Returns:
            Reputations r_i that sum to 1 over these clients, and by client as they are stored:
            there those of all clients sum to 1, and those of absent clients stay.
        """
        initial = 1 / len(server.ids)
        total = sum(state.reputation.get(client, initial) for client in ups.ids)
        known = [client in state.reputation for client in ups.ids]
        before = np.array([state.reputation.get(client, 0.0) for client in ups.ids]) / total
        merged = np.where(known, self.alpha * before + (1 - self.alpha) * value, value)
        merged = np.maximum(merged, MIN_REPUTATION)
        merged /= merged.sum()
        stored = dict(zip(ups.ids, (total * merged).tolist(), strict=True))
        server.log_contributions("reputation", stored)
        return merged, stored

    def _update_seed(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Move one global model; by their reputations clients download parts of its update."""
        common = ups.mean("update", weights.shares)
        accuracies = _accuracies(server, ups, dict.fromkeys(ups.ids, state.model))
        reputation, stored = self.reputation(server, state, ups, accuracies)
        quota = self.download + (1 - self.download) * np.tanh(self.beta * reputation)
        rewards = {
            client: {"reward": largest(common, float(share))}
            for client, share in zip(ups.ids, quota, strict=True)
        }
        model = (state.model + common).with_rest(ups.mean("rest", weights.shares))
        return state.with_(
            model=model, rewards=state.rewards.put(rewards), reputation=state.reputation.put(stored)
        )

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the client's own model; in the variant "seed" also the global one."""
        personal = client.load(down.model)
        if self.variant == "original":
            return {"personal": Served(personal, main=True)}
        if "reward" in down:
            personal.put(client.state["trained"] + down.reward)
        return {"personal": Served(personal, main=True), "global": Served(client.load(down.model))}


def _model(server: Server, state: State, client: str) -> Tree:
    """Return the model of a client: the initial one plus all its rewards so far."""
    model: Tree = state.models.get(client, server.initial())
    return model


def _accuracies(server: Server, ups: Ups, before: dict[str, Tree]) -> NDArray[np.float64]:
    """Return the validation accuracies A_i of the trained models."""
    model = server.load(None)
    accuracies = []
    for client, up in zip(ups.ids, ups, strict=True):
        model.put((before[client] + up.update).with_rest(up.rest))
        accuracies.append(server.accuracy(model))
    return np.array(accuracies)
