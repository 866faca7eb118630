"""What is measured in a run: what the server asks for, and what it makes of the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data import Federation
from equipoise.data.roster import SHARED
from equipoise.data.samples import Samples
from equipoise.engine.cohort import RoundCohort
from equipoise.experiment import Evaluation
from equipoise.method import Method, Ups
from equipoise.metrics import parameter_distances, registry
from equipoise.records import Down, Record, State, Up
from equipoise.server import Server
from equipoise.storage.files import RunError
from equipoise.transports import curves
from equipoise.transports.measuring import (
    DISTANCE,
    HANDED,
    MEASURE,
    OUTPUTS,
    clinical_values,
    score,
)

# samples of the shared test set per request: fixed, a multiple of the evaluation batch
SHARED_CHUNK = 1024
Row = tuple[str, str, str, str, float]  # client, model, split, metric, value


def check_main(settings: Evaluation, federation: Federation) -> None:
    """Refuse a main metric that would not exist for any client: to be asked of all data, not of one site's."""
    main = registry.main_of(
        registry.measured(federation.task, settings.metrics, settings.main), settings.main
    )
    if registry.find(main).needs != "two classes":
        return
    parts = [federation.shared_test] if len(federation.shared_test) else list(federation.test)
    y = federation.y.numpy()
    if any(len(part) for part in parts) and all(len(np.unique(y[part])) < 2 for part in parts):
        raise ValueError(
            f"evaluation.main: {main} needs samples of two classes, and no client's test data have them; choose accuracy, or another partition"
        )


