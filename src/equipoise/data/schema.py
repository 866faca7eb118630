"""What a data set is made of: columns, kinds, categories, gaps, classes. Decided once from whole files, so it is the same whatever the seed.

The schema is the only thing that is read from all rows. Everything that is learnt (means, deviations, what fills a gap) comes from training rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from equipoise.validation import safe_yaml
from equipoise.validation.names import nearest, quoted
from equipoise.validation.settings import Settings

Kind = Literal["number", "category", "date", "text", "identifier"]
REPAIRS = ("rename", "missing", "values", "factors")
INPUTS = ("number", "category", "date")  # kinds that a network sees
# Day before month where both fit: whoever shows the schema says so.
DATES = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y/%m/%d",
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y", "%d.%m.%y", "%Y%m%d",
)  # fmt: skip


class _Section(Settings):
    # A category or class that looks like a number is a name here all the same.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True
    )


class ColumnSchema(_Section):
    """One column of a table. Texts and identifiers are left out; give them another kind to use them.

    Categories, formats and gaps that are not given are taken from the cells.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = Field(
        (), description="of a category; every other value counts as `other`"
    )
    formats: tuple[str, ...] = Field((), description="of a date, as in %d.%m.%Y")
    gaps: bool | None = Field(
        None, description="whether cells may be empty: a further input marks them"
    )

    @model_validator(mode="after")
    def _fits(self) -> ColumnSchema:
        for name, kind in (("categories", "category"), ("formats", "date")):
            value = getattr(self, name)
            if value and self.kind != kind:
                raise ValueError(
                    f"column {quoted(self.name)}: expected no {name} for a {self.kind}, got {quoted(value)}"
                )
        unknown = [form for form in self.formats if form not in DATES]
        if unknown:
            raise ValueError(
                f"column {quoted(self.name)}: expected formats of dates among {', '.join(DATES)}, got {quoted(unknown[0])}"
            )
        if len(set(self.categories)) < len(self.categories):
            raise ValueError(
                f"column {quoted(self.name)}: expected different categories, got {quoted(self.categories)}"
            )
        return self


class Repairs(_Section):
    """Changes to the tables as they are read, in this order: rename, missing, values, factors."""

    rename: dict[str, str] = Field({}, description="column in the files: name in the schema")
    missing: dict[str, tuple[str, ...]] = Field(
        {}, description="per column: cells that are gaps, besides empty ones"
    )
    values: dict[str, dict[str, str]] = Field({}, description="per column: cell text: value")
    factors: dict[str, float] = Field({}, description="per column: what numbers are multiplied by")

    @field_validator("values", mode="before")
    @classmethod
    def _empty_is_a_gap(cls, values: Any) -> Any:
        """`unknown: null` and `unknown:` mean that the cell becomes a gap."""
        if not isinstance(values, Mapping):
            return values
        return {
            column: {cell: "" if value is None else value for cell, value in mapping.items()}
            if isinstance(mapping, Mapping)
            else mapping
            for column, mapping in values.items()
        }

    @field_validator("factors")
    @classmethod
    def _no_zero(cls, factors: dict[str, float]) -> dict[str, float]:
        for column, factor in factors.items():
            if factor == 0:
                raise ValueError(
                    f"expected factors other than 0, got {quoted(column)}: 0; "
                    "leave the column out of `columns` if it is not wanted"
                )
        return factors

    @property
    def repairs(self) -> dict[str, Any]:
        """The repairs that are given, by key."""
        return {name: value for name in REPAIRS if (value := getattr(self, name))}


