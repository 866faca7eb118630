"""What every method must keep, as checks that take any method. Each is shown to fail on a broken method in tests/contract/test_broken.py."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.data import Federation, Parts
from equipoise.data.samples import Samples
from equipoise.method import SLOTS, Method, Ups, overridden
from equipoise.records import PerClient, read, write
from equipoise.runs import Run
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from tests.helpers.runs import CLASSES, assert_same, collect, everything, federation_changed, finite, played, settings, sites

# Adam steps by its rate even along a gradient that is zero but for rounding (a bias in front of a batch norm): a few rates of 1e-3.
LOOSE = {"kdia": 5e-3}


def all_counted(run: Run) -> None:
    """As `finite`, with every reply accepted: a client whose replies are refused round after round is not served by a method."""
    finite(run)
    assert not run.rejected(), run.rejected()[0]["reason"]


def state_round_trips(method: Any, model: str, tmp: Path) -> None:
    run = played(settings(method, model), tmp / "run")
    before = load_server(run.store)
    write(type(before)({key: value for key, value in before.items() if not isinstance(value, PerClient)}), tmp / "copy.safetensors")
    again, first, second = read(tmp / "copy.safetensors", lazy=False), {}, {}
    collect({key: value for key, value in before.items() if not isinstance(value, PerClient)}, "", first)
    collect(again, "", second)
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


def no_foreign_data(method: Any, model: str, tmp: Path) -> None:
    """No attribute of what a slot is given, also no private one, leads to a sample of another client or of a test; no sample reaches the server."""
    config, dataset = settings(method, model, rounds=2), eq.from_sites(dict(sites()))
    wanted = eq.Experiment(**config, dataset=dataset)
    federation, inner = simulate.federate(wanted.data, wanted.seed, dataset), wanted.build_method()
    rows = federation.x.flatten(1).numpy()
    own = {client: {*federation.train[k].tolist(), *federation.validation[k].tolist()} for k, client in enumerate(federation.ids)}
    judged = set(federation.server_validation.tolist()) if inner.needs_validation else set()
    looked: set[str | None] = set()

    def look(given: Mapping[str, Any]) -> None:
        who = next((one.id for one in given.values() if isinstance(one, Client)), None)
        foreign = rows[sorted(set(range(len(rows))) - (judged if who is None else own[who]))]
        for path, found in _reachable(given):
            whose = "the server" if who is None else f"client {who!r}"
            assert not _holds(found, foreign), f"{whose} reaches a sample that is not its own through {path}"
        looked.add(who)

    simulate.run(eq.Experiment(**{**config, "method": _probing(inner, look)}, dataset=dataset), tmp / "run")
    assert looked == {None, *federation.ids}, f"only {looked} were looked at"


def _probing(method: Method, look: Callable[[Mapping[str, Any]], None]) -> Any:
    """The same method with a look at what its slots are given."""
    kind: Any = type(method)

    def watched(slot: str) -> Callable[..., Any]:
        original = getattr(kind, slot)
        names = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def probe(*given: Any) -> Any:
            look(dict(zip(["method", *names[1:]], given, strict=True)))
            return original(*given)

        return probe

    always = ("start", "client", "update", "round")
    slots = {slot: watched(slot) for slot in SLOTS if slot in always or (overridden(method, slot) and slot not in ("check", "models"))}
    values = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
    return type(kind.__name__, (kind,), {"__module__": "__main__", **slots})(**values)


def _holds(found: Tensor | np.ndarray, rows: np.ndarray) -> bool:
    """Whether one of these rows stands anywhere in the memory of a tensor: a slice leads to the whole."""
    tensor = found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))
    if tensor.dtype != torch.float32:
        return False
    memory = torch.empty(0).set_(tensor.detach().untyped_storage()).numpy()
    starts = [start for start in np.flatnonzero(np.isin(memory, rows[:, 0])) if start + rows.shape[1] <= len(memory)]
    return any((rows == memory[start : start + rows.shape[1]]).all(1).any() for start in starts)


def _reachable(given: Mapping[str, Any]) -> Iterator[tuple[str, Tensor | np.ndarray]]:
    """The tensors and arrays that attributes, properties and items lead to, with their paths; what a function encloses is its own."""
    waiting, seen = list(given.items()), {}
    while waiting:
        path, one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, int, float, type(None), type, ModuleType, FunctionType, torch.Generator)):
            continue
        seen[id(one)] = one  # also what a property made: its number must not be given to another
        assert len(seen) < 100_000, f"{path} leads on without an end"
        if isinstance(one, Tensor) or (isinstance(one, np.ndarray) and one.dtype != object):
            yield path, one
        elif isinstance(one, Mapping):
            waiting += [(f"{path}[{key!r}]", one[key]) for key in one]
        elif isinstance(one, (list, tuple, set, frozenset, Ups)):
            waiting += [(f"{path}[{place}]", item) for place, item in enumerate(one)]
        if not isinstance(one, Tensor):
            waiting += [(f"{path}.{name}", value) for name, value in _attributes(one)]


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(one, "__dict__", {}).items()
    yield from ((name, getattr(one, name)) for name in ("__self__", "func", "args", "keywords") if hasattr(one, name))
    for kind in type(one).__mro__:
        for name, value in vars(kind).items():
            # Properties of others are not followed: the parameters of a tree are a tree, whose parameters are a tree, and so on.
            given = isinstance(value, property) and isinstance(one, (Client, Server, Samples, Method))
            if given or name in getattr(kind, "__slots__", ()):
                with suppress(Exception):  # a property that has nothing to give says so
                    yield name, getattr(one, name)
            elif isinstance(one, Method) and not name.startswith("__") and not callable(value):
                yield name, value


CHECKS = {
    check.__name__: check
    for check in (
        state_round_trips, payload_travels, one_client, one_class, one_sample, missing_reply, nan_reply, order_of_clients, unseen_test_data, no_foreign_data, repeats, shared_test_set,
    )
}  # fmt: skip
