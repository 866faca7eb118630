"""All measuring: what a client does when it is asked, and what the server asks. Test data are touched here and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.data import Federation
from equipoise.data.roster import SHARED
from equipoise.data.samples import Samples
from equipoise.experiment import Evaluation
from equipoise.method import Method, Served, Ups
from equipoise.metrics import parameter_distances, registry
from equipoise.models import Model
from equipoise.records import Down, Record, State, Up
from equipoise.server import Server
from equipoise.task import Task

SHARED_CHUNK = 1024  # samples of the shared test set per request: fixed, a multiple of the evaluation batch
Row = tuple[str, str, str, str, float]  # client, model, split, metric, value


def score(task: Task, outputs: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, float]:
    """The value of each metric over some samples; nothing for a metric that does not exist for them, such as AUROC of one class.

    NaN is the value of a model that has diverged: it must not vanish from an average.
    """
    if not len(y):
        return {}
    values, truth = outputs.double().numpy(), y.double().numpy()
    own = (values, truth) if task.classifies else (values * task.scale + task.centre, truth * task.scale + task.centre)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what does not exist has no row, and whoever prints results names the clients
        # Errors are told in the target's own unit; the loss is what training minimises.
        found = {name: registry.find(name, task).function(*((values, truth) if name == "loss" else own)) for name in metrics}
    diverged = not np.isfinite(values).all()
    return {name: value for name, value in found.items() if diverged or not np.isnan(value)}


def check_main(settings: Evaluation, federation: Federation) -> None:
    """Refuse a main metric that would not exist for any client: to be asked of all data, not of one site's."""
    main = registry.main_of(registry.measured(federation.task, settings.metrics, settings.main), settings.main)
    if registry.find(main).needs != "two classes":
        return
    parts = [federation.shared_test] if len(federation.shared_test) else list(federation.test)
    y = federation.y.numpy()
    if any(len(part) for part in parts) and all(len(np.unique(y[part])) < 2 for part in parts):
        raise ValueError(
            f"evaluation.main: {main} needs samples of two classes, and no client's test data have them; choose accuracy, or another partition"
        )


# At a client.


def served(method: Method, client: Client, down: Down) -> dict[str, Served]:
    """What a client serves, by name; exactly one model is the main one. A model that sees inputs changed for this client is its own."""
    client.inputs = method.inputs(client, down)
    given = {name: one if isinstance(one, Served) else Served(one) for name, one in method.serves(client, down).items()}
    main = next((name for name, one in given.items() if one.main), next(iter(given), None))
    return {name: Served(one.model, one.same_for_all and client.inputs is None, name == main) for name, one in given.items()}


def _samples(client: Client, split: str) -> Samples:
    """A part of a client's data, or the shared test set: not to be had through a client, so that no method trains on it."""
    federation = client.bench.federation
    assert federation is not None
    return Samples.of(
        federation, federation.shared_test if split == "shared" else getattr(federation, split)[client.bench.position[client.id]]
    )


