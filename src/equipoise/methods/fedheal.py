"""Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity (FedHEAL).

Yuhang Chen, Wenke Huang and Mang Ye. IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR) 2024, pages 12077-12086.
https://github.com/yuhangchen0/FedHEAL
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from equipoise.client import Client
from equipoise.method import Fraction, Method, Ups, Weights
from equipoise.records import PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting import drift_shares


@dataclass(frozen=True)
class FedHEAL(Method):
    """Updates that point now this way, now that are left out, number by number, and clients that move far count more.

    Data sizes do not enter, as in FedAvg(average="uniform"). As a weight rule for other methods it stands without its masks.
    """

    paper = "Chen et al., Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity, CVPR 2024"
    family, year, fairness, passes = "aggregation", 2024, "even accuracy", "E·T"
    composable_weights = composable_update = property(lambda self: not self.masks)

    tau: float = 0.3  # an update counts where it has the sign of more than this share of the client's earlier updates
    beta: Fraction = 0.4  # how fast weights follow the clients' drift
    masks: bool = True  # False: all updates count; only the weights by drift remain

    def start(self, server: Server) -> State:
        return super().start(server).with_(signs=PerClient(), importance=PerClient())

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        if self.masks:
            return Up()  # what is left of the update is known where the signs are kept
        assert received is not None and uploaded is not None
        return Up(drift=_length(received - uploaded))

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        if self.masks:
            models = ups.table("model")
            state = state.with_(
                signs=state.signs.put(
                    {client: _counted(state, client, model) for client, model in models.items()}
                )
            )
            kept = (
                self._mask(state, client, model).apply(torch.mul, state.model - model)
                for client, model in models.items()
            )
        drift = (
            np.array([_length(update) for update in kept]) if self.masks else ups.numbers("drift")
        )
        importance = {}
        for client, share in zip(ups.ids, drift_shares(drift).tolist(), strict=True):
            old = state.importance.get(client, {"q": 1 / len(ups.positions), "step": 0.0})
            step = (1 - self.beta) * old["step"] + self.beta * share  # delta q_k
            importance[client] = {"q": old["q"] + step, "step": step}
        return state.with_(importance=state.importance.put(importance))

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.array([state.importance[client]["q"] for client in ups.ids]))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        new = super().update(server, state, ups, weights)
        if not self.masks:
            return new
        masks = [self._mask(state, client, model) for client, model in ups.table("model").items()]
        moved = {}
        # Weights are shared out anew among those who keep a number: it becomes the mean of theirs, and stays if nobody keeps it.
        for name in state.model.trained:
            total = weight = torch.zeros((), dtype=torch.float64)
            for share, mask, up in zip(weights.shares.tolist(), masks, ups, strict=True):
                kept = share * mask[name].double()
                total, weight = total + kept * up.model[name], weight + kept
            moved[name] = torch.where(weight > 0, total / weight, state.model[name].double()).to(
                state.model[name].dtype
            )
        # buffers take the plain mean
        return new.with_(model=Tree(moved, state.model.model).with_rest(new.model.rest))

    def _mask(self, state: State, client: str, uploaded: Tree) -> Tree:
        """Where the client's update agrees with more than tau of its earlier ones; everywhere in its first round."""
        received: Tree = state.model
        rounds = state.signs[client]["rounds"] - 1  # this round is counted already

        def agrees(
            received: torch.Tensor, uploaded: torch.Tensor, positive: torch.Tensor
        ) -> torch.Tensor:
            sign = received >= uploaded
            before = positive - sign.int()
            share: torch.Tensor = torch.where(sign, before, rounds - before).double() / max(
                1, rounds
            )  # kappa
            return share > self.tau if rounds else torch.ones_like(sign)

        return received.apply(agrees, uploaded, state.signs[client]["positive"])


def _counted(state: State, client: str, uploaded: Tree) -> dict[str, int | Tree]:
    """The client's rounds so far, this one included, and in how many its update, received - uploaded, was not negative."""
    signs = state.model.apply(lambda received, own: (received >= own).int(), uploaded)
    old = state.signs.get(client, {"rounds": 0, "positive": 0 * signs})
    return {"rounds": old["rounds"] + 1, "positive": old["positive"].apply(torch.add, signs)}


def _length(update: Tree) -> float:
    """The sum of the norms of an update's tensors."""
    return float(sum(update[name].double().norm() for name in update))
