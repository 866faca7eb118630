"""The checks that every method must pass.

Each check is a function of one `Case` and raises with the reason if the method fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.client import Client
from equipoise.composition import parts
from equipoise.data import Federation, Parts, federate, from_sites
from equipoise.experiment import Experiment
from equipoise.method import Method
from equipoise.records import PerClient, read, write
from equipoise.runs import Run
from equipoise.simulate import Connect
from equipoise.storage.checkpoint import load_server
from equipoise.testing.reachability import Rows, probing, reachable
from equipoise.testing.small import (
    CLASSES,
    GROUP,
    Broken,
    Sites,
    assert_same,
    dataset_of,
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
    """A method on one kind of network.

    Attributes:
        method: The method.
        network: A name of `settings`, "mlp" or "cnn".
        folder: A folder for runs.
        tolerance: How far another order of clients may move a number.
        learnt: The results of the undisturbed runs by number of rounds. Cases of one method and
            network may share it, so that several checks compare with one run.
    """

    method: Method
    network: str
    folder: Path
    tolerance: float = 2e-4
    learnt: dict[int, dict[str, Any]] = field(default_factory=dict)

    def run(
        self, name: str = "run", data: Sites | None = None, transport: Any = None, **changes: Any
    ) -> Run:
        """Return a finished run of the method.

        Args:
            name: The name of its folder.
            data: The samples of each client; those of `sites` by default.
            transport: The transport; in process by default.
            **changes: Settings of the experiment that differ from `settings`.
        """
        config = self.with_groups(settings(self.method, self.network, **changes))
        return played(config, self.folder / name, data, transport)

    def with_groups(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of an experiment with groups, if the method compares some."""
        base, guests = parts(self.method)
        if not any(part.compares_groups for part in (base, *guests.values())):
            return config
        return {**config, "data": {**config["data"], "groups": [GROUP]}}

    def reference(self, rounds: int = 3) -> dict[str, Any]:
        """Return everything that an undisturbed run learns, see `everything`."""
        if rounds not in self.learnt:
            self.learnt[rounds] = everything(self.run(f"reference {rounds}", rounds=rounds))
        return self.learnt[rounds]


def state_round_trips(case: Case) -> None:
    """The server's state is finite, and the same after it is written to a file and read again."""
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
    """Messages arrive as they were sent when they are packed as for another process."""
    packed = case.run("packed", transport="loopback")
    assert_same(case.reference(), everything(packed))


def one_client(case: Case) -> None:
    """A federation of one client can be trained."""
    _all_counted(case.run(data=sites({"ada": 20}), rounds=2))


def one_class(case: Case) -> None:
    """A client with samples of only one class takes part."""
    _all_counted(case.run(data=sites(labels={"bo": [1]}), rounds=2))


def one_sample(case: Case) -> None:
    """A client with a single sample takes part."""
    _all_counted(case.run(data=sites({"ada": 24, "bo": 1, "cy": 18}), rounds=2))


def _all_counted(run: Run) -> None:
    """Fail if a result is not finite or a reply was rejected."""
    finite(run)
    if run.rejected():
        raise Broken(run.rejected()[0]["reason"])


def missing_reply(case: Case) -> None:
    """A round continues without a client that does not reply."""
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
    """A client whose reply is not finite has no more effect than one that did not reply."""
    ends = {}
    for kind in ("nan", "drop"):
        run = case.run(kind, faults={"script": [{"round": 2, "client": "cy", "kind": kind}]})
        rejected = [(row["round"], row["client"]) for row in run.rejected()]
        if rejected != [(2, "cy")]:
            raise Broken(
                f"expected that the reply of cy in round 2 alone did not count, got {rejected}"
            )
        ends[kind] = everything(run)
    assert_same(ends["nan"], ends["drop"])


def order_of_clients(case: Case) -> None:
    """The order in which clients are listed changes results by rounding only.

    Sums over another order round differently, and training multiplies that a little.
    """

    def reversed_clients(federation: Federation) -> Federation:
        return replace(
            federation,
            ids=federation.ids[::-1],
            train=_reversed(federation.train),
            validation=_reversed(federation.validation),
            test=_reversed(federation.test),
        )

    first = case.reference(rounds=2)
    second = everything(case.run("reversed", rounds=2, transport=_changed(reversed_clients)))
    assert_same(dict(sorted(first.items())), dict(sorted(second.items())), case.tolerance)


def _reversed(parts: Parts) -> Parts:
    return Parts.of(list(parts)[::-1])


