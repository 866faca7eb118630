"""Data sets from a user's arrays, or arrays per site."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from equipoise.data.arrays.array_checks import (
    CODES_STAY,
    FAR,
    channels_are_last,
    check_pixels,
    check_sites,
    differing_signs,
    findings_about,
    looks_like_classes,
)
from equipoise.data.dataset import Column, Dataset
from equipoise.data.tables.csv_files import cells_as_text
from equipoise.data.tables.finding_text import codings
from equipoise.data.tables.label_findings import count_classes, split_classes
from equipoise.metrics.survival import signed_times
from equipoise.task import Task
from equipoise.validation.names import quoted

MOST_OUTPUTS = 100_000


def from_arrays(
    x: Any,
    y: Any,
    *,
    name: str = "arrays",
    sites: Sequence[Any] | np.ndarray | None = None,
    part: np.ndarray | None = None,
    columns: Sequence[str | Column] = (),
    scaled: bool = False,
    kind: str | None = None,
    class_names: Sequence[str] = (),
    attributes: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return a data set from arrays or tensors.

    Args:
        x: The inputs. uint8 arrays are images, (n, height, width), (n, height, width, channels) or
            (n, channels, height, width). Others become float32 without scaling, with the channels
            of images first.
        y: The labels. Integers and text are classes, fractions are numbers to predict. With kind
            `survival`, rows of time and event (1 for an event, 0 for censoring).
        name: The name of the data set.
        sites: The site of each sample.
        part: The official split of each sample: 0 train, 1 validation, 2 test.
        columns: The columns of a table, whose gaps are filled and whose numbers are scaled.
        scaled: True to treat rows of numbers as a table without naming its columns.
        kind: `classification`, `regression` or `survival`, in place of what the labels look like.
        class_names: The names of the classes, in the order of their codes.
        attributes: Columns that are no inputs, with one cell per sample, by name; samples can be
            grouped by them (`data.groups`).

    Raises:
        ValueError: If inputs or labels have another form.

    >>> data = from_arrays(np.zeros((4, 3)), [0, 1, 1, 2])
    >>> data.task.kind, data.task.outputs, data.x.dtype
    ('classification', 3, torch.float32)
    """
    x = np.asarray(x)
    inputs = _inputs(name, x)
    shape = tuple(inputs.shape[1:])
    if kind == "survival":
        labels = survival_targets(name, np.asarray(y), len(x)).astype(np.float32)
        task = Task("survival", shape, 1)
    else:
        single = _one_label_each(name, np.asarray(y), len(x))
        labels, names = _labels(single, kind, tuple(class_names))
        task = _task(name, shape, labels, names)
    if scaled and inputs.ndim != 2:
        raise ValueError(
            f"data set {name}: scaled=True is for rows of numbers, got samples of shape {shape}"
        )
    if scaled and not columns:
        columns = [f"x{number}" for number in range(inputs.shape[1])]
    if not columns:
        _warn_of_scale(inputs, name, are_whole=x.dtype.kind == "i")
    site, site_names = _sites(sites)
    return Dataset(
        name,
        inputs,
        torch.tensor(labels),
        task,
        part=part,
        site=site,
        site_names=site_names,
        columns=tuple(Column(item) if isinstance(item, str) else item for item in columns),
        notes=tuple(finding.message for finding in findings_about(name, x, shape)),
        attributes={key: np.asarray(cells) for key, cells in (attributes or {}).items()},
    )


def _inputs(name: str, x: np.ndarray) -> torch.Tensor:
    """Return inputs as uint8 images or as float32."""
    if x.dtype.kind not in "biuf" or not x.ndim:
        raise ValueError(
            f"data set {name}: expected numbers, one row or image per sample, "
            f"got {x.dtype} of shape {x.shape}"
        )
    check_pixels(name, x)
    are_bytes = x.dtype == np.uint8
    are_images = x.ndim == 4 or (are_bytes and x.ndim > 2)
    if are_images:
        x = images_first(x)
    if are_images and are_bytes:
        return torch.tensor(x)
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused
        return torch.tensor(x.astype(np.float32))


