"""The cards of a gallery: what a reader sees of each run and comparison."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from equipoise.comparison.labels import NOT_A_NAME, labels
from equipoise.comparison.table import Comparison
from equipoise.experiment import flat
from equipoise.metrics import Metric
from equipoise.report.cards import written
from equipoise.report.verdict import best_methods
from equipoise.report.wording import name_of
from equipoise.runs import MetricResult, Run, read_main
from equipoise.runs.curves import Curve
from equipoise.watch.progress import progress_of

STATUSES = {
    "running": "in progress",
    "finished": "finished",
    "stopped": "stopped",
    "damaged": "cannot be read",
    "reading": "not read yet",
}
MOST_SETTINGS = 6  # that a card shows
MOST_POINTS = 60  # of a sparkline
NO_BREAK = "\u00a0"
# Settings that say nothing about a result.
HIDDEN = (*NOT_A_NAME, "name", "data.name", "data.label")


@dataclass(frozen=True)
class Item:
    """One run or comparison of a gallery.

    Attributes:
        name: Its folder inside that of the gallery.
        address: The address of its page.
        status: "running", "finished", "stopped", "damaged", or "reading" before it was read.
        headline: Its main numbers.
        about: Data, clients and progress.
        method: The name of its method; empty for a comparison.
        settings: The settings in which it differs from other runs of the gallery.
        started: When it was created, in ISO format.
        score: The average, negative for errors, by which cards are sorted.
        metric: The metric of the curve.
        curve: The mean over clients by round.
        config: The settings of the run, by key.
    """

    name: str
    address: str
    status: str
    headline: str
    about: str
    method: str = ""
    settings: tuple[str, ...] = ()
    started: str = ""
    score: float = -math.inf
    metric: Metric | None = None
    curve: Curve = field(default_factory=Curve)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status_text(self) -> str:
        """The status as readers know it."""
        return STATUSES.get(self.status, self.status)

    @property
    def started_text(self) -> str:
        """The start in date, hours and minutes; if it is not known, the last change."""
        word = "changed" if self.status in ("damaged", "reading") else "started"
        return f"{word} {self.started[:16].replace('T', ' ')}"

    @property
    def text(self) -> str:
        """The text in which a search looks for words."""
        parts = (self.name, self.method, self.status_text, self.about, *self.settings)
        return " ".join(parts).lower()

    @cached_property
    def spark(self) -> str:
        """The curve as the path of a picture of 100 by 30 units; empty for fewer than two points.

        >>> Item("", "", "", "", "", curve=Curve((1, 2, 3), (0.2, 0.6, 0.4))).spark
        'M0 28L50 2L100 15'
        """
        step = max(1, math.ceil(len(self.curve.rounds) / MOST_POINTS))
        points = list(zip(self.curve.rounds, self.curve.means, strict=True))
        # The last point is always shown, so that steps are counted from the end.
        points = [point for point in points[::-step][::-1] if math.isfinite(point[1])]
        if len(points) < 2:
            return ""
        first, last = points[0][0], points[-1][0]
        low = min(mean for _, mean in points)
        span = max(mean for _, mean in points) - low or 1.0
        places = []
        for number, mean in points:
            across = 100 * (number - first) / (last - first)
            down = 28 - 26 * (mean - low) / span
            places.append(f"{across:.4g} {down:.4g}")
        return f"M{'L'.join(places)}"

    @property
    def spark_text(self) -> str:
        """A description of the curve, for readers who do not see it."""
        if self.metric is None or not self.curve.rounds:
            return ""
        first = written(self.curve.means[0], self.metric)
        last = written(self.curve.means[-1], self.metric)
        return f"mean {name_of(self.metric)} by round, from {first} to {last}"


def run_item(folder: Path, name: str, address: str) -> Item:
    """Return the card of a run, read at one moment.

    Raises:
        RunError: The run is damaged.
    """
    try:
        return _read_run_item(folder, name, address, checked=False)
    except Exception:  # reading it with all checks says what is damaged
        return _read_run_item(folder, name, address, checked=True)


def _read_run_item(folder: Path, name: str, address: str, checked: bool) -> Item:
    run = Run(folder, checked=checked)
    try:
        with run.one_moment():
            progress = progress_of(run)
            scores = read_main(run)
            clients = len(run.clients)
    finally:
        run.store.close()
    noun = "client" if clients == 1 else "clients"
    about = f"{run.data}, {clients:,} {noun}, seed {run.config['seed']}; {progress.words}"
    if progress.failed:
        failed = len(progress.failed)
        about += f"; {failed} {'client' if failed == 1 else 'clients'} failed"
    return Item(
        name,
        address,
        progress.status,
        _headline(scores),
        about,
        method=_method_name(json.dumps(run.config["method"])),
        started=run.created,
        score=_score(scores),
        metric=scores.metric,
        curve=scores.curve,
        config=flat(run.config),
    )


@cache
def _method_name(method: str) -> str:
    """Return the name of a method, whose settings are JSON; most runs of a folder share a few."""
    (name,) = labels([{"method": json.loads(method)}])
    return name


def _headline(scores: MetricResult) -> str:
    if not scores.values:
        return "Nothing is measured yet."
    metric = scores.metric
    extreme = "highest" if metric.lower_is_better else "lowest"
    average = written(scores.aggregates["average"], metric)
    worst = written(scores.aggregates["worst"], metric)
    text = f"{name_of(metric)}: average {average}, {extreme} {worst}"
    # A number and its unit stay on one line.
    return text.replace(" %", f"{NO_BREAK}%")


def _score(scores: MetricResult) -> float:
    """Return the average as a number that is higher for better runs."""
    if not scores.values or math.isnan(scores.aggregates["average"]):
        return -math.inf
    average = scores.aggregates["average"]
    return -average if scores.metric.lower_is_better else average


def comparison_item(comparison: Comparison, name: str, address: str) -> Item:
    """Return the card of a comparison."""
    seeds = len(comparison.seeds)
    first = comparison.entries[0].run
    about = (
        f"comparison of {len(comparison.methods)} methods on {first.data}, {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}"
    )
    failed = len(comparison.failures)
    if failed:
        about += f"; {failed} {'run' if failed == 1 else 'runs'} failed"
    headline = best_methods(comparison)
    return Item(name, address, "finished", headline, about, started=first.created)


def with_differences(items: Sequence[Item]) -> list[Item]:
    """Return the cards with the settings in which runs differ.

    Parameters of a method are compared with runs of the same method only.
    """
    values: dict[tuple[str, str], set[str]] = {}
    for item in items:
        for key, value in item.config.items():
            values.setdefault(_scope(item, key), set()).add(repr(value))
    differing = {scope for scope, different in values.items() if len(different) > 1}
    shown = []
    for item in items:
        settings = []
        for key, value in item.config.items():
            is_shown = value is not None and key not in HIDDEN
            if is_shown and _scope(item, key) in differing:
                settings.append(f"{key.rpartition('.')[2]}={value}")
        shown.append(replace(item, settings=tuple(settings[:MOST_SETTINGS])))
    return shown


def _scope(item: Item, key: str) -> tuple[str, str]:
    """Return the method and the name under which values of a setting are compared."""
    return (item.method if key.startswith("method.") else "", key)
