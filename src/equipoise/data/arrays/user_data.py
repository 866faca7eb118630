"""A user's own data: arrays, and arrays per site."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from equipoise.data.arrays.array_checks import (
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
) -> Dataset:
    """A data set from arrays or tensors; labels that are integers or text are classes, fractions are targets (or say `kind`).

    uint8 inputs are images, (n, height, width), (n, height, width, channels) or (n, channels, height, width); all else
    becomes float32 and is taken as it is, with the channels of images first. With `columns`, or `scaled=True`, rows are a table: gaps are filled and numbers scaled.

    >>> data = from_arrays(np.zeros((4, 3)), [0, 1, 1, 2])
    >>> data.task.kind, data.task.outputs, data.x.dtype
    ('classification', 3, torch.float32)
    """
    x, y = np.asarray(x), np.asarray(y).squeeze()
    if x.dtype.kind not in "biuf" or not x.ndim:
        raise ValueError(
            f"data set {name}: expected numbers, one row or image per sample, got {x.dtype} of shape {x.shape}"
        )
    y = y.reshape(len(x)) if y.size == len(x) else y
    if y.ndim != 1:
        raise ValueError(
            f"data set {name}: expected one label per sample, got {len(x)} samples and labels of shape {y.shape}"
        )
    check_pixels(name, x)
    images = x.ndim == 4 or (x.dtype == np.uint8 and x.ndim > 2)
    pixels = images_first(x) if images else x
    # what is beyond float32 becomes infinite, and is refused as such
    with np.errstate(over="ignore"):
        keeps_type = images and x.dtype == np.uint8
        inputs = torch.tensor(pixels if keeps_type else pixels.astype(np.float32))
    labels, names = _labels(y, kind, tuple(class_names))
    classes = names is not None
    outputs = max(len(names or ()), int(labels.max()) + 1 if len(labels) else 0) if classes else 1
    if outputs > MOST_OUTPUTS:
        raise ValueError(
            f"data set {name}: expected at most {MOST_OUTPUTS:,} classes, numbered from 0, got {outputs:,}; use kind='regression' for numbers"
        )
    task = Task(
        "classification" if classes else "regression", tuple(inputs.shape[1:]), outputs, names or ()
    )
    site, site_names = _sites(sites)
    if scaled and inputs.ndim != 2:
        raise ValueError(
            f"data set {name}: scaled=True is for rows of numbers, got samples of shape {tuple(inputs.shape[1:])}"
        )
    columns = columns or ([f"x{place}" for place in range(inputs.shape[1])] if scaled else [])
    described = tuple(Column(c) if isinstance(c, str) else c for c in columns)
    if not described:
        _warn_of_scale(inputs, name)
    return Dataset(
        name,
        inputs,
        torch.tensor(labels),
        task,
        part=part,
        site=site,
        site_names=site_names,
        columns=described,
        notes=tuple(one.message for one in findings_about(name, x, tuple(inputs.shape[1:]))),
    )


def _warn_of_scale(x: torch.Tensor, name: str) -> None:
    """Rows that are taken as they are should be near 0 and 1: training at any usual rate fails on blood pressures."""
    if x.ndim != 2 or not x.numel():
        return
    centre, spread = (
        float(x.double().mean(0).abs().max()),
        float(x.double().std(0, correction=0).max()),
    )
    if centre > FAR or spread > FAR:  # NaN and infinity are refused by what follows
        warnings.warn(
            f"data set {name}: its columns are taken as they are, not scaled, and have means up to {centre:.4g} and deviations up to "
            f"{spread:.4g}; give scaled=True to scale them as tables are, or scale them yourself",
            stacklevel=3,
        )


def from_sites(sites: Mapping[str, tuple[Any, Any]], **options: Any) -> Dataset:
    """A data set from one pair (inputs, labels) per site; options as for `from_arrays`.

    >>> from_sites({"north": (np.zeros((2, 3)), [0, 1]), "south": (np.ones((1, 3)), [1])}).site_names
    ('north', 'south')
    """
    if not sites:
        raise ValueError("expected at least one site")
    shapes = {name: np.asarray(x).shape[1:] for name, (x, _) in sites.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"samples differ in shape between sites: {shapes}; all sites must have the same inputs"
        )
    check_sites({name: np.asarray(x) for name, (x, _) in sites.items()})
    x = np.concatenate([np.asarray(x) for x, _ in sites.values()])
    y = np.concatenate(_alike({name: np.asarray(y).reshape(-1) for name, (_, y) in sites.items()}))
    names = [name for name, (inputs, _) in sites.items() for _ in range(len(inputs))]
    made = from_arrays(x, y, sites=names, **options)
    found = differing_signs({name: np.asarray(x) for name, (x, _) in sites.items()})
    return replace(made, notes=(*made.notes, *(one.message for one in found)))


def _alike(labels: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the labels of all sites, as text if one site has text.

    Raises:
        ValueError: Sites have different names for one class, such as 0/1 and yes/no.
    """
    if all(own.dtype.kind in "biuf" for own in labels.values()):
        return list(labels.values())
    texts = {site: cells_as_text(own) for site, own in labels.items()}
    counts = count_classes(texts)
    found = split_classes(counts, "y", {site: site for site in labels})
    if found:
        mapping = (found[0].repair or {}).get("values", {}).get("y", {})
        example = ", ".join(f"{quoted(old)} as {quoted(new)}" for old, new in mapping.items())
        shown = codings({site: set(own) for site, own in counts.items()}, {s: s for s in labels})
        raise ValueError(
            f"labels are coded differently between sites: {shown}; write them alike in all arrays"
            + (f", for example {example}" if example else "")
        )
    return list(texts.values())


def images_first(x: np.ndarray) -> np.ndarray:
    """Return images with their channels first.

    >>> images_first(np.zeros((5, 28, 28))).shape, images_first(np.zeros((5, 32, 32, 3))).shape
    ((5, 1, 28, 28), (5, 3, 32, 32))
    """
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise ValueError(
            f"expected images as (n, height, width) or with channels first or last, got shape {x.shape}"
        )
    if channels_are_last(x.shape):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def _labels(
    y: np.ndarray, kind: str | None, names: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels as numbers, and the class names (None for regression)."""
    if y.dtype.kind in "USOb":
        found = names or tuple(sorted({str(value) for value in y}))
        places = {name: i for i, name in enumerate(found)}
        unknown = sorted({str(v) for v in y} - set(found))
        if unknown:
            raise ValueError(
                f"labels {', '.join(map(quoted, unknown[:5]))} are not among the class names {', '.join(found)}"
            )
        return np.array([places[str(value)] for value in y], np.int64), found
    whole = bool(np.all(y == np.floor(y)))
    if kind == "regression" or (kind is None and not looks_like_classes(y)):
        return y.astype(np.float32), None
    if not whole:
        raise ValueError(
            "classification needs whole-number labels; these have fractions: use kind='regression'"
        )
    return y.astype(np.int64), names


def _sites(sites: Sequence[Any] | np.ndarray | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Site marks as numbers, and the sites' names in order of appearance."""
    if sites is None:
        return None, ()
    names = tuple(dict.fromkeys(str(s) for s in sites))
    places = {name: i for i, name in enumerate(names)}
    return np.array([places[str(s)] for s in sites], np.int64), names