def _one_label_each(name: str, y: np.ndarray, samples: int) -> np.ndarray:
    y = y.squeeze()
    if y.size == samples:
        y = y.reshape(samples)
    if y.ndim != 1:
        raise ValueError(
            f"data set {name}: expected one label per sample, "
            f"got {samples} samples and labels of shape {y.shape}"
        )
    return y


def survival_targets(name: str, y: np.ndarray, samples: int) -> np.ndarray:
    """Return times that are negative where censored, from rows of time and event.

    A vector is taken as such times already.

    Args:
        name: The name of the data set.
        y: The rows (samples, 2), or the vector.
        samples: The number of samples.

    Raises:
        ValueError: If rows have another form, a time is negative, or an event is not 0 or 1.
    """
    if y.ndim == 1 and len(y) == samples and y.dtype.kind in "fiu":
        return y.astype(np.float64)
    if y.shape != (samples, 2) or y.dtype.kind not in "fiub":
        raise ValueError(
            f"data set {name}: expected a time and an event for each of {samples} samples, "
            f"got {y.dtype} of shape {y.shape}"
        )
    time, event = y[:, 0].astype(np.float64), y[:, 1]
    if not bool((time >= 0).all()):
        raise ValueError(
            f"data set {name}: expected times from 0 on, got {time[~(time >= 0)][0]}; "
            "leave out such samples"
        )
    if not bool(np.isin(event, (0, 1)).all()):
        wrong = event[~np.isin(event, (0, 1))][0]
        raise ValueError(
            f"data set {name}: expected events of 1 (event) or 0 (censored), got {wrong}"
        )
    return signed_times(time, event)


def _task(
    name: str, shape: tuple[int, ...], labels: np.ndarray, class_names: tuple[str, ...] | None
) -> Task:
    """Return the task; class names of None mean regression."""
    if class_names is None:
        return Task("regression", shape, 1, ())
    highest = int(labels.max()) + 1 if len(labels) else 0
    outputs = max(len(class_names), highest)
    if outputs > MOST_OUTPUTS:
        raise ValueError(
            f"data set {name}: expected at most {MOST_OUTPUTS:,} classes, numbered from 0, "
            f"got {outputs:,}; use kind='regression' for numbers"
        )
    return Task("classification", shape, outputs, class_names)


def _warn_of_scale(x: torch.Tensor, name: str, are_whole: bool) -> None:
    """Warn of rows far from 0 and 1: training at usual rates fails on, say, blood pressures.

    Args:
        x: The inputs.
        name: The data set.
        are_whole: True for integers, which may be codes such as token ids.
    """
    if x.ndim != 2 or not x.numel():
        return
    centre = float(x.double().mean(0).abs().max())
    spread = float(x.double().std(0, correction=0).max())
    if centre > FAR or spread > FAR:  # NaN and infinity are refused when the data set is made
        codes = f"; {CODES_STAY}" if are_whole else ""
        warnings.warn(
            f"data set {name}: its columns are taken as they are, not scaled, and have means up to "
            f"{centre:.4g} and deviations up to {spread:.4g}; give scaled=True to scale them as "
            f"tables are, or scale them yourself{codes}",
            stacklevel=3,
        )


