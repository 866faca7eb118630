"""The input and the result of a partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.data.federation import Parts


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples to partition; a partition refers to them by position, 0 to n - 1.

    Attributes:
        y: The class or number of each sample.
        classes: The number of classes; 0 if `y` are numbers to predict.
        site: The site of each sample as an index into `site_names`, if the data have sites.
        site_names: The names of the sites.
        features: A function that returns the flattened inputs (n, d); called only on demand.
    """

    y: np.ndarray
    classes: int = 0
    site: np.ndarray | None = None
    site_names: tuple[str, ...] = ()
    features: Callable[[], np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def labels(self, partition: str) -> np.ndarray:
        """Return the class of each sample.

        Args:
            partition: The name of the partition that needs it, for the error.

        Raises:
            ValueError: If the targets are numbers.
        """
        if not self.classes:
            raise ValueError(
                f"partition {partition} needs class labels but the targets are numbers; "
                "use dirichlet_bins, quantity or iid"
            )
        return self.y

    def sites(self, partition: str) -> np.ndarray:
        """Return the site of each sample.

        Args:
            partition: The name of the partition that needs it, for the error.

        Raises:
            ValueError: If the data have no sites.
        """
        if self.site is None:
            raise ValueError(
                f"partition {partition} needs data with sites or domains and this set has none; "
                "use iid or dirichlet:0.3"
            )
        return self.site

    def inputs(self) -> np.ndarray:
        """Return the flattened inputs.

        Raises:
            ValueError: If the pool has none.
        """
        if self.features is None:
            raise ValueError(
                "this partition needs the inputs of samples and the pool has none; "
                "create it as Pool(..., features=...)"
            )
        return self.features()


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each client.

    Attributes:
        parts: For each client, the positions of its samples in the pool.
        metadata: Facts about the partition that a run records.
        ids: The names of the clients; empty for "0", "1", ...
    """

    parts: Parts
    metadata: dict[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
