"""Groups of samples, such as patients by sex and age, for reports and for methods by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from equipoise.data.dataset import Column, Dataset
from equipoise.data.group_columns import LONGEST_NAME
from equipoise.data.message_text import some
from equipoise.data.tables.csv_files import cells_as_text, is_missing, numbers_if_all
from equipoise.validation.names import did_you_mean, quoted

UNKNOWN = -1  # the code of a sample whose group is not known
MISSING = "missing"  # the name under which such samples are counted
MOST_GROUPS = 20  # of one column
_MOST_COLUMNS = 12  # that a message lists
Edges = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of some samples.

    Attributes:
        columns: The columns by which samples are grouped.
        names: For each column the names of its groups.
        codes: The group of each sample by column, as a position in `names`; -1 if it is not known.
    """

    columns: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    codes: NDArray[np.int64]

    def rows(self, positions: np.ndarray) -> Groups:
        """Return the groups of the samples at some positions."""
        return Groups(self.columns, self.names, self.codes[positions])

    def names_of(self, column: str) -> list[str]:
        """Return the group of each sample by a column; `MISSING` if it is not known.

        Raises:
            ValueError: If samples are not grouped by it.
        """
        index = self.position(column)
        names = (*self.names[index], MISSING)  # -1 selects the last entry
        return [names[code] for code in self.codes[:, index].tolist()]

    def position(self, column: str) -> int:
        """Return the position of a column.

        Raises:
            ValueError: If samples are not grouped by it.
        """
        if column not in self.columns:
            raise ValueError(
                f"expected one of the columns under data.groups, {some(self.columns)}, "
                f"got {quoted(column)}{did_you_mean(column, self.columns)}"
            )
        return self.columns.index(column)

    @classmethod
    def joined(cls, parts: Sequence[Groups]) -> Groups:
        """Return the groups of several sites' samples, one site after the other.

        Sites may have different groups of a column.

        >>> north = Groups(("sex",), (("f", "m"),), np.array([[1], [0]]))
        >>> south = Groups(("sex",), (("m",),), np.array([[0], [-1]]))
        >>> joined = Groups.joined([south, north])
        >>> joined.names, joined.codes[:, 0].tolist()
        ((('f', 'm'),), [1, -1, 1, 0])
        """
        names = []
        codes = []
        for index in range(len(parts[0].columns)):
            every = {name for part in parts for name in part.names[index]}
            ordered = sorted(every, key=group_order)
            names.append(tuple(ordered))
            codes.append(np.concatenate([_recoded(part, index, ordered) for part in parts]))
        return cls(parts[0].columns, tuple(names), np.stack(codes, axis=1))


