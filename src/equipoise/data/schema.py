"""The schema of a data set: columns, kinds, categories, gaps, classes and repairs.

It is inferred once from whole files, so it is the same for every seed. Nothing else is taken from
all rows: everything that is learnt (means, deviations, fill values) comes from training rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from equipoise.data.findings import Finding
from equipoise.data.schema_text import schema_text
from equipoise.task import TaskKind
from equipoise.validation import safe_yaml
from equipoise.validation.names import nearest, quoted
from equipoise.validation.settings import Settings, plain_reason

Kind = Literal["number", "category", "date", "text", "identifier"]
CELL_REPAIRS = ("missing", "values", "factors")  # repairs of cells, by column
REPAIRS = ("rename", *CELL_REPAIRS)
INPUTS = ("number", "category", "date")  # kinds that a network sees
SCALED = ("number", "date")  # kinds that have a centre and a scale
# Day before month where both fit: reports on data say so.
DATES = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y/%m/%d",
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S",
    "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
    "%d-%m-%Y", "%d.%m.%y", "%Y%m%d",
)  # fmt: skip


def mixes_day_and_month(formats: Iterable[str]) -> bool:
    """Return True if 3/4/2024 is in April by one of the formats and in March by another.

    >>> mixes_day_and_month(["%d/%m/%Y", "%m/%d/%Y"]), mixes_day_and_month(["%d/%m/%Y"])
    (True, False)
    """
    orders = {form[:5] for form in formats}
    return {"%d/%m", "%m/%d"} <= orders


class _Section(Settings):
    # A category or class that looks like a number is a name here all the same.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True
    )


class Statistics(_Section):
    """Count, mean and variance of some numbers of one site."""

    count: int = Field(ge=1, description="how many numbers there are")
    mean: float = Field(description="their mean")
    variance: float = Field(ge=0, description="their variance")


class ColumnSchema(_Section):
    """One column of a table.

    Texts and identifiers are left out; give them another kind to use them. Categories, formats
    and gaps that are not given are inferred from the cells.
    """

    name: str = Field(description="name of the column")
    kind: Kind = Field(description="how its cells are read")
    categories: tuple[str, ...] = Field(
        default=(), description="of a category; every other value counts as `other`"
    )
    formats: tuple[str, ...] = Field(default=(), description="of a date, as in %d.%m.%Y")
    gaps: bool | None = Field(
        default=None, description="whether cells may be empty: a further input marks them"
    )
    centre: float | None = Field(
        default=None, description="of a number or date; `normalise: agreed` subtracts it"
    )
    scale: float | None = Field(
        default=None, gt=0, description="of a number or date; `normalise: agreed` divides by it"
    )
    statistics: Statistics | None = Field(
        default=None,
        description="of one site's numbers, from which `schema join` takes centre and scale",
    )

    @model_validator(mode="after")
    def _scales(self) -> ColumnSchema:
        entry = f"column {quoted(self.name)}"
        _check_scaling(entry, self.centre, self.scale)
        is_scaled = self.scale is not None or self.statistics is not None
        if is_scaled and self.kind not in SCALED:
            raise ValueError(
                f"{entry}: expected centre, scale and statistics for numbers and dates only, "
                f"got them for a {self.kind}"
            )
        return self

    @model_validator(mode="after")
    def _fits(self) -> ColumnSchema:
        for name, kind in (("categories", "category"), ("formats", "date")):
            value = getattr(self, name)
            if value and self.kind != kind:
                raise ValueError(
                    f"column {quoted(self.name)}: expected no {name} for a {self.kind}, "
                    f"got {quoted(value)}"
                )
        unknown = [form for form in self.formats if form not in DATES]
        if unknown:
            raise ValueError(
                f"column {quoted(self.name)}: expected formats of dates among "
                f"{', '.join(DATES)}, got {quoted(unknown[0])}"
            )
        if len(set(self.categories)) < len(self.categories):
            raise ValueError(
                f"column {quoted(self.name)}: expected different categories, "
                f"got {quoted(self.categories)}"
            )
        return self


class CodeSchema(_Section):
    """One code of patients' events, such as a laboratory test.

    Centre and scale are those of its values; a code without values has none.
    """

    name: str = Field(description="the code")
    centre: float | None = Field(default=None, description="subtracted from its values")
    scale: float | None = Field(default=None, gt=0, description="its values are divided by it")
    statistics: Statistics | None = Field(
        default=None,
        description="of one site's values, from which `schema join` takes centre and scale",
    )

    @model_validator(mode="after")
    def _scales(self) -> CodeSchema:
        _check_scaling(f"code {quoted(self.name)}", self.centre, self.scale)
        return self


def _check_scaling(entry: str, centre: float | None, scale: float | None) -> None:
    """Refuse a centre without a scale."""
    if (centre is None) != (scale is None):
        raise ValueError(
            f"{entry}: expected centre and scale together or none of them, "
            f"got centre={centre} and scale={scale}"
        )


class Repairs(_Section):
    """Changes to the tables as they are read, in this order: rename, missing, values, factors."""

    rename: dict[str, str] = Field(
        default={}, description="column in the files: name in the schema"
    )
    missing: dict[str, tuple[str, ...]] = Field(
        default={}, description="per column: cells that are gaps, besides empty ones"
    )
    values: dict[str, dict[str, str]] = Field(
        default={}, description="per column: cell text: value"
    )
    factors: dict[str, float] = Field(
        default={}, description="per column: what numbers are multiplied by"
    )

    @field_validator("values", mode="before")
    @classmethod
    def _empty_is_a_gap(cls, values: Any) -> Any:
        """Replace null by an empty cell: `unknown: null` and `unknown:` make a gap."""
        if not isinstance(values, Mapping):
            return values
        columns = {}
        for column, mapping in values.items():
            if isinstance(mapping, Mapping):
                mapping = {cell: "" if value is None else value for cell, value in mapping.items()}
            columns[column] = mapping
        return columns

    @field_validator("factors")
    @classmethod
    def _no_zero(cls, factors: dict[str, float]) -> dict[str, float]:
        for column, factor in factors.items():
            if factor == 0:
                raise ValueError(
                    f"expected factors other than 0, got {quoted(column)}: 0; "
                    "leave the column out of `columns` if it is not needed"
                )
        return factors

    @property
    def repairs(self) -> dict[str, Any]:
        """The repairs that are given, by key."""
        return {name: value for name in REPAIRS if (value := getattr(self, name))}


class Schema(Repairs):
    """The columns, classes and repairs on which all sites agree before training."""

    label: str | None = Field(default=None, description="the label column of a table")
    event: str | None = Field(
        default=None,
        description="of survival: the column of events; the label is the column of times",
    )
    intervals: int | None = Field(
        default=None, ge=2, le=1000, description="of survival: intervals of a discrete-time model"
    )
    task: TaskKind | None = Field(default=None, description="none: inferred from the labels")
    classes: tuple[str, ...] = Field(
        default=(), description="all classes; none: those of the files"
    )
    columns: tuple[ColumnSchema, ...] = Field(
        default=(), description="of a table; columns of the files that are not listed are left out"
    )
    shape: tuple[int, ...] | None = Field(
        default=None, description="of one image (channels, height, width) or of another array"
    )
    codes: tuple[CodeSchema, ...] = Field(
        default=(), description="of patients' events; all other codes count as unknown"
    )
    events: int | None = Field(
        default=None, ge=1, le=10_000, description="of each patient that are kept, the latest"
    )
    centre: float | None = Field(
        default=None,
        description="of a number that is predicted; none: the mean of all training rows",
    )
    scale: float | None = Field(
        default=None,
        gt=0,
        description="of a number that is predicted, none: the deviation of all training rows; of "
        "survival the horizon, none: the longest time of all training rows",
    )
    statistics: Statistics | None = Field(
        default=None,
        description="of one site's targets, from which `schema join` takes centre and scale",
    )
    sites: dict[str, Repairs] = Field(
        default={}, description="repairs of one site, by its name; they win over the general ones"
    )

    @model_validator(mode="after")
    def _fits(self) -> Schema:
        names = [column.name for column in self.columns]
        codes = [code.name for code in self.codes]
        for noun, values in (
            ("column names", names),
            ("classes", self.classes),
            ("codes", codes),
        ):
            repeated = [value for value, count in Counter(values).items() if count > 1]
            if repeated:
                raise ValueError(f"expected {noun} that differ, got {quoted(repeated[0])} twice")
        if self.label in names:
            raise ValueError(
                f"expected the label to be no input, got {quoted(self.label)} among the columns; "
                "remove it there"
            )
        if any(size < 1 for size in self.shape or ()):
            raise ValueError(f"expected a shape of positive numbers, got {list(self.shape or ())}")
        _check_scaling("the label", self.centre, self.scale)
        if self.classes and (self.predicts != "classification" or self.scale is not None):
            raise ValueError(
                "expected classes, or a number with centre and scale, got both; remove one"
            )
        self._check_survival(names)
        return self

    def _check_survival(self, names: Sequence[str]) -> None:
        """Refuse entries of survival in another task, and centres of times."""
        for key in ("event", "intervals"):
            if getattr(self, key) is not None and self.predicts != "survival":
                raise ValueError(
                    f"{key}: expected task: survival in the schema, got {self.predicts}; "
                    "add the task, or remove the entry"
                )
        if self.event is not None and self.event in (*names, self.label):
            raise ValueError(
                f"expected a column of events that is neither input nor label, got "
                f"{quoted(self.event)}; name another one"
            )
        if self.predicts == "survival" and self.centre not in (None, 0.0):
            raise ValueError(
                f"expected centre 0 for survival, since scale is the horizon, got {self.centre}"
            )

    @property
    def predicts(self) -> TaskKind | None:
        """The task, if it follows from the schema."""
        if self.task is not None:
            return self.task
        if self.scale is not None:
            return "regression"
        return "classification" if self.classes else None

    @property
    def inputs(self) -> tuple[ColumnSchema, ...]:
        """The columns that a network sees."""
        return tuple(column for column in self.columns if column.kind in INPUTS)

    @property
    def all_repairs(self) -> dict[str, Any]:
        """The general repairs and those of single sites, by key."""
        by_site = {site: repairs.repairs for site, repairs in self.sites.items() if repairs.repairs}
        if not by_site:
            return self.repairs
        return {**self.repairs, "sites": by_site}

    def repairs_of(self, site: str | None) -> Repairs:
        """Return the general repairs, with those of one site.

        A site's entry for a column replaces the general one; of `values`, its entry for a cell.

        Args:
            site: The site; none or an unknown one: the general repairs.
        """
        specific = self.sites.get(site, Repairs()) if site is not None else Repairs()
        values = {name: dict(cells) for name, cells in self.values.items()}
        for name, cells in specific.values.items():
            values[name] = {**values.get(name, {}), **cells}
        return Repairs(
            rename={**self.rename, **specific.rename},
            missing={**self.missing, **specific.missing},
            values=values,
            factors={**self.factors, **specific.factors},
        )

    def empties(self, column: str) -> bool:
        """Return True if repairs of all sites, or of one, make gaps of some cells of a column."""
        return any(
            repairs.missing.get(column) or "" in repairs.values.get(column, {}).values()
            for repairs in (self, *self.sites.values())
        )

    def only_of_site(self, site: str) -> Schema:
        """Return a schema that has nothing but the repairs of one site."""
        if site not in self.sites:
            return Schema()
        return Schema(sites={site: self.sites[site]})

    def with_repairs(self, fragment: Mapping[str, Any]) -> Schema:
        """Return this schema with the repairs of a fragment added.

        Args:
            fragment: A mapping with the keys of a schema; columns are matched by their names.

        Raises:
            ValueError: If the fragment has a key that a schema has not.
        """
        plain = self.plain()
        columns = {column["name"]: column for column in plain.get("columns", [])}
        for column in fragment.get("columns", []):
            columns[column["name"]] = {**columns.get(column["name"], {}), **column}
        rest = {key: value for key, value in fragment.items() if key != "columns"}
        merged = _merged(plain, rest)
        if columns:
            merged["columns"] = list(columns.values())
        result = schema_from(merged)
        assert result is not None
        return result

    def plain(self) -> dict[str, Any]:
        """Return the schema as plain data without defaults, with the repairs last."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        repairs = [key for key in (*REPAIRS, "sites") if key in values]
        others = [key for key in values if key not in repairs]
        return {key: values[key] for key in [*others, *repairs]}

    def save(self, file: Path, findings: Sequence[Finding] = (), reasons: bool = True) -> None:
        """Write the schema as YAML, with the repairs that findings propose as comments.

        Args:
            file: The file.
            findings: The findings.
            reasons: False to leave out the reasons of proposals, which quote cells and ranges.
        """
        file.write_text(schema_text(self.plain(), findings, reasons), encoding="utf-8")


