"""What every method must keep, as checks that take any method. Each is shown to fail on a broken method in test_broken.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equipoise as eq
from equipoise import methods, simulate
from equipoise.data import Federation, Parts
from equipoise.records import PerClient, read, write
from equipoise.runs import Run
from equipoise.storage.checkpoint import load_server
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

# Adam steps by its rate even along a gradient that is zero but for rounding (a bias in front of a batch norm): a few rates of 1e-3.
LOOSE = {"kdia": 5e-3}


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
    _collect(load_server(run.store), "server", found)
    for client, (path, *_) in run.store.current("client").items():
        own = read(path if disk is None else disk / path.name, lazy=False)
        _collect({key: value for key, value in own.items() if not key.startswith("_")}, f"client {client}", found)
    return found


def _collect(value: Any, name: str, found: dict[str, Any]) -> None:
    if isinstance(value, (Mapping, PerClient, Tree)):
        for key in value:
            _collect(value[key], f"{name}/{key}", found)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _collect(item, f"{name}/{place}", found)
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


def all_counted(run: Run) -> None:
    """As `finite`, with every reply accepted: a client whose replies are refused round after round is not served by a method."""
    finite(run)
    assert not run.rejected(), run.rejected()[0]["reason"]


def state_round_trips(method: Any, model: str, tmp: Path) -> None:
    run = played(settings(method, model), tmp / "run")
    before = load_server(run.store)
    write(type(before)({key: value for key, value in before.items() if not isinstance(value, PerClient)}), tmp / "copy.safetensors")
    again, first, second = read(tmp / "copy.safetensors", lazy=False), {}, {}
    _collect({key: value for key, value in before.items() if not isinstance(value, PerClient)}, "", first)
    _collect(again, "", second)
    if first:
        assert_same(first, second)
    finite(run)


def payload_travels(method: Any, model: str, tmp: Path) -> None:
    config = settings(method, model)
    assert_same(everything(played(config, tmp / "direct")), everything(played(config, tmp / "packed", transport="loopback")))


def one_client(method: Any, model: str, tmp: Path) -> None:
    all_counted(played(settings(method, model, rounds=2), tmp / "run", sites({"ada": 20})))


def one_class(method: Any, model: str, tmp: Path) -> None:
    all_counted(played(settings(method, model, rounds=2), tmp / "run", sites(labels={"bo": [1]})))


def one_sample(method: Any, model: str, tmp: Path) -> None:
    all_counted(played(settings(method, model, rounds=2), tmp / "run", sites({"ada": 24, "bo": 1, "cy": 18})))


def missing_reply(method: Any, model: str, tmp: Path) -> None:
    script = {"script": [{"round": 1, "client": "bo", "kind": "drop"}, {"round": 2, "client": "ada", "kind": "drop"}]}
    run = played(settings(method, model, faults=script), tmp / "run")
    finite(run)
    assert [row["joined"] for row in run.rounds()][:2] == [["ada", "cy", "di"], ["bo", "cy", "di"]]


def nan_reply(method: Any, model: str, tmp: Path) -> None:
    """A client whose reply is not finite leaves no more trace than one that never answered."""
    ends = {}
    for kind in ("nan", "drop"):
        run = played(settings(method, model, faults={"script": [{"round": 2, "client": "cy", "kind": kind}]}), tmp / kind)
        assert [(row["round"], row["client"]) for row in run.rejected()] == [(2, "cy")]
        ends[kind] = everything(run)
    assert_same(ends["nan"], ends["drop"])


@contextmanager
def federation_changed(change: Callable[[Federation], Federation]) -> Iterator[None]:
    """Within it runs see a changed federation."""
    original = simulate.federate
    simulate.federate = lambda *arguments: change(original(*arguments))
    try:
        yield
    finally:
        simulate.federate = original


def order_of_clients(method: Any, model: str, tmp: Path) -> None:
    """Sums in float64 over another order may differ in a last bit of float32, which training multiplies a little; nothing else may differ."""

    def reversed_clients(federation: Federation) -> Federation:
        parts = {name: Parts.of(list(getattr(federation, name))[::-1]) for name in ("train", "validation", "test")}
        return replace(federation, ids=federation.ids[::-1], **parts)

    config = settings(method, model, rounds=2)
    first = everything(played(config, tmp / "first"))
    with federation_changed(reversed_clients):
        second = everything(played(config, tmp / "second"))
    close = LOOSE.get(method if isinstance(method, str) else "", 2e-4)
    assert_same(dict(sorted(first.items())), dict(sorted(second.items())), close)


def unseen_test_data(method: Any, model: str, tmp: Path) -> None:
    """Corrupting every test sample changes no trained weight."""

    def corrupted(federation: Federation) -> Federation:
        places = torch.from_numpy(federation.test.index.copy())
        assert len(places)
        federation.x[places] = 1e6
        federation.y[places] = CLASSES - 1 - federation.y[places]
        return federation

    config = settings(method, model)
    clean = everything(played(config, tmp / "clean"))
    with federation_changed(corrupted):
        assert_same(clean, everything(played(config, tmp / "dirty")))


def repeats(method: Any, model: str, tmp: Path) -> None:
    config = settings(method, model, rounds=2)
    assert_same(everything(played(config, tmp / "first")), everything(played(config, tmp / "second")))


def shared_test_set(method: Any, model: str, tmp: Path) -> None:
    """What is recorded on one test set for all, for all or for a client, is what each client's model gives there, evaluated directly."""
    config = settings(method, model, rounds=2, data={"split": (0.6, 0.15, 0.25), "partition": "natural", "test": "global"})
    wanted = eq.Experiment(**config, dataset=eq.from_sites(dict(sites())))
    run = simulate.run(wanted, tmp / "run")
    federation = simulate.federate(wanted.data, wanted.seed, wanted.dataset)
    places = torch.from_numpy(np.array(federation.shared_test, dtype=np.int64))
    assert run.main_model in run.models()
    for name in run.models():
        rows = {row["client"]: row["value"] for row in run.table(phase="final", split="shared", metric="accuracy", model=name)}
        assert set(rows) in ({"all"}, set(run.clients)), (name, rows)
        for client in run.clients:
            with torch.no_grad():
                right = run.model(name, client=client, given=wanted)(federation.x[places]).argmax(1) == federation.y[places]
            assert abs(rows.get(client, rows.get("all")) - float(right.double().mean())) < 1e-9, (name, client, rows)


CHECKS = {
    check.__name__: check
    for check in (
        state_round_trips, payload_travels, one_client, one_class, one_sample, missing_reply, nan_reply, order_of_clients, unseen_test_data, repeats, shared_test_set,
    )
}  # fmt: skip
