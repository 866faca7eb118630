"""FedDisco: Federated Learning with Discrepancy-Aware Collaboration.

Rui Ye, Mingkai Xu, Jianyu Wang, Chenxin Xu, Siheng Chen and Yanfeng Wang. International Conference on Machine Learning (ICML) 2023, PMLR,
pages 39879-39902. https://github.com/MediaBrain-SJTU/FedDisco
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
    """FedAvg in which clients count less the farther their labels are from all classes being equally frequent.

    The distance is one number that a client computes itself: its label histogram stays with it.
    """

    paper = (
        "Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023"
    )
    family, year, fairness, passes = "aggregation", 2023, "none", "E·T"
    composable_weights: ClassVar[bool] = True
    needs = ("classes",)

    a: NonNegative = 0.5  # how much discrepancy lowers a share
    b: NonNegative = 0.1  # what is added to every share
    # distance from uniform labels; kl is taken relative to the cohort's sum
    metric: Literal["kl", "l1", "l2", "cosine"] = "kl"

    def before(self, client: Client, received: Tree | None) -> Up:
        counts = np.bincount(client.train.y.numpy(), minlength=client.task.outputs).astype(
            np.float64
        )
        return Up(discrepancy=_discrepancy(counts, self.metric) if counts.any() else 0.0)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        sizes, d = super().weights(server, state, ups).shares, ups.numbers("discrepancy")
        if self.metric == "kl" and d.any():
            d = d / d.sum()
        # max(0, p_k - a d_k + b), counted in samples: where a and b are 0 these are FedAvg's weights, bit for bit.
        shares = np.where(sizes > 0, np.maximum(0, sizes + sizes.sum() * (self.b - self.a * d)), 0)
        return Weights(shares if shares.any() else sizes)  # nobody is near enough: by size


def _discrepancy(counts: np.ndarray, metric: str) -> float:
    """How far a client's labels are from uniform, of which the share of every class is 1 / C."""
    share, uniform = counts / counts.sum(), 1 / len(counts)
    if metric == "kl":  # the sum of D ln(D C), with 0 ln 0 = 0
        seen = share[share > 0]
        found = seen @ np.log(seen * len(counts))
    elif metric == "cosine":
        found = 1 - share.sum() * uniform / (np.linalg.norm(share) * np.sqrt(uniform))
    else:
        found = np.linalg.norm(share - uniform, ord=1 if metric == "l1" else 2)
    # Of uniform labels rounding leaves 0 or a little less, which the cohort's sum of such errors would turn into whole shares.
    return max(0.0, float(found))