def measure(client: Client, models: Mapping[str, Model], splits: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Rows (model, split, metric, value) of a client's models on its own data."""
    rows = []
    for split in splits:
        samples = _samples(client, split)
        y = samples.y
        for name, model in models.items():
            for metric, value in score(client.task, client.predict(model, samples), y, metrics).items():
                rows.append({"model": name, "split": split, "metric": metric, "value": value})
    return rows


def _measured(method: Method, client: Client, asked: Record) -> tuple[Up, list[dict[str, Any]]]:
    """The client's models on its own data, and on the shared test set those that are its own; the reply says which are the same for all."""
    models = served(method, client, asked["down"])
    common = {name for name, one in models.items() if one.same_for_all and asked["alike"]}
    rows = []
    for split in asked["splits"]:
        wanted = {name: one.model for name, one in models.items() if split != "shared" or name not in common}
        rows += measure(client, wanted, [split], asked["metrics"])
    return Up(served={name: {"common": name in common, "main": one.main} for name, one in models.items()}), rows


def _outputs(method: Method, client: Client, asked: Record) -> tuple[Up, list[dict[str, Any]]]:
    """Logits of a model that is the same for all, on a slice of the shared test set."""
    model = served(method, client, asked["down"])[asked["model"]].model
    chosen = torch.arange(asked["start"], asked["stop"])
    return Up(logits=client.predict(model, _samples(client, "shared").some(chosen))), []


def _handed(method: Method, client: Client, asked: Record) -> tuple[Up, list[dict[str, Any]]]:
    """A model that is the same for all, for a server that holds the shared test set itself."""
    return Up(model=served(method, client, asked["down"])[asked["model"]].model), []


def _distance(method: Method, client: Client, asked: Record) -> tuple[Up, list[dict[str, Any]]]:
    """Angle and Manhattan distance between the mean features of the client's data under its own and under the new global model."""
    if not len(client.train):
        return Up(), []
    client.inputs = method.inputs(client, asked["down"])
    local, new = (client.features(client.load(asked[name])).flatten(1).double().mean(0).numpy() for name in ("local", "new"))
    return Up(parameter_distances(local, new)), []


def _present(method: Method, client: Client, asked: Record) -> tuple[Up, list[dict[str, Any]]]:
    """Nothing but its state, which was read before."""
    return Up(), []


# Steps of the engine's own, beside a method's.
MEASURE, OUTPUTS, HANDED, DISTANCE, PRESENT = "@measure", "@outputs", "@handed", "@distance", "@present"
STEPS: dict[str, Callable[[Method, Client, Record], tuple[Up, list[dict[str, Any]]]]] = {
    MEASURE: _measured, OUTPUTS: _outputs, HANDED: _handed, DISTANCE: _distance, PRESENT: _present,
}  # fmt: skip


# At the server.


@dataclass
class Measuring:
    """One measurement: after a round, with the clients' states as that round left them."""

    method: Method
    server: Server
    metrics: Sequence[str]
    splits: Sequence[str]
    ask: Callable[
        [str, Sequence[tuple[str, Record]]], list[tuple[str, Up, list[dict[str, Any]]]]
    ]  # step, who is sent what -> client, up, rows
    shared: int  # samples of the shared test set that performing sides hold
    own: Samples | None  # the shared test set, where the server has its labels

    def clients(self, state: State, clients: Sequence[str]) -> tuple[list[Row], str]:
        """Every served model of these clients; and the name of the one that the method is for."""
        downs = {client: self._delivered(state, client) for client in clients}
        rows, known = self._theirs(downs)
        common = [name for name, scope in known.items() if scope["common"]]
        if self.own is not None:
            rows += self._common(downs, common)
        return rows, next((name for name, scope in known.items() if scope["main"]), "")

    def _delivered(self, state: State, client: str) -> Down:
        with self.server.bench.lending():
            return self.method.deliver(self.server, state, client)

    def _theirs(self, downs: Mapping[str, Down]) -> tuple[list[Row], dict[str, dict[str, bool]]]:
        """Each client's models on its own data and, those that are its own, on the shared test set; and what the clients said they serve."""
        splits, same = [*self.splits, *(["shared"] if self.shared else [])], alike(downs.values())
        rows: list[Row] = []
        known: dict[str, dict[str, bool]] = {}
        waiting = list(downs)
        # Without parts of their own to measure, one client tells whether anything is left for the others.
        while waiting and (self.splits or not known or not all(scope["common"] for scope in known.values())):
            asked, waiting = (waiting, []) if self.splits or known else (waiting[:1], waiting[1:])
            orders = [(client, Record(down=downs[client], splits=splits, metrics=list(self.metrics), alike=same)) for client in asked]
            for client, up, measured in self.ask(MEASURE, orders):
                for name, scope in up["served"].items():
                    before = known.setdefault(name, dict(scope))
                    before["common"] = before["common"] and scope["common"]
                rows += [(client, row["model"], row["split"], row["metric"], row["value"]) for row in measured]
        return rows, known

    def _common(self, downs: Mapping[str, Down], names: Sequence[str]) -> list[Row]:
        """Models that are the same for all, once, on the one test set for all; its slices go to whoever is free."""
        assert self.own is not None
        someone = next(iter(downs))
        rows: list[Row] = []
        for name in names:
            if self.shared:
                starts = range(0, self.shared, SHARED_CHUNK)
                slices = [
                    Record(down=downs[someone], model=name, start=start, stop=min(start + SHARED_CHUNK, self.shared)) for start in starts
                ]
                logits = torch.cat([up.logits for _, up, _ in self.ask(OUTPUTS, [(someone, one) for one in slices])])
            else:
                ((_, up, _),) = self.ask(HANDED, [(someone, Record(down=downs[someone], model=name))])
                with self.server.bench.lending():
                    logits = self.server.predict(self.server.load(up.model), self.own)
            found = score(self.server.task, logits, self.own.y, self.metrics)
            rows += [(SHARED, name, "shared", metric, value) for metric, value in found.items()]
        return rows

    def distances(self, ups: Ups, state: State) -> list[tuple[str, str, str, float]]:
        """How far each client's model is from the new global one, in parameters and in mean features: client, space, measure, value."""
        orders = [
            (client, Record(down=self._delivered(state, client), local=up.model, new=state.model))
            for client, up in zip(ups.ids, ups, strict=True)
        ]
        answers = self.ask(DISTANCE, orders)
        rows = []
        for up, (client, embedding, _) in zip(ups, answers, strict=True):
            found = {"parameters": parameter_distances(up.model.params, state.model.params), "embedding": dict(embedding)}
            rows += [(client, space, measure, value) for space, values in found.items() for measure, value in values.items()]
        return rows


def alike(downs: Iterable[Down]) -> bool:
    """Whether all clients were delivered the same."""
    several = iter(downs)
    first = next(several, None)
    return first is None or all(_same(first, other) for other in several)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
