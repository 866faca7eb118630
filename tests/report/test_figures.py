"""What the figures of a page draw is what was measured: values, order, direction, and who is
counted where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from equipoise.metrics.registry import find
from equipoise.report import figures
from equipoise.report.drawing import (
    ALONE,
    COLOURS,
    DARK,
    FAINT,
    GAIN,
    IN_IMAGES,
    LINES,
    LOSS,
    MARKERS,
    STYLE,
    Chart,
    apart,
)
from equipoise.report.figures import ClientGain
from equipoise.runs.curves import History

ACCURACY, LOSSES = find("accuracy"), find("loss")


def curves(clients: int = 3, rounds: tuple[int, ...] = (1, 2, 3)) -> History:
    values = np.random.default_rng(0).uniform(0.2, 0.9, (clients, len(rounds)))
    return History([f"c{k}" for k in range(clients)], list(rounds), values, values.mean(0))


@pytest.mark.parametrize("metric", [ACCURACY, LOSSES])
def test_the_heat_map_has_the_best_client_on_top_and_every_round_at_its_number(
    metric: object,
) -> None:
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
    (axes,) = figures.weights(History(found.clients, found.rounds, shares, shares.mean(0))).axes
    assert axes.get_xlim() == (
        rounds[0],
        rounds[-1] if len(rounds) > 1 else rounds[0] + 1,
    ) and axes.get_ylim() == (0, 100)
    tops = [
        max(y for x, y in area.get_paths()[0].vertices if x == rounds[0])
        for area in axes.collections
    ]
    assert tops == pytest.approx(100 * np.cumsum(shares[:, 0]))


def test_weights_of_many_clients_are_an_image_with_the_heaviest_on_top() -> None:
    found = curves(40)
    image = figures.weights(found).axes[0].images[0]
    order = np.argsort(-found.values.mean(1))
    assert (
        np.asarray(image.get_array()) == pytest.approx(100 * found.values[order])
        and image.norm.vmin == 0
    )


def test_a_client_each_has_a_line_and_their_mean_is_drawn_beside_that_of_training_alone() -> None:
    found, alone = curves(), curves(3, (1, 2))
    (axes,) = figures.learning(found, alone, ACCURACY).axes
    drawn = [line.get_xydata() for line in axes.lines]
    wanted = [*found.values, found.mean]
    for line, values in zip(drawn, wanted, strict=False):
        assert np.asarray(line) == pytest.approx(np.column_stack([found.rounds, 100 * values]))
    by_label = {line.get_label(): np.asarray(line.get_xydata()) for line in axes.lines}
    assert by_label["mean of training alone"] == pytest.approx(
        np.column_stack([alone.rounds, 100 * alone.mean])
    )


def test_many_clients_are_a_band_with_the_last_and_the_first() -> None:
    found = curves(figures.SINGLE_LINES + 1)
    (axes,) = figures.learning(found, None, ACCURACY).axes
    ended = found.values[:, -1]
    dashed = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed[0] == pytest.approx(100 * found.values[ended.argmin()]) and dashed[
        1
    ] == pytest.approx(100 * found.values[ended.argmax()])
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


@pytest.mark.parametrize(
    ("metric", "gains"), [(ACCURACY, [True, False, None]), (LOSSES, [False, True, None])]
)
def test_rows_go_from_alone_to_together_in_the_colour_of_their_change(
    metric: object, gains: list[bool | None]
) -> None:
    alone, together = np.array([0.5, 0.6, 0.7]), np.array([0.6, 0.5, 0.7])
    spans = {"c0": (0.55, 0.65)}
    figure = figures.alone_to_together(["c0", "c1", "c2"], alone, together, metric, spans)  # type: ignore[arg-type]
    (axes,) = figure.axes
    scale = metric.scale  # type: ignore[attr-defined]
    span, *lines = [line for line in axes.lines if len(line.get_xdata())]
    assert span.get_xdata() == pytest.approx([0.55 * scale, 0.65 * scale]) and list(
        span.get_ydata()
    ) == [0, 0]
    for place, (line, gain) in enumerate(zip(lines, gains, strict=True)):
        assert (
            line.get_xdata() == pytest.approx([alone[place] * scale, together[place] * scale])
            and list(line.get_ydata()) == [place] * 2
        )
        assert to_hex(line.get_color()) == to_hex({True: GAIN, False: LOSS, None: ALONE}[gain])
    assert axes.get_ylim() == (2.6, -0.6) and [
        text.get_text() for text in axes.get_yticklabels()
    ] == ["c0", "c1", "c2"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["alone", "gains (1)", "loses (1)", "equal (1)", "95 % interval"]


def test_many_clients_are_points_beside_the_diagonal() -> None:
    draw = np.random.default_rng(1)
    alone, together = draw.random(40), draw.random(40)
    together[:3], alone[5] = alone[:3], np.nan
    (axes,) = figures.alone_to_together(
        [f"c{k}" for k in range(40)], alone, together, ACCURACY
    ).axes
    drawn = {group.get_label(): np.asarray(group.get_offsets()) for group in axes.collections}
    there = np.isfinite(alone)
    for word, chosen in (
        ("gains", together > alone),
        ("loses", together < alone),
        ("equal", together == alone),
    ):
        chosen = chosen & there
        assert drawn[f"{word} ({chosen.sum()})"] == pytest.approx(
            100 * np.column_stack([alone[chosen], together[chosen]])
        )
    low, high = axes.get_xlim()
    everything = 100 * np.concatenate([alone[there], together[there]])
    assert low < everything.min() and high > everything.max() and axes.get_ylim() == (low, high)


def test_gains_of_a_method_are_a_row_with_their_mean_and_the_number_who_lose() -> None:
    gains = {"one": over_seeds([0.1, -0.05, 0.0]), "two": over_seeds([0.2])}
    (axes,) = figures.gains_by_method(gains, ACCURACY).axes
    lost, gained, equal = (np.asarray(group.get_offsets()) for group in axes.collections[:3])
    assert (
        lost[:, 0] == pytest.approx([-5])
        and gained[:, 0] == pytest.approx([10])
        and equal[:, 0] == pytest.approx([0])
    )
    assert np.asarray(axes.collections[4].get_offsets()) == pytest.approx(np.array([[20, 1]]))
    assert list(axes.lines[0].get_xdata()) == pytest.approx([5 / 3] * 2) and list(
        axes.lines[0].get_ydata()
    ) == [-0.38, 0.38]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["c1, seed 1", "c0, seed 1", "1 of 3 lose", "c0, seed 1", "0 of 1 lose"]
    assert axes.yaxis_inverted()


def test_a_few_clients_of_one_seed_have_a_row_each_the_most_harmed_first() -> None:
    gains = {
        "one": [ClientGain("north", 0.1), ClientGain("south", -0.2)],
        "two": [ClientGain("north", 0.0)],
    }
    figure = figures.gains_by_method(gains, ACCURACY)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["south", "north"]
    one, two = (np.asarray(group.get_offsets()) for group in axes.collections)
    assert one[:, 0] == pytest.approx([10, -20]) and two[:, 0] == pytest.approx([0])
    assert one[:, 1].round().tolist() == [1, 0] and two[:, 1].round().tolist() == [1]
    assert one[0, 1] != two[0, 1], "equal gains of two methods stay visible"
    assert list(figure.series) == ["one", "two"]
    assert [spot.text for spot in figure.spots][1] == "one, south: -20.0 points"
    others = figures.gains_by_method(gains, ACCURACY, ["alone", "one", "two"])
    plane = figures.plane({name: [(0.5, 0.1)] for name in ("alone", "one", "two")}, ACCURACY)
    assert isinstance(others, Chart) and isinstance(plane, Chart)
    for name in ("one", "two"):
        assert others.series[name] == plane.series[name], "a method has one colour in all figures"
        assert others.markers[name] == plane.markers[name]


def test_the_plane_of_many_rounds_connects_some_of_them() -> None:
    found = curves(4, tuple(range(1, 61)))
    (axes,) = figures.plane({"one": [(0.5, 0.1)]}, ACCURACY, found).axes
    assert len(axes.lines[0].get_xdata()) <= figures.MOST_WAY_POINTS
    assert len(axes.collections[0].get_offsets()) == 60, "every round is a point"
    named = [text.get_text() for text in axes.texts if text.get_text().startswith("round")]
    assert len(named) == 2 and named[0] == "round 1"


def test_the_plane_has_averages_over_deviations_and_the_way_there() -> None:
    found = curves()
    (axes,) = figures.plane(
        {"one": [(0.5, 0.1), (0.7, 0.3)], "two": [(0.6, 0.05)]}, ACCURACY, found
    ).axes
    way = np.asarray(axes.lines[0].get_xydata())
    assert way == pytest.approx(100 * np.column_stack([found.values.std(0), found.mean]))
    _, seeds, one, two = (np.asarray(group.get_offsets()) for group in axes.collections)
    assert seeds == pytest.approx(np.array([[10, 50], [30, 70]])) and one == pytest.approx(
        np.array([[20, 60]])
    )
    assert two == pytest.approx(np.array([[5, 60]]))
    assert axes.collections[2].get_sizes()[0] > axes.collections[3].get_sizes()[0]


THREE, NAMES = np.array([0.5, 0.6, 0.7]), ["c0", "c1", "c2"]


def over_seeds(values: Sequence[float] | np.ndarray) -> list[ClientGain]:
    """Gains of clients of one of several seeds."""
    return [ClientGain(f"c{k}", float(value), "seed 1") for k, value in enumerate(values)]


def end_of(rows: int) -> Figure:
    return figures.learning_by_method({f"m{k}": [curves()] for k in range(rows)}, ACCURACY)


@pytest.mark.parametrize(
    ("draw", "x", "y"),
    [
        (lambda: figures.learning(curves(), None, ACCURACY), "round", "accuracy in %"),
        (lambda: end_of(2), "round", "mean accuracy in %"),
        (lambda: figures.weights(curves()), "round", "weight in %"),
        (lambda: figures.heat_map(curves(), ACCURACY), "round", "client"),
        (lambda: figures.alone_to_together(NAMES, THREE, THREE, ACCURACY), "accuracy in %", ""),
        (
            lambda: figures.alone_to_together(NAMES, THREE, THREE, LOSSES),
            "loss, lower is better",
            "",
        ),
        (
            lambda: figures.alone_against_together(THREE, THREE, ACCURACY),
            "alone: accuracy in %",
            "together: accuracy in %",
        ),
        (
            lambda: figures.gains_by_method({"one": over_seeds(THREE)}, ACCURACY),
            "gain over training alone (points) → better; bar: mean",
            "",
        ),
        (
            lambda: figures.plane({"a": [(0.5, 0.1)]}, ACCURACY),
            "more even ← standard deviation over clients (points)",
            "average accuracy in % → better",
        ),
        (
            lambda: figures.plane({"a": [(0.5, 0.1)]}, LOSSES),
            "more even ← standard deviation over clients",
            "average loss ← better",
        ),
    ],
)
def test_axes_say_what_they_are_about_and_rounds_are_whole_numbers(
    draw: Callable[[], Figure], x: str, y: str
) -> None:
    axes = draw().axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (x, y)
    if x == "round":
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


@pytest.mark.parametrize(
    ("draw", "height"),
    [
        (lambda: figures.learning(curves(), None, ACCURACY), 3.3 + 0.17),
        (lambda: end_of(3), 3.3),
        (lambda: end_of(20), 1.0 + 0.17 * 20),
        (lambda: figures.alone_to_together(NAMES[:1], THREE[:1], THREE[:1], ACCURACY), 2.6),
        (
            lambda: figures.alone_to_together(
                [str(k) for k in range(9)], np.arange(9.0), np.arange(9.0), ACCURACY
            ),
            1.1 + 0.2 * 9,
        ),
        (lambda: figures.gains_by_method({"one": over_seeds(THREE)}, ACCURACY), 3.3),
        (
            lambda: figures.gains_by_method(dict.fromkeys("abcde", over_seeds(THREE)), ACCURACY),
            0.9 + 0.6 * 5,
        ),
        (lambda: figures.heat_map(curves(3), ACCURACY), 2.2),
        (lambda: figures.heat_map(curves(10), ACCURACY), 1.2 + 0.14 * 10),
        (lambda: figures.heat_map(curves(60), ACCURACY), 4.6),
    ],
)
def test_a_figure_is_as_high_as_the_names_in_it_need(
    draw: Callable[[], Figure], height: float
) -> None:
    assert draw().get_figheight() == pytest.approx(height)


def test_names_stand_at_the_ends_of_their_lines_in_their_colours() -> None:
    found = curves(9, (1, 2, 4))
    (axes,) = figures.learning(found, None, ACCURACY).axes
    assert [text.xy for text in axes.texts] == [
        (4, pytest.approx(100 * row[-1])) for row in found.values
    ]
    assert [text.get_text() for text in axes.texts] == found.clients
    colours = [to_hex(text.arrow_patch.get_edgecolor()) for text in axes.texts]
    assert (
        colours == [*COLOURS, COLOURS[0]] == [to_hex(line.get_color()) for line in axes.lines[:9]]
    )
    assert (
        axes.lines[2].get_marker() == MARKERS[2]
        and axes.lines[2].get_markevery() == apart(2, 3)["markevery"]
    )
    (axes,) = figures.learning_by_method(
        {"one": [found], "two": [curves(2, (1, 2, 4))]}, ACCURACY
    ).axes
    assert [text.xy[0] for text in axes.texts] == [4, 4] and axes.texts[0].xy[1] == pytest.approx(
        100 * found.mean[-1]
    )
    assert [to_hex(text.arrow_patch.get_edgecolor()) for text in axes.texts] == list(COLOURS[:2])
    assert [line.get_marker() for line in axes.lines] == list(MARKERS[:2])
    (axes,) = figures.learning(curves(figures.SINGLE_LINES + 1, (1, 2, 4)), None, ACCURACY).axes
    assert [text.xy[0] for text in axes.texts] == [4, 4] and {
        to_hex(text.arrow_patch.get_edgecolor()) for text in axes.texts
    } == {FAINT}


def test_a_single_round_is_a_mark_and_several_are_a_line() -> None:
    for rounds, marker in (((3,), "o"), ((1, 2), "None")):
        figure = figures.learning(curves(3, rounds), curves(3, rounds), ACCURACY)
        by_label = {line.get_label(): line for line in figure.axes[0].lines}
        assert (
            by_label["mean"].get_marker()
            == by_label["mean of training alone"].get_marker()
            == marker
        )
        assert to_hex(by_label["mean"].get_color()) == DARK
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [
            "mean",
            "mean of training alone",
        ]


def test_a_client_without_a_last_value_is_neither_the_lowest_nor_the_highest() -> None:
    found = curves(figures.SINGLE_LINES + 1)
    values = found.values.copy()
    values[int(values[:, -1].argmin()), -1] = np.nan
    (axes,) = figures.learning(
        History(found.clients, found.rounds, values, np.nanmean(values, axis=0)), None, ACCURACY
    ).axes
    lowest, highest = (int(end(values[:, -1])) for end in (np.nanargmin, np.nanargmax))
    assert [text.get_text() for text in axes.texts] == [
        f"lowest: c{lowest}",
        f"highest: c{highest}",
    ]
    assert {
        text.get_text() for text in figures.learning(found, None, ACCURACY).legends[0].get_texts()
    } == {
        "middle 80 % of the clients",
        "mean",
    }


def test_seeds_measured_in_other_rounds_are_left_out_of_the_mean_and_bands_span_each_round() -> (
    None
):
    first, second, other = curves(), curves(4), curves(3, (1, 2))
    (axes,) = figures.learning_by_method({"one": [first, other, second]}, ACCURACY).axes
    assert np.asarray(axes.lines[0].get_xydata()) == pytest.approx(
        np.column_stack([first.rounds, 100 * np.mean([first.mean, second.mean], axis=0)])
    )
    band = axes.collections[0].get_paths()[0].vertices
    for number, *means in zip(first.rounds, 100 * first.mean, 100 * second.mean, strict=True):
        there = [y for x, y in band if x == number]
        assert (min(there), max(there)) == pytest.approx((min(means), max(means)))
    assert to_hex(axes.collections[0].get_facecolor()[0]) == COLOURS[0]


def test_lines_become_thinner_down_to_a_limit() -> None:
    widths = [line.get_linewidth() for line in end_of(6).axes[0].lines]
    assert widths == pytest.approx([3.2, 2.7, 2.2, 1.7, 1.2, 1.2])
    (axes,) = figures.plane({f"m{k}": [(0.1 * k, 0.1)] for k in range(6)}, ACCURACY).axes
    assert [marks.get_sizes()[0] for marks in axes.collections] == [120, 98, 76, 54, 32, 30]


def test_rows_have_a_ring_for_alone_and_a_mark_for_together() -> None:
    alone, together = np.array([0.5, 0.6, 0.7]), np.array([0.6, 0.5, 0.7])
    (axes,) = figures.alone_to_together(NAMES, alone, together, ACCURACY).axes
    marks = [group for group in axes.collections if len(group.get_offsets())]
    for groups, values in ((marks[::2], together), (marks[1::2], alone)):
        assert [list(group.get_offsets()[0]) for group in groups] == [
            pytest.approx([100 * value, k]) for k, value in enumerate(values)
        ]
    assert [to_hex(group.get_facecolor()[0]) for group in marks[::2]] == [GAIN, LOSS, ALONE]
    assert {to_hex(group.get_edgecolor()[0]) for group in marks[1::2]} == {ALONE}
    shapes = [len(group.get_paths()[0].vertices) for group in marks[::2]]
    assert len(set(shapes)) == 3, "a circle, a triangle and a square: not by colour alone"
    over = [
        int(np.sign(ring.get_zorder() - mark.get_zorder()))
        for mark, ring in zip(marks[::2], marks[1::2], strict=True)
    ]
    assert over == [1, 1, -1], "where they coincide the mark is on top"
    figure = figures.alone_to_together(NAMES[:1], alone[:1], together[:1], ACCURACY, {})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["alone", "gains (1)"]


def test_up_to_thirty_clients_have_rows_and_more_are_points() -> None:
    values = np.linspace(0.2, 0.8, 31)
    rows, points = (
        figures.alone_to_together([str(k) for k in range(n)], values[:n], values[:n] + 0.1, LOSSES)
        for n in (30, 31)
    )
    assert len(rows.axes[0].get_yticklabels()) == 30 and len(points.axes[0].collections) == 1
    (marks,) = points.axes[0].collections
    assert marks.get_label() == "loses (31)" and to_hex(marks.get_facecolor()[0]) == LOSS
    assert np.asarray(marks.get_offsets()) == pytest.approx(np.column_stack([values, values + 0.1]))
    assert [text.get_text() for text in points.axes[0].get_legend().get_texts()] == ["loses (31)"]
    low, high = values[0], values[-1] + 0.1
    margin = 0.05 * (high - low)
    assert (
        points.axes[0].get_xlim()
        == points.axes[0].get_ylim()
        == pytest.approx((low - margin, high + margin))
    )
    diagonal = points.axes[0].lines[0]
    assert (diagonal.get_slope(), diagonal.get_xy1()) == (1, pytest.approx((low, low)))


def test_points_are_compared_where_both_exist_and_a_single_value_has_room() -> None:
    alone, together = np.array([0.5, np.nan, 0.5]), np.array([0.5, 0.4, np.nan])
    (axes,) = figures.alone_against_together(alone, together, ACCURACY).axes
    (marks,) = axes.collections
    assert marks.get_label() == "equal (1)" and axes.get_xlim() == axes.get_ylim() == (47.5, 52.5)


@pytest.mark.parametrize(("count", "image"), [(300, False), (301, True)])
def test_very_many_points_become_an_image_in_colours_for_both_grounds(
    count: int, image: bool
) -> None:
    alone, together = np.linspace(0.1, 0.5, count), np.full(count, 0.6)
    for figure in (
        figures.alone_against_together(alone, together, ACCURACY),
        figures.gains_by_method({"one": over_seeds(together - alone)}, ACCURACY),
    ):
        (marks,) = (group for group in figure.axes[0].collections if len(group.get_offsets()))
        assert bool(marks.get_rasterized()) == image
        assert to_hex(marks.get_facecolor()[0]) == (IN_IMAGES[GAIN] if image else GAIN)


def test_gains_lie_in_the_row_of_their_method() -> None:
    gains = {
        "one": over_seeds([-0.1, 0.0, 0.2]),
        "a method with a long name": over_seeds([0.1, 0.2]),
    }
    with rc_context(STYLE):
        (axes,) = figures.gains_by_method(gains, ACCURACY).axes
    lost, gained, equal, lost_too, gained_too, _ = (
        np.asarray(group.get_offsets()) for group in axes.collections
    )
    assert lost == pytest.approx(np.array([[-10, -0.3]])) and equal == pytest.approx(
        np.array([[0, 0]])
    )
    assert gained == pytest.approx(np.array([[20, 0.3]])) and not len(lost_too)
    assert gained_too == pytest.approx(np.array([[10, 0.7], [20, 1.3]]))
    assert [to_hex(axes.collections[k].get_facecolor()[0]) for k in (0, 1, 2)] == [
        LOSS,
        GAIN,
        ALONE,
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "one",
        "a method w…ng name",
    ] and list(axes.get_yticks()) == [0, 1]
    assert [text.xy for text in axes.texts if "lose" in text.get_text()] == [(1.02, 0), (1.02, 1)]
    means = [list(line.get_xdata()) for line in axes.lines]
    assert means == [pytest.approx([10 / 3] * 2), pytest.approx([15, 15]), [0, 0]] and list(
        axes.lines[1].get_ydata()
    ) == [0.62, 1.38]
    assert (
        not any(line.get_visible() for line in axes.yaxis.get_gridlines())
        and axes.xaxis.get_gridlines()[0].get_visible()
    )


def test_rows_of_clients_and_images_have_no_lines_behind_them() -> None:
    with rc_context(STYLE):
        (rows,) = figures.alone_to_together(NAMES, THREE, THREE, ACCURACY).axes
        image, scale = figures.heat_map(curves(), ACCURACY).axes
    assert (
        not rows.yaxis.get_gridlines()[0].get_visible()
        and rows.xaxis.get_gridlines()[0].get_visible()
    )
    assert (
        not image.yaxis.get_gridlines()[0].get_visible()
        and not image.xaxis.get_gridlines()[0].get_visible()
    )
    assert scale.get_ylabel() == "accuracy in %"


def test_arrows_show_which_way_the_average_went() -> None:
    for rounds, starts in (
        ((2, 3), [0]),
        ((1, 2, 3), [0, 1]),
        ((1, 2, 3, 4, 5, 6), [0, 3]),
        ((4,), []),
    ):
        found = curves(3, rounds)
        (axes,) = figures.plane({"one": [(0.5, 0.1)]}, ACCURACY, found).axes
        way = 100 * np.column_stack([found.values.std(0), found.mean])
        arrows = {
            int(np.abs(way - text.xyann).sum(1).argmin()): text
            for text in axes.texts
            if not text.get_text()
        }
        assert sorted(arrows) == starts and len(axes.lines) == (len(rounds) > 1)
        for start, arrow in arrows.items():
            assert (arrow.xyann, arrow.xy) == (
                pytest.approx(way[start]),
                pytest.approx(way[start + 1]),
            )
        named = {
            text.get_text(): text.xy
            for text in axes.texts
            if hasattr(text, "xy") and text.get_text()
        }
        assert named.keys() == {"one", *([f"round {rounds[0]}"] if starts else [])} and named[
            "one"
        ] == pytest.approx((10, 50))
        assert not starts or named[f"round {rounds[0]}"] == pytest.approx(way[0])


def test_up_to_ten_points_are_named_and_more_have_a_legend() -> None:
    for count in (10, 11):
        points = {f"m{k}": [(0.1 * k, 0.01 * k)] for k in range(count)}
        figure = figures.plane(points, ACCURACY)
        texts = [text.get_text() for text in figure.axes[0].texts]
        assert texts == ["↖ better", *(points if count == 10 else ())]
        legend = [text.get_text() for one in figure.legends for text in one.get_texts()]
        assert legend == ([] if count == 10 else list(points))
        assert figure.get_figheight() == pytest.approx(3.3 if count == 10 else 3.3 + 4 * 0.17)
        colours = [to_hex(marks.get_facecolor()[0]) for marks in figure.axes[0].collections]
        assert colours == [COLOURS[k % 8] for k in range(count)]
    diverged = figures.plane(
        {"one": [(0.5, 0.1)], "two": [(np.nan, np.nan)], "three": [(0.5, np.nan)]}, ACCURACY
    )
    assert [text.get_text() for text in diverged.axes[0].texts] == ["↖ better", "one"]


@pytest.mark.parametrize("metric", [ACCURACY, LOSSES])
def test_the_better_corner_of_the_plane_is_named_above_it_on_the_left(metric: object) -> None:
    (axes,) = figures.plane({"a": [(0.5, 0.1)], "b": [(0.7, 0.3)]}, metric).axes  # type: ignore[arg-type]
    corner = axes.texts[0]
    assert corner.get_position() == (0.0, 1.01) and corner.get_transform() == axes.transAxes
    (left, right), scale = axes.get_xlim(), metric.scale  # type: ignore[attr-defined]
    assert left < 0.1 * scale - 0.1 * 0.2 * scale and right > 0.3 * scale + 0.1 * 0.2 * scale, (
        "room for the names"
    )


def test_a_diverged_client_is_at_the_bottom_of_the_heat_map_and_bright_is_better() -> None:
    values = np.array([[0.1, 0.2], [0.3, np.nan], [0.1, 0.9]])
    for metric, order, colours in (
        (ACCURACY, ["c2", "c0", "c1"], "viridis"),
        (LOSSES, ["c0", "c2", "c1"], "viridis_r"),
    ):
        axes = figures.heat_map(History(NAMES, [5, 7], values, values.mean(0)), metric).axes[0]
        assert [text.get_text() for text in axes.get_yticklabels()] == order
        assert axes.images[0].get_cmap().name == colours and axes.images[0].get_extent() == [
            4.5,
            7.5,
            2.5,
            -0.5,
        ]
    assert len(figures.heat_map(curves(30), ACCURACY).axes[0].get_yticklabels()) == 30
    assert figures.heat_map(curves(31), ACCURACY).axes[0].get_ylabel() == "31 clients, sorted"


@pytest.mark.parametrize("clients", [12, 13])
def test_up_to_twelve_clients_are_stacked_with_a_legend_in_their_order_from_the_top(
    clients: int,
) -> None:
    figure = figures.weights(curves(clients))
    assert len(figure.axes[0].images) == (clients > 12)
    if clients == 12:
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [
            f"c{k}" for k in reversed(range(12))
        ]
        assert legend.get_title().get_text() == "client"
        colours = [to_hex(area.get_facecolor()[0]) for area in figure.axes[0].collections]
        assert colours[:8] == list(COLOURS) and len(set(colours)) == 12
        assert [to_hex(handle.get_facecolor()) for handle in legend.get_patches()] == colours[::-1]
    else:
        assert (
            figure.axes[1].get_ylabel() == "weight in %"
            and figure.axes[0].images[0].get_cmap().name == "cividis"
        )


def test_single_lines_differ_in_colour_stroke_and_mark() -> None:
    assert apart(1, 1) == {
        "color": COLOURS[1],
        "linestyle": "--",
        "marker": "s",
        "markersize": 4,
        "markevery": None,
    }
    for place, points, every in (
        (0, 2, (0, 1)),
        (3, 3, (0, 1)),
        (3, 12, (1, 2)),
        (5, 18, (2, 3)),
        (4, 17, (0, 2)),
    ):
        assert apart(place, points)["markevery"] == every
    ninth = apart(9, 5)
    assert (ninth["color"], ninth["linestyle"], ninth["marker"]) == (
        COLOURS[1],
        LINES[0],
        MARKERS[2],
    ), "in the second turn others than in the first"
    assert len({(look["color"], look["marker"]) for look in (apart(k, 5) for k in range(64))}) == 64


def test_a_sweep_and_contributions_are_drawn_in_the_unit_of_their_axis() -> None:
    lines = {"fedavg": [(10, 0.5, 0.4, 0.6), (20, 0.25, 0.2, 0.3)]}
    drawn = figures.sweep(lines, "data.clients", "accuracy in %", 100.0).axes[0]
    assert np.asarray(drawn.lines[0].get_ydata()).tolist() == [50.0, 25.0]
    assert np.asarray(drawn.lines[0].get_xdata()).tolist() == [10.0, 20.0]
    alone, values = np.array([0.5, 0.75]), np.array([1.0, 2.0])
    points = figures.contributions(["a", "b"], alone, values, "reputation", find("accuracy"))
    offsets = points.axes[0].collections[0].get_offsets()
    assert np.asarray(offsets).tolist() == [[50.0, 1.0], [75.0, 2.0]]
