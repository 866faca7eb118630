"""Finished runs that belong in one table, each with the run of training alone that it is judged against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.comparison.labels import labels
from equipoise.comparison.measures import (
    DISTANCES,
    NAN,
    NO_TARGET,
    cost_of,
    distances_of,
    for_each,
    measure_run,
)
from equipoise.experiment import flat
from equipoise.metrics.gains import Gain, gain_in
from equipoise.metrics.registry import Metric, find
from equipoise.runs import Run
from equipoise.runs.clinical import derived
from equipoise.runs.convergence import Curve, best_of, mean_curve, rounds_to
from equipoise.runs.reference import (
    ALONE,
    is_baseline_for,
    is_old,
    reference_of,
    runs_in,
    unmatched,
)
from equipoise.runs.summary import metrics_of, one_class, undefined
from equipoise.storage.store import DATABASE, RunError
from equipoise.task import Task
from equipoise.validation.names import closest, quoted
from equipoise.validation.regular_files import check_regular

RESULT, FORMAT = "comparison.json", 1


@dataclass(frozen=True)
class RunResult:
    """What a table needs to know of a run, read once: hundreds of runs need not be open at a time."""

    folder: Path
    config: dict[str, Any]
    data: str
    task: Task
    fingerprint: str
    metric: str  # the one that is looked at: the main one unless told
    # metric -> client -> its value for the model that the client ends up using
    by_metric: dict[str, dict[str, float]]
    cost: dict[str, float]
    curves: dict[str, Curve] = field(default_factory=dict)  # metric -> mean over clients by round
    # client -> accuracy of always naming its most frequent class
    majority: dict[str, float] = field(default_factory=dict)
    # clinical measures that clients sent once, at the end -> how far they may be from the exact value
    counted: dict[str, float] = field(default_factory=dict)
    # metric -> clients for whose samples it does not exist
    undefined: dict[str, list[str]] = field(default_factory=dict)
    old: bool = False  # whether the fingerprint is of the kind that older versions wrote
    # client -> number of test samples
    test_sizes: dict[str, int] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        return self.by_metric[self.metric]

    @property
    def is_alone(self) -> bool:
        return bool(self.config["method"]["name"] == ALONE)

    @property
    def condition(self) -> tuple[str, int]:
        """Partition and seed: within them runs are compared."""
        return str(self.config["data"]["partition"]), int(self.config["seed"])


@dataclass(frozen=True)
class Entry:
    """One run in a table, with the run of training alone that it is judged against."""

    label: str
    run: RunResult
    alone: RunResult | None
    setting: tuple[tuple[str, Any], ...] = ()
    target: float | None = None  # of the mean over clients

    @property
    def metric(self) -> Metric:
        return find(self.run.metric)

    @property
    def lower(self) -> bool:
        return self.metric.lower_is_better

    @property
    def reference(self) -> dict[str, float] | None:
        """What each client reaches alone; None for Standalone itself, which has nothing to be compared with."""
        return None if self.alone is None or self.run.is_alone else self.alone.values

    @cached_property
    def measured(self) -> tuple[dict[str, float], dict[str, str]]:
        found, reasons = measure_run(self.run.values, self.reference, self.metric)
        curve = self.run.curves.get(self.run.metric, Curve((), ()))
        found["best_round"] = best_of(curve, self.metric)
        found["rounds_to_target"] = (
            NAN if self.target is None else rounds_to(curve, self.target, self.metric)
        )
        if self.target is None:
            reasons = {**reasons, "rounds_to_target": NO_TARGET}
        if self.run.metric == "accuracy":
            shares = [
                self.run.majority[client]
                for client in self.run.values
                if client in self.run.majority
            ]
            found["majority"] = sum(shares) / len(shares) if shares else NAN
        return dict.fromkeys(DISTANCES, NAN) | found | self.run.cost, reasons

    def seen_by(self, metric: str) -> Entry:
        """The same run looked at through another of its metrics."""
        alone = self.alone and replace(self.alone, metric=metric)
        return replace(self, run=replace(self.run, metric=metric), alone=alone)

    def gains(self) -> dict[str, float]:
        """Client -> how much better than alone, in the unit of the metric; positive is better also for errors."""
        alone = self.reference or {}
        known = {client: value for client, value in self.run.values.items() if client in alone}
        return {
            client: alone[client] - value if self.lower else value - alone[client]
            for client, value in known.items()
        }

    def tested_gains(self) -> dict[str, Gain]:
        """Client -> its gain with an exact test and an interval; empty for metrics without a test."""
        alone, values, sizes = self.reference or {}, self.run.values, self.run.test_sizes
        found = {
            client: gain_in(self.run.metric, alone[client], values[client], sizes.get(client, 0))
            for client in self.gains()
        }
        return {client: gain for client, gain in found.items() if gain is not None}


def open_runs(paths: Sequence[Path | str], against: Path | str | None = None) -> list[Entry]:
    """The runs in these folders as entries of one table; a single folder may also be a comparison.

    Each run is judged against `against`, or a Standalone run among or beside the others.
    """
    if not paths:
        raise RunError(
            "expected the folder of at least one run, got none; `equipoise run` names it at its end"
        )
    folders = list(dict.fromkeys(map(Path, paths)))
    if len(folders) == 1 and (folders[0] / RESULT).exists():
        return open_comparison(folders[0])[0]
    runs = [read_result(folder, whole=len(folders) > 1) for folder in folders]
    check_same_data(runs)
    standalone = [
        run
        for run in ([read_result(Path(against))] if against is not None else runs)
        if run.is_alone
    ]
    if against is not None and not standalone:
        raise RunError(
            f"{against} is not a run of {ALONE}; gains are counted against what clients reach alone"
        )
    names = labels([run.config for run in runs])
    entries = [
        Entry(label, run, _alone_of(run, standalone, against is not None))
        for label, run in zip(names, runs, strict=True)
    ]
    check_distinct(entries)
    return aligned(entries)


def open_comparison(folder: Path) -> tuple[list[Entry], dict[str, Any]]:
    """The entries of a comparison on disk, and all that was saved of it."""
    check_regular(folder / RESULT)
    try:
        saved = json.loads((folder / RESULT).read_text())
        number = saved["format"]
        if type(number) is not int:
            raise ValueError(number)
        rows = [] if number > FORMAT else [_saved(row) for row in saved["entries"]]
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ):  # whatever a damaged file makes of it
        raise damaged(folder) from None
    if number > FORMAT:
        raise RunError(
            f"{folder} was written by a newer version (format {quoted(number, 20)}, this one reads up to {FORMAT}); upgrade equipoise to open it"
        )
    if not rows:
        raise RunError(
            f"{folder} holds no finished run: every run of the comparison failed; {RESULT} says why"
        )
    known = {
        name: read_result(folder / name)
        for _, run, alone, _ in rows
        for name in (run, alone)
        if name
    }
    check_same_data(list(known.values()))
    return aligned(
        [
            Entry(method, known[run], known.get(alone), setting)
            for method, run, alone, setting in rows
        ]
    ), saved


def damaged(folder: Path) -> RunError:
    return RunError(
        f"{folder / RESULT} cannot be read: it is damaged; run the comparison again, what is finished stays"
    )


def _saved(row: Any) -> tuple[str, str, str, tuple[tuple[str, Any], ...]]:
    """Method, run, run of training alone (or nothing) and grid point of a saved entry."""
    return (
        str(row["method"]),
        str(row["run"]),
        str(row["alone"] or ""),
        tuple(row["setting"].items()),
    )


def aligned(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with the metrics that all runs have and, within one partition and seed, the clients that all its runs have a value for.

    Averages over different clients could not be compared: F1, say, may exist for a client under one method and not under another.
    """
    runs = {
        run.folder: run for entry in entries for run in (entry.run, entry.alone) if run is not None
    }
    first = next(iter(runs.values()))
    for run in runs.values():
        if first.metric not in run.by_metric:
            raise RunError(
                f"{run.folder} did not measure {first.metric}, which {first.folder} is judged by; it has {', '.join(run.by_metric)}: run it anew with evaluation.main={first.metric}"
            )
    shared = [
        metric
        for metric in first.by_metric
        if all(metric in run.by_metric for run in runs.values())
    ]
    same: dict[Path, RunResult] = {}
    for condition in {run.condition for run in runs.values()}:
        here = [run for run in runs.values() if run.condition == condition]
        values: dict[str, list[dict[str, float]]] = {
            metric: [run.by_metric[metric] for run in here] for metric in shared
        }
        common = {
            metric: [client for client in found[0] if all(client in other for other in found)]
            for metric, found in values.items()
        }
        measured = {
            metric: [
                c for run in here for c in (*run.undefined.get(metric, ()), *run.by_metric[metric])
            ]
            for metric in shared
        }
        known = {metric: set(clients) for metric, clients in common.items()}
        missing = {
            metric: [c for c in dict.fromkeys(measured[metric]) if c not in known[metric]]
            for metric in shared
        }
        for run in here:
            kept = {
                metric: {client: run.by_metric[metric][client] for client in clients}
                for metric, clients in common.items()
            }
            same[run.folder] = replace(run, metric=first.metric, by_metric=kept, undefined=missing)
    return [
        replace(entry, run=same[entry.run.folder], alone=entry.alone and same[entry.alone.folder])
        for entry in entries
    ]


