"""The command ``equipoise predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.options import ImportOptions, option_groups


@option_groups
def predict(
    run: Annotated[
        Path, typer.Argument(help="folder of a run; with --site the identifier of a run")
    ],
    data: Annotated[
        Path,
        typer.Argument(help="file or folder with new samples, in the format of the training data"),
    ],
    import_options: ImportOptions,
    model: Annotated[
        str | None,
        typer.Option(
            help="a served model: global, personal, ...; default: the one that clients use"
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(help="use the model and the scaling of this client"),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="predict the second of two classes from this probability on, from 0 to 1; "
            "default: the more likely class",
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="folder of a site: use the models of the run that it has stored"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions; default: print them")
    ] = None,
) -> None:
    """Predict with a trained model: one line per sample, with the probability of each class.

    Examples:
      equipoise predict runs/demo new.csv --client north
      equipoise predict runs/demo new.csv --threshold 0.3 --out predictions.csv
    """
    import csv
    import sys
    from contextlib import nullcontext

    from equipoise.data.message_text import counted
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
        print(f"{counted(len(rows), 'prediction')}: {out}", file=sys.stderr)
