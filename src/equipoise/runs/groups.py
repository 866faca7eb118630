"""Results by site and group of samples, such as women and men at each hospital.

Everything follows from histograms of scores that clients send. A client withholds small groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from equipoise.data.groups import MISSING, group_order
from equipoise.metrics import score_histograms
from equipoise.metrics.diagnostic_intervals import limits_of
from equipoise.metrics.group_gaps import (
    Estimate,
    Rate,
    estimated,
    largest_gap,
    largest_of_gaps,
    lowest,
    rates_of,
)
from equipoise.metrics.score_histograms import NEGATIVES, POSITIVES, Counts
from equipoise.runs.clinical import ClinicalValue

ALL = "all sites"  # the row of all sites together
MEASURES = {
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "selection_rate": "selection rate",
    "calibration_gap": "score - prevalence",
}
GAPS = {
    "parity_gap": "demographic parity",
    "opportunity_gap": "equal opportunity",
    "odds_gap": "equalised odds",
    "accuracy_gap": "accuracy",
}
# Numbers of a whole run: the lowest accuracy of any group at any site, and the gaps of all sites
# together.
AGGREGATES = ("worst_group", *GAPS)
NO_INTERVAL = "no interval that is valid for small counts"
_NAN = float("nan")


class CellKey(NamedTuple):
    """A group of samples at a site."""

    site: str
    column: str
    group: str


@dataclass(frozen=True)
class Cell:
    """The results of a group at a site.

    Attributes:
        samples: The number of test samples.
        prevalence: The share of the second of two classes; NaN with more classes.
        values: Measure -> value with its interval, or the reason why there is none.
        rates: The counts from which gaps follow.
    """

    samples: int
    prevalence: float
    values: Mapping[str, ClinicalValue]
    rates: Mapping[str, Rate]


@dataclass(frozen=True)
class Gaps:
    """The differences between the groups of a column at a site.

    Attributes:
        values: Gap -> value with its interval.
        groups: The number of groups that were compared.
        worst: The group with the lowest accuracy.
        worst_accuracy: That accuracy, with an interval of the lowest one.
    """

    values: Mapping[str, ClinicalValue]
    groups: int
    worst: str
    worst_accuracy: ClinicalValue


@dataclass(frozen=True)
class GroupReport:
    """Results by site and group.

    Attributes:
        threshold: The score in whole per cent from which on the second class counts as predicted.
        cells: Site, column and group -> results. Without those that a site withheld.
        gaps: Site and column -> gaps between groups; also of all sites together.
        worst: The group and site with the lowest accuracy; None without cells.
        worst_accuracy: That accuracy, with an interval of the lowest one.
        notes: Sentences about what is not shown.
    """

    threshold: int
    cells: Mapping[CellKey, Cell]
    gaps: Mapping[tuple[str, str], Gaps]
    worst: CellKey | None
    worst_accuracy: ClinicalValue
    notes: Sequence[str] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """The columns by which samples are grouped."""
        return list(dict.fromkeys(key.column for key in self.cells))

    @property
    def sites(self) -> list[str]:
        """The sites that sent groups."""
        sites = dict.fromkeys(key.site for key in self.cells if key.site != ALL)
        return list(sites)

    def groups(self, column: str) -> list[str]:
        """Return the groups of a column that any site sent."""
        return [key.group for key in self.cells if key.site == ALL and key.column == column]

    @property
    def aggregates(self) -> dict[str, float]:
        """The numbers of the whole run, `AGGREGATES`; of several columns the largest gap."""
        numbers = {"worst_group": self.worst_accuracy.value}
        for name in GAPS:
            values = [self.gaps[ALL, column].values[name].value for column in self.columns]
            known = [value for value in values if not math.isnan(value)]
            numbers[name] = max(known, default=_NAN)
        return numbers

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per site, group and measure, for tables and files."""
        for key, cell in self.cells.items():
            row = {"site": key.site, "column": key.column, "group": key.group}
            yield {**row, "measure": "samples", "value": float(cell.samples)}
            yield {**row, "measure": "prevalence", "value": cell.prevalence}
            for name, value in cell.values.items():
                yield {**row, "measure": name, **_plain(value)}
        for (site, column), gaps in self.gaps.items():
            row = {"site": site, "column": column, "group": ""}
            for name, value in gaps.values.items():
                yield {**row, "measure": name, **_plain(value)}
            worst = {**row, "group": gaps.worst, "measure": "worst_group"}
            yield {**worst, **_plain(gaps.worst_accuracy)}


