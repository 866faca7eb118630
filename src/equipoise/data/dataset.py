"""A data set before it is partitioned, and the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.data.schema import Schema
from equipoise.task import Task
from equipoise.validation.names import checked_name

TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True)
class Column:
    """One column of a table: a number, or a code into `categories`."""

    name: str
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs, labels and facts about them.

    Attributes:
        name: The name of the data set.
        x: The inputs: images as uint8 (n, channels, height, width), everything else as float32.
            NaN is a missing value in tables and refused elsewhere.
        y: Classes as int64, or numbers to predict as float32. In survival analysis, times that are
            negative where patients were censored.
        task: The task.
        part: The official split of each sample: 0 train, 1 validation, 2 test.
        site: The natural owner (hospital, domain) of each sample, an index into `site_names`.
        site_names: The names of the sites.
        columns: The columns of a table.
        licence: The licence.
        source: Where the data come from.
        codes: The codes of patients' histories, numbered from 1; empty for other data.
        notes: Sentences about rows that were left out or changed, and other caveats.
        schema: The schema by which it was read; none: as the samples are.
        keeps_parts: True for a user's own split: its test part is never trained on unless
            `pool: all` is set.
        pixel_kinds: The kinds of pixels of image files, such as 8-bit.
        attributes: Columns with one cell per sample that need not be inputs, by name; samples can
            be grouped by them (`data.groups`).
    """

    name: str
    x: Tensor
    y: Tensor
    task: Task
    part: np.ndarray | None = None
    site: np.ndarray | None = None
    site_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    licence: str = "unknown"
    source: str = ""
    codes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schema: Schema | None = None
    keeps_parts: bool = False
    pixel_kinds: tuple[str, ...] = ()
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __repr__(self) -> str:
        # Samples are never shown, since errors and logs may hold this text.
        return (
            f"Dataset({self.name!r}, {len(self.x)} samples of shape {self.task.shape}, "
            f"{self.task.kind})"
        )

    def __post_init__(self) -> None:
        for name in self.site_names:
            checked_name(name, f"data set {self.name}: the site")
        for name in self.task.class_names:
            checked_name(name, f"data set {self.name}: the label")
        self._check_lengths()
        self._check_inputs()
        self._check_labels()
        self._check_sites()

    def _check_lengths(self) -> None:
        samples = len(self.x)
        counted = [("labels", self.y), ("split marks", self.part), ("site marks", self.site)]
        for name, cells in self.attributes.items():
            counted.append((f"cells of the attribute {name}", cells))
        for noun, values in counted:
            if values is not None and len(values) != samples:
                raise ValueError(
                    f"data set {self.name}: {samples} samples but {len(values)} {noun}; "
                    "give one for each sample"
                )

    def _check_inputs(self) -> None:
        shape = tuple(self.x.shape[1:])
        if shape != self.task.shape:
            raise ValueError(
                f"data set {self.name}: samples have shape {shape}, the task says {self.task.shape}"
            )
        if self.x.dtype not in (torch.uint8, torch.float32):
            raise TypeError(
                f"data set {self.name}: inputs must be uint8 (images) or float32, "
                f"got {self.x.dtype}; convert them first"
            )
        if self.columns:
            self._check_columns()
        elif self.x.dtype == torch.float32 and not bool(torch.isfinite(self.x).all()):
            raise ValueError(
                f"data set {self.name}: inputs hold NaN or infinity; "
                "missing values are allowed in tables only (give columns=)"
            )

    def _check_columns(self) -> None:
        if bool(torch.isinf(self.x).any()):
            raise ValueError(
                f"data set {self.name}: its columns hold infinity, or numbers beyond 3e38; "
                "leave such cells empty"
            )
        if len(self.columns) != self.x.shape[1]:
            raise ValueError(
                f"data set {self.name}: {self.x.shape[1]} columns of values "
                f"but {len(self.columns)} column names"
            )

    def _check_labels(self) -> None:
        dtype = torch.int64 if self.task.classifies else torch.float32
        if self.y.dtype != dtype:
            raise TypeError(
                f"data set {self.name}: {self.task.kind} needs {dtype} labels, got {self.y.dtype}"
            )
        if not self.task.classifies:
            if not bool(torch.isfinite(self.y).all()):
                raise ValueError(
                    f"data set {self.name}: every target must be finite; "
                    "leave out samples without one"
                )
            return
        if not len(self.y):
            return
        low = int(self.y.min())
        high = int(self.y.max())
        if low < 0 or high >= self.task.outputs:
            raise ValueError(
                f"data set {self.name}: labels must lie in 0..{self.task.outputs - 1}, "
                f"found {low}..{high}"
            )

    def _check_sites(self) -> None:
        if self.site is None or not len(self.site):
            return
        if int(self.site.min()) < 0 or int(self.site.max()) >= len(self.site_names):
            raise ValueError(
                f"data set {self.name}: site marks must be indices into its "
                f"{len(self.site_names)} site names"
            )

    def with_intervals(self, intervals: int | None) -> Dataset:
        """Return the same data for a discrete-time model of survival.

        Args:
            intervals: The number of intervals; none: the data set as it is.

        Raises:
            ValueError: If the task is not survival.
        """
        if intervals is None:
            return self
        if not self.task.survives:
            raise ValueError(
                f"data.intervals: expected survival data, got {self.name}, which is for "
                f"{self.task.kind}; leave it out"
            )
        return replace(self, task=replace(self.task, outputs=intervals))

    @property
    def image(self) -> bool:
        """True if samples are images."""
        return len(self.task.shape) == 3

    def as_task(self, kind: str | None) -> Dataset:
        """Return the same data for a kind of task: grades 0-4 as classes or as numbers.

        Args:
            kind: `classification`, `regression` or `survival`; none: the data set as it is.

        Raises:
            ValueError: If numbers cannot be classes, or times are needed and there are none.
        """
        if kind is None or kind == self.task.kind:
            return self
        if "survival" in (kind, self.task.kind):
            raise ValueError(
                f"data set {self.name}: it is for {self.task.kind} and cannot be used for {kind}; "
                "survival needs columns of times and events"
            )
        if kind == "regression":
            return replace(
                self, y=self.y.to(torch.float32), task=Task("regression", self.task.shape, 1)
            )
        if not bool((self.y == self.y.round()).all()) or bool((self.y < 0).any()):
            raise ValueError(
                f"data set {self.name}: its targets are not whole numbers from 0, "
                "so they cannot be classes; use task: regression"
            )
        classes = int(self.y.max()) + 1
        return replace(
            self, y=self.y.to(torch.int64), task=Task("classification", self.task.shape, classes)
        )
