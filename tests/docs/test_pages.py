"""The navigation names every page, links are valid, and the citation is of this version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise import __version__
from tests.helpers.runs import environment

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def linked(page: Path) -> set[Path]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {
        (page.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    }


def pages_in(nav: Any) -> set[str]:
    """The pages that a navigation of MkDocs names, at any depth."""
    if isinstance(nav, str):
        return {nav}
    entries = nav.values() if isinstance(nav, dict) else nav
    return {page for entry in entries for page in pages_in(entry)}


def test_the_navigation_names_every_page() -> None:
    """The strict build of the site says the same, but needs MkDocs."""
    navigation = pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    pages |= {f"notebooks/{page.stem}.md" for page in DOCS.glob("notebooks/*.ipynb")}
    made = {page for page in navigation if page.startswith(("reference/", "project/"))}
    assert len(pages) > 60
    assert pages - navigation == set()
    assert navigation - pages <= made


def test_the_index_leads_to_the_pages_of_all_sections() -> None:
    pages = {page for page in DOCS.glob("*.md") if page.name not in ("index.md",)}
    assert pages - linked(DOCS / "index.md") == set()


@pytest.mark.parametrize(
    "page", [str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]]
)
def test_links_between_files_lead_somewhere(page: str) -> None:
    assert [str(target) for target in linked(ROOT / page) if not target.exists()] == []


def test_the_glossary_has_each_word_once_in_order_with_its_meaning() -> None:
    text = (DOCS / "glossary.md").read_text()
    tables = [
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", part, re.MULTILINE)[1:]
        for part in text.split("\n## ")[1:]
    ]
    assert len(tables) == 2 and all(len(table) > 20 for table in tables)
    for table in tables:
        words = [word.lower() for word, _ in table]
        assert words == sorted(words)
        assert all(
            len(meaning.split()) > 3 and meaning[0].isupper() and meaning.endswith(".")
            for _, meaning in table
        )
    words = [word for table in tables for cell, _ in table for word in cell.lower().split(", ")]
    assert len(words) == len(set(words))


def test_the_citation_is_of_this_version_and_valid() -> None:
    """The rules of the Citation File Format 1.2.0 for the keys that are used here.

    A key that is not known is a mistake.
    """
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["cff-version"] == "1.2.0" and found["version"] == __version__
    text = {"message", "title", "version", "license", "abstract", "type", "cff-version"}
    assert (
        {"cff-version", "message", "title", "authors"}
        <= set(found)
        <= text | {"authors", "keywords"}
    )
    assert all(isinstance(found[key], str) and found[key] for key in text)
    assert found["type"] in ("software", "dataset") and found["license"] == "Apache-2.0"
    assert found["authors"] and all(
        set(author) == {"name"} and author["name"] for author in found["authors"]
    ), "an entity has a name"
    assert len(set(found["keywords"])) == len(found["keywords"]) > 0 and all(
        isinstance(word, str) for word in found["keywords"]
    )


@pytest.mark.slow
def test_the_example_of_sites_runs_as_it_is_printed(tmp_path: Path) -> None:
    page = (DOCS / "sites.md").read_text()
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", page, flags=re.DOTALL)[:2]
    program = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        program, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.stdout == printed, done.stderr
