"""Tables as model inputs: one-hot categories, filled gaps, scaled numbers.

The clients agree on the schema: the columns, their categories and which of them may have gaps.
Everything numeric (fill values, means, deviations) is learnt from training rows by each client,
or by all together with pooled scaling. With agreed scaling, means and deviations are those of the
schema.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.data.dataset import Column
from equipoise.data.federation import Parts
from equipoise.data.schema import ColumnSchema

Stats = dict[str, list[float]]


def fit(
    raw: np.ndarray,
    columns: tuple[Column, ...],
    schema: tuple[ColumnSchema, ...],
    train: Parts,
    ids: tuple[str, ...],
    scaling: str,
) -> dict[str, Any]:
    """Return the recipe that turns rows into inputs.

    Args:
        raw: The rows: numbers, codes of categories, NaN for gaps.
        columns: Their columns.
        schema: The schema of these columns.
        train: The training rows of each client.
        ids: The names of the clients.
        scaling: `client`, `pooled`, `agreed` (centre and scale of the schema) or `none`.
    """
    recipe: dict[str, Any] = {"kind": "table", "scaling": scaling, **outline(schema)}
    descriptions = recipe["columns"]
    coded = recode(raw, columns, recipe)
    shared = {
        "fill": _fills(coded[:0], descriptions),
        "mean": [0.0] * len(columns),
        "scale": [1.0] * len(columns),
    }
    if scaling == "pooled":
        shared = _stats(coded[np.unique(train.index)], descriptions, shared)
    elif scaling == "agreed":
        shared = _agreed_stats(schema, shared)
    recipe["shared"] = None if scaling == "client" else shared
    recipe["clients"] = {
        name: _stats(coded[rows], descriptions, shared, scaled=scaling == "client")
        for name, rows in zip(ids, train, strict=True)
    }
    return recipe


def outline(schema: tuple[ColumnSchema, ...]) -> dict[str, Any]:
    """Return the part of a recipe that follows from the schema: columns and names of inputs."""
    descriptions = [_description(column) for column in schema]
    return {"kind": "table", "columns": descriptions, "features": _features(descriptions)}


def _description(column: ColumnSchema) -> dict[str, Any]:
    """Return a column as a recipe describes it."""
    return {
        "name": column.name,
        "categorical": column.kind == "category",
        "categories": list(column.categories),
        "formats": list(column.formats),
        "gaps": bool(column.gaps),
    }


def recode(raw: np.ndarray, columns: tuple[Column, ...], recipe: dict[str, Any]) -> np.ndarray:
    """Return rows with category codes that are indices into the recipe's categories.

    A category that the recipe does not list gets the code after the last.

    Args:
        raw: The rows, with codes of the data set.
        columns: The columns of the data set.
        recipe: The recipe.
    """
    coded = np.array(raw, np.float64)
    for j, (column, description) in enumerate(zip(columns, recipe["columns"], strict=True)):
        if not description["categorical"]:
            continue
        codes = {category: code for code, category in enumerate(description["categories"])}
        unknown = len(codes)
        new_codes = [codes.get(category, unknown) for category in column.categories]
        new_codes.append(unknown)
        known = ~np.isnan(coded[:, j])
        coded[known, j] = np.array(new_codes, np.float64)[coded[known, j].astype(np.int64)]
    return coded


def apply(coded: np.ndarray, recipe: dict[str, Any], client: str | None) -> np.ndarray:
    """Return model inputs (float32) of one client's rows.

    Args:
        coded: The rows, as `recode` returns them.
        recipe: The recipe.
        client: The client whose statistics are used; none: those that all clients share.

    Raises:
        ValueError: If the client is not known, or clients share no statistics.
    """
    stats = recipe["shared"] if client is None else recipe["clients"].get(client)
    if stats is None:
        known = list(recipe["clients"])
        if not known:
            raise ValueError(
                "these inputs are scaled with each site's own statistics, which stay there; "
                "predict at the site: `equipoise predict --site FOLDER RUN DATA`"
            )
        shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        raise ValueError(
            "these inputs are scaled with each client's own statistics: say which client with "
            f"--client (in Python client=), one of {shown} (got {client})"
        )
    blocks = []
    for j, description in enumerate(recipe["columns"]):
        values = coded[:, j]
        is_gap = np.isnan(values)
        filled = np.where(is_gap, stats["fill"][j], values)
        if description["categorical"]:
            blocks.append(filled[:, None] == np.arange(len(description["categories"]) + 1))
        else:
            scaled = (filled - stats["mean"][j]) / stats["scale"][j]
            blocks.append(scaled[:, None])
        if description["gaps"]:
            blocks.append(is_gap[:, None])
    with np.errstate(over="ignore"):  # an agreed scale that is far too small is refused later
        return np.concatenate(blocks, axis=1).astype(np.float32)


def _stats(
    coded: np.ndarray, columns: list[dict[str, Any]], defaults: Stats, scaled: bool = True
) -> Stats:
    """Return fill values, means and deviations of the observed numbers.

    Args:
        coded: The rows.
        columns: Descriptions of the columns.
        defaults: The statistics of columns without any observation.
        scaled: False to keep the means and deviations of the defaults.
    """
    fill = _fills(coded, columns)
    mean = list(defaults["mean"])
    scale = list(defaults["scale"])
    for j, column in enumerate(columns):
        observed = coded[:, j][~np.isnan(coded[:, j])]
        if not len(observed):
            fill[j] = defaults["fill"][j]
        elif scaled and not column["categorical"]:
            mean[j] = float(observed.mean())
            scale[j] = float(observed.std()) or 1.0
    return {"fill": fill, "mean": mean, "scale": scale}


def _agreed_stats(schema: tuple[ColumnSchema, ...], defaults: Stats) -> Stats:
    """Return centres and scales of the schema; a column that was never measured is 0 then."""
    fill = list(defaults["fill"])
    mean = list(defaults["mean"])
    scale = list(defaults["scale"])
    for j, column in enumerate(schema):
        if column.centre is not None and column.scale is not None:
            fill[j] = column.centre
            mean[j] = column.centre
            scale[j] = column.scale
    return {"fill": fill, "mean": mean, "scale": scale}


def _fills(coded: np.ndarray, columns: list[dict[str, Any]]) -> list[float]:
    """Return fill values: the mean of numbers, the most frequent category.

    Without any observation they are 0 and the code for unknown categories.
    """
    fills = []
    for j, column in enumerate(columns):
        observed = coded[:, j][~np.isnan(coded[:, j])]
        if not len(observed):
            fills.append(float(len(column["categories"])) if column["categorical"] else 0.0)
        elif column["categorical"]:
            fills.append(float(np.bincount(observed.astype(np.int64)).argmax()))
        else:
            fills.append(float(observed.mean()))
    return fills


def _features(columns: list[dict[str, Any]]) -> list[str]:
    """Return the names of the model inputs."""
    names = []
    for column in columns:
        if column["categorical"]:
            names += [f"{column['name']}={value}" for value in (*column["categories"], "other")]
        else:
            names.append(column["name"])
        if column["gaps"]:
            names.append(f"{column['name']} missing")
    return names
