"""A study: the file that defines a table, its claims and its scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.comparison.measures import measures
from equipoise.comparison.plan import VALIDATION
from equipoise.comparison.served import SELECTED
from equipoise.comparison.targets import BEST, Target, checked_target
from equipoise.experiment import ConfigurationError, load, with_settings
from equipoise.metrics.registry import find
from equipoise.study.claims import Claim, ClaimError, parse_claim
from equipoise.validation.imports import OWN, Imports, permitted
from equipoise.validation.names import closest, quoted
from equipoise.validation.settings import plain_reason

PAPER = "paper"
OFFICIAL_TESTS = ("global", "site")
FEDAVG = "fedavg"
FRACTION = "fraction"


class Source(BaseModel):
    """The publication that a table comes from."""

    model_config = ConfigDict(extra="forbid")

    paper: str = Field(description="title, authors and year")
    table: str = Field(description="such as `Table 1 and Figure 4`")
    notes: list[str] = Field(
        default_factory=list,
        description="where the study departs from the paper, or the paper is silent",
    )
    changed: list[str] = Field(
        default_factory=list,
        description="settings that were changed after a result had been seen, with date and reason",
    )


class FigureEntry(BaseModel):
    """A figure of a study, as the paper has it."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["bars", "curves", "spread", "clients", "groups", "sweep", "contributions"] = (
        Field(
            description="bars: a measure by row; curves: means by round; spread: standard "
            "deviations over clients by round; clients: values of clients by row; groups: a "
            "measure by domain; sweep: a measure by a parameter of the method; contributions: of "
            "clients, against what they reach alone"
        )
    )
    measure: str = Field(default="", description="default: the first one of the study")
    rows: list[str] = Field(default_factory=list, description="default: all")
    conditions: list[str] = Field(default_factory=list, description="default: all")
    parameter: str = Field(default="", description="of the method, on the axis of a sweep")
    title: str = Field(default="", description="such as `Figure 5`")


class ClaimEntry(BaseModel):
    """A claim with the sentence of the paper that makes it."""

    model_config = ConfigDict(extra="forbid")

    claim: str
    says: str = Field(default="", description="the paper's own words, shortened, with its section")


class Scale(BaseModel):
    """A size at which a study can be run: it changes sizes, rounds and seeds only."""

    model_config = ConfigDict(extra="forbid")

    core_hours: float = Field(gt=0, description="expected cost of all runs")
    seeds: list[int] | None = Field(default=None, description="in place of the study's")
    conditions: list[str] | None = Field(default=None, description="a part of the study's")
    seeds_at: dict[str, list[int]] = Field(
        default_factory=dict, description="condition -> seeds, where they differ"
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="dotted keys of the experiment, such as `rounds: 100`"
    )


class StudyFile(BaseModel):
    """The keys of a study's file."""

    model_config = ConfigDict(extra="forbid")

    title: str
    source: Source | None = None
    experiment: dict[str, Any] = Field(
        description="an experiment without method, seed and what conditions set"
    )
    methods: dict[str, Any] = Field(
        min_length=1,
        description="row -> method; with `serves: [global, teacher]` a row for each served model, "
        "with `select: validation` a row for the one that is best on validation data",
    )
    conditions: dict[str, dict[str, Any]] = Field(
        min_length=1,
        description="name as in the paper -> dotted settings, such as {data.partition: ics:5}",
    )
    seeds: list[int] = Field(min_length=1)
    measures: list[str] = Field(min_length=1, description="columns, such as average, worst, cf")
    baselines: str = Field(default="standalone", pattern="^(standalone|none)$")
    target: Any = Field(
        default=None,
        description="a mean over clients for rounds_to_target and speed_up, the best mean of a "
        "row such as `fedavg.best`, or condition -> one of these",
    )
    speed_up_over: str | None = Field(
        default=None, description="the row that speed-ups are counted against; default: fedavg"
    )
    printed: dict[str, dict[str, dict[str, Any]]] = Field(
        default_factory=dict,
        description="condition -> measure -> row -> number, or [mean, deviation], as printed",
    )
    printed_as: Literal["percent", "fraction"] = Field(
        default="percent", description="unit in which the paper prints shares such as accuracies"
    )
    claims: list[ClaimEntry | str] = Field(default_factory=list)
    figures: list[FigureEntry] = Field(
        default_factory=list, description="default: bars of the first measure, and curves"
    )
    scales: dict[str, Scale] = Field(min_length=1)


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: Its name in the study: the method's, or `method.model`.
        method: The method's key in the file.
        model: The served model; None for the one that the method marks as its main model.
        selected: True for the served model that is best on validation data, seed by seed.
    """

    name: str
    method: str
    model: str | None
    selected: bool = False


@dataclass(frozen=True)
class Study:
    """A checked study.

    Attributes:
        path: Its file.
        file: The content of the file.
        rows: The rows of the table.
        claims: The parsed claims, in the order of the file.
        sayings: Claim text -> the paper's words.
        imports: What the code that the file names may be imported from.
        target: The mean over clients whose first round is counted.
    """

    path: Path
    file: StudyFile
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    sayings: Mapping[str, str] = field(default_factory=dict)
    imports: Imports = OWN
    target: Target | None = None

    @property
    def name(self) -> str:
        """The name of the file without its ending."""
        return self.path.stem

    @property
    def row_names(self) -> list[str]:
        """Names of the rows, in the order of the file."""
        return [row.name for row in self.rows]

    @property
    def speed_up_over(self) -> str:
        """The row that speed-ups are counted against."""
        return self.file.speed_up_over or FEDAVG

    def scale(self, name: str) -> Scale:
        """Return a scale by name.

        Raises:
            ConfigurationError: If the study has no such scale.
        """
        if name not in self.file.scales:
            known = ", ".join(self.file.scales)
            raise ConfigurationError(f"{self.path}: no scale {quoted(name)}; it has {known}")
        return self.file.scales[name]

    def conditions(self, scale: Scale) -> list[str]:
        """Return the names of the conditions that a scale runs."""
        return list(self.file.conditions) if scale.conditions is None else list(scale.conditions)

    def seeds(self, scale: Scale, condition: str) -> list[int]:
        """Return the seeds that a scale runs under a condition."""
        if condition in scale.seeds_at:
            return scale.seeds_at[condition]
        return self.file.seeds if scale.seeds is None else scale.seeds

    def config(self, scale: Scale, condition: str) -> dict[str, Any]:
        """Return the experiment of a condition at a scale, without method and seed."""
        settings = {**self.file.conditions[condition], **scale.settings}
        return with_settings(self.file.experiment, settings)

    @property
    def fixed_test(self) -> bool:
        """True if all seeds are tested on the same samples: the data set's official test parts."""
        data = self.file.experiment.get("data", {})
        return isinstance(data, Mapping) and data.get("test") in OFFICIAL_TESTS


