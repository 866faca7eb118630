"""Writes the lists of methods in docs/methods/README.md and README.md, from the classes themselves.

python docs/methods/index.py
"""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path
from typing import Any

from equipoise import methods
from equipoise.method import FAMILIES, NEEDS, PASSES

ROOT = Path(__file__).parents[2]
PAGES = Path(__file__).parent
BEGIN, END = "<!-- made by docs/methods/index.py -->", "<!-- end -->"
INTRODUCTION = """\
These tables help you to choose a method. `equipoise methods` prints the same, `equipoise methods
NAME` the parameters of one method. Compare several on your own data with `equipoise compare`
([compare methods](../compare.md))."""
COLUMNS = ("method", "summary", "year", "needs", "exchanges", "fairness", "passes")


def families() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return each family with the entries of its methods."""
    return [
        (family, list(entries))
        for family, entries in groupby(methods.listed(), lambda entry: entry["family"])
    ]


def linked(name: str, root: str) -> str:
    """Return a method's name for tables, linked to its page or, without one, to its code."""
    target = (
        f"docs/methods/{name}.md"
        if (PAGES / f"{name}.md").exists()
        else f"src/equipoise/methods/{name}.py"
    )
    return methods.shown(name).replace(name, f"[`{name}`]({root}{target})", 1)


def legend() -> list[str]:
    """Return the list that explains the columns of the tables."""
    meanings = [
        "exchanges: requests of the server to a client per round; after *once*: before round 1.",
        "fairness: the notion of [fairness.md](../fairness.md) that the method aims at.",
        f"passes: passes of networks over data per round. {PASSES}.",
        "needs: what the method requires:",
    ]
    lines = []
    for meaning in meanings:
        lines += textwrap.wrap(meaning, 98, initial_indent="- ", subsequent_indent="  ")
    return lines + [f"    - `{need}`: {why}." for need, why in NEEDS.items()]


def row(cells: tuple[object, ...]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def index() -> str:
    """Return the text of docs/methods/README.md."""
    lines = ["# The methods", "", BEGIN, "", INTRODUCTION, "", *legend()]
    for family, entries in families():
        lines += ["", f"## {family}: {FAMILIES[family]}", "", row(COLUMNS)]
        lines += ["|---" * len(COLUMNS) + "|"]
        for entry in entries:
            cells = (
                linked(entry["name"], "../../"),
                entry["summary"],
                entry["year"] or "",
                ", ".join(entry["needs"]),
                entry["exchanges"],
                entry["fairness"],
                entry["passes"],
            )
            lines.append(row(cells))
    return "\n".join(lines) + "\n"


def front(text: str) -> str:
    """Return README.md with an updated list of methods."""
    head, rest = text.split(BEGIN)
    lines = [f"{head}{BEGIN}", "", "| family | methods |", "|---|---|"]
    for family, entries in families():
        names = ", ".join(linked(entry["name"], "") for entry in entries)
        lines.append(row((f"{family}: {FAMILIES[family]}", names)))
    return "\n".join([*lines, "", END]) + rest.split(END)[1]


if __name__ == "__main__":
    (PAGES / "README.md").write_text(index(), encoding="utf-8")
    (ROOT / "README.md").write_text(
        front((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8"
    )
