"""What a data set is made of: columns, kinds, categories, gaps, classes. Decided once from whole files, so it is the same whatever the seed.

The schema is the only thing that is read from all rows. Everything that is learnt (means, deviations, what fills a gap) comes from training rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equipoise.validation import safe_yaml
from equipoise.validation.names import nearest, quoted

Kind = Literal["number", "category", "date", "text", "identifier"]
INPUTS = ("number", "category", "date")  # kinds that a network sees
# Day before month where both fit: whoever shows the schema says so.
DATES = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y/%m/%d",
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y", "%d.%m.%y", "%Y%m%d",
)  # fmt: skip


class _Section(BaseModel):
    # A category or class that looks like a number is a name here all the same.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True
    )


class ColumnSchema(_Section):
    """One column of a table. Texts and identifiers are left out; give them another kind to use them."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = Field(
        (), description="of a category; every other value counts as `other`"
    )
    formats: tuple[str, ...] = Field((), description="of a date, as in %d.%m.%Y")
    gaps: bool = Field(False, description="whether cells may be empty: a further input marks them")

    @model_validator(mode="after")
    def _fits(self) -> ColumnSchema:
        wrong = [
            name
            for name, kind in (("categories", "category"), ("formats", "date"))
            if bool(getattr(self, name)) != (self.kind == kind)
        ]
        if wrong:
            needs = (
                f"a {self.kind} with {wrong[0]}"
                if not getattr(self, wrong[0])
                else f"no {wrong[0]} for a {self.kind}"
            )
            raise ValueError(
                f"column {quoted(self.name)}: expected {needs}, got {quoted(getattr(self, wrong[0]))}"
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


class Schema(_Section):
    """What all sites agree on before anything is trained."""

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

    def plain(self) -> dict[str, Any]:
        """As plain data, without what says nothing."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def save(self, file: Path) -> None:
        file.write_text(
            yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True), encoding="utf-8"
        )


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
            section = ColumnSchema if wrong["loc"][0] == "columns" else Schema
            raise nearest(
                f"key of {where}", place.rpartition(".")[2], list(section.model_fields)
            ) from None
        raise ValueError(
            f"{where}: {place + ': ' if place else ''}{wrong['msg'].removeprefix('Value error, ')}"
            + _came(wrong)
        ) from None
    except TypeError:  # a key that is no text
        raise ValueError(f"{where}: expected text as keys, got {quoted(list(given)[:5])}") from None


def _came(wrong: Any) -> str:
    return "" if "got" in wrong["msg"] else f", got {quoted(wrong['input'])}"
