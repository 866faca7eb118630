"""One schema from those of several sites: the agreement by which each prepares its data alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.data.findings import DataErrors
from equipoise.data.message_text import some
from equipoise.data.schema import (
    CELL_REPAIRS,
    INPUTS,
    CodeSchema,
    ColumnSchema,
    Repairs,
    Schema,
    Statistics,
)
from equipoise.data.schema_statistics import rounded
from equipoise.data.tables.cell_numbers import is_number
from equipoise.data.tables.label_findings import are_shifted, split_classes
from equipoise.data.tables.repairs import name_key
from equipoise.data.tables.schema_inference import after_values
from equipoise.data.tables.unit_findings import LEAST, Spread, other_unit, usual_spread
from equipoise.validation.names import quoted

_DAY_AND_MONTH = ("%d/", "%m/")  # beginnings of formats in which one date may have two meanings
# Key of a schema -> its noun, and what to do if sites differ.
_DIFFERENCES = {
    "label": ("label", "choose the same column at both sites (`data check --label`)"),
    "predicts": ("task", "choose the same at both sites (`data check --set data.task=...`)"),
    "shape": (
        "shape of inputs",
        "choose one, with `data check --set data.image_size=...` or in both files",
    ),
}
_Scaled = ColumnSchema | CodeSchema | Schema  # entries that may have centre, scale, statistics


@dataclass(frozen=True)
class JoinedSchema:
    """The schema of all sites.

    Attributes:
        schema: The schema.
        warnings: Sentences about what a person should check before training.
    """

    schema: Schema
    warnings: tuple[str, ...] = ()


def join_schemas(schemas: Mapping[str, Schema]) -> JoinedSchema:
    """Return one schema of the schemas of several sites.

    Classes, categories, formats of dates, codes and gap marks are united. Centres and scales are
    computed from the statistics of the sites, if the files have them.

    Args:
        schemas: The schema of each site, by the name of its file.

    Raises:
        DataErrors: If they describe different tasks; it lists every difference by name.
    """
    problems: list[str] = []
    warnings: list[str] = []
    schemas = _with_replaced_names(_with_used_names(schemas))
    merged: dict[str, Any] = {}
    for key in ("label", "predicts", "shape"):
        merged[key] = _same(schemas, key, problems)
    merged["task"] = merged.pop("predicts")
    merged |= _joined_repairs(schemas, problems)
    values = merged["values"].get(merged["label"], {})
    merged["classes"] = _joined_classes(schemas, merged["label"], values, problems, warnings)
    merged["columns"] = _joined_columns(schemas, problems, warnings)
    merged["codes"] = _joined_codes(schemas, problems, warnings)
    merged["events"] = max((schema.events or 0 for schema in schemas.values()), default=0) or None
    merged |= _scaling(schemas, "the label", problems)
    warnings += _other_units(schemas, merged["label"] or "label")
    warnings += _partial_statistics(schemas)
    merged["sites"] = _joined_sites(schemas, problems)
    if problems:
        raise DataErrors(problems)
    schema = Schema(**merged)
    return JoinedSchema(_with_gaps_of_repairs(schema), tuple(warnings))


def _with_replaced_names(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas with classes and categories as the `values` of their own sites name them.

    Classes and categories were saved before a person mapped them under `sites`.
    """
    result = {}
    for file, schema in schemas.items():
        values = _values_of_sites(schema)
        columns = []
        for column in schema.columns:
            categories = after_values(column.categories, values.get(column.name, {}))
            columns.append(column.model_copy(update={"categories": categories}))
        classes = after_values(schema.classes, values.get(schema.label or "", {}))
        update = {"columns": tuple(columns), "classes": classes}
        result[file] = schema.model_copy(update=update)
    return result


