"""Kaplan-Meier curves of risk groups, for all sites together and for each site.

They come from life tables; no time and no risk of a patient leaves a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.metrics import life_tables
from equipoise.metrics.life_tables import EVENTS, GROUPS, Counts
from equipoise.report import drawing
from equipoise.report.clinical import ClinicalFigure
from equipoise.runs import RunResult
from equipoise.runs.clinical import missing_histograms

MOST_SITES = 12  # with a panel of their own
COLUMNS = 3
COLOURS = (drawing.COLOURS[0], drawing.COLOURS[1])
STYLES = ("-", "--")


def curves_of(result: RunResult) -> dict[str, ClinicalFigure]:
    """Return name -> Kaplan-Meier curves by risk group, of every served model.

    Args:
        result: The result of a run, read with its details.
    """
    assert result.details is not None
    figures: dict[str, ClinicalFigure] = {}
    for model, tables in result.details.life_tables.items():
        if not tables:
            continue
        suffix = "" if model == result.main_model else f"_{model.replace('-', '_')}"
        horizon = result.task.scale
        figures[f"survival{suffix}"] = ClinicalFigure(
            f"Survival by risk group, {model} model",
            _text(tables, missing_histograms(result.clients, tables)),
            partial(draw, tables, horizon),
        )
    return figures


def _text(tables: Mapping[str, Counts], missing: str) -> str:
    """Return the description: patients and events of each site and group."""
    groups = []
    for site, table in tables.items():
        counts = [
            f"{int(group[EVENTS].sum())} of {int(group.sum())} in the group of {name}"
            for name, group in zip(GROUPS, table, strict=True)
        ]
        groups.append(f"{site} {' and '.join(counts)}")
    text = (
        "Kaplan-Meier curves of test patients whose predicted risk is above the median of their "
        f"site, and of the others. Events: {'; '.join(groups)}. Curves come from life tables in "
        "steps of one per cent of the longest training time."
    )
    return f"{text} {missing[0].upper()}{missing[1:]}." if missing else text


def draw(tables: Mapping[str, Counts], horizon: float) -> Figure:
    """Draw the curves of all sites together, and of each site if they are few.

    Args:
        tables: Site -> life table.
        horizon: The time at which the curves end.
    """
    panels = dict(tables) if len(tables) <= MOST_SITES else {}
    if len(tables) != 1:
        panels = {"all sites": life_tables.pooled(list(tables.values())), **panels}
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = drawing.Chart(figsize=(2.6 * columns, 2.2 * rows), layout="constrained")
    first: Axes | None = None
    for position, (site, table) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, position + 1, sharex=first, sharey=first)
        first = first or axes
        _draw_panel(figure, axes, site, table, horizon)
        axes.set_title(drawing.short(site), fontsize=9)
        if position % columns == 0:
            axes.set_ylabel("survival in %")
        if position >= len(panels) - columns:
            axes.set_xlabel("time")
    assert first is not None
    first.legend(loc="lower left", fontsize=7).set_gid(drawing.STATIC_LEGEND)
    return figure


def _draw_panel(
    figure: drawing.Chart, axes: Axes, site: str, table: Counts, horizon: float
) -> None:
    for number, name in enumerate(GROUPS):
        times, values = life_tables.survival(table[number])
        x = np.asarray(times) * horizon
        (line,) = axes.step(
            x,
            100 * values,
            STYLES[number],
            where="post",
            color=COLOURS[number],
            linewidth=1.4,
            label=name,
        )
        figure.add_series(name, COLOURS[number], line)
        texts = [
            f"{site}, {name}: {100 * value:.0f} % at {time:.4g}"
            for time, value in zip(x, values, strict=True)
        ]
        figure.add_spots(axes, x, 100 * values, texts, name)
    axes.set_ylim(-2, 102)