def _recoded(part: Groups, index: int, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the codes of one column as positions in another list of names."""
    position = [names.index(name) for name in part.names[index]]
    table = np.array([*position, UNKNOWN], np.int64)
    return np.asarray(table[part.codes[:, index]])  # -1 selects the last entry


def group_order(name: str) -> tuple[float, str]:
    """Sort names that begin with a number by it, and all others behind them by the alphabet."""
    try:
        return float(name.split()[0]), name
    except (ValueError, IndexError):
        return np.inf, name


def groups_of(dataset: Dataset, columns: Mapping[str, Edges]) -> Groups | None:
    """Return the groups of all samples of a data set.

    Args:
        dataset: The data set.
        columns: Column -> edges of bins; no edges: every value is a group.

    Returns:
        The groups; None without columns.

    Raises:
        ValueError: If a column does not exist, is the label, or has no groups.
    """
    if not columns:
        return None
    if not dataset.task.classifies:
        raise ValueError(
            f"data.groups: expected a task with classes, got {dataset.task.kind}; "
            "results by group need classes, so leave it out"
        )
    names = []
    codes = []
    for column, edges in columns.items():
        cells = _cells(dataset, column)
        if edges:
            own_codes = _binned(cells, column, edges)
            own_names = bin_names(edges)
        else:
            own_codes, own_names = _distinct(cells, column)
        names.append(own_names)
        codes.append(own_codes)
    return Groups(tuple(columns), tuple(names), np.stack(codes, axis=1))


def names_of_cells(cells: np.ndarray, edges: Edges, column: str) -> list[str]:
    """Return the group of each cell of a column; `MISSING` if it has none.

    Args:
        cells: The cells.
        edges: The edges of bins; none: every value is a group.
        column: The name of the column, for messages.
    """
    cells = numbers_if_all(cells)
    if edges:
        names = (*bin_names(edges), MISSING)  # -1 selects the last entry
        return [names[code] for code in _binned(cells, column, edges).tolist()]
    texts = cells_as_text(cells).tolist()
    return [MISSING if _is_unknown(text) else text for text in texts]


def bin_names(edges: Edges) -> tuple[str, ...]:
    """Return the names of the bins between edges.

    >>> bin_names((0, 50, 65, 120))
    ('0 to <50', '50 to <65', '65 to 120')
    """
    names = [f"{low:g} to <{high:g}" for low, high in pairwise(edges[:-1])]
    return (*names, f"{edges[-2]:g} to {edges[-1]:g}")


def _cells(dataset: Dataset, column: str) -> np.ndarray:
    """Return the cells of a column: numbers with NaN, or text."""
    if dataset.schema is not None and column == dataset.schema.label:
        raise ValueError(label_message(column))
    if column in dataset.attributes:
        return numbers_if_all(np.asarray(dataset.attributes[column]))
    known = [entry.name for entry in dataset.columns]
    if column in known:
        index = known.index(column)
        return _decoded(dataset.x[:, index].numpy(), dataset.columns[index])
    available = [*known, *dataset.attributes]
    if not available:
        raise ValueError(
            f"data.groups: expected data with columns, got {dataset.name}, which has none; "
            "leave it out, or give attributes= in Python"
        )
    raise ValueError(
        f"data.groups: expected columns of {dataset.name}, got {quoted(column)}; it has "
        f"{some(available, _MOST_COLUMNS)}{did_you_mean(column, available)}"
    )


def label_message(column: str) -> str:
    """Return the sentence that refuses the label as a group."""
    return (
        f"data.groups: expected columns other than the label, got {quoted(column)}; "
        "choose a column that describes the samples"
    )


def _decoded(values: np.ndarray, column: Column) -> np.ndarray:
    """Return the values of an input column as a file would have them."""
    if not column.categories:
        return values.astype(np.float64)
    texts = np.array([*column.categories, ""], dtype=np.str_)
    codes = np.where(np.isnan(values), len(column.categories), values).astype(np.int64)
    return np.asarray(texts[np.clip(codes, 0, len(column.categories))])


def _binned(cells: np.ndarray, column: str, edges: Edges) -> NDArray[np.int64]:
    """Return the bin of every cell; cells outside the edges belong to none."""
    if cells.dtype.kind not in "biuf":
        text = next(str(cell) for cell in cells if not _is_number(str(cell)))
        raise ValueError(
            f"data.groups: expected numbers in column {quoted(column)}, whose groups have edges, "
            f"got {quoted(text)}; leave the edges out"
        )
    values = cells.astype(np.float64)
    codes = np.searchsorted(np.array(edges), values, side="right") - 1
    codes[values == edges[-1]] = len(edges) - 2
    inside = (values >= edges[0]) & (values <= edges[-1])  # False for NaN
    return np.where(inside, codes, UNKNOWN).astype(np.int64)


def _is_number(cell: str) -> bool:
    return numbers_if_all(np.array([cell], dtype=np.str_)).dtype.kind == "f"


def _distinct(cells: np.ndarray, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the code of every cell, and the different cells as names."""
    texts = cells_as_text(np.asarray(cells))
    names = {text for text in texts.tolist() if not _is_unknown(text)}
    different = sorted(names, key=group_order)
    known = np.isin(texts, different)
    _check_few(different, int(known.sum()), column, cells.dtype.kind in "iuf")
    position = {name: code for code, name in enumerate(different)}
    codes = [position.get(text, UNKNOWN) for text in texts.tolist()]
    return np.array(codes, np.int64), tuple(different)


def _is_unknown(cell: str) -> bool:
    return is_missing(cell) or cell == MISSING


def _check_few(names: Sequence[str], cells: int, column: str, are_numbers: bool) -> None:
    """Refuse a column with too many different values to be groups."""
    for name in names:
        if len(name) > LONGEST_NAME:
            raise ValueError(
                f"data.groups: expected groups of at most {LONGEST_NAME} characters, got "
                f"{quoted(name)} in column {quoted(column)}; choose another column"
            )
    if len(names) <= MOST_GROUPS:
        return
    remedy = "choose a column with fewer"
    if are_numbers:
        remedy = f"give the edges of bins, such as {column}: [0, 50, 65, 120]"
    if len(names) == cells:
        raise ValueError(
            f"data.groups: expected groups of several rows, got column {quoted(column)} with a "
            f"different value in each of {cells:,} rows; {remedy}"
        )
    raise ValueError(
        f"data.groups: expected at most {MOST_GROUPS} groups, got {len(names):,} different values "
        f"in column {quoted(column)}; {remedy}"
    )
