"""Small runs that other processes can rebuild."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "contract"))
from checks import assert_same, everything, folder_of, settings, sites

import equipoise
from equipoise import simulate
from equipoise.engine.exchange import Watcher
from equipoise.experiment import experiment
from equipoise.runs import Run

__all__ = ["assert_same", "config", "environment", "everything", "same_run", "stopped"]


def config(tmp: Path, method: Any, **more: Any) -> dict[str, Any]:
    """An experiment over files, so that it can be resumed and run by workers."""
    found = settings(method, **more)
    found["data"] = {**found["data"], "name": folder_of(tmp / "sites", sites())}
    return found


def same_run(first: Path, second: Path) -> None:
    """The same final state and the same tables, times apart, bit for bit."""
    one, other = Run(first), Run(second)
    assert one.status == other.status == "finished"
    assert_same(everything(one), everything(other))
    for rows in (Run.table, Run.weights, Run.rejected):
        assert rows(one) == rows(other)
    assert one.table()
    untimed = [{key: value for key, value in row.items() if key != "seconds"} for row in one.rounds()]
    assert untimed == [{key: value for key, value in row.items() if key != "seconds"} for row in other.rounds()]
    assert _files(one) == _files(other)


def _files(run: Run) -> list[str]:
    """The files on disk: exactly those the store names, nothing left over."""
    found = sorted(path.name for path in run.store.files.iterdir())
    assert found == sorted(row["name"] for row in run.store.rows("select name from files"))
    return found


def environment() -> dict[str, str]:
    source = str(Path(equipoise.__file__).parent.parent)
    return os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}


def stopped(tmp: Path, method: Any = "scaffold", rounds: int = 3, **more: Any) -> Path:
    """A run that was interrupted before its last round."""
    done: list[int] = []
    watcher = Watcher(on_round=lambda record: done.append(record.round))
    original = simulate.interruptible
    simulate.interruptible = lambda: contextlib.nullcontext(lambda: len(done) >= rounds - 1)  # type: ignore[assignment]
    try:
        with pytest.raises(KeyboardInterrupt, match=f"stopped after round {rounds - 1}; go on with `equipoise resume"):
            simulate.run(experiment(config(tmp, method, rounds=rounds, **more)), tmp / "run", watcher)
    finally:
        simulate.interruptible = original
    return tmp / "run"