def unseen_test_data(case: Case) -> None:
    """Corrupted test samples change no trained number."""

    def corrupted(federation: Federation) -> Federation:
        positions = torch.from_numpy(federation.test.index.copy())
        if not len(positions):
            raise Broken("the small federation of this check has no test data")
        federation.x[positions] = 1e6
        federation.y[positions] = CLASSES - 1 - federation.y[positions]
        return federation

    dirty = case.run("dirty", transport=_changed(corrupted))
    assert_same(case.reference(), everything(dirty))


def no_foreign_data(case: Case) -> None:
    """No argument of a slot leads to a sample of another client or to a test sample.

    Private attributes are followed, too. No sample reaches the server, except the validation data
    of methods that declare to need them.
    """
    config = case.with_groups(settings(case.method, case.network, rounds=2))
    dataset = dataset_of(sites())
    experiment = Experiment(**config, dataset=dataset)
    federation = federate(experiment.data, experiment.seed, dataset)
    foreign = _foreign_samples(federation, "validation" in case.method.needs)
    inspected: set[str | None] = set()

    def inspect_arguments(arguments: Mapping[str, Any]) -> None:
        clients = [value.id for value in arguments.values() if isinstance(value, Client)]
        reader = clients[0] if clients else None
        for path, array in reachable(arguments):
            if foreign[reader].are_in(array):
                name = "the server" if reader is None else f"client {reader!r}"
                raise Broken(f"{name} reaches a sample that is not its own through {path}")
        inspected.add(reader)

    method = probing(case.method, inspect_arguments)
    probed = Experiment(**{**config, "method": method}, dataset=dataset)
    without_notes(probed, case.folder / "run")
    if inspected != {None, *federation.ids}:
        raise Broken(
            f"only {inspected} were inspected: no slot was called with the server or a client"
        )


def _foreign_samples(federation: Federation, server_validates: bool) -> dict[str | None, Rows]:
    """Return the samples that each client, and None for the server, must not reach."""
    rows = federation.x.flatten(1).numpy()
    own: dict[str | None, set[int]] = {None: set()}
    if server_validates:
        own[None] = set(federation.server_validation.tolist())
    for k, client in enumerate(federation.ids):
        own[client] = {*federation.train[k].tolist(), *federation.validation[k].tolist()}
    everyone = set(range(len(rows)))
    return {reader: Rows(rows[sorted(everyone - allowed)]) for reader, allowed in own.items()}


def _changed(change: Callable[[Federation], Federation]) -> Connect:
    """Return an in-process transport on a changed federation."""
    return lambda federation, experiment: InProcess(change(federation), experiment)


def repeats(case: Case) -> None:
    """The same experiment gives the same bits again."""
    assert_same(case.reference(rounds=2), everything(case.run("again", rounds=2)))


def shared_test_set(case: Case) -> None:
    """Recorded accuracies on a common test set are those of each client's served models."""
    data = {"split": (0.6, 0.15, 0.25), "partition": "natural", "test": "global"}
    experiment = Experiment(
        **settings(case.method, case.network, rounds=2, data=data),
        dataset=from_sites(dict(sites())),
    )
    run = without_notes(experiment, case.folder / "run")
    federation = federate(experiment.data, experiment.seed, experiment.dataset)
    positions = torch.from_numpy(np.array(federation.shared_test, dtype=np.int64))
    x = federation.x[positions]
    y = federation.y[positions]
    if run.main_model not in run.models():
        raise Broken(
            f"the main model of the method, {run.main_model!r}, is not among those served: "
            f"{', '.join(run.models())}"
        )
    for name in run.models():
        recorded = _shared_accuracies(run, name)
        for client in run.clients:
            with torch.no_grad():
                correct = run.model(name, client=client, experiment=experiment)(x).argmax(1) == y
            value = recorded.get(client, recorded.get("all"))
            direct = float(correct.double().mean())
            if value is None or abs(value - direct) > 1e-9:
                raise Broken(
                    f"{name} of {client}: {value} was recorded, and the model that is served has "
                    f"{direct}"
                )


def _shared_accuracies(run: Run, model: str) -> dict[str, float]:
    """Return the final accuracies on the common test set by client, or one for "all"."""
    rows = run.table(phase="final", split="shared", metric="accuracy", model=model)
    recorded = {row["client"]: row["value"] for row in rows}
    if set(recorded) not in ({"all"}, set(run.clients)):
        raise Broken(
            f"{model}: expected one accuracy for all or one per client, got {sorted(recorded)}"
        )
    return recorded


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        state_round_trips,
        payload_travels,
        one_client,
        one_class,
        one_sample,
        missing_reply,
        nan_reply,
        order_of_clients,
        unseen_test_data,
        no_foreign_data,
        repeats,
        shared_test_set,
    )
}
