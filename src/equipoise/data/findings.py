"""Findings: what looks wrong in users' data, and the repair that a schema can make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One observation about the data that a person should look at before training.

    Attributes:
        message: One or two sentences: where (file, line, column), what was found, what to do.
        column: The column, if it concerns one.
        sites: The sites it concerns; empty for all.
        repair: A fragment of a schema that repairs it, for example
            ``{"values": {"sex": {"f": "0", "m": "1"}}}``; none if only a person can.
        certain: True if the repair can be applied as it is. A guess, such as a unit, is
            proposed but never applied by itself.
    """

    message: str
    column: str | None = None
    sites: tuple[str, ...] = ()
    repair: Mapping[str, Any] | None = None
    certain: bool = False
