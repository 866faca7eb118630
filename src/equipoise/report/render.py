"""HTML pages: one text with everything in it, in which every name is escaped."""

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

SHOWN_CLIENTS = 50  # rows of the table of clients that are shown at first
TEMPLATES = Path(__file__).parent / "template"


@dataclass(frozen=True)
class Live:
    """The progress of a run, for a page that is watched.

    Attributes:
        version: Of the page; a browser fetches a newer one.
        words: The progress as a sentence.
        round: The last round.
        rounds: The number of rounds; 0 if there is no progress bar.
        failed: Sentences about clients that failed.
        up: The address of the gallery that the page belongs to.
        status: "running", "finished", "stopped" or "damaged".
    """

    version: str
    words: str
    round: int = 0
    rounds: int = 0
    failed: Sequence[str] = ()
    up: str = ""
    status: str = "finished"


def render(template: str, *, live: Live | None = None, **content: Any) -> str:
    """Return a page.

    Args:
        template: The name of the template.
        live: The progress, if the page is watched while the run is in progress.
        content: The variables of the template.
    """
    environment = Environment(
        loader=PackageLoader("equipoise.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def written(value: float | None) -> str:
        return formats.figure(value, in_unit_of(content["metric"]))

    def change(value: float | None) -> str:
        return formats.figure(value, in_unit_of(content["metric"]), signed=True)

    environment.filters |= {"written": written, "change": change, "exact": _exact}
    # The first script reads the page before the second one changes it.
    scripts = ["page.js"] if live is None else ["live.js", "page.js"]
    return environment.get_template(template).render(
        style=_inlined("page.css"),
        script=Markup("\n").join(map(_inlined, scripts)),
        shown=SHOWN_CLIENTS,
        live=live,
        **content,
    )


def _inlined(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def _exact(value: Any) -> str:
    """Return a number in full precision, for sorting; empty if there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(value)
