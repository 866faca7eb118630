"""Where names go in a figure, how long they may be, and what its file holds."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.report import drawing, embedding
from equipoise.report.drawing import name_ends, name_points

# The inside of a figure in points, as names are placed: 0.8 of its width and 0.72 of its height.
WIDE, HIGH = 72 * 0.8 * 4.6, 72 * 0.72 * 3.3
LEFT, LOW = 40.0, 90.0  # limits that do not begin at zero
RIGHT_OF, LEFT_OF = 7, pytest.approx(-7 - 4.4 * 2)  # of names of two signs


def in_points() -> Axes:
    """Axes whose data are counted in points."""
    _, axes = drawing.new()
    axes.set(xlim=(LEFT, LEFT + WIDE), ylim=(LOW, LOW + HIGH))
    return axes


def placed(*points: tuple[float, float]) -> list[tuple[float, float]]:
    """How far from its point each name stands."""
    axes = in_points()
    name_points(axes, [("ab", LEFT + x, LOW + y) for x, y in points])
    assert [text.xy for text in axes.texts] == [(LEFT + x, LOW + y) for x, y in points]
    assert [text.arrow_patch is not None for text in axes.texts] == [
        text.xyann[1] != 0 for text in axes.texts
    ], "a lifted name has a line"
    return [text.xyann for text in axes.texts]


@pytest.mark.parametrize(
    ("points", "first"),
    [
        ([(100, 80)], (RIGHT_OF, 0)),
        ([(WIDE - 15.9, 80)], (RIGHT_OF, 0)),
        ([(WIDE - 15.7, 80)], (LEFT_OF, 0)),  # it would stick out
        ([(100, HIGH - 5.1)], (RIGHT_OF, 0)),
        ([(100, HIGH - 4.9)], (RIGHT_OF, -10)),
        ([(100, 5.1)], (RIGHT_OF, 0)),
        ([(100, 4.9)], (RIGHT_OF, 10)),
        ([(100, 80), (119.7, 80)], (LEFT_OF, 0)),  # another point is in the way
        ([(100, 80), (119.9, 80)], (RIGHT_OF, 0)),
        ([(100, 80), (103.1, 80)], (LEFT_OF, 0)),
        ([(100, 80), (102.9, 80)], (RIGHT_OF, 0)),
        ([(100, 80), (110, 88.9)], (LEFT_OF, 0)),
        ([(100, 80), (110, 89.1)], (RIGHT_OF, 0)),
        ([(100, 80), (110, 71.1)], (LEFT_OF, 0)),
        ([(100, 80), (110, 70.9)], (RIGHT_OF, 0)),
        ([(15.9, 80), (27, 80)], (LEFT_OF, 0)),
        ([(15.7, 80), (27, 80)], (RIGHT_OF, 10)),  # left of it there is no room
        ([(100, 80), (110, 80), (90, 80)], (RIGHT_OF, 10)),
    ],
)
def test_a_name_stands_beside_its_point_where_it_is_free(
    points: list[tuple[float, float]], first: tuple[float, float]
) -> None:
    assert placed(*points)[0] == first


def test_a_name_gives_way_to_one_that_is_there_already() -> None:
    assert placed((100, 80), (100, 89)) == [(RIGHT_OF, 0), (LEFT_OF, 0)]
    assert placed((100, 80), (100, 91)) == [(RIGHT_OF, 0), (RIGHT_OF, 0)]


def test_names_of_points_in_one_place_are_put_around_it_the_nearest_first() -> None:
    wanted = [
        (side, lift) for lift in (0, 10, -10, 20, -20, 30, -30) for side in (RIGHT_OF, LEFT_OF)
    ]
    assert placed(*[(128.0, 64.0)] * 14) == wanted


@pytest.mark.parametrize(("count", "size"), [(2, 8.0), (12, 8.0), (13, 6.5)])
def test_names_of_ends_are_one_line_apart_and_small_where_they_are_many(
    count: int, size: float
) -> None:
    axes = in_points()
    name_ends(axes, [(f"n{k}", 3.0, LOW + 80.0, "#0072b2") for k in range(count)])
    heights = [text.xyann[1] for text in axes.texts]
    assert np.diff(heights) == pytest.approx(np.full(count - 1, HIGH * 1.2 * size / HIGH)), (
        "1.2 times the size of its letters"
    )
    assert heights[0] == pytest.approx(min(LOW + 80.0, LOW + HIGH - (count - 1) * 1.2 * size))
    assert {text.get_fontsize() for text in axes.texts} == {size} and {
        text.xyann[0] for text in axes.texts
    } == {1.045}
    assert {text.xy for text in axes.texts} == {(3.0, LOW + 80.0)}
    assert not any(text.get_annotation_clip() for text in axes.texts), (
        "outside the axes they are seen, too"
    )
    assert axes.get_ylim() == (LOW, LOW + HIGH) and not axes.get_autoscaley_on(), (
        "names were placed for these limits"
    )


def test_a_line_that_ends_in_nothing_has_no_name_and_limits_stay() -> None:
    _, axes = drawing.new()
    axes.plot([1, 2], [3.0, 4.0])
    before = axes.get_ylim()
    name_ends(axes, [("a", 2, float("nan"), "#0072b2")])
    assert not axes.texts
    name_ends(
        axes, [("a", 2, float("nan"), "#0072b2"), ("a name that is too long", 2, 4.0, "#0072b2")]
    )
    assert [text.get_text() for text in axes.texts] == ["a name tha…oo long"]
    axes.plot([1, 2], [30.0, 40.0])
    assert axes.get_ylim() == before


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([1.0, 4.0], [1.0, 4.0]),
        ([2.0, 1.5, 1.0], [3.0, 2.0, 1.0]),
        ([-3.0, 9.0], [0.0, 5.0]),
        ([0.0, 0.0, 0.5], [0.0, 1.0, 2.0]),
        ([4.5, 5.0], [4.0, 5.0]),
        ([], []),
    ],
)
def test_places_are_near_the_wanted_ones_in_their_order(
    wanted: list[float], places: list[float]
) -> None:
    assert drawing.spread(wanted, 1.0, 0.0, 5.0) == places


def test_names_of_up_to_eighteen_signs_are_whole() -> None:
    assert (
        drawing.short("x" * 18) == "x" * 18
        and drawing.short("abcdefghijk" + "12345678") == "abcdefghij…2345678"
    )
    assert (
        drawing.in_legend("_a") == " _a"
        and drawing.in_legend("a_") == "a_"
        and drawing.in_legend("y" * 19) == "y" * 10 + "…" + "y" * 7
    )


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_the_legend_below_has_room_for_its_rows(count: int, rows: int) -> None:
    figure, axes = drawing.new(2.0)
    axes.plot([0], [0], label="a line")
    drawing.legend_below(figure, count)
    assert (
        figure.get_figheight() == pytest.approx(3.3 + 0.17 * rows) and figure.get_figwidth() == 4.6
    )
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a line"]


def drawn(title: str = "$x_") -> Figure:
    figure, axes = drawing.new()
    axes.plot([0, 1], [0, 1], color="#0072b2")
    axes.set_title(title)
    axes.text(0, 0, "a", color="#123456")
    return figure


def test_a_figure_is_the_same_file_every_time_and_a_script_without_a_font_is_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    one, other = (drawing.encoded(drawn, "svg") for _ in range(2))
    assert one == other and one.startswith(b"<?xml")
    assert drawing.encoded(lambda: drawn("病院"), "png").startswith(b"\x89PNG") and not recwarn.list


def test_a_picture_in_a_page_uses_the_colours_of_the_page() -> None:
    svg = str(embedding.embedded(drawn, "a"))
    assert 'stroke="var(--c0072b2)"' in svg and "$x_" in svg, "texts stay texts"
    assert "#123456" in svg and "--c123456" not in svg, "an unknown colour stays"
    light, dark = re.findall(r":root\{([^}]*)\}", embedding.theme_rules())
    for colour, twin in drawing.THEME.items():
        assert f"--c{colour[1:]}:{colour}" in light.split(";")
        assert f"--c{colour[1:]}:{twin}" in dark.split(";")


def test_a_picture_in_a_page_has_no_inline_style_and_ids_of_its_own() -> None:
    first, second = (str(embedding.embedded(drawn, name)) for name in ("a", "b"))
    assert " style=" not in first and "<style" not in first and "<metadata" not in first
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (first, second)]
    assert ids[0] and not ids[0] & ids[1]
    for reference in re.findall(r"url\(#([^)]+)\)", first):
        assert reference in ids[0]


def test_a_picture_in_a_page_lists_its_values_where_they_are_drawn() -> None:
    def draw() -> Figure:
        figure, axes = drawing.new()
        (line,) = axes.plot([0, 1, 2], [0.0, np.nan, 2.0])
        figure.add_series("a <b>", "#0072b2", line)
        figure.add_spots(axes, [0, 1, 2], [0.0, np.nan, 2.0], ["none", "gone", "two"], "a <b>")
        return figure

    root = ElementTree.fromstring(str(embedding.embedded(draw, "x")))
    assert json.loads(root.get("data-names", "")) == [["a <b>", "var(--c0072b2)", "o"]]
    first, last = json.loads(root.get("data-spots", ""))
    assert (first[2:], last[2:]) == ([0, "none"], [0, "two"]), "a value that does not exist is out"
    assert first[0] < last[0] and first[1] > last[1], "the origin of a picture is above"
    (group,) = root.iterfind(".//*[@data-series='0']")
    path = group.find("{http://www.w3.org/2000/svg}path")
    assert path is not None
    start = [float(number) for number in path.get("d", "").split()[1:3]]
    assert start == pytest.approx(first[:2], abs=0.1)


@pytest.mark.parametrize("direction", ["x", "y"])
def test_an_axis_never_magnifies_a_small_range(direction: str) -> None:
    _, axes = drawing.new()
    axes.set(xlim=(80.0, 80.2), ylim=(80.2, 80.0))
    drawing.widen(axes, 5.0, direction)
    limits = axes.get_xlim() if direction == "x" else axes.get_ylim()
    assert abs(limits[1] - limits[0]) == pytest.approx(5.0)
    assert np.mean(limits) == pytest.approx(80.1)
    assert (limits[0] > limits[1]) == (direction == "y"), "an inverted axis stays inverted"
    drawing.widen(axes, 1.0, direction)
    after = axes.get_xlim() if direction == "x" else axes.get_ylim()
    assert after == limits, "a wide axis stays as it is"


def test_many_series_differ_in_colour_or_marker() -> None:
    marks = [tuple(drawing.mark_of(place).values()) for place in range(64)]
    assert len(set(marks)) == 64
