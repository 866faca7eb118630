"""Writes the lists of methods in docs/methods/README.md and README.md, from what the methods say of themselves.

python docs/methods/index.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from equipoise import methods
from equipoise.method import FAMILIES, NEEDS, PASSES

ROOT = Path(__file__).parents[2]
PAGES = Path(__file__).parent
BEGIN, END = "<!-- made by docs/methods/index.py -->", "<!-- end -->"


def families() -> list[tuple[str, list[dict[str, Any]]]]:
    return [
        (family, list(entries))
        for family, entries in groupby(methods.listed(), lambda entry: entry["family"])
    ]


def linked(name: str, root: str) -> str:
    """A method's name in tables, linked to its page or, where it has none, to its code."""
    target = (
        f"docs/methods/{name}.md"
        if (PAGES / f"{name}.md").exists()
        else f"src/equipoise/methods/{name}.py"
    )
    return methods.shown(name).replace(name, f"[`{name}`]({root}{target})", 1)


def index() -> str:
    """docs/methods/README.md."""
    lines = [
        "# The methods",
        "",
        BEGIN,
        "",
        "`equipoise methods` prints the same, `equipoise methods NAME` a method's parameters.",
        "",
        *(f"- `{need}`: it needs {why}." for need, why in NEEDS.items()),
        "- exchanges: how often the server asks a client in a round; behind *once*: before round 1.",
        "- fairness: which of the notions of [fairness.md](../fairness.md) it is after.",
        f"- passes of networks over data in a round. {PASSES}.",
    ]
    for family, entries in families():
        rows = (
            [
                linked(entry["name"], "../../"),
                entry["summary"],
                entry["year"] or "",
                ", ".join(entry["needs"]),
                entry["exchanges"],
                entry["fairness"],
                entry["passes"],
            ]
            for entry in entries
        )
        lines += [
            "",
            f"## {family}: {FAMILIES[family]}",
            "",
            "| method | what it does | year | needs | exchanges | fairness | passes |",
        ]
        lines += [
            "|---|---|---|---|---|---|---|",
            *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        ]
    return "\n".join(lines) + "\n"


def front(text: str) -> str:
    """README.md with its list of methods brought up to date."""
    head, rest = text.split(BEGIN)
    rows = (
        f"| {family}: {FAMILIES[family]} | {', '.join(linked(one['name'], '') for one in entries)} |"
        for family, entries in families()
    )
    return (
        "\n".join([f"{head}{BEGIN}", "", "| family | methods |", "|---|---|", *rows, "", END])
        + rest.split(END)[1]
    )


if __name__ == "__main__":
    (PAGES / "README.md").write_text(index(), encoding="utf-8")
    (ROOT / "README.md").write_text(
        front((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8"
    )
