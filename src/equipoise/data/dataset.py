"""A data set before it is dealt to clients, and what its columns mean when it is a table."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Inputs, labels and what is known about them; images are uint8 (n, channels, height, width), all else float32."""

    name: str
    x: Tensor
    y: Tensor
    task: Task
    part: np.ndarray | None = None  # official split per sample: 0 train, 1 validation, 2 test
    # natural owner (hospital, domain) per sample, a number into site_names
    site: np.ndarray | None = None
    site_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()  # of a table; NaN means missing there and is refused elsewhere
    licence: str = "unknown"
    source: str = ""
    codes: tuple[
        str, ...
    ] = ()  # of patients' histories, numbered from 1; empty: samples are no histories
    notes: tuple[
        str, ...
    ] = ()  # what a reader left out or changed, and what else whoever sees results has to know, in sentences
    # what it is made of, as its files or its user said; none: as the samples say
    schema: Schema | None = None
    # a user's own split: its test part is never trained on unless `pool: all` asks for that
    keeps_parts: bool = False
    # of image files: the kinds of their pixels, such as 8-bit
    pixel_kinds: tuple[str, ...] = ()

    def __repr__(self) -> str:  # never a sample: it may stand in an error or a log
        return f"Dataset({self.name!r}, {len(self.x)} samples of shape {self.task.shape}, {self.task.kind})"

    def __post_init__(self) -> None:
        n = len(self.x)
        for name in self.site_names:
            checked_name(name, f"data set {self.name}: the site")
        for name in self.task.class_names:
            checked_name(name, f"data set {self.name}: the label")
        for what, values in (
            ("labels", self.y),
            ("split marks", self.part),
            ("site marks", self.site),
        ):
            if values is not None and len(values) != n:
                raise ValueError(
                    f"data set {self.name}: {n} samples but {len(values)} {what}; give one for each sample"
                )
        if tuple(self.x.shape[1:]) != self.task.shape:
            raise ValueError(
                f"data set {self.name}: samples have shape {tuple(self.x.shape[1:])}, the task says {self.task.shape}"
            )
        if self.x.dtype not in (torch.uint8, torch.float32):
            raise TypeError(
                f"data set {self.name}: inputs must be uint8 (images) or float32, got {self.x.dtype}; convert them first"
            )
        wanted = torch.int64 if self.task.classifies else torch.float32
        if self.y.dtype != wanted:
            raise TypeError(
                f"data set {self.name}: {self.task.kind} needs {wanted} labels, got {self.y.dtype}"
            )
        if (
            self.task.classifies
            and n
            and not (int(self.y.min()) >= 0 and int(self.y.max()) < self.task.outputs)
        ):
            low, high = int(self.y.min()), int(self.y.max())
            raise ValueError(
                f"data set {self.name}: labels must lie in 0..{self.task.outputs - 1}, found {low}..{high}"
            )
        if not self.task.classifies and not bool(torch.isfinite(self.y).all()):
            raise ValueError(
                f"data set {self.name}: every target must be finite; leave out samples without one"
            )
        if (
            not self.columns
            and self.x.dtype == torch.float32
            and not bool(torch.isfinite(self.x).all())
        ):
            raise ValueError(
                f"data set {self.name}: inputs hold NaN or infinity; missing values are allowed in tables only (give columns=)"
            )
        if self.columns and bool(torch.isinf(self.x).any()):
            raise ValueError(
                f"data set {self.name}: its columns hold infinity, or numbers beyond 3e38; leave such cells empty"
            )
        if self.columns and len(self.columns) != self.x.shape[1]:
            raise ValueError(
                f"data set {self.name}: {self.x.shape[1]} columns of values but {len(self.columns)} column names"
            )
        if (
            self.site is not None
            and n
            and not (int(self.site.min()) >= 0 and int(self.site.max()) < len(self.site_names))
        ):
            raise ValueError(
                f"data set {self.name}: site marks must be numbers into its {len(self.site_names)} site names"
            )

    @property
    def image(self) -> bool:
        return len(self.task.shape) == 3

    def as_task(self, kind: str | None) -> Dataset:
        """The same data for the other kind of task: grades 0-4 as classes or as numbers."""
        if kind is None or kind == self.task.kind:
            return self
        if kind == "regression":
            return replace(
                self, y=self.y.to(torch.float32), task=Task("regression", self.task.shape, 1)
            )
        if not bool((self.y == self.y.round()).all()) or bool((self.y < 0).any()):
            raise ValueError(
                f"data set {self.name}: its targets are not whole numbers from 0, so they cannot be classes; use task: regression"
            )
        classes = int(self.y.max()) + 1
        return replace(
            self, y=self.y.to(torch.int64), task=Task("classification", self.task.shape, classes)
        )
