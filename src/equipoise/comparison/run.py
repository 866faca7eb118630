"""`compare`: run what is missing, choose grid points on validation data, and make the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.comparison import formats
from equipoise.comparison.entries import (
    Entry,
    aligned,
    check_same_data,
    read_folder,
    read_runs,
)
from equipoise.comparison.executor import Progress, cores, execute
from equipoise.comparison.measures import (
    BY_SAMPLE_GROUP,
    DISTANCES,
    OPTIONAL,
    RANKED,
    is_of_group,
)
from equipoise.comparison.plan import (
    VALIDATION,
    Cell,
    Plan,
    Setting,
    as_config,
    check_held_out,
    check_model_names,
    default_baseline,
    default_folder,
    from_file,
    plan_comparison,
)
from equipoise.comparison.served import (
    SEPARATOR,
    common_mean,
    served_rows,
    tested_row,
    validation_values,
)
from equipoise.comparison.table import Comparison, Failure, with_partition_names
from equipoise.comparison.targets import Target, check_target, checked_target, with_targets
from equipoise.experiment import ConfigurationError, Experiment, load, with_settings
from equipoise.runs import Run, RunResult
from equipoise.runs.aggregates import CHANGES
from equipoise.storage.store import RunError
from equipoise.validation.imports import FromFile, Imports, permitted
from equipoise.validation.names import nearest

LISTS = ("methods", "seeds", "partitions", "grid", "models", "baselines", "sweep")
LEVEL = 0.95
MEASURE = "average"
TARGET_COLUMN = "rounds_to_target"
_Values = dict[str, float]  # client -> value


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
    target: Target | None = None,
    models: Sequence[str] | str = (),
    baselines: str | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    allow_imports: Iterable[str] = (),
    cluster: str | None = None,
    trust_network: bool = False,
) -> Comparison:
    """Run several methods, seeds and partitions on identical data, initial model and cohorts.

    Calling it again completes what is missing, and only that. A run that fails, or a method that
    refuses its settings, is reported and does not stop the others.

    Args:
        base: The settings that all runs share, or the path of a YAML file that holds them, with
            lists `methods`, `seeds`, `partitions` and a mapping `grid`.
        methods: Names of methods, mappings with parameters, or Method objects. A mapping may also
            hold settings for this method only: `training`, `model`, `models`, `rounds`,
            `participation`; the table marks its rows.
        seeds: The seeds; by default that of `base`.
        partitions: The partitions; by default that of `base`.
        grid: Settings to choose on validation data, such as {"method.mu": [0.01, 0.1]}.
        baseline: The method that the others are tested against; by default fedavg if it is there,
            else the first.
        level: The level of the intervals over seeds; 0.95 by default.
        measure: The measure that methods are ranked by; the average by default.
        measures: Further columns of the table: best, p10_change, p90_change, best_round,
            best_average, rounds_to_target, speed_up, d_cos, d_man, embedding_angle,
            embedding_manhattan, seconds_per_client, seconds_per_client_std, and change[GROUP] for
            groups of clients. The average of up to 8 groups is always shown.
        target: The mean over clients to reach, for rounds_to_target and speed_up: a number,
            "fedavg.best" for the best mean of a method in the same partition and seed, or a
            mapping from partitions to these.
        models: Served models that are rows of their own, such as ["global", "teacher"]; "all" for
            all. In the file of a comparison whose `models` are networks, `serves` of a method says
            the same. With `select: validation` a method has a row for the model that is best on
            validation data.
        baselines: "none" leaves out training alone unless it is among the methods; then there are
            no changes and no collaborative fairness. By default it is added.
        sweep: One setting and the values that it takes, such as {"data.clients": [10, 50]}: the
            table has a group of rows for each, and the report a figure.
        out: The folder of the comparison, in which runs are named by their content.
        jobs: Runs at a time; by default one per core, and one on a cluster.
        progress: Receives events.
        allow_imports: Packages whose code a file may name.
        cluster: The address of a Ray cluster, as for `equipoise.run`.
        trust_network: Whether the network of the cluster is trusted.

    Returns:
        The comparison, which is also saved in its folder.

    Raises:
        ConfigurationError: A setting is wrong; nothing was run.
        ValueError: A method, measure or baseline is unknown, or no method serves a model that
            `models` names. If a method does not declare its models (`Method.served_models`), the
            latter is known once runs have finished; they stay.
        RunError: The folder cannot be written, or it holds runs of other data.
    """
    if base is None:
        base = {}
    elif isinstance(base, (str, Path)):
        base = load(base)
    settings: dict[str, Any] = {
        "methods": methods,
        "seeds": seeds,
        "partitions": partitions,
        "grid": grid,
        "baseline": baseline,
        "level": level,
        "measure": measure,
        "measures": measures,
        "target": target,
        "models": models,
        "baselines": baselines,
        "sweep": sweep,
    }
    ready = prepared(base, settings, allow_imports)
    cells = ready.plan.cells
    table = ready.table
    jobs = _checked_jobs(jobs, cells, cluster)
    folder = Path(out) if out is not None else default_folder(ready.base, ready.imports)
    runs = _writable(folder) / "runs"
    where = {"cluster": cluster, "trust_network": trust_network}
    distinct = {cell.name: cell for cell in cells}
    reasons = execute(list(distinct.values()), runs, jobs, progress or Progress(), where)
    entries = _entries(cells, runs, reasons)
    tested_against = tested_row([entry.label for entry in entries], ready.baseline)
    result = Comparison(
        with_targets(entries, table.target, tested_against),
        tested_against,
        with_partition_names(_failures(cells, reasons), entries),
        folder,
        refusals=ready.plan.refusals,
        level=table.level,
        measure=table.measure,
        optional=table.measures,
        target=table.target,
    )
    unknown = [name for name in table.measures if entries and name not in result.measures]
    # Groups are known after the runs only. The table is saved all the same.
    formats.save(
        replace(result, optional=tuple(name for name in table.measures if name not in unknown))
    )
    if unknown:
        raise nearest("group of clients in", unknown[0], list(result.measures))
    return result


@dataclass(frozen=True)
class PreparedComparison:
    """A comparison that has been checked and can run.

    Attributes:
        base: The settings that all runs share.
        imports: The packages from which they may import code.
        plan: The runs.
        table: The settings of the table.
        baseline: The method that others are tested against.
    """

    base: Experiment | Mapping[str, Any]
    imports: Imports
    plan: Plan
    table: TableSettings
    baseline: str


def prepared(
    base: Experiment | Mapping[str, Any],
    settings: Mapping[str, Any],
    allow_imports: Iterable[str] = (),
) -> PreparedComparison:
    """Check a comparison without running anything.

    Args:
        base: The settings that all runs share, or the content of a file.
        settings: The lists and the settings of the table, as in `compare`.
        allow_imports: Packages whose code a file may name.

    Raises:
        ConfigurationError: A setting is wrong.
        ValueError: A method, measure or baseline is unknown.
    """
    if isinstance(base, FromFile):
        base, settings = from_file(base, **settings)
    table = TableSettings.of(settings)
    imports = base.imports if isinstance(base, Experiment) else permitted(base, allow_imports)
    table.check_columns()
    if set(table.measures) & set(BY_SAMPLE_GROUP) and not _has_groups(base):
        raise ValueError(
            "measures by group need data.groups, such as [sex]; add it, or leave the measures out"
        )
    if set(table.measures) & set(DISTANCES):
        base = with_settings(as_config(base), {"evaluation.distances": True})
    lists = {name: settings[name] for name in LISTS if name in settings}
    plan = plan_comparison(base, **lists, imports=imports)
    return PreparedComparison(base, imports, plan, table, table.checked(plan.cells))


def _has_groups(base: Experiment | Mapping[str, Any]) -> bool:
    data = as_config(base).get("data")
    return isinstance(data, Mapping) and bool(data.get("groups"))


@dataclass(frozen=True)
class TableSettings:
    """The settings of the table, as in `compare`."""

    baseline: str | None
    level: float
    measure: str
    measures: tuple[str, ...]
    target: Target | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TableSettings:
        """Return the settings of the table among those of a comparison."""
        level = settings.get("level")
        measures = tuple(settings.get("measures") or ())
        target = checked_target(settings.get("target"))
        if target is not None and TARGET_COLUMN not in measures:
            measures = (*measures, TARGET_COLUMN)
        return cls(
            baseline=settings.get("baseline"),
            level=LEVEL if level is None else level,
            measure=settings.get("measure") or MEASURE,
            measures=measures,
            target=target,
        )

    def check_columns(self) -> None:
        """Refuse unknown measures."""
        for name in self.measures:
            if name not in OPTIONAL and not is_of_group(name):
                raise nearest("further measure", name, list(OPTIONAL))

    def checked(self, cells: Sequence[Cell]) -> str:
        """Check the settings against the plan; return the method that others are tested against."""
        labels = list(dict.fromkeys(cell.label for cell in cells))
        method = (self.baseline or "").partition(SEPARATOR)[0]
        if self.baseline is not None and method not in labels:
            raise nearest("baseline", self.baseline, labels)
        if self.measure not in RANKED:
            raise nearest("measure", self.measure, list(RANKED))
        if self.measure in (*CHANGES, "cf") and not any(cell.alone for cell in cells):
            raise ConfigurationError(
                f"measure: {self.measure} compares with training alone, which this comparison "
                "leaves out; remove `baselines: none`, or choose another measure such as average"
            )
        check_target(self.target, cells)
        if not 0 < self.level < 1:
            raise ConfigurationError(
                f"level: expected a share between 0 and 1 such as 0.95, got {self.level:g}"
            )
        _check_choices(cells)
        return self.baseline or default_baseline(labels)


def _check_choices(cells: Sequence[Cell]) -> None:
    """Refuse a grid without validation data to choose by. One setting needs no choice."""
    settings: dict[str, set[Setting]] = {}
    for cell in cells:
        settings.setdefault(cell.label, set()).add(cell.setting)
        if len(settings[cell.label]) < 2:
            continue
        if VALIDATION not in cell.experiment.evaluation.splits:
            raise ConfigurationError(
                "grid: settings are chosen on validation data; put `validation` into "
                "evaluation.splits"
            )
        check_held_out("grid", cell.experiment)


def _checked_jobs(jobs: int | None, cells: Sequence[Cell], cluster: str | None) -> int:
    """Return the number of runs at a time."""
    if jobs is not None and jobs < 1:
        raise ConfigurationError(f"jobs: expected at least 1 run at a time, got {jobs}")
    if cluster is None:
        return jobs or cores()
    if jobs not in (None, 1):
        raise ConfigurationError(
            f"jobs: expected 1 run at a time on a cluster, got {jobs}; each run has all of its "
            "cores"
        )
    for cell in cells:
        if cell.experiment.why_not_portable is not None:
            raise ConfigurationError(
                "--cluster: expected an experiment that other machines can rebuild, but "
                f"{cell.experiment.why_not_portable}"
            )
    return 1


def _writable(folder: Path) -> Path:
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot write a comparison to {folder}: {error.strerror or error}; choose a folder "
            "that can be written"
        ) from error
    return folder


def _entries(cells: Sequence[Cell], runs: Path, failed: Mapping[str, str]) -> list[Entry]:
    """Return the entries of the table, of the runs that finished."""
    finished = list(dict.fromkeys(cell.name for cell in cells if cell.name not in failed))
    if not finished:
        return []
    read = read_runs([runs / name for name in finished])
    results = dict(zip(finished, read, strict=True))
    check_model_names(cells, {name for result in read for name in result.models})
    chosen = [cell for cell in _chosen(cells, results) if cell.name in results]
    alone = {}
    for cell in chosen:
        if cell.label == cell.alone:
            alone[cell.partition, cell.seed] = results[cell.name]
    entries: dict[tuple[str, str, int], Entry] = {}
    for cell in chosen:
        baseline = alone.get((cell.partition, cell.seed))
        for entry in _rows_of(cell, results[cell.name], baseline):
            # A method may be listed twice with the same served model.
            entries.setdefault((entry.label, *entry.run.condition), entry)
    check_same_data([entry.run for entry in entries.values()])
    return aligned(list(entries.values()))


def _rows_of(cell: Cell, main: RunResult, baseline: RunResult | None) -> Iterator[Entry]:
    """Yield one entry per served model that the table lists.

    Args:
        cell: The run in the plan.
        main: Its result.
        baseline: The run of training alone that is a row of the table. Where settings are tuned, it
            is the chosen one, so that changes are differences between rows.
    """
    for row in served_rows(cell, main):
        run = main
        if row.model != main.main_model:
            run = read_folder(main.folder, main_metric=main.main_metric, model=row.model)
        run = replace(run, varied=dict(cell.sweep))
        run = run.against(baseline and replace(baseline, varied=dict(cell.sweep)))
        yield Entry(row.label, run, cell.setting, overrides=cell.overrides, selected=row.selected)


def _failures(cells: Sequence[Cell], reasons: Mapping[str, str]) -> list[Failure]:
    """Return the failures, each once; a run may be behind several rows."""
    failures = []
    for cell in cells:
        if cell.name in reasons:
            setting = ", ".join(f"{key}={value}" for key, value in cell.setting)
            reason = f"{setting}: {reasons[cell.name]}" if setting else reasons[cell.name]
            failures.append(Failure(cell.label, cell.partition, cell.seed, reason))
    return list(dict.fromkeys(failures))


def _chosen(cells: Sequence[Cell], results: Mapping[str, RunResult]) -> list[Cell]:
    """Return the cells of the grid point that is best on validation data.

    It is chosen for every method and partition, over all seeds.
    """
    groups: dict[tuple[str, str], dict[Setting, list[Cell]]] = {}
    for cell in cells:
        settings = groups.setdefault((cell.label, cell.partition), {})
        settings.setdefault(cell.setting, []).append(cell)
    chosen = []
    for settings in groups.values():
        chosen += _best(settings, results)
    return chosen


def _best(settings: Mapping[Setting, list[Cell]], results: Mapping[str, RunResult]) -> list[Cell]:
    if len(settings) == 1:
        return next(iter(settings.values()))
    finished = {}
    for setting, cells in settings.items():
        finished[setting] = [cell for cell in cells if cell.name in results]
    # Settings are compared over the same seeds: one that failed in some seed gives way to one that
    # did not.
    most = max(map(len, finished.values()))
    complete = {setting: cells for setting, cells in finished.items() if len(cells) == most}
    scores = _on_validation(complete, results)
    return settings[max(scores, key=lambda setting: scores[setting])]


def _on_validation(
    settings: Mapping[Setting, list[Cell]], results: Mapping[str, RunResult]
) -> dict[Setting, float]:
    """Return the mean over seeds and clients on validation data, higher being better.

    A diverged run counts as worst.
    """
    values: dict[str, _Values] = {}
    by_seed: dict[int, list[_Values]] = {}
    for cells in settings.values():
        for cell in cells:
            values[cell.name] = _validation_values(results[cell.name])
            by_seed.setdefault(cell.seed, []).append(values[cell.name])
    scores = {}
    for setting, cells in settings.items():
        means = [common_mean(values[cell.name], by_seed[cell.seed]) for cell in cells]
        score = float(np.mean(means)) if means else np.nan
        if np.isnan(score):
            score = -np.inf
        elif results[cells[0].name].main.metric.lower_is_better:
            score = -score
        scores[setting] = score
    return scores


def _validation_values(result: RunResult) -> _Values:
    run = Run(result.folder)
    try:
        return validation_values(run, result.main_metric)
    finally:
        run.store.close()
