"""What a comparison found, in words that say no more than its statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from equipoise.comparison.formats import figure
from equipoise.comparison.measures import Measure
from equipoise.comparison.table import Comparison

NAMED = 3  # methods that a sentence names


def best_in_words(comparison: Comparison) -> str:
    """For every partition which method is best and which harms the fewest, if that can be told."""
    found = []
    for partition in comparison.partitions:
        wanted = dict.fromkeys((comparison.measure, "harmed"))
        sentences = [text for name in wanted if (text := _sentence(comparison, partition, name))]
        if sentences:
            found.append(
                (f"On {partition}: " if len(comparison.partitions) > 1 else "")
                + " ".join(sentences)
            )
    return " ".join(found)


def _sentence(comparison: Comparison, partition: str, name: str) -> str:
    measure = comparison.measures[name]
    rows = [
        row
        for row in comparison.own_rows
        if (row["partition"], row["measure"]) == (partition, name) and not math.isnan(row["value"])
    ]
    if len(rows) < (1 if measure.against_alone else 2):
        return ""
    rows.sort(key=lambda row: row["value"] if measure.lower else -row["value"])
    best = [row for row in rows if row["value"] == rows[0]["value"]]
    said = f"{_listed([row['method'] for row in best])} {_what(name, measure, rows[0]['value'], len(best) > 1)}"
    if max(row["seeds"] for row in rows) == 1:
        return f"{said} in this one run{'' if len(rows) == 1 else ' per method'}."
    if name == "harmed" and rows[0]["value"] == 0:
        return f"{said} in {rows[0]['seeds']} seeds."
    rivals = [*best[1:], *(row for row in rows[len(best) :] if not _apart(rows[0], row))]
    if not rivals:
        return f"{said}, over {rows[0]['seeds']} seeds."
    asked = (
        "Who harms the fewest clients"
        if name == "harmed"
        else f"Which method has the best {measure.title}"
    )
    close = [rows[0], *rivals]
    without = [row for row in close if row["low"] is None]
    if without and all(row["seeds"] > 1 for row in without):
        return (
            f"{asked} cannot be told: two seeds are too few for an interval of the {measure.title}."
        )
    if without:
        return f"{asked} cannot be told: {_listed([row['method'] for row in without])} finished in one seed only."
    return f"{asked} cannot be told: the {comparison.level:.0%} intervals of {_listed([row['method'] for row in close])} overlap."


def _apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the intervals of two methods have no point in common; without an interval nothing can be told."""
    if one["low"] is None or other["low"] is None:
        return False
    return bool(one["high"] < other["low"] or other["high"] < one["low"])


def _what(name: str, measure: Measure, value: float, plural: bool) -> str:
    if name == "harmed":
        return (
            f"harmed the fewest clients ({figure(value, measure)} %)" if value else "harmed nobody"
        )
    unit = " %" if measure.scale == 100 else ""
    return f"{'have' if plural else 'has'} the best {measure.title} ({figure(value, measure, measure.signed)}{unit})"


def _listed(names: Sequence[str]) -> str:
    shown = list(names) if len(names) <= NAMED else [*names[:NAMED], f"{len(names) - NAMED} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