def _plain(value: ClinicalValue) -> dict[str, Any]:
    return {"value": value.value, "low": value.low, "high": value.high, "reason": value.reason}


def group_report(
    tables: Mapping[CellKey, Counts], clients: Sequence[str], threshold: int, fewest: int
) -> GroupReport | None:
    """Return the results by site and group; None if no site sent any.

    Args:
        tables: Site, column and group -> histogram of scores; the site of a test set that all
            clients share is `ALL`.
        clients: The clients that were asked.
        threshold: The score in whole per cent of the second class.
        fewest: The fewest samples of a group that is sent.
    """
    if not tables:
        return None
    tables = _ordered(tables, clients)
    every = {**tables, **_ordered(_pooled(tables), clients)}
    cells = {key: _cell(table, threshold) for key, table in every.items()}
    gaps = {}
    for key in cells:
        pair = (key.site, key.column)
        if pair not in gaps:
            gaps[pair] = _gaps({k.group: cell for k, cell in cells.items() if k[:2] == pair})
    own = [key for key in tables if key.group != MISSING]
    rates = [cells[key].rates["accuracy"] for key in own]
    position, accuracy = lowest(rates, share_samples=True)
    worst = None if position is None else own[position]
    notes = _notes(tables, clients, fewest)
    return GroupReport(threshold, cells, gaps, worst, _value(accuracy), notes)


def _ordered(tables: Mapping[CellKey, Counts], clients: Sequence[str]) -> dict[CellKey, Counts]:
    """Return the histograms by client in the order of the run, then by column and group."""
    columns = list(dict.fromkeys(key.column for key in tables))
    order = {client: position for position, client in enumerate(clients)}

    def position(key: CellKey) -> tuple[int, int, tuple[float, str]]:
        return order.get(key.site, -1), columns.index(key.column), group_order(key.group)

    return {key: tables[key] for key in sorted(tables, key=position)}


def _pooled(tables: Mapping[CellKey, Counts]) -> dict[CellKey, Counts]:
    """Return the histograms of all sites together, by column and group."""
    every: dict[CellKey, list[Counts]] = {}
    for key, table in tables.items():
        every.setdefault(key._replace(site=ALL), []).append(table)
    return {key: score_histograms.pooled(own) for key, own in every.items()}


def _value(estimate: Estimate) -> ClinicalValue:
    limits = estimate.limits
    return ClinicalValue(estimate.value, limits.low, limits.high, limits.reason)


def _cell(table: Counts, threshold: int) -> Cell:
    rates = rates_of(table, threshold)
    values = {name: _value(estimated(rates[name])) for name in MEASURES if name in rates}
    area = score_histograms.measures(table)["auroc"]
    limits = limits_of("auroc", table, area)
    resolution = score_histograms.resolution(table)["auroc"]
    values["auroc"] = ClinicalValue(area, limits.low, limits.high, limits.reason, resolution)
    samples = score_histograms.total(table)
    prevalence = _NAN
    if len(table) == 2:
        prevalence = float(table[1, POSITIVES].sum() / samples)
        values["calibration_gap"] = _calibration_gap(table, samples, prevalence)
    return Cell(samples, prevalence, values, rates)


