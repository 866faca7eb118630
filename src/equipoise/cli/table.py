"""The command equipoise table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def table(
    run: Annotated[Path, typer.Argument(help="the folder of a run")],
    phase: Annotated[
        str | None, typer.Option(help="received, after_local, final or clinical")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of CSV")] = False,
) -> None:
    """Print the long table of a run as CSV: round, client, model, phase, split, metric, value."""
    import csv
    import json
    import sys

    from equipoise.runs import Run
    from equipoise.validation.text import shown

    selection = {} if phase is None else {"phase": phase}
    rows = []
    for row in Run(run).table(**selection):
        for key, value in row.items():
            if isinstance(value, str):
                row[key] = shown(value)
        rows.append(row)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    writer = csv.DictWriter(
        sys.stdout, ["round", "client", "model", "phase", "split", "metric", "value"]
    )
    writer.writeheader()
    writer.writerows(rows)
