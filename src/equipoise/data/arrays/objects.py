"""Data sets from Python objects: torch data sets, pandas frames, Hugging Face data sets.

Objects are recognised by their attributes, so none of these packages has to be installed.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.data.arrays.user_data import from_arrays
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.schema import schema_from
from equipoise.data.tables.csv_files import spelled_column
from equipoise.data.tables.repairs import Table
from equipoise.data.tables.sites import Sites, origin_of, split_by_site, with_repairs
from equipoise.data.tables.table_dataset import dataset_from_sites
from equipoise.validation.names import quoted


def from_torch(dataset: Any, **options: Any) -> Dataset:
    """Return a data set from a torch Dataset with a length, whose items are (input, label).

    Args:
        dataset: The torch data set.
        **options: Options of `from_arrays`.

    Raises:
        ValueError: If it has no length, or items of another form.
    """
    name = str(options.setdefault("name", type(dataset).__name__.lower()))
    if not hasattr(dataset, "__len__"):
        raise ValueError(
            f"data set {name}: expected one with a length, "
            f"got an iterable {type(dataset).__name__}; put its items into a list"
        )
    items = [dataset[i] for i in range(len(dataset))]
    if not items or not isinstance(items[0], (tuple, list)) or len(items[0]) != 2:
        example = type(items[0]) if items else None
        raise ValueError(
            f"expected a data set of (input, label) pairs, got {len(items)} items such as {example}"
        )
    labels = np.array([y.item() if hasattr(y, "item") else y for _, y in items])
    return from_arrays(_stacked([x for x, _ in items], name), labels, **options)


def from_frame(
    frame: Any,
    *,
    label: str,
    site: str | None = None,
    name: str = "frame",
    categorical: Sequence[str] = (),
    kind: str | None = None,
    schema: Any = None,
) -> Dataset:
    """Return a data set from a pandas frame, which is read like a table in a file.

    Args:
        frame: The frame.
        label: The label column.
        site: The column that names the site.
        name: The name of the data set.
        categorical: Columns whose numbers are categories.
        kind: `classification` or `regression`; by default inferred from the labels.
        schema: A schema, a mapping, or the path of a YAML file.

    Raises:
        ValueError: If a column is missing, or the frame cannot be read.

    >>> import pandas
    >>> rows = pandas.DataFrame({"age": [50, 61], "ward": ["a", None], "disease": ["no", "yes"]})
    >>> [column.name for column in from_frame(rows, label="disease").columns]
    ['age', 'ward']
    """
    names = [str(column) for column in frame.columns]
    schema = schema_from(schema)
    renamed = list(schema.rename.values()) if schema is not None else []
    required = [label, site] if site else [label]
    _check_columns(required, [*names, *renamed])
    repeated = [column for column, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"the frame has the column {quoted(repeated[0])} twice; rename one of them"
        )
    table = {}
    for index, column in enumerate(names):
        values = frame.iloc[:, index]
        table[column] = _cells(values.tolist(), values.isna().tolist())
    return _from_columns(table, label, site, name, categorical, kind, schema)


def from_huggingface(
    dataset: Any,
    *,
    label: str,
    inputs: str | Sequence[str] | None = None,
    site: str | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Return a data set from a Hugging Face data set.

    Args:
        dataset: The Hugging Face data set.
        label: The label column.
        inputs: One input column (images, vectors, or lists of numbers), or several as a table; by
            default all but label and site. Nested lists of uint8 are pixels and are scaled; others
            are taken as they are, with a warning if their values are large.
        site: The column that names the site.
        name: The name of the data set.
        **options: Options of `from_arrays` for one input column, of `from_frame` for several.

    Raises:
        ValueError: If a column is missing, or the data cannot be read.
    """
    known = list(dataset.column_names)
    chosen = _input_columns(inputs, [column for column in known if column not in (label, site)])
    required = [*chosen, label, *([site] if site else [])]
    _check_columns(required, known)
    feature = (getattr(dataset, "features", None) or {}).get(label)
    # A ClassLabel has names, and its cells are codes.
    classes = tuple(getattr(feature, "names", None) or ())
    name = name or getattr(getattr(dataset, "info", None), "dataset_name", None) or "huggingface"
    if isinstance(inputs, str):
        if classes:
            options = {"class_names": classes, **options}
        result = from_arrays(
            _input_array(dataset, inputs, name),
            np.asarray(list(dataset[label])),
            name=name,
            sites=list(dataset[site]) if site else None,
            **options,
        )
        for note in result.notes:
            warnings.warn(note, stacklevel=2)
        return result
    columns = {column: list(dataset[column]) for column in required}
    if classes:
        columns[label] = [classes[code] for code in columns[label]]
    table = {}
    for column, cells in columns.items():
        is_missing = [cell is None or cell != cell for cell in cells]  # NaN is not equal to itself
        table[column] = _cells(cells, is_missing)
    return _from_columns(
        table,
        label,
        site,
        name,
        options.pop("categorical", ()),
        options.pop("kind", None),
        options.pop("schema", None),
    )