def _calibration_gap(table: Counts, samples: int, prevalence: float) -> ClinicalValue:
    """Return by how much the mean score of the second class exceeds its share."""
    counts = table[1, POSITIVES] + table[1, NEGATIVES]
    low, high = score_histograms.limits(table.shape[-1])
    mean = float(counts @ score_histograms.scores(table.shape[-1]) / samples)
    half_bin = float(counts @ (high - low) / samples / 2)
    return ClinicalValue(mean - prevalence, reason=NO_INTERVAL, resolution=half_bin)


def _gaps(cells: Mapping[str, Cell]) -> Gaps:
    """Return the gaps between the groups of one column; rows without a group do not count."""
    known = {group: cell for group, cell in cells.items() if group != MISSING}

    def rates(name: str) -> list[Rate]:
        return [cell.rates[name] for cell in known.values() if name in cell.rates]

    estimates = {
        "parity_gap": largest_gap(rates("selection_rate")),
        "opportunity_gap": largest_gap(rates("sensitivity")),
        "odds_gap": largest_of_gaps([rates("sensitivity"), rates("false_positive_rate")]),
        "accuracy_gap": largest_gap(rates("accuracy")),
    }
    position, accuracy = lowest(rates("accuracy"))
    worst = "" if position is None else list(known)[position]
    values = {name: _value(estimate) for name, estimate in estimates.items()}
    return Gaps(values, len(known), worst, _value(accuracy))


def _notes(tables: Mapping[CellKey, Counts], clients: Sequence[str], fewest: int) -> list[str]:
    """Return sentences about sites and groups that are not there, or of which little is known."""
    notes = []
    sites = {key.site for key in tables}
    silent = [client for client in clients if client not in sites]
    if silent and ALL not in sites:
        notes.append(
            f"{', '.join(silent[:12])} sent no groups: fewer than 30 test samples, no group of "
            f"{fewest} that may be shown, or counts are not allowed there"
        )
    notes += _withheld(tables, fewest)
    notes += _only_at_one_site(tables, len(sites))
    notes += _one_class(tables)
    missing = [key.site for key in tables if key.group == MISSING]
    if missing:
        notes.append(
            f"rows without a value are counted as the group {MISSING!r}, which gaps leave out "
            f"({', '.join(dict.fromkeys(missing))})"
        )
    return notes


def _withheld(tables: Mapping[CellKey, Counts], fewest: int) -> list[str]:
    """Return a sentence about the groups that a site did not send but another one did."""
    sites = dict.fromkeys(key.site for key in tables)
    groups = dict.fromkeys((key.column, key.group) for key in tables if key.group != MISSING)
    absent = []
    for site in sites:
        for column, group in groups:
            if CellKey(site, column, group) not in tables:
                absent.append(f"{column} {group} at {site}")
    if not absent:
        return []
    listed = ", ".join(absent[:8])
    if len(absent) > 8:
        listed += f" and {len(absent) - 8} more"
    return [
        f"not shown: {listed}; a site withholds groups of fewer than {fewest} test samples, and "
        "others from which those would follow"
    ]


def _only_at_one_site(tables: Mapping[CellKey, Counts], sites: int) -> list[str]:
    """Return a sentence about groups that one site alone sent."""
    owners: dict[tuple[str, str], list[str]] = {}
    for key in tables:
        if key.group != MISSING:
            owners.setdefault((key.column, key.group), []).append(key.site)
    alone = []
    for (column, group), own in owners.items():
        if len(own) == 1:
            alone.append(f"{column} {group} at {own[0]}")
    if sites < 2 or not alone:
        return []
    return [
        f"only one site shows {', '.join(alone[:8])}; in gaps over all sites, a difference of such "
        "a group may be one between sites"
    ]


def _one_class(tables: Mapping[CellKey, Counts]) -> list[str]:
    """Return a sentence about groups whose test samples are all of one class."""
    names = []
    for key, table in tables.items():
        if len(table) == 2 and not (table[1, POSITIVES].any() and table[1, NEGATIVES].any()):
            names.append(f"{key.column} {key.group} at {key.site}")
    if not names:
        return []
    return [
        f"all test samples of {', '.join(names[:8])} have one class, so that AUROC and "
        "sensitivity or specificity do not exist there"
    ]


