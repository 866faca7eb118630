"""The command ``equipoise methods``."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Annotated, Any

import typer


def methods(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]", help="method to show in detail; default: list all"),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="list only this family: reference, drift, features, ...")
    ] = None,
    needs: Annotated[
        str | None,
        typer.Option(
            help="list only methods that need this, e.g. validation; none: those without needs"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="run the checks that every method must pass, on small data"),
    ] = False,
) -> None:
    """List the methods with family, needs and cost; or show or check one of them.

    Examples:
      equipoise methods --family personal
      equipoise methods fedprox
      equipoise methods my_methods:Attentive --check
    """
    import json

    from equipoise import methods
    from equipoise.cli.listing import tell_broken

    # `methods show NAME` of earlier versions
    words = name[1:] if name and name[0] == "show" else name or []
    if len(words) > 1 or (words and (family or needs)):
        raise typer.BadParameter("expected one NAME, or --family and --needs without a NAME")
    if check and (not words or as_json):
        raise typer.BadParameter("expected --check with the NAME of a method and without --json")
    if check:
        raise typer.Exit(_check(words[0]))
    description: Any = methods.describe(words[0]) if words else methods.listed(family, needs)
    if not words:
        tell_broken(methods.REGISTRY.listed()[1])
    if as_json:
        print(json.dumps(description, indent=2))
    elif words:
        _show(description)
    else:
        _list(description)


def _check(name: str) -> int:
    """Print the result of each check; return 1 if one failed or none was possible."""
    from equipoise import methods
    from equipoise.cli import output
    from equipoise.testing import check_method
    from equipoise.testing.small import CLASSES, SIZES

    sizes = ", ".join(f"{client} ({size})" for client, size in SIZES.items())
    output.say(
        f"each check trains on synthetic images of {CLASSES} classes; clients (samples) by "
        f"default: {sizes}"
    )
    output.say(
        "the checks missing_reply and nan_reply make clients drop out or send damaged replies on "
        "purpose: their lines about replies that do not count are no faults"
    )

    results = check_method(
        methods.make(name), raise_errors=False, on_result=lambda result: output.say(str(result))
    )
    count = Counter(result.outcome for result in results)
    output.say(
        f"{name}: {count['passed']} checks passed, {count['failed']} failed, {count['skipped']} "
        "skipped"
    )
    return int(count["failed"] > 0 or not count["passed"])


def _list(listed: list[dict[str, Any]]) -> None:
    from equipoise import methods
    from equipoise.cli import output
    from equipoise.method import PASSES

    columns = ("year", "needs", "exchanges", "fairness", "passes")
    rows: list[list[str]] = []
    # a row of its own: as a column it would not fit a terminal
    for family, entries in groupby(listed, lambda entry: entry["family"]):
        rows.append([output.styled(family, "bold"), *[""] * len(columns)])
        rows += [
            ["  " + methods.shown(entry["name"]), *(_cell(entry[key]) for key in columns)]
            for entry in entries
        ]
    output.table(["family, method", *columns], rows)
    output.say(
        f"exchanges and passes are per round. {PASSES}. equipoise methods NAME shows a method "
        "with its parameters."
    )


def _show(entry: dict[str, Any]) -> None:
    from equipoise.cli import output
    from equipoise.method import FAMILIES, NEEDS, PASSES
    from equipoise.methods import shown

    print(f"{shown(entry['name'])}: {entry['doc']}\n")
    if entry["paper"]:
        print(f"Paper: {entry['paper']}\n")
    family = entry["family"]
    print(f"family: {family}" + (f" ({FAMILIES[family]})" if family in FAMILIES else ""))
    print(f"needs: {'; '.join(NEEDS.get(need, need) for need in entry['needs']) or 'nothing'}")
    print(f"fairness: {entry['fairness']}")
    print(f"exchanges per round: {entry['exchanges']}")
    print(f"passes per round: {entry['passes']} ({PASSES})\n")
    output.table(
        ["parameter", "default", "range", "meaning"],
        [[p["name"], repr(p["default"]), p["range"], p["help"]] for p in entry["parameters"]],
    )


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)
