"""The pictures of an audit of findings that are made up: what is drawn, from how many clients on it
is drawn otherwise, and its text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator

from equipoise.auditing import pictures
from equipoise.report.drawing import COLOURS, IN_IMAGES
from tests.helpers.audits import SAID, findings, row


def texts(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


def test_the_words_name_the_farthest_client_and_the_sizes() -> None:
    rows = [
        row("near", 5, 0.25, label_distance=0.3),
        row("far", 1200, 0.5, label_distance=0.125),
        row("unknown", 700, None),
    ]
    found = pictures.pictures(findings(rows))
    assert [title for title, _, _ in found.values()] == [
        "Labels by client",
        "Sizes",
        "Map of the clients",
        "Divergence against size",
    ]
    assert "The farthest from all data is near: 30 % of its samples" in found["labels"][1]
    assert found["sizes"][1] == "Training samples by client, from 5 to 1,200."
    assert found["kl"][1].endswith("The farthest is far with 0.50 nats.")
    assert pictures.pictures(findings([row(kl=None)]))["kl"][1].endswith(
        "No client has enough samples."
    )


def test_a_report_shows_the_verdict_with_the_first_picture() -> None:
    found = findings(3)
    shown, plain = pictures.shown(found), pictures.pictures(found)
    assert list(shown) == ["audit-labels", "audit-sizes", "audit-map", "audit-kl"]
    assert (
        shown["audit-labels"].text == f"{SAID} {plain['labels'][1]}"
        and shown["audit-sizes"].text == plain["sizes"][1]
    )
    for name, (title, _, draw) in plain.items():
        picture = shown[f"audit-{name}"]
        assert (
            picture.title == title
            and picture.draw.func is draw.func
            and picture.draw.args == (found,)
        )  # type: ignore[attr-defined]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds as for few clients: they are quicker to draw."""
    assert (pictures.NAMED, pictures.LABELLED) == (30, 50)
    monkeypatch.setattr(pictures, "NAMED", 5)
    monkeypatch.setattr(pictures, "LABELLED", 4)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the names that points would get, since drawing them takes long."""
    found: list[Any] = []
    monkeypatch.setattr(pictures, "label_points", lambda *words: found.append(words))
    return found


@pytest.mark.parametrize(
    ("clients", "classes", "bubbles", "high"),
    [
        (2, 3, True, 2.4),
        (5, 5, True, 2.4),
        (6, 3, False, 2.4),
        (3, 10, False, 3.1),
        (2, 31, False, 4.8),
    ],
)
def test_labels_are_bubbles_of_few_clients_and_classes(
    clients: int, classes: int, bubbles: bool, high: float, few: None
) -> None:
    figure = pictures.labels(findings(clients, classes=classes))
    axes = figure.axes[0]
    assert figure.get_size_inches() == pytest.approx((4.6 if bubbles else 6.2, high))
    assert (len(axes.collections), len(axes.images), len(figure.axes)) == (
        (1, 0, 1) if bubbles else (0, 1, 2)
    )
    if clients <= 5:
        assert axes.get_xlabel() == "client" and texts(axes.get_xticklabels()) == [
            f"c{k}" for k in range(clients)
        ]
        assert axes.get_xticks().tolist() == list(range(clients))
    else:
        assert axes.get_xlabel() == "6 clients, by their most frequent label" and "c0" not in texts(
            axes.get_xticklabels()
        )
        assert all(mark == int(mark) for mark in axes.get_xticks())
    named = [f"class {k}" for k in range(classes)]
    assert (texts(axes.get_yticklabels()) == named) == (
        classes <= 5
    ) and axes.get_ylabel() == "label"
    if bubbles:
        assert axes.get_xlim() == pytest.approx(
            (-0.6, clients - 0.4)
        ) and axes.get_ylim() == pytest.approx((-0.7, classes - 0.3))
    else:
        assert not any(
            line.get_visible() for line in (*axes.get_xgridlines(), *axes.get_ygridlines())
        ), "no grid over an image"
        assert figure.axes[1].get_ylabel() == "% of the client's samples"


@pytest.mark.parametrize(
    ("clients", "classes", "wide", "diameter"),
    [(2, 2, 4.6, 26.0), (20, 10, 6.4, 0.23 * 64.8), (20, 3, 6.4, 5 / 20 * 64.8)],
)
def test_the_largest_bubble_takes_nine_tenths_of_its_cell_and_no_more_than_26_points(
    clients: int, classes: int, wide: float, diameter: float
) -> None:
    figure = pictures.labels(findings(clients, classes=classes))
    assert max(figure.axes[0].collections[0].get_sizes()) == pytest.approx(
        diameter**2
    ) and figure.get_figwidth() == pytest.approx(wide)


def test_bubbles_and_bars_have_the_first_colour_and_the_middle_the_second(asked: list[Any]) -> None:
    found = findings(2)
    bubbles, bars = (
        pictures.labels(found).axes[0].collections[0],
        pictures.by_size(found).axes[0].patches,
    )
    middle, line = (
        pictures.chart(found).axes[0].collections[1],
        pictures.kl_against_size(found).axes[0].lines[0],
    )
    assert bubbles.get_facecolor()[0][:3] == pytest.approx(to_rgba(COLOURS[0])[:3]) and bars[
        0
    ].get_facecolor() == to_rgba(COLOURS[0])
    assert middle.get_edgecolor()[0][:3] == pytest.approx(to_rgba(COLOURS[1])[:3]) and to_rgba(
        line.get_color()
    ) == to_rgba(COLOURS[1])


def test_in_an_image_clients_are_ordered_by_their_most_frequent_label_and_then_by_its_share(
    few: None,
) -> None:
    counts = np.zeros((4, 6), int)
    counts[:, :3] = [[0, 9, 1], [6, 4, 0], [0, 0, 0], [0, 10, 0]]
    axes = pictures.labels(findings(4, counts)).axes[0]
    assert texts(axes.get_xticklabels()) == ["c1", "c2", "c3", "c0"], (
        "an empty one has no share of the first label"
    )
    assert np.asarray(axes.images[0].get_array())[:3].T.tolist() == [
        [60, 40, 0],
        [0, 0, 0],
        [0, 100, 0],
        [0, 90, 10],
    ]


@pytest.mark.parametrize(("clients", "wide"), [(3, 4.6), (10, 4.6), (11, 4.6), (40, 6.4)])
def test_sizes_are_bars_of_few_clients(
    clients: int, wide: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "NAMED", 20 if clients == 40 else 5)  # bars are of twice as many
    bars = clients != 11
    figure = pictures.by_size(findings(clients))
    (axes,) = figure.axes
    assert len(axes.patches) == (clients if bars else 0) and len(axes.collections) == (not bars)
    assert axes.get_ylabel() == "training samples" and axes.get_ylim()[0] == 0
    assert not any(line.get_visible() for line in axes.get_xgridlines())
    if bars:
        assert figure.get_figwidth() == pytest.approx(wide) and axes.get_xlim() == pytest.approx(
            (-0.6, clients - 0.4)
        )
        assert (
            texts(axes.get_xticklabels()) == [f"c{k}" for k in reversed(range(clients))]
            and axes.get_xlabel() == "client"
        )
    else:
        assert axes.get_xlabel() == "11 clients, from the largest to the smallest"


@pytest.mark.parametrize(("clients", "least", "largest"), [(4, 20, 180), (5, 4, 44)])
def test_the_map_names_few_clients_and_areas_grow_with_samples(
    clients: int, least: float, largest: float, few: None, asked: list[Any]
) -> None:
    angles = np.linspace(0, 6, clients)
    rows = [
        row(f"c{k}", 200 if k else 0, place=(np.cos(a), np.sin(a))) for k, a in enumerate(angles)
    ]
    axes = pictures.chart(findings(rows)).axes[0]
    sizes = axes.collections[0].get_sizes()
    assert sizes[0] == pytest.approx(least) and sizes[1:] == pytest.approx(largest)
    assert len(asked) == (clients == 4)
    if asked:
        _, places, names, _, radii, free, around = asked[0]
        assert places.tolist() == [list(one.place) for one in rows] and names == [
            one.client for one in rows
        ]
        assert (
            radii == pytest.approx(np.sqrt(sizes) / 2) and free.tolist() == [[0, 0]] and around == 5
        )
    assert (
        axes.margins() == (0.12, 0.12)
        and "direction 1" in axes.get_xlabel()
        and axes.get_ylabel() == "direction 2"
    )


def test_the_farthest_clients_of_a_map_are_named_first(asked: list[Any]) -> None:
    pictures.chart(
        findings(
            [
                row("near", place=(0.1, 0.0)),
                row("far", place=(-1.0, 1.0)),
                row("mid", place=(0.5, -0.5)),
            ]
        )
    )
    assert asked[0][3].tolist() == [1, 2, 0]
    empty = pictures.chart(findings([row(samples=0, place=(0.0, 0.0))])).axes[0]
    assert empty.collections[0].get_sizes() == pytest.approx([20])


@pytest.mark.parametrize(
    ("largest", "scale", "marks"),
    [
        (500, "linear", None),
        (501, "log", [1, 2, 5]),
        (19_999, "log", [1, 2, 5]),
        (20_000, "log", [1]),
    ],
)
def test_sizes_that_lie_far_apart_have_a_logarithmic_axis(
    largest: int, scale: str, marks: list[int] | None, asked: list[Any]
) -> None:
    axes = pictures.kl_against_size(
        findings([row("a", 100), row("b", largest), row("c", 9, None)])
    ).axes[0]
    assert axes.get_xscale() == scale and len(axes.collections[0].get_offsets()) == 2
    if marks is not None:
        locator = axes.xaxis.get_major_locator()
        assert isinstance(locator, LogLocator) and list(locator._subs) == marks
        assert (
            axes.xaxis.get_major_formatter()(20_000.0, 0) == "20,000"
            and len(axes.xaxis.get_minor_locator()()) == 0
        )
    assert axes.get_ylim()[0] == 0 and axes.figure.get_figheight() == 3.5
    (legend,) = axes.figure.legends
    assert texts(legend.get_texts()) == ["clients", "by chance alone"]


def test_the_line_of_chance_begins_where_something_can_be_told(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "chance", lambda n, m: m / n)
    sizes, _ = (
        pictures.kl_against_size(findings([row("a", 22), row("b", 88)], dimensions=3))
        .axes[0]
        .lines[0]
        .get_data()
    )
    assert (
        (sizes[0], sizes[-1]) == (20, 96) and (np.diff(sizes) > 0).all() and 40 <= len(sizes) <= 60
    )
    sizes, _ = (
        pictures.kl_against_size(findings([row("a", 22), row("b", 88)], dimensions=30))
        .axes[0]
        .lines[0]
        .get_data()
    )
    assert (sizes[0], sizes[-1]) == (30, 96), "below as many samples as dimensions nothing is drawn"


@pytest.mark.parametrize(("clients", "area"), [(4, 22), (5, 8)])
def test_points_of_many_clients_are_small_and_without_names(
    clients: int, area: float, few: None, asked: list[Any]
) -> None:
    axes = pictures.kl_against_size(
        findings(
            [
                *(
                    row(f"c{k}", 100 + k, kl)
                    for k, kl in enumerate((0.5, 0.25, 2.0, 1.0, 3.0)[:clients])
                ),
                row("u", 8, None),
            ]
        )
    ).axes[0]
    assert axes.collections[0].get_sizes().tolist() == [area] and len(asked) == (clients == 4)
    if asked:
        _, points, names, order, radii, free, around = asked[0]
        assert points.tolist() == [[100, 0.5], [101, 0.25], [102, 2.0], [103, 1.0]] and names == [
            "c0",
            "c1",
            "c2",
            "c3",
        ]
        assert order.tolist() == [2, 3, 0, 1] and radii.tolist() == [3.0] * 4 and around == 1.5, (
            "the farthest first"
        )
        x, y = axes.lines[0].get_data()
        assert (free[0, 0], free[-1, 0]) == pytest.approx((x[0], x[-1])) and free[
            :, 1
        ] == pytest.approx(np.interp(free[:, 0], x, y))


def test_where_nothing_can_be_told_the_picture_says_so() -> None:
    axes = pictures.kl_against_size(findings([row(kl=None)])).axes[0]
    assert texts(axes.texts) == ["no client has enough samples"] and not axes.collections
    assert (
        axes.texts[0].get_position() == (0.5, 0.5)
        and axes.texts[0].get_transform() == axes.transAxes
    )
    assert axes.get_xlabel() == "training samples" and axes.get_ylabel() == "KL to all data in nats"


@pytest.mark.parametrize(("clients", "image"), [(300, False), (301, True)])
def test_very_many_points_are_an_image_in_a_colour_for_light_and_dark(
    clients: int, image: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings([row(f"c{k}") for k in range(clients)])
    monkeypatch.setattr(pictures, "chance", lambda n, m: 0.5)
    for figure in (pictures.chart(found), pictures.kl_against_size(found)):
        points = figure.axes[0].collections[0]
        assert bool(points.get_rasterized()) == image
        assert points.get_facecolor()[0][:3] == pytest.approx(
            to_rgba(IN_IMAGES[COLOURS[0]] if image else COLOURS[0])[:3]
        )


@pytest.mark.parametrize(
    ("names", "turned"), [(["ab"] * 16, 0), ([*["ab"] * 15, "abc"], 90), (["x"], 0)]
)
def test_names_on_an_axis_stand_upright_where_they_would_run_into_each_other(
    names: list[str], turned: int
) -> None:
    assert pictures.rotation_of(names) == turned


def test_long_names_are_cut() -> None:
    figure = pictures.by_size(findings([row("fourteen signs"), row("fifteen signs..")]))
    assert texts(figure.axes[0].get_xticklabels()) == ["fourteen signs", "fifteen signs…"]


def named(
    *points: tuple[float, float],
    radius: float = 5.0,
    free: tuple[float, float] = (9.0, 9.0),
    around: float = 1.0,
) -> list[Annotation]:
    """The text that `label_points` wrote at points in the unit square."""
    figure = Figure(figsize=(3, 3), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    names = [f"p{k}" for k in range(len(points))]
    pictures.label_points(
        axes,
        np.array(points),
        names,
        np.arange(len(points)),
        np.full(len(points), radius),
        np.array([free]),
        around,
    )
    return list(axes.texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "offset", "anchor"),
    [
        ((0.5, 0.5), (7, 0), ("left", "center")),
        ((0.97, 0.5), (-7, 0), ("right", "center")),
        ((0.001, 0.5), (7, 0), ("left", "center")),
    ],
)
def test_a_name_stands_right_of_its_point_or_left_where_the_picture_ends(
    at: tuple[float, float], offset: tuple[float, float], anchor: tuple[str, str]
) -> None:
    (text,) = named(at)
    assert text.get_text() == "p0" and text.xy == pytest.approx(at) and text.xyann == offset
    assert (text.get_ha(), text.get_va()) == anchor


def test_a_name_goes_above_or_below_where_both_sides_are_taken() -> None:
    """300 pixels for 216 points: a neighbour 20 points away leaves no room for a name between the
    two.
    """
    step = 20 / 216
    above = named((0.5, 0.5), (0.5 - step, 0.5), (0.5 + step, 0.5))[0]
    assert above.xyann == (0, 7) and (above.get_ha(), above.get_va()) == ("center", "bottom")
    below = named((0.5, 0.5), (0.5 - step, 0.5), (0.5 + step, 0.5), (0.5, 0.5 + 12 / 216))[0]
    assert below.xyann == (0, -7) and (below.get_ha(), below.get_va()) == ("center", "top")
    crowded = named(
        (0.5, 0.5),
        (0.5 - step, 0.5),
        (0.5 + step, 0.5),
        (0.5, 0.5 + 12 / 216),
        (0.5, 0.5 - 12 / 216),
    )
    assert "p0" not in texts(crowded) and len(crowded) == len(
        {text.get_text() for text in crowded}
    ), "what finds no room stays unnamed"


@pytest.mark.parametrize(("around", "side"), [(2.0, 7), (12.0, -7)])
def test_what_is_to_be_left_free_is_left_free(around: float, side: float) -> None:
    """The free place is 24 points to the right, beyond the name unless much is free around it."""
    (text,) = named((0.5, 0.5), free=(0.5 + 24 / 216, 0.5), around=around)
    assert text.xyann == (side, 0)
