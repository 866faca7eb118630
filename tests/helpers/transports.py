"""Runs over any transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise import simulate
from equipoise.data import Federation
from equipoise.engine.cohort import Clients
from equipoise.experiment import Experiment
from equipoise.runtime.messages import Reply
from equipoise.simulate import Connect
from equipoise.storage.store import DATABASE, RunError
from equipoise.transports.inprocess import Separated
from equipoise.transports.workers.pool import Workers
from equipoise.transports.workers.processes import Pool
from tests.helpers.runs import played, sites


class Lasting(Workers):
    """Workers that stay for the next run."""

    def close(self, keep: bool = True) -> None:
        super().close(keep=True)


def over(pool: Pool) -> Connect:
    return lambda federation, experiment: Lasting(pool, federation)


def separated(disk: Path) -> Connect:
    """The client runtime knows nothing but the job, and states are on its own disk."""

    def connect(federation: Federation, experiment: Experiment) -> Separated:
        return Separated(federation, disk)

    return connect


def named(disk: Path) -> set[str]:
    return {path.name for path in disk.rglob("*") if path.is_file()}


def sites_given(config: dict[str, Any]) -> Experiment:
    return eq.Experiment(**config, dataset=eq.from_sites(sites()))


def stop_after(rounds: int, config: dict[str, Any], out: Path, transport: Connect | None) -> None:
    """Start a run, or resume it, and stop it after this number of rounds."""
    ask = Clients.ask

    def limited(self: Clients, requests: Any) -> list[Reply]:
        if requests and requests[0].round > rounds:
            raise RunError("stopped")
        return ask(self, requests)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="stopped"):
        patch.setattr(Clients, "ask", limited)
        if (out / DATABASE).exists():
            simulate.resume(out, experiment=sites_given(config), transport=transport)
        else:
            played(config, out, transport=transport)
