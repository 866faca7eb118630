"""How the page and its figures look: dark and light, wide and narrow, on paper, and where curves
coincide.
"""

from __future__ import annotations

import base64
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from equipoise.metrics.registry import find
from equipoise.report import drawing, figures, report
from equipoise.report.drawing import STYLE, THEME
from equipoise.report.embedding import embedded
from equipoise.runs import Run
from equipoise.runs.curves import History
from tests.helpers.browser import Browser
from tests.helpers.stores import made_up_run

ACCURACY = find("accuracy")
# WCAG's contrast of every visible text with what is painted behind it; large text may have 3, all
# else needs 4.5.
CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const lightness = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || ["SCRIPT", "STYLE"].includes(node.tagName) || !node.getClientRects().length) continue;
    const [one, other] = [lightness(rgb(getComputedStyle(node).color)), lightness(behind(node))].sort((a, b) => b - a);
    found.push([(one + 0.05) / (other + 0.05), walk.currentNode.textContent.trim().slice(0, 40)]);
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("looks")
    made_up_run(folder / "standalone", "standalone", 10, level=0.55)
    runs = [made_up_run(folder / method, method, 10) for method in ("fedavg", "fedprox", "feddyn")]
    alone = made_up_run(folder / "elsewhere" / "run", clients=10)
    return {
        "run": report(runs[:1], folder / "run.html")[0],
        "comparison": report([folder / "standalone", *runs], folder / "comparison.html")[0],
        "without reference": report([alone], folder / "alone.html")[0],
    }


def prefer(browser: Browser, scheme: str, medium: str = "screen") -> None:
    browser.call(
        "Emulation.setEmulatedMedia",
        media=medium,
        features=[{"name": "prefers-color-scheme", "value": scheme}],
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["run", "comparison"])
@pytest.mark.thorough
def test_every_text_can_be_read_in_light_and_dark(
    browser: Browser, pages: dict[str, Path], page: str, scheme: str
) -> None:
    prefer(browser, scheme)
    for width in (1280, 390):
        browser.open(pages[page], width)
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        found = browser.run(CONTRAST)
        assert len(found) > 80 and [text for contrast, text in found if contrast < 4.5] == []
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 150) == (scheme == "dark")


def ground(browser: Browser, name: str) -> tuple[int, ...]:
    """The colour in a corner of a figure, as it is on the screen."""
    place = browser.run(
        f"(() => {{ const box = document.querySelector('{name}').getBoundingClientRect(); return "
        f"[box.x, box.y + scrollY] }})()"
    )
    data = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
    return (
        Image.open(io.BytesIO(base64.b64decode(data)))
        .convert("RGB")
        .getpixel((int(place[0]) + 3, int(place[1]) + 3))
    )


