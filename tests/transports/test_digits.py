"""Every registered method on real data: the same bits in process, on workers, and after a stop in the midst of a round."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from equipoise import methods, session, simulate
from equipoise.callbacks import ClientProgress
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.transports.workers.processes import Pool
from tests.helpers.callbacks import Calling
from tests.helpers.runs import same_run, settings
from tests.helpers.transports import over

CLIENTS, STOPPED_IN, ANSWERED = 10, 2, 4


def job(method: str) -> dict[str, Any]:
    data = {"name": "digits", "partition": "dirichlet:0.5", "clients": CLIENTS}
    return settings(method, data=data, training={"lr": 0.1, "batch": 32, "epochs": 1})


def stopped(config: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was interrupted in its second round, when some clients had answered and the others had not been asked."""
    finished: list[int] = []
    answered: list[int] = []

    def count(progress: ClientProgress) -> None:
        if len(finished) == STOPPED_IN - 1:
            answered.append(progress.done)

    with (
        monkeypatch.context() as patch,
        pytest.raises(
            KeyboardInterrupt, match=f"stopped after round {STOPPED_IN - 1}; continue with"
        ),
    ):
        patch.setattr(
            session, "interruptible", lambda: nullcontext(lambda: len(answered) >= ANSWERED)
        )
        watcher = Calling(on_client=count, on_round=lambda record: finished.append(record.round))
        simulate.run(experiment(config), out, watcher)
    return out


@pytest.mark.parametrize("method", methods.names())
def test_every_method_on_digits_ends_in_the_same_bits_on_workers_and_when_stopped_and_resumed(
    method: str, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    half = stopped(job(method), tmp_path / "stopped", monkeypatch)
    assert Run(half).store.last_round() == STOPPED_IN - 1
    # begun in process, ended on workers
    same_run(here, simulate.resume(half, transport=over(pool)))
