"""What a server knows of its clients, and what it refuses to begin with."""

from __future__ import annotations

import gc
import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import Federation, Parts, federate
from equipoise.data.roster import PARTS, Roster, fingerprint, roster_of
from equipoise.engine.rounds import Loop
from equipoise.experiment import experiment
from equipoise.experiment.build import prepare
from equipoise.records import Record, pack, unpack
from equipoise.runtime.messages import PROTOCOL
from equipoise.session import job_of
from equipoise.storage.store import Store
from equipoise.task import Task
from equipoise.transports.base import Monitor
from equipoise.transports.inprocess import InProcess, Loopback, Separated
from equipoise.transports.workers.processes import Pool
from tests.helpers.runs import federation_changed, folder_of, played, settings, sites
from tests.helpers.transports import over, separated

TASK = Task("classification", (1, 8, 8), 3)


def federation() -> Federation:
    return federate(experiment(settings("fedavg")).data, 7, eq.from_sites(sites()))


def roster(ids: tuple[str, ...], task: Task = TASK, train: int = 5) -> Roster:
    sizes = {part: dict.fromkeys(ids, train if part == "train" else 1) for part in PARTS}
    return Roster(task, "x", ids, sizes, dict.fromkeys(ids, "f" * 32))


def test_a_roster_is_names_and_numbers_and_travels() -> None:
    here = roster_of(federation())
    record = here.record()
    assert json.loads(json.dumps(record)) == {
        **record,
        "ids": list(here.ids),
        "task": {**record["task"], "shape": [1, 8, 8], "class_names": list(here.task.class_names)},
    }
    assert Roster.of(unpack(bytearray(b"".join(pack(Record(record)))))) == here
    assert sum(here.sizes[part]["ada"] for part in PARTS) == 24


def test_a_fingerprint_is_that_of_a_clients_samples_and_not_of_where_they_lie() -> None:
    whole = federation()
    before, order = (
        roster_of(whole),
        torch.randperm(len(whole.y), generator=torch.Generator().manual_seed(1)),
    )
    place = torch.argsort(order).numpy()
    moved = replace(
        whole,
        x=whole.x[order].clone(),
        y=whole.y[order].clone(),
        **{part: getattr(whole, part).through(place) for part in PARTS},
    )
    assert roster_of(moved) == before and roster_of(moved).fingerprint == before.fingerprint
    # One site alone has what it had among the others.
    one = replace(
        whole, ids=("bo",), **{part: Parts.of([getattr(whole, part)[1]]) for part in PARTS}
    )
    assert roster_of(one).fingerprints == {"bo": before.fingerprints["bo"]}
    for tensor in (whole.x, whole.y):
        kept = tensor.clone()
        tensor[int(whole.train[1][0])] += 1
        after = roster_of(whole)
        assert [
            client
            for client in after.ids
            if after.fingerprints[client] != before.fingerprints[client]
        ] == ["bo"]
        assert after.fingerprint != before.fingerprint
        tensor.copy_(kept)
    test, train = whole.test[1], whole.train[1]
    assert fingerprint(whole, train, test) != fingerprint(whole, test, train), (
        "which part a sample belongs to counts"
    )


