"""FedDisco (Ye et al., 2023).

Rui Ye, Mingkai Xu, Jianyu Wang, Chenxin Xu, Siheng Chen and Yanfeng Wang. FedDisco: Federated
Learning with Discrepancy-Aware Collaboration. International Conference on Machine Learning (ICML)
2023, PMLR, pages 39879-39902. https://github.com/MediaBrain-SJTU/FedDisco
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from equipoise.client import Client
from equipoise.method import Method, NonNegative, Ups, Weights
from equipoise.records import State, Up
from equipoise.server import Server
from equipoise.tree import Tree


@dataclass(frozen=True)
class FedDisco(Method):
    """FedAvg in which clients count less the farther their labels are from a uniform mix.

    The distance is one number that each client computes itself: its label histogram stays with
    it.

    Attributes:
        a: Weight a of the discrepancy.
        b: Constant b that is added to every share.
        metric: Distance from uniform labels; "kl" is divided by the sum over the cohort, as in
            the authors' code.
    """

    paper = (
        "Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023"
    )
    family = "aggregation"
    year = 2023
    fairness = "none"
    passes = "E·T"
    composable_weights: ClassVar[bool] = True
    needs = ("classes",)

    a: NonNegative = 0.5
    b: NonNegative = 0.1
    metric: Literal["kl", "l1", "l2", "cosine"] = "kl"

    def before(self, client: Client, received: Tree | None) -> Up:
        """Report the discrepancy d_k of the client's labels; 0 without data."""
        labels = client.train.y.numpy()
        counts = np.bincount(labels, minlength=client.task.outputs).astype(np.float64)
        return Up(discrepancy=discrepancy(counts, self.metric) if counts.any() else 0.0)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return max(0, p_k - a d_k + b), or the sizes if all of these are 0.

        The shares are counted in samples: with a = b = 0 they are FedAvg's, bit for bit.
        """
        sizes = super().weights(server, state, ups).shares
        d = ups.numbers("discrepancy")
        if self.metric == "kl" and d.any():
            d = d / d.sum()
        shares = np.maximum(0, sizes + sizes.sum() * (self.b - self.a * d))
        shares = np.where(sizes > 0, shares, 0)
        return Weights(shares if shares.any() else sizes)


def discrepancy(counts: np.ndarray, metric: str) -> float:
    """Return the distance between a client's labels and uniform labels.

    Args:
        counts: The number of samples of each class, of which at least one is positive.
        metric: "kl", "l1", "l2" or "cosine".

    >>> discrepancy(np.array([3.0, 1.0]), "l1")
    0.5
    """
    share = counts / counts.sum()
    uniform = 1 / len(counts)
    if metric == "kl":  # the sum of D ln(D C), with 0 ln 0 = 0
        seen = share[share > 0]
        distance = seen @ np.log(seen * len(counts))
    elif metric == "cosine":
        distance = 1 - share.sum() * uniform / (np.linalg.norm(share) * np.sqrt(uniform))
    else:
        distance = np.linalg.norm(share - uniform, ord=1 if metric == "l1" else 2)
    # For uniform labels, rounding leaves 0 or slightly less. Dividing by the cohort's sum would
    # turn such errors into whole shares.
    return max(0.0, float(distance))
