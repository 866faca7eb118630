"""Python objects as data sets: torch data sets, pandas frames, Hugging Face data sets; known by what they can do, so none has to be installed."""

from __future__ import annotations

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
    """A data set from a torch Dataset with a length, whose items are (input, label); options as for `from_arrays`."""
    name = str(options.setdefault("name", type(dataset).__name__.lower()))
    if not hasattr(dataset, "__len__"):
        raise ValueError(
            f"data set {name}: expected one with a length, got an iterable {type(dataset).__name__}; put its items into a list"
        )
    items = [dataset[i] for i in range(len(dataset))]
    if not items or not isinstance(items[0], (tuple, list)) or len(items[0]) != 2:
        raise ValueError(
            f"expected a data set of (input, label) pairs, got {len(items)} items such as {type(items[0]) if items else None}"
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
    """A data set from a pandas frame, read as a table in a file would be; `site` is the column that names the site.

    >>> import pandas
    >>> rows = pandas.DataFrame({"age": [50, 61], "ward": ["a", None], "disease": ["no", "yes"]})
    >>> [column.name for column in from_frame(rows, label="disease").columns]
    ['age', 'ward']
    """
    names = [str(column) for column in frame.columns]
    schema = schema_from(schema)
    renamed = list(schema.rename.values()) if schema is not None else []
    _check_columns([label, *([site] if site else [])], [*names, *renamed])
    repeated = [column for column, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"the frame has the column {quoted(repeated[0])} twice; rename one of them"
        )
    table = {
        column: _cells(frame.iloc[:, place].tolist(), frame.iloc[:, place].isna().tolist())
        for place, column in enumerate(names)
    }
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
    """A data set from a Hugging Face one: one input column (an image or a vector), or several as a table; without `inputs` all but label and site.

    Options as for `from_arrays` (one column) or `from_frame` (several).
    """
    known = list(dataset.column_names)
    wanted = (
        [inputs]
        if isinstance(inputs, str)
        else [c for c in known if c not in (label, site)]
        if inputs is None
        else list(inputs)
    )
    _check_columns([*wanted, label, *([site] if site else [])], known)
    feature = (getattr(dataset, "features", None) or {}).get(label)
    # of a ClassLabel, whose cells are numbers
    classes = tuple(getattr(feature, "names", None) or ())
    name = name or getattr(getattr(dataset, "info", None), "dataset_name", None) or "huggingface"
    if isinstance(inputs, str):
        sites = list(dataset[site]) if site else None
        more = {"class_names": classes, **options} if classes else options
        return from_arrays(
            _stacked(list(dataset[inputs]), name),
            np.asarray(list(dataset[label])),
            name=name,
            sites=sites,
            **more,
        )
    columns = {
        column: list(dataset[column]) for column in [*wanted, label, *([site] if site else [])]
    }
    if classes:
        columns[label] = [classes[code] for code in columns[label]]
    table = {
        column: _cells(cells, [cell is None or cell != cell for cell in cells])
        for column, cells in columns.items()
    }
    return _from_columns(
        table,
        label,
        site,
        name,
        options.pop("categorical", ()),
        options.pop("kind", None),
        options.pop("schema", None),
    )


def with_own_data(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an experiment, with data that are a Python object under `dataset`, and named after it under `data`.

    >>> found = with_own_data({"data": from_arrays(np.zeros((4, 2)), [0, 1, 1, 0], name="mine")})
    >>> found["data"].name, type(found["dataset"]).__name__
    ('mine', 'Dataset')
    """
    data = values.get("data")
    section: Any = data if isinstance(data, (str, Path, DataConfig, Mapping)) else {}
    given = section.get("name") if isinstance(section, Mapping) else None
    if data is not None and section == {} and not isinstance(data, Mapping):
        given = data
    if given is not None and not isinstance(given, (str, Path)):
        if values.get("dataset") is not None:
            raise ValueError(
                "data: a data set is given twice, as `data` and as `dataset`; leave one out"
            )
        values = {**values, "dataset": as_dataset(given)}
    dataset = values.get("dataset")
    if not isinstance(dataset, Dataset):
        return dict(values)
    if isinstance(section, Mapping):
        return {
            **values,
            "data": DataConfig(name=dataset.name)
            if not section
            else {**section, "name": dataset.name},
        }
    return {
        **values,
        "data": section.model_copy(update={"name": dataset.name})
        if isinstance(section, DataConfig)
        else dataset.name,
    }


def as_dataset(given: Any) -> Dataset:
    """A data set as `data` of an experiment may hold it; what needs more words is refused with the function that takes them."""
    if isinstance(given, Dataset):
        return given
    if isinstance(given, torch.utils.data.Dataset):
        return from_torch(given)
    if hasattr(given, "iloc"):
        how = 'eq.from_frame(frame, label="COLUMN")'
    elif hasattr(given, "column_names"):
        how = 'eq.from_huggingface(dataset, label="COLUMN")'
    else:
        how = "eq.from_arrays(x, y) for arrays"
    raise ValueError(
        f"data: expected a name, a path, a mapping or a data set, got {quoted(given)}; use {how}"
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
    return spelled_column(
        ["" if gap else str(value) for value, gap in zip(values, missing, strict=True)]
    )


def _check_columns(wanted: Sequence[str], known: Sequence[str]) -> None:
    unknown = [column for column in wanted if column not in known]
    if unknown:
        raise ValueError(
            f"the data set has no column {', '.join(unknown)}; it has {', '.join(known)}"
        )


def _stacked(samples: Sequence[Any], name: str) -> np.ndarray:
    arrays = [np.asarray(sample) for sample in samples]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise ValueError(
            f"data set {name}: expected samples of one shape, got {len(shapes)}, such as {shapes[0]} and {shapes[-1]}; bring them to one"
        )
    return np.stack(arrays)
