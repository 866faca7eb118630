"""What a partition may look at, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.data.federation import Parts


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples to deal; a partition answers with places 0..n-1 in it."""

    y: np.ndarray
    classes: int = 0  # 0: the targets are numbers
    site: np.ndarray | None = None
    site_names: tuple[str, ...] = ()
    # (n, d) flattened inputs, made only if asked for
    features: Callable[[], np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def labels(self, partition: str) -> np.ndarray:
        """The class of each sample, for partitions that go by label."""
        if not self.classes:
            raise ValueError(
                f"partition {partition} deals by class label but the targets are numbers; use dirichlet_bins, quantity or iid"
            )
        return self.y

    def sites(self, partition: str) -> np.ndarray:
        """The site of each sample, for partitions that go by site."""
        if self.site is None:
            raise ValueError(
                f"partition {partition} needs data with sites or domains and this set has none; use iid or dirichlet:0.3"
            )
        return self.site

    def inputs(self) -> np.ndarray:
        """The flattened inputs."""
        if self.features is None:
            raise ValueError("this partition looks at the inputs and was given none")
        return self.features()


@dataclass(frozen=True, eq=False)
class Partition:
    """Who gets what, and what is worth recording about it."""

    parts: Parts
    metadata: dict[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()  # empty: "0", "1", ...
