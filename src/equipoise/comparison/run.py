"""`compare`: run what is missing, choose grid points on validation data, and make the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.comparison import formats
from equipoise.comparison.entries import Entry, RunResult, aligned, check_same_data, read_result
from equipoise.comparison.executor import Progress, cores, execute
from equipoise.comparison.measures import ASKED, DISTANCES, RANKED, values_by_client
from equipoise.comparison.plan import (
    Cell,
    Setting,
    as_config,
    default_baseline,
    default_folder,
    from_file,
    plan,
)
from equipoise.comparison.table import Comparison, Failure
from equipoise.experiment import ConfigurationError, Experiment, load, with_settings
from equipoise.metrics.registry import find
from equipoise.runs import Run
from equipoise.storage.store import RunError
from equipoise.validation.imports import FromFile, permitted
from equipoise.validation.names import nearest

VALIDATION = "validation"


def compare(
    base: Experiment | Mapping[str, Any] | str | Path | None = None,
    methods: Sequence[Any] = (),
    seeds: Sequence[int] = (),
    partitions: Sequence[str] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    baseline: str | None = None,
    level: float | None = None,
    measure: str | None = None,
    measures: Sequence[str] = (),
    target: float | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    allow_imports: Iterable[str] = (),
    cluster: str | None = None,
    trust_network: bool = False,
) -> Comparison:
    """Run several methods, seeds and partitions on identical data, initial model and cohorts, and compare them.

    `base` is what all runs share, or the path of a YAML file that holds it, with lists `methods`, `seeds`, `partitions` and a mapping `grid`;
    code that a file names is imported from the packages in `allow_imports` only. Grid points, such as {"method.mu": [0.01, 0.1]}, are chosen by validation data. `baseline` is the method that
    the others are tested against (default: fedavg if it is there, else the first), `level` that of the intervals over seeds (0.95), `measure` what
    methods are ranked by (average). `measures` are further columns of the table (best, p10_change, p90_change, best_round, rounds_to_target, d_cos,
    d_man), `target` is that of the rounds to it. Runs go to `out`, named by their content: calling again completes what is missing, and
    only that. `jobs` runs at a time, by default one per core; on a `cluster` (see `run`) one, which has all of it. A run that fails is reported and does not stop the others.
    """
    base = load(base) if isinstance(base, (str, Path)) else {} if base is None else base
    if isinstance(base, FromFile):
        base, found = from_file(
            base, methods=methods, seeds=seeds, partitions=partitions, grid=grid, baseline=baseline, level=level, measure=measure,
            measures=measures, target=target,
        )  # fmt: skip
        methods, seeds, partitions, grid, baseline, level, measure, measures, target = (
            found.values()
        )
    level, measure = 0.95 if level is None else level, measure or "average"
    imports = base.imports if isinstance(base, Experiment) else permitted(base, allow_imports)
    for name in measures:
        if name not in ASKED:
            raise nearest("further measure", name, list(ASKED))
    if set(measures) & set(DISTANCES):
        base = with_settings(as_config(base), {"evaluation.distances": True})
    cells = plan(base, methods, seeds, partitions, grid, imports)
    if cluster is not None:
        if jobs not in (None, 1):
            raise ConfigurationError(
                f"jobs: expected 1 run at a time on a cluster, got {jobs}; each run has all of its cores"
            )
        reason = next(
            (
                cell.experiment.why_not_portable
                for cell in cells
                if cell.experiment.why_not_portable
            ),
            None,
        )
        if reason is not None:
            raise ConfigurationError(
                f"--cluster: expected an experiment that other machines can rebuild, but {reason}"
            )
        jobs = 1
    if jobs is not None and jobs < 1:
        raise ConfigurationError(f"jobs: expected at least 1 run at a time, got {jobs}")
    labels = list(dict.fromkeys(cell.label for cell in cells))
    if baseline is None:
        baseline = default_baseline(labels)
    elif baseline not in labels:
        raise nearest("baseline", baseline, labels)
    if measure not in RANKED:
        raise nearest("measure", measure, list(RANKED))
    if not 0 < level < 1:
        raise ConfigurationError(
            f"level: expected a share between 0 and 1 such as 0.95, got {level:g}"
        )
    if (
        len({cell.setting for cell in cells}) > 1
        and VALIDATION not in cells[0].experiment.evaluation.splits
    ):
        raise ConfigurationError(
            "grid: settings are chosen on validation data; put `validation` into evaluation.splits"
        )
    folder = Path(out) if out is not None else default_folder(base, imports)
    runs = _writable(folder) / "runs"
    reasons = execute(
        cells,
        runs,
        jobs or cores(),
        progress or Progress(),
        {"cluster": cluster, "trust_network": trust_network},
    )
    results = {
        cell.name: read_result(runs / cell.name) for cell in cells if cell.name not in reasons
    }
    if results:
        check_same_data(list(results.values()))
    entries = [
        Entry(cell.label, results[cell.name], results.get(cell.alone), cell.setting, target)
        for cell in _chosen(cells, results)
        if cell.name in results
    ]
    failures = [
        Failure(cell.label, cell.partition, cell.seed, reasons[cell.name])
        for cell in cells
        if cell.name in reasons
    ]
    result = Comparison(
        aligned(entries) if entries else [],
        baseline,
        failures,
        folder,
        level=level,
        measure=measure,
        asked=tuple(measures),
        target=target,
    )
    formats.save(result)
    return result


def _writable(folder: Path) -> Path:
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot write a comparison to {folder}: {error.strerror or error}; choose a folder that can be written"
        ) from error
    return folder


def _chosen(cells: Sequence[Cell], results: Mapping[str, RunResult]) -> list[Cell]:
    """For every method and partition the cells of the grid point that is best on validation data, over all seeds."""
    groups: dict[tuple[str, str], dict[Setting, list[Cell]]] = {}
    for cell in cells:
        groups.setdefault((cell.label, cell.partition), {}).setdefault(cell.setting, []).append(
            cell
        )
    return [cell for settings in groups.values() for cell in _best(settings, results)]


def _best(settings: Mapping[Setting, list[Cell]], results: Mapping[str, RunResult]) -> list[Cell]:
    if len(settings) == 1:
        return next(iter(settings.values()))
    # Settings are judged by the same seeds: one that failed in some seed gives way to one that did not.
    done = {
        setting: [cell for cell in cells if cell.name in results]
        for setting, cells in settings.items()
    }
    most = max(map(len, done.values()))
    scores = _on_validation(
        {setting: cells for setting, cells in done.items() if len(cells) == most}, results
    )
    return settings[max(scores, key=lambda setting: scores[setting])]


def _on_validation(
    settings: Mapping[Setting, list[Cell]], results: Mapping[str, RunResult]
) -> dict[Setting, float]:
    """The mean over seeds and clients on validation data, higher being better; a diverged run counts as worst."""
    values = {
        cell.name: _validation(results[cell.name]) for cells in settings.values() for cell in cells
    }
    scores = {}
    for setting, cells in settings.items():
        means = []
        for cell in cells:  # over the clients for which all settings have a value: F1, say, may exist under one and not under another
            rivals = [
                values[other.name]
                for others in settings.values()
                for other in others
                if other.seed == cell.seed
            ]
            common = [
                client for client in values[cell.name] if all(client in rival for rival in rivals)
            ]
            means.append(
                float(np.mean([values[cell.name][client] for client in common]))
                if common
                else np.nan
            )
        score = float(np.mean(means)) if means else np.nan
        better = -score if cells and find(results[cells[0].name].metric).lower_is_better else score
        scores[setting] = -np.inf if np.isnan(score) else better
    return scores


def _validation(result: RunResult) -> dict[str, float]:
    run = Run(result.folder)
    found = values_by_client(run, split=VALIDATION)
    run.store.close()
    if not found:
        raise RunError(
            f"{run.folder} has no {result.metric} on validation data to choose a setting by; give them a share with data.split, such as [0.7, 0.1, 0.2]"
        )
    return found
