"""The curves of selected runs in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from equipoise.metrics import Metric
from equipoise.report.cards import written
from equipoise.report.figures import learning_by_method
from equipoise.report.pictures import Picture, figures_in_page
from equipoise.report.render import render
from equipoise.report.wording import name_of
from equipoise.runs.curves import Curve, History
from equipoise.watch.items import Item

MOST_CURVES = 20  # in a figure; more could not be distinguished


def overlay_page(items: Sequence[Item]) -> str:
    """Return a page with the curves of runs, a figure for each metric, and a table of the runs.

    Args:
        items: The runs, each with a curve.
    """
    shown = items[:MOST_CURVES]
    remarks = []
    if len(items) > len(shown):
        remarks.append(f"The first {MOST_CURVES} of {len(items)} runs are shown.")
    by_metric: dict[str, list[Item]] = {}
    for item in shown:
        if item.metric is not None:
            by_metric.setdefault(item.metric.name, []).append(item)
    pictures = {}
    for name, own in by_metric.items():
        pictures[f"overlay-{name}"] = _picture(own)
    count = "1 run" if len(shown) == 1 else f"{len(shown)} runs"
    return render(
        "overlay.html",
        title="Curves of selected runs",
        headline=f"{count} selected" if shown else "No run is selected.",
        remarks=remarks,
        pictures=figures_in_page(pictures),
        header=["run", "method", "settings that differ", "average", "status"],
        rows=[_row(item) for item in shown],
    )


def _picture(items: Sequence[Item]) -> Picture:
    metric = items[0].metric
    assert metric is not None
    histories = {item.name: [_history(item.curve)] for item in items}
    return Picture(
        f"Mean {name_of(metric)} by round",
        " ".join(f"{item.name} ends at {_last(item, metric)}." for item in items),
        partial(learning_by_method, histories, metric),
    )


def _history(curve: Curve) -> History:
    """Return a curve as a history without clients."""
    values = np.empty((0, len(curve.rounds)))
    return History([], list(curve.rounds), values, np.array(curve.means), curve.final_phase)


def _last(item: Item, metric: Metric) -> str:
    return written(item.curve.means[-1], metric)


def _row(item: Item) -> list[str]:
    assert item.metric is not None
    settings = ", ".join(item.settings)
    return [item.name, item.method, settings, _last(item, item.metric), item.status_text]
