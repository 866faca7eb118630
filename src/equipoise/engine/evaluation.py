"""What is measured in a run: what the server asks for, and what it makes of the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
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
from equipoise.metrics import Metric, parameter_distances, registry
from equipoise.records import Down, State, Up
from equipoise.runtime import client_histograms
from equipoise.runtime.client_evaluation import clinical_values, score
from equipoise.runtime.evaluation_messages import (
    EvaluateModels,
    EvaluationRequest,
    FeatureDistance,
    ModelsEvaluated,
    PredictShared,
    SendModel,
    ServedModel,
)
from equipoise.server import Server
from equipoise.storage.files import RunError

# samples of the shared test set per request: fixed, a multiple of the evaluation batch
SHARED_CHUNK = 1024
Row = tuple[str, str, str, str, float]  # client, model, split, metric, value


def check_main(settings: Evaluation, federation: Federation) -> None:
    """Refuse a main metric that would not exist for any client: to be asked of all data, not of one site's."""
    main = registry.main_of(
        registry.measured(federation.task, settings.metrics, settings.main), settings.main
    )
    if registry.find(main, federation.task).needs != "two classes":
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
    metrics: Mapping[str, Metric]
    settings: Evaluation
    # who is asked what -> client, up, rows
    ask: Callable[
        [Sequence[tuple[str, EvaluationRequest]]], list[tuple[str, Up, list[dict[str, Any]]]]
    ]
    # networks that are taken within it come back at its end
    lending: Callable[[], AbstractContextManager[None]]
    shared: int  # samples of the shared test set that client runtimes hold
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
            self.ending = record.finish or (last and not finishes)
            rows, record.main = self.clients(state, self._evaluated(cohort, finishes))
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
            record.curves = [row for table in self.counts for row in client_histograms.rows(*table)]
        record.seconds["evaluation"] = time.perf_counter() - began

    def _evaluated(self, cohort: RoundCohort, finishes: bool) -> Sequence[str]:
        """Return the clients to evaluate after a round."""
        stopped_early = cohort.record.finish and not finishes
        if self.settings.clients == "cohort":
            return self.server.joined[-1] if stopped_early else cohort.joined
        if cohort.record.finish and not stopped_early:
            # Clients that came late are evaluated, and no other client again.
            return cohort.record.cohort
        return self.server.ids

    def clients(self, state: State, clients: Sequence[str]) -> tuple[list[Row], str]:
        """Every served model of these clients; and the name of the one that the method is for."""
        downs = {client: self._delivered(state, client) for client in clients}
        rows, known = self._theirs(downs)
        common = [name for name, one in known.items() if one.common]
        if self.own is not None:
            rows += self._common(downs, common)
        return rows, next((name for name, one in known.items() if one.main), "")

    def _delivered(self, state: State, client: str) -> Down:
        with self.lending():
            return self.method.deliver(self.server, state, client)

    def _theirs(self, downs: Mapping[str, Down]) -> tuple[list[Row], dict[str, ServedModel]]:
        """Each client's models on its own data and, those that are its own, on the shared test set; and what the clients said they serve."""
        splits, same = (
            [*self.settings.splits, *(["shared"] if self.shared else [])],
            alike(downs.values()),
        )
        rows: list[Row] = []
        known: dict[str, ServedModel] = {}
        waiting = list(downs)
        # Without parts of their own to measure, one client tells whether anything is left for the others.
        while waiting and (
            self.settings.splits or not known or not all(one.common for one in known.values())
        ):
            asked, waiting = (
                (waiting, []) if self.settings.splits or known else (waiting[:1], waiting[1:])
            )
            orders = [
                (client, self._order(client, downs[client], splits, same)) for client in asked
            ]
            for client, up, measured in self.ask(orders):
                answer = _read(client, up)
                self._take(client, answer)
                for name, one in answer.served.items():
                    before = known.setdefault(name, one)
                    known[name] = replace(before, common=before.common and one.common)
                rows += [
                    (client, row["model"], row["split"], row["metric"], row["value"])
                    for row in measured
                ]
        return rows, known

    def _order(self, client: str, down: Down, splits: list[str], same: bool) -> EvaluateModels:
        metrics, curves = list(self.metrics), self._counts_of(client)
        return EvaluateModels(down, splits, metrics, same, self.ending, curves)

    def _counts_of(self, client: str) -> bool:
        return self.ending and self.settings.curves and client not in self.settings.no_curves

    def _take(self, client: str, answer: ModelsEvaluated) -> None:
        """Keep what an answer to the last evaluation says beside the values; it may come from a stranger."""
        if answer.majority is not None:
            self.majority.append((client, "test", answer.majority))
        for model, table in answer.curves.items():
            wrong = client_histograms.fault(table, self.server.task)
            if wrong is not None or not self._counts_of(client):
                raise RunError(
                    f"client {client!r} sent counts of scores: {wrong or 'nobody asked'}; install the same version on both sides"
                )
            self.counts.append((client, model, self._tested, table))
        self._take_clinical(client, answer)

    @property
    def _tested(self) -> str:
        return "shared" if self.shared else "test"

    def _take_clinical(self, client: str, answer: ModelsEvaluated) -> None:
        """Take the clinical measures of the models whose histograms came with them."""
        for model, values in answer.clinical.items():
            wrong = client_histograms.values_fault(values)
            if model not in answer.curves:
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
                    PredictShared(
                        downs[someone], name, start, min(start + SHARED_CHUNK, self.shared)
                    )
                    for start in starts
                ]
                answers = self.ask([(someone, one) for one in slices])
                logits = torch.cat([up.logits for _, up, _ in answers])
            else:
                ((_, up, _),) = self.ask([(someone, SendModel(downs[someone], name))])
                with self.lending():
                    logits = self.server.predict(self.server.load(up.model), self.own)
            found = score(self.server.task, logits, self.own.y, self.metrics.values())
            rows += [(SHARED, name, "shared", metric, value) for metric, value in found.items()]
            if self._counts_of(SHARED):
                counts = client_histograms.of(self.server.task, logits, self.own.y, name)
                self.counts += [(SHARED, model, "shared", table) for model, table in counts.items()]
                if counts:
                    exact = clinical_values(self.server.task, logits, self.own.y, self.metrics)
                    self.clinical += [
                        (SHARED, name, "shared", metric, value) for metric, value in exact.items()
                    ]
        if self.ending and self.server.task.classifies and len(self.own.y):
            self.majority.append((SHARED, "shared", client_histograms.majority(self.own.y)))
        return rows

    def distances(self, ups: Ups, state: State) -> list[tuple[str, str, str, float]]:
        """How far each client's model is from the new global one, in parameters and in mean features: client, space, measure, value."""
        orders = [
            (client, FeatureDistance(self._delivered(state, client), up.model, state.model))
            for client, up in zip(ups.ids, ups, strict=True)
        ]
        answers = self.ask(orders)
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


def _read(client: str, up: Up) -> ModelsEvaluated:
    try:
        return ModelsEvaluated.of(up)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunError(
            f"client {client!r} answered an evaluation in a form that is not understood ({type(error).__name__}: {error}); "
            "install the same version on both sides"
        ) from None


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
