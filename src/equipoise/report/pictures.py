"""The figures of a report, each with a title and a description for readers who cannot see it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from equipoise.comparison.entries import Entry
from equipoise.comparison.table import Comparison
from equipoise.data.message_text import counted
from equipoise.metrics import Metric, UndefinedMetric, collaborative_fairness
from equipoise.report import clinical, figures, groups, survival
from equipoise.report.cards import Card, points, written
from equipoise.report.drawing import least_range
from equipoise.report.embedding import embedded
from equipoise.report.figures import ClientGain
from equipoise.report.tracks import span_of
from equipoise.report.wording import title_of
from equipoise.runs import RunResult
from equipoise.runs.curves import History

Point = tuple[float, float]  # average and standard deviation
SweepPoint = tuple[Any, float, float, float]  # value of the setting, mean, ends of its interval


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn on demand."""

    title: str
    text: str
    draw: Callable[[], Figure]


def figures_in_page(
    pictures: Mapping[str, Picture], names: Sequence[str] | None = None
) -> list[dict[str, str]]:
    """Return figures as a template shows them: name, title, text and SVG.

    Args:
        pictures: Name -> figure.
        names: The figures to show; by default all.
    """
    shown = []
    for name in pictures if names is None else names:
        picture = pictures[name]
        svg = embedded(picture.draw, name)
        shown.append({"name": name, "title": picture.title, "text": picture.text, "svg": svg})
    return shown


def of_run(label: str, result: RunResult, cards: Sequence[Card]) -> dict[str, Picture]:
    """Return the figures of a single run.

    Args:
        label: The name of its method.
        result: Its result, read with its details.
        cards: The report cards of its clients.
    """
    pictures = {}
    known = [card for card in cards if card.gain is not None and card.alone is not None]
    if known:
        pictures["clients"] = _gains(known, result.main.metric, len(cards) - len(known))
    pictures["curves"] = _learning(result)
    if len(result.clients) > 1:  # one client is even by itself
        pictures["plane"] = _plane(label, result)
    pictures |= _clinical(result) | _survival(result)
    return pictures | _maps(result) | _contributions(result)


def _gains(cards: Sequence[Card], metric: Metric, left_out: int) -> Picture:
    """Return the figure of gains.

    Args:
        cards: The cards of clients whose gain is known.
        metric: The metric.
        left_out: The number of other clients.
    """
    alone = np.array([card.alone for card in cards])
    together = np.array([card.value for card in cards])
    spans = {}
    for card in cards:
        span = span_of(card, metric)
        if span is not None:
            spans[card.client] = span
    better = sum(card.verdict == "gains" for card in cards)
    if len(cards) > figures.NAMED_ROWS:
        side = "below" if metric.lower_is_better else "above"
        text = (
            f"One point per client; {side} the line a client gains from joining. {better} of "
            f"{len(cards)} clients lie {side} it."
        )
    else:
        text = (
            "From what each client reaches alone (ring) to what it has together, most harmed "
            f"first: {better} of {len(cards)} gain."
        )
        if spans:
            text += (
                " Where the interval holds the ring, the change is not significant, given a finite "
                "test set."
            )
    if left_out:
        text += f" Not shown, since the gain is not known: {counted(left_out, 'client')}."
    names = [card.client for card in cards]
    return Picture(
        "Alone and together",
        text,
        lambda: figures.alone_to_together(names, alone, together, metric, spans),
    )


def _learning(result: RunResult) -> Picture:
    metric = result.main.metric
    history = _history(result)
    alone = None if result.baseline is None else _history(result.baseline)
    first = written(float(history.mean[0]), metric)
    last = written(float(history.mean[-1]), metric)
    text = f"The mean over clients goes from {first} to {last}"
    if history.final_phase:
        text += " after the final phase, which follows the last round"
    if alone is not None:
        text += f"; training alone ends at {written(float(alone.mean[-1]), metric)}"
    return Picture("Learning curves", f"{text}.", lambda: figures.learning(history, alone, metric))


