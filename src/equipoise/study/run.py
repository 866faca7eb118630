"""Running a study: what is missing is run through the executor of comparisons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.comparison.executor import Progress, cores, execute
from equipoise.comparison.plan import Cell
from equipoise.runs import Run
from equipoise.runs.result import read_result
from equipoise.storage.lock import acquire, acquire_file
from equipoise.storage.store import RunError
from equipoise.study.definition import PAPER, Study, load_study
from equipoise.study.plan import PlannedRun, Refusal, StudyPlan, plan_study
from equipoise.study.records import (
    Record,
    append_records,
    copy_for,
    drop_partial_run,
    read_records,
    records_of,
)
from equipoise.study.table import StudyTable


@dataclass(frozen=True)
class StudyOutcome:
    """A study after a call of `run_study`.

    Attributes:
        table: Its table, with the verdicts.
        results: The file of results.
        refusals: Methods that refuse their settings.
        failures: Runs that failed, with the reason.
        copied: Number of runs whose results another study of the folder had.
    """

    table: StudyTable
    results: Path
    refusals: tuple[Refusal, ...]
    failures: Mapping[str, str]
    copied: int = 0


def results_path(study: Study, scale: str) -> Path:
    """Return the file of the results of a study, in the folder `results` next to its file."""
    return study.path.parent / "results" / f"{study.name}.{scale}.jsonl"


def read_table(
    path: Path | str, scale: str = PAPER, allow_imports: Iterable[str] = ()
) -> StudyTable:
    """Return the table of a study from its file of results, without running anything.

    Args:
        path: The study's file.
        scale: The scale.
        allow_imports: Packages that code named in the file may be imported from.

    Raises:
        ConfigurationError: If the study is wrong, or has no such scale.
        RunError: If the file of results is damaged.
    """
    return stored_table(load_study(path, allow_imports), scale)


def stored_table(study: Study, scale: str) -> StudyTable:
    """Return the table of a loaded study from its file of results, without running anything.

    Results that belong to other settings, such as those from before a change of the study's file,
    are left out and counted.

    Args:
        study: The study.
        scale: The scale.

    Raises:
        ConfigurationError: If a method or the experiment is wrong, or there is no such scale.
        RunError: If the file of results is damaged.
    """
    return _table(study, scale, plan_study(study, study.scale(scale)))


def _table(study: Study, scale: str, plan: StudyPlan) -> StudyTable:
    """Return the table of the results that belong to the plan of the whole study."""
    planned = {(run.method, run.condition, run.cell.name): run for run in plan.runs}
    path = results_path(study, scale)
    stored = read_records(path)
    records = []
    for record in stored:
        run = planned.get((record.method, record.condition, record.run))
        if run is not None and run.seed == record.seed:
            # The baseline may have changed without the run: its name is not a part of the run's.
            records.append(record.model_copy(update={"baseline": run.baseline}))
    _check_metric(path, records)
    outdated = len(stored) - len(records)
    return StudyTable(study, scale, tuple(records), plan.refusals, outdated)


def _check_metric(path: Path, records: Sequence[Record]) -> None:
    """Refuse results of several metrics, whose numbers would stand in one column."""
    for record in records:
        if record.metric != records[0].metric:
            raise RunError(
                f"{path}: expected one metric in all runs, found {records[0].metric} in "
                f"{records[0].run} and {record.metric} in {record.run}; make a study of its own "
                "for conditions with another task"
            )


def run_study(
    path: Path | str,
    scale: str = PAPER,
    only: Sequence[str] = (),
    out: Path | str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    allow_imports: Iterable[str] = (),
    where: Mapping[str, Any] | None = None,
) -> StudyOutcome:
    """Run what is missing of a study, and return its table.

    The results of a run are written when it has finished, so a killed study continues where it
    stopped. Runs whose results are in the file, or in that of another study in the same folder, are
    not run again, even if their folders are gone. The lowest seed of all rows runs first.

    Args:
        path: The study's file.
        scale: The scale to run.
        only: Methods to run; all if empty.
        out: Folder of the runs; by default `comparisons/STUDY-SCALE`.
        jobs: Runs at a time; by default one per core.
        progress: Receives plan, rounds and ends of runs.
        allow_imports: Packages that code named in the file may be imported from.
        where: A cluster to run on, as `compare` takes it.

    Raises:
        ConfigurationError: If the study is wrong.
        RunError: If another process runs the study at the same scale, or in the same folder.
    """
    study = load_study(path, allow_imports)
    whole = plan_study(study, study.scale(scale))
    plan = plan_study(study, study.scale(scale), only) if only else whole
    folder = Path(out) if out is not None else Path("comparisons") / f"{study.name}-{scale}"
    folder.mkdir(parents=True, exist_ok=True)
    results = results_path(study, scale)
    # Only one process may write a file of results, whatever its folder of runs is.
    writing = acquire_file(
        results.with_suffix(".lock"), f"{results} is being written", str(results)
    )
    try:
        running = acquire(folder)
        try:
            drop_partial_run(results)
            known = known_results(plan, results)
            append_records(results, known)
            failures = _execute(plan, folder, results, jobs, progress or Progress(), where)
        finally:
            running.release()
    finally:
        writing.release()
    copied = len({record.run for record in known})
    return StudyOutcome(_table(study, scale, whole), results, plan.refusals, failures, copied)


def missing_runs(plan: StudyPlan, records: Sequence[Record]) -> list[PlannedRun]:
    """Return the planned runs that have no results yet, or not of all models that rows name."""
    served: dict[tuple[str, str, str], set[str]] = {}
    for record in records:
        served.setdefault((record.run, record.method, record.condition), set()).add(record.model)
    return [
        run
        for run in plan.runs
        if not _is_complete(run, served.get((run.cell.name, run.method, run.condition), set()))
    ]


def _is_complete(run: PlannedRun, models: Iterable[str]) -> bool:
    """Return True if some models are known, and all those that rows name."""
    found = set(models)
    return bool(found) and run.models <= found


def _execute(
    plan: StudyPlan,
    folder: Path,
    results: Path,
    jobs: int | None,
    progress: Progress,
    where: Mapping[str, Any] | None,
) -> dict[str, str]:
    missing = missing_runs(plan, read_records(results))
    # One seed of every row tells more than every seed of one row.
    missing.sort(key=lambda run: run.seed)
    by_name: dict[str, list[PlannedRun]] = {}
    for run in missing:
        by_name.setdefault(run.cell.name, []).append(run)

    def record(cell: Cell, failure: str | None) -> None:
        if failure is None:
            _record(by_name.pop(cell.name, []), folder / cell.name, results)
        progress.on_end(cell, failure)

    cells = list({run.cell.name: run.cell for run in missing}.values())
    number = len({run.cell.name for run in plan.runs})

    def announce(to_do: Sequence[Cell], finished: int) -> None:
        # Also runs without a folder count as finished if their results are known.
        progress.on_plan(to_do, number - len(to_do))

    recording = Progress(announce, progress.on_round, record)
    failures = execute(cells, folder, jobs or cores(), recording, where)
    # Runs that had finished before, without their results having been written.
    for name, runs in list(by_name.items()):
        if name not in failures:
            _record(runs, folder / name, results)
    return failures


def known_results(plan: StudyPlan, results: Path) -> list[Record]:
    """Return results of missing runs that other studies have in the same folder.

    A run may stand in several tables of a paper. Its name follows from all its settings, so it need
    not be run again, even if its folder is gone.

    Args:
        plan: The plan of the study.
        results: The file of its results.
    """
    missing = missing_runs(plan, read_records(results))
    if not missing:
        return []
    names = {run.cell.name for run in missing}
    sources = []
    for path in sorted(results.parent.glob("*.jsonl")):
        # A damaged file is reported when its own study is run.
        with suppress(RunError, OSError):
            sources.append(_by_run(path, names))
    copies = []
    for run in missing:
        for source in sources:
            models = source.get(run.cell.name, {})
            if _is_complete(run, models):
                copies += [copy_for(run, record) for record in models.values()]
                break
    return copies


def _by_run(path: Path, names: Collection[str]) -> dict[str, dict[str, Record]]:
    """Return run -> served model -> result, of the runs with these names."""
    found: dict[str, dict[str, Record]] = {}
    for record in read_records(path):
        if record.run in names:
            found.setdefault(record.run, {})[record.model] = record
    return found


def _record(runs: Sequence[PlannedRun], folder: Path, results: Path) -> None:
    if not runs:
        return
    opened = Run(folder)
    try:
        result = read_result(opened)
        for run in runs:
            append_records(results, records_of(run, opened, result))
    finally:
        opened.store.close()
