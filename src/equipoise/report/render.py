"""From numbers and words to HTML: everything of a page in one text, and every name in it escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equipoise.comparison import formats
from equipoise.comparison.measures import in_unit_of

SHOWN_CLIENTS = 50  # rows of the client table that are shown at first; a button shows the rest


@dataclass(frozen=True)
class Live:
    """How far a run is, for a page that is watched while it goes on."""

    version: str  # of the page; a newer one is worth fetching
    words: str
    round: int = 0
    rounds: int = 0  # 0: nothing to count
    failed: Sequence[str] = ()
    up: str = ""  # the address of the gallery that a page belongs to
    status: str = "finished"


def render(template: str, *, live: Live | None = None, **content: Any) -> str:
    environment = Environment(
        loader=PackageLoader("equipoise.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "written": lambda value: formats.figure(value, in_unit_of(content["metric"])),
        "change": lambda value: formats.figure(value, in_unit_of(content["metric"]), signed=True),
        "exact": lambda value: (
            "" if value is None or (isinstance(value, float) and math.isnan(value)) else repr(value)
        ),
    }
    # the first looks at the page before the second changes it
    scripts = ["live.js", "page.js"] if live is not None else ["page.js"]
    style, *inlined = (
        Markup((Path(__file__).parent / "template" / name).read_text(encoding="utf-8"))
        for name in ("page.css", *scripts)
    )
    script = Markup("\n").join(inlined)
    return environment.get_template(template).render(
        style=style, script=script, shown=SHOWN_CLIENTS, live=live, **content
    )
