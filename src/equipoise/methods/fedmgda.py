"""Federated Learning Meets Multi-Objective Optimization (FedMGDA+).

Zeou Hu, Kiarash Shaloudegi, Guojun Zhang and Yaoliang Yu. IEEE Transactions on Network Science and Engineering 9(4), 2022,
pages 2039-2051. https://doi.org/10.1109/TNSE.2022.3169117
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt, Le

from equipoise.client import Client
from equipoise.method import Fraction, Method, Positive, Ups, Weights
from equipoise.records import State, Up
from equipoise.server import Server
from equipoise.tree import Tree, combine, gram
from equipoise.weighting import min_norm, min_norm_box

STILL = 1e-12  # a client that moved less has no direction


@dataclass(frozen=True)
class FedMGDA(Method):
    """FedMGDA+: a step along which no client's loss grows, from updates scaled to length 1 and weights near FedAvg's.

    The step is at most the server's rate long, however far the clients moved.
    """

    paper = "Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022"
    family, year, fairness, passes = "aggregation", 2022, "even accuracy", "E·T"

    epsilon: Fraction = 0.1  # how far a weight may lie from FedAvg's; 1: anywhere, so that the step descends for all
    server_rate: Positive = 1.0  # longest step of round 1
    decay: Annotated[float, Gt(0), Le(1)] = 0.1  # what is left of the rate in the last round
    # mean_norm: steps grow with the mean length of the clients' updates
    rescale: Literal["none", "mean_norm"] = "none"
    average: Literal["size", "uniform"] = "size"  # the weights that the box is around
    # corefed: the server's rate is the clients' learning rate, as in CoRe-Fed's comparison
    preset: Literal["paper", "corefed"] = "paper"

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        assert received is not None and uploaded is not None
        return Up(length=(received - uploaded).norm())  # |g_k|

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        centre = (
            super().weights(server, state, ups).shares
            if self.average == "size"
            else np.ones(len(ups))
        )
        lengths = ups.numbers("length")
        moved = np.flatnonzero(lengths >= STILL)
        if not len(moved):
            return Weights(centre, step=0.0)
        products = np.sum([gram(steps) for _, steps in _steps(state, ups)], axis=0)
        unit = products[np.ix_(moved, moved)] / np.outer(lengths[moved], lengths[moved])
        nearby = centre[moved] / centre[moved].sum()  # lambda^0
        found = (
            min_norm(unit)
            if self.epsilon == 1
            else min_norm_box(unit, nearby - self.epsilon, nearby + self.epsilon)
        )
        shares = np.zeros(len(ups))
        shares[moved] = found / found.sum()
        return Weights(
            shares,
            self._rate(server) * (lengths[moved].mean() if self.rescale == "mean_norm" else 1.0),
        )

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        lengths = ups.numbers("length")
        scaled = np.divide(weights.shares, lengths, out=np.zeros(len(ups)), where=lengths >= STILL)
        direction = {
            name: combine(steps, scaled.tolist())[name] for name, steps in _steps(state, ups)
        }  # d = sum lambda_k g_k / |g_k|
        moved = state.model + -weights.step * Tree(direction, state.model.model)
        # buffers: by lambda, not by lambda / |g|
        return state.with_(model=moved.with_rest(ups.mean("model", weights.shares).rest))

    def _rate(self, server: Server) -> float:
        if self.preset == "corefed":
            return server.lr
        return self.server_rate * float(
            self.decay ** ((server.round - 1) / max(1, server.rounds - 1))
        )  # eta_t


def _steps(state: State, ups: Ups) -> Iterator[tuple[str, list[Tree]]]:
    """For every trained tensor the clients' g_k = received - uploaded: of one tensor at a time, since replies may lie in files."""
    for name in state.model.trained:
        yield name, [Tree({name: state.model[name] - up.model[name]}) for up in ups]
