"""The audit as a method: exchanges before round 1, and nothing in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge

from equipoise.auditing.summaries import DIRECT, Projection, leading, probed, summarised
from equipoise.client import Client
from equipoise.method import Cohort, Count, Method, Served, Ups
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task

POWER_ITERATIONS = 2  # exchanges that turn random directions into the leading ones


@dataclass(frozen=True)
class Audit(Method):
    """A comparison of clients by counts, means and covariances in a common projection.

    No model is trained.
    """

    weighs: ClassVar[bool] = False
    uploads_model: ClassVar[bool] = False
    exchanges = "0; once 2 or 4"
    passes = "none"

    # leading directions of all clients' features in which clients are compared
    dimensions: Count = 10
    # histories: patients, of whom codes are counted
    samples: Literal["plain", "histories"] = "plain"
    least: Annotated[int, Ge(2)] = 5  # fewest samples of a sum that a client sends

    def start(self, server: Server) -> State:
        """Return an empty state."""
        return State()

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        """Find the leading directions of all features, then collect summaries along them."""
        seed = server.seed("audit")
        projection = self._projection(server.task, seed)
        moments = everyone.run(self.probe, Down(seed=seed), strict=True)
        features = _by_feature(moments) if projection.width <= DIRECT else {}
        directions = np.eye(projection.width)
        if projection.width > DIRECT:
            directions = projection.probe(self._probes)
            for _ in range(POWER_ITERATIONS):
                directions = np.linalg.qr(_covariance_times(moments, directions))[0]
                down = Down(seed=seed, directions=torch.from_numpy(directions))
                moments = everyone.run(self.probe, down, strict=True)
        basis = leading(_covariance_times(moments, directions), directions, self.dimensions)
        down = Down(seed=seed, basis=torch.from_numpy(basis))
        summaries = everyone.run(self.summary, down, strict=True)
        return state.with_(
            clients=list(summaries.ids),
            total=_total_variance(moments),
            width=projection.width,
            **{
                name: torch.stack(summaries.values(name))
                for name in ("counts", "numbers", "sums", "seconds")
            },
            **features,
        )

    def probe(self, client: Client, down: Down) -> Up:
        """Return a client's moments, along some directions if there are many features."""
        projection = self._projection(client.task, down.seed)
        if projection.width <= DIRECT:
            directions = np.eye(projection.width)
        elif "directions" in down:
            directions = down.directions.numpy()
        else:
            directions = projection.probe(self._probes)
        return Up(probed(client, projection, directions))

    def summary(self, client: Client, down: Down) -> Up:
        """Return a client's counts and moments by class, along the leading directions."""
        projection = self._projection(client.task, down.seed, down.basis.numpy())
        return Up(summarised(client, projection, self.least))

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Return the state as it is."""
        return state

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Return an empty message."""
        return Down()

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """Return no model."""
        return {}

    @property
    def _probes(self) -> int:
        return 2 * self.dimensions + 10

    def _projection(self, task: Task, seed: int, basis: np.ndarray | None = None) -> Projection:
        return Projection(task.shape, seed, self.samples == "histories", basis)


def _by_feature(moments: Ups) -> dict[str, torch.Tensor]:
    """Return the number, sums and sums of squares of each client, by feature."""
    second = moments.values("moments")
    return {
        "sizes": torch.tensor(moments.numbers("number")),
        "totals": torch.stack(moments.values("sum")),
        "squares": torch.stack([client_moments.diagonal() for client_moments in second]),
    }


def _mean(moments: Ups) -> np.ndarray:
    total = moments.sum("sum", np.ones(len(moments))).numpy()
    return np.asarray(total / moments.numbers("number").sum())


def _total_variance(moments: Ups) -> float:
    """Return the variance of all clients' features, over all directions."""
    number = float(moments.numbers("number").sum())
    return float(moments.numbers("square").sum()) / number - float((_mean(moments) ** 2).sum())


def _covariance_times(moments: Ups, directions: np.ndarray) -> np.ndarray:
    """Return all clients' covariance times some directions."""
    mean = _mean(moments)
    number = moments.numbers("number").sum()
    second = moments.sum("moments", np.ones(len(moments))).numpy() / number
    return np.asarray(second - np.outer(mean, mean @ directions))
