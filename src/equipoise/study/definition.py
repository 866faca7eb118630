"""A study: the file that defines a table, its claims and its scales."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from equipoise.comparison.measures import measures
from equipoise.comparison.plan import VALIDATION
from equipoise.comparison.served import SELECTED
from equipoise.comparison.targets import BEST, Target, checked_target
from equipoise.experiment import ConfigurationError, load, with_settings
from equipoise.metrics.registry import find
from equipoise.runs.aggregates import CHANGES
from equipoise.runs.baseline import ALONE
from equipoise.study.claims import EVERY_OTHER, Claim, ClaimError, parse_claim, split_column
from equipoise.study.verdicts import opponents
from equipoise.validation.imports import OWN, FromFile, Imports, permitted
from equipoise.validation.names import closest, quoted
from equipoise.validation.settings import plain_reason

PAPER = "paper"
FEDAVG = "fedavg"
FRACTION = "fraction"
AGAINST_ALONE = (*CHANGES, "cf")
"""Measures that compare a row with training alone."""
LEVELS = ("average", "worst", "best", "std")
"""Numbers over the clients of a row alone."""
OF_ROWS = ("method", "seed")  # keys of an experiment that rows and seeds of a study set
SCALED = (
    "rounds",
    "participation",
    "evaluation.every",
    "model",
    "data.name",
    "data.samples",
    "data.clients",
    "data.events",
    "data.image_size",
    "training.epochs",
    "training.lr",
    "training.batch",
)
"""Settings that a scale may change, with the keys below them.

A smaller data set may need a smaller model and other steps of training. What a condition is about,
such as the partition, is the same at every scale.
"""


def _checked_scale_name(name: str) -> str:
    # The name becomes a part of the name of the file of results.
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
        raise ValueError(
            "expected a name of letters, digits, - and _, with . inside only; rename the scale"
        )
    return name


def _checked_distinct(values: list[Any]) -> list[Any]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise ValueError(f"expected distinct entries, found {value} twice; remove one")
    return values


def _as_claim_entry(value: Any) -> Any:
    if isinstance(value, str):
        return {"claim": value}
    if not isinstance(value, (Mapping, ClaimEntry)):
        raise ValueError(
            "expected a claim such as 'fedavg.average > 0.8', or a mapping with claim and says"
        )
    return value


ScaleName = Annotated[str, AfterValidator(_checked_scale_name)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_checked_distinct)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_checked_distinct)]


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

    core_hours: float = Field(gt=0, allow_inf_nan=False, description="expected cost of all runs")
    seeds: Seeds | None = Field(default=None, description="in place of the study's")
    conditions: Names | None = Field(default=None, description="a part of the study's")
    seeds_at: dict[str, Seeds] = Field(
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
    seeds: Seeds
    measures: Names = Field(description="columns, such as average, worst, cf")
    baselines: Literal["standalone", "none"] = "standalone"
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
    claims: list[Annotated[ClaimEntry, BeforeValidator(_as_claim_entry)]] = Field(
        default_factory=list, description="a claim, or a mapping with the claim and what it says"
    )
    figures: list[FigureEntry] = Field(
        default_factory=list, description="default: bars of the first measure, and curves"
    )
    scales: dict[ScaleName, Scale] = Field(min_length=1)


_ENTRIES: Mapping[str, type[BaseModel]] = {
    "source": Source,
    "claims": ClaimEntry,
    "figures": FigureEntry,
    "scales": Scale,
}


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

    def test(self, condition: str) -> str:
        """Return the setting `data.test` under a condition: "local", "global" or "site"."""
        data = with_settings(self.file.experiment, self.file.conditions[condition]).get("data", {})
        return str(data.get("test", "local")) if isinstance(data, Mapping) else "local"


def load_study(path: Path | str, allow_imports: Iterable[str] = ()) -> Study:
    """Read and check a study.

    Everything that the file names is checked before anything runs: measures, rows and conditions of
    printed numbers, claims and targets, conditions of scales. Methods, served models and partitions
    are checked when the study is planned (`study.plan`).

    Args:
        path: The file.
        allow_imports: Packages that code named in the file may be imported from.

    Raises:
        ConfigurationError: Naming the file and every mistake.
    """
    path = Path(path)
    content = _content(path)
    try:
        file = StudyFile.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigurationError(_explain(path, error)) from None
    _check_shared_settings(path, file)
    rows = _rows(path, file)
    _check_measures(path, file)
    target = _target(path, file, rows)
    _check_printed(path, file, rows)
    _check_scales(path, file)
    _check_figures(path, file, rows)
    claims, sayings = _claims(path, file, rows)
    return Study(path, file, rows, claims, sayings, permitted(content, allow_imports), target)


def trains_alone(method: Any) -> bool:
    """Return True if a method of a study's file is training alone."""
    name = method.get("name") if isinstance(method, Mapping) else method
    return bool(name == ALONE)


def _content(path: Path) -> FromFile:
    """Return the content of a study's file; the file of an experiment is recognised."""
    if not path.exists():
        raise ConfigurationError(
            f"no study file {path}; expected the path of a YAML file with methods, conditions and "
            "claims"
        )
    content = load(path)
    top = [key for key in ("data", "method") if key in content]
    if top and "experiment" not in content:
        raise ConfigurationError(
            f"{path}: expected a study, found an experiment ({' and '.join(top)} at the top level);"
            f" use `equipoise run {path}` or `equipoise compare {path}`"
        )
    return content


def _check_shared_settings(path: Path, file: StudyFile) -> None:
    """Refuse methods and seeds in the shared experiment, where they would have no effect."""
    sections = {"experiment": file.experiment}
    sections |= {f"conditions.{name}": settings for name, settings in file.conditions.items()}
    for section, settings in sections.items():
        for key in settings:
            if key.partition(".")[0] in OF_ROWS:
                raise ConfigurationError(
                    f"{path}: {section}.{key}: expected settings that all rows and seeds share, "
                    f"found {quoted(settings[key])}; use `methods` and `seeds` of the study"
                )


