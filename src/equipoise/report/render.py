"""HTML pages: one text with everything in it, in which every name is escaped."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equipoise.comparison import formats
from equipoise.comparison.measures import in_unit_of
from equipoise.report.embedding import theme_rules

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

    environment.filters |= {"written": written, "change": change, "exact": _exact, "share": _share}
    is_live = live is not None
    return environment.get_template(template).render(
        style=Markup(_style()),
        script=Markup(_script(is_live)),
        policy=Markup(content_policy(is_live)),
        shown=SHOWN_CLIENTS,
        live=live,
        **content,
    )


@cache
def content_policy(live: bool) -> str:
    """Return the content security policy of a page.

    Only the style and the script of the page itself are permitted, by their digests, and no
    address but, in a live page, the one that it came from.

    Args:
        live: True for a page that is watched.
    """
    policy = (
        f"default-src 'none'; style-src '{_digest(_style())}'; "
        f"script-src '{_digest(_script(live))}'; img-src data:"
    )
    return f"{policy}; connect-src 'self'" if live else policy


@cache
def _style() -> str:
    return theme_rules() + _template("page.css")


@cache
def _script(live: bool) -> str:
    # The first script reads the page before the others change it.
    names = ["charts.js", "page.js"]
    if live:
        names = ["live.js", "gallery.js", *names]
    return "\n".join(map(_template, names))


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _exact(value: Any) -> str:
    """Return a number in full precision, for sorting; empty if there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(value)


def _share(value: float) -> str:
    """Return a position in per cent, as short as possible."""
    return f"{value:.1f}".removesuffix(".0")
