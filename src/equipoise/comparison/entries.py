"""Runs that belong in one table, each with its baseline."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.comparison.labels import labels
from equipoise.comparison.measures import (
    BY_GROUP,
    BY_SAMPLE_GROUP,
    CLIENT_SECONDS,
    DISTANCES,
    NO_MODELS,
    NO_RIVAL,
    NO_TARGET,
    NOT_REACHED,
)
from equipoise.experiment import flat
from equipoise.metrics import speed_up
from equipoise.metrics.registry import Metric
from equipoise.runs import MetricResult, Run, RunResult, read_result
from equipoise.runs.aggregates import NAN, Aggregates
from equipoise.runs.baseline import ALONE, find_baseline, is_baseline_for, runs_in, unmatched
from equipoise.runs.notes import nothing_measured, one_class, unevaluated
from equipoise.runs.result import NO_CURVE
from equipoise.storage.store import DATABASE, RunError
from equipoise.validation.names import closest, quoted
from equipoise.validation.regular_files import check_regular

RESULT = "comparison.json"
FORMAT = 1
Setting = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Entry:
    """One run in a table.

    Attributes:
        label: The name of its method.
        run: The result of the run, with its baseline if that is known.
        setting: The grid point that was chosen for it.
        target: A mean over clients, for the rounds to it; or the run whose best mean it is.
        overrides: Settings of its method that differ from those of the comparison.
        selected: True if its served model was chosen on validation data.
        rival: The run of the baseline method, for the speed-up.
    """

    label: str
    run: RunResult
    setting: Setting = ()
    target: float | RunResult | None = None
    overrides: Setting = ()
    selected: bool = False
    rival: RunResult | None = None

    @property
    def metric(self) -> Metric:
        """The metric of the table."""
        return self.run.main.metric

    @property
    def reference(self) -> Mapping[str, float] | None:
        """Client -> value of training alone; None if it is not known, and for training alone."""
        return self.run.main.baseline

    @cached_property
    def aggregates(self) -> Aggregates:
        """Numbers over clients, cost, rounds to the target and speed-up."""
        scores = self.run.main
        absent = dict.fromkeys((*DISTANCES, *CLIENT_SECONDS), NAN)
        values = {**absent, **scores.aggregates.values, **self.run.cost}
        reasons = dict(scores.aggregates.reasons)
        if self.run.config.get("evaluation", {}).get("distances") and math.isnan(values["d_cos"]):
            reasons |= dict.fromkeys(DISTANCES, NO_MODELS)
        target = self._target_mean()
        if target is None:
            values["rounds_to_target"] = NAN
            is_named = isinstance(self.target, RunResult)
            reasons["rounds_to_target"] = NO_CURVE if is_named else NO_TARGET
        else:
            values["rounds_to_target"] = scores.curve.first_round_at(target, scores.metric)
            if math.isnan(values["rounds_to_target"]):
                reasons["rounds_to_target"] = NOT_REACHED
        values |= self._by_group()
        report = self.run.models[self.run.main_model].groups
        values |= dict.fromkeys(BY_SAMPLE_GROUP, NAN) if report is None else report.aggregates
        values["speed_up"] = self._speed_up(target)
        if math.isnan(values["speed_up"]):
            reasons["speed_up"] = self._no_speed_up()
        return Aggregates(values, reasons)

    def _by_group(self) -> dict[str, float]:
        """Return the measures of each group of clients."""
        scores = self.run.main
        clients: dict[str, list[str]] = {}
        for client in scores.values:
            if client in self.run.groups:
                clients.setdefault(self.run.groups[client], []).append(client)
        measures = {}
        for group, members in clients.items():
            own = scores.only(members, ()).aggregates
            for name in BY_GROUP:
                measures[f"{name}[{group}]"] = own[name]
        return measures

    def _target_mean(self) -> float | None:
        if isinstance(self.target, RunResult):
            return _best_mean(self.target)
        return self.target

    def _speed_up(self, target: float | None) -> float:
        """Return how many times fewer rounds than the baseline it needs to the target.

        Without a target it is the best mean of the baseline.
        """
        if self.rival is None:
            return NAN
        if target is None:
            target = _best_mean(self.rival)
        if target is None:
            return NAN
        own = self.run.main.curve.by_round()
        rival = self.rival.main.curve.by_round()
        factor = speed_up(own, rival, target, self.metric.lower_is_better)
        return NAN if factor is None else factor

    def _no_speed_up(self) -> str:
        if self.rival is None:
            return NO_RIVAL
        return NOT_REACHED if _best_mean(self.rival) is not None else NO_CURVE

    def with_metric(self, metric: str) -> Entry:
        """Return the same run in a table about another of its metrics.

        A target that is a number belongs to the metric that it was named for.
        """
        target: float | RunResult | None = None
        if isinstance(self.target, RunResult):
            target = self.target.with_main_metric(metric)
        elif metric == self.metric.name:
            target = self.target
        rival = self.rival and self.rival.with_main_metric(metric)
        run = self.run.with_main_metric(metric)
        return replace(self, run=run, target=target, rival=rival)

    def gains(self) -> dict[str, float]:
        """Return client -> how much better it is than alone; positive is better."""
        return self.run.main.gains


def _best_mean(run: RunResult) -> float | None:
    """Return the best mean over clients in training; None if no round was measured."""
    best = run.main.curve.training().best(run.main.metric)
    return None if best is None else best[1]


def open_runs(
    paths: Sequence[Path | str], against: Path | str | None = None, details: bool = False
) -> list[Entry]:
    """Read the runs in some folders as entries of one table.

    Args:
        paths: Folders of runs, or the folder of one comparison.
        against: The run of training alone that is the baseline; by default one among the runs, or
            next to them.
        details: Read what only reports show, too.

    Raises:
        RunError: A folder holds no finished run, or runs do not belong in one table.
    """
    if not paths:
        raise RunError(
            "expected the folder of at least one run, got none; `equipoise run` names it at its end"
        )
    folders = list(dict.fromkeys(map(Path, paths)))
    if len(folders) == 1 and (folders[0] / RESULT).exists():
        return open_comparison(folders[0], details)[0]
    if len(folders) == 1 and against is None:
        return [_single_run(folders[0], details)]
    runs = read_runs(folders, details, finished=len(folders) > 1)
    check_same_data(runs)
    standalone = [run for run in runs if run.is_standalone]
    if against is not None:
        standalone = [_read_baseline(Path(against), details, runs[0].main_metric)]
    names = labels([run.config for run in runs])
    entries = []
    for label, run in zip(names, runs, strict=True):
        baseline = _choose_baseline(run, standalone, against is not None, details)
        entries.append(Entry(label, run.against(baseline)))
    check_distinct(entries)
    return aligned(entries)


def _single_run(folder: Path, details: bool) -> Entry:
    run = open_run(folder)
    try:
        return entry_of(run, details)
    finally:
        run.store.close()


def entry_of(run: Run, details: bool = False) -> Entry:
    """Read an open run and the baseline next to it as the only entry of a table.

    Args:
        run: An open run, which may be in progress.
        details: Read what only reports show, too.

    Raises:
        RunError: Nothing is measured yet, or there is no value on test data.
    """
    with run.one_moment():
        _check_status(run, finished=False)
        result = read_result(run, details=details)
    _check_measured(result)
    baseline = _baseline_next_to(run, result.main_metric, details)
    (label,) = labels([result.config])
    (entry,) = aligned([Entry(label, result.against(baseline))])
    return entry


def _baseline_next_to(run: Run, metric: str, details: bool) -> RunResult | None:
    """Read the baseline in the folder of a run; None if there is none that measured the metric."""
    candidate = find_baseline(run)
    if candidate is None:
        return None
    try:
        baseline = read_result(candidate, details=details, main_metric=metric)
    finally:
        candidate.store.close()
    return baseline if baseline.main.values else None


def _read_baseline(folder: Path, details: bool, metric: str) -> RunResult:
    baseline = read_folder(folder, details, main_metric=metric)
    if not baseline.is_standalone:
        raise RunError(
            f"{folder} is not a run of {ALONE}; gains are counted against what clients reach alone"
        )
    return baseline


def open_comparison(folder: Path, details: bool = False) -> tuple[list[Entry], dict[str, Any]]:
    """Read a comparison on disk.

    Returns:
        Its entries, and the content of its file.

    Raises:
        RunError: The file is damaged or of a newer version, or no run of it finished.
    """
    saved = _load(folder)
    try:
        rows = [_SavedEntry.of(row) for row in saved["entries"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damaged(folder) from None
    if not rows:
        raise RunError(
            f"{folder} holds no finished run: every run of the comparison failed; {RESULT} says why"
        )
    entries = []
    for row, run in zip(rows, _read_saved(folder, rows, details), strict=True):
        entry = Entry(row.method, run, row.setting, overrides=row.overrides, selected=row.selected)
        entries.append(entry)
    return aligned(entries), saved


def _read_saved(folder: Path, rows: Sequence[_SavedEntry], details: bool) -> list[RunResult]:
    """Return the result of every saved entry with its baseline; each is read once."""
    metric = None
    read: dict[tuple[str, str | None], RunResult] = {}
    for row in rows:
        for name, model in ((row.run, row.model), (row.alone, None)):
            if name and (name, model) not in read:
                result = read_folder(folder / name, details, True, metric, model)
                metric = metric or result.main_metric
                read[name, model] = result
    results = []
    for row in rows:
        result = replace(read[row.run, row.model], varied=row.sweep)
        baseline = read.get((row.alone, None))
        if baseline is not None:
            result = result.against(replace(baseline, varied=row.sweep))
        results.append(result)
    check_same_data(list(_with_baselines(results).values()))
    return results


def _load(folder: Path) -> dict[str, Any]:
    check_regular(folder / RESULT)
    try:
        saved: dict[str, Any] = json.loads((folder / RESULT).read_text())
        number = saved["format"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise damaged(folder) from None
    if type(number) is not int:
        raise damaged(folder)
    if number > FORMAT:
        raise RunError(
            f"{folder} was written by a newer version (format {quoted(number, 20)}, this one reads "
            f"up to {FORMAT}); upgrade equipoise to open it"
        )
    return saved


@dataclass(frozen=True)
class _SavedEntry:
    """An entry as a comparison saves it."""

    method: str
    run: str
    alone: str  # empty without a baseline
    setting: Setting
    overrides: Setting
    model: str | None  # the main one
    selected: bool
    sweep: Mapping[str, Any]

    @classmethod
    def of(cls, row: Any) -> _SavedEntry:
        return cls(
            method=str(row["method"]),
            run=str(row["run"]),
            alone=str(row["alone"] or ""),
            setting=tuple(row["setting"].items()),
            overrides=tuple(row.get("overrides", {}).items()),
            model=row.get("model"),
            selected=bool(row.get("selected", False)),
            sweep=dict(row.get("sweep", {})),
        )


def damaged(folder: Path) -> RunError:
    """Return the error about a comparison whose file cannot be read."""
    return RunError(
        f"{folder / RESULT} cannot be read: it is damaged; run the comparison again, what is "
        "finished stays"
    )


def aligned(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with the metrics and clients that all of them have.

    Averages over different clients could not be compared: F1, say, may exist for a client under
    one method and not under another. Clients are matched within one partition and seed, since
    others have other clients.

    Raises:
        RunError: A run did not measure the metric of the first one.
    """
    runs = _with_baselines(entry.run for entry in entries)
    first = next(iter(runs.values()))
    metrics = _common_metrics(first, list(runs.values()))
    restricted: dict[_Served, RunResult] = {}
    for condition in {run.condition for run in runs.values()}:
        group = [run for run in runs.values() if run.condition == condition]
        by_metric = {name: _common_clients(name, group) for name in metrics}
        for run in group:
            own = {name: by_metric[name][_served(run)] for name in metrics}
            restricted[_served(run)] = run.with_metrics(own, first.main_metric)
    result = []
    for entry in entries:
        run = restricted[_served(entry.run)]
        if entry.run.baseline is not None:
            run = run.against(restricted[_served(entry.run.baseline)])
        result.append(replace(entry, run=run))
    return result


