"""equipoise resume"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise import processes


def resume(
    run: Annotated[Path, typer.Argument(help="the folder of a run that was stopped or killed")],
    allow_import: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE", help="import code of this package if the run names it; repeat the option for several"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Go on with a run; the result is the same, bit for bit, as if it had never been stopped."""
    processes.this_process_is_plain()
    from equipoise.cli import output
    from equipoise.simulate import resume as go_on

    with output.progress(quiet) as watcher:
        finished = go_on(run, watcher, allow_imports=allow_import or [])
    output.summary(finished)
