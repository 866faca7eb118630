"""equipoise methods"""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="List the methods, and show one with its parameters.", invoke_without_command=True)


@app.callback()
def list_methods(context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False) -> None:
    """List the methods."""
    if context.invoked_subcommand is not None:
        return
    import json

    from equipoise import methods
    from equipoise.cli import output

    found = [methods.describe(name) for name in methods.names()]
    if as_json:
        print(json.dumps([{key: entry[key] for key in ("name", "summary", "paper")} for entry in found], indent=2))
        return
    output.table(["method", "what it does"], [[entry["name"], entry["summary"]] for entry in found])
    print("equipoise methods show NAME lists a method's parameters.")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="a method's name")],
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """A method: what it does, its paper, its parameters with their ranges."""
    import json

    from equipoise import methods
    from equipoise.cli import output

    found = methods.describe(name)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['name']}: {found['doc']}\n")
    if found["paper"]:
        print(f"Paper: {found['paper']}\n")
    output.table(
        ["parameter", "default", "range", "meaning"],
        [[p["name"], repr(p["default"]), p["range"], p["help"]] for p in found["parameters"]],
    )
