"""Claims about a table, written as data.

A claim compares two terms::

    corefed.average > every other.average
    kdia.teacher.average > kdia.global.average
    fedekd.change >= -0.01
    fedequilibria.average[svhn] > fedavg.average[svhn] + 0.02
    fedakd.cf > every other.cf at POW, ICS 5

A term is a number, or a row of the table and a measure. A row is the name that the study gives a
method, or the name and one of its served models. `every other` stands for the rows of all other
methods. A measure in square brackets is taken over the clients of one group, such as a domain.
`at` restricts the claim to some conditions; without it the claim is about every condition.
Numbers are in the metric's own unit: 0.02 of accuracy is two percentage points.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

EVERY_OTHER = "every other"
OPERATORS = (">=", "<=", ">", "<")

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_OFFSET = re.compile(r"^(?P<term>.*\S)\s+(?P<sign>[+-])\s+(?P<number>\S+)$")
_MEASURE = re.compile(r"(?P<name>\w+)(\[(?P<group>[^\[\]]+)\])?")
_MIRRORED = {">=": "<=", "<=": ">=", ">": "<", "<": ">"}


class ClaimError(ValueError):
    """A claim that cannot be understood, or that names what the study does not have."""


@dataclass(frozen=True)
class Quantity:
    """A measure of one row, or of every other row.

    Attributes:
        row: Name of a row, or `EVERY_OTHER`.
        measure: Name of the measure.
        group: Clients that the measure is taken over; None for all clients.
    """

    row: str
    measure: str
    group: str | None = None

    @property
    def column(self) -> str:
        """The measure with its group, as tables name it."""
        return self.measure if self.group is None else f"{self.measure}[{self.group}]"


@dataclass(frozen=True)
class Claim:
    """A comparison of a measure with another one, or with a number.

    Attributes:
        text: The claim as it was written.
        left: The quantity that the claim is about.
        operator: One of `OPERATORS`.
        right: What it is compared with; None for a plain number.
        offset: The number, or what is added to the right-hand quantity.
        conditions: Names of conditions; empty for all of the study.
    """

    text: str
    left: Quantity
    operator: str
    right: Quantity | None
    offset: float
    conditions: tuple[str, ...] = ()

    @property
    def greater(self) -> bool:
        """True if the claim says that the left side is the larger one."""
        return self.operator in (">", ">=")

    @property
    def columns(self) -> tuple[str, ...]:
        """Measures, with their groups, that the claim reads."""
        names = [self.left.column]
        if self.right is not None:
            names.append(self.right.column)
        return tuple(dict.fromkeys(names))


def split_column(text: str) -> tuple[str, str | None] | None:
    """Return the measure and the group that a column names; None if it is no column.

    >>> split_column("average[mnist]"), split_column("average"), split_column("average[")
    (('average', 'mnist'), ('average', None), None)
    """
    match = _MEASURE.fullmatch(text)
    return None if match is None else (match["name"], match["group"])


def parse_claim(text: str, rows: Sequence[str], conditions: Sequence[str]) -> Claim:
    """Return the claim that a text states.

    Args:
        text: A claim, such as `"fedakd.cf > every other.cf"`.
        rows: Rows of the table.
        conditions: Conditions of the study, such as partitions.

    Raises:
        ClaimError: If the text is not a claim, or names an unknown row or condition.

    >>> text = "kdia.teacher.average > fedavg.average + 0.01"
    >>> claim = parse_claim(text, ["kdia.teacher", "fedavg"], [])
    >>> claim.left.row, claim.right.row, claim.offset
    ('kdia.teacher', 'fedavg', 0.01)
    >>> parse_claim("fedekd.change >= -0.01", ["fedekd"], []).offset
    -0.01
    """
    comparison, where = _split_conditions(text, conditions)
    left_text, operator, right_text = _split_operator(text, comparison)
    if _NUMBER.fullmatch(left_text):
        raise ClaimError(
            f"claim {text!r}: expected the row on the left, got the number {left_text}; "
            f"write '{right_text} {_MIRRORED[operator]} {left_text}'"
        )
    left = _quantity(text, left_text, rows)
    if left.row == EVERY_OTHER:
        raise ClaimError(f"claim {text!r}: expected a row on the left, got {EVERY_OTHER!r}")
    if _NUMBER.fullmatch(right_text):
        return Claim(text, left, operator, None, _finite(text, right_text), where)
    right_text, offset = _split_offset(text, right_text)
    right = _quantity(text, right_text, rows)
    if right == left:
        raise ClaimError(
            f"claim {text!r}: expected two quantities, got {left_text} on both sides; "
            "compare it with another row or with a number"
        )
    return Claim(text, left, operator, right, offset, where)


def _finite(text: str, number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ClaimError(f"claim {text!r}: expected a finite number, got {number!r}")
    return value


def _split_conditions(text: str, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    comparison, separator, listed = text.partition(" at ")
    if not separator:
        return comparison.strip(), ()
    names = tuple(name.strip() for name in listed.split(","))
    for name in names:
        if name not in known:
            expected = ", ".join(known) or "none"
            raise ClaimError(
                f"claim {text!r}: unknown condition {name!r}; the study has {expected}"
            )
    if len(set(names)) < len(names):
        raise ClaimError(f"claim {text!r}: expected distinct conditions, got {listed.strip()}")
    return comparison.strip(), names


def _split_operator(text: str, comparison: str) -> tuple[str, str, str]:
    parts = re.split(r"(>=|<=|>|<)", comparison)
    if len(parts) != 3:
        raise ClaimError(
            f"claim {text!r}: expected two terms with one of {', '.join(OPERATORS)} between them, "
            "such as 'fedakd.cf > every other.cf'"
        )
    return parts[0].strip(), parts[1], parts[2].strip()


def _split_offset(text: str, term: str) -> tuple[str, float]:
    match = _OFFSET.match(term)
    if match is None:
        return term, 0.0
    if not _NUMBER.fullmatch(match["number"]):
        raise ClaimError(f"claim {text!r}: expected a number, got {match['number']!r}")
    amount = _finite(text, match["number"])
    return match["term"], amount if match["sign"] == "+" else -amount


def _quantity(text: str, term: str, rows: Sequence[str]) -> Quantity:
    row, separator, measure = _split_measure(term)
    column = split_column(measure)
    if not separator or column is None:
        raise ClaimError(
            f"claim {text!r}: expected a row and a measure such as 'fedavg.average', got {term!r}"
        )
    if row != EVERY_OTHER and row not in rows:
        raise ClaimError(
            f"claim {text!r}: unknown row {row!r}; the study has {', '.join(rows)}, "
            f"and {EVERY_OTHER!r} for all other methods"
        )
    return Quantity(row, *column)


def _split_measure(term: str) -> tuple[str, str, str]:
    """Split at the last point before the brackets: names of groups may contain points."""
    name, bracket, group = term.partition("[")
    row, separator, measure = name.rpartition(".")
    return row, separator, measure + bracket + group
