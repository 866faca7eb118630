"""Small federations, runs on them, and comparison of their results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import methods, simulate
from equipoise.data import Dataset, from_sites
from equipoise.experiment import Experiment
from equipoise.records import PerClient, read
from equipoise.runs import Run
from equipoise.storage.checkpoint import load_server
from equipoise.tree import Tree

CLASSES = 3
GROUP = "group"  # the column by which methods that compare groups do so
SIZES = {"ada": 24, "bo": 13, "cy": 18, "di": 9}

Sites = Mapping[str, tuple[np.ndarray, np.ndarray]]


class Broken(AssertionError):
    """Raised if a check fails; not an assert statement, which ``python -O`` would disable."""


def sites(
    sizes: Mapping[str, int] = SIZES, labels: Mapping[str, list[int]] | None = None, seed: int = 0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return small images and labels per client.

    Args:
        sizes: The number of samples of each client.
        labels: The only classes of some clients; all by default.
        seed: The seed of the samples.
    """
    labels = labels or {}
    draw = np.random.Generator(np.random.PCG64(seed))
    ramp = np.linspace(-1, 1, 64).reshape(1, 1, 8, 8)
    data = {}
    for name, size in sizes.items():
        y = draw.choice(np.array(labels.get(name, range(CLASSES))), size)
        noise = 0.3 * draw.standard_normal((size, 1, 8, 8))
        x = noise + y[:, None, None, None] * ramp
        data[name] = (x.astype(np.float32), y.astype(np.int64))
    return data


def dataset_of(data: Sites) -> Dataset:
    """Return the samples of all clients as a data set, with a group of each sample."""
    groups = []
    for x, _ in data.values():
        means = x.reshape(len(x), -1).mean(1)
        groups += ["b" if mean > 0 else "a" for mean in means.tolist()]
    return from_sites(dict(data), attributes={GROUP: groups})


def settings(method: Any, network: str = "mlp", **changes: Any) -> dict[str, Any]:
    """Return the settings of an experiment that runs in a fraction of a second.

    It has every model that some method requires.

    Args:
        method: A method, its name, or a mapping with name and parameters.
        network: "mlp", or "cnn" with batch norm unless the method never trains.
        **changes: Settings that differ.
    """
    model: dict[str, Any] = {"name": "mlp", "hidden": [6]}
    if network != "mlp":
        model = {"name": "cnn" if _trains(method) else "proxy_cnn"}
    return {
        "data": {"split": (0.7, 0.15, 0.15), "partition": "natural"},
        "models": {"model": model, "private": model, "proxy": {"name": "mlp", "hidden": [5]}},
        "method": method,
        "training": {"lr": 0.05, "batch": 5, "epochs": 1},
        "rounds": 3,
        "seed": 7,
        "workers": 0,
        **changes,
    }


def _trains(method: Any) -> bool:
    """Return True if a method can have a network with batch norm."""
    if isinstance(method, Mapping):
        method = method["name"]
    if isinstance(method, str):
        method = methods.find(method)
    return bool(method.trains)


def played(
    config: dict[str, Any], out: Path, data: Sites | None = None, transport: Any = None
) -> Run:
    """Return a finished run of an experiment, in process.

    Args:
        config: The settings of the experiment.
        out: The folder of the run.
        data: The samples of each client; those of `sites` by default.
        transport: The transport; in process by default.
    """
    experiment = Experiment(**config, dataset=dataset_of(data or sites()))
    return without_notes(experiment, out, transport)


def without_notes(experiment: Experiment, out: Path, transport: Any = None) -> Run:
    """Return a finished run; notes about its generated data are not printed."""
    return simulate.run(experiment, out, None, transport, quiet=True)


def everything(run: Run, disk: Path | None = None) -> dict[str, Any]:
    """Return the states of the server and of all clients as flat names and values.

    Args:
        run: The run.
        disk: The folder of the clients' states, if they are not with the server.
    """
    result = flat(load_server(run.store), "server")
    for client, (path, *_) in run.store.current("client").items():
        if disk is not None:
            path = disk / path.relative_to(run.store.files)
        state = read(path, lazy=False)
        public = {key: value for key, value in state.items() if not key.startswith("_")}
        result |= flat(public, f"client {client}")
    return result


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return the values inside of mappings, trees and lists, by the path to them.

    >>> flat({"a": [1, 2]}, "x")
    {'x/a/0': 1, 'x/a/1': 2}
    """
    if isinstance(value, (Mapping, PerClient, Tree)):
        items = [(key, value[key]) for key in value]
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return {name: value}
    result: dict[str, Any] = {}
    for key, item in items:
        result |= flat(item, f"{name}/{key}")
    return result


def assert_same(first: Mapping[str, Any], second: Mapping[str, Any], close: float = 0.0) -> None:
    """Require the same names and values.

    Args:
        first: Names and values, see `everything`.
        second: Names and values to compare.
        close: The tolerance, relative above 1 and absolute below; 0 compares bit for bit.

    Raises:
        Broken: If they differ or are empty.
    """
    if not first and not second:
        raise Broken("nothing was learnt: the comparison would be empty")
    if first.keys() != second.keys():
        raise Broken(f"only one of two runs has {', '.join(sorted(first.keys() ^ second.keys()))}")
    for name, value in first.items():
        difference = _difference(value, second[name], close)
        if difference:
            raise Broken(f"{name} {difference}")


def _difference(value: Any, other: Any, close: float) -> str:
    """Return a sentence about the difference of two values, or ""."""
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return _tensor_difference(value, other, close)
    if isinstance(value, float) and isinstance(other, float):
        same = value == other or (close and abs(value - other) <= close * max(1, abs(value)))
    else:
        # A number does not equal a tensor that holds it.
        same = isinstance(value, Tensor) == isinstance(other, Tensor) and value == other
    return "" if same else f"is {value!r} in one run and {other!r} in another"


def _tensor_difference(value: Tensor, other: Tensor, close: float) -> str:
    if value.shape != other.shape or value.dtype != other.dtype:
        return (
            f"is {value.dtype} of shape {tuple(value.shape)} in one run and {other.dtype} of shape "
            f"{tuple(other.shape)} in another"
        )
    if torch.equal(value, other):
        return ""
    if close and torch.allclose(value, other, rtol=close, atol=close):
        return ""
    largest = (value.double() - other.double()).abs().max()
    limit = f", more than {close:g}" if close else ""
    return f"differs by {largest:.3g} between two runs{limit}"


def finite(run: Run) -> None:
    """Require that a run is finished and that all its states are finite.

    Raises:
        Broken: If not.
    """
    if run.status != "finished":
        raise Broken(f"the run is {run.status}, not finished")
    for name, value in everything(run).items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        if not torch.isfinite(value).all():
            raise Broken(f"{name} holds values that are not finite")
