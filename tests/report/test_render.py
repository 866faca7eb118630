"""Numbers and scripts in the text of a page, without drawing anything."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from typing import Any

import pytest
from jinja2 import UndefinedError

from equipoise.metrics.registry import find
from equipoise.report.cards import Card
from equipoise.report.render import Live, render
from equipoise.report.tracks import scale_of


def page(cards: list[Card], live: Live | None = None, **more: Any) -> str:
    accuracy = find("accuracy")
    lists: dict[str, Any] = dict.fromkeys(
        (
            "remarks",
            "tiles",
            "tables",
            "metrics",
            "pictures",
            "more",
            "notes",
            "metadata",
            "configuration",
            "environment",
        ),
        (),
    )
    content = {
        "title": "a & b",
        "headline": "",
        "cards": cards,
        "scale": scale_of(cards, accuracy),
        "weighted": True,
        "total_rounds": 7,
        "unit": accuracy.title,
    }
    return " ".join(
        render("page.html", live=live, metric=accuracy, **lists, **content, **more).split()
    )


def test_numbers_are_rounded_to_read_and_exact_to_sort() -> None:
    found = page(
        [
            Card("x", 12, 1 / 3, 0.25, 1 / 12, 0.05, 0.1, 0.5, 6, 1),
            Card("y", None, math.nan, 0.5, None),
        ]
    )
    for text in (
        f'data-label="together" data-value="{1 / 3!r}">33.3<',
        'data-label="alone" data-value="0.25">25.0<',
        f'data-label="gain" data-value="{1 / 12!r}"',
        "<b>+8.3</b>",
        "from +5.0 to +10.0",
        'data-value="0.5">50.0 %<',
        "6 of 7",
        'data-label="samples" data-value="12">12<',
        "a &amp; b",
        'data-label="together" data-value="">–<',
        'data-label="samples" data-value="">–<',
        'data-label="gain" data-value=""',
    ):
        assert text in found, text
    assert 'data-shown="50"' in found


def test_a_page_that_is_watched_has_a_script_more_and_says_how_far_the_run_is() -> None:
    still, live = (
        page([Card("x", 1, 0.5)]),
        page([Card("x", 1, 0.5)], Live("v7", "going on", 2, 5, ("client <z>",), "../", "going")),
    )
    assert (
        "Asks now and then" not in still and 'id="live"' not in still and "connect-src" not in still
    )
    assert (
        "Asks now and then" in live
        and 'class="live going" data-version="v7"' in live
        and 'max="5" value="2" aria-label' in live
    )
    assert live.index("Asks now and then") < live.index("Without this script a page"), (
        "it looks at the page before the other changes it"
    )
    assert "client &lt;z&gt;" in live and '<a href="../">all runs</a>' in live
    over = page([Card("x", 1, 0.5)], Live("v", "over"))
    assert (
        'class="live finished"' in over
        and 'max="1" value="0" hidden' in over
        and "all runs" not in over
        and 'clients that failed" hidden' in over
    )


def test_what_a_template_needs_must_be_given() -> None:
    with pytest.raises(UndefinedError):
        render("gallery.html", title="x")


@pytest.mark.parametrize("live", [None, Live("v", "over")])
def test_only_the_style_and_the_scripts_of_the_page_itself_are_permitted(live: Live | None) -> None:
    text = render("waiting.html", live=live, title="x", headline="", remarks=[])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "unsafe" not in policy[1] and "default-src 'none'" in policy[1]
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert ("connect-src 'self'" in policy[1]) == (live is not None)
    assert " style=" not in text and not re.search(r"\son[a-z]+=", text)
