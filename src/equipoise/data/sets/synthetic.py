"""A synthetic set of any size, made in seconds: to see how cost grows where no real set is large enough. It says nothing about methods."""

from __future__ import annotations

import torch
from pydantic import ConfigDict, Field

from equipoise.data.dataset import Dataset
from equipoise.streams import torch_stream
from equipoise.task import Task
from equipoise.validation.limits import check_memory
from equipoise.validation.settings import Settings

NAME = "synthetic"
APART = 3.0  # standard deviations between two centres on average: classes overlap, so that there is something to learn and to miss
AT_ONCE = 1 << 16  # samples


class Synthetic(Settings):
    """How large it is, and which one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: int = Field(10_000, ge=1, le=1_000_000_000)
    features: int = Field(20, ge=1, le=1_000_000)
    classes: int = Field(10, ge=2, le=1_000_000)
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="of the samples; the experiment's own seed deals and splits them",
    )


def load(made: Synthetic) -> Dataset:
    """Normal clouds around one centre per class; its name says that it is synthetic, wherever it is shown."""
    numbers = (made.samples + made.classes) * made.features + made.samples
    check_memory(4 * numbers, f"a synthetic set of {made.samples:,} samples")
    centres = torch.randn(
        made.classes, made.features, generator=torch_stream(made.seed, NAME, "centres")
    )
    centres *= APART / (2 * made.features) ** 0.5
    y = torch.randint(
        made.classes, (made.samples,), generator=torch_stream(made.seed, NAME, "labels")
    )
    x = torch.randn(made.samples, made.features, generator=torch_stream(made.seed, NAME, "samples"))
    for start in range(0, made.samples, AT_ONCE):
        x[start : start + AT_ONCE] += centres[y[start : start + AT_ONCE]]
    name = f"{NAME}, {made.samples:,} samples, {made.features:,} features, {made.classes:,} classes, seed {made.seed}"
    task = Task("classification", (made.features,), made.classes)
    return Dataset(
        name,
        x,
        y,
        task,
        licence="none needed",
        source="synthetic: normal clouds, made by Equipoise",
    )
