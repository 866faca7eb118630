"""Figures inside a page: SVG elements that follow its colours and whose values can be pointed at.

A figure is drawn by matplotlib, so that it is complete without JavaScript and the same on paper.
The SVG is put into the page itself, with two additions: the groups of a series are marked with its
number, and `data-spots` lists the values with their positions. A script of the page (`charts.js`)
uses both. A hundred lines of script are smaller than a plotting library and need no build step, and
there is one drawing of each figure instead of a second one for readers without JavaScript.

The content security policy of a page permits no inline style, so that declarations become
attributes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.figure import Figure

from equipoise.report import drawing
from equipoise.report.drawing import SERIES, STATIC_LEGEND, THEME, Chart

MOST_SPOTS = 1500  # values of a figure that can be pointed at; of more, every second or third
POINTS_PER_INCH = 72
SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT_SIZE = re.compile(r"([\d.]+)px")
_COLOUR = re.compile(r"#[0-9a-f]{6}")

ElementTree.register_namespace("", SVG[1:-1])
ElementTree.register_namespace("xlink", XLINK[1:-1])


def embedded(draw: Callable[[], Figure], name: str) -> Markup:
    """Return a figure as an SVG element of a page.

    Args:
        draw: Draws the figure.
        name: The name of the figure, unique in the page. The elements `title-NAME` and `text-NAME`
            of the page describe the figure.
    """
    figure = drawing.drawn(draw)
    root = ElementTree.fromstring(drawing.saved(figure, "svg"))
    _remove_styles(root)
    _rename_ids(root, name)
    for element in root.iter():
        _use_attributes(element)
    root.set("class", "chart")
    root.set("role", "img")
    root.set("aria-labelledby", f"title-{name}")
    root.set("aria-describedby", f"text-{name}")
    # The size follows from the page; the view box keeps the proportions.
    del root.attrib["width"], root.attrib["height"]
    if isinstance(figure, Chart):
        _add_values(root, figure)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def theme_rules() -> str:
    """Return the style rules that define the colours of figures, for light and dark screens."""
    light = ";".join(f"{_variable(colour)}:{colour}" for colour in THEME)
    dark = ";".join(f"{_variable(colour)}:{value}" for colour, value in THEME.items())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _variable(colour: str) -> str:
    return f"--c{colour[1:]}"


def _remove_styles(root: ElementTree.Element) -> None:
    """Remove metadata and style sheets, which the page's own style sheet replaces."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{SVG}metadata" or child.tag == f"{SVG}style":
                parent.remove(child)


def _rename_ids(root: ElementTree.Element, name: str) -> None:
    """Make the ids of a figure unique in the page, and remove those that nothing refers to."""
    referenced: set[str] = set()
    for element in root.iter():
        for value in element.attrib.values():
            referenced.update(_REFERENCE.findall(value))
        link = element.get(f"{XLINK}href", "")
        if link.startswith("#"):
            referenced.add(link[1:])
    for element in root.iter():
        identity = element.attrib.pop("id", "")
        if identity.startswith(SERIES):
            element.set("data-series", identity.removeprefix(SERIES))
        elif identity == STATIC_LEGEND:
            element.set("class", STATIC_LEGEND)
        elif identity in referenced:
            element.set("id", f"{name}-{identity}")
        for key, value in element.attrib.items():
            if key == f"{XLINK}href" and value.startswith("#"):
                element.set(key, f"#{name}-{value[1:]}")
            else:
                element.set(key, _REFERENCE.sub(rf"url(#{name}-\1)", value))


def _use_attributes(element: ElementTree.Element) -> None:
    """Write the declarations of a style as attributes, with colours that follow the page."""
    for declaration in element.attrib.pop("style", "").split(";"):
        key, colon, value = declaration.partition(":")
        key, value = key.strip(), value.strip()
        if not colon:
            continue
        if key == "font":
            _set_font(element, value)
        else:
            element.set(key, _COLOUR.sub(_themed, value))


def _set_font(element: ElementTree.Element, value: str) -> None:
    """Write size and weight of a font as attributes; the page chooses the family."""
    size = _FONT_SIZE.search(value)
    if size is not None:
        element.set("font-size", size[1])
    if "bold" in value or "700" in value:
        element.set("font-weight", "bold")


def _themed(colour: re.Match[str]) -> str:
    return f"var({_variable(colour[0])})" if colour[0] in THEME else colour[0]


def _add_values(root: ElementTree.Element, chart: Chart) -> None:
    """Add the names of the series, and the values with their positions in the picture."""
    if chart.series:
        names = []
        for name, colour in chart.series.items():
            names.append([name, _COLOUR.sub(_themed, colour), chart.markers[name]])
        root.set("data-names", json.dumps(names, ensure_ascii=False))
    numbers = {name: number for number, name in enumerate(chart.series)}
    step = max(1, math.ceil(len(chart.spots) / MOST_SPOTS))
    factor = POINTS_PER_INCH / chart.dpi
    height = POINTS_PER_INCH * chart.get_figheight()
    spots = []
    for spot in chart.spots[::step]:
        across, up = factor * spot.axes.transData.transform((spot.x, spot.y))
        position = [round(float(across), 1), round(float(height - up), 1)]
        spots.append([*position, numbers.get(spot.series, -1), spot.text])
    if spots:
        root.set("data-spots", json.dumps(spots, ensure_ascii=False))
