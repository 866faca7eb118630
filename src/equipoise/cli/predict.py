"""The command ``equipoise predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.options import ImportOptions, option_groups


@option_groups
def predict(
    run: Annotated[
        Path, typer.Argument(help="the folder of a run; with --site the identifier of a run")
    ],
    data: Annotated[
        Path,
        typer.Argument(help="a CSV or NPZ file with new samples, in the form of the training data"),
    ],
    import_options: ImportOptions,
    model: Annotated[
        str | None, typer.Option(help="global, personal, ...; default: what clients end up using")
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(help="predict as this client, with its personal model and its scaling"),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="predict the second of two classes from this probability on; default: the more "
            "likely class",
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="the folder of a site: use the models that it kept of the run"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="a CSV file; default: print")] = None,
) -> None:
    """Predict with a trained model: one line per sample, with the probability of each class."""
    import csv
    import sys
    from contextlib import nullcontext

    from equipoise.runs import Run
    from equipoise.runs.export import predictions
    from equipoise.site.served_models import SiteModels
    from equipoise.validation.regular_files import check_regular
    from equipoise.validation.text import shown

    source = Run(run) if site is None else SiteModels(site, str(run))
    header, rows = predictions(source, data, model, client, import_options.packages, threshold)
    if out is not None:
        check_regular(out)
    with out.open("w", newline="") if out is not None else nullcontext(sys.stdout) as target:
        writer = csv.writer(target)
        writer.writerow(map(shown, header))
        writer.writerows(
            [shown(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
        )
    if out is not None:
        print(f"{len(rows)} predictions: {out}", file=sys.stderr)
