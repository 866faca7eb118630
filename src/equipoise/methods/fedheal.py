"""FedHEAL (Chen et al., 2024).

Yuhang Chen, Wenke Huang and Mang Ye. Fair Federated Learning under Domain Skew with Local
Consistency and Domain Diversity. IEEE/CVF Conference on Computer Vision and Pattern Recognition
(CVPR) 2024, pages 12077-12086. https://github.com/yuhangchen0/FedHEAL
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.method import Fraction, Method, Ups, Weights
from equipoise.records import PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting import drift_shares


@dataclass(frozen=True)
class FedHEAL(Method):
    """Mask updates whose direction is inconsistent, and weigh clients more that move far.

    Masks act on single parameters. Data sizes do not enter, as in FedAvg(average="uniform"). As a
    weight rule for other methods it works without masks.

    Attributes:
        tau: An update counts where it has the sign of more than this share of the client's earlier
            updates, tau in the paper (0.3 Digits, 0.4 Office-Caltech and PACS).
        beta: Rate beta at which weights follow the clients' drift; 0 keeps them equal.
        masks: Mask inconsistent updates; False leaves the weights by drift alone.
    """

    paper = (
        "Chen et al., Fair Federated Learning under Domain Skew with Local Consistency and "
        "Domain Diversity, CVPR 2024"
    )
    family = "aggregation"
    year = 2024
    fairness = "even accuracy"
    passes = "E·T"
    composable_weights = composable_update = property(lambda self: not self.masks)

    tau: float = 0.3
    beta: Fraction = 0.4
    masks: bool = True

    def start(self, server: Server) -> State:
        """Return the initial model without histories of clients."""
        return super().start(server).with_(signs=PerClient(), importance=PerClient())

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report the drift D_k; with masks the server computes it, since it holds the signs."""
        if self.masks:
            return Up()
        assert received is not None and uploaded is not None
        return Up(drift=_length(received - uploaded))

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Count signs, and move the importance q_k of each client by its share of the drift."""
        if self.masks:
            state = _with_signs(state, ups)
            drift = self._masked_drift(state, ups)
        else:
            drift = ups.numbers("drift")
        importance = {}
        for client, share in zip(ups.ids, drift_shares(drift).tolist(), strict=True):
            old = state.importance.get(client, {"q": 1 / len(ups.positions), "step": 0.0})
            step = (1 - self.beta) * old["step"] + self.beta * share  # delta q_k
            importance[client] = {"q": old["q"] + step, "step": step}
        return state.with_(importance=state.importance.put(importance))

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the importance q_k."""
        return Weights(np.array([state.importance[client]["q"] for client in ups.ids]))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Average each parameter over the clients whose update of it is not masked.

        A parameter that every client masks stays. Buffers take the plain mean.
        """
        new = super().update(server, state, ups, weights)
        if not self.masks:
            return new
        masks = [self._mask(state, client, model) for client, model in ups.table("model").items()]
        moved = {}
        for name in state.model.trained:
            total = torch.zeros((), dtype=torch.float64)
            weight = torch.zeros((), dtype=torch.float64)
            for share, mask, up in zip(weights.shares.tolist(), masks, ups, strict=True):
                counted = share * mask[name].double()
                total = total + counted * up.model[name]
                weight = weight + counted
            received = state.model[name]
            mean = torch.where(weight > 0, total / weight, received.double())
            moved[name] = mean.to(received.dtype)
        return new.with_(model=Tree(moved, state.model.model).with_rest(new.model.rest))

    def _masked_drift(self, state: State, ups: Ups) -> np.ndarray:
        """Return D_k, the length of each client's update after masking."""
        lengths = []
        for client, model in ups.table("model").items():
            mask = self._mask(state, client, model)
            lengths.append(_length(mask.apply(torch.mul, state.model - model)))
        return np.array(lengths)

    def _mask(self, state: State, client: str, uploaded: Tree) -> Tree:
        """Return where an update agrees with more than tau of the client's earlier ones.

        In a client's first round it is True everywhere.
        """
        received: Tree = state.model
        earlier = state.signs[client]["rounds"] - 1  # This round is counted already.

        def agrees(received: Tensor, uploaded: Tensor, positive: Tensor) -> Tensor:
            sign = received >= uploaded
            if not earlier:
                return torch.ones_like(sign)
            before = positive - sign.int()
            same = torch.where(sign, before, earlier - before).double()
            kappa: Tensor = same / max(1, earlier)
            return kappa > self.tau

        return received.apply(agrees, uploaded, state.signs[client]["positive"])


def _with_signs(state: State, ups: Ups) -> State:
    """Count this round and the sign of each update, received - uploaded, of each client."""
    counted = {}
    for client, uploaded in ups.table("model").items():
        signs = state.model.apply(lambda received, own: (received >= own).int(), uploaded)
        old = state.signs.get(client, {"rounds": 0, "positive": 0 * signs})
        positive = old["positive"].apply(torch.add, signs)
        counted[client] = {"rounds": old["rounds"] + 1, "positive": positive}
    return state.with_(signs=state.signs.put(counted))


def _length(update: Tree) -> float:
    """Return the sum of the norms of an update's tensors."""
    return float(sum(update[name].double().norm() for name in update))