def from_sites(sites: Mapping[str, tuple[Any, Any]], **options: Any) -> Dataset:
    """Return a data set from one pair (inputs, labels) per site.

    Args:
        sites: The inputs and labels of each site.
        **options: Options of `from_arrays`.

    Raises:
        ValueError: If sites differ in shape, type or range of their inputs, or code labels
            differently.

    >>> data = from_sites({"north": (np.zeros((2, 3)), [0, 1]), "south": (np.ones((1, 3)), [1])})
    >>> data.site_names
    ('north', 'south')
    """
    if not sites:
        raise ValueError("expected at least one site")
    shapes = {name: np.asarray(x).shape[1:] for name, (x, _) in sites.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"samples differ in shape between sites: {shapes}; all sites must have the same inputs"
        )
    inputs = {name: np.asarray(x) for name, (x, _) in sites.items()}
    check_sites(inputs)
    labels = {name: np.asarray(y) for name, (_, y) in sites.items()}
    if options.get("kind") == "survival":
        labels = {name: survival_targets(name, y, len(inputs[name])) for name, y in labels.items()}
    labels = {name: y.reshape(-1) for name, y in labels.items()}
    owners: list[str] = []
    for name, x in inputs.items():
        owners += [name] * len(x)
    dataset = from_arrays(
        np.concatenate(list(inputs.values())),
        np.concatenate(_labels_of_sites(labels)),
        sites=owners,
        **options,
    )
    findings = differing_signs(inputs)
    return replace(dataset, notes=(*dataset.notes, *(finding.message for finding in findings)))


def _labels_of_sites(labels: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the labels of all sites, as text if one site has text.

    Raises:
        ValueError: If sites have different names for one class, such as 0/1 and yes/no.
    """
    if all(values.dtype.kind in "biuf" for values in labels.values()):
        return list(labels.values())
    texts = {site: cells_as_text(values) for site, values in labels.items()}
    counts = count_classes(texts)
    site_names = {site: site for site in labels}
    findings = split_classes(counts, "y", site_names)
    if findings:
        shown = codings({site: set(classes) for site, classes in counts.items()}, site_names)
        message = (
            f"labels are coded differently between sites: {shown}; write them alike in all arrays"
        )
        mapping = (findings[0].repair or {}).get("values", {}).get("y", {})
        if mapping:
            examples = [f"{quoted(old)} as {quoted(new)}" for old, new in mapping.items()]
            message += f", for example {', '.join(examples)}"
        raise ValueError(message)
    return list(texts.values())


def images_first(x: np.ndarray) -> np.ndarray:
    """Return images with their channels first.

    Args:
        x: Images as (n, height, width), or with channels first or last.

    Raises:
        ValueError: If the array has another number of dimensions.

    >>> images_first(np.zeros((5, 28, 28))).shape, images_first(np.zeros((5, 32, 32, 3))).shape
    ((5, 1, 28, 28), (5, 3, 32, 32))
    """
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise ValueError(
            "expected images as (n, height, width) or with channels first or last, "
            f"got shape {x.shape}"
        )
    if channels_are_last(x.shape):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def _labels(
    y: np.ndarray, kind: str | None, names: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return labels as numbers, and the class names; None for regression."""
    if y.dtype.kind in "USOb":
        texts = [str(value) for value in y]
        names = names or tuple(sorted(set(texts)))
        unknown = sorted(set(texts) - set(names))
        if unknown:
            raise ValueError(
                f"labels {', '.join(map(quoted, unknown[:5]))} are not among the class names "
                f"{', '.join(names)}"
            )
        codes = {name: code for code, name in enumerate(names)}
        return np.array([codes[text] for text in texts], np.int64), names
    if kind == "regression" or (kind is None and not looks_like_classes(y)):
        return y.astype(np.float32), None
    if not np.all(y == np.floor(y)):
        raise ValueError(
            "classification needs whole-number labels; these have fractions: use kind='regression'"
        )
    return y.astype(np.int64), names


def _sites(sites: Sequence[Any] | np.ndarray | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the site of each sample as an index, and the sites in order of appearance."""
    if sites is None:
        return None, ()
    texts = [str(site) for site in sites]
    names = tuple(dict.fromkeys(texts))
    indices = {name: index for index, name in enumerate(names)}
    return np.array([indices[text] for text in texts], np.int64), names
