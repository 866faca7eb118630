"""What every method must keep, as checks that take any method. Each is shown to fail on a broken method in tests/contract/test_broken.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import equipoise as eq
from equipoise import simulate
from equipoise.data import Federation, Parts
from equipoise.records import PerClient, read, write
from equipoise.runs import Run
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


CHECKS = {
    check.__name__: check
    for check in (
        state_round_trips, payload_travels, one_client, one_class, one_sample, missing_reply, nan_reply, order_of_clients, unseen_test_data, repeats, shared_test_set,
    )
}  # fmt: skip