def _plane(label: str, result: RunResult) -> Picture:
    metric = result.main.metric
    marks = {label: [_point(result)]}
    if result.baseline is not None:
        marks["training alone"] = [_point(result.baseline)]
    history = _history(result)
    text = _describe_plane(marks, metric)
    if len(history.rounds) > figures.MOST_WAY_POINTS:
        text += " The line is the way there through some of the rounds; points are the others."
    elif len(history.rounds) > 1:
        text += " The line is the way there, round by round."
    return Picture("Average and evenness", text, lambda: figures.plane(marks, metric, history))


def _describe_plane(marks: Mapping[str, Sequence[Point]], metric: Metric) -> str:
    parts = [
        f"{'Down' if metric.lower_is_better else 'Up'} is better on average, left is more even."
    ]
    for name, seeds in marks.items():
        average, std = np.mean(seeds, axis=0)
        parts.append(
            f"{name}: average {written(average, metric)}, standard deviation {points(std, metric)}."
        )
    return " ".join(parts)


def of_comparison(comparison: Comparison, partition: str) -> dict[str, Picture]:
    """Return the figures over all methods on one partition; entries were read with details."""
    metric = comparison.metric
    entries: dict[str, list[Entry]] = {}
    for method in comparison.methods:
        seeds = comparison.of_method(method, partition)
        if seeds:
            entries[method] = seeds
    pictures = {}
    gains = _gains_by_method(entries, len(comparison.seeds) > 1)
    if gains:
        pictures["gains"] = Picture(
            "Who gains, who loses",
            _describe_gains(gains, len(comparison.seeds) > 1),
            lambda: figures.gains_by_method(gains, metric, list(entries)),
        )
    pictures["curves"] = _learning_by_method(entries, metric, len(comparison.seeds) > 1)
    marks = {method: [_point(entry.run) for entry in seeds] for method, seeds in entries.items()}
    pictures["plane"] = Picture(
        "Average and evenness",
        _describe_plane(marks, metric),
        lambda: figures.plane(marks, metric),
    )
    return pictures


def of_sweep(comparison: Comparison) -> dict[str, Picture]:
    """Return a figure for each partition with the setting that a sweep varies on its axis."""
    key = comparison.swept
    if not key:
        return {}
    lines: dict[str, dict[str, list[SweepPoint]]] = {}
    for condition in comparison.partitions:
        for method in comparison.methods:
            for entry in comparison.of_method(method, condition)[:1]:
                partition = entry.run.partition
                point = _sweep_point(comparison, condition, entry)
                lines.setdefault(partition, {}).setdefault(method, []).append(point)
    pictures = {}
    for number, (partition, by_method) in enumerate(lines.items(), start=1):
        name = f"sweep-{number}" if len(lines) > 1 else "sweep"
        pictures[name] = _sweep_picture(comparison.metric, key, partition, by_method)
    return pictures


def _sweep_point(comparison: Comparison, condition: str, entry: Entry) -> SweepPoint:
    row = comparison.row(condition, entry.label, "average")
    assert row is not None
    mean = row["value"]
    low = mean if row["low"] is None else row["low"]
    high = mean if row["high"] is None else row["high"]
    return entry.run.varied[comparison.swept], mean, low, high


def _sweep_picture(
    metric: Metric, key: str, partition: str, lines: Mapping[str, Sequence[SweepPoint]]
) -> Picture:
    parts = [f"Mean over clients on {partition} by {key}; bands are intervals over seeds."]
    for method, line in lines.items():
        first = f"{written(line[0][1], metric)} at {line[0][0]}"
        last = f"{written(line[-1][1], metric)} at {line[-1][0]}"
        parts.append(f"{method}: from {first} to {last}.")
    title = f"mean {title_of(metric)}"
    means = [point[1] * metric.scale for line in lines.values() for point in line]
    least = least_range(metric, means)
    return Picture(
        f"By {key}", " ".join(parts), lambda: figures.sweep(lines, key, title, metric.scale, least)
    )


def _gains_by_method(
    entries: Mapping[str, Sequence[Entry]], several_seeds: bool
) -> dict[str, list[ClientGain]]:
    """Return method -> gains of all clients and seeds; a diverged model has none."""
    gains: dict[str, list[ClientGain]] = {}
    for method, seeds in entries.items():
        for entry in seeds:
            run = f"seed {entry.run.condition[1]}" if several_seeds else ""
            for client, gain in entry.gains().items():
                if np.isfinite(gain):
                    gains.setdefault(method, []).append(ClientGain(client, gain, run))
    return gains


