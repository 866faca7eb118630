"""The verdict of a comparison: sentences that claim no more than its statistics allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from equipoise.comparison.formats import figure
from equipoise.comparison.measures import Measure
from equipoise.comparison.table import Comparison

NAMED = 3  # methods that a sentence names
Row = dict[str, Any]


def best_methods(comparison: Comparison) -> str:
    """Return for every partition which method is best and which harms the fewest clients.

    Where intervals overlap, the sentence says that this is undecided.
    """
    parts = []
    for partition in comparison.partitions:
        sentences = []
        for name in dict.fromkeys((comparison.measure, "harmed")):
            sentence = _sentence(comparison, partition, name)
            if sentence:
                sentences.append(sentence)
        if not sentences:
            continue
        text = " ".join(sentences)
        parts.append(f"On {partition}: {text}" if len(comparison.partitions) > 1 else text)
    return " ".join(parts)


def _sentence(comparison: Comparison, partition: str, name: str) -> str:
    measure = comparison.measures[name]
    rows = _ranked_rows(comparison, partition, name)
    if len(rows) < (1 if measure.against_alone else 2):
        return ""
    best = [row for row in rows if row["value"] == rows[0]["value"]]
    claim = f"{_listed([row['method'] for row in best])} {_claim(name, measure, best)}"
    if max(row["seeds"] for row in rows) == 1:
        return f"{claim} in this one run{'' if len(rows) == 1 else ' per method'}."
    if name == "harmed" and rows[0]["value"] == 0:
        return f"{claim} in {rows[0]['seeds']} seeds."
    rivals = best[1:] + [row for row in rows[len(best) :] if not _apart(rows[0], row)]
    if not rivals:
        return f"{claim}, over {rows[0]['seeds']} seeds."
    reason = _doubt(comparison, measure, [rows[0], *rivals])
    return f"{_question(name, measure)} is undecided: {reason}."


def _ranked_rows(comparison: Comparison, partition: str, name: str) -> list[Row]:
    """Return the rows of a measure that have a value, the best first."""
    measure = comparison.measures[name]
    rows = []
    for row in comparison.own_rows:
        is_selected = row["partition"] == partition and row["measure"] == name
        if is_selected and not math.isnan(row["value"]):
            rows.append(row)
    sign = 1 if measure.lower else -1
    return sorted(rows, key=lambda row: sign * row["value"])


def _question(name: str, measure: Measure) -> str:
    if name == "harmed":
        return "Which method harms the fewest clients"
    return f"Which method has the best {measure.title}"


def _doubt(comparison: Comparison, measure: Measure, close: Sequence[Row]) -> str:
    """Return why no method is clearly the best."""
    without = [row for row in close if row["low"] is None]
    if not without:
        names = _listed([row["method"] for row in close])
        return f"the {comparison.level:.0%} intervals of {names} overlap"
    if all(row["seeds"] > 1 for row in without):
        return f"two seeds are too few for an interval of the {measure.title}"
    return f"{_listed([row['method'] for row in without])} finished in one seed only"


def _apart(first: Row, second: Row) -> bool:
    """Return True if the intervals of two methods have no point in common."""
    if first["low"] is None or second["low"] is None:
        return False
    return bool(first["high"] < second["low"] or second["high"] < first["low"])


def _claim(name: str, measure: Measure, best: Sequence[Row]) -> str:
    value = best[0]["value"]
    if name == "harmed":
        if not value:
            return "harmed nobody"
        return f"harmed the fewest clients ({figure(value, measure)} %)"
    verb = "have" if len(best) > 1 else "has"
    unit = " %" if measure.scale == 100 else ""
    return f"{verb} the best {measure.title} ({figure(value, measure, measure.signed)}{unit})"


def _listed(names: Sequence[str]) -> str:
    shown = list(names)
    if len(shown) > NAMED:
        shown = [*shown[:NAMED], f"{len(names) - NAMED} more"]
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