def _rows(path: Path, file: StudyFile) -> tuple[Row, ...]:
    rows: list[Row] = []
    if ALONE in file.methods:
        _check_standalone(path, file.methods[ALONE])
    for name, method in file.methods.items():
        if "." in name:
            raise ConfigurationError(
                f"{path}: methods: expected names without a point, got {quoted(name)}; "
                "the point separates a method from a served model"
            )
        settings = method if isinstance(method, Mapping) else {}
        rows.extend(_rows_of_method(path, name, settings))
    return tuple(rows)


def _check_standalone(path: Path, method: Any) -> None:
    """Refuse another method, or other settings, under the name of the baseline."""
    own = set(method) - {"name", "model", "serves", "select"} if isinstance(method, Mapping) else ()
    if own or not trains_alone(method):
        raise ConfigurationError(
            f"{path}: methods.{ALONE}: expected training alone with the shared settings, which "
            f"changes are counted against, got {quoted(method)}; give the row another name"
        )


def _rows_of_method(path: Path, name: str, settings: Mapping[str, Any]) -> list[Row]:
    rows = [Row(name, name, None)]
    served = settings.get("serves")
    if served is not None:
        is_list = isinstance(served, list) and all(isinstance(model, str) for model in served)
        if not is_list or not served or len(set(served)) < len(served):
            raise ConfigurationError(
                f"{path}: methods.{name}.serves: expected a list of distinct models, "
                f"got {quoted(served)}"
            )
        rows = [Row(f"{name}.{model}", name, model) for model in served]
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
    known.remove("majority")  # of data, which results do not have
    for column in file.measures:
        name, group = split_column(column) or ("", None)
        if not name:
            raise ConfigurationError(
                f"{path}: measures: expected a measure such as average, or one of a group such as "
                f"average[mnist], got {quoted(column)}"
            )
        if name not in known:
            match = closest(name, known)
            hint = f"did you mean {match!r}?" if match else f"known are {', '.join(known)}"
            raise ConfigurationError(f"{path}: measures: unknown measure {quoted(column)}; {hint}")
        if group is not None and name not in (*LEVELS, *AGAINST_ALONE):
            raise ConfigurationError(
                f"{path}: measures: {quoted(column)}: {name} is not known for single groups; "
                f"expected a group of {', '.join((*LEVELS, *AGAINST_ALONE))}"
            )
        if name in AGAINST_ALONE and file.baselines == "none":
            raise ConfigurationError(
                f"{path}: measures: {column} compares with training alone, but the study has "
                "`baselines: none`; remove one of the two"
            )


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
    return all(_is_finite_number(number) for number in numbers)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _check_scales(path: Path, file: StudyFile) -> None:
    for name, scale in file.scales.items():
        for condition in [*(scale.conditions or ()), *scale.seeds_at]:
            if condition not in file.conditions:
                raise _unknown(path, f"scales.{name}", "condition", condition, file.conditions)
        for key in scale.settings:
            if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in SCALED):
                raise ConfigurationError(
                    f"{path}: scales.{name}.settings: {quoted(key)} is no setting that a scale may "
                    f"change; expected {', '.join(SCALED)}, or a key below one of them"
                )


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
        try:
            claim = parse_claim(entry.claim, [row.name for row in rows], list(file.conditions))
        except ClaimError as error:
            raise ConfigurationError(f"{path}: {error}") from None
        for column in claim.columns:
            if column not in file.measures:
                raise _unknown(path, f"claim {claim.text!r}", "measure", column, file.measures)
        if claim.text in sayings:
            raise ConfigurationError(f"{path}: claim {claim.text!r} is listed twice")
        _check_opponents(path, claim, file, rows)
        claims.append(claim)
        sayings[claim.text] = entry.says
    return tuple(claims), sayings


def _check_opponents(path: Path, claim: Claim, file: StudyFile, rows: Sequence[Row]) -> None:
    """Refuse `every other` where no other method can have the measure."""
    comparing = claim.left.measure in AGAINST_ALONE
    names = [row.name for row in rows if not (comparing and trains_alone(file.methods[row.method]))]
    if not opponents(claim, names):
        raise ConfigurationError(
            f"{path}: claim {claim.text!r}: {EVERY_OTHER!r} needs another method with "
            f"{claim.left.measure}, but the study has none; name a row or a number"
        )


def _unknown(path: Path, key: str, kind: str, name: str, known: Any) -> ConfigurationError:
    names = list(known)
    match = closest(name, names)
    hint = f"did you mean {match!r}?" if match else f"the study has {', '.join(names)}"
    return ConfigurationError(f"{path}: {key}: unknown {kind} {quoted(name)}; {hint}")


def _explain(path: Path, error: ValidationError) -> str:
    return "\n".join(f"{path}: {_mistake(detail)}" for detail in error.errors()[:20])


def _mistake(detail: Any) -> str:
    """Return a mistake of the file as a sentence that begins with its key."""
    location = [str(part) for part in detail["loc"] if part != "[key]"]
    key = ".".join(location)
    if detail["type"] == "extra_forbidden":
        section = _ENTRIES.get(location[0], StudyFile) if len(location) > 1 else StudyFile
        return f"{key}: unknown key; known are {', '.join(section.model_fields)}"
    if detail["type"] == "missing":
        return f"{key}: expected a value, found none"
    reason = plain_reason(detail["msg"])
    if detail["type"] == "too_short":
        reason = "expected at least one entry"
    return f"{key}: {reason}, got {quoted(detail['input'])}"