def read_result(folder: Path, whole: bool = True) -> RunResult:
    """What a table needs of a run; `whole` refuses one that is not finished, and one without any measurement always is."""
    run = open_run(folder)
    try:
        if run.status != "finished" and (whole or not run.models()):
            at = f"round {run.last_round} of {run.config['rounds']}"
            raise RunError(
                f"{folder} is still going ({at}); wait for it to end"
                if run.status == "running"
                else f"{folder} was stopped after {at}; complete it with `equipoise resume {folder}`"
            )
        main = run.main_metric
        finals = {metric: run.final(metric) for metric in dict.fromkeys((main, *metrics_of(run)))}
        by_metric = {metric: for_each(run, values) for metric, values in finals.items()}
        missing = {
            metric: undefined(run, metric, run.main_model, values)
            for metric, values in finals.items()
        }
        clinical = derived(run)
        sent = {
            metric: for_each(run, {client: one.value for client, one in values.items()})
            for metric, values in clinical.items()
        }
        by_metric |= sent
        missing |= {
            metric: [c for c in for_each(run, run.counts()) if c not in values]
            for metric, values in sent.items()
        }
        counted = {
            metric: max((one.resolution for one in values.values()), default=0.0)
            for metric, values in clinical.items()
        }
        if not by_metric[main]:
            on_its_own = (
                run.main_split == "shared" or run.main_split in run.config["evaluation"]["splits"]
            )
            raise RunError(
                f"{folder} has no result: {one_class(main, missing[main], 0)}"
                if on_its_own and missing[main]
                else f"{folder} has no {main} on {run.main_split} data; measure it: evaluation.splits must name {run.main_split}"
            )
        return RunResult(
            folder, run.config, run.store.meta("data"), run.task, run.store.meta("fingerprint"), main, by_metric,
            cost_of(run) | distances_of(run), {metric: mean_curve(run, metric) for metric in metrics_of(run)}, for_each(run, run.majority()),
            counted, missing, is_old(run), run.test_sizes,
        )  # fmt: skip
    finally:
        run.store.close()