_Served = tuple[Path, str, str]  # the folder of a run, a served model and a condition


def _served(run: RunResult) -> _Served:
    return run.folder, run.main_model, run.condition[0]


def _with_baselines(results: Iterable[RunResult]) -> dict[_Served, RunResult]:
    """Return the results of runs and their baselines, each once."""
    by_model = {}
    for result in results:
        by_model[_served(result)] = result
        if result.baseline is not None:
            by_model.setdefault(_served(result.baseline), result.baseline)
    return by_model


def _common_metrics(first: RunResult, runs: Sequence[RunResult]) -> list[str]:
    for run in runs:
        if first.main_metric not in run.metrics:
            raise RunError(
                f"{run.folder} did not measure {first.main_metric}, the main metric of "
                f"{first.folder}; it has {', '.join(run.metrics)}: run it again with "
                f"evaluation.main={first.main_metric}"
            )
    return [name for name in first.metrics if all(name in run.metrics for run in runs)]


def _common_clients(metric: str, runs: Sequence[RunResult]) -> dict[_Served, MetricResult]:
    """Return the results of a metric for the clients that have a value in all runs."""
    scores = [run.metrics[metric] for run in runs]
    common = list(scores[0].values)
    measured: dict[str, None] = {}  # a set that has an order
    unmeasured: set[str] = set()
    for run, result in zip(runs, scores, strict=True):
        common = [client for client in common if client in result.values]
        measured |= dict.fromkeys((*result.undefined, *result.values))
        unmeasured |= set(run.unevaluated)
    excluded = unmeasured.union(common)
    undefined = [client for client in measured if client not in excluded]
    restricted = {}
    for run, result in zip(runs, scores, strict=True):
        restricted[_served(run)] = result.only(common, undefined)
    return restricted