def _values_of_sites(schema: Schema) -> dict[str, dict[str, str]]:
    """Return column -> cell -> the text in its place, where all sites of a file have the same.

    A cell that another site of the file leaves as it is may still occur.
    """
    sites = list(schema.sites.values())
    if not sites:
        return {}
    common: dict[str, dict[str, str]] = {}
    for column, cells in sites[0].values.items():
        for cell, text in cells.items():
            if all(site.values.get(column, {}).get(cell) == text for site in sites):
                common.setdefault(column, {})[cell] = text
    return common


def _same(schemas: Mapping[str, Schema], key: str, problems: list[str]) -> Any:
    """Return the value that all schemas have for a key."""
    (first, schema), *others = schemas.items()
    value = getattr(schema, key)
    noun, remedy = _DIFFERENCES[key]
    for other, schema in others:
        if getattr(schema, key) != value:
            problems.append(
                f"{first} and {other}: expected one {noun}, got {_shown(value)} and "
                f"{_shown(getattr(schema, key))}; {remedy}"
            )
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return quoted(value)


def _joined_classes(
    schemas: Mapping[str, Schema],
    label: str | None,
    values: Mapping[str, str],
    problems: list[str],
    warnings: list[str],
) -> tuple[str, ...]:
    """Return the classes of all sites; one class under two names is a problem.

    Args:
        schemas: The schema of each file.
        label: The label column.
        values: The classes that all sites write in place of cells.
        problems: A list that receives what differs.
        warnings: A list that receives what a person should check.
    """
    classes_of = {file: after_values(schema.classes, values) for file, schema in schemas.items()}
    counts = {file: Counter(names) for file, names in classes_of.items()}
    files = {file: file for file in schemas}
    problems += [finding.message for finding in split_classes(counts, label or "label", files)]
    if are_shifted(names for names in classes_of.values() if names):
        codings = [f"{' and '.join(names)} in {file}" for file, names in classes_of.items()]
        warnings.append(
            f"the label {quoted(label)} has two classes in every file, but not the same: "
            f"{some(codings)}; if they mean the same, map them under `values` of one site"
        )
    classes = _united(list(classes_of.values()))
    if all(map(is_number, classes)):
        return tuple(sorted(classes, key=lambda name: (float(name), name)))
    return classes


