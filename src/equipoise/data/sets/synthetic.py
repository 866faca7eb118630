"""A synthetic data set of any size, for measuring cost; it says nothing about methods."""

from __future__ import annotations

import torch
from pydantic import ConfigDict, Field

from equipoise.data.dataset import Dataset
from equipoise.streams import torch_stream
from equipoise.task import Task
from equipoise.validation.limits import check_memory
from equipoise.validation.settings import Settings

NAME = "synthetic"
APART = 3.0  # mean distance of two centres in standard deviations, so that classes overlap
AT_ONCE = 1 << 16  # samples to which centres are added at a time


class Synthetic(Settings):
    """Size and seed of a synthetic data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: int = Field(default=10_000, ge=1, le=1_000_000_000, description="number of samples")
    features: int = Field(default=20, ge=1, le=1_000_000, description="numbers in a sample")
    classes: int = Field(default=10, ge=2, le=1_000_000, description="number of classes")
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="of the samples; the experiment's seed partitions and splits them",
    )


def load(config: Synthetic) -> Dataset:
    """Return normal clouds around one centre per class, with a name that says so.

    Args:
        config: Its size and seed.

    Raises:
        ValueError: If it would take too much memory.
    """
    numbers = (config.samples + config.classes) * config.features + config.samples
    check_memory(4 * numbers, f"a synthetic set of {config.samples:,} samples")
    centres = torch.randn(
        config.classes, config.features, generator=torch_stream(config.seed, NAME, "centres")
    )
    centres *= APART / (2 * config.features) ** 0.5
    y = torch.randint(
        config.classes, (config.samples,), generator=torch_stream(config.seed, NAME, "labels")
    )
    x = torch.randn(
        config.samples, config.features, generator=torch_stream(config.seed, NAME, "samples")
    )
    for start in range(0, config.samples, AT_ONCE):
        x[start : start + AT_ONCE] += centres[y[start : start + AT_ONCE]]
    name = (
        f"{NAME}, {config.samples:,} samples, {config.features:,} features, "
        f"{config.classes:,} classes, seed {config.seed}"
    )
    task = Task("classification", (config.features,), config.classes)
    return Dataset(
        name,
        x,
        y,
        task,
        licence="none needed",
        source="synthetic: normal clouds, made by Equipoise",
    )
