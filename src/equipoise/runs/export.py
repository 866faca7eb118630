"""Trained models out of a run: as files with a card, and as predictions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from equipoise.data import inputs_from
from equipoise.data.patients.histories import inputs_of
from equipoise.data.preparation import new_images, new_patients
from equipoise.data.samples import EVALUATION_BATCH
from equipoise.data.schema import Schema, schema_from
from equipoise.data.tables.csv_files import cells_as_text
from equipoise.data.tables.repairs import rename_columns
from equipoise.data.tables.sites import read_table, site_files
from equipoise.models.mixture import Head
from equipoise.models.network import Prepared
from equipoise.runs.run import Run
from equipoise.site.kept import KeptRun
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError


def export(
    run: Run | KeptRun,
    model: str | None = None,
    client: str | None = None,
    out: Path | None = None,
    given: Any = None,
    allow_imports: Iterable[str] = (),
) -> tuple[Path, Path]:
    """Save a model as safetensors and write its card beside it; returns both paths."""
    name = model or run.main_model
    net = run.model(name, client, given, allow_imports)
    if isinstance(net, Prepared) and not isinstance(net.inputs, torch.nn.Module):
        raise RunError(
            f"{name} sees inputs that its method changes by a plain function, which a file cannot hold; let `Inputs.other` be a torch module with buffers"
        )
    stem = f"{name}-{client}" if client is not None else name
    path = Path(out) if out is not None else run.folder / f"{stem}.safetensors"
    tensors = {
        key: tensor.detach().clone(memory_format=torch.contiguous_format)
        for key, tensor in net.state_dict().items()
    }
    card = path.with_suffix(".md")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_output(
            path,
            save(tensors, metadata={"model": name, "client": client or "", "run": run.folder.name}),
        )
        text = run.card(name, net) if isinstance(run, KeptRun) else _card(run, name, client, net)
        save_output(card, text)
    except OSError as error:
        raise RunError(
            f"cannot write the model to {path}: {error.strerror or error}; choose a file that can be written with --out"
        ) from error
    return path, card


def _card(run: Run, name: str, client: str | None, net: torch.nn.Module) -> str:
    values = run.final(model=name) if name in run.models() else {}
    own = {client: values[client]} if client in values else values
    config, task = run.config, run.task
    majority = run.majority() if run.main_metric == "accuracy" else {}
    beside = {
        who: f" (majority class {majority[who]:.4f})" if who in majority else "" for who in own
    }
    measured = (
        ", ".join(f"{who}: {value:.4f}{beside[who]}" for who, value in list(own.items())[:50])
        or "not measured"
    )
    about = "".join(f"\n- {note}" for note in (run.store.meta("facts") or {}).get("notes", []))
    return f"""# {name}{f" of client {client}" if client else ""}

- method: {config["method"]}
- data: {run.store.meta("data")}, partition {config["data"]["partition"]}, {len(run.clients)} clients, seed {config["seed"]}{about}
- rounds: {run.last_round} of {config["rounds"]}
- task: {task.kind}, input {tuple(task.shape)}, {task.outputs} outputs{f" ({', '.join(task.class_names)})" if task.class_names else ""}
- architecture: {config["models"] or config["model"]}, {sum(p.numel() for p in net.parameters()):,} parameters
- {run.main_metric} on {run.main_split} data, by client: {measured}
{_evidence(run, client, net)}- made by equipoise {run.store.meta("version")}, {run.store.meta("created")}, torch {run.store.meta("environment")["torch"]}