def read_runs(
    folders: Sequence[Path], details: bool = False, finished: bool = True
) -> list[RunResult]:
    """Read the results of runs, all about the main metric of the first one."""
    results: list[RunResult] = []
    for folder in folders:
        metric = results[0].main_metric if results else None
        results.append(read_folder(folder, details, finished, metric))
    return results


def read_folder(
    folder: Path,
    details: bool = False,
    finished: bool = True,
    main_metric: str | None = None,
    model: str | None = None,
) -> RunResult:
    """Read the result of a run for a table.

    Args:
        folder: The folder of the run.
        details: Read what only reports show, too.
        finished: Refuse a run that is not finished.
        main_metric: The metric of the table; by default that of the run.
        model: The served model of the table; by default the main one.

    Raises:
        RunError: There is no run, it is not finished, or it has no value on test data.
    """
    run = open_run(folder)
    try:
        _check_status(run, finished)
        result = read_result(run, details=details, main_metric=main_metric, main_model=model)
    finally:
        run.store.close()
    _check_measured(result)
    return result


def _check_status(run: Run, finished: bool) -> None:
    status = run.status
    if status == "finished" or (not finished and run.is_measured):
        return
    progress = f"round {run.last_round} of {run.config['rounds']}"
    if status == "running":
        raise RunError(f"{run.folder} is still in progress ({progress}); wait for it to end")
    raise RunError(
        f"{run.folder} was stopped after {progress}; complete it with {run.store.resume_command()}"
    )


