"""What the figures of a page draw is what was measured: values, order, direction, and who is counted where."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from equipoise.metrics.registry import find
from equipoise.report import figures
from equipoise.report.curves import Curves
from equipoise.report.drawing import ALONE, GAIN, LOSS

ACCURACY, LOSSES = find("accuracy"), find("loss")


def curves(clients: int = 3, rounds: tuple[int, ...] = (1, 2, 3)) -> Curves:
    values = np.random.default_rng(0).uniform(0.2, 0.9, (clients, len(rounds)))
    return Curves([f"c{k}" for k in range(clients)], list(rounds), values, values.mean(0))


@pytest.mark.parametrize("metric", [ACCURACY, LOSSES])
def test_the_heat_map_has_the_best_client_on_top_and_every_round_at_its_number(metric: object) -> None:
    found = curves()
    axes = figures.heat_map(found, metric).axes[0]  # type: ignore[arg-type]
    order = np.argsort(found.values[:, -1])[:: 1 if metric is LOSSES else -1]
    (image,) = axes.images
    assert np.asarray(image.get_array()) == pytest.approx(found.values[order] * metric.scale)  # type: ignore[attr-defined]
    assert image.get_extent() == [0.5, 3.5, 2.5, -0.5]
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"c{k}" for k in order]


def test_the_heat_map_of_many_clients_names_none() -> None:
    axes = figures.heat_map(curves(figures.NAMED_ROWS + 1), ACCURACY).axes[0]
    assert axes.get_ylabel() == f"{figures.NAMED_ROWS + 1} clients, sorted"
    assert figures.heat_map(curves(figures.NAMED_ROWS), ACCURACY).axes[0].get_ylabel() == "client"


@pytest.mark.parametrize("rounds", [(4,), (1, 2, 5)])
def test_weights_are_stacked_to_a_hundred_per_cent(rounds: tuple[int, ...]) -> None:
    found = curves(3, rounds)
    shares = found.values / found.values.sum(0)
    (axes,) = figures.weights(Curves(found.clients, found.rounds, shares, shares.mean(0))).axes
    assert axes.get_xlim() == (rounds[0], rounds[-1] if len(rounds) > 1 else rounds[0] + 1) and axes.get_ylim() == (0, 100)
    tops = [max(y for x, y in area.get_paths()[0].vertices if x == rounds[0]) for area in axes.collections]
    assert tops == pytest.approx(100 * np.cumsum(shares[:, 0]))


def test_weights_of_many_clients_are_an_image_with_the_heaviest_on_top() -> None:
    found = curves(40)
    image = figures.weights(found).axes[0].images[0]
    order = np.argsort(-found.values.mean(1))
    assert np.asarray(image.get_array()) == pytest.approx(100 * found.values[order]) and image.norm.vmin == 0


def test_a_client_each_has_a_line_and_their_mean_is_drawn_beside_that_of_training_alone() -> None:
    found, alone = curves(), curves(3, (1, 2))
    (axes,) = figures.learning(found, alone, ACCURACY).axes
    drawn = [line.get_xydata() for line in axes.lines]
    wanted = [*found.values, found.mean]
    for line, values in zip(drawn, wanted, strict=False):
        assert np.asarray(line) == pytest.approx(np.column_stack([found.rounds, 100 * values]))
    by_label = {line.get_label(): np.asarray(line.get_xydata()) for line in axes.lines}
    assert by_label["mean of training alone"] == pytest.approx(np.column_stack([alone.rounds, 100 * alone.mean]))


def test_many_clients_are_a_band_with_the_last_and_the_first() -> None:
    found = curves(figures.SINGLE_LINES + 1)
    (axes,) = figures.learning(found, None, ACCURACY).axes
    ended = found.values[:, -1]
    dashed = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed[0] == pytest.approx(100 * found.values[ended.argmin()]) and dashed[1] == pytest.approx(100 * found.values[ended.argmax()])
    band = axes.collections[0].get_paths()[0].vertices
    low, high = np.percentile(100 * found.values, [10, 90], axis=0)
    at_first = [y for x, y in band if x == 1]
    assert (min(at_first), max(at_first)) == pytest.approx((low[0], high[0]))


def test_methods_are_means_over_seeds_with_a_band() -> None:
    first, second = curves(), curves(4)
    (axes,) = figures.learning_by_method({"one": [first, second], "two": [second]}, ACCURACY).axes
    means = 100 * np.stack([first.mean, second.mean])
    assert np.asarray(axes.lines[0].get_ydata()) == pytest.approx(means.mean(0))
    assert np.asarray(axes.lines[1].get_ydata()) == pytest.approx(means[1])
    assert len(axes.collections) == 1  # only one has several seeds
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((means.min(), means.max()))
    assert axes.lines[0].get_linewidth() > axes.lines[1].get_linewidth()


@pytest.mark.parametrize(("metric", "gains"), [(ACCURACY, [True, False, None]), (LOSSES, [False, True, None])])
def test_rows_go_from_alone_to_together_in_the_colour_of_their_change(metric: object, gains: list[bool | None]) -> None:
    alone, together = np.array([0.5, 0.6, 0.7]), np.array([0.6, 0.5, 0.7])
    spans = {"c0": (0.55, 0.65)}
    figure = figures.alone_to_together(["c0", "c1", "c2"], alone, together, metric, spans)  # type: ignore[arg-type]
    (axes,) = figure.axes
    scale = metric.scale  # type: ignore[attr-defined]
    span, *lines = [line for line in axes.lines if len(line.get_xdata())]
    assert span.get_xdata() == pytest.approx([0.55 * scale, 0.65 * scale]) and list(span.get_ydata()) == [0, 0]
    for place, (line, gain) in enumerate(zip(lines, gains, strict=True)):
        assert line.get_xdata() == pytest.approx([alone[place] * scale, together[place] * scale]) and list(line.get_ydata()) == [place] * 2
        assert to_hex(line.get_color()) == to_hex({True: GAIN, False: LOSS, None: ALONE}[gain])
    assert axes.get_ylim() == (2.6, -0.6) and [text.get_text() for text in axes.get_yticklabels()] == ["c0", "c1", "c2"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["alone", "gains (1)", "loses (1)", "equal (1)", "95 % interval"]


def test_many_clients_are_points_beside_the_diagonal() -> None:
    draw = np.random.default_rng(1)
    alone, together = draw.random(40), draw.random(40)
    together[:3], alone[5] = alone[:3], np.nan
    (axes,) = figures.alone_to_together([f"c{k}" for k in range(40)], alone, together, ACCURACY).axes
    drawn = {group.get_label(): np.asarray(group.get_offsets()) for group in axes.collections}
    there = np.isfinite(alone)
    for word, chosen in (("gains", together > alone), ("loses", together < alone), ("equal", together == alone)):
        chosen = chosen & there
        assert drawn[f"{word} ({chosen.sum()})"] == pytest.approx(100 * np.column_stack([alone[chosen], together[chosen]]))
    low, high = axes.get_xlim()
    everything = 100 * np.concatenate([alone[there], together[there]])
    assert low < everything.min() and high > everything.max() and axes.get_ylim() == (low, high)


def test_gains_of_a_method_are_a_row_with_their_mean_and_the_number_who_lose() -> None:
    gains = {"one": np.array([0.1, -0.05, 0.0]), "two": np.array([0.2])}
    (axes,) = figures.gains_by_method(gains, ACCURACY).axes
    lost, gained, equal = (np.asarray(group.get_offsets()) for group in axes.collections[:3])
    assert lost[:, 0] == pytest.approx([-5]) and gained[:, 0] == pytest.approx([10]) and equal[:, 0] == pytest.approx([0])
    assert np.asarray(axes.collections[4].get_offsets()) == pytest.approx(np.array([[20, 1]]))
    assert list(axes.lines[0].get_xdata()) == pytest.approx([5 / 3] * 2) and list(axes.lines[0].get_ydata()) == [-0.38, 0.38]
    assert [text.get_text() for text in axes.texts] == ["1 of 3 lose", "0 of 1 lose"]
    assert axes.yaxis_inverted()


def test_the_plane_has_averages_over_deviations_and_the_way_there() -> None:
    found = curves()
    (axes,) = figures.plane({"one": [(0.5, 0.1), (0.7, 0.3)], "two": [(0.6, 0.05)]}, ACCURACY, found).axes
    way = np.asarray(axes.lines[0].get_xydata())
    assert way == pytest.approx(100 * np.column_stack([found.values.std(0), found.mean]))
    seeds, one, two = (np.asarray(group.get_offsets()) for group in axes.collections)
    assert seeds == pytest.approx(np.array([[10, 50], [30, 70]])) and one == pytest.approx(np.array([[20, 60]]))
    assert two == pytest.approx(np.array([[5, 60]]))
    assert axes.collections[1].get_sizes()[0] > axes.collections[2].get_sizes()[0]