Inputs must be prepared as in training; `equipoise predict {run.folder.name} FILE` does it.
"""


def _evidence(run: Run, client: str | None, net: torch.nn.Module) -> str:
    """Of a mixture: how much each expert counts, and what the validation data say of the models that the client could use instead."""
    head = next((part for part in net.modules() if isinstance(part, Head)), None)
    if head is None:
        return ""
    weights = ", ".join(
        f"{expert} {weight:.3f}"
        for expert, weight in zip(head.names, head.weights.tolist(), strict=True)
    )
    shown = {
        model: run.final("loss", model, "validation").get(client or "") for model in run.models()
    }
    losses = (
        ", ".join(f"{model} {value:.4f}" for model, value in shown.items() if value is not None)
        or "not measured"
    )
    return f"- mixture of experts, by weight: {weights}\n- loss on the client's validation data: {losses}\n"


def predictions(
    run: Run | KeptRun,
    data: Path,
    model: str | None = None,
    client: str | None = None,
    allow_imports: Iterable[str] = (),
    threshold: float | None = None,
) -> tuple[list[str], list[list[Any]]]:
    """Predict new samples with a model of a run.

    Args:
        run: A run with a checkpoint, or the models that a site kept of a run.
        data: A file or folder in the form of the training data. A folder with one table per site is
            predicted as its sites unless `client` is given.
        model: The name of a served model; by default the one that clients end up using.
        client: Whose model and scaling are used.
        allow_imports: Packages whose code the run's file may name.
        threshold: Of two classes: the second one is predicted from this probability on.

    Returns:
        A header and one row per sample: which it is (its number and the identifiers of a table, the
        file of an image, the id of a patient), the predicted class and the probabilities, or the
        predicted number.

    Raises:
        RunError: If the data, the model or the client is not there, or the threshold does not fit.
    """
    if not data.exists():
        raise RunError(
            f"no file {data}; give a CSV or NPZ file with samples in the form of the training data"
        )
    if threshold is not None:
        _check_threshold(run, threshold)
    recipe = run.recipe
    if isinstance(run, KeptRun):
        run.check_client(client)
        client = run.client
    elif data.is_dir() and recipe["kind"] == "table":
        files = site_files(data)
        if not files:
            raise RunError(
                f"{data} holds no site files; give a CSV, NPZ or Parquet file, or a folder with one per site"
            )
        found = [
            predictions(run, file, model, client or file.stem, allow_imports, threshold)
            for file in files
        ]
        rows = [
            [file.name, *row] for file, (_, own) in zip(files, found, strict=True) for row in own
        ]
        return ["file", *found[0][0]], rows
    net = run.model(model or run.main_model, client, allow_imports=allow_imports)
    titles, which, x = _samples(data, recipe, client)
    with torch.no_grad():
        outputs = (
            torch.cat([net(part) for part in torch.split(x, EVALUATION_BATCH)])
            if len(x)
            else torch.zeros(0, run.task.outputs)
        )
    if not run.task.classifies:
        values = outputs.squeeze(-1).tolist()
        rows = [[*names, value] for names, value in zip(which, values, strict=True)]
        return [*titles, "prediction"], rows
    classes = list(run.task.class_names) or [str(k) for k in range(run.task.outputs)]
    shares = outputs.softmax(1)
    best = shares.argmax(1) if threshold is None else (shares[:, 1] >= threshold).long()
    rows = [
        [*names, classes[k], *(round(share, 6) for share in row)]
        for names, k, row in zip(which, best.tolist(), shares.tolist(), strict=True)
    ]
    return [*titles, "prediction", *(f"p({name})" for name in classes)], rows


def _check_threshold(run: Run | KeptRun, threshold: float) -> None:
    if not run.task.classifies or run.task.outputs != 2:
        kind = f"{run.task.outputs} classes" if run.task.classifies else "a number"
        raise RunError(
            f"--threshold: expected a run with two classes, got one that predicts {kind}; leave it out"
        )
    if not 0 <= threshold <= 1:
        raise RunError(f"--threshold: expected a probability from 0 to 1, got {threshold}")


def _samples(
    data: Path, recipe: dict[str, Any], client: str | None
) -> tuple[list[str], list[list[Any]], torch.Tensor]:
    """Return what names a sample (titles, and a row for each sample), and the model's inputs."""
    if recipe["kind"] == "histories":
        patients = new_patients(data, recipe)
        return ["patient"], [[name] for name in patients.ids], inputs_of(patients, recipe)
    x = inputs_from(data, recipe, client)
    if recipe["kind"] == "image" and data.suffix != ".npz":
        files = new_images(data)
        names = [str(file.relative_to(data)) if data.is_dir() else file.name for file in files]
        return ["file"], [[name] for name in names], x
    columns = _identifiers(data, recipe, client) if recipe["kind"] == "table" else {}
    cells = [values.tolist() for values in columns.values()]
    return ["sample", *columns], [list(row) for row in zip(range(len(x)), *cells, strict=True)], x


def _identifiers(data: Path, recipe: dict[str, Any], client: str | None) -> dict[str, np.ndarray]:
    """Return the columns of a table that tell its rows apart, as text; those that it has."""
    schema = schema_from(recipe.get("schema")) or Schema()  # runs of older versions have none
    names = [column.name for column in schema.columns if column.kind == "identifier"]
    if not names:
        return {}
    table = rename_columns(read_table(data), schema.repairs_of(client).rename, str(data))
    return {name: cells_as_text(table[name]) for name in names if name in table}
