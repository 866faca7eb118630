"""Small federations and runs on them, and all that a run has learnt, to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import methods, simulate
from equipoise.data import from_sites
from equipoise.experiment import Experiment
from equipoise.records import PerClient, read
from equipoise.runs import Run
from equipoise.storage.checkpoint import load_server
from equipoise.tree import Tree

CLASSES = 3
SIZES = {"ada": 24, "bo": 13, "cy": 18, "di": 9}

Sites = Mapping[str, tuple[np.ndarray, np.ndarray]]


class Broken(AssertionError):
    """What a check found; raised and not asserted, so that Python's -O does not switch checks off."""


def sites(
    sizes: Mapping[str, int] = SIZES, labels: Mapping[str, list[int]] | None = None, seed: int = 0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small images whose class can be learnt, one set per client; `labels`: the only classes of some clients."""
    draw = np.random.Generator(np.random.PCG64(seed))
    found = {}
    for name, size in sizes.items():
        y = draw.choice(np.array((labels or {}).get(name, range(CLASSES))), size)
        x = 0.3 * draw.standard_normal((size, 1, 8, 8)) + y[:, None, None, None] * np.linspace(
            -1, 1, 64
        ).reshape(1, 1, 8, 8)
        found[name] = (x.astype(np.float32), y.astype(np.int64))
    return found


def settings(method: Any, network: str = "mlp", **more: Any) -> dict[str, Any]:
    """An experiment small enough to run in a fraction of a second, with every model that some method asks for."""
    small = (
        {"name": "mlp", "hidden": [6]}
        if network == "mlp"
        else {"name": "cnn" if _trains(method) else "proxy_cnn"}
    )
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
    config: dict[str, Any], out: Path, data: Sites | None = None, transport: Any = None
) -> Run:
    """Run an experiment on the given sites, in process."""
    experiment = Experiment(**config, dataset=from_sites(dict(data or sites())))
    return without_notes(experiment, out, transport)


def without_notes(experiment: Experiment, out: Path, transport: Any = None) -> Run:
    """Run an experiment whose data are made up: notes about them would help nobody."""
    return simulate.run(experiment, out, None, transport, quiet=True)


def everything(run: Run, disk: Path | None = None) -> dict[str, Any]:
    """All that a run has learnt: the server's state and every client's, as flat names and values. `disk`: where the clients' own lie."""
    found = flat(load_server(run.store), "server")
    for client, (path, *_) in run.store.current("client").items():
        own = read(path if disk is None else disk / path.relative_to(run.store.files), lazy=False)
        found |= flat(
            {key: value for key, value in own.items() if not key.startswith("_")},
            f"client {client}",
        )
    return found


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """The values inside of mappings, trees and lists, by the names that lead to them."""
    if isinstance(value, (Mapping, PerClient, Tree)):
        return {
            inner: one for key in value for inner, one in flat(value[key], f"{name}/{key}").items()
        }
    if isinstance(value, list):
        return {
            inner: one
            for place, item in enumerate(value)
            for inner, one in flat(item, f"{name}/{place}").items()
        }
    return {name: value}


def assert_same(first: Mapping[str, Any], second: Mapping[str, Any], close: float = 0.0) -> None:
    """The same names and, bit for bit unless `close` is given, the same values."""
    if not first and not second:
        raise Broken("nothing was learnt: the comparison would be empty")
    if first.keys() != second.keys():
        raise Broken(f"only one of two runs has {', '.join(sorted(first.keys() ^ second.keys()))}")
    for name, value in first.items():
        difference = _difference(value, second[name], close)
        if difference:
            raise Broken(f"{name} {difference}")


def _difference(value: Any, other: Any, close: float) -> str:
    if not isinstance(value, Tensor) or not isinstance(other, Tensor):
        near = (
            close
            and isinstance(value, float)
            and isinstance(other, float)
            and abs(value - other) <= close * max(1, abs(value))
        )
        # a number is no tensor that holds it
        equal = isinstance(value, Tensor) == isinstance(other, Tensor) and value == other
        return "" if near or equal else f"is {value!r} in one run and {other!r} in another"
    if value.shape != other.shape or value.dtype != other.dtype:
        return f"is {value.dtype} of shape {tuple(value.shape)} in one run and {other.dtype} of shape {tuple(other.shape)} in another"
    if torch.equal(value, other) or (
        close and torch.allclose(value, other, rtol=close, atol=close)
    ):
        return ""
    return f"differs by {(value.double() - other.double()).abs().max():.3g} between two runs" + (
        f", more than {close:g}" if close else ""
    )


def finite(run: Run) -> None:
    """The run finished, and everything it learnt is finite."""
    if run.status != "finished":
        raise Broken(f"the run is {run.status}, not finished")
    for name, value in everything(run).items():
        if (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and not torch.isfinite(value).all()
        ):
            raise Broken(f"{name} holds values that are not finite")
