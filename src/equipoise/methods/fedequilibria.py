"""Fed-Equilibria: Towards Fair and Robust Federated Learning under Domain Skew (FedEquilibria).

Anonymous authors. Manuscript under double-blind review; undated, its latest references are of 2025. No address is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from equipoise.client import Client
from equipoise.losses import fisher_diagonal
from equipoise.method import Fraction, Method, Ups, Weights
from equipoise.records import State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting import drift_shares, hybrid, min_norm


@dataclass(frozen=True)
class FedEquilibria(Method):
    """Weigh clients by how unlike the others their parameter sensitivities are, and by how far they moved.

    The new model is the weighted mean of the clients' models: the reading of Eq. 4 in which the step descends (Algorithm 1, line 12).
    Data sizes do not enter; so compare with FedAvg(average="uniform"), which forgets them too.
    """

    paper = "FedEquilibria: Towards Fair and Robust Federated Learning under Domain Skew (anonymous, under review), Algorithm 1"
    family, year, fairness, passes = "aggregation", 2025, "even accuracy", "E·T + T"
    composable_weights: ClassVar[bool] = True
    composable_update: ClassVar[bool] = True

    t: Fraction = 0.7  # share of the conflict-aware weights; the rest goes by drift
    # conflict of updates alone, of Fisher profiles alone, drift alone
    ablation: Literal["none", "moo_g", "moo_f", "dist"] = "none"
    # how vectors are scaled for Eq. 1; none is literal and favours the shortest
    fim_norm: Literal["l2", "l1", "none"] = "l2"
    # squares of each sample's gradient, or (cheap, biased) of each batch's mean
    fisher: Literal["sample", "batch"] = "sample"
    # empirical Fisher, or labels drawn from the model's own predictions
    labels: Literal["observed", "model"] = "observed"

    @property
    def conflict_share(self) -> float:
        return {"moo_g": 1.0, "moo_f": 1.0, "dist": 0.0}.get(self.ablation, self.t)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        assert received is not None and uploaded is not None
        step = received - uploaded  # Algorithm 1, line 12
        up = Up(drift=step.norm())
        if self.conflict_share == 0:
            return up
        if self.ablation == "moo_g":
            return up.with_(length=self._length(step, client))
        profile = self._profile(client, uploaded)  # line 13
        return up.with_(length=self._length(profile, client), fisher=profile)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        drift = drift_shares(ups.numbers("drift"))  # Eq. 2
        if self.conflict_share == 0:
            return Weights(drift)
        # Eq. 3, lines 21-24
        return Weights(hybrid(self._conflict(state, ups), drift, self.conflict_share))

    def _profile(self, client: Client, tree: Tree) -> Tree:
        """The diagonal of the Fisher information of the client's data at its uploaded model (section 4.1)."""
        if not len(client.train):
            return 0 * tree
        x, y = (
            torch.cat(parts)
            for parts in zip(*((batch.x, batch.y) for batch in client.batches()), strict=True)
        )
        net, batch, draw = (
            client.load(tree).net,
            client.training.batch,
            client.stream("fisher labels"),
        )
        found = fisher_diagonal(
            net, x, y, fisher=self.fisher, labels=self.labels, batch=batch, generator=draw
        )
        return Tree({name: value.cpu() for name, value in found.items()}, tree.model)

    def _length(self, vector: Tree, client: Client) -> float:
        """What the vector is divided by; 0 says that it has no direction and stays out of Eq. 1."""
        if not len(client.train):
            return 0.0
        if self.fim_norm == "l1":
            return float(vector.flat().abs().sum())
        return vector.norm() if self.fim_norm == "l2" else 1.0

    def _conflict(self, state: State, ups: Ups) -> np.ndarray:
        """The weights of least norm of the clients' vectors (Eq. 1), from their inner products."""
        lengths = ups.numbers("length")
        directed = np.flatnonzero(lengths)
        if not len(directed):
            return np.ones(len(ups))
        if self.ablation == "moo_g":
            both = ups.gram("model", more=[state.model])
            # of differences, from that of the models
            gram = both[:-1, :-1] - both[:-1, -1:] - both[-1:, :-1] + both[-1, -1]
        else:
            gram = ups.gram("fisher")
        shares = np.zeros(len(ups))
        scale = np.outer(lengths[directed], lengths[directed])
        shares[directed] = min_norm(gram[np.ix_(directed, directed)] / scale)
        return shares
