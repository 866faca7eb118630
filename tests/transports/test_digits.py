"""Every registered method on real data: the same bits in process, on workers, and after a stop in
the midst of a round.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from equipoise import simulate
from equipoise.callbacks import ClientProgress
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.transports.workers.processes import Pool
from tests.helpers.callbacks import Calling
from tests.helpers.runs import each_method, same_run, settings
from tests.helpers.transports import over

CLIENTS, STOPPED_IN, ANSWERED = 10, 2, 4


def job(method: str) -> dict[str, Any]:
    data = {"name": "digits", "samples": 400, "partition": "dirichlet:0.5", "clients": CLIENTS}
    return settings(method, data=data, training={"lr": 0.1, "batch": 32, "epochs": 1})


def stopped(config: dict[str, Any], out: Path) -> Path:
    """Interrupt a run in its second round, after the answers of some clients."""
    finished: list[int] = []

    def interrupt(progress: ClientProgress) -> None:
        if len(finished) == STOPPED_IN - 1 and progress.done == ANSWERED:
            signal.raise_signal(signal.SIGINT)

    callback = Calling(on_client=interrupt, on_round=lambda record: finished.append(record.round))
    message = f"stopped after round {STOPPED_IN - 1}; continue with"
    with pytest.raises(KeyboardInterrupt, match=message):
        simulate.run(experiment(config), out, callback)
    return out


@pytest.mark.parametrize("method", each_method())
@pytest.mark.quick_cases("fedavg", "scaffold")
def test_every_method_on_digits_ends_in_the_same_bits_on_workers_and_when_stopped_and_resumed(
    method: str, pool: Pool, tmp_path: Path
) -> None:
    here = simulate.run(experiment(job(method)), tmp_path / "here")
    assert (
        len(here.clients) == CLIENTS
        and len([row for row in here.rounds() if row["round"] and len(row["joined"]) == CLIENTS])
        >= 3
    )
    same_run(
        here, simulate.run(experiment(job(method)), tmp_path / "workers", transport=over(pool))
    )
    half = stopped(job(method), tmp_path / "stopped")
    assert Run(half).store.last_round() == STOPPED_IN - 1
    # begun in process, ended on workers
    same_run(here, simulate.resume(half, transport=over(pool)))
