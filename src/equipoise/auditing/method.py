"""The audit as a method: a few exchanges before round 1, nothing in a round. So it runs wherever a method runs."""

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

LOOKS = 2


@dataclass(frozen=True)
class Audit(Method):
    """How different are the clients? They send counts, means and covariances in a common projection; no model is trained."""

    weighs: ClassVar[bool] = False
    uploads_model: ClassVar[bool] = False
    exchanges = "0; once 2 or 4"
    passes = "none"

    # leading directions of all clients' features in which clients are compared
    dimensions: Count = 10
    # histories: patients, of whom codes are counted
    samples: Literal["plain", "histories"] = "plain"
    least: Annotated[int, Ge(2)] = 5  # samples of which a sum has to be before it is sent

    def start(self, server: Server) -> State:
        return State()

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        seed = server.seed("audit")
        projection = self._projection(server.task, seed)
        found = everyone.run(self.probe, Down(seed=seed), strict=True)
        number = float(found.numbers("number").sum())
        directions = np.eye(projection.width)
        features = _by_feature(found) if projection.width <= DIRECT else {}
        # the covariance, applied again and again, turns random directions into the leading ones
        if projection.width > DIRECT:
            directions = projection.probe(self._probes)
            for _ in range(LOOKS):
                directions = np.linalg.qr(_covariance_times(found, directions))[0]
                found = everyone.run(
                    self.probe,
                    Down(seed=seed, directions=torch.from_numpy(directions)),
                    strict=True,
                )
        basis = leading(_covariance_times(found, directions), directions, self.dimensions)
        total = float(found.numbers("square").sum()) / number - float((_mean(found) ** 2).sum())
        ups = everyone.run(
            self.summary, Down(seed=seed, basis=torch.from_numpy(basis)), strict=True
        )
        parts = {
            name: torch.stack(ups.values(name)) for name in ("counts", "numbers", "sums", "seconds")
        }
        return state.with_(
            clients=list(ups.ids), total=total, width=projection.width, **parts, **features
        )

    def probe(self, client: Client, down: Down) -> Up:
        projection = self._projection(client.task, down.seed)
        if projection.width <= DIRECT:
            return Up(probed(client, projection, np.eye(projection.width)))
        return Up(
            probed(
                client,
                projection,
                down.directions.numpy() if "directions" in down else projection.probe(self._probes),
            )
        )

    def summary(self, client: Client, down: Down) -> Up:
        return Up(
            summarised(
                client, self._projection(client.task, down.seed, down.basis.numpy()), self.least
            )
        )

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        return state

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down()

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        return {}

    @property
    def _probes(self) -> int:
        return 2 * self.dimensions + 10

    def _projection(self, task: Task, seed: int, basis: np.ndarray | None = None) -> Projection:
        return Projection(task.shape, seed, self.samples == "histories", basis)


def _by_feature(found: Ups) -> dict[str, torch.Tensor]:
    """Number, sums and sums of squares of each client, by feature."""
    return {
        "sizes": torch.tensor(found.numbers("number")),
        "totals": torch.stack(found.values("sum")),
        "squares": torch.stack([moments.diagonal() for moments in found.values("moments")]),
    }


def _mean(found: Ups) -> np.ndarray:
    return np.asarray(found.sum("sum", np.ones(len(found))).numpy() / found.numbers("number").sum())


def _covariance_times(found: Ups, directions: np.ndarray) -> np.ndarray:
    """All clients' covariance times some directions."""
    mean, number = _mean(found), found.numbers("number").sum()
    return np.asarray(
        found.sum("moments", np.ones(len(found))).numpy() / number
        - np.outer(mean, mean @ directions)
    )
