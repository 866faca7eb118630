"""Small runs, in process or such that other processes can rebuild them, and whether two are the same."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise import methods, simulate
from equipoise.data import Federation
from equipoise.data.check import DataReport
from equipoise.experiment import Experiment, experiment
from equipoise.runs import Run
from equipoise.storage.tables import RoundRecord
from equipoise.testing import small
from equipoise.testing.small import CLASSES, SIZES, assert_same, everything, finite, played, sites
from tests.helpers.callbacks import Calling

__all__ = [
    "CLASSES",
    "LOOSE",
    "QUICK",
    "SIZES",
    "assert_same",
    "config",
    "each_method",
    "environment",
    "everything",
    "federation_changed",
    "files_under",
    "finite",
    "folder_of",
    "played",
    "same_run",
    "settings",
    "sites",
    "stopped",
]  # fmt: skip

QUICK: dict[
    str, dict[str, Any]
] = {  # hyper-parameters that keep a method's own work small, and let it act in few rounds on few samples
    "kdia": {"gen_steps": 4},
    "fedcog": {"start_round": 1, "steps": 3},
    "fedlsa": {"steps": 5},
    "fedave": {"batch": 2},  # several batches of losses even of the smallest client
    "fedsac": {"alone": 2},
    "fedtype": {"calibration": "train", "alpha": 0.7},
}
# Adam steps by its rate even along a gradient that is zero but for rounding (a bias in front of a batch norm): a few rates of 1e-3.
LOOSE = {"kdia": 5e-3}


# A method of each kind: plain, control variates at clients and server, models of several clients,
# distillation, a generator, weights by alignment, forward hooks, personal models, a final phase.
OF_EACH_KIND = (
    "fedavg", "scaffold", "fedakd", "fedekd", "kdia", "corefed", "fedequilibria", "fedmpr", "ditto",
    "poise",
)  # fmt: skip


def each_method() -> list[Any]:
    """Return all methods as parameters of a test; those of a kind that is tested are slow."""
    parameters = []
    for name in methods.names():
        marks = () if name in OF_EACH_KIND else pytest.mark.slow
        parameters.append(pytest.param(name, marks=marks))
    return parameters


def folder_of(path: Path, data: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """The sites as files, for runs that other processes must be able to rebuild."""
    path.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in data.items():
        np.savez(path / f"{name}.npz", x=x, y=y)
    return str(path)


def settings(method: Any, network: str = "mlp", **more: Any) -> dict[str, Any]:
    """As in the checks of the contract, for a method by name with quick parameters."""
    return small.settings(
        {"name": method, **QUICK.get(method, {})} if isinstance(method, str) else method,
        network,
        **more,
    )


def config(tmp: Path, method: Any, **more: Any) -> dict[str, Any]:
    """An experiment over files, so that it can be resumed and run by workers."""
    found = settings(method, **more)
    found["data"] = {**found["data"], "name": folder_of(tmp / "sites", sites())}
    return found


def same_run(first: Run | Path, second: Run | Path, disk: Path | None = None) -> None:
    """The same final state, cohorts, tables and refusals, times apart, bit for bit. `disk`: where the clients' states of the second lie."""
    one, other = (run if isinstance(run, Run) else Run(run) for run in (first, second))
    assert one.status == other.status == "finished"
    assert_same(everything(one), everything(other, disk))
    for rows in (Run.table, Run.weights, Run.rejected, _untimed):
        assert rows(one) == rows(other)
    assert one.table()
    assert disk is not None or _files(one) == _files(other)
    for run in (one, other):  # nothing is left over
        assert files_under(run.store.files) == _files(run)


def same_as_replay(replay: Run, run: Run, disk: Path) -> None:
    """The same bits; the replay has other reasons why replies did not count. `disk`: where the clients' states of the run lie."""
    assert replay.status == run.status == "finished"
    assert_same(everything(replay), everything(run, disk))
    for rows in (Run.table, Run.weights, _unexplained, _members):
        assert rows(replay) == rows(run)


def _members(run: Run) -> list[tuple[Any, ...]]:
    return [(row["round"], row["cohort"], row["joined"], row["steps"]) for row in run.rounds()]


def _unexplained(run: Run) -> list[dict[str, Any]]:
    """The replies of counted attempts that did not count, without the reasons."""
    attempts = {row["round"]: row["attempt"] for row in [*run.rounds(), *run.finish()]}
    rows = [row for row in run.rejected() if row["attempt"] == attempts[row["round"]]]
    return [{key: row[key] for key in ("round", "exchange", "client")} for row in rows]


def files_under(folder: Path) -> list[str]:
    """The names of all files in a folder and its sub-folders, as the store names them."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def _untimed(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.rounds()]


def _files(run: Run) -> list[str]:
    """What the store says that the server keeps."""
    return [
        row["name"]
        for row in run.store.rows("select name from files where kept_at = 'server' order by name")
    ]


def environment() -> dict[str, str]:
    """For child processes: one that finds the package as this one does, and the tests."""
    paths = [
        Path(eq.__file__).parents[1],
        Path(__file__).parents[2],
        os.environ.get("PYTHONPATH", ""),
    ]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def federation_changed(change: Callable[[Federation], Federation]) -> Iterator[None]:
    """Within it runs see a changed federation."""
    original = simulate.load_data

    def load_data(experiment: Experiment, report: bool) -> tuple[Federation, DataReport | None]:
        federation, summary = original(experiment, report)
        return change(federation), summary

    simulate.load_data = load_data
    try:
        yield
    finally:
        simulate.load_data = original


def stopped(tmp: Path, method: Any = "scaffold", rounds: int = 3, **more: Any) -> Path:
    """A run that was interrupted before its last round."""

    def interrupt(record: RoundRecord) -> None:
        if record.round == rounds - 1:
            signal.raise_signal(signal.SIGINT)

    interrupted = experiment(config(tmp, method, rounds=rounds, **more))
    with pytest.raises(KeyboardInterrupt, match=f"stopped after round {rounds - 1}"):
        simulate.run(interrupted, tmp / "run", Calling(on_round=interrupt))
    return tmp / "run"


def killed_at_random(
    play: Callable[..., dict[str, Any]],
    job: dict[str, Any],
    out: Path,
    moment: Callable[[], float],
    times: int,
) -> None:
    """A run that is killed so many times, each time after some seconds, and then left to its end."""
    for _ in range(times):
        begun = (out / "run.db").exists()
        play(**({"resume": True} if begun else {"config": job}), out=str(out), die_after=moment())
    said = (
        play(resume=True, out=str(out))
        if (out / "run.db").exists()
        else play(config=job, out=str(out))
    )
    assert not said.get("error") or "is finished" in said["error"], said