@dataclass
class Evaluator:
    """One measurement: after a round, with the clients' states as that round left them."""

    method: Method
    server: Server
    metrics: Sequence[str]
    settings: Evaluation
    # step, who is sent what -> client, up, rows
    ask: Callable[[str, Sequence[tuple[str, Record]]], list[tuple[str, Up, list[dict[str, Any]]]]]
    # networks that are taken within it come back at its end
    lending: Callable[[], AbstractContextManager[None]]
    shared: int  # samples of the shared test set that performing sides hold
    own: Samples | None  # the shared test set, where the server has its labels
    ending: bool = False  # whether this is the last measurement of the run
    # client, model, split, table of counts
    counts: list[tuple[str, str, str, Tensor]] = field(default_factory=list)
    # client, model, split, metric, value: clinical measures beside the metrics
    clinical: list[Row] = field(default_factory=list)
    # client, split, share of the most frequent class
    majority: list[tuple[str, str, float]] = field(default_factory=list)

    def record(self, state: State, cohort: RoundCohort, finishes: bool) -> None:
        """Put into the cohort's record what the settings ask for; the last round is always measured."""
        settings, record, began = self.settings, cohort.record, time.perf_counter()
        last = record.round >= self.server.rounds
        if settings.distances and "model" in state and cohort.uploads is not None:
            record.measurements += [
                (client, "local", "after_local", space, measure, value)
                for client, space, measure, value in self.distances(cohort.uploads, state)
            ]
        if last or (settings.every and record.round % settings.every == 0):
            # who came late is measured, and nobody else again
            everyone = record.cohort if record.finish else self.server.ids
            self.ending = record.finish or (last and not finishes)
            rows, record.main = self.clients(
                state, everyone if settings.clients == "all" else cohort.joined
            )
            phases = (["final"] if record.finish else ["received"]) + (
                ["final"] if last and not finishes else []
            )
            record.measurements += [
                (client, model, phase, split, metric, value)
                for client, model, split, metric, value in rows
                for phase in phases
            ]
            record.measurements += [
                (client, "majority", "reference", split, "accuracy", share)
                for client, split, share in self.majority
            ]
            record.measurements += [
                (client, model, "clinical", split, metric, value)
                for client, model, split, metric, value in self.clinical
            ]
            record.curves = [row for table in self.counts for row in curves.rows(*table)]
        record.seconds["evaluation"] = time.perf_counter() - began

    def clients(self, state: State, clients: Sequence[str]) -> tuple[list[Row], str]:
        """Every served model of these clients; and the name of the one that the method is for."""
        downs = {client: self._delivered(state, client) for client in clients}
        rows, known = self._theirs(downs)
        common = [name for name, scope in known.items() if scope["common"]]
        if self.own is not None:
            rows += self._common(downs, common)
        return rows, next((name for name, scope in known.items() if scope["main"]), "")

    def _delivered(self, state: State, client: str) -> Down:
        with self.lending():
            return self.method.deliver(self.server, state, client)

    def _theirs(self, downs: Mapping[str, Down]) -> tuple[list[Row], dict[str, dict[str, bool]]]:
        """Each client's models on its own data and, those that are its own, on the shared test set; and what the clients said they serve."""
        splits, same = (
            [*self.settings.splits, *(["shared"] if self.shared else [])],
            alike(downs.values()),
        )
        rows: list[Row] = []
        known: dict[str, dict[str, bool]] = {}
        waiting = list(downs)
        # Without parts of their own to measure, one client tells whether anything is left for the others.
        while waiting and (
            self.settings.splits
            or not known
            or not all(scope["common"] for scope in known.values())
        ):
            asked, waiting = (
                (waiting, []) if self.settings.splits or known else (waiting[:1], waiting[1:])
            )
            orders = [
                (client, self._order(client, downs[client], splits, same)) for client in asked
            ]
            for client, up, measured in self.ask(MEASURE, orders):
                self._take(client, up)
                for name, scope in up["served"].items():
                    before = known.setdefault(name, dict(scope))
                    before["common"] = before["common"] and scope["common"]
                rows += [
                    (client, row["model"], row["split"], row["metric"], row["value"])
                    for row in measured
                ]
        return rows, known

    def _order(self, client: str, down: Down, splits: list[str], same: bool) -> Record:
        more = {"ending": True, "curves": self._counts_of(client)} if self.ending else {}
        return Record(down=down, splits=splits, metrics=list(self.metrics), alike=same, **more)

    def _counts_of(self, client: str) -> bool:
        return self.ending and self.settings.curves and client not in self.settings.no_curves

    def _take(self, client: str, up: Up) -> None:
        """What a reply at the last measurement says beside the values; it may come from a stranger."""
        share = up.get("majority")
        if isinstance(share, float) and 0 < share <= 1:
            self.majority.append((client, "test", share))
        for model, table in up.get("curves", {}).items():
            wrong = curves.fault(table, self.server.task)
            if wrong is not None or not self._counts_of(client):
                raise RunError(
                    f"client {client!r} sent counts of scores: {wrong or 'nobody asked'}; install the same version on both sides"
                )
            self.counts.append((client, model, self._tested, table))
        self._take_clinical(client, up)

    @property
    def _tested(self) -> str:
        return "shared" if self.shared else "test"

    def _take_clinical(self, client: str, up: Up) -> None:
        """Take the clinical measures of the models whose histograms came with them."""
        histograms = up.get("curves", {})
        for model, values in up.get("clinical", {}).items():
            wrong = curves.values_fault(values)
            if model not in histograms:
                wrong = f"model {model!r} has no histogram of scores"
            if wrong is not None:
                raise RunError(
                    f"client {client!r} sent clinical measures: {wrong}; install the same version on both sides"
                )
            self.clinical += [
                (client, model, self._tested, name, value) for name, value in values.items()
            ]

    def _common(self, downs: Mapping[str, Down], names: Sequence[str]) -> list[Row]:
        """Models that are the same for all, once, on the one test set for all; its slices go to whoever is free."""
        assert self.own is not None
        someone = next(iter(downs))
        rows: list[Row] = []
        for name in names:
            if self.shared:
                starts = range(0, self.shared, SHARED_CHUNK)
                slices = [
                    Record(
                        down=downs[someone],
                        model=name,
                        start=start,
                        stop=min(start + SHARED_CHUNK, self.shared),
                    )
                    for start in starts
                ]
                logits = torch.cat(
                    [
                        up.logits
                        for _, up, _ in self.ask(OUTPUTS, [(someone, one) for one in slices])
                    ]
                )
            else:
                ((_, up, _),) = self.ask(
                    HANDED, [(someone, Record(down=downs[someone], model=name))]
                )
                with self.lending():
                    logits = self.server.predict(self.server.load(up.model), self.own)
            found = score(self.server.task, logits, self.own.y, self.metrics)
            rows += [(SHARED, name, "shared", metric, value) for metric, value in found.items()]
            if self._counts_of(SHARED):
                counts = curves.of(self.server.task, logits, self.own.y, name)
                self.counts += [(SHARED, model, "shared", table) for model, table in counts.items()]
                if counts:
                    exact = clinical_values(self.server.task, logits, self.own.y, self.metrics)
                    self.clinical += [
                        (SHARED, name, "shared", metric, value) for metric, value in exact.items()
                    ]
        if self.ending and self.server.task.classifies and len(self.own.y):
            self.majority.append((SHARED, "shared", curves.majority(self.own.y)))
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
            found = {
                "parameters": parameter_distances(up.model.params, state.model.params),
                "embedding": dict(embedding),
            }
            rows += [
                (client, space, measure, value)
                for space, values in found.items()
                for measure, value in values.items()
            ]
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
