"""The command ``equipoise models``."""

from __future__ import annotations

from typing import Annotated

import typer


def models(
    name: Annotated[
        str | None, typer.Argument(help="model to show with its options; default: list all")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """List the models for --model with inputs and sizes, or show one with its options.

    Example:
      equipoise models cnn
    """
    import json

    from equipoise.cli import output
    from equipoise.cli.listing import tell_broken
    from equipoise.models.listing import SHAPES, listed
    from equipoise.models.registry import REGISTRY

    entries, broken = REGISTRY.listed() if name is None else ({name: REGISTRY.find(name)}, {})
    found = listed(entries)
    tell_broken(broken)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [
        [
            entry["name"],
            entry["inputs"],
            *(
                f"{entry['parameters'].get(shape, ''):,}" if shape in entry["parameters"] else ""
                for shape in SHAPES
            ),
        ]
        for entry in found
    ]
    output.table(["model", "inputs", *SHAPES], rows)
    if name is None:
        output.say(
            "Numbers are parameters, with 10 outputs. By default images of at least 16x16 "
            "pixels take cnn, all else mlp."
        )
        output.say(
            "equipoise models NAME shows one with its options; a model of yours: --model "
            "package.module:name"
        )
        for entry in found:
            if entry["source"] != "built in":
                output.say(f"{entry['name']} comes from {entry['source']}.")
        return
    output.say(str(found[0]["summary"]))
    for option, value in found[0]["options"].items():
        output.say(
            f"  --set model={{name: {name}, {option}: "
            f"{value if not isinstance(value, tuple) else list(value)}}}",
            wrap=False,
        )
