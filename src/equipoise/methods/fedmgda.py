"""FedMGDA+ (Hu et al., 2022).

Zeou Hu, Kiarash Shaloudegi, Guojun Zhang and Yaoliang Yu. Federated Learning Meets Multi-Objective
Optimization. IEEE Transactions on Network Science and Engineering 9(4), 2022, pages 2039-2051.
https://doi.org/10.1109/TNSE.2022.3169117
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

MIN_LENGTH = 1e-12  # A client that moved less has no direction.


@dataclass(frozen=True)
class FedMGDA(Method):
    """FedMGDA+: a step along which no client's loss grows, with weights near FedAvg's.

    Updates are scaled to length 1 before they are combined. The step is at most as long as the
    server's rate, however far the clients moved.

    Attributes:
        epsilon: Largest distance epsilon of a weight from FedAvg's; 1 sets no limit, so that the
            step descends for all (the comparison in CoRe-Fed: 0.1 and 1).
        server_rate: Longest step eta of round 1.
        decay: Share of the rate that is left in the last round.
        rescale: "mean_norm" multiplies steps by the mean length of the clients' updates.
        average: The weights lambda^0 around which epsilon is a box.
        preset: "corefed" takes the clients' learning rate as the server's, as the comparison in
            CoRe-Fed does.
    """

    paper = "Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022"
    family = "aggregation"
    year = 2022
    fairness = "even accuracy"
    passes = "E·T"

    epsilon: Fraction = 0.1
    server_rate: Positive = 1.0
    decay: Annotated[float, Gt(0), Le(1)] = 0.1
    rescale: Literal["none", "mean_norm"] = "none"
    average: Literal["size", "uniform"] = "size"
    preset: Literal["paper", "corefed"] = "paper"

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report the length of the client's update, |g_k|."""
        assert received is not None and uploaded is not None
        return Up(length=(received - uploaded).norm())

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the weights lambda of the minimum-norm combination, near lambda^0."""
        centre = np.ones(len(ups))
        if self.average == "size":
            centre = super().weights(server, state, ups).shares
        lengths = ups.numbers("length")
        moved = np.flatnonzero(lengths >= MIN_LENGTH)
        if not len(moved):
            return Weights(centre, step=0.0)
        products = np.sum([gram(steps) for _, steps in _steps(state, ups)], axis=0)
        unit = products[np.ix_(moved, moved)] / np.outer(lengths[moved], lengths[moved])
        nearby = centre[moved] / centre[moved].sum()  # lambda^0
        if self.epsilon == 1:
            solution = min_norm(unit)
        else:
            solution = min_norm_box(unit, nearby - self.epsilon, nearby + self.epsilon)
        shares = np.zeros(len(ups))
        shares[moved] = solution / solution.sum()
        step = self.rate(server)
        if self.rescale == "mean_norm":
            step = step * lengths[moved].mean()
        return Weights(shares, step)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Step along d = sum lambda_k g_k / |g_k|; buffers take the mean by lambda."""
        lengths = ups.numbers("length")
        moves = lengths >= MIN_LENGTH
        scaled = np.divide(weights.shares, lengths, out=np.zeros(len(ups)), where=moves)
        direction = {
            name: combine(steps, scaled.tolist())[name] for name, steps in _steps(state, ups)
        }
        moved = state.model + -weights.step * Tree(direction, state.model.model)
        return state.with_(model=moved.with_rest(ups.mean("model", weights.shares).rest))

    def rate(self, server: Server) -> float:
        """Return the server's rate eta_t of this round."""
        if self.preset == "corefed":
            return server.lr
        progress = (server.round - 1) / max(1, server.rounds - 1)
        return self.server_rate * float(self.decay**progress)


def _steps(state: State, ups: Ups) -> Iterator[tuple[str, list[Tree]]]:
    """Yield the clients' g_k = received - uploaded of one tensor after the other.

    Replies may be stored in files, so they are never all in memory at once.
    """
    for name in state.model.trained:
        yield name, [Tree({name: state.model[name] - up.model[name]}) for up in ups]