def load_study(path: Path | str, allow_imports: Iterable[str] = ()) -> Study:
    """Read and check a study.

    Everything that the file names is checked before anything runs: measures, rows and conditions of
    printed numbers, claims and targets, conditions of scales. Methods and partitions are checked
    when the study is planned (`study.plan`).

    Args:
        path: The file.
        allow_imports: Packages that code named in the file may be imported from.

    Raises:
        ConfigurationError: Naming the file and every mistake.
    """
    path = Path(path)
    content = load(path)
    try:
        file = StudyFile(**content)
    except ValidationError as error:
        raise ConfigurationError(_explain(path, error)) from None
    rows = _rows(path, file)
    _check_measures(path, file)
    target = _target(path, file, rows)
    _check_printed(path, file, rows)
    _check_scales(path, file)
    _check_figures(path, file, rows)
    claims, sayings = _claims(path, file, rows)
    return Study(path, file, rows, claims, sayings, permitted(content, allow_imports), target)


def _rows(path: Path, file: StudyFile) -> tuple[Row, ...]:
    rows: list[Row] = []
    for name, method in file.methods.items():
        if "." in name:
            raise ConfigurationError(
                f"{path}: methods: expected names without a point, got {quoted(name)}; "
                "the point separates a method from a served model"
            )
        settings = method if isinstance(method, Mapping) else {}
        rows.extend(_rows_of_method(path, name, settings))
    return tuple(rows)


def _rows_of_method(path: Path, name: str, settings: Mapping[str, Any]) -> list[Row]:
    rows = [Row(name, name, None)]
    served = settings.get("serves")
    if served is not None:
        if not isinstance(served, list) or not served:
            raise ConfigurationError(
                f"{path}: methods.{name}.serves: expected a list of models, got {quoted(served)}"
            )
        rows = [Row(f"{name}.{model}", name, str(model)) for model in served]
    select = settings.get("select")
    if select not in (None, VALIDATION):
        raise ConfigurationError(
            f"{path}: methods.{name}.select: expected {VALIDATION}, got {quoted(select)}"
        )
    if select is not None:
        rows.append(Row(f"{name}.{SELECTED}", name, None, selected=True))
    return rows


def _check_measures(path: Path, file: StudyFile) -> None:
    known = list(measures(find("accuracy"), sample_groups=True))
    for column in file.measures:
        name = column.partition("[")[0]
        if name not in known:
            match = closest(name, known)
            hint = f"did you mean {match!r}?" if match else f"known are {', '.join(known)}"
            raise ConfigurationError(f"{path}: measures: unknown measure {quoted(column)}; {hint}")


