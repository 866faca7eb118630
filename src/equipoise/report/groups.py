"""Results by site and group of samples: a heat map, tables and a sentence."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from equipoise.report import drawing
from equipoise.report.clinical import ClinicalFigure, table_section
from equipoise.runs import RunResult
from equipoise.runs.clinical import classes_with_curves
from equipoise.runs.groups import (
    ALL,
    CellKey,
    GroupReport,
    cell_rows,
    gap_rows,
    sentence,
)

MOST_ROWS = 40  # sites of a heat map
_PALE = 0.55  # share of the colour range below which numbers are written in white


def finding(result: RunResult) -> str:
    """Return the main finding by group in plain words; empty without groups."""
    report = result.models[result.main_model].groups
    if report is None:
        return ""
    return sentence(report, classes_with_curves(result.task)[-1][1])


def maps_of(result: RunResult) -> dict[str, ClinicalFigure]:
    """Return name -> heat map of the accuracy by site and group, of the main model."""
    report = result.models[result.main_model].groups
    if report is None:
        return {}
    text = (
        f"{finding(result)} Each field is the accuracy in % of a group of test samples at a site, "
        "with their number; an empty field was withheld by the site or has no samples."
    )
    figure = ClinicalFigure("Accuracy by site and group", text, partial(heat_map, report))
    return {"groups": figure}


def heat_map(report: GroupReport) -> Figure:
    """Draw the accuracy of every group at every site.

    Args:
        report: The results by site and group.
    """
    sites = [*report.sites[:MOST_ROWS], ALL]
    fields = [(column, group) for column in report.columns for group in report.groups(column)]
    values = np.full((len(sites), len(fields)), np.nan)
    figure, axes = drawing.new(float(np.clip(1.4 + 0.3 * len(sites), 2.2, 9.0)))
    for row, site in enumerate(sites):
        for position, (column, group) in enumerate(fields):
            cell = report.cells.get(CellKey(site, column, group))
            if cell is not None:
                values[row, position] = 100 * cell.values["accuracy"].value
    picture = axes.imshow(values, aspect="auto", cmap="viridis", interpolation="nearest")
    low, high = np.nanmin(values), np.nanmax(values)
    for row, site in enumerate(sites):
        for position, (column, group) in enumerate(fields):
            cell = report.cells.get(CellKey(site, column, group))
            if cell is None:
                continue
            is_dark = values[row, position] < low + _PALE * max(high - low, 1e-9)
            axes.text(
                position,
                row,
                f"{values[row, position]:.0f}\n{cell.samples}",
                ha="center",
                va="center",
                fontsize=6,
                color="white" if is_dark else "black",
            )
    axes.grid(visible=False)
    titles = [drawing.short(f"{column} {group}") for column, group in fields]
    axes.set_xticks(range(len(fields)), titles, fontsize=7, rotation=30, ha="right")
    axes.set_yticks(range(len(sites)), [drawing.short(site) for site in sites], fontsize=7)
    figure.colorbar(picture, ax=axes, label="accuracy in %", fraction=0.06)
    return figure


def tables_of(result: RunResult) -> list[dict[str, Any]]:
    """Return the tables of the page: measures by site and group, and gaps between groups."""
    report = result.models[result.main_model].groups
    if report is None:
        return []
    text = (
        f"In %, with exact 95 % intervals; sensitivity, specificity and selection rate at a score "
        f"of {report.threshold} %"
    )
    return [
        table_section(
            "By site and group", f"{'; '.join([text, *report.notes])}.", *cell_rows(report)
        ),
        table_section(
            "Gaps between groups",
            "The largest difference of two groups in percentage points, with intervals of at least "
            "95 %.",
            *gap_rows(report),
        ),
    ]