def _describe_gains(gains: figures.Gains, several_seeds: bool) -> str:
    parts = ["One point per client and seed." if several_seeds else "One point per client."]
    for method, own in gains.items():
        losers = sum(gain.gain < 0 for gain in own)
        parts.append(f"{method}: {losers} of {len(own)} lose.")
    return " ".join(parts)


def _learning_by_method(
    entries: Mapping[str, Sequence[Entry]], metric: Metric, several_seeds: bool
) -> Picture:
    histories = {
        method: [_history(entry.run) for entry in seeds] for method, seeds in entries.items()
    }
    parts = ["Mean over clients; bands span the seeds." if several_seeds else "Mean over clients."]
    for name, seeds in histories.items():
        last = float(np.mean([history.mean[-1] for history in seeds]))
        parts.append(f"{name} ends at {written(last, metric)}.")
    return Picture(
        "Learning curves",
        " ".join(parts),
        lambda: figures.learning_by_method(histories, metric),
    )


def of_method(result: RunResult) -> dict[str, Picture]:
    """Return the heat map, weights and contributions of one run, for a page about several."""
    return _maps(result) | _contributions(result) | _clinical(result) | _survival(result)


def _contributions(result: RunResult) -> dict[str, Picture]:
    """Return scatters of clients' contributions against what they reach alone."""
    metric = result.main.metric
    baseline = result.main.baseline or {}
    pictures = {}
    for name, values in result.contributions.items():
        clients = []
        for client, value in values.items():
            if math.isfinite(value) and math.isfinite(baseline.get(client, math.nan)):
                clients.append(client)
        if len(clients) > 1:
            alone = np.array([baseline[client] for client in clients])
            own = np.array([values[client] for client in clients])
            pictures[f"contributions_{name}"] = _contribution_picture(
                clients, alone, own, name, metric
            )
    return pictures


def _contribution_picture(
    clients: Sequence[str], alone: np.ndarray, values: np.ndarray, name: str, metric: Metric
) -> Picture:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetric)
        correlation = collaborative_fairness(alone, values) / 100
    known = f"Their correlation is {correlation:.2f}."
    if math.isnan(correlation):
        known = "They have no correlation, since all values of one are equal."
    text = (
        f"The {name.replace('_', ' ')} of each of {len(clients)} clients, as the method values it "
        f"at the end, against what the client reaches alone. {known}"
    )
    return Picture(
        "Contributions",
        text,
        lambda: figures.contributions(clients, alone, values, name, metric),
    )


def _clinical(result: RunResult) -> dict[str, Picture]:
    drawn = clinical.curves_of(result) | groups.maps_of(result)
    return {name: Picture(*figure) for name, figure in drawn.items()}


def _survival(result: RunResult) -> dict[str, Picture]:
    return {name: Picture(*figure) for name, figure in survival.curves_of(result).items()}


def _maps(result: RunResult) -> dict[str, Picture]:
    metric = result.main.metric
    history = _history(result)
    last = history.values[:, -1]
    lowest = written(float(np.nanmin(last)), metric)
    highest = written(float(np.nanmax(last)), metric)
    text = (
        "Every client in every measured round, sorted by where it ended, the best on top: from "
        f"{lowest} to {highest}."
    )
    pictures = {
        "heatmap": Picture("Clients by round", text, lambda: figures.heat_map(history, metric))
    }
    assert result.details is not None
    weights = result.details.weights
    if weights.values.size:
        pictures["weights"] = Picture(
            "Weights over rounds", _describe_weights(weights), lambda: figures.weights(weights)
        )
    return pictures


def _describe_weights(weights: History) -> str:
    mean = weights.values.mean(1)
    least = int(mean.argmin())
    most = int(mean.argmax())
    span = "the same for all"
    if least != most:
        span = (
            f"from {100 * mean[least]:.1f} % (client {weights.clients[least]}) to "
            f"{100 * mean[most]:.1f} % (client {weights.clients[most]})"
        )
    return f"The share of the aggregate that each client was given; on average {span}."


def _history(result: RunResult) -> History:
    assert result.details is not None
    return result.details.history


def _point(result: RunResult) -> Point:
    numbers = result.main.aggregates
    return numbers["average"], numbers["std"]