def _united(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names of all lists: in their order if it is one, else sorted."""
    if len(set(lists)) == 1:
        return lists[0]
    return tuple(sorted({name for names in lists for name in names}))


def _joined_columns(
    schemas: Mapping[str, Schema], problems: list[str], warnings: list[str]
) -> tuple[ColumnSchema, ...]:
    """Return the columns of all sites, in the order of the first."""
    by_name: dict[str, dict[str, ColumnSchema]] = {}
    for file, schema in schemas.items():
        for column in schema.columns:
            by_name.setdefault(column.name, {})[file] = column
    columns = []
    for name, of_files in by_name.items():
        problem = _lacking(name, of_files, schemas) or _differing_kinds(name, of_files)
        if problem:
            problems.append(problem)
        else:
            columns.append(_joined_column(name, of_files, problems, warnings))
    return tuple(columns)


def _with_used_names(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas with one name for each column, also in their repairs."""
    used_names = _used_names(schemas)
    result = {}
    for file, schema in schemas.items():
        names = {column.name: used_names[file, column.name] for column in schema.columns}
        columns = [
            column.model_copy(update={"name": names[column.name]}) for column in schema.columns
        ]
        sites = {}
        for site, repairs in schema.sites.items():
            sites[site] = repairs.model_copy(update=_renamed_repairs(repairs, names))
        update = {"columns": tuple(columns), "sites": sites, **_renamed_repairs(schema, names)}
        result[file] = schema.model_copy(update=update)
    return result


def _renamed_repairs(repairs: Repairs, names: Mapping[str, str]) -> dict[str, Any]:
    """Return repairs with other names of columns, by key."""
    renamed: dict[str, Any] = {
        "rename": {column: names.get(new, new) for column, new in repairs.rename.items()}
    }
    for key in CELL_REPAIRS:
        entries = getattr(repairs, key)
        renamed[key] = {names.get(column, column): entry for column, entry in entries.items()}
    return renamed


def _used_names(schemas: Mapping[str, Schema]) -> dict[tuple[str, str], str]:
    """Return the name that is used for each column of each file.

    Names that differ in case or blanks only are one column, as when tables are read, unless a
    file has both.
    """
    used: dict[tuple[str, str], str] = {}
    first_spelling: dict[str, str] = {}
    for file, schema in schemas.items():
        keys = Counter(name_key(column.name) for column in schema.columns)
        for column in schema.columns:
            key = name_key(column.name)
            name = column.name
            if keys[key] == 1:
                name = first_spelling.setdefault(key, column.name)
            used[file, column.name] = name
    return used


def _lacking(
    name: str, of_files: Mapping[str, ColumnSchema], schemas: Mapping[str, Schema]
) -> str | None:
    """Return a sentence if an input is not a column of all sites."""
    without = [file for file, schema in schemas.items() if file not in of_files]
    is_input = any(column.kind in INPUTS for column in of_files.values())
    if not without or not is_input:
        return None
    return (
        f"column {quoted(name)} of {some(of_files)}: expected it at all sites, got none in "
        f"{some(without)}; remove it from {some(of_files)}, or rename the column that holds it "
        "(`rename`)"
    )


def _differing_kinds(name: str, of_files: Mapping[str, ColumnSchema]) -> str | None:
    """Return a sentence if sites give a column different kinds."""
    (first, column), *others = of_files.items()
    for other, differing in others:
        if differing.kind != column.kind:
            return (
                f"column {quoted(name)}: expected one kind, got {column.kind} in {first} and "
                f"{differing.kind} in {other}; correct the kind in one of the files, or leave the "
                "column out of both"
            )
    return None


def _joined_column(
    name: str, of_files: Mapping[str, ColumnSchema], problems: list[str], warnings: list[str]
) -> ColumnSchema:
    kind = next(iter(of_files.values())).kind
    categories = _united([column.categories for column in of_files.values()])
    if kind == "category":
        warnings += _disjoint_categories(name, of_files)
    formats: dict[str, None] = {}
    for column in of_files.values():
        formats.update(dict.fromkeys(column.formats))
    problems += _mixed_dates(name, of_files)
    if kind == "number":
        warnings += _other_units(of_files, name)
    return ColumnSchema(
        name=name,
        kind=kind,
        categories=categories,
        formats=tuple(formats),
        gaps=_any_gaps(of_files.values()),
        **_scaling(of_files, f"column {quoted(name)}", problems),
    )


def _any_gaps(columns: Iterable[ColumnSchema]) -> bool | None:
    """Return True if a site has gaps; None if no site says so and some leave it open."""
    values = [column.gaps for column in columns]
    if True in values:
        return True
    return None if None in values else False


def _disjoint_categories(name: str, of_files: Mapping[str, ColumnSchema]) -> list[str]:
    """Return a warning if two sites have no category in common, as with 0/1 and f/m."""
    (first, column), *others = of_files.items()
    for other, differing in others:
        if not set(column.categories) & set(differing.categories):
            return [
                f"column {quoted(name)}: {first} and {other} have no category in common "
                f"({some(column.categories)}; {some(differing.categories)}); if they mean the "
                "same, map them under `values` of one site"
            ]
    return []


def _mixed_dates(name: str, of_files: Mapping[str, ColumnSchema]) -> list[str]:
    """Return a sentence if 3/4/2024 is in April at one site and in March at another."""
    users: dict[str, str] = {}
    for file, column in of_files.items():
        for start in _DAY_AND_MONTH:
            if any(form.startswith(start) for form in column.formats):
                users.setdefault(start, file)
    if len(users) < 2:
        return []
    day_first, month_first = (users[start] for start in _DAY_AND_MONTH)
    return [
        f"column {quoted(name)}: expected one order of day and month, got the day first in "
        f"{day_first} and the month first in {month_first}; if the dates of one site fit both "
        "orders, change its format in that file, else change how one site writes its dates"
    ]


def _other_units(entries: Mapping[str, _Scaled], name: str) -> list[str]:
    """Return a warning for each file whose numbers seem to be in another unit, by its statistics.

    Args:
        entries: The column, code or schema of each file.
        name: Its name.
    """
    spreads = {}
    for file, entry in entries.items():
        statistics = entry.statistics
        if statistics is not None and statistics.count >= LEAST:
            spreads[file] = Spread.of_normal(statistics.mean, math.sqrt(statistics.variance))
    if len(spreads) < 2:
        return []
    usual = usual_spread(spreads)
    warnings = []
    for file, spread in spreads.items():
        unit = other_unit(spread, usual, name)
        if unit is not None:
            warnings.append(
                f"{quoted(name)}: the mean is {spread.median:.4g} in {file} and "
                f"{usual.median:.4g} elsewhere; if this is {unit.description}, give the factor of "
                "that site under `sites` of its file, and write its statistics anew"
            )
    return warnings


def _partial_statistics(schemas: Mapping[str, Schema]) -> list[str]:
    """Return warnings about files whose numbers have no part in centres and scales."""
    entries: dict[str, dict[str, _Scaled]] = {"the label": dict(schemas)}
    for file, schema in schemas.items():
        items: list[ColumnSchema | CodeSchema] = [*schema.columns, *schema.codes]
        for item in items:
            entries.setdefault(quoted(item.name), {})[file] = item
    left_out: dict[str, list[str]] = {}
    ignored: dict[str, list[str]] = {}
    for name, of_files in entries.items():
        has_statistics = any(entry.statistics is not None for entry in of_files.values())
        is_agreed = any(entry.scale is not None for entry in of_files.values())
        for file, entry in of_files.items():
            if is_agreed and entry.statistics is not None:
                ignored.setdefault(file, []).append(name)
            elif has_statistics and entry.statistics is None and entry.scale is None:
                left_out.setdefault(file, []).append(name)
    warnings = []
    for file, names in left_out.items():
        warnings.append(
            f"{file} has no statistics of {some(names)}, so its numbers have no part in centre and "
            "scale; write them with `data check --save --statistics` if it has five or more"
        )
    for file, names in ignored.items():
        warnings.append(
            f"the statistics of {some(names)} in {file} are not used, since another file has "
            "centre and scale; to use them, join the files of all sites at once"
        )
    return warnings


def _scaling(entries: Mapping[str, _Scaled], name: str, problems: list[str]) -> dict[str, Any]:
    """Return centre and scale on which sites agreed, or those of all their numbers.

    Args:
        entries: The column, code or schema of each file.
        name: Its name, for messages.
        problems: A list that receives what differs.
    """
    agreed = {
        file: (entry.centre, entry.scale)
        for file, entry in entries.items()
        if entry.scale is not None
    }
    if len(set(agreed.values())) > 1:
        (first, scaling), *_ = agreed.items()
        other = next(file for file, value in agreed.items() if value != scaling)
        problems.append(
            f"{name}: expected one centre and scale, got {scaling[0]} and {scaling[1]} in "
            f"{first}, {agreed[other][0]} and {agreed[other][1]} in {other}; write the same in both"
        )
    if agreed:
        centre, scale = next(iter(agreed.values()))
        return {"centre": centre, "scale": scale}
    statistics = [entry.statistics for entry in entries.values() if entry.statistics is not None]
    if not statistics:
        return {"centre": None, "scale": None}
    mean, deviation = mean_and_deviation(statistics)
    return {"centre": rounded(mean), "scale": rounded(deviation) or 1.0}


def mean_and_deviation(statistics: Sequence[Statistics]) -> tuple[float, float]:
    """Return mean and deviation of all numbers from the statistics of their groups.

    >>> pair = [Statistics(count=2, mean=1, variance=1), Statistics(count=2, mean=5, variance=1)]
    >>> mean_and_deviation(pair)  # of 0, 2, 4 and 6
    (3.0, 2.23606797749979)
    """
    count = sum(group.count for group in statistics)
    mean = math.fsum(group.count * group.mean for group in statistics) / count
    squares = [group.count * (group.variance + (group.mean - mean) ** 2) for group in statistics]
    return mean, math.sqrt(math.fsum(squares) / count)


def _joined_codes(
    schemas: Mapping[str, Schema], problems: list[str], warnings: list[str]
) -> tuple[CodeSchema, ...]:
    """Return the codes of all sites, in their order if it is one, else sorted."""
    by_file = {file: {code.name: code for code in schema.codes} for file, schema in schemas.items()}
    codes = []
    for name in _united([tuple(codes_of_file) for codes_of_file in by_file.values()]):
        of_files = {
            file: codes_of_file[name]
            for file, codes_of_file in by_file.items()
            if name in codes_of_file
        }
        warnings += _other_units(of_files, name)
        codes.append(CodeSchema(name=name, **_scaling(of_files, f"code {quoted(name)}", problems)))
    return tuple(codes)


def _joined_repairs(schemas: Mapping[str, Schema], problems: list[str]) -> dict[str, Any]:
    """Return the repairs of all sites: gap marks are united, others must not contradict."""
    missing: dict[str, dict[str, None]] = {}
    values: dict[str, dict[str, str]] = {}
    rename: dict[str, str] = {}
    for file, schema in schemas.items():
        for column, marks in schema.missing.items():
            missing.setdefault(column, {}).update(dict.fromkeys(marks))
        _merge(rename, schema.rename, f"{file}: `rename`", problems)
        for column, cells in schema.values.items():
            entry = f"{file}: `values` of column {quoted(column)}"
            _merge(values.setdefault(column, {}), cells, entry, problems)
    return {
        "missing": {column: tuple(marks) for column, marks in missing.items()},
        "values": values,
        "rename": rename,
        "factors": _joined_factors(schemas, problems),
    }


def _merge(
    target: dict[str, str], entries: Mapping[str, str], where: str, problems: list[str]
) -> None:
    for key, value in entries.items():
        if target.setdefault(key, value) != value:
            problems.append(
                f"{where}: expected {quoted(target[key])} for {quoted(key)} as in an earlier file, "
                f"got {quoted(value)}; put what holds for one site only under `sites`"
            )


def _joined_factors(schemas: Mapping[str, Schema], problems: list[str]) -> dict[str, float]:
    """Return the factors, which all files must have: a unit is that of one site or of all."""
    (first, schema), *others = schemas.items()
    for other, differing in others:
        if differing.factors != schema.factors:
            problems.append(
                f"`factors`: expected the same in all files, got {quoted(schema.factors)} in "
                f"{first} and {quoted(differing.factors)} in {other}; put the factors of one site "
                "under `sites`"
            )
    return dict(schema.factors)


def _joined_sites(schemas: Mapping[str, Schema], problems: list[str]) -> dict[str, Repairs]:
    """Return the repairs of single sites."""
    sites: dict[str, Repairs] = {}
    for file, schema in schemas.items():
        for site, repairs in schema.sites.items():
            if sites.setdefault(site, repairs) != repairs:
                problems.append(
                    f"{file}: expected the repairs of site {quoted(site)} as in an earlier file, "
                    "got others; leave one of them out"
                )
    return sites


def _with_gaps_of_repairs(schema: Schema) -> Schema:
    """Return the schema with `gaps: true` for columns of which repairs empty some cells."""
    columns = []
    for column in schema.columns:
        if schema.empties(column.name):
            column = column.model_copy(update={"gaps": True})
        columns.append(column)
    return schema.model_copy(update={"columns": tuple(columns)})
