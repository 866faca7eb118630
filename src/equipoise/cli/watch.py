"""The command equipoise watch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    folder: Annotated[
        Path, typer.Argument(help="folder of a run, or a folder of runs and comparisons")
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port at 127.0.0.1; 0: any free port")
    ] = 0,
) -> None:
    """Show a run in the browser while it is in progress, or all runs of a folder.

    Ctrl-C stops the viewer; the runs continue.

    Examples:
      equipoise watch runs/demo
      equipoise watch runs --port 8000
    """
    from equipoise.cli import output
    from equipoise.storage.store import RunError
    from equipoise.watch.serving import WatchServer

    if not folder.is_dir():
        raise RunError(f"no folder {folder}; name the folder of a run, or a folder of runs")
    try:
        with WatchServer(folder, port) as server:
            output.say(
                "open ",
                output.styled(server.address, "bold"),
                " in a browser on this machine; Ctrl-C stops",
                wrap=False,
            )
            server.serve_forever(poll_interval=0.25)
    except KeyboardInterrupt:
        output.say("viewer stopped; the runs continue")
