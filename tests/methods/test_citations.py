"""Every method's file begins with its full citation: authors, title, venue, year, address."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from equipoise import methods

UNCITED = {  # why there is no citation, as the file itself says it
    "standalone": "No paper: it is the baseline that shows which clients gain by joining.",
    "poise": "A method of this project, 2026.",
    "fedequilibria": "Manuscript under double-blind review; undated, its latest references are from 2025. No address is known.",
}
CITED = re.compile(
    r"(?P<name>[^.]+ \((?P<first>[^,]+), (?P<cited>\d{4})\))\.\n\n(?P<authors>\w.+?\w{2,})\. "
    r"(?P<title>[^.]+)\. (?P<venue>[A-Z].*?)(?:, | )?(?P<year>(?:19|20)\d\d)(?P<pages>, pages "
    r"[\d-]+|, PMLR, pages [\d-]+)?\. (?P<addresses>https://\S+(?:, https://\S+)*)"
)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_cited_in_full(name: str) -> None:
    said = inspect.cleandoc(importlib.import_module(f"equipoise.methods.{name}").__doc__ or "")
    # what follows are remarks
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in said.split("\n\n")[:2])
    if name in UNCITED:
        assert UNCITED[name] in text
        return
    found = CITED.fullmatch(text)
    assert found is not None, text
    kind = methods.find(name)
    assert int(found["year"]) == int(found["cited"]) == kind.year
    assert found["first"].split()[0] in found["authors"]
    assert (
        len(found["title"].split()) >= 3
        and len(found["venue"]) > 5
        and found["authors"][0].isupper()
    )
    # `paper`, which is shown to users, is the same paper: its title is in it, whole or up to a
    # colon, or behind one.
    title = found["title"]
    assert any(part in kind.paper for part in (title, *title.split(": "))), (title, kind.paper)