class Schema(Repairs):
    """What all sites agree on before anything is trained, and how their files are brought to it."""

    label: str | None = Field(None, description="the label column of a table")
    task: Literal["classification", "regression"] | None = None
    classes: tuple[str, ...] = ()
    columns: tuple[ColumnSchema, ...] = Field(
        (), description="of a table; columns of the files that are not listed are left out"
    )
    shape: tuple[int, ...] | None = Field(None, description="of images: channels, height, width")
    centre: float | None = Field(
        None,
        description="of a number that is predicted; none: the mean of all training rows of a simulation",
    )
    scale: float | None = Field(
        None,
        gt=0,
        description="of a number that is predicted; none: the deviation of all training rows",
    )
    sites: dict[str, Repairs] = Field(
        {}, description="repairs of one site, by its name; they win over the general ones"
    )

    @model_validator(mode="after")
    def _fits(self) -> Schema:
        names = [column.name for column in self.columns]
        for what, values in (("column names", names), ("classes", list(self.classes))):
            twice = (
                [value for value in dict.fromkeys(values) if values.count(value) > 1]
                if len(set(values)) < len(values)
                else []
            )
            if twice:
                raise ValueError(f"expected {what} that differ, got {quoted(twice[0])} twice")
        if self.label in names:
            raise ValueError(
                f"expected the label to be no input, got {quoted(self.label)} among the columns; remove it there"
            )
        if (self.centre is None) != (self.scale is None):
            raise ValueError(
                f"expected centre and scale together or none of them, got centre={self.centre} and scale={self.scale}"
            )
        if self.classes and (self.task == "regression" or self.scale is not None):
            raise ValueError(
                "expected classes, or a number with centre and scale, got both; remove one"
            )
        return self

    @property
    def predicts(self) -> Literal["classification", "regression"] | None:
        """The task, if the schema tells it."""
        return self.task or (
            "regression" if self.scale is not None else "classification" if self.classes else None
        )

    @property
    def inputs(self) -> tuple[ColumnSchema, ...]:
        """The columns that a network sees."""
        return tuple(column for column in self.columns if column.kind in INPUTS)

    @property
    def all_repairs(self) -> dict[str, Any]:
        """The general repairs and those of single sites, by key."""
        own = {site: found for site, one in self.sites.items() if (found := one.repairs)}
        return {**self.repairs, **({"sites": own} if own else {})}

    def repairs_of(self, site: str | None) -> Repairs:
        """Return the repairs of one site.

        Its own entry for a column replaces the general one; of `values`, its own entry for a cell.
        """
        own = self.sites.get(site, Repairs()) if site is not None else Repairs()
        values = {name: dict(cells) for name, cells in self.values.items()}
        for name, cells in own.values.items():
            values[name] = {**values.get(name, {}), **cells}
        return Repairs(
            rename={**self.rename, **own.rename},
            missing={**self.missing, **own.missing},
            values=values,
            factors={**self.factors, **own.factors},
        )

    def with_repairs(self, fragment: Mapping[str, Any]) -> Schema:
        """Return this schema with the repairs of a fragment added.

        Args:
            fragment: A mapping with the keys of a schema; columns are matched by their names.

        Raises:
            ValueError: The fragment has a key that a schema has not.
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
        """Return the schema as plain data, without what says nothing."""
        found = self.model_dump(mode="json", exclude_defaults=True)
        last = [key for key in (*REPAIRS, "sites") if key in found]
        return {key: found[key] for key in [*(k for k in found if k not in last), *last]}

    def save(self, file: Path, findings: Sequence[Finding] = ()) -> None:
        """Write the schema as YAML, with the repairs that findings propose as comments."""
        file.write_text(schema_text(self.plain(), findings), encoding="utf-8")


def schema_from(given: Any) -> Schema | None:
    """A schema as it may be given: none, a schema, a mapping, or the path of a YAML file."""
    if given is None or isinstance(given, Schema):
        return given
    where = "a schema"
    if isinstance(given, (str, Path)):
        where = str(given)
        if not Path(given).is_file():
            raise ValueError(
                f"expected a schema, or the path of its YAML file, got {quoted(where)}; `equipoise data check FOLDER --save` writes one"
            )
        given = safe_yaml.read(given)
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{where}: expected a mapping with columns and classes, got {quoted(given)}"
        )
    try:
        return Schema(**given)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        if wrong["type"] == "extra_forbidden":
            sections: dict[str, type[_Section]] = {"columns": ColumnSchema, "sites": Repairs}
            section = sections.get(str(wrong["loc"][0]), Schema)
            raise nearest(
                f"key of {where}", str(wrong["loc"][-1]), list(section.model_fields)
            ) from None
        raise ValueError(
            f"{where}: {place + ': ' if place else ''}{wrong['msg'].removeprefix('Value error, ')}"
            + _came(wrong)
        ) from None
    except TypeError:  # a key that is no text
        raise ValueError(f"{where}: expected text as keys, got {quoted(list(given)[:5])}") from None


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings joined; lists are joined, too, and other values of the second win."""
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


def _came(wrong: Any) -> str:
    return "" if "got" in wrong["msg"] else f", got {quoted(wrong['input'])}"
