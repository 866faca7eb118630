"""Findings on numbers: other units at some sites, and codes for missing values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.data.findings import Finding
from equipoise.data.message_text import plural, some
from equipoise.data.tables.finding_text import as_yaml, row_text
from equipoise.validation.names import quoted

LEAST = 20  # numbers of a site that are needed to compare its unit
LARGE_FACTOR = 5.0  # least factor for which sites that do not overlap may have different units
CODES = (
    -1.0, -7.0, -8.0, -9.0, -99.0, -999.0, -9999.0, 0.0, 9.0, 99.0, 888.0, 999.0, 9999.0, 99999.0
)  # fmt: skip
NORMAL_QUANTILES = (-1.645, -0.6745, 0.0, 0.6745, 1.645)  # 5, 25, 50, 75 and 95 %
QUANTITY = 10  # different numbers that a column needs to be a quantity
ORDINARY = (-1.0, 0.0)  # codes that are ordinary numbers among few different ones


@dataclass(frozen=True)
class Unit:
    """Two units of one quantity.

    Attributes:
        factor: The larger number divided by the smaller one.
        description: The quantity with its units.
        names: Names of columns that hold the quantity.
    """

    factor: float
    description: str
    names: re.Pattern[str]


UNITS = (
    Unit(38.67, "cholesterol in mg/dl and mmol/l", re.compile("chol|ldl|hdl")),
    Unit(18.016, "glucose in mg/dl and mmol/l", re.compile("gluc|sugar|glyc|zucker")),
    Unit(88.42, "creatinine in umol/l and mg/dl", re.compile("crea|krea")),
    Unit(2.2046, "weight in lb and kg", re.compile("weight|wt|mass|gewicht")),
    Unit(2.54, "height in cm and inch", re.compile("height|waist|groesse|größe")),
    Unit(10.0, "a power of ten, as for cm and mm", re.compile("")),
    Unit(100.0, "a power of ten, as for m and cm", re.compile("")),
    Unit(1000.0, "a power of ten, as for kg and g", re.compile("")),
)
FAHRENHEIT = Unit(1.8, "a temperature in Fahrenheit and Celsius", re.compile("temp|fever|fieber"))
UNKNOWN = Unit(math.nan, "another unit", re.compile(""))


@dataclass(frozen=True)
class Spread:
    """Quantiles of one column at one site."""

    low: float  # 5 %
    first: float  # 25 %
    median: float
    third: float  # 75 %
    high: float  # 95 %

    @classmethod
    def of_normal(cls, mean: float, deviation: float) -> Spread:
        """Return the quantiles of a normal distribution."""
        return cls(*(mean + quantile * deviation for quantile in NORMAL_QUANTILES))

    @property
    def iqr(self) -> float:
        """The interquartile range."""
        return self.third - self.first


def find_units(
    columns: Mapping[str, np.ndarray], name: str, files: Mapping[str, str]
) -> list[Finding]:
    """Return findings on sites whose numbers in one column seem to be in another unit.

    Sites are compared by medians and quartiles, so that outliers do not matter. A site is reported
    if its numbers hardly overlap with those of most sites and are a multiple of them: by the
    factor of a known pair of units, or by 5 and more. Fahrenheit and Celsius are reported, too.

    Args:
        columns: The numbers of each site, NaN for gaps.
        name: The column.
        files: The file of each site.

    Returns:
        One finding for the sites with the same difference, with a factor where a unit is known.
    """
    spreads = {}
    for site, numbers in columns.items():
        spread = _spread(without_codes(numbers))
        if spread is not None:
            spreads[site] = spread
    if len(spreads) < 2:
        return []
    usual = usual_spread(spreads)
    groups: dict[tuple[Unit, bool], list[str]] = {}
    for site, spread in spreads.items():
        unit = other_unit(spread, usual, name)
        if unit is not None:
            groups.setdefault((unit, spread.median > usual.median), []).append(site)
    findings = []
    for (unit, larger), sites in groups.items():
        medians = {site: spreads[site].median for site in sites}
        findings.append(_unit_finding(unit, larger, medians, usual, name, files))
    return findings


def find_codes(
    columns: Mapping[str, np.ndarray], name: str, files: Mapping[str, str]
) -> list[Finding]:
    """Return a finding on codes for missing values, such as -9 or 999, far from other numbers.

    Args:
        columns: The numbers of each site, NaN for gaps.
        name: The column.
        files: The file of each site.

    Returns:
        One finding for all codes of the column, with an uncertain repair.
    """
    numbers = _finite(np.concatenate(list(columns.values())))
    codes = [code for code in CODES if (numbers == code).any()]
    rest = numbers[~np.isin(numbers, codes)]
    different = len(np.unique(rest))
    if different < QUANTITY:  # a category such as 0, 1 and 9, or a label
        codes = [code for code in codes if code not in ORDINARY]
        rest = numbers[~np.isin(numbers, codes)]
        different = len(np.unique(rest))
    if not codes or different < 2 or len(rest) < LEAST:
        return []
    codes = [code for code in codes if _isolated(code, rest)]
    if not codes:
        return []
    texts = [f"{code:g}" for code in codes]
    rows = int(np.isin(numbers, codes).sum())
    in_files = {files[site] for site, cells in columns.items() if np.isin(cells, codes).any()}
    repair = {"missing": {name: texts}}
    message = (
        f"column {quoted(name)}: {', '.join(texts)} ({row_text(rows)} in "
        f"{some(sorted(in_files))}) lies far from all other numbers ({rest.min():g} to "
        f"{rest.max():g}); if it means that the value is unknown: {as_yaml(repair)}"
    )
    return [Finding(message, name, repair=repair)]


def without_codes(numbers: np.ndarray) -> np.ndarray:
    """Return the finite numbers of a site without those that are codes for missing values."""
    numbers = _finite(numbers)
    codes = [code for code in CODES if code and (numbers == code).any()]
    rest = numbers[~np.isin(numbers, codes)] if codes else numbers
    if not len(rest):
        return numbers
    return numbers[~np.isin(numbers, [code for code in codes if _isolated(code, rest)])]


def _isolated(code: float, rest: np.ndarray) -> bool:
    """Return True if a code is farther from other numbers than these are from each other."""
    low, high = float(rest.min()), float(rest.max())
    if low <= code <= high:
        return False
    first, third = np.percentile(rest, [25, 75])
    if code == 0:  # an ordinary number if there are small ones
        return low > max(third - first, 0.0) and low > 0
    if code == -1:
        return low > 0 or (low == 0 and high >= LEAST)
    if code < 0:
        return low >= 0 or low - code > high - low
    return code - high > high - low and code > 2 * abs(high)


def _finite(numbers: np.ndarray) -> np.ndarray:
    numbers = np.asarray(numbers, np.float64)
    return np.asarray(numbers[np.isfinite(numbers)])


def _spread(numbers: np.ndarray) -> Spread | None:
    if len(numbers) < LEAST or len(np.unique(numbers)) < 5:
        return None
    return Spread(*map(float, np.percentile(numbers, [5, 25, 50, 75, 95])))


def usual_spread(spreads: Mapping[str, Spread]) -> Spread:
    """Return the spread of the site in the middle, by median; of two, the first of them."""
    ordered = sorted(spreads.values(), key=lambda spread: spread.median)
    return ordered[(len(ordered) - 1) // 2]


def other_unit(spread: Spread, usual: Spread, name: str) -> Unit | None:
    """Return the pair of units that a site and most sites seem to have; none if they agree."""
    small, large = sorted((spread, usual), key=lambda item: item.median)
    if small.median <= 0 or small.third >= large.first or not small.iqr or not large.iqr:
        return None
    if _fahrenheit(small, large, name):
        return FAHRENHEIT
    ratio = large.median / small.median
    # Quartiles are multiplied by the factor, too.
    iqr_ratio = large.iqr / small.iqr
    doubt = max(iqr_ratio / ratio, ratio / iqr_ratio)
    apart = small.high < large.low
    known = _known_unit(ratio, doubt, name, apart)
    if known is None and apart and ratio >= LARGE_FACTOR and doubt < 3:
        return UNKNOWN
    return known


def _unit_finding(
    unit: Unit,
    larger: bool,
    medians: Mapping[str, float],
    usual: Spread,
    name: str,
    files: Mapping[str, str],
) -> Finding:
    sites = tuple(medians)
    shown = some([f"{quoted(site)} ({files[site]})" for site in sites])
    median = float(np.median(list(medians.values())))
    ratio = max(median / usual.median, usual.median / median)
    start = (
        f"column {quoted(name)}: the median is {median:.4g} at {plural('site', len(sites))} "
        f"{shown} and {usual.median:.4g} elsewhere, {ratio:.1f} times "
        f"{'more' if larger else 'less'}."
    )
    if unit is FAHRENHEIT:
        remedy = "Convert one of them in its file: F = 1.8 C + 32"
        return Finding(f"{start} This may be {unit.description}. {remedy}", name, sites)
    if unit is UNKNOWN:
        example = as_yaml({"sites": {sites[0]: {"factors": {name: "..."}}}})
        message = f"{start} If it is another unit, give its factor in the schema: {example}"
        return Finding(message, name, sites)
    factor = float(f"{1 / unit.factor if larger else unit.factor:.6g}")
    repair = {"sites": {site: {"factors": {name: factor}} for site in sites}}
    example = as_yaml({"sites": dict(list(repair["sites"].items())[:5])})
    message = (
        f"{start} {unit.factor:g} is the factor of {unit.description}; if that is it: {example}"
    )
    return Finding(message, name, sites, repair)


def _known_unit(ratio: float, doubt: float, name: str, apart: bool) -> Unit | None:
    """Return the pair of units with about this ratio; less exactly if the name suggests one."""
    for unit in UNITS:
        named = bool(unit.names.pattern) and unit.names.search(name.casefold()) is not None
        distance = max(ratio / unit.factor, unit.factor / ratio)
        # Populations differ by a factor of 2 or 3, too: small factors have to fit well.
        large = unit.factor >= LARGE_FACTOR
        if named and distance < (1.35 if large else 1.2) and doubt < (3 if large else 1.6):
            return unit
        if apart and large and distance < 1.15 and doubt < 3:
            return unit
    return None


def _fahrenheit(small: Spread, large: Spread, name: str) -> bool:
    body = 35.5 <= small.median <= 39
    named = FAHRENHEIT.names.search(name.casefold()) is not None
    near = abs(large.median - (1.8 * small.median + 32)) < (2.5 if body else 10)
    return (body or named) and near and 1 < large.iqr / small.iqr < 3.2