def _check_measured(result: RunResult) -> None:
    """Refuse a run without a value on test data.

    A run that measured other metrics only is refused later, with the names of those it has.
    """
    scores = result.main
    if scores.values or (result.metrics and result.main_metric not in result.metrics):
        return
    if scores.undefined:
        raise RunError(f"{result.folder} has no result: {one_class(scores)}")
    if len(result.unevaluated) == len(result.clients):
        raise RunError(f"{result.folder} has no result: {unevaluated(result)}")
    raise RunError(f"{result.folder} has no result: {nothing_measured(result)}")


def open_run(folder: Path) -> Run:
    """Open a run.

    Raises:
        RunError: There is no run in the folder; the message says what is there instead.
    """
    if not folder.exists():
        raise RunError(f"no folder {folder}; {_similar_folder(folder)}")
    if folder.is_dir() and not (folder / DATABASE).exists():
        inside = [path.name for path in runs_in(folder)]
        if inside:
            raise RunError(
                f"{folder} is not a run but holds {len(inside)}: {', '.join(inside[:5])}; name "
                f"those you want, such as {folder / inside[0]}"
            )
        if not any(folder.iterdir()):
            raise RunError(
                f"{folder} is empty: there is no run in it; start one with "
                f"`equipoise run --out {folder}`"
            )
    return Run(folder)