@pytest.mark.thorough
def test_figures_follow_the_screen_and_paper_is_light(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for scheme, medium, dark in (("light", "screen", False), ("dark", "screen", True)):
        prefer(browser, scheme, medium)
        browser.open(pages["run"])
        assert (max(ground(browser, "#figure-curves .chart")) < 60) == dark
    prefer(browser, "dark", "print")
    assert (
        browser.run("getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()")
        == "#fff"
    )
    prefer(browser, "light")


def test_every_colour_of_a_figure_has_a_twin_for_dark_screens_that_stands_out() -> None:
    def lightness(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        high, low = sorted((lightness(one), lightness(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for light, dark in THEME.items():
        if light not in (drawing.PAPER, drawing.GRID):
            assert contrast(dark, THEME[drawing.PAPER]) >= 4.5
    assert len(set(THEME.values())) == len(THEME) and len(drawing.COLOURS) == 8


def test_colours_are_exchanged_in_markup_and_not_in_names() -> None:
    name = 'style="fill: #0072b2" x'  # a client may be called like this

    def draw() -> Figure:
        figure, axes = drawing.new()
        axes.plot([0, 1], [0, 1], color="#0072b2")
        axes.set_title(name)
        return figure

    svg = str(embedded(draw, "x"))
    assert 'stroke="var(--c0072b2)"' in svg and name.replace('"', "") in svg.replace(
        "&quot;", '"'
    ).replace('"', "")
    markup = re.sub(r"<text.*?</text>", "", svg, flags=re.S)
    assert not re.findall(r"#[0-9a-f]{6}\b", markup), "no colour stays as it is in the dark"


def test_names_of_points_do_not_cover_each_other_and_stay_inside() -> None:
    figure, axes = drawing.new()
    axes.set(xlim=(0, 10), ylim=(0, 10))
    points = [(f"method number {k}", x, 5.0) for k, x in enumerate((1.0, 2.0, 9.0))]
    drawing.name_points(axes, points)
    FigureCanvasAgg(figure).draw()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the line to its point
    assert [text.get_text() for text in axes.texts] == [drawing.short(name) for name, *_ in points]
    assert not any(
        one.padded(-2).overlaps(other.padded(-2))
        for place, one in enumerate(boxes)
        for other in boxes[:place]
    )
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)


def same_curves(count: int, rounds: int = 12) -> dict[str, list[History]]:
    values = np.linspace(0.2, 0.8, rounds)[None].repeat(4, 0)
    return {
        f"method {k}": [History(list("abcd"), list(range(1, rounds + 1)), values, values.mean(0))]
        for k in range(count)
    }


def test_curves_that_coincide_stay_visible_and_named() -> None:
    with rc_context(STYLE):
        figure = figures.learning_by_method(same_curves(5), ACCURACY)
        FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    looks = {
        (
            to_hex(line.get_color()),
            str(line.get_linestyle()) + str(line._dash_pattern),
            line.get_marker(),
        )
        for line in axes.lines
    }
    assert len(looks) == 5
    widths = [line.get_linewidth() for line in axes.lines]
    assert widths == sorted(widths, reverse=True) and widths[0] > 2 * widths[-1], (
        "the first shows at the rims of the last"
    )
    marked = [line.get_markevery()[0] for line in axes.lines]
    assert len(set(marked)) > 1, "marks sit at different rounds"
    # without the line to the curve, which an annotation counts as its own
    extents = [Text.get_window_extent(text) for text in axes.texts]
    boxes = sorted((box.y0, box.y1) for box in extents)
    assert {text.get_text() for text in axes.texts} == {f"method {k}" for k in range(5)}
    assert all(below[1] <= above[0] + 1 for below, above in itertools.pairwise(boxes)), (
        "no name covers another"
    )
    frame = figure.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in extents)


def test_clients_are_named_at_their_curves_and_many_by_their_ends() -> None:
    def texts(clients: int) -> list[str]:
        values = np.random.default_rng(1).random((clients, 5))
        curves = History([f"c{k}" for k in range(clients)], [1, 2, 3, 4, 5], values, values.mean(0))
        with rc_context(STYLE):
            figure = figures.learning(curves, None, ACCURACY)
        last = values[:, -1]
        expected = [f"lowest: c{last.argmin()}", f"highest: c{last.argmax()}"]
        assert (
            clients <= figures.SINGLE_LINES
            or [text.get_text() for text in figure.axes[0].texts] == expected
        )
        return [text.get_text() for text in figure.axes[0].texts]

    assert (
        texts(1) == ["c0"]
        and set(texts(20)) == {f"c{k}" for k in range(20)}
        and len(texts(21)) == 2
    )


@pytest.mark.parametrize(
    ("metric", "corner", "axis"),
    [("accuracy", "↖ better", "→ better"), ("rmse", "better ↙", "← better")],
)
def test_the_figure_of_evenness_says_which_way_is_better(
    metric: str, corner: str, axis: str
) -> None:
    with rc_context(STYLE):
        axes = figures.plane({"a": [(0.7, 0.1)], "b": [(0.7, 0.1)]}, find(metric)).axes[0]
    assert corner in [text.get_text() for text in axes.texts] and axes.get_ylabel().endswith(axis)
    assert axes.get_xlabel().startswith("more even ←")
    low, high = axes.get_xlim()
    assert low < high, "left is less spread"
    first, second = (marks.get_sizes()[0] for marks in axes.collections)
    assert first > 1.2 * second, "of two in one place the first shows at the rim"
    assert {"a", "b"} <= {text.get_text() for text in axes.texts}


def test_the_line_of_a_client_goes_from_alone_to_together(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["run"])
    folder = pages["run"].parent
    alone, together = Run(folder / "standalone").final(), Run(folder / "fedavg").final()
    middle = "(one => one.getBoundingClientRect().x + one.getBoundingClientRect().width / 2)"
    found = browser.run(
        f"""[...document.querySelectorAll("table.cards tbody tr")].map(row => [row.dataset.client,
            {middle}(row.querySelector(".ring")), {middle}(row.querySelector(".dot")),
            row.querySelector(".whisker").getBoundingClientRect().x, row.querySelector(".whisker").getBoundingClientRect().right])"""
    )
    assert len(found) == 10
    values = np.array(
        [value for client, *_ in found for value in (alone[client], together[client])]
    )
    places = np.array([place for _, ring, dot, _, _ in found for place in (ring, dot)])
    slope, start = np.polyfit(values, places, 1)
    assert slope > 0 and np.abs(slope * values + start - places).max() < 1.0, (
        "one scale for all, to a pixel"
    )
    assert all(left < dot < right for _, _, dot, left, right in found)
    gains = [together[client] - alone[client] for client, *_ in found]
    assert gains == sorted(gains)


@pytest.mark.parametrize("page", ["run", "comparison", "without reference"])
def test_figures_leave_no_holes(browser: Browser, pages: dict[str, Path], page: str) -> None:
    for width in (1280, 390):
        browser.open(pages[page], width)
        boxes = browser.run(
            """[...document.querySelectorAll("section .figures > figure")].map(one => one.getBoundingClientRect()).map(b => [b.top, b.bottom, b.left, b.right])"""
        )
        frame = browser.run(
            "(b => [b.left, b.right])(document.querySelector('section "
            ".figures').getBoundingClientRect())"
        )
        rows: dict[int, list[list[float]]] = {}
        for box in boxes:
            rows.setdefault(round(box[0]), []).append(box)
        for row in rows.values():
            assert abs(row[0][2] - frame[0]) < 1 and abs(row[-1][3] - frame[1]) < 1, (
                "a row fills the width"
            )
            assert len({round(box[1]) for box in row}) == 1, "and its figures end together"


def test_a_table_that_scrolls_says_so_until_its_end(
    browser: Browser, pages: dict[str, Path]
) -> None:
    cues = """[...document.querySelectorAll(".wide")].filter(one => one.clientWidth).map(one =>
        [one.scrollWidth > one.clientWidth + 2, !one.previousElementSibling.hidden && one.previousElementSibling.className])"""
    for width in (390, 1280):
        browser.open(pages["comparison"], width)
        browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        found = browser.run(cues)
        assert (
            found
            and all(scrolls == (cue == "cue") for scrolls, cue in found)
            and (width > 390 or found[0][0])
        )
    browser.open(pages["comparison"], 390)
    browser.run("(one => { one.scrollLeft = one.scrollWidth })(document.querySelector('.wide'))")
    browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")
    assert browser.run("document.querySelector('.wide').previousElementSibling.hidden"), (
        "at the end there is no more"
    )
