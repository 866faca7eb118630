"""The verdict of a comparison: sentences that claim no more than its statistics allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from equipoise.comparison.formats import figure
from equipoise.comparison.measures import Measure
from equipoise.comparison.table import Comparison, is_equal
from equipoise.report.parts import partition_name
from equipoise.report.wording import name_of

NAMED = 3  # methods that a sentence names
# The measures by which methods are ranked, as sentences name them.
QUANTITIES = {
    "average": "average {metric}",
    "worst": "{metric} of the worst client",
    "std": "standard deviation of {metric} over clients",
    "change": "average change in {metric}",
    "worst_change": "worst change in {metric}",
    "cf": "collaborative fairness",
}
Row = dict[str, Any]


def best_methods(comparison: Comparison) -> str:
    """Return for every partition, in a line, which method is best and which harms the fewest.

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
        sentences += _left_out(comparison, partition)
        text = " ".join(sentences)
        several = len(comparison.partitions) > 1
        parts.append(f"On {partition_name(partition)}: {text}" if several else text)
    return "\n".join(parts)


def _sentence(comparison: Comparison, partition: str, name: str) -> str:
    measure = comparison.measures[name]
    rows, alone = _ranked_rows(comparison, partition, name)
    if not rows or (len(rows) == 1 and not measure.against_alone and alone is None):
        return ""
    if len(rows) == 1:
        return _single_method(comparison, name, rows[0], alone)
    best = [row for row in rows if is_equal(row["value"], rows[0]["value"])]
    claim = f"{_listed([row['method'] for row in best])} {_claim(comparison, name, best)}"
    if alone is not None:
        claim += f", {_against_alone(measure, rows[0], alone)}"
    if max(row["seeds"] for row in rows) == 1:
        return f"{claim} in this one run{'' if len(rows) == 1 else ' per method'}."
    if name == "harmed" and rows[0]["value"] == 0:
        return f"{claim} in {rows[0]['seeds']} seeds."
    rivals = best[1:] + [row for row in rows[len(best) :] if not _apart(rows[0], row)]
    if not rivals:
        return f"{claim}, over {rows[0]['seeds']} seeds."
    reason = _doubt(comparison, name, [rows[0], *rivals])
    if alone is not None:
        reason += _all_against_alone(measure, rows, alone)
    return f"{_question(comparison, name)} is undecided: {reason}."


def _left_out(comparison: Comparison, partition: str) -> list[str]:
    """Return a sentence about methods whose runs are not all there, or whose models diverged."""
    against_alone = comparison.measures[comparison.measure].against_alone
    labels_alone = {entry.label for entry in comparison.entries if entry.run.is_standalone}
    names = {}
    for row in comparison.own_rows:
        is_selected = row["partition"] == partition and row["measure"] == comparison.measure
        has_none = against_alone and row["method"] in labels_alone
        if is_selected and not has_none and not comparison.is_complete(row):
            names[row["method"]] = row["seeds"]
    if not names:
        return []
    listed = [f"{name} ({seeds} of {len(comparison.seeds)} seeds)" for name, seeds in names.items()]
    verb = "is" if len(names) == 1 else "are"
    return [f"{_listed(listed)} {verb} left out, since not all seeds have a value."]


def _single_method(comparison: Comparison, name: str, row: Row, alone: Row | None) -> str:
    """Return what the only federated method reaches, and what clients reach alone."""
    measure = comparison.measures[name]
    value = _value(row["value"], measure)
    seeds = "in this one run" if row["seeds"] == 1 else f"over {row['seeds']} seeds"
    if name == "harmed":
        share = "nobody" if not row["value"] else f"{value} of the clients"
        return f"{row['method']} harmed {share} {seeds}."
    text = f"{row['method']} has {value} as {_quantity(comparison, name)}"
    if alone is not None:
        text += f", {_against_alone(measure, row, alone)}"
    return f"{text}, {seeds}."


