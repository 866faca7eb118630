"""The command equipoise table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from equipoise.runs import Run


def table(
    run: Annotated[Path, typer.Argument(help="the folder of a run")],
    phase: Annotated[
        str | None,
        typer.Option(help="print only this phase: received, after_local, final or clinical"),
    ] = None,
    groups: Annotated[
        bool,
        typer.Option(
            "--groups", help="print results by site and group (data.groups), with intervals"
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of CSV")] = False,
) -> None:
    """Print the long table of a run as CSV: round, client, model, phase, split, metric, value.

    Examples:
      equipoise table runs/demo > demo.csv
      equipoise table runs/demo --groups > groups.csv
    """
    import csv
    import json
    import sys

    from equipoise.cli.output import plain
    from equipoise.runs import Run
    from equipoise.validation.text import shown

    if groups:
        header = ["model", "site", "column", "group", "measure", "value", "low", "high", "reason"]
        table_rows = _group_rows(Run(run))
    else:
        header = ["round", "client", "model", "phase", "split", "metric", "value"]
        table_rows = Run(run).table(**({} if phase is None else {"phase": phase}))
    rows = []
    for row in table_rows:
        for key, value in row.items():
            if isinstance(value, str):
                row[key] = shown(value)
        rows.append(row)
    if as_json:
        print(json.dumps(plain(rows), indent=2, allow_nan=False))
        return
    writer = csv.DictWriter(sys.stdout, header)
    writer.writeheader()
    writer.writerows(rows)


def _group_rows(run: Run) -> list[dict[str, Any]]:
    """Return the results of every served model by site and group."""
    from equipoise.runs import read_result
    from equipoise.storage.store import RunError

    rows = []
    for name, model in read_result(run).models.items():
        if model.groups is not None:
            rows += [{"model": name, **row} for row in model.groups.rows()]
    if not rows:
        raise RunError(
            f"{run.folder} has no results by group; run it with data.groups, such as "
            "--set data.groups=[sex]"
        )
    return rows
