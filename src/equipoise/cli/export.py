"""The command ``equipoise export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.options import ImportOptions, option_groups


@option_groups
def export(
    run: Annotated[
        Path, typer.Argument(help="folder of a run; with --site the identifier of a run")
    ],
    import_options: ImportOptions,
    model: Annotated[
        str | None,
        typer.Option(
            help="a served model: global, personal, ...; default: the one that clients use"
        ),
    ] = None,
    client: Annotated[str | None, typer.Option(help="client whose model is saved")] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="folder of a site: use the models of the run that it has stored"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="safetensors file; default: MODEL.safetensors in the run's folder"),
    ] = None,
) -> None:
    """Save a trained model as safetensors, with a card that describes it.

    Examples:
      equipoise export runs/demo
      equipoise export runs/demo --model personal --client north --out north.safetensors
    """
    from equipoise.runs import Run
    from equipoise.runs.export import export as save
    from equipoise.site.served_models import SiteModels

    source = Run(run) if site is None else SiteModels(site, str(run))
    path, card = save(source, model, client, out, allow_imports=import_options.packages)
    print(f"model: {path}\ncard:  {card}")