def cell_rows(
    report: GroupReport, with_intervals: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Return a header and one row per site and group.

    Args:
        report: The results by site and group.
        with_intervals: False to show the interval of the accuracy only.
    """
    names = [name for name in MEASURES if _is_known(report, name)]
    header = ["site", "group", "samples", "prevalence", *(MEASURES[name] for name in names)]
    rows = []
    for key, cell in report.cells.items():
        prevalence = "–" if math.isnan(cell.prevalence) else f"{100 * cell.prevalence:.1f}"
        row = [key.site, f"{key.column} {key.group}", str(cell.samples), prevalence]
        for name in names:
            value = cell.values[name]
            if not with_intervals and name != "accuracy":
                value = ClinicalValue(value.value)
            row.append(value.in_percent())
        rows.append(row)
    return header, rows


def gap_rows(report: GroupReport) -> tuple[list[str], list[list[str]]]:
    """Return a header and one row per site and column that has two groups or more."""
    header = ["site", "by", *GAPS.values(), "worst group", "its accuracy"]
    rows = []
    for (site, column), gaps in report.gaps.items():
        if gaps.groups > 1:
            values = [gaps.values[name].in_percent() for name in GAPS]
            rows.append([site, column, *values, gaps.worst, gaps.worst_accuracy.in_percent()])
    return header, rows


def _is_known(report: GroupReport, name: str) -> bool:
    return all(name in cell.values for cell in report.cells.values())


def sentence(report: GroupReport, positive: str) -> str:
    """Return the main finding in one or two plain sentences.

    Args:
        report: The results by site and group.
        positive: The name of the second class.
    """
    if report.worst is None:
        return ""
    site, column, group = report.worst
    where = "" if site == ALL else f" at {site}"
    worst = report.worst_accuracy
    first = f"The lowest accuracy of a group is that of {column} {group}{where}: {_percent(worst)}."
    name = "opportunity_gap"
    measure = "sensitivity"
    if all(math.isnan(gaps.values[name].value) for gaps in report.gaps.values()):
        name, measure = "accuracy_gap", "accuracy"
    return f"{first} {_gap_sentence(report, name, measure, positive)}".strip()


def _gap_sentence(report: GroupReport, name: str, measure: str, positive: str) -> str:
    """Return a sentence about the largest clear gap, or else about the largest one."""
    known = []
    for pair, gaps in report.gaps.items():
        value = gaps.values[name]
        if not math.isnan(value.value):
            known.append((_is_clear(value), value.value, pair))
    if not known:
        return ""
    subject = f"share of {positive} that is recognised" if measure == "sensitivity" else measure
    clear, _, pair = max(known, key=lambda gap: gap[1])
    text = f"The largest gap in the {subject} is {_gap_in_words(report, pair, name)}"
    if clear:
        return f"{text}; the interval excludes no gap."
    text += "; test sets of this size cannot tell it from none."
    any_clear, _, pair = max(known)
    if any_clear:
        gap = _gap_in_words(report, pair, name)
        text += f" Of {len(known)} gaps, the largest whose interval excludes no gap is {gap}."
    return text


def _gap_in_words(report: GroupReport, pair: tuple[str, str], name: str) -> str:
    site, column = pair
    where = "over all sites" if site == ALL else f"at {site}"
    return f"that by {column} {where}: {_percent(report.gaps[pair].values[name])}"


def _is_clear(value: ClinicalValue) -> bool:
    return value.low is not None and value.low > 0


def _percent(value: ClinicalValue) -> str:
    if value.low is None or value.high is None:
        return f"{100 * value.value:.0f} %"
    interval = f"{100 * value.low:.0f} to {100 * value.high:.0f}"
    return f"{100 * value.value:.0f} % (95 % interval {interval})"
