"""The columns of a table that differ most between clients, from sums that the clients sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import f as f_distribution

MOST = 5  # columns that are reported
LEAST_SHARE = 0.01  # of a column's variance between clients for which it is reported
SIGNIFICANT = 0.01  # probability of such a difference by chance, over all columns
FEWEST = 5  # samples of a client whose mean is reported


@dataclass(frozen=True)
class ColumnShift:
    """A column that differs between clients.

    Attributes:
        name: The input: a column, one category of it (ward=a), or its gaps (chol missing).
        share: The share of its variance that lies between clients, beyond chance.
        client: The client whose mean is farthest from the mean of all.
        shift: That distance, in standard deviations of all samples.
    """

    name: str
    share: float
    client: str
    shift: float

    def __str__(self) -> str:
        side = "above" if self.shift > 0 else "below"
        return (
            f"{self.name} ({100 * self.share:.0f} % of its variance is between clients; the mean "
            f"of {self.client} is {abs(self.shift):.1f} deviations {side} that of all)"
        )


def differing_columns(
    state: Mapping[str, Any], inputs: Sequence[tuple[str, str]]
) -> tuple[ColumnShift, ...]:
    """Return the columns that differ most between clients, the most different first.

    Inputs are compared by a one-way analysis of variance: the share of the variance between
    clients, less its value by chance (epsilon squared), if the F test rules out chance.

    Args:
        state: The state of the server after an audit.
        inputs: For each input its name and its column; of a column with several inputs, the one
            that differs most is reported.

    Returns:
        At most five columns; none if the data have no columns, or too many for their moments.
    """
    if "squares" not in state or not inputs:
        return ()
    sizes = np.asarray(state["sizes"], np.float64)
    sums = np.asarray(state["totals"], np.float64)
    squares = np.asarray(state["squares"], np.float64).sum(0)
    groups = int((sizes >= 1).sum())
    number = float(sizes.sum())
    if groups < 2 or number <= groups or sums.shape[1] != len(inputs):
        return ()
    mean = sums.sum(0) / number
    means = sums / np.maximum(sizes, 1)[:, None]
    total = squares - number * mean**2
    # The variance of a constant column is nothing but rounding errors.
    varies = total > 1e-9 * np.maximum(squares, 1e-300)
    total = np.where(varies, total, 1.0)
    between = (sizes[:, None] * (means - mean) ** 2).sum(0)
    within = np.maximum(total - between, 1e-12 * total) / (number - groups)
    share = (between - (groups - 1) * within) / total
    by_chance = f_distribution.sf(between / (groups - 1) / within, groups - 1, number - groups)
    chosen = varies & (share >= LEAST_SHARE) & (by_chance < SIGNIFICANT / len(inputs))
    shifts = np.where((sizes >= FEWEST)[:, None], means - mean, 0.0) / np.sqrt(total / number)
    by_column: dict[str, ColumnShift] = {}
    for index in np.argsort(-share, kind="stable"):
        name, column = inputs[index]
        if chosen[index] and column not in by_column:
            farthest = int(np.argmax(np.abs(shifts[:, index])))
            by_column[column] = ColumnShift(
                name,
                float(share[index]),
                str(state["clients"][farthest]),
                float(shifts[farthest, index]),
            )
    return tuple(by_column.values())[:MOST]


def inputs_of(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name and the column of every input of a table; an empty list for other data."""
    if recipe.get("kind") != "table":
        return []
    columns = []
    for column in recipe["columns"]:
        inputs = len(column["categories"]) + 1 if column["categorical"] else 1
        columns += [column["name"]] * (inputs + bool(column["gaps"]))
    return list(zip(recipe["features"], columns, strict=True))