def _similar_folder(folder: Path) -> str:
    names = []
    if folder.parent.is_dir():
        names = [path.name for path in folder.parent.iterdir()]
    near = closest(folder.name, names, 0.6)
    if near:
        return f"did you mean {folder.parent / near}?"
    return "`equipoise run` names the folder of a run at its end"


def check_same_data(runs: Sequence[RunResult]) -> None:
    """Refuse runs whose numbers do not belong in one table.

    Raises:
        RunError: Data, task or fingerprints differ.
    """
    first = runs[0]
    by_condition: dict[tuple[str, int], RunResult] = {}
    for run in runs:
        difference = _difference(first, run)
        if difference:
            raise RunError(
                f"{first.folder} and {run.folder} cannot be compared: {difference}; compare runs "
                "of the same data"
            )
        twin = by_condition.setdefault(run.condition, run)
        _check_age(twin, run)
        if twin.fingerprint != run.fingerprint:
            raise RunError(
                f"{twin.folder} and {run.folder} cannot be compared: same settings, other data; "
                "the data changed in between, so run the older one again"
            )


def _difference(first: RunResult, second: RunResult) -> str:
    """Return how the data of two runs differ; empty if they do not."""
    settings = flat({"data": first.config["data"]})
    others = flat({"data": second.config["data"]})
    for key, value in settings.items():
        may_differ = key == "data.partition" or key in first.varied
        if not may_differ and value != others.get(key):
            return f"{key} is {value!r} in one and {others.get(key)!r} in the other"
    if (first.data, first.task) != (second.data, second.task):
        return "their data sets differ"
    return ""


def _check_age(first: RunResult, second: RunResult) -> None:
    if first.old_fingerprint != second.old_fingerprint:
        raise unmatched((first if first.old_fingerprint else second).folder)


def check_distinct(entries: Sequence[Entry]) -> None:
    """Refuse two runs of the same experiment.

    Raises:
        RunError: Two entries have the same label, partition and seed.
    """
    seen: dict[tuple[str, tuple[str, int]], Entry] = {}
    for entry in entries:
        twin = seen.setdefault((entry.label, entry.run.condition), entry)
        if twin is not entry:
            raise RunError(
                f"{twin.run.folder} and {entry.run.folder} are the same experiment; name one of "
                "them"
            )


def _choose_baseline(
    run: RunResult, standalone: Sequence[RunResult], required: bool, details: bool
) -> RunResult | None:
    """Return the run of training alone with the same data and schedule; None if there is none.

    Args:
        run: The run that needs a baseline.
        standalone: Runs of training alone to choose from.
        required: Refuse to do without one.
        details: Read what only reports show, too, of a run that is not among them.
    """
    for candidate in standalone:
        matches = is_baseline_for(
            candidate.config, candidate.fingerprint, run.config, run.fingerprint
        )
        if matches:
            measured = run.main_metric in candidate.metrics
            return candidate if measured or required else None
    if required:
        _check_age(run, standalone[0])
        raise RunError(
            f"{run.folder} cannot be compared with {standalone[0].folder}: their data, seed, "
            f"rounds, training or model differ; run {ALONE} with the settings of the run"
        )
    opened = Run(run.folder)
    try:
        return _baseline_next_to(opened, run.main_metric, details)
    finally:
        opened.store.close()