@pytest.mark.parametrize("at_once", [1, 10, 30, 10**6])
def test_fingerprints_are_digests_of_plain_bytes_however_many_are_gathered_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.data.roster.AT_ONCE", at_once)
    whole = federation()
    # and a client without a sample
    parts = {part: [*getattr(whole, part), np.empty(0, np.int64)] for part in PARTS}
    x = whole.x.repeat(1, 3, 1, 1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    changed = replace(
        whole,
        x=x,
        ids=(*whole.ids, "zoe"),
        **{part: Parts.of(held) for part, held in parts.items()},
    )
    for place, client in enumerate(changed.ids):
        digest = hashlib.sha256()
        for held in parts.values():
            chosen = held[place].tolist()
            digest.update(f"{len(chosen)}:".encode())
            digest.update(b"".join(np.array(x[k].tolist(), np.float32).tobytes() for k in chosen))
            digest.update(b"".join(np.int64(int(whole.y[k])).tobytes() for k in chosen))
        assert roster_of(changed).fingerprints[client] == digest.hexdigest()[:32]


def test_the_order_of_clients_and_the_shared_test_set_belong_to_the_fingerprint() -> None:
    first = roster(("a", "b"))
    assert replace(first, ids=("b", "a")).fingerprint != first.fingerprint
    assert replace(first, shared=1, shared_fingerprint="e" * 32).fingerprint != first.fingerprint


BAD: dict[str, tuple[Any, str]] = {
    "equal ids": (
        lambda f: replace(f, ids=("ada", "bo", "bo", "ada")),
        "the client ids 'ada', 'bo' were given more than once",
    ),
    "the name of all": (
        lambda f: replace(f, ids=("ada", "all", "cy", "di")),
        "client id .all.: measurements on a shared test set are stored under this name",
    ),
    "a slash": (
        lambda f: replace(f, ids=("ada", "../bo", "cy", "di")),
        "client id '../bo': expected 1 to 64 printable characters without /",
    ),
    "a control character": (
        lambda f: replace(f, ids=("ada", "bo\x1b[2J", "cy", "di")),
        "client id 'bo.*: expected 1 to 64 printable",
    ),
    "too long": (
        lambda f: replace(f, ids=("ada", "b" * 65, "cy", "di")),
        "client id 'bbb.*: expected 1 to 64",
    ),
    "a folder": (
        lambda f: replace(f, ids=("ada", "..", "cy", "di")),
        "client id '..': expected no name of a folder",
    ),
    "empty": (lambda f: replace(f, ids=("ada", "", "cy", "di")), "client id '': expected 1 to 64"),
    "no training samples": (
        lambda f: replace(f, train=Parts.of([np.empty(0, np.int64)] * 4)),
        "none of the clients 'ada', 'bo', 'cy', 'di' has a training sample",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", ["in process", "loopback", "apart", "workers"])
def test_open_refuses_what_no_run_can_begin_with(
    kind: str, case: str, pool: Pool, tmp_path: Path
) -> None:
    change, sentence = BAD[case]
    transport = {
        "in process": None,
        "loopback": "loopback",
        "apart": separated(tmp_path / "disk"),
        "workers": over(pool),
    }[kind]
    with federation_changed(change), pytest.raises(ValueError, match=sentence):
        played(settings("fedavg"), tmp_path / "run", transport=transport)
    assert not (tmp_path / "run").exists()


def test_rosters_of_several_sides_are_joined_or_refused_by_the_clients_names() -> None:
    both = Roster.joined([roster(("a", "b")), roster(("c",))])
    assert (
        both.ids == ("a", "b", "c")
        and both.sizes["train"] == {"a": 5, "b": 5, "c": 5}
        and both == roster(("a", "b", "c"))
    )
    other = replace(TASK, outputs=4)
    with pytest.raises(
        ValueError,
        match="the clients 'a', 'b' and 'c' have different tasks: .*outputs=3.* and .*outputs=4",
    ):
        Roster.joined([roster(("a", "b")), roster(("c",), other)])
    with pytest.raises(ValueError, match="the client ids 'b' were given more than once"):
        Roster.joined([roster(("a", "b")), roster(("b", "c"))])
    with pytest.raises(ValueError, match="'a' and 'b' hold different shared test sets"):
        Roster.joined([roster(("a",)), replace(roster(("b",)), shared=3, shared_fingerprint="e")])
    with pytest.raises(ValueError, match="none of the clients 'a', 'b' has a training sample"):
        Roster.joined([roster(("a",), train=0), roster(("b",), train=0)])
    assert Roster.joined([roster(("a",), train=0), roster(("b",))]).sizes["train"] == {
        "a": 0,
        "b": 5,
    }
    silent = roster(("c",))
    for broken in (
        replace(silent, fingerprints={}),
        replace(silent, sizes={**silent.sizes, "test": {"c": -1}}),
        replace(silent, sizes={part: {} for part in PARTS}),
    ):
        with pytest.raises(ValueError, match="client 'c' sent no sizes or no fingerprint"):
            Roster.joined([roster(("a",)), broken])


def test_another_protocol_is_refused(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(
        job_of(experiment(settings("fedavg")), "r"), protocol=PROTOCOL + 1, version="9.9"
    )
    sentence = (
        f"expected protocol {PROTOCOL}, got {PROTOCOL + 1} from equipoise 9.9; install the same "
        "version on both sides"
    )
    for transport in (
        Separated(federation(), tmp_path / "disk"),
        over(pool)(federation(), experiment(settings("fedavg"))),
    ):
        with pytest.raises(ValueError, match=sentence):
            transport.open(made, tmp_path / "files", Monitor())
        transport.close()
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"participation": {"script": {1: ["ada", "Bo"]}}},
            r"unknown client under participation.script.1 'Bo'.*did you mean .*bo",
        ),
        (
            {"faults": {"script": [{"round": 1, "client": "eve", "kind": "drop"}]}},
            "unknown client under faults.script 'eve'",
        ),
    ],
)
def test_a_script_with_an_unknown_client_is_refused(
    more: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        played(settings("fedavg", **more), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_site_may_hold_some_of_the_clients_that_an_experiment_names() -> None:
    """What concerns all clients is judged by the server, which knows all of them."""
    small = {"name": "mlp", "hidden": [6]}
    wanted = experiment(
        settings("fedavg")
        | {
            "models": {"model": {**small, "clients": {"ada": small}}},
            "evaluation": {"main": "auroc"},
        }
    )
    whole = federation()
    one = replace(
        whole,
        ids=("bo",),
        **{part: Parts.of([getattr(whole, part)[1]]) for part in PARTS},
        y=torch.zeros_like(whole.y),
    )
    prepare(wanted, one.task, one.ids, one)
    with pytest.raises(ValueError, match="unknown client under models.model.clients 'ada'"):
        prepare(wanted, one.task, one.ids)


# The server's side, looked at from outside.


def reachable(*roots: Any) -> list[Any]:
    """Every object that these lead to, code and modules apart."""
    found: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) in found or isinstance(one, (type, ModuleType, FunctionType)):
            continue
        found[id(one)] = one
        waiting += gc.get_referents(one)
    return list(found.values())


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedekd", "kdia"])
def test_no_object_of_the_server_leads_to_a_sample(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    commit = Loop._commit

    def look(self: Loop, state: Any, cohort: Any) -> Any:
        assert self.bench.federation is None and self.bench.position == {}
        whole: Federation = self.transport.federation  # type: ignore[attr-defined]
        # The transport itself leads to both sides here, where they are in one process; all else is
        # the server's.
        transport, self.transport, self.clients.transport = self.transport, None, None  # type: ignore[assignment]
        monitor, self.monitor = self.monitor, Monitor()
        try:
            objects = reachable(self.__dict__, state, cohort)
        finally:
            self.transport = self.clients.transport = transport
            self.monitor = monitor
        tensors = [one for one in objects if isinstance(one, torch.Tensor)]
        assert tensors and not any(isinstance(one, Federation) for one in objects)
        places = {whole.x.untyped_storage().data_ptr(), whole.y.untyped_storage().data_ptr()}
        assert not any(one.untyped_storage().data_ptr() in places for one in tensors)
        # nor to a copy of one
        samples = {whole.x[k].numpy().tobytes() for k in range(len(whole.x))}
        assert not any(one.numpy().tobytes() in samples for one in tensors if one.numel() == 64)
        looked.append(cohort.record.round)
        return commit(self, state, cohort)

    monkeypatch.setattr(Loop, "_commit", look)
    played(settings(method, rounds=2), tmp_path / "run", transport=separated(tmp_path / "disk"))
    assert looked == [0, 1, 2]


@pytest.mark.parametrize("transport", [InProcess, Loopback])
def test_the_servers_workbench_has_no_federation_on_any_transport(
    transport: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    run = Loop.run
    monkeypatch.setattr(
        Loop, "run", lambda self: (seen.append(self.bench.federation), run(self))[1]
    )
    played(settings("fedavg", rounds=1), tmp_path / "run", transport=transport)
    assert seen == [None]


def test_a_roster_of_ten_thousand_clients_costs_the_server_less_than_20_mb(tmp_path: Path) -> None:
    ids = tuple(f"hospital-{k:05d}" for k in range(10_000))
    message = b"".join(
        pack(
            Record(
                replace(
                    roster(ids), fingerprints={client: f"{k:032x}" for k, client in enumerate(ids)}
                ).record()
            )
        )
    )
    wanted = experiment(
        {
            "model": {"name": "mlp", "hidden": [4]},
            "rounds": 2,
            "workers": 0,
            "data": {"name": folder_of(tmp_path / "d", sites())},
        }
    )
    prepare(wanted, TASK, ids)  # what is imported and cached once is no client's
    store = Store.create(tmp_path / "run", "", {})
    gc.collect()
    tracemalloc.start()
    try:
        told = Roster.of(unpack(bytearray(message))).checked()
        bench, method = prepare(wanted, told.task, told.ids)
        reachable: Any = SimpleNamespace(present=lambda: told.ids)
        loop = Loop(wanted, method, bench, told, reachable, store)
        for number in (1, 2):
            assert len(loop._choose(number, 0)) == 10_000
        assert told.fingerprint
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        store.close()
    assert peak < 20e6, peak
