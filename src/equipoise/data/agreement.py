"""The agreement of sites that prepare their data alone: a complete schema, and what follows.

Nothing here sees a row. A server without data learns the task from here.
"""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.data.message_text import some
from equipoise.data.schema import (
    CELL_REPAIRS,
    ColumnSchema,
    Repairs,
    Schema,
    mixes_day_and_month,
)
from equipoise.data.tables.encoding import outline
from equipoise.data.tables.schema_inference import complete_schema
from equipoise.task import Task
from equipoise.validation.names import did_you_mean, quoted

HISTORY_WIDTH = 4  # numbers of an event: code, value, age, mark of a missing value


def check_complete(schema: Schema | None) -> Schema:
    """Return a schema that leaves nothing to be inferred from the rows of a site.

    Args:
        schema: The schema of an experiment with `data.apart`.

    Raises:
        ValueError: If there is none, or if it leaves something open; the message names it.
    """
    if schema is None:
        raise ValueError(
            "data.apart: expected a schema on which all sites agree, got none; write one at "
            "each site "
            "with `equipoise data check --save`, and join them with `equipoise data schema join`"
        )
    _check_target(schema)
    if not (schema.inputs or schema.shape or schema.codes):
        raise ValueError(
            "data.apart: expected a schema with columns of a table, the shape of images or "
            "arrays, or "
            "the codes of patients' events, got none of them"
        )
    for column in schema.inputs:
        _check_column(column, schema)
    _check_repairs(schema)
    if schema.codes and schema.events is None:
        raise ValueError(
            "data.apart: expected `events` in a schema with codes, the number of events of each "
            "patient that are kept, got none; add it, for example events: 100"
        )
    return schema


def _check_target(schema: Schema) -> None:
    """Refuse a schema that does not say what is predicted."""
    if schema.predicts is None:
        raise ValueError(
            "data.apart: expected classes in the schema, or centre and scale of the number to "
            "predict, "
            "got neither; add one of them"
        )
    if schema.predicts == "classification" and not schema.classes:
        raise ValueError(
            "data.apart: expected `classes` in a schema for classification, the classes of all "
            "sites, got none; add them"
        )
    if schema.predicts == "survival":
        _check_survival(schema)
    if schema.predicts == "regression" and schema.scale is None:
        raise ValueError(
            "data.apart: expected `centre` and `scale` of the number to predict in the schema, "
            "since "
            "no site knows those of the others, got none; add them (0 and 1 leave it as it is)"
        )


def _check_survival(schema: Schema) -> None:
    """Refuse a schema of survival without a column of events or without a horizon."""
    if schema.event is None:
        raise ValueError(
            "data.apart: expected `event` in a schema for survival, the column of events, "
            "got none; add it"
        )
    if schema.scale is None:
        raise ValueError(
            "data.apart: expected `centre: 0` and the horizon as `scale` in a schema for survival, "
            "since no site knows the longest time of the others, got none; add them"
        )


def _check_column(column: ColumnSchema, schema: Schema) -> None:
    """Refuse a column of which a site would have to infer something."""
    name = quoted(column.name)
    open_entries = {
        "categories": column.kind == "category" and not column.categories,
        "formats": column.kind == "date" and not column.formats,
        "gaps": column.gaps is None,
    }
    for entry, is_open in open_entries.items():
        if is_open:
            raise ValueError(
                f"data.apart: expected `{entry}` of column {name} in the schema, since no site "
                "knows "
                "the rows of the others, got none; add it"
            )
    if mixes_day_and_month(column.formats):
        raise ValueError(
            f"data.apart: expected one order of day and month for column {name} of the schema, "
            f"since 3/4/2024 fits both, got {some(column.formats)}; keep one of them"
        )
    if not column.gaps and schema.empties(column.name):
        raise ValueError(
            f"data.apart: expected gaps: true for column {name} of the schema, since `missing` or "
            "`values` make gaps of some cells, got false; set it to true"
        )


def _check_repairs(schema: Schema) -> None:
    """Refuse repairs of columns that no site reads.

    A repair may match no cell of a site, so a misspelled column would not be noticed there.
    """
    if not schema.columns:
        return
    known = {column.name for column in schema.columns}
    sections: list[Repairs] = [schema, *schema.sites.values()]
    for repairs in sections:
        known.update(repairs.rename.values())
    known |= {name for name in (schema.label, schema.event) if name is not None}
    for repairs in sections:
        for key, column in _repaired_columns(repairs):
            if column not in known:
                raise ValueError(
                    f"data.apart: expected columns of the schema under `{key}`, got "
                    f"{quoted(column)}; correct the name, or remove it"
                    f"{did_you_mean(column, known)}"
                )


def _repaired_columns(repairs: Repairs) -> Iterator[tuple[str, str]]:
    """Yield the columns whose cells are repaired, each with the key of the repair."""
    for key in CELL_REPAIRS:
        for column in getattr(repairs, key):
            yield key, column


def check_scaling(schema: Schema) -> None:
    """Refuse `normalise: agreed` if columns have no centre and scale.

    Raises:
        ValueError: If columns lack them; the message names the columns.
    """
    lacking = [column.name for column in schema.inputs if _lacks_scaling(column)]
    if lacking:
        noun = "column" if len(lacking) == 1 else "columns"
        raise ValueError(
            "data.normalise: agreed expects `centre` and `scale` of numbers and dates in the "
            f"schema, got none for the {noun} {some(map(quoted, lacking))}; add them, or use "
            "client or none"
        )


def _lacks_scaling(column: ColumnSchema) -> bool:
    return column.kind != "category" and column.scale is None


def agreed_schema(schema: Schema | None) -> Schema:
    """Return the schema by which every site reads its rows: complete, with cells replaced.

    Raises:
        ValueError: If there is none, or if it leaves something open.
    """
    return complete_schema(check_complete(schema), Schema())


def task_of(schema: Schema | None) -> Task:
    """Return the task of an experiment whose sites prepare their data alone.

    It equals the task of every site's prepared data, and is known without any row.

    Args:
        schema: The schema of the data section.

    Raises:
        ValueError: If the schema is not complete.
    """
    schema = agreed_schema(schema)
    shape = _input_shape(schema)
    if schema.predicts == "regression":
        assert schema.centre is not None and schema.scale is not None
        return Task("regression", shape, 1, (), schema.centre, schema.scale)
    if schema.predicts == "survival":
        assert schema.scale is not None
        return Task("survival", shape, schema.intervals or 1, (), 0.0, schema.scale)
    return Task("classification", shape, len(schema.classes), schema.classes)


def _input_shape(schema: Schema) -> tuple[int, ...]:
    """Return the shape of one input of a model."""
    if schema.inputs:
        return (len(outline(schema.inputs)["features"]),)
    if schema.codes:
        assert schema.events is not None
        return 1 + schema.events, HISTORY_WIDTH
    assert schema.shape is not None
    return schema.shape
