"""Fed-Equilibria: Towards Fair and Robust Federated Learning under Domain Skew (FedEquilibria).

Anonymous authors. Manuscript under double-blind review; undated, its latest references are from
2025. No address is known.
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
    """Weigh clients by how their parameter sensitivities differ and by how far they moved.

    The new model is the weighted mean of the clients' models: the reading of Eq. 4 in which the
    step descends (Algorithm 1, line 12). Data sizes do not enter; compare with
    FedAvg(average="uniform"), which ignores them too.

    Attributes:
        t: Share t of the conflict-aware weights; the rest is by drift (the paper: 0.7 Digits, 0.3
            Office-Caltech, 0.8 PACS).
        ablation: Conflict of updates alone ("moo_g"), of Fisher profiles alone ("moo_f"), or drift
            alone ("dist").
        fim_norm: Norm to which vectors are scaled for Eq. 1; "none" is literal and favours the
            shortest vector.
        fisher: Squared gradients of each sample, or of each batch (cheaper, biased).
        labels: Observed labels (empirical Fisher), or labels drawn from the model's predictions.
    """

    paper = (
        "FedEquilibria: Towards Fair and Robust Federated Learning under Domain Skew (anonymous, "
        "under review), Algorithm 1"
    )
    family = "aggregation"
    year = 2025
    fairness = "even accuracy"
    passes = "E·T + T"
    needs = ("labels",)
    composable_weights: ClassVar[bool] = True
    composable_update: ClassVar[bool] = True

    t: Fraction = 0.7
    ablation: Literal["none", "moo_g", "moo_f", "dist"] = "none"
    fim_norm: Literal["l2", "l1", "none"] = "l2"
    fisher: Literal["sample", "batch"] = "sample"
    labels: Literal["observed", "model"] = "observed"

    @property
    def conflict_share(self) -> float:
        """The share of the conflict-aware weights under the chosen ablation."""
        return {"moo_g": 1.0, "moo_f": 1.0, "dist": 0.0}.get(self.ablation, self.t)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Report drift and Fisher profile of the uploaded model (lines 12 and 13)."""
        assert received is not None and uploaded is not None
        step = received - uploaded
        up = Up(drift=step.norm())
        if self.conflict_share == 0:
            return up
        if self.ablation == "moo_g":
            return up.with_(length=self._length(step, client))
        profile = self._profile(client, uploaded)
        return up.with_(length=self._length(profile, client), fisher=profile)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Combine conflict-aware weights (Eq. 1) and drift (Eq. 2) by Eq. 3 (lines 21 to 24)."""
        drift = drift_shares(ups.numbers("drift"))
        if self.conflict_share == 0:
            return Weights(drift)
        return Weights(hybrid(self._conflict(state, ups), drift, self.conflict_share))

    def _profile(self, client: Client, uploaded: Tree) -> Tree:
        """Return the diagonal of the Fisher information at the uploaded model (section 4.1)."""
        if not len(client.train):
            return 0 * uploaded
        batches = list(client.batches())
        diagonal = fisher_diagonal(
            client.load(uploaded).net,
            torch.cat([batch.x for batch in batches]),
            torch.cat([batch.y for batch in batches]),
            fisher=self.fisher,
            labels=self.labels,
            batch=client.training.batch,
            generator=client.stream("fisher labels"),
        )
        return Tree({name: value.cpu() for name, value in diagonal.items()}, uploaded.model)

    def _length(self, vector: Tree, client: Client) -> float:
        """Return the divisor of a vector; 0 if it has no direction and is left out of Eq. 1."""
        if not len(client.train):
            return 0.0
        if self.fim_norm == "l1":
            return float(vector.flat().abs().sum())
        return vector.norm() if self.fim_norm == "l2" else 1.0

    def _conflict(self, state: State, ups: Ups) -> np.ndarray:
        """Return the weights of the minimum-norm combination of the clients' vectors (Eq. 1)."""
        lengths = ups.numbers("length")
        directed = np.flatnonzero(lengths)
        if not len(directed):
            return np.ones(len(ups))
        gram = _gram_of_steps(state, ups) if self.ablation == "moo_g" else ups.gram("fisher")
        scale = np.outer(lengths[directed], lengths[directed])
        shares = np.zeros(len(ups))
        shares[directed] = min_norm(gram[np.ix_(directed, directed)] / scale)
        return shares


def _gram_of_steps(state: State, ups: Ups) -> np.ndarray:
    """Return the inner products of the clients' steps, from those of the models."""
    models = ups.gram("model", more=[state.model])
    steps: np.ndarray = models[:-1, :-1] - models[:-1, -1:] - models[-1:, :-1] + models[-1, -1]
    return steps
