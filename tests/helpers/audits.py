"""Findings of an audit with numbers that a test chooses, without an audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.auditing.findings import ClientRow, Findings
from equipoise.auditing.verdict import Verdict

SAID = "The clients differ mainly in size."
VERDICT = Verdict(
    "size",
    ("size",),
    {"size": 0.5, "labels": 0.0, "features": 0.0},
    None,
    1.0,
    "clear",
    ("cffl",),
    SAID,
)


def row(client: str = "a", samples: int = 100, kl: float | None = 0.5, **more: Any) -> ClientRow:
    """One client; its label is 0.1 from the whole's, and it lies next to the centre."""
    usual: dict[str, Any] = {
        "label_distance": 0.1,
        "label_chance": 0.05,
        "kl_chance": 0.25,
        "kl_beyond_labels": 0.125,
        "corrected": 1.5,
        "printed": 150.25,
        "shrinkage": 0.0,
        "flat": 0,
        "place": (0.5, -0.5),
    }
    return ClientRow(client, samples, kl=kl, **(usual | more))


def findings(
    rows: Sequence[ClientRow] | int, counts: np.ndarray | None = None, classes: int = 3, **more: Any
) -> Findings:
    """Of these clients, or of so many.

    A client's samples are of the first class, unless counts are given.
    """
    rows = [row(f"c{k}", 100 + k, 0.5 + k) for k in range(rows)] if isinstance(rows, int) else rows
    counts = (
        np.array([[one.samples, *[0] * (classes - 1)] for one in rows])
        if counts is None
        else counts
    )
    names = tuple(f"class {c}" for c in range(counts.shape[1]))
    return Findings(
        "digits",
        tuple(rows),
        VERDICT,
        names,
        counts,
        **{"dimensions": 2, "features": 8, "variance": 0.625, **more},
    )