def schema_from(value: Any) -> Schema | None:
    """Return a schema.

    Args:
        value: None, a schema, a mapping, or the path of a YAML file.

    Raises:
        ValueError: If there is no such file, or a key or value is not one of a schema.
    """
    if value is None or isinstance(value, Schema):
        return value
    name = "a schema"
    if isinstance(value, (str, Path)):
        name = str(value)
        if not Path(value).is_file():
            raise ValueError(
                f"expected a schema, or the path of its YAML file, got {quoted(name)}; "
                "`equipoise data check FOLDER --save` writes one"
            )
        value = safe_yaml.read(value)
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{name}: expected a mapping with columns and classes, got {quoted(value)}"
        )
    try:
        return Schema(**value)
    except ValidationError as error:
        raise _readable_error(name, error.errors()[0]) from None
    except TypeError:  # a key that is no text
        raise ValueError(f"{name}: expected text as keys, got {quoted(list(value)[:5])}") from None


def _readable_error(name: str, details: Any) -> ValueError:
    """Return one error of pydantic as a sentence that names the key.

    Args:
        name: The file, or `a schema`.
        details: The error, as pydantic describes it.
    """
    keys = [str(key) for key in details["loc"]]
    if details["type"] == "extra_forbidden":
        sections: dict[str, type[_Section]] = {
            "columns": ColumnSchema,
            "codes": CodeSchema,
            "sites": Repairs,
        }
        section = Statistics if "statistics" in keys[:-1] else sections.get(keys[0], Schema)
        return nearest(f"key of {name}", keys[-1], list(section.model_fields))
    location = f"{'.'.join(keys)}: " if keys else ""
    message = plain_reason(details["msg"])
    value = "" if "got" in message else f", got {quoted(details['input'])}"
    return ValueError(f"{name}: {location}{message}{value}")


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings and lists joined; other values of the second replace the first's."""
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(old, value)
        elif isinstance(old, (list, tuple)) and isinstance(value, (list, tuple)):
            result[key] = list(dict.fromkeys([*map(str, old), *map(str, value)]))
        else:
            result[key] = value
    return result
