"""Evaluation of a run: the server's requests, and the measurements made of the answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.data.roster import SHARED, Roster
from equipoise.data.samples import Samples
from equipoise.engine.cohort import RoundCohort
from equipoise.engine.reply_validation import validate_model
from equipoise.experiment import Evaluation
from equipoise.method import Method
from equipoise.metrics import Metric, parameter_distances, registry
from equipoise.records import Down, State
from equipoise.runtime import client_histograms, group_histograms
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
from equipoise.runtime.messages import Reply
from equipoise.server import Server
from equipoise.storage.store import RoundRecord
from equipoise.tree import Tree
from equipoise.validation.names import is_valid_name

log = logging.getLogger("equipoise")

# samples of the shared test set per request: fixed, a multiple of the evaluation batch
SHARED_CHUNK = 1024
Row = tuple[str, str, str, str, float]  # client, model, split, metric, value
Measurement = tuple[str, str, str, str, str, float]  # client, model, phase, split, metric, value


def check_main(settings: Evaluation, roster: Roster) -> None:
    """Refuse a main metric that does not exist for any client.

    Args:
        settings: The section of the experiment.
        roster: Sizes of the clients, and how many classes occur in their data.

    Raises:
        ValueError: If the metric needs two classes, and no client's test data have them.
    """
    metrics = registry.measured(roster.task, settings.metrics, settings.main)
    main = registry.main_of(metrics, settings.main)
    if registry.find(main, roster.task).needs != "two classes":
        return
    classes = list(roster.classes.get("test", {}).values())
    if roster.shared:
        classes = [roster.shared_classes]
    if any(classes) and max(classes) < 2:
        raise ValueError(
            f"evaluation.main: {main} needs samples of two classes, and no client's test data "
            "have them; choose accuracy, or another partition"
        )


@dataclass
class Evaluator:
    """One evaluation after a round, on the states that the round left.

    Attributes:
        method: The method of the run.
        server: The server.
        metrics: The metrics by name.
        settings: The section of the experiment.
        ask: Sends requests to clients; returns one reply for each.
        lending: A context within which the server may borrow networks.
        shared: The number of samples of the shared test set that client runtimes hold.
        own: The shared test set, if the server has its labels.
        ending: True if this is the last evaluation of the run.
        counts: Histograms of scores as (client, model, split, table).
        clinical: Clinical measures as (client, model, split, metric, value).
        majority: The share of the most frequent class as (client, split, share).
        group_columns: The columns by which samples are grouped.
        group_counts: Histograms by group as (client, model, split, column, group, table).
        failures: The clients that did not evaluate, with the reason. A client that fails in one
            request receives no other, and none of its values count.
    """

    method: Method
    server: Server
    metrics: Mapping[str, Metric]
    settings: Evaluation
    ask: Callable[[Sequence[tuple[str, EvaluationRequest]]], list[Reply]]
    lending: Callable[[], AbstractContextManager[None]]
    shared: int
    own: Samples | None
    ending: bool = False
    counts: list[tuple[str, str, str, Tensor]] = field(default_factory=list)
    clinical: list[Row] = field(default_factory=list)
    majority: list[tuple[str, str, float]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    group_columns: Mapping[str, Any] = field(default_factory=dict)
    group_counts: list[tuple[str, str, str, str, str, Tensor]] = field(default_factory=list)

    def record(
        self,
        state: State,
        cohort: RoundCohort,
        finishes: bool,
        late: Sequence[str] | None = None,
    ) -> None:
        """Evaluate as the settings say, and put the measurements into the cohort's record.

        Args:
            state: The server's state after the round.
            cohort: The cohort of the round.
            finishes: True if the method has exchanges after the last round.
            late: The clients to evaluate, if they missed the last evaluation; None otherwise.
        """
        began = time.perf_counter()
        settings = self.settings
        record = cohort.record
        last = record.round >= self.server.rounds
        self.ending = record.finish or (last and not finishes)
        measurements: list[Measurement] = []
        if settings.is_due(record.round, self.server.rounds):
            if settings.distances and "model" in state and cohort.local_models:
                for client, space, measure, value in self.distances(cohort.local_models, state):
                    measurements.append((client, "local", "after_local", space, measure, value))
            phases = ["final"] if record.finish else ["received"]
            if last and not finishes and not record.finish:
                phases.append("final")
            evaluated = self._evaluated(cohort, finishes) if late is None else late
            rows, record.main = self.clients(state, evaluated)
            measurements += self._measurements(rows, phases)
        record.measurements += [row for row in measurements if row[0] not in self.failures]
        for table in self.counts:
            if table[0] not in self.failures:
                record.curves += client_histograms.rows(*table)
        for client, model, split, column, group, counts in self.group_counts:
            if client not in self.failures:
                key = (client, model, split, column, group)
                record.group_curves += client_histograms.bins_of(key, counts)
        self._record_failures(record)
        record.seconds["evaluation"] = time.perf_counter() - began

    def _record_failures(self, record: RoundRecord) -> None:
        """Name the clients that did not evaluate in the record; an evaluation is exchange 0."""
        for client, reason in self.failures.items():
            record.rejected.append((record.attempt, 0, client, reason))
            log.warning("round %d: client %r was not evaluated: %s", record.round, client, reason)

    def _answers(self, orders: Sequence[tuple[str, EvaluationRequest]]) -> list[Reply]:
        """Return the replies of clients that evaluated; the last evaluation asks them twice."""
        orders = [order for order in orders if order[0] not in self.failures]
        replies = self.ask(orders)
        if self.ending:
            replies = self._ask_again(orders, replies)
        for reply in replies:
            if reply.up is None:
                self.failures.setdefault(reply.client, reply.failure or "no reply")
        return [reply for reply in replies if reply.client not in self.failures]

    def _ask_again(
        self, orders: Sequence[tuple[str, EvaluationRequest]], replies: Sequence[Reply]
    ) -> list[Reply]:
        """Ask the clients once more that did not answer the last evaluation of the run."""
        missing = [position for position, reply in enumerate(replies) if reply.up is None]
        if not missing:
            return list(replies)
        names = sorted({orders[position][0] for position in missing})
        log.warning("waiting once more for the last evaluation of %s", ", ".join(map(repr, names)))
        later = self.ask([orders[position] for position in missing])
        result = list(replies)
        for position, reply in zip(missing, later, strict=True):
            result[position] = reply
        return result

    def _measurements(self, rows: Sequence[Row], phases: Sequence[str]) -> list[Measurement]:
        """Return rows of the store: metrics, majority classes and clinical measures."""
        measurements = []
        for client, model, split, metric, value in rows:
            for phase in phases:
                measurements.append((client, model, phase, split, metric, value))
        for client, split, share in self.majority:
            measurements.append((client, "majority", "reference", split, "accuracy", share))
        for client, model, split, metric, value in self.clinical:
            measurements.append((client, model, "clinical", split, metric, value))
        return measurements

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
        """Evaluate every model that some clients serve.

        Args:
            state: The server's state.
            clients: The clients.

        Returns:
            The rows, and the name of the model that the method is for.
        """
        downs = {client: self._delivered(state, client) for client in clients}
        rows, served = self._evaluate_at_clients(downs)
        if self.own is not None:
            common = [name for name, model in served.items() if model.common]
            rows += self._evaluate_common(downs, common, self.own)
        main = next((name for name, model in served.items() if model.main), "")
        return rows, main

    def _delivered(self, state: State, client: str) -> Down:
        with self.lending():
            return self.method.deliver(self.server, state, client)

    def _evaluate_at_clients(
        self, downs: Mapping[str, Down]
    ) -> tuple[list[Row], dict[str, ServedModel]]:
        """Evaluate each client's models on its own data and on the shared test set.

        Models that are the same for all clients are left out on the shared test set.

        Returns:
            The rows, and the models that clients serve.
        """
        served: dict[str, ServedModel] = {}
        clients = list(downs)
        if self.settings.splits:
            return self._ask_to_evaluate(clients, downs, served), served
        # Only the shared test set is left to evaluate on. The first client says whether others
        # have models of their own for it.
        rows = self._ask_to_evaluate(clients[:1], downs, served)
        if not served or not all(model.common for model in served.values()):
            rows += self._ask_to_evaluate(clients[1:], downs, served)
        return rows, served

    def _ask_to_evaluate(
        self, clients: Sequence[str], downs: Mapping[str, Down], served: dict[str, ServedModel]
    ) -> list[Row]:
        """Ask clients to evaluate their models; add what they serve to `served`."""
        if not clients:
            return []
        splits: list[str] = [*self.settings.splits]
        if self.shared:
            splits.append("shared")
        same = alike(downs.values())
        orders = [(client, self._order(client, downs[client], splits, same)) for client in clients]
        rows: list[Row] = []
        for reply in self._answers(orders):
            client = reply.client
            try:
                answer = _read(reply)
                self._check_rows(reply, answer)
                self._take(client, answer)
            except _InvalidAnswer as error:
                self.failures[client] = str(error)
                continue
            for name, model in answer.served.items():
                before = served.setdefault(name, model)
                served[name] = replace(before, common=before.common and model.common)
            for row in reply.measured:
                rows.append((client, row["model"], row["split"], row["metric"], row["value"]))
        return rows

    def _check_rows(self, reply: Reply, answer: ModelsEvaluated) -> None:
        """Refuse models of another form, and values that were not requested."""
        for name, model in answer.served.items():
            is_plain = type(model.common) is bool and type(model.main) is bool
            if not is_plain or not is_valid_name(name):
                raise _InvalidAnswer("it serves models of another form")
        splits = {*self.settings.splits, "shared"}
        for row in reply.measured:
            known = row["model"] in answer.served and row["metric"] in self.metrics
            if not known or row["split"] not in splits:
                raise _InvalidAnswer("it sent values of models, splits or metrics without request")

    def _order(self, client: str, down: Down, splits: list[str], same: bool) -> EvaluateModels:
        curves = self._sends_histograms(client)
        groups = self.settings.group_minimum if curves and self.group_columns else 0
        return EvaluateModels(down, splits, list(self.metrics), same, self.ending, curves, groups)

    def _sends_histograms(self, client: str) -> bool:
        return self.ending and self.settings.curves and client not in self.settings.no_curves

    def _take(self, client: str, answer: ModelsEvaluated) -> None:
        """Keep the rest of an answer to the last evaluation, which may come from a stranger."""
        if answer.majority is not None:
            self.majority.append((client, "test", answer.majority))
        for model, table in answer.curves.items():
            wrong = client_histograms.fault(table, self.server.task)
            if wrong is not None or not self._sends_histograms(client):
                raise _InvalidAnswer(f"counts of scores: {wrong or 'they were not requested'}")
            self.counts.append((client, model, self._tested, table))
        self._take_clinical(client, answer)
        self._take_groups(client, answer)

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
                raise _InvalidAnswer(f"clinical measures: {wrong}")
            self.clinical += [
                (client, model, self._tested, name, value) for name, value in values.items()
            ]

    def _take_groups(self, client: str, answer: ModelsEvaluated) -> None:
        """Take the histograms of groups, of the models whose whole histograms came with them."""
        groups = answer.groups
        if not groups.cells and not groups.tables:
            return
        fewest = self.settings.group_minimum
        wrong = group_histograms.fault(groups, self.group_columns, self.server.task, fewest)
        if not groups.tables.keys() <= answer.curves.keys():
            wrong = "models without a histogram of all samples"
        if wrong is not None:
            raise _InvalidAnswer(f"counts of groups: {wrong}")
        for model, tables in groups.tables.items():
            self._keep_groups(client, model, groups.cells, tables)

    def _keep_groups(
        self, client: str, model: str, cells: Sequence[Sequence[str]], tables: Tensor
    ) -> None:
        for (column, group), table in zip(cells, tables, strict=True):
            self.group_counts.append((client, model, self._tested, column, group, table))

    def _evaluate_common(
        self, downs: Mapping[str, Down], names: Sequence[str], samples: Samples
    ) -> list[Row]:
        """Evaluate models that are the same for all clients, once, on the shared test set."""
        task = self.server.task
        y = samples.y
        rows: list[Row] = []
        for name in names:
            logits = self._predict_shared(downs, name, samples)
            if logits is None:
                continue
            values = score(task, logits, y, self.metrics.values())
            rows += [(SHARED, name, "shared", metric, value) for metric, value in values.items()]
            if self._sends_histograms(SHARED):
                self._count_shared(name, logits, samples)
        if self.ending and task.classifies and len(y):
            self.majority.append((SHARED, "shared", client_histograms.majority(y)))
        return rows

    def _predict_shared(
        self, downs: Mapping[str, Down], name: str, samples: Samples
    ) -> Tensor | None:
        """Return the outputs of a common model on the shared test set.

        The first client that answers decides, since the model is the same for all. None if no
        client answers.
        """
        for client, down in downs.items():
            if client in self.failures:
                continue
            logits = self._predict_at(client, down, name, samples)
            if logits is not None:
                return logits
        return None

    def _predict_at(self, client: str, down: Down, name: str, samples: Samples) -> Tensor | None:
        """Return the outputs of a client's model on the shared test set; None if it is away.

        Client runtimes that hold the set compute slices of it, whichever of them is free.
        Otherwise a client sends the model, and the server computes.
        """
        if not self.shared:
            return self._predict_here(client, down, name, samples)
        orders: list[tuple[str, EvaluationRequest]] = []
        for start in range(0, self.shared, SHARED_CHUNK):
            stop = min(start + SHARED_CHUNK, self.shared)
            orders.append((client, PredictShared(down, name, start, stop)))
        slices = [reply.up.logits for reply in self._answers(orders) if reply.up is not None]
        return torch.cat(slices) if slices else None

    def _predict_here(self, client: str, down: Down, name: str, samples: Samples) -> Tensor | None:
        """Return the outputs of a model that a client sends; None if it sends none that fits."""
        for reply in self._answers([(client, SendModel(down, name))]):
            wrong = validate_model(reply.up, self.server)
            if wrong is not None:
                self.failures[client] = f"the served model {name}: {wrong}"
                return None
            assert reply.up is not None
            with self.lending():
                return self.server.predict(self.server.load(reply.up.model), samples)
        return None

    def _count_shared(self, name: str, logits: Tensor, samples: Samples) -> None:
        """Keep histograms and clinical measures of a common model on the shared test set."""
        y = samples.y
        tables = client_histograms.of(self.server.task, logits, y, name)
        for model, table in tables.items():
            self.counts.append((SHARED, model, "shared", table))
        if tables and self.server.task.classifies:
            values = clinical_values(self.server.task, logits, y, self.metrics)
            for metric, value in values.items():
                self.clinical.append((SHARED, name, "shared", metric, value))
            cells = group_histograms.sent_cells(samples.groups, self.settings.group_minimum)
            if cells:
                names = [[cell.column, cell.group] for cell in cells]
                by_group = group_histograms.counted(logits, y, cells)
                self._keep_groups(SHARED, name, names, by_group)

    def distances(
        self, models: Mapping[str, Tree], state: State
    ) -> list[tuple[str, str, str, float]]:
        """Return the distance of each client's model from the new global one.

        Args:
            models: Client -> its model after the last step.
            state: The server's state with the global model.

        Returns:
            Rows (client, space, measure, value), for parameters and for mean features.
        """
        orders = [
            (client, FeatureDistance(self._delivered(state, client), model, state.model))
            for client, model in models.items()
        ]
        rows = []
        for reply in self._answers(orders):
            client = reply.client
            parameters = parameter_distances(models[client].params, state.model.params)
            embedding = dict(reply.up or {})
            if not _are_distances(embedding, parameters):
                self.failures[client] = "it sent distances of another form"
                continue
            for measure, value in parameters.items():
                rows.append((client, "parameters", measure, value))
            for measure, value in embedding.items():
                rows.append((client, "embedding", measure, value))
        return rows


def _are_distances(values: Mapping[str, Any], names: Collection[str]) -> bool:
    """Return True for numbers by the names of distances; a client without samples sends none."""
    return all(name in names and isinstance(value, float) for name, value in values.items())


class _InvalidAnswer(ValueError):
    """An answer to an evaluation that no client of this version sends."""


def _read(reply: Reply) -> ModelsEvaluated:
    assert reply.up is not None
    try:
        return ModelsEvaluated.of(reply.up)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _InvalidAnswer(
            "it answered in a form that is not understood "
            f"({type(error).__name__}: {error}); install the same version on both sides"
        ) from None


def alike(downs: Iterable[Down]) -> bool:
    """Return True if all clients receive the same."""
    several = iter(downs)
    first = next(several, None)
    return first is None or all(_same(first, other) for other in several)


def _same(a: Any, b: Any) -> bool:
    """Compare values of records, bit for bit."""
    if a is b:
        return True
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
