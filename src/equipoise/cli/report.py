"""equipoise report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="the folder of a run, of several, or of a comparison", show_default=False
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="the HTML file; default: report.html in the first folder")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="the Standalone run to judge by; default: one among or beside the runs"),
    ] = None,
    png: Annotated[
        bool, typer.Option("--png", help="also write each figure as PNG, beside the page")
    ] = False,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="also write each figure as PDF, ready for a paper")
    ] = False,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            help="only this figure as a file: clients, curves, plane, heatmap, weights, gains"
        ),
    ] = None,
) -> None:
    """One HTML page that opens offline: who gains and who loses, in words, cards and figures, and how to repeat it.

    equipoise report runs/demo-fedavg --out report.html --pdf --figure plane
    """
    from equipoise.cli import output
    from equipoise.report import report as make

    kinds = [kind for kind, wanted in (("png", png), ("pdf", pdf)) if wanted]
    audited = runs[0] / "audit.json"  # `equipoise audit` looked at the run
    more = _looked_at(audited) if len(runs) == 1 and audited.is_file() else {}
    files = make(runs, out or runs[0] / "report.html", against, kinds, figure or [], more)
    output.say("written: " + ", ".join(map(str, files)), wrap=False)


def _looked_at(audited: Path) -> dict[str, Any]:
    from equipoise.auditing import Findings
    from equipoise.auditing.pictures import shown

    return shown(Findings.read(audited))