def _target(path: Path, file: StudyFile, rows: tuple[Row, ...]) -> Target | None:
    """Return the checked target of rounds; refuse measures that need one and have none."""
    names = [row.name for row in rows]
    if "speed_up" in file.measures or file.speed_up_over is not None:
        reference = file.speed_up_over or FEDAVG
        if reference not in names:
            raise _unknown(path, "speed_up_over", "row", reference, names)
    if file.target is None and "rounds_to_target" in file.measures:
        raise ConfigurationError(
            f"{path}: measures: rounds_to_target needs a target; set `target: 0.8`, say, or "
            "`target: fedavg.best`"
        )
    try:
        target = checked_target(file.target)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    by_condition = target if isinstance(target, Mapping) else {"": target}
    for condition, value in by_condition.items():
        if condition and condition not in file.conditions:
            raise _unknown(path, "target", "condition", condition, file.conditions)
        if isinstance(value, str) and value.removesuffix(BEST) not in names:
            raise _unknown(path, "target", "row", value.removesuffix(BEST), names)
    return target


def _check_printed(path: Path, file: StudyFile, rows: tuple[Row, ...]) -> None:
    names = {row.name for row in rows}
    for condition, columns in file.printed.items():
        if condition not in file.conditions:
            raise _unknown(path, "printed", "condition", condition, file.conditions)
        for measure, numbers in columns.items():
            if measure not in file.measures:
                key = f"printed.{condition}"
                raise _unknown(path, key, "measure", measure, file.measures)
            for row, number in numbers.items():
                key = f"printed.{condition}.{measure}"
                if row not in names:
                    raise _unknown(path, key, "row", row, names)
                if not _is_printed(number):
                    raise ConfigurationError(
                        f"{path}: {key}.{row}: expected a number or [mean, deviation], "
                        f"got {quoted(number)}"
                    )


def _is_printed(value: Any) -> bool:
    numbers = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)


def _check_scales(path: Path, file: StudyFile) -> None:
    for name, scale in file.scales.items():
        for condition in [*(scale.conditions or ()), *scale.seeds_at]:
            if condition not in file.conditions:
                raise _unknown(path, f"scales.{name}", "condition", condition, file.conditions)


def _check_figures(path: Path, file: StudyFile, rows: tuple[Row, ...]) -> None:
    names = [row.name for row in rows]
    for number, figure in enumerate(file.figures):
        key = f"figures.{number}"
        for row in figure.rows:
            if row not in names:
                raise _unknown(path, key, "row", row, names)
        for condition in figure.conditions:
            if condition not in file.conditions:
                raise _unknown(path, key, "condition", condition, file.conditions)
        if figure.measure and figure.measure not in file.measures:
            raise _unknown(path, key, "measure", figure.measure, file.measures)
        if figure.kind == "sweep":
            _check_sweep(path, key, file, figure, rows)


def _check_sweep(
    path: Path, key: str, file: StudyFile, figure: FigureEntry, rows: tuple[Row, ...]
) -> None:
    for row in rows:
        if figure.rows and row.name not in figure.rows:
            continue
        settings = file.methods[row.method]
        value = settings.get(figure.parameter) if isinstance(settings, Mapping) else None
        if not isinstance(value, (int, float)):
            raise ConfigurationError(
                f"{path}: {key}: expected a parameter that is a number in every row, but "
                f"methods.{row.method} has no number {quoted(figure.parameter)}"
            )


def _claims(
    path: Path, file: StudyFile, rows: tuple[Row, ...]
) -> tuple[tuple[Claim, ...], dict[str, str]]:
    claims = []
    sayings = {}
    for entry in file.claims:
        text = entry if isinstance(entry, str) else entry.claim
        try:
            claim = parse_claim(text, [row.name for row in rows], list(file.conditions))
        except ClaimError as error:
            raise ConfigurationError(f"{path}: {error}") from None
        for column in claim.columns:
            if column not in file.measures:
                raise _unknown(path, f"claim {text!r}", "measure", column, file.measures)
        if claim.text in sayings:
            raise ConfigurationError(f"{path}: claim {text!r} is listed twice")
        claims.append(claim)
        sayings[claim.text] = "" if isinstance(entry, str) else entry.says
    return tuple(claims), sayings


def _unknown(path: Path, key: str, kind: str, name: str, known: Any) -> ConfigurationError:
    names = list(known)
    match = closest(name, names)
    hint = f"did you mean {match!r}?" if match else f"the study has {', '.join(names)}"
    return ConfigurationError(f"{path}: {key}: unknown {kind} {quoted(name)}; {hint}")


def _explain(path: Path, error: ValidationError) -> str:
    lines = []
    for detail in error.errors()[:20]:
        key = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            lines.append(
                f"{path}: {key}: unknown key; known are {', '.join(StudyFile.model_fields)}"
            )
        elif detail["type"] == "missing":
            lines.append(f"{path}: {key}: expected a value, found none")
        else:
            reason = plain_reason(detail["msg"])
            lines.append(f"{path}: {key}: {reason}, got {quoted(detail['input'])}")
    return "\n".join(lines)
