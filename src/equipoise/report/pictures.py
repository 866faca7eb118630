"""Which figures a report has, each with a title and a sentence that says what it shows to someone who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from equipoise.comparison.entries import Entry
from equipoise.comparison.table import Comparison
from equipoise.report import clinical, figures
from equipoise.report.cards import Card, written
from equipoise.report.cards import points as points_of
from equipoise.report.curves import Curves, read_curves, read_weights
from equipoise.report.tracks import span_of
from equipoise.runs import Run

_DIRECTION = {
    False: "Up is better on average, left is more even.",
    True: "Down is better on average, left is more even.",
}


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is asked for."""

    title: str
    text: str
    draw: Callable[[], Figure]


def of_run(entry: Entry, run: Run, cards: Sequence[Card]) -> dict[str, Picture]:
    """The figures of a single run, which is open."""
    metric = entry.metric
    curves = _curves(entry, run)
    alone = (
        None
        if entry.alone is None or entry.run.is_alone
        else _curves_of(Entry("", entry.alone, None))
    )
    found = {}
    known = [
        (card, card.alone)
        for card in cards
        if card.gain is not None and card.alone is not None and np.isfinite(card.gain)
    ]
    if known:
        a, t = np.array([alone for _, alone in known]), np.array([card.value for card, _ in known])
        spans = {
            card.client: span for card, _ in known if (span := span_of(card, metric)) is not None
        }
        better = int((t < a).sum() if entry.lower else (t > a).sum())
        many = len(known) > figures.NAMED_ROWS
        side = "below" if entry.lower else "above"
        text = (
            f"One point per client; {side} the line a client gains from joining. {better} of {len(known)} clients lie {side} it."
            if many
            else f"From what each client reaches alone (ring) to what it has together, most harmed first: {better} of {len(known)} gain."
        )
        if spans and not many:
            text += " Where the interval holds the ring, the change cannot be told from the luck of a finite test set."
        names = [card.client for card, _ in known]
        found["clients"] = Picture(
            "Alone and together",
            text,
            lambda: figures.alone_to_together(names, a, t, metric, spans),
        )
    ends = f"The mean over clients goes from {written(float(curves.mean[0]), metric)} to {written(float(curves.mean[-1]), metric)}"
    ends += (
        f"; training alone ends at {written(float(alone.mean[-1]), metric)}."
        if alone is not None
        else "."
    )
    found["curves"] = Picture(
        "Learning curves", ends, lambda: figures.learning(curves, alone, metric)
    )
    points = {entry.label: [_point(entry)]}
    if entry.alone is not None and not entry.run.is_alone:
        points["training alone"] = [_point(Entry("", entry.alone, None))]
    text = " ".join(
        f"{name}: average {written(p[0][0], metric)}, standard deviation {points_of(p[0][1], metric)}."
        for name, p in points.items()
    )
    text = f"{_DIRECTION[entry.lower]} {text}" + (
        " The line is the way there, round by round." if len(curves.rounds) > 1 else ""
    )
    if len(curves.clients) > 1:  # one client is even by itself
        found["plane"] = Picture(
            "Average and evenness", text, lambda: figures.plane(points, metric, curves)
        )
    return found | _clinical(run) | _maps(entry, run, curves)


def of_comparison(comparison: Comparison, partition: str) -> dict[str, Picture]:
    """The figures over all methods on one partition."""
    metric = comparison.metric
    entries = {
        method: [
            entry
            for seed in comparison.seeds
            if (entry := comparison.entry(method, partition, seed))
        ]
        for method in comparison.methods
    }
    entries = {method: found for method, found in entries.items() if found}
    gains = {
        method: np.array([gain for entry in found for gain in _known_gains(entry)])
        for method, found in entries.items()
    }
    gains = {method: values for method, values in gains.items() if len(values)}
    found = {}
    if gains:
        text = "One point per client and seed. " + " ".join(
            f"{name}: {(v < 0).sum()} of {len(v)} lose." for name, v in gains.items()
        )
        found["gains"] = Picture(
            "Who gains, who loses", text, lambda: figures.gains_by_method(gains, metric)
        )
    curves = {method: [_curves_of(entry) for entry in seeds] for method, seeds in entries.items()}
    ends = " ".join(
        f"{name} ends at {written(float(np.mean([c.mean[-1] for c in seeds])), metric)}."
        for name, seeds in curves.items()
    )
    found["curves"] = Picture(
        "Learning curves",
        f"Mean over clients{'; bands span the seeds' if len(comparison.seeds) > 1 else ''}. {ends}",
        lambda: figures.learning_by_method(curves, metric),
    )
    points = {method: [_point(entry) for entry in seeds] for method, seeds in entries.items()}
    text = f"{_DIRECTION[metric.lower_is_better]} " + " ".join(
        f"{name}: average {written(mean[0], metric)}, standard deviation {points_of(mean[1], metric)}."
        for name, mean in ((name, np.mean(p, axis=0)) for name, p in points.items())
    )
    found["plane"] = Picture("Average and evenness", text, lambda: figures.plane(points, metric))
    return found


def of_method(entry: Entry) -> dict[str, Picture]:
    """The heat map and the weights of one run, for a page about several."""
    run = Run(entry.run.folder)
    with closing(run.store):
        return _maps(entry, run, _curves(entry, run)) | _clinical(run)


def _clinical(run: Run) -> dict[str, Picture]:
    return {name: Picture(*one) for name, one in clinical.curves_of(run).items()}


def _maps(entry: Entry, run: Run, curves: Curves) -> dict[str, Picture]:
    metric, weights = entry.metric, read_weights(run)
    lowest, highest = (
        written(float(end(curves.values[:, -1])), metric) for end in (np.nanmin, np.nanmax)
    )
    text = f"Every client in every measured round, sorted by where it ended, the best on top: from {lowest} to {highest}."
    found = {"heatmap": Picture("Clients by round", text, lambda: figures.heat_map(curves, metric))}
    if weights.values.size:
        mean = weights.values.mean(1)
        least, most = int(mean.argmin()), int(mean.argmax())
        ends = f"from {100 * mean[least]:.1f} % (client {weights.clients[least]}) to {100 * mean[most]:.1f} % (client {weights.clients[most]})"
        text = f"The share of the aggregate that each client was given; on average {ends if least != most else 'the same for all'}."
        found["weights"] = Picture("Weights over rounds", text, lambda: figures.weights(weights))
    return found


def _curves(entry: Entry, run: Run) -> Curves:
    return read_curves(run, entry.run.metric, entry.run.undefined.get(entry.run.metric, ()))


def _curves_of(entry: Entry) -> Curves:
    run = Run(entry.run.folder)
    with closing(run.store):
        return _curves(entry, run)


def _known_gains(entry: Entry) -> list[float]:
    """In order; a diverged model has none."""
    return sorted(gain for gain in entry.gains().values() if np.isfinite(gain))


def _point(entry: Entry) -> tuple[float, float]:
    return entry.measured[0]["average"], entry.measured[0]["std"]
