"""Clinical figures and tables: ROC and calibration curves of each site, and thresholds.

All of them come from histograms of scores; no single score leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.metrics import score_histograms
from equipoise.metrics.score_histograms import NEGATIVES, POSITIVES, Counts
from equipoise.report import drawing
from equipoise.runs import RunResult
from equipoise.runs.clinical import (
    TITLES,
    ClinicalValue,
    classes_with_curves,
    interval_notes,
    missing_histograms,
    thresholds,
    unequal,
)

MOST_CLASSES = 5  # with curves of their own on a page
MOST_SITES = 12  # lines that can be distinguished; of more sites the page shows all together
STYLES = ("-", "--", "-.", ":")
TOGETHER = "all clients together"
FEWEST_IN_POINT = 20  # samples of a point of a calibration curve
FEWEST_POINTS = 3  # points of a calibration curve of a single site
Histograms = Mapping[str, Counts]
Bin = tuple[float, float, int]  # mean score, share of positives, number of samples


class ClinicalFigure(NamedTuple):
    """A figure with its title and its description."""

    title: str
    text: str
    draw: Callable[[], Figure]


def curves_of(result: RunResult) -> dict[str, ClinicalFigure]:
    """Return name -> ROC or calibration curve of every served model and class.

    Args:
        result: The result of a run, read with its details.
    """
    assert result.details is not None
    figures: dict[str, ClinicalFigure] = {}
    for model, histograms in result.details.histograms.items():
        several = result.task.outputs > 2
        if not histograms or result.task.outputs > MOST_CLASSES:
            continue
        if several and not unequal(histograms):
            continue
        for index, name in classes_with_curves(result.task):
            suffix = _suffix(result, model, index)
            figures |= _curves_of_class(result, model, index, name, suffix)
    return figures


def _suffix(result: RunResult, model: str, index: int) -> str:
    """Return the end of the name of a figure; a - in it would separate the name of a method."""
    parts = []
    if model != result.main_model:
        parts.append(model)
    if result.task.outputs != 2:
        parts.append(str(index))
    return "".join(f"_{part.replace('-', '_')}" for part in parts)


def _curves_of_class(
    result: RunResult, model: str, index: int, name: str, suffix: str
) -> dict[str, ClinicalFigure]:
    assert result.details is not None
    histograms = result.details.histograms[model]
    lines = histograms
    if len(histograms) > MOST_SITES:
        lines = {TOGETHER: score_histograms.pooled(list(histograms.values()))}
    binary = result.task.outputs == 2
    others = "the other class" if binary else "the rest"
    subject = f"{name} against {others}, {model} model"
    exact = result.details.clinical[model] if binary else {}
    areas = ", ".join(
        f"{site} {_area(table, index, exact.get(site))}" for site, table in lines.items()
    )
    roc_text = (
        f"AUROC in %: {areas}. Curves come from counts of scores; no single score left a client."
    )
    missing = _missing(result, histograms)
    if missing:
        roc_text += f" {missing}."
    groups, small = calibration_groups(histograms)
    calibration_text = (
        f"On the line, of all samples with a score of 30 %, say, 30 % are {name}. Sizes of points "
        f"show how many samples they are of; each is of {FEWEST_IN_POINT} or more."
    )
    if small:
        calibration_text += f" Sites with few test samples are one line: {', '.join(small)}."
    return {
        f"roc{suffix}": ClinicalFigure(f"ROC: {subject}", roc_text, partial(roc, lines, index)),
        f"calibration{suffix}": ClinicalFigure(
            f"Calibration: {subject}", calibration_text, partial(calibration, groups, index)
        ),
    }


def calibration_groups(histograms: Histograms) -> tuple[Histograms, list[str]]:
    """Return the lines of a calibration curve, and the sites that are too small for their own.

    A site needs enough test samples for several points. Smaller sites are one line together; so are
    all sites if there are very many.

    Args:
        histograms: Site -> histogram of scores.
    """
    if len(histograms) > MOST_SITES:
        return {TOGETHER: score_histograms.pooled(list(histograms.values()))}, []
    least = FEWEST_POINTS * FEWEST_IN_POINT
    small = [site for site, table in histograms.items() if score_histograms.total(table) < least]
    if len(small) < 2:
        return histograms, []
    lines = {site: table for site, table in histograms.items() if site not in small}
    name = f"{len(small)} small sites together" if lines else TOGETHER
    lines[name] = score_histograms.pooled([histograms[site] for site in small])
    return lines, small


def merged_bins(bins: Sequence[Bin]) -> list[Bin]:
    """Return bins of neighbouring scores, each of enough samples for a share.

    >>> merged_bins([(0.1, 0.0, 30), (0.3, 0.5, 10), (0.9, 1.0, 10)])
    [(0.1, 0.0, 30), (0.6, 0.75, 20)]
    """
    merged: list[Bin] = []
    open_bin = (0.0, 0.0, 0)
    for bin_ in bins:
        open_bin = _joined(open_bin, bin_)
        if open_bin[2] >= FEWEST_IN_POINT:
            merged.append(open_bin)
            open_bin = (0.0, 0.0, 0)
    if open_bin[2] and merged:
        merged[-1] = _joined(merged[-1], open_bin)
    elif open_bin[2]:
        merged.append(open_bin)
    return merged


def _joined(first: Bin, second: Bin) -> Bin:
    """Return mean score, share of positives and number of samples of two bins together."""
    count = first[2] + second[2]
    score = (first[0] * first[2] + second[0] * second[2]) / count
    share = (first[1] * first[2] + second[1] * second[2]) / count
    return score, share, count


def _missing(result: RunResult, counted: Mapping[str, Any]) -> str:
    if result.main_split != "test":
        return ""
    return missing_histograms(result.clients, counted)


def tables_of(result: RunResult) -> list[dict[str, Any]]:
    """Return the tables of the page: measures with intervals where classes are unequal, thresholds.

    Args:
        result: The result of a run, read with its details.
    """
    assert result.details is not None
    tables = []
    values = result.models[result.main_model].clinical
    if values:
        rows = []
        for client, own in values.items():
            rows.append([client, *(value.in_percent() for value in own.values())])
        parts = ["In %, with 95 % intervals over other test sets like it", *interval_notes(values)]
        missing = _missing(result, values)
        if missing:
            parts.append(missing)
        header = ["client", *TITLES.values()]
        tables.append(table_section("Clinical measures", f"{'; '.join(parts)}.", header, rows))
    histograms = result.details.histograms.get(result.main_model, {})
    if histograms and result.task.outputs == 2:
        tables.append(_threshold_table(result, histograms))
    return tables


def _threshold_table(result: RunResult, histograms: Histograms) -> dict[str, Any]:
    (index, name), *_ = classes_with_curves(result.task)
    whole = score_histograms.pooled(list(histograms.values()))
    rows = []
    for measures in thresholds(whole, index):
        row = [f"{measures['threshold']} %"]
        for key in ("sensitivity", "specificity", "ppv", "npv"):
            row.append(_percent(measures[key]))
        rows.append(row)
    text = (
        f"A sample is called {name} from this score on; all clients that sent counts together, "
        f"{score_histograms.total(whole):,} test samples."
    )
    header = ["threshold", "sensitivity in %", "specificity in %", "PPV in %", "NPV in %"]
    return table_section("Thresholds", text, header, rows)


def roc(lines: Histograms, index: int) -> Figure:
    """Draw the ROC curve of a class for every site.

    Args:
        lines: Site -> histogram of scores.
        index: The class.
    """
    figure, axes = drawing.new()
    for position, (site, table) in enumerate(lines.items()):
        x, y = score_histograms.roc(table[index, POSITIVES], table[index, NEGATIVES])
        colour = drawing.COLOURS[position % len(drawing.COLOURS)]
        (line,) = axes.plot(
            100 * x,
            100 * y,
            STYLES[position % len(STYLES)],
            color=colour,
            linewidth=1.6,
            label=drawing.in_legend(drawing.short(site)),
        )
        figure.add_series(site, colour, line)
        texts = []
        for across, up in zip(x, y, strict=True):
            sensitivity, specificity = f"{100 * up:.0f} %", f"{100 * (1 - across):.0f} %"
            texts.append(f"{site}: sensitivity {sensitivity}, specificity {specificity}")
        figure.add_spots(axes, 100 * x, 100 * y, texts, site)
    _diagonal(axes, "100 - specificity in %", "sensitivity in %")
    axes.legend(loc="lower right").set_gid(drawing.STATIC_LEGEND)
    return figure


def calibration(lines: Histograms, index: int) -> Figure:
    """Draw the calibration curve of a class for every site; arguments as in `roc`."""
    figure, axes = drawing.new()
    points = {}
    for site, table in lines.items():
        bins = score_histograms.calibration(table[index, POSITIVES], table[index, NEGATIVES])
        points[site] = np.array(merged_bins(bins)).T
    largest = max(sizes.max() for _, _, sizes in points.values())
    for position, (site, (score, share, sizes)) in enumerate(points.items()):
        colour = drawing.COLOURS[position % len(drawing.COLOURS)]
        (line,) = axes.plot(100 * score, 100 * share, color=colour, linewidth=1, alpha=0.8)
        marks = axes.scatter(
            100 * score,
            100 * share,
            s=6 + 60 * sizes / largest,
            color=colour,
            marker=drawing.MARKERS[position % len(drawing.MARKERS)],
            linewidths=0,
            label=drawing.in_legend(drawing.short(site)),
        )
        figure.add_series(site, colour, line, marks)
        texts = []
        for mean, part, count in zip(score, share, sizes, strict=True):
            texts.append(
                f"{site}: score {100 * mean:.0f} %, share {100 * part:.0f} %, {count:.0f} samples"
            )
        figure.add_spots(axes, 100 * score, 100 * share, texts, site)
    _diagonal(axes, "score in %", "share that has the class in %")
    axes.legend(loc="upper left").set_gid(drawing.STATIC_LEGEND)
    return figure


def _diagonal(axes: Axes, x: str, y: str) -> None:
    axes.plot([0, 100], [0, 100], color=drawing.ALONE, linewidth=0.8)
    axes.set(xlabel=x, ylabel=y, xlim=(-1, 101), ylim=(-1, 101))


def table_section(
    title: str, text: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return a table of a page, which has no table by client."""
    return {
        "title": title,
        "text": text,
        "header": header,
        "rows": rows,
        "clients_header": [],
        "clients": [],
    }


def _area(table: Counts, index: int, known: Mapping[str, ClinicalValue] | None) -> str:
    """Return the AUROC in %: exact if the client sent it, else that of the histogram."""
    if known is not None:
        exact = known["auroc"]
        return ClinicalValue(exact.value, resolution=exact.resolution).in_percent()
    # The measures of two classes are those of the second one.
    other = 1 - index if len(table) == 2 else index
    pair = np.stack([table[other], table[index]])
    value = score_histograms.measures(pair)["auroc"]
    resolution = score_histograms.resolution(pair)["auroc"]
    return ClinicalValue(value, resolution=resolution).in_percent()


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.1f}"
