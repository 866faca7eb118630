"""Small runs, in process or such that other processes can rebuild them, and whether two are the same."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import methods, simulate
from equipoise.data import Federation
from equipoise.experiment import experiment
from equipoise.records import PerClient, read
from equipoise.runs import Run
from equipoise.storage.checkpoint import load_server
from equipoise.transports.base import Watcher
from equipoise.tree import Tree

CLASSES = 3
SIZES = {"ada": 24, "bo": 13, "cy": 18, "di": 9}
QUICK: dict[str, dict[str, Any]] = {  # hyper-parameters that keep a method's own work small, and let it act in few rounds on few samples
    "kdia": {"gen_steps": 4},
    "fedcog": {"start_round": 1, "steps": 3},
    "fedlsa": {"steps": 5},
    "fedave": {"batch": 2},  # several batches of losses even of the smallest client
    "fedsac": {"alone": 2},
    "fedtype": {"calibration": "train", "alpha": 0.7},
}


def sites(
    sizes: Mapping[str, int] = SIZES, labels: Mapping[str, list[int]] | None = None, seed: int = 0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small images whose class can be learnt, one set per client."""
    draw = np.random.Generator(np.random.PCG64(seed))
    found = {}
    for name, size in sizes.items():
        y = draw.choice(np.array((labels or {}).get(name, range(CLASSES))), size)
        x = 0.3 * draw.standard_normal((size, 1, 8, 8)) + y[:, None, None, None] * np.linspace(-1, 1, 64).reshape(1, 1, 8, 8)
        found[name] = (x.astype(np.float32), y.astype(np.int64))
    return found


def folder_of(path: Path, data: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """The sites as files, for runs that other processes must be able to rebuild."""
    path.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in data.items():
        np.savez(path / f"{name}.npz", x=x, y=y)
    return str(path)


def settings(method: Any, model: str = "mlp", **more: Any) -> dict[str, Any]:
    """An experiment small enough to run in a fraction of a second, with every model that some method asks for."""
    small = {"name": "mlp", "hidden": [6]} if model == "mlp" else {"name": "cnn" if _trains(method) else "proxy_cnn"}
    if isinstance(method, str):
        method = {"name": method, **QUICK.get(method, {})}
    return {
        "data": {"split": (0.7, 0.15, 0.15), "partition": "natural"},
        "models": {"model": small, "private": small, "proxy": {"name": "mlp", "hidden": [5]}},
        "method": method,
        "training": {"lr": 0.05, "batch": 5, "epochs": 1},
        "rounds": 3,
        "seed": 7,
        "workers": 0,
        **more,
    }


def _trains(method: Any) -> bool:
    """Whether a method, by name, with parameters or as an object, can have a network with batch norm."""
    if isinstance(method, Mapping):
        method = method["name"]
    return bool(methods.find(method).trains if isinstance(method, str) else method.trains)


def played(
    config: dict[str, Any], out: Path, data: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None, transport: Any = None
) -> Run:
    """Run an experiment on the given sites, in process."""
    return simulate.run(eq.Experiment(**config, dataset=eq.from_sites(dict(data or sites()))), out, transport=transport)


def everything(run: Run, disk: Path | None = None) -> dict[str, Any]:
    """All that a run has learnt: the server's state and every client's, as flat names and values. `disk`: where the clients' own lie."""
    found: dict[str, Any] = {}
    collect(load_server(run.store), "server", found)
    for client, (path, *_) in run.store.current("client").items():
        own = read(path if disk is None else disk / path.name, lazy=False)
        collect({key: value for key, value in own.items() if not key.startswith("_")}, f"client {client}", found)
    return found


def collect(value: Any, name: str, found: dict[str, Any]) -> None:
    if isinstance(value, (Mapping, PerClient, Tree)):
        for key in value:
            collect(value[key], f"{name}/{key}", found)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            collect(item, f"{name}/{place}", found)
    else:
        found[name] = value


def assert_same(first: Mapping[str, Any], second: Mapping[str, Any], close: float = 0.0) -> None:
    """The same names and, bit for bit unless `close` is given, the same values."""
    assert first.keys() == second.keys(), sorted(first.keys() ^ second.keys())
    assert first, "nothing was learnt: the comparison would be empty"
    for name, value in first.items():
        other = second[name]
        if isinstance(value, Tensor) and close:
            torch.testing.assert_close(value, other, rtol=close, atol=close, msg=lambda text, name=name: f"{name}: {text}")
        elif isinstance(value, Tensor):
            assert torch.equal(value, other), f"{name} differs by {(value.double() - other.double()).abs().max()}"
        elif isinstance(value, float) and close:
            assert abs(value - other) <= close * max(1, abs(value)), name
        else:
            assert value == other, name


def finite(run: Run) -> None:
    """The run finished, and everything it learnt is finite."""
    assert run.status == "finished"
    for name, value in everything(run).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            assert torch.isfinite(value).all(), name


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
        assert sorted(path.name for path in run.store.files.iterdir()) == _files(run)


def _untimed(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.rounds()]


def _files(run: Run) -> list[str]:
    """What the store says that the server keeps."""
    return [row["name"] for row in run.store.rows("select name from files where kept_at = 'server' order by name")]


def environment() -> dict[str, str]:
    """For child processes: one that finds the package as this one does, and the tests."""
    paths = [Path(eq.__file__).parents[1], Path(__file__).parents[2], os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def federation_changed(change: Callable[[Federation], Federation]) -> Iterator[None]:
    """Within it runs see a changed federation."""
    original = simulate.federate
    simulate.federate = lambda *arguments: change(original(*arguments))
    try:
        yield
    finally:
        simulate.federate = original


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
