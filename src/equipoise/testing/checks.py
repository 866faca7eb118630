"""What every method must keep: each check is a function of one case, and raises with the reason where a method breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.client import Client
from equipoise.data import Federation, Parts, federate, from_sites
from equipoise.experiment import Experiment
from equipoise.method import Method
from equipoise.records import PerClient, read, write
from equipoise.runs import Run
from equipoise.simulate import Connect
from equipoise.storage.checkpoint import load_server
from equipoise.testing.reaching import holds, probing, reachable
from equipoise.testing.small import (
    CLASSES,
    Broken,
    Sites,
    assert_same,
    everything,
    finite,
    flat,
    played,
    settings,
    sites,
    without_notes,
)
from equipoise.transports.inprocess import InProcess


@dataclass(frozen=True)
class Case:
    """A method on one kind of network, a folder for its runs, and how far another order of clients may move a number."""

    method: Method
    network: str
    folder: Path
    tolerance: float = 2e-4

    def run(
        self, name: str = "run", data: Sites | None = None, transport: Any = None, **changes: Any
    ) -> Run:
        return played(
            settings(self.method, self.network, **changes), self.folder / name, data, transport
        )


def state_round_trips(case: Case) -> None:
    """What the server remembers is finite, and is the same when it is written to a file and read again."""
    run = case.run()
    before = load_server(run.store)
    plain = type(before)(
        {key: value for key, value in before.items() if not isinstance(value, PerClient)}
    )
    write(plain, case.folder / "copy.safetensors")
    if plain:
        assert_same(flat(plain), flat(read(case.folder / "copy.safetensors", lazy=False)))
    finite(run)


def payload_travels(case: Case) -> None:
    """Packed and unpacked on its way, as for another process, everything arrives as it was sent."""
    assert_same(
        everything(case.run("direct")), everything(case.run("packed", transport="loopback"))
    )


def one_client(case: Case) -> None:
    """A federation of one client is trained."""
    _all_counted(case.run(data=sites({"ada": 20}), rounds=2))


def one_class(case: Case) -> None:
    """A client whose samples are all of one class takes part."""
    _all_counted(case.run(data=sites(labels={"bo": [1]}), rounds=2))


def one_sample(case: Case) -> None:
    """A client with a single sample takes part."""
    _all_counted(case.run(data=sites({"ada": 24, "bo": 1, "cy": 18}), rounds=2))


def _all_counted(run: Run) -> None:
    """A client whose replies are refused round after round is not served by a method."""
    finite(run)
    if run.rejected():
        raise Broken(run.rejected()[0]["reason"])


def missing_reply(case: Case) -> None:
    """A round goes on without a client that does not answer."""
    script = {
        "script": [
            {"round": 1, "client": "bo", "kind": "drop"},
            {"round": 2, "client": "ada", "kind": "drop"},
        ]
    }
    run = case.run(faults=script)
    finite(run)
    joined = [row["joined"] for row in run.rounds()][:2]
    if joined != [["ada", "cy", "di"], ["bo", "cy", "di"]]:
        raise Broken(
            f"expected that all but the missing client joined in rounds 1 and 2, got {joined}"
        )


def nan_reply(case: Case) -> None:
    """A client whose reply is not finite leaves no more trace than one that never answered."""
    ends = {}
    for kind in ("nan", "drop"):
        run = case.run(kind, faults={"script": [{"round": 2, "client": "cy", "kind": kind}]})
        refused = [(row["round"], row["client"]) for row in run.rejected()]
        if refused != [(2, "cy")]:
            raise Broken(
                f"expected that the reply of cy in round 2 alone did not count, got {refused}"
            )
        ends[kind] = everything(run)
    assert_same(ends["nan"], ends["drop"])


def order_of_clients(case: Case) -> None:
    """The order in which clients are listed changes nothing but last bits: sums over another order round otherwise, and training multiplies that a little."""

    def reversed_clients(federation: Federation) -> Federation:
        train, validation, test = (
            Parts.of(list(part)[::-1])
            for part in (federation.train, federation.validation, federation.test)
        )
        return replace(
            federation, ids=federation.ids[::-1], train=train, validation=validation, test=test
        )

    first = everything(case.run("first", rounds=2))
    second = everything(case.run("second", rounds=2, transport=_changed(reversed_clients)))
    assert_same(dict(sorted(first.items())), dict(sorted(second.items())), case.tolerance)


def unseen_test_data(case: Case) -> None:
    """Corrupting every test sample changes no trained number."""

    def corrupted(federation: Federation) -> Federation:
        places = torch.from_numpy(federation.test.index.copy())
        if not len(places):
            raise Broken("the small federation of this check has no test data")
        federation.x[places] = 1e6
        federation.y[places] = CLASSES - 1 - federation.y[places]
        return federation

    assert_same(
        everything(case.run("clean")), everything(case.run("dirty", transport=_changed(corrupted)))
    )


def no_foreign_data(case: Case) -> None:
    """No attribute of what a slot is given, also no private one, leads to a sample of another client or of a test; no sample reaches the server."""
    config, dataset = settings(case.method, case.network, rounds=2), from_sites(sites())
    wanted = Experiment(**config, dataset=dataset)
    federation = federate(wanted.data, wanted.seed, dataset)
    rows = federation.x.flatten(1).numpy()
    own = {
        client: {*federation.train[k].tolist(), *federation.validation[k].tolist()}
        for k, client in enumerate(federation.ids)
    }
    judged = (
        set(federation.server_validation.tolist()) if "validation" in case.method.needs else set()
    )
    looked: set[str | None] = set()

    def look(given: Mapping[str, Any]) -> None:
        who = next((one.id for one in given.values() if isinstance(one, Client)), None)
        foreign = rows[sorted(set(range(len(rows))) - (judged if who is None else own[who]))]
        for path, found in reachable(given):
            if holds(found, foreign):
                whose = "the server" if who is None else f"client {who!r}"
                raise Broken(f"{whose} reaches a sample that is not its own through {path}")
        looked.add(who)

    experiment = Experiment(**{**config, "method": probing(case.method, look)}, dataset=dataset)
    without_notes(experiment, case.folder / "run")
    if looked != {None, *federation.ids}:
        raise Broken(
            f"only {looked} were looked at: some slot was not called with the server or a client"
        )


def _changed(change: Callable[[Federation], Federation]) -> Connect:
    """In process, on a changed federation."""
    return lambda federation, wanted: InProcess(change(federation), wanted)


def repeats(case: Case) -> None:
    """The same experiment gives the same bits again."""
    assert_same(everything(case.run("first", rounds=2)), everything(case.run("second", rounds=2)))


def shared_test_set(case: Case) -> None:
    """What is recorded on one test set for all, for all or for a client, is what each client's model gives there, evaluated directly."""
    data = {"split": (0.6, 0.15, 0.25), "partition": "natural", "test": "global"}
    wanted = Experiment(
        **settings(case.method, case.network, rounds=2, data=data),
        dataset=from_sites(dict(sites())),
    )
    run = without_notes(wanted, case.folder / "run")
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    places = torch.from_numpy(np.array(federation.shared_test, dtype=np.int64))
    if run.main_model not in run.models():
        raise Broken(
            f"the model that the method is for, {run.main_model!r}, is not among those served: {', '.join(run.models())}"
        )
    for name in run.models():
        rows = {
            row["client"]: row["value"]
            for row in run.table(phase="final", split="shared", metric="accuracy", model=name)
        }
        if set(rows) not in ({"all"}, set(run.clients)):
            raise Broken(
                f"{name}: expected one accuracy for all or one per client, got {sorted(rows)}"
            )
        for client in run.clients:
            with torch.no_grad():
                right = (
                    run.model(name, client=client, given=wanted)(federation.x[places]).argmax(1)
                    == federation.y[places]
                )
            recorded, direct = rows.get(client, rows.get("all")), float(right.double().mean())
            if recorded is None or abs(recorded - direct) > 1e-9:
                raise Broken(
                    f"{name} of {client}: {recorded} was recorded, and the model that is served has {direct}"
                )


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        state_round_trips, payload_travels, one_client, one_class, one_sample, missing_reply, nan_reply, order_of_clients, unseen_test_data, no_foreign_data, repeats, shared_test_set,
    )
}  # fmt: skip
