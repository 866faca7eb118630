"""Running a study: what is missing is run through the executor of comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.comparison.executor import Progress, cores, execute
from equipoise.comparison.plan import Cell
from equipoise.runs import Run
from equipoise.runs.result import read_result
from equipoise.storage.lock import acquire
from equipoise.study.definition import PAPER, Study, load_study
from equipoise.study.plan import PlannedRun, Refusal, StudyPlan, plan_study
from equipoise.study.records import (
    Record,
    append_records,
    drop_partial_line,
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
    """

    table: StudyTable
    results: Path
    refusals: tuple[Refusal, ...]
    failures: Mapping[str, str]


def results_path(study: Study, scale: str) -> Path:
    """Return the file of the results of a study, in the folder `results` next to its file."""
    return study.path.parent / "results" / f"{study.name}.{scale}.jsonl"


def read_table(path: Path | str, scale: str = PAPER) -> StudyTable:
    """Return the table of a study from its file of results, without running anything.

    Args:
        path: The study's file.
        scale: The scale.
    """
    study = load_study(path)
    study.scale(scale)
    return StudyTable(study, scale, tuple(read_records(results_path(study, scale))))


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
    stopped. Runs whose results are in the file are not run again, even if their folders are gone.

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
        RunError: If another process runs the study at the same scale.
    """
    study = load_study(path, allow_imports)
    plan = plan_study(study, study.scale(scale), only)
    folder = Path(out) if out is not None else Path("comparisons") / f"{study.name}-{scale}"
    folder.mkdir(parents=True, exist_ok=True)
    results = results_path(study, scale)
    lock = acquire(folder)
    try:
        failures = _execute(plan, folder, results, jobs, progress or Progress(), where)
    finally:
        lock.release()
    table = StudyTable(study, scale, tuple(read_records(results)))
    return StudyOutcome(table, results, plan.refusals, failures)


def missing_runs(plan: StudyPlan, records: Sequence[Record]) -> list[PlannedRun]:
    """Return the planned runs that have no results yet."""
    finished = {(record.run, record.method, record.condition) for record in records}
    return [run for run in plan.runs if (run.cell.name, run.method, run.condition) not in finished]


def _execute(
    plan: StudyPlan,
    folder: Path,
    results: Path,
    jobs: int | None,
    progress: Progress,
    where: Mapping[str, Any] | None,
) -> dict[str, str]:
    drop_partial_line(results)
    missing = missing_runs(plan, read_records(results))
    by_name: dict[str, list[PlannedRun]] = {}
    for run in missing:
        by_name.setdefault(run.cell.name, []).append(run)

    def record(cell: Cell, failure: str | None) -> None:
        if failure is None:
            _record(by_name.pop(cell.name, []), folder / cell.name, results)
        progress.on_end(cell, failure)

    cells = list({run.cell.name: run.cell for run in missing}.values())
    recording = Progress(progress.on_plan, progress.on_round, record)
    failures = execute(cells, folder, jobs or cores(), recording, where)
    # Runs that had finished before, without their results having been written.
    for name, runs in list(by_name.items()):
        if name not in failures:
            _record(runs, folder / name, results)
    return failures


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
