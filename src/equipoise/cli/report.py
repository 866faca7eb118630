"""The command equipoise report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.options import ImportOptions, option_groups

STUDIES = (".yaml", ".yml")


@option_groups
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="folders of one or more runs, or of a comparison; or the file of a study",
            show_default=False,
        ),
    ],
    import_options: ImportOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            help="the HTML file; default: report.html in the first folder, or next to a study"
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="folder of the Standalone run for gains; default: one among the runs, "
            "or next to them"
        ),
    ] = None,
    png: Annotated[
        bool, typer.Option("--png", help="also write each figure as PNG, next to the page")
    ] = False,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="also write each figure as PDF, ready for a paper")
    ] = False,
    scale: Annotated[
        str | None, typer.Option(help="scale of a study; default: the first one with results")
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            help="with --png or --pdf: write only this figure, e.g. clients, curves, plane, "
            "heatmap, weights or gains; repeat for several"
        ),
    ] = None,
) -> None:
    """Write one HTML page that opens offline: which clients gain and lose, figures, settings.

    Examples:
      equipoise report runs/demo
      equipoise report runs/standalone runs/fedavg --out report.html --pdf --figure plane
      equipoise report experiments/papers/fedekd/retina.yaml --out retina.html
    """
    from equipoise.cli import output
    from equipoise.report import report as make
    from equipoise.report import report_study

    kinds = []
    if png:
        kinds.append("png")
    if pdf:
        kinds.append("pdf")
    if len(runs) == 1 and runs[0].suffix in STUDIES:
        page = out or runs[0].with_suffix(".html")
        allowed = import_options.packages
        files = report_study(runs[0], page, scale, kinds, figure or [], allowed)
        output.say("written: " + ", ".join(map(str, files)), wrap=False)
        return
    audit = runs[0] / "audit.json"  # written by `equipoise audit`
    more = _audit_figures(audit) if len(runs) == 1 and audit.is_file() else {}
    files = make(runs, out or runs[0] / "report.html", against, kinds, figure or [], more)
    output.say("written: " + ", ".join(map(str, files)), wrap=False)


def _audit_figures(path: Path) -> dict[str, Any]:
    from equipoise.auditing import Findings
    from equipoise.auditing.pictures import shown
    from equipoise.auditing.predictions import FILE, PredictionFindings, picture

    figures = shown(Findings.read(path))
    predictions = path.with_name(FILE)
    if predictions.is_file():
        figures["audit-predictions"] = picture(PredictionFindings.read(predictions))
    return figures