def _input_array(dataset: Any, column: str, name: str) -> np.ndarray:
    """Return a column of images, vectors or nested lists as one array.

    Nested lists have no type of their own, so the column's features decide: lists of uint8 are
    pixels, which are scaled like those of other images.
    """
    array = _stacked(list(dataset[column]), name)
    feature = (getattr(dataset, "features", None) or {}).get(column)
    if array.ndim > 2 and _stored_type(feature) == "uint8":
        return array.astype(np.uint8)
    return array


def _stored_type(feature: Any) -> str | None:
    """Return the type of the numbers in a feature of lists, such as uint8; None if unknown."""
    while True:
        inner = feature[0] if isinstance(feature, list) and feature else feature
        inner = getattr(inner, "feature", inner)
        if inner is feature:
            return getattr(feature, "dtype", None)
        feature = inner


def _input_columns(inputs: str | Sequence[str] | None, others: list[str]) -> list[str]:
    """Return the chosen input columns; all others if none were chosen."""
    if inputs is None:
        return others
    if isinstance(inputs, str):
        return [inputs]
    return list(inputs)


def with_own_data(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an experiment with a data set that is a Python object separated.

    The object is moved to `dataset`, and `data` names it.

    Args:
        values: The values of an experiment.

    Raises:
        ValueError: If a data set is given twice, or the object is no data set.

    >>> data = from_arrays(np.zeros((4, 2)), [0, 1, 1, 0], name="mine")
    >>> values = with_own_data({"data": data})
    >>> values["data"].name, type(values["dataset"]).__name__
    ('mine', 'Dataset')
    """
    section = values.get("data")
    source = _python_object(section)
    if source is not None:
        if values.get("dataset") is not None:
            raise ValueError(
                "data: a data set is given twice, as `data` and as `dataset`; leave one out"
            )
        values = {**values, "dataset": as_dataset(source)}
    dataset = values.get("dataset")
    if not isinstance(dataset, Dataset):
        return dict(values)
    if source is not None and not isinstance(section, Mapping):
        section = None
    return {**values, "data": _named_section(section, dataset.name)}


def _python_object(section: Any) -> Any:
    """Return the object that a data section is, or that it has as its name; None if none."""
    source = section.get("name") if isinstance(section, Mapping) else section
    return None if isinstance(source, (str, Path, DataConfig)) else source


def _named_section(section: Any, name: str) -> Any:
    """Return a data section with another name.

    Args:
        section: A name, a path, a configuration, a mapping or None.
        name: The name.
    """
    if not section:
        return DataConfig(name=name)
    if isinstance(section, Mapping):
        return {**section, "name": name}
    if isinstance(section, DataConfig):
        return section.model_copy(update={"name": name})
    return name


def as_dataset(value: Any) -> Dataset:
    """Return the data set of a Python object that `data` of an experiment may hold.

    Args:
        value: A data set of Equipoise or torch.

    Raises:
        ValueError: If it is another object; the message names the function that takes it.
    """
    if isinstance(value, Dataset):
        return value
    if isinstance(value, torch.utils.data.Dataset):
        return from_torch(value)
    if hasattr(value, "iloc"):
        remedy = 'eq.from_frame(frame, label="COLUMN")'
    elif hasattr(value, "column_names"):
        remedy = 'eq.from_huggingface(dataset, label="COLUMN")'
    else:
        remedy = "eq.from_arrays(x, y) for arrays"
    raise ValueError(
        f"data: expected a name, a path, a mapping or a data set, got {quoted(value)}; use {remedy}"
    )


def _from_columns(
    table: Table,
    label: str,
    site: str | None,
    name: str,
    categorical: Sequence[str],
    kind: str | None,
    schema: Any,
) -> Dataset:
    schema = schema_from(schema)
    sites = Sites(Path(name), {name: table}, {}, False, {name: origin_of(name, table)})
    if site is not None:
        sites = split_by_site(sites, site, schema.rename if schema is not None else {})
    former_columns = (site,) if site else ()
    sites = with_repairs(sites, schema, (label, *categorical), former_columns)
    dataset = dataset_from_sites(sites, label, tuple(categorical), kind, schema)
    dataset = replace(dataset, name=name, source="given in Python")
    if site is None:
        dataset = replace(dataset, site=None, site_names=())
    return dataset


def _cells(values: Sequence[Any], missing: Sequence[bool]) -> np.ndarray:
    texts = ["" if gap else str(value) for value, gap in zip(values, missing, strict=True)]
    return spelled_column(texts)


def _check_columns(required: Sequence[str], known: Sequence[str]) -> None:
    unknown = [column for column in required if column not in known]
    if unknown:
        raise ValueError(
            f"the data set has no column {', '.join(unknown)}; it has {', '.join(known)}"
        )


def _stacked(samples: Sequence[Any], name: str) -> np.ndarray:
    arrays = [np.asarray(sample) for sample in samples]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise ValueError(
            f"data set {name}: expected samples of one shape, got {len(shapes)}, "
            f"such as {shapes[0]} and {shapes[-1]}; bring them to one"
        )
    return np.stack(arrays)