def _against_alone(measure: Measure, row: Row, alone: Row) -> str:
    """Return how a method compares with training alone, no stronger than the intervals permit."""
    value = f"training alone ({_value(alone['value'], measure)})"
    if is_equal(row["value"], alone["value"]):
        return f"equal to {value}"
    is_better = (row["value"] < alone["value"]) == bool(measure.lower)
    if row["seeds"] > 1 and not _apart(row, alone):
        return f"not clearly different from {value}"
    return f"better than {value}" if is_better else f"worse than {value}"


def _all_against_alone(measure: Measure, rows: Sequence[Row], alone: Row) -> str:
    """Return how all methods compare with training alone; empty if they do not agree."""
    relations = {_against_alone(measure, row, alone) for row in rows}
    if len(relations) != 1:
        return ""
    number = "both" if len(rows) == 2 else "all"
    return f"; {number} are {relations.pop()}"


def _value(value: float, measure: Measure) -> str:
    unit = ""
    if measure.scale == 100:
        unit = " points" if measure.signed else " %"
    return f"{figure(value, measure, measure.signed)}{unit}"


def _ranked_rows(comparison: Comparison, partition: str, name: str) -> tuple[list[Row], Row | None]:
    """Return the rows of federated methods that have a value, the best first, and that of alone."""
    measure = comparison.measures[name]
    labels_alone = {entry.label for entry in comparison.entries if entry.run.is_standalone}
    rows = []
    alone = None
    for row in comparison.own_rows:
        is_selected = row["partition"] == partition and row["measure"] == name
        if not is_selected or math.isnan(row["value"]) or not comparison.is_complete(row):
            continue
        if row["method"] in labels_alone:
            alone = row
        else:
            rows.append(row)
    sign = 1 if measure.lower else -1
    return sorted(rows, key=lambda row: sign * row["value"]), alone


def _quantity(comparison: Comparison, name: str) -> str:
    """Return a measure with the name of the metric, such as "average RMSE"."""
    return QUANTITIES[name].format(metric=name_of(comparison.metric))


def _superlative(comparison: Comparison, name: str) -> str:
    """Return a measure as that of the best method, such as "lowest average RMSE"."""
    adjective = "lowest" if comparison.measures[name].lower else "best"
    return f"{adjective} {_quantity(comparison, name)}"


def _question(comparison: Comparison, name: str) -> str:
    if name == "harmed":
        return "Which method harms the fewest clients"
    return f"Which method has the {_superlative(comparison, name)}"


def _doubt(comparison: Comparison, name: str, close: Sequence[Row]) -> str:
    """Return why no method is clearly the best."""
    without = [row for row in close if row["low"] is None]
    if not without:
        names = _listed([row["method"] for row in close])
        return f"the {100 * comparison.level:g}% intervals of {names} overlap"
    if all(row["seeds"] > 1 for row in without):
        quantity = "share of harmed clients" if name == "harmed" else _quantity(comparison, name)
        return f"two seeds are too few for an interval of the {quantity}"
    return f"{_listed([row['method'] for row in without])} finished in one seed only"


def _apart(first: Row, second: Row) -> bool:
    """Return True if the intervals of two methods have no point in common."""
    if first["low"] is None or second["low"] is None:
        return False
    return bool(first["high"] < second["low"] or second["high"] < first["low"])


def _claim(comparison: Comparison, name: str, best: Sequence[Row]) -> str:
    measure = comparison.measures[name]
    value = best[0]["value"]
    if name == "harmed":
        if not value:
            return "harmed nobody"
        return f"harmed the fewest clients ({figure(value, measure)} %)"
    verb = "have" if len(best) > 1 else "has"
    return f"{verb} the {_superlative(comparison, name)} ({_value(value, measure)})"


def _listed(names: Sequence[str]) -> str:
    shown = list(names)
    if len(shown) > NAMED:
        shown = [*shown[:NAMED], f"{len(names) - NAMED} more"]
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
