"""The result of a run: every number that is shown of it, read at one moment.

`show`, `compare`, `report`, `watch` and the notebooks read this model, and nothing else computes
averages or gains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from equipoise.data.roster import SHARED
from equipoise.metrics import participation, weights_received
from equipoise.metrics.gains import Gain
from equipoise.metrics.registry import Metric, find, is_known
from equipoise.metrics.score_histograms import Counts
from equipoise.runs import aggregates, clinical
from equipoise.runs.aggregates import NAN, Aggregates
from equipoise.runs.baseline import ALONE, check_comparable, has_old_fingerprint
from equipoise.runs.clinical import ByClient
from equipoise.runs.curves import (
    Curve,
    EndPoint,
    History,
    end_point,
    read_curve,
    read_history,
    read_validation_curve,
    read_weights,
)
from equipoise.runs.digests import result_digest
from equipoise.runs.groups import ALL, CellKey, GroupReport, group_report
from equipoise.runs.run import Run
from equipoise.storage.files import resume_command
from equipoise.storage.store import RunError
from equipoise.task import Task
from equipoise.validation.names import nearest

Value = TypeVar("Value")
NO_CURVE = "no round is the best: none was measured, or not the same clients in all rounds and runs"


@dataclass(frozen=True)
class MetricResult:
    """One metric of one served model, client by client.

    Attributes:
        metric: The metric.
        values: Client -> value at the end; NaN if its model has diverged. A shared model that was
            measured once, on a test set for all, is what every client has.
        undefined: Clients that were measured, but for whose samples the metric does not exist.
        curve: The mean over clients by round.
        baseline: Client -> value of training alone; None if that is not known.
        test_sizes: Client -> number of test samples.
        majority: Client -> accuracy of always predicting the most frequent class; for accuracy.
        resolution: How far values may be from the exact ones, if they come from histograms.
        once: True if clients sent the metric at the end only, with their histograms of scores.
        after_local: Client -> value of its model right after local training in the last round,
            where all clients share one model and one test set. Collaborative fairness is then
            computed from it, since equal values have no correlation.
    """

    metric: Metric
    values: Mapping[str, float]
    undefined: Sequence[str] = ()
    curve: Curve = field(default_factory=Curve)
    baseline: Mapping[str, float] | None = None
    test_sizes: Mapping[str, int] = field(default_factory=dict)
    majority: Mapping[str, float] = field(default_factory=dict)
    resolution: float = 0.0
    once: bool = False
    after_local: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def gains(self) -> dict[str, float]:
        """Client -> how much better it is than alone; positive is better for every metric."""
        return aggregates.gains(self.values, self.baseline or {}, self.metric)

    @cached_property
    def gain_tests(self) -> dict[str, Gain]:
        """Client -> gain with its exact test and interval; empty for metrics without a test."""
        return aggregates.gain_tests(self.values, self.baseline or {}, self.metric, self.test_sizes)

    @cached_property
    def aggregates(self) -> Aggregates:
        """Numbers over clients, such as average, worst, std, change, harmed and best_round."""
        measures = aggregates.aggregate(self.values, self.baseline, self.metric)
        best = self.curve.best(self.metric)
        values = dict(measures.values)
        values["best_round"] = NAN if best is None else float(best[0])
        values["best_average"] = NAN if best is None else float(best[1])
        if self.after_local:
            own = aggregates.aggregate(self.after_local, self.baseline, self.metric)
            values["cf"] = own["cf"]
        if self.metric.name == "accuracy":
            shares = [self.majority[client] for client in self.values if client in self.majority]
            values["majority"] = sum(shares) / len(shares) if shares else NAN
        reasons = {}
        for name, reason in measures.reasons.items():
            if math.isnan(values[name]):
                reasons[name] = reason
        if best is None:
            reasons |= dict.fromkeys(("best_round", "best_average"), NO_CURVE)
        return Aggregates(values, reasons)

    def only(self, clients: Sequence[str], undefined: Sequence[str]) -> MetricResult:
        """Return the result of some clients.

        The learning curve stays only if all clients with a value do, since it is a mean over them.

        Args:
            clients: The clients whose values stay.
            undefined: The clients that are then named as having no value.
        """
        values = {client: self.values[client] for client in clients}
        curve = self.curve if len(values) == len(self.values) else Curve()
        return replace(self, values=values, undefined=undefined, curve=curve)


@dataclass(frozen=True)
class ModelResult:
    """One served model.

    Attributes:
        name: Its name, such as "global", "personal" or "teacher".
        metrics: Name -> result of the metric.
        clinical: Client -> measure -> value with its interval; of runs whose classes are unequal.
        groups: Results by site and group of samples; None unless `data.groups` is set.
    """

    name: str
    metrics: Mapping[str, MetricResult]
    clinical: ByClient = field(default_factory=dict)
    groups: GroupReport | None = None


@dataclass(frozen=True)
class RunDetails:
    """Numbers of a run that take memory and time to read; a report shows them.

    Attributes:
        history: The main metric of the main model by client and round.
        weights: The share of the aggregate by client and round.
        mean_weights: Client -> mean share; empty for a method that weighs nobody.
        rounds_counted: Client -> rounds in which its reply counted.
        rejected: Client -> rejected replies.
        histograms: Served model -> client -> histogram of scores.
        clinical: Served model -> client -> measure -> value, also where classes are equal.
        life_tables: Served model -> client -> life table of two risk groups, in survival analysis.
        validation: The mean of the main metric on validation data by round, if it was measured.
    """

    history: History
    weights: History
    mean_weights: Mapping[str, float]
    rounds_counted: Mapping[str, int]
    rejected: Mapping[str, int]
    histograms: Mapping[str, Mapping[str, Counts]]
    clinical: Mapping[str, ByClient]
    life_tables: Mapping[str, Mapping[str, Counts]] = field(default_factory=dict)
    validation: Curve = field(default_factory=Curve)


@dataclass(frozen=True)
class RunResult:
    """The result of a run at one moment.

    Attributes:
        folder: The folder of the run.
        config: Its resolved configuration.
        data: The name of its data.
        task: The task.
        fingerprint: A digest of data and partition.
        main_model: The served model that clients end up using.
        main_metric: The metric that results are about.
        models: Name -> result of each served model, the main one among them.
        main_split: "test" for each client's own test data, "shared" for one test set for all.
        status: "finished", "running" or "stopped".
        last_round: The last committed round of training.
        clients: The clients in the order of the run.
        sizes: Part of the data ("train", "validation", "test") -> samples by client.
        held_out_rounds: The last round up to which clients did not train on validation data; None
            if they never did.
        groups: Client -> domain of its data, if the partition assigned domains.
        facts: Facts about the data, such as notes.
        cost: Training steps, megabytes and seconds; distances between models if measured.
        rejected: Replies that did not count.
        unevaluated: The clients that were away or failed in the last evaluation.
        created: Time of creation.
        version: The version that wrote the run.
        environment: Versions of packages and the kind of processor.
        outdated: Why this version would compute other numbers; None if it would not.
        old_fingerprint: True if an older version wrote the fingerprint.
        baseline: The result of training alone on the same data; None if it is not known.
        details: Details for reports; None unless they were requested.
        varied: Setting -> value, of the setting that a sweep over several runs varies.
        contributions: Name (such as "reputation") -> client -> the last value that the method
            logged of the client's contribution.
        digest: A digest of all that a finished run learnt and measured at the end.
        data_at_sites: True if the data are at sites, which are reached over a network.
    """

    folder: Path
    config: Mapping[str, Any]
    data: str
    task: Task
    fingerprint: str
    main_model: str
    main_metric: str
    models: Mapping[str, ModelResult]
    main_split: str = "test"
    status: str = "finished"
    last_round: int = 0
    clients: Sequence[str] = ()
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    held_out_rounds: int | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    rejected: int = 0
    unevaluated: Sequence[str] = ()
    created: str = ""
    version: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    outdated: str | None = None
    old_fingerprint: bool = False
    baseline: RunResult | None = None
    details: RunDetails | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)
    contributions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    digest: str = ""
    data_at_sites: bool = False

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return resume_command(self.folder, self.data_at_sites)

    @property
    def is_standalone(self) -> bool:
        """True if the clients train alone."""
        return bool(self.config["method"]["name"] == ALONE)

    @property
    def partition(self) -> str:
        """The partition by its name; "auto" is replaced by what it stood for."""
        partition = str(self.config["data"]["partition"])
        if partition != "auto":
            return partition
        # Clients of a partition are numbered, sites have names.
        numbers = [str(number) for number in range(len(self.clients))]
        return "iid" if list(self.clients) == numbers else "natural"

    @property
    def condition(self) -> tuple[str, int]:
        """Partition (with the value of a sweep) and seed; runs of one condition are comparable."""
        partition = condition_name(self.partition, self.varied.items())
        return partition, int(self.config["seed"])

    @property
    def main(self) -> MetricResult:
        """The main metric of the main model."""
        return self.metric()

    @property
    def metrics(self) -> Mapping[str, MetricResult]:
        """Name -> result of each metric of the main model."""
        return self.models[self.main_model].metrics

    def metric(self, name: str | None = None, model: str | None = None) -> MetricResult:
        """Return the result of a metric.

        Args:
            name: The metric; by default the main one.
            model: The served model; by default the main one.

        Raises:
            ValueError: There is no such model.
            RunError: The metric was not measured.
        """
        if model is not None and model not in self.models:
            raise nearest("served model", model, list(self.models))
        metrics = self.models[model or self.main_model].metrics
        name = name or self.main_metric
        if name not in metrics and name == self.main_metric:
            return MetricResult(find(name, self.task), {})  # not measured yet
        if name not in metrics:
            known = ", ".join(metrics) or "nothing yet"
            raise RunError(f"{self.folder} did not measure {name!r}; it has {known}")
        return metrics[name]

    def training_sizes(self) -> dict[str, int]:
        """Return client -> number of training samples."""
        return dict(zip(self.clients, self.sizes["train"], strict=True))

    def with_main_metric(self, name: str) -> RunResult:
        """Return the result with another main metric, its baseline included."""
        baseline = self.baseline and self.baseline.with_main_metric(name)
        return replace(self, main_metric=name, baseline=baseline)

    def against(self, baseline: RunResult | None) -> RunResult:
        """Return the result with gains over a baseline.

        Training alone has no gain over itself.
        """
        if baseline is None or self.is_standalone:
            return self
        models = {}
        for name, model in self.models.items():
            metrics = {}
            for metric, result in model.metrics.items():
                reference = baseline.metrics.get(metric)
                values = None if reference is None else reference.values
                metrics[metric] = replace(result, baseline=values)
            models[name] = replace(model, metrics=metrics)
        return replace(self, models=models, baseline=baseline)

    def without_baseline(self) -> RunResult:
        """Return the result without gains."""
        models = {}
        for name, model in self.models.items():
            metrics = {}
            for metric, result in model.metrics.items():
                metrics[metric] = replace(result, baseline=None)
            models[name] = replace(model, metrics=metrics)
        return replace(self, models=models, baseline=None)

    def with_metrics(self, metrics: Mapping[str, MetricResult], main_metric: str) -> RunResult:
        """Return the result with other metrics of the main model."""
        main = replace(self.models[self.main_model], metrics=metrics)
        details = self.details
        if details is not None and main_metric in metrics:
            history = details.history.without(metrics[main_metric].undefined)
            details = replace(details, history=history)
        models = {**self.models, self.main_model: main}
        return replace(self, models=models, main_metric=main_metric, details=details)


def read_result(
    run: Run,
    baseline: Run | RunResult | None = None,
    details: bool = False,
    main_metric: str | None = None,
    main_model: str | None = None,
) -> RunResult:
    """Read the result of a run.

    All numbers are of one moment, also while the run is in progress.

    Args:
        run: An open run.
        baseline: The run of training alone that gains are counted against, open or read.
        details: Read what only reports show, too.
        main_metric: The metric that the result is about; by default that of the run.
        main_model: The served model that the result is about; by default the main one.

    Raises:
        RunError: The run is damaged, or the baseline has other data.

    Example:
        >>> import equipoise as eq
        >>> from equipoise.runs import read_result
        >>> result = read_result(eq.Run("runs/demo"))  # doctest: +SKIP
        >>> result.main.aggregates["average"]  # doctest: +SKIP
        0.853
    """
    main_metric = main_metric or run.main_metric
    if isinstance(baseline, Run):
        check_comparable(run, baseline)
        if baseline.config["method"]["name"] != ALONE:
            raise RunError(
                f"{baseline.folder} is not a run of {ALONE}; gains are counted against what "
                "clients reach alone"
            )
        baseline = read_result(baseline, details=details, main_metric=main_metric)
    with run.one_moment():
        return _Reader(run, main_metric, main_model).result(details).against(baseline)


def read_main(run: Run) -> MetricResult:
    """Read values and curve of the main metric of the main model, and nothing else.

    That is much faster than the whole result, for the overview of a folder with many runs.

    Args:
        run: An open run.

    Raises:
        RunError: The run is damaged.
    """
    with run.one_moment():
        return _Reader(run, run.main_metric).main()


def condition_name(partition: str, varied: Iterable[tuple[str, Any]] = ()) -> str:
    """Return the name of a partition and of the settings that a sweep varies.

    >>> condition_name("iid", [("data.clients", 10)])
    'iid, clients=10'
    """
    settings = [f"{key.rpartition('.')[2]}={value}" for key, value in varied]
    return ", ".join([partition, *settings])


def for_each_client(run: Run, values: dict[str, Value]) -> dict[str, Value]:
    """Return client -> value; what was measured once, on a test set for all, is what each has."""
    if list(values) == [SHARED]:
        return dict.fromkeys(run.clients, values[SHARED])
    return values


class _Reader:
    """Reads the tables of an open run, each once."""

    def __init__(self, run: Run, main_metric: str, main_model: str | None = None) -> None:
        self.run = run
        self.main_metric = main_metric
        self.main_model = main_model or run.main_model

    @cached_property
    def test_sizes(self) -> dict[str, int]:
        """Client -> number of test samples."""
        return self.run.test_sizes

    @cached_property
    def majority(self) -> dict[str, float]:
        """Client -> accuracy of always predicting the most frequent class of its test data."""
        return for_each_client(self.run, self.run.majority())

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The records of the rounds of training."""
        return self.run.rounds()

    @cached_property
    def finish(self) -> list[dict[str, Any]]:
        """The records after the last round."""
        return self.run.finish()

    @cached_property
    def end(self) -> EndPoint | None:
        """The last point of a curve, if a record follows the last round."""
        return end_point(self.run, self.finish)

    def result(self, details: bool) -> RunResult:
        run = self.run
        # The status first: a run that ends meanwhile then still counts as running.
        status = run.status
        measured = self._measured()
        names = list(dict.fromkeys((*(model for model, _ in measured), self.main_model)))
        histograms = {name: run.counts(name) for name in names}
        models = {}
        for name in names:
            models[name] = self._model(name, measured, histograms[name])
        facts = _with_restarts(run.store.meta("facts") or {}, run.store.restarted())
        return RunResult(
            folder=run.folder,
            config=run.config,
            data=run.data,
            task=run.task,
            fingerprint=run.store.meta("fingerprint"),
            main_model=self.main_model,
            main_metric=self.main_metric,
            models=models,
            main_split=run.main_split,
            status=status,
            last_round=run.last_round,
            clients=run.clients,
            sizes=run.store.meta("sizes"),
            held_out_rounds=run.held_out_rounds,
            groups=_groups(run.clients, facts),
            facts=facts,
            cost=self._cost() | self._distances(),
            rejected=len(self._rejected()),
            unevaluated=self.unevaluated,
            created=run.created,
            version=run.store.meta("version"),
            environment=run.store.meta("environment"),
            outdated=run.outdated,
            old_fingerprint=has_old_fingerprint(run),
            details=self._details(models, histograms) if details else None,
            contributions=self._contributions(),
            digest=result_digest(run) if status == "finished" else "",
            data_at_sites=run.store.data_at_sites,
        )

    def _rejected(self) -> list[str]:
        """Return the client of every reply in training that did not count."""
        rows = self.run.store.rows("select client from rejected where exchange > 0")
        return [row["client"] for row in rows]

    @cached_property
    def unevaluated(self) -> list[str]:
        """The clients without values of the last evaluation.

        A record after the last round evaluates those again that were missing before.
        """
        last = self.run.columns("max(round)", phase="received")[0][0] or 0
        if self.finish:
            last = max(last, self.finish[-1]["round"])
        rows = self.run.store.rows(
            "select distinct client from rejected where exchange = 0 and round >= ?", (last,)
        )
        missing = {row["client"] for row in rows}
        return [client for client in self.run.clients if client in missing]

    def _contributions(self) -> dict[str, dict[str, float]]:
        """Return name -> client -> the last value; clients are in the order of the run."""
        rows = self.run.columns("metric", "client", "value", phase="contribution")
        latest: dict[str, dict[str, float]] = {}
        for name, client, value in rows:
            latest.setdefault(name, {})[client] = NAN if value is None else value
        ordered = {}
        for name, values in latest.items():
            ordered[name] = {
                client: values[client] for client in self.run.clients if client in values
            }
        return ordered

    def _measured(self) -> list[tuple[str, str]]:
        """Return served model and metric of all that was measured, the main metric first."""
        rows = self.run.store.rows(
            "select distinct model, metric from measurements where phase = 'received'"
        )
        known = [(row["model"], row["metric"]) for row in rows if is_known(row["metric"])]
        return sorted(known, key=lambda pair: pair[1] != self.main_metric)

    def _model(
        self, name: str, measured: Sequence[tuple[str, str]], histograms: Mapping[str, Counts]
    ) -> ModelResult:
        metrics = {}
        own = [metric for model, metric in measured if model == name]
        for metric in own:
            metrics[metric] = self.metric(metric, name)
        groups = self._groups(name)
        if not clinical.unequal(histograms):
            return ModelResult(name, metrics, groups=groups)
        values = self._clinical(name, own, histograms)
        if name == self.main_model:
            main = metrics.get(self.main_metric)
            values_of_main = {} if main is None else main.values
            metrics |= self._sent_once(values, own, histograms, values_of_main)
        return ModelResult(name, metrics, values, groups)

    def _groups(self, model: str) -> GroupReport | None:
        """Return the results of a model by site and group."""
        tables = {}
        for (client, column, group), table in self.run.group_counts(model).items():
            site = ALL if client == SHARED else client
            tables[CellKey(site, column, group)] = table
        evaluation = self.run.config["evaluation"]
        threshold = evaluation.get("threshold", 50)
        return group_report(
            tables, self.run.clients, threshold, evaluation.get("group_minimum", 10)
        )

    def main(self) -> MetricResult:
        """Return values and curve of the main metric of the main model."""
        final = self.run.final(self.main_metric, self.main_model)
        return MetricResult(
            metric=find(self.main_metric, self.run.task),
            values=for_each_client(self.run, final),
            curve=read_curve(self.run, self.main_metric, self.main_model, final, self.end),
        )

    def metric(self, name: str, model: str) -> MetricResult:
        """Return one metric of one served model."""
        final = self.run.final(name, model)
        return MetricResult(
            metric=find(name, self.run.task),
            values=for_each_client(self.run, final),
            undefined=self._undefined(model, final),
            curve=read_curve(self.run, name, model, final, self.end),
            test_sizes=self.test_sizes,
            majority=self.majority,
            after_local=self._after_local(name) if SHARED in final else {},
        )

    def _after_local(self, metric: str) -> dict[str, float]:
        """Return client -> value right after local training on the shared test set."""
        selection = {"phase": "after_local", "split": "shared", "metric": metric}
        last = self.run.columns("max(round)", **selection)[0][0]
        if last is None:
            return {}
        rows = self.run.columns("client", "value", round=last, **selection)
        values = {client: NAN if value is None else value for client, value in rows}
        # The last cohort alone says nothing about all clients.
        return values if len(values) == len(self.run.clients) else {}

    def _undefined(self, model: str, values: Mapping[str, float]) -> list[str]:
        """Return the clients of the last measurement for whose samples a metric has no value."""
        run = self.run
        split = run.main_split
        evaluation = run.config["evaluation"]
        if SHARED in values or (split != "shared" and split not in evaluation["splits"]):
            return []
        last = run.columns("max(round)", phase="received", model=model)[0][0]
        if last is None:
            return []
        evaluated: Collection[str] = set(run.clients)
        if evaluation["clients"] == "cohort":
            records = self.finish or [row for row in self.rounds if row["round"] == last]
            evaluated = {client for record in records for client in record["joined"]}
        sizes = run.store.meta("sizes").get(split, [1] * len(run.clients))
        missing = []
        for client, size in zip(run.clients, sizes, strict=True):
            was_evaluated = client in evaluated and client not in self.unevaluated
            if size and was_evaluated and client not in values:
                missing.append(client)
        return missing

    def _clinical(
        self, model: str, measured: Collection[str], histograms: Mapping[str, Counts]
    ) -> ByClient:
        exact = clinical.read_exact(self.run, model, measured)
        return clinical.clinical_values(histograms, exact)

    def _sent_once(
        self,
        values: ByClient,
        measured: Collection[str],
        histograms: Mapping[str, Counts],
        main: Mapping[str, float],
    ) -> dict[str, MetricResult]:
        """Return the clinical measures that the run did not measure in every round.

        Args:
            values: Client -> clinical measures.
            measured: The metrics that the run measured in every round.
            histograms: Client -> histogram of scores.
            main: Client -> value of the main metric, NaN for a model that diverged.
        """
        # Others sent no histogram: the measure may exist there, but nobody knows it.
        clients = for_each_client(self.run, dict(histograms))
        diverged = {client: NAN for client, value in main.items() if math.isnan(value)}
        results = {}
        for name in clinical.TITLES:
            if name in measured:
                continue
            own = {client: measures[name] for client, measures in values.items()}
            known = {
                client: value.value for client, value in own.items() if not math.isnan(value.value)
            }
            resolution = max((own[client].resolution for client in known), default=0.0)
            by_client = {**for_each_client(self.run, known), **diverged}
            results[name] = MetricResult(
                metric=find(name, self.run.task),
                values=by_client,
                undefined=[client for client in clients if client not in by_client],
                test_sizes=self.test_sizes,
                resolution=resolution,
                once=True,
            )
        return results

    def _cost(self) -> dict[str, float]:
        """Return optimiser steps of all clients, megabytes sent both ways, and seconds.

        Seconds are those of training, transport and aggregation.

        Seconds per client are the mean and the standard deviation over clients and rounds; NaN in
        runs of versions that did not record them.
        """
        steps = 0
        moved = 0
        seconds = 0.0
        own = [row["seconds"] for row in self.run.client_seconds()]
        for record in (*self.rounds, *self.finish):
            steps += record["steps"]
            moved += record["bytes_down"] + record["bytes_up"]
            for phase in ("clients", "transport", "aggregation"):
                seconds += record["seconds"].get(phase, 0.0)
        return {
            "steps": float(steps),
            "megabytes": moved / 1e6,
            "seconds": seconds,
            "seconds_per_client": float(np.mean(own)) if own else NAN,
            "seconds_per_client_std": float(np.std(own)) if own else NAN,
        }

    def _distances(self) -> dict[str, float]:
        """Return how far clients' models are from the new global model after the last round.

        They are means over clients of angle and Manhattan distance: of parameters (D_Cosine and
        D_Manhattan of CoRe-Fed) and of mean features. NaN if they were not measured.
        """
        names = {
            ("parameters", "angle"): "d_cos",
            ("parameters", "manhattan"): "d_man",
            ("embedding", "angle"): "embedding_angle",
            ("embedding", "manhattan"): "embedding_manhattan",
        }
        distances = dict.fromkeys(names.values(), NAN)
        if not self.run.config["evaluation"].get("distances"):
            return distances
        rows = self.run.store.rows(
            "select split, metric, avg(value) as value, count(*) - count(value) as diverged "
            "from measurements "
            "where phase = 'after_local' and split in ('parameters', 'embedding') and round = "
            "(select max(round) from measurements "
            "where phase = 'after_local' and split = 'parameters') group by split, metric"
        )
        for row in rows:
            # A mean over the other clients would look better than it is.
            value = NAN if row["diverged"] else row["value"]
            distances[names[row["split"], row["metric"]]] = value
        return distances

    def _details(
        self,
        models: Mapping[str, ModelResult],
        histograms: Mapping[str, Mapping[str, Counts]],
    ) -> RunDetails:
        run = self.run
        final = run.final(self.main_metric, self.main_model)
        history = read_history(run, self.main_metric, self.main_model, final, self.end)
        undefined = self._undefined(self.main_model, final)
        values = {}
        for name, model in models.items():
            values[name] = model.clinical or self._clinical(name, model.metrics, histograms[name])
        return RunDetails(
            history=history.without(undefined),
            weights=read_weights(run),
            mean_weights=self._mean_weights(),
            rounds_counted=participation([row["joined"] for row in self.rounds], run.clients),
            rejected=Counter(self._rejected()),
            histograms=histograms,
            clinical=values,
            life_tables={name: run.life_tables(name) for name in models},
            validation=read_validation_curve(run, self.main_metric, self.main_model),
        )

    def _mean_weights(self) -> dict[str, float]:
        by_round: dict[int, dict[str, float]] = {}
        for row in self.run.weights():
            by_round.setdefault(row["round"], {})[row["client"]] = row["share"]
        if not by_round:
            return {}
        weighted = [shares for shares in by_round.values() if sum(shares.values()) > 0]
        return weights_received(weighted, self.run.clients)


def _with_restarts(
    facts: Mapping[str, Any], restarted: Sequence[tuple[str, int]]
) -> Mapping[str, Any]:
    """Return facts with a note on each client that began afresh."""
    notes = list(facts.get("notes", []))
    for client, number in restarted:
        notes.append(f"client {client!r} lost its state, which was reset in round {number}")
    return {**facts, "notes": notes} if restarted else facts


def _groups(clients: Sequence[str], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return client -> domain, if the partition assigned domains."""
    domains = facts.get("domains")
    if not isinstance(domains, list) or len(domains) != len(clients):
        return {}
    return dict(zip(clients, map(str, domains), strict=True))