def open_run(folder: Path) -> Run:
    """A run, or a sentence that says what is there instead."""
    if not folder.exists():
        beside = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = closest(folder.name, beside, 0.6)
        hint = (
            f"did you mean {folder.parent / near}?"
            if near
            else "`equipoise run` names the folder of a run at its end"
        )
        raise RunError(f"no folder {folder}; {hint}")
    if folder.is_dir() and not (folder / DATABASE).exists():
        inside = [path.name for path in runs_in(folder)]
        if inside:
            shown = ", ".join(inside[:5])
            raise RunError(
                f"{folder} is not a run but holds {len(inside)}: {shown}; name those you want, such as {folder / inside[0]}"
            )
        if not any(folder.iterdir()):
            raise RunError(
                f"{folder} is empty: there is no run in it; start one with `equipoise run --out {folder}`"
            )
    return Run(folder)


def check_same_data(runs: Sequence[RunResult]) -> None:
    """Refuse runs whose numbers do not belong in one table."""
    first, known = runs[0], {first.condition: first for first in reversed(runs)}
    for run in runs:
        ours, theirs = flat({"data": first.config["data"]}), flat({"data": run.config["data"]})
        differing = [
            key for key in ours if key != "data.partition" and ours[key] != theirs.get(key)
        ]
        if differing or (run.data, run.task) != (first.data, first.task):
            key = differing[0] if differing else ""
            what = (
                f"{key} is {ours[key]!r} in one and {theirs.get(key)!r} in the other"
                if differing
                else "their data sets differ"
            )
            raise RunError(
                f"{first.folder} and {run.folder} cannot be compared: {what}; compare runs of the same data"
            )
        twin = known[run.condition]
        _check_age(twin, run)
        if twin.fingerprint != run.fingerprint:
            raise RunError(
                f"{twin.folder} and {run.folder} cannot be compared: same settings, other data; the data changed in between, so run the older one anew"
            )


def _check_age(one: RunResult, other: RunResult) -> None:
    if one.old != other.old:
        raise unmatched((one if one.old else other).folder)


def check_distinct(entries: Sequence[Entry]) -> None:
    seen: dict[tuple[str, tuple[str, int]], Entry] = {}
    for entry in entries:
        twin = seen.setdefault((entry.label, entry.run.condition), entry)
        if twin is not entry:
            raise RunError(
                f"{twin.run.folder} and {entry.run.folder} are the same experiment; name one of them"
            )


def _alone_of(run: RunResult, standalone: Sequence[RunResult], insist: bool) -> RunResult | None:
    """The run of training alone with the same data and schedule."""
    for other in standalone:
        if is_baseline_for(other.config, other.fingerprint, run.config, run.fingerprint):
            return other if run.metric in other.by_metric or insist else None
    if insist:
        _check_age(run, standalone[0])
        raise RunError(
            f"{run.folder} cannot be judged against {standalone[0].folder}: their data, seed, rounds, training or model differ; "
            f"run {ALONE} with the settings of the run"
        )
    beside = reference_of(Run(run.folder))
    found = None if beside is None else read_result(beside.folder)
    return found if found is not None and run.metric in found.by_metric else None
