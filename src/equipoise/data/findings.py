"""Findings about users' data, and the error that lists every problem at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One observation about the data that a person should check before training.

    Attributes:
        message: One or two sentences: the file, line or column, the observation, the remedy.
        column: The column, if it concerns one.
        sites: The sites it concerns; empty for all.
        repair: A fragment of a schema that repairs it, for example
            ``{"values": {"sex": {"f": "0", "m": "1"}}}``; none if only a person can.
        certain: True if the repair can be applied as it is. A guess, such as a unit, is
            proposed but never applied automatically.
    """

    message: str
    column: str | None = None
    sites: tuple[str, ...] = ()
    repair: Mapping[str, Any] | None = None
    certain: bool = False


class DataErrors(ValueError):
    """Every problem that keeps data from being read, one per line.

    Attributes:
        problems: The problems, each as one line of text.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(" ".join(problem.split()) for problem in problems)
        super().__init__("\n".join(self.problems))
