"""Tables to model inputs: one-hot categories, filled gaps, scaled numbers.

What the clients agree on is the schema: the columns, their categories and which of them may have gaps. Everything numeric (fill values,
means, deviations) is learnt from training rows and is a client's own, unless pooled scaling is asked for.
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
    """The recipe that turns rows into inputs; `raw` holds numbers, codes of categories and NaN, and `schema` describes its columns."""
    described: list[dict[str, Any]] = [
        {
            "name": column.name,
            "categorical": column.kind == "category",
            "categories": list(column.categories),
            "formats": list(column.formats),
            "gaps": bool(column.gaps),
        }
        for column in schema
    ]
    recipe: dict[str, Any] = {
        "kind": "table",
        "scaling": scaling,
        "columns": described,
        "features": _features(described),
    }
    coded = recode(raw, columns, recipe)
    neutral = {
        "fill": _fills(coded[:0], described),
        "mean": [0.0] * len(columns),
        "scale": [1.0] * len(columns),
    }
    shared = (
        _stats(coded[np.unique(train.index)], described, neutral)
        if scaling == "pooled"
        else neutral
    )
    recipe["shared"] = None if scaling == "client" else shared
    recipe["clients"] = {
        name: _stats(coded[rows], described, shared, scaled=scaling == "client")
        for name, rows in zip(ids, train, strict=True)
    }
    return recipe


def recode(raw: np.ndarray, columns: tuple[Column, ...], recipe: dict[str, Any]) -> np.ndarray:
    """Rows whose category codes count in the recipe's categories; one that the schema does not have gets the code after the last."""
    coded = np.array(raw, np.float64)
    for j, (column, described) in enumerate(zip(columns, recipe["columns"], strict=True)):
        if described["categorical"]:
            kept = described["categories"]
            table = np.array(
                [kept.index(c) if c in kept else len(kept) for c in column.categories]
                + [len(kept)],
                np.float64,
            )
            known = ~np.isnan(coded[:, j])
            coded[known, j] = table[coded[known, j].astype(np.int64)]
    return coded


def apply(coded: np.ndarray, recipe: dict[str, Any], client: str | None) -> np.ndarray:
    """Model inputs (float32) of one client's rows; `client` None uses the statistics all clients share, if there are any."""
    stats = recipe["shared"] if client is None else recipe["clients"].get(client)
    if stats is None:
        known = list(recipe["clients"])
        shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        raise ValueError(
            f"these inputs are scaled with each client's own statistics: say which client with --client (in Python client=), one of {shown} (got {client})"
        )
    blocks = []
    for j, described in enumerate(recipe["columns"]):
        values = coded[:, j]
        gap = np.isnan(values)
        filled = np.where(gap, stats["fill"][j], values)
        if described["categorical"]:
            blocks.append(filled[:, None] == np.arange(len(described["categories"]) + 1))
        else:
            blocks.append(((filled - stats["mean"][j]) / stats["scale"][j])[:, None])
        if described["gaps"]:
            blocks.append(gap[:, None])
    return np.concatenate(blocks, axis=1).astype(np.float32)


def _stats(
    coded: np.ndarray, described: list[dict[str, Any]], otherwise: Stats, scaled: bool = True
) -> Stats:
    """Fill values, means and deviations of the observed numbers; where nothing was observed, `otherwise` holds."""
    fill, mean, scale = _fills(coded, described), list(otherwise["mean"]), list(otherwise["scale"])
    for j, column in enumerate(described):
        observed = coded[:, j][~np.isnan(coded[:, j])]
        if not len(observed):
            fill[j] = otherwise["fill"][j]
        elif scaled and not column["categorical"]:
            mean[j] = float(observed.mean())
            scale[j] = float(observed.std()) or 1.0
    return {"fill": fill, "mean": mean, "scale": scale}


def _fills(coded: np.ndarray, described: list[dict[str, Any]]) -> list[float]:
    """The mean of a number, the most frequent category; of nothing, 0 and the code for unknown categories."""
    fills = []
    for j, column in enumerate(described):
        observed = coded[:, j][~np.isnan(coded[:, j])]
        if column["categorical"]:
            fills.append(
                float(np.bincount(observed.astype(np.int64)).argmax())
                if len(observed)
                else float(len(column["categories"]))
            )
        else:
            fills.append(float(observed.mean()) if len(observed) else 0.0)
    return fills


def _features(described: list[dict[str, Any]]) -> list[str]:
    names = []
    for column in described:
        names += (
            [f"{column['name']}={c}" for c in (*column["categories"], "other")]
            if column["categorical"]
            else [column["name"]]
        )
        names += [f"{column['name']} missing"] if column["gaps"] else []
    return names
