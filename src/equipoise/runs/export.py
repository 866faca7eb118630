"""Uses of trained models: saved as files with a card, and predictions of new samples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from equipoise.data import inputs_from
from equipoise.data.patients.histories import inputs_of
from equipoise.data.preparation import new_groups, new_images, new_patients
from equipoise.data.samples import EVALUATION_BATCH
from equipoise.data.schema import Schema, schema_from
from equipoise.data.tables.csv_files import cells_as_text
from equipoise.data.tables.repairs import rename_columns
from equipoise.data.tables.sites import read_table, site_files
from equipoise.experiment import Experiment
from equipoise.metrics.survival import hazard_curves, risk_scores
from equipoise.models.group_offsets import GroupOffsets
from equipoise.models.mixture import Head
from equipoise.models.network import Prepared
from equipoise.runs.run import Run
from equipoise.site.served_models import SiteModels
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError
from equipoise.task import Task
from equipoise.validation.deprecation import renamed_argument

MOST_CLIENTS = 50  # whose values a card lists


@renamed_argument("given", "experiment")
def export(
    run: Run | SiteModels,
    model: str | None = None,
    client: str | None = None,
    out: Path | None = None,
    experiment: Experiment | None = None,
    allow_imports: Iterable[str] = (),
) -> tuple[Path, Path]:
    """Save a trained model as safetensors, with a card that describes it.

    Args:
        run: A run with a checkpoint, or the models that a site kept of a run.
        model: The name of a served model; by default the main one.
        client: The client whose model it is.
        out: The file; by default in the folder of the run.
        experiment: The experiment with its Python objects, as for `Run.model`.
        allow_imports: Packages whose code the run's file may name.

    Returns:
        The paths of the model and of its card.

    Raises:
        RunError: If there is no such model, or it cannot be written.
    """
    name = model or run.main_model
    net = run.model(name, client, experiment, allow_imports)
    if isinstance(net, Prepared) and not isinstance(net.inputs, torch.nn.Module):
        raise RunError(
            f"{name} sees inputs that its method changes by a plain function, which a file cannot "
            "hold; let `Inputs.other` be a torch module with buffers"
        )
    path = out
    if path is None:
        stem = name if client is None else f"{name}-{client}"
        path = run.folder / f"{stem}.safetensors"
    path = Path(path)
    card = path.with_suffix(".md")
    tensors = {
        key: tensor.detach().clone(memory_format=torch.contiguous_format)
        for key, tensor in net.state_dict().items()
    }
    metadata = {"model": name, "client": client or "", "run": run.folder.name}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_output(path, save(tensors, metadata=metadata))
        text = run.card(name, net) if isinstance(run, SiteModels) else _card(run, name, client, net)
        save_output(card, text)
    except OSError as error:
        raise RunError(
            f"cannot write the model to {path}: {error.strerror or error}; choose a file that can "
            "be written with --out"
        ) from error
    return path, card


def _card(run: Run, name: str, client: str | None, net: torch.nn.Module) -> str:
    """Return the description of a model in Markdown."""
    config = run.config
    task = run.task
    parameters = sum(parameter.numel() for parameter in net.parameters())
    classes = f" ({', '.join(task.class_names)})" if task.class_names else ""
    environment = run.store.meta("environment")
    facts = run.store.meta("facts") or {}
    lines = [
        f"method: {config['method']}",
        f"data: {run.data}, partition {config['data']['partition']}, "
        f"{len(run.clients)} clients, seed {config['seed']}",
        *facts.get("notes", []),
        f"rounds: {run.last_round} of {config['rounds']}",
        f"task: {task.kind}, input {tuple(task.shape)}, {task.outputs} outputs{classes}",
        *_survival_lines(task),
        f"architecture: {config['models'] or config['model']}, {parameters:,} parameters",
        f"{run.main_metric} on {run.main_split} data, by client: {_measured(run, name, client)}",
        *_mixture_lines(run, client, net),
        *_threshold_lines(net),
        f"made by equipoise {run.store.meta('version')}, {run.created}, "
        f"torch {environment['torch']}",
    ]
    title = f"{name} of client {client}" if client else name
    items = "\n".join(f"- {line}" for line in lines)
    return f"""# {title}

{items}

Inputs must be prepared as in training; `equipoise predict {run.folder.name} FILE` does it.
"""


def _survival_lines(task: Task) -> list[str]:
    """Return the meaning of the outputs of a survival model."""
    if not task.survives:
        return []
    if task.outputs == 1:
        return ["output: log risk of a Cox model; only differences between patients have a meaning"]
    return [
        f"outputs: logits of the hazard in {task.outputs} intervals of equal length from time 0 to "
        f"{task.scale:.6g}"
    ]


def _measured(run: Run, name: str, client: str | None) -> str:
    """Return the values of a model by client; only its own if it belongs to a client."""
    values = run.final(model=name) if name in run.models() else {}
    if client in values:
        values = {client: values[client]}
    majority = run.majority() if run.main_metric == "accuracy" else {}
    texts = []
    for id, value in list(values.items())[:MOST_CLIENTS]:
        text = f"{id}: {value:.4f}"
        if id in majority:
            text += f" (majority class {majority[id]:.4f})"
        texts.append(text)
    return ", ".join(texts) or "not measured"


def _mixture_lines(run: Run, client: str | None, net: torch.nn.Module) -> list[str]:
    """Return the weights of a mixture, and the validation losses of all served models.

    A model that is no mixture has no such lines.
    """
    head = next((part for part in net.modules() if isinstance(part, Head)), None)
    if head is None:
        return []
    weights = []
    for expert, weight in zip(head.names, head.weights.tolist(), strict=True):
        weights.append(f"{expert} {weight:.3f}")
    losses = []
    for model in run.models():
        loss = run.final("loss", model, "validation").get(client or "")
        if loss is not None:
            losses.append(f"{model} {loss:.4f}")
    return [
        f"mixture of experts, by weight: {', '.join(weights)}",
        f"loss on the client's {_validation_data(run)}: {', '.join(losses) or 'not measured'}",
    ]


def _validation_data(run: Run) -> str:
    """Return what validation data were to the models of a run."""
    if run.held_out_rounds is None:
        return "validation data"
    return "validation data, which models may have been trained on"


def _threshold_lines(net: torch.nn.Module) -> list[str]:
    """Return a line about a model whose thresholds differ by group."""
    for part in net.modules():
        if isinstance(part, GroupOffsets):
            groups = ", ".join(part.groups)
            return [
                f"thresholds by {part.column} ({groups}): the outputs of the network plus "
                "`offsets` of the sample's group"
            ]
    return []


def predictions(
    run: Run | SiteModels,
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
        client: The client whose model and scaling are used.
        allow_imports: Packages whose code the run's file may name.
        threshold: The second of two classes is predicted from this probability on.

    Returns:
        A header and one row per sample. A row begins with what identifies the sample: its number
        and the identifiers of a table, the file of an image, or the id of a patient. Then follow
        the predicted class and the probabilities, or the predicted number.

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
    if isinstance(run, SiteModels):
        run.check_client(client)
        client = run.client
    elif data.is_dir() and recipe["kind"] == "table":
        return _site_predictions(run, data, model, client, allow_imports, threshold)
    net = run.model(model or run.main_model, client, allow_imports=allow_imports)
    titles, names, x = _samples(data, recipe, client)
    outputs = _outputs(net, x, run.task.outputs)
    for part in net.modules():
        if isinstance(part, GroupOffsets):
            groups = new_groups(data, recipe, client, part.column)
            outputs = part.adjusted(outputs, groups)
    header, values = _predicted(run.task, outputs, threshold)
    rows = [[*name, *value] for name, value in zip(names, values, strict=True)]
    return [*titles, *header], rows


def _site_predictions(
    run: Run,
    folder: Path,
    model: str | None,
    client: str | None,
    allow_imports: Iterable[str],
    threshold: float | None,
) -> tuple[list[str], list[list[Any]]]:
    """Predict the tables of several sites, each as its site unless a client is named."""
    files = site_files(folder)
    if not files:
        raise RunError(
            f"{folder} holds no site files; give a CSV, NPZ or Parquet file, or a folder with one "
            "per site"
        )
    header: list[str] = []
    rows = []
    for file in files:
        titles, own = predictions(run, file, model, client or file.stem, allow_imports, threshold)
        header = header or ["file", *titles]
        rows += [[file.name, *row] for row in own]
    return header, rows


def _outputs(net: torch.nn.Module, x: torch.Tensor, width: int) -> torch.Tensor:
    """Return the outputs of a network; no rows if there are no samples."""
    if not len(x):
        return torch.zeros(0, width)
    with torch.no_grad():
        return torch.cat([net(part) for part in torch.split(x, EVALUATION_BATCH)])


def _predicted(
    task: Task, outputs: torch.Tensor, threshold: float | None
) -> tuple[list[str], list[list[Any]]]:
    """Return titles and rows of predictions: a number, or a class and all probabilities.

    In survival analysis it is the log risk of a Cox model, or the probabilities to survive the end
    of every interval, with a risk that orders patients.
    """
    if task.survives:
        return _predicted_survival(task, outputs)
    if not task.classifies:
        return ["prediction"], [[value] for value in outputs.squeeze(-1).tolist()]
    classes = list(task.class_names) or [str(k) for k in range(task.outputs)]
    probabilities = outputs.softmax(1)
    best = probabilities.argmax(1)
    if threshold is not None:
        best = (probabilities[:, 1] >= threshold).long()
    rows = []
    for k, row in zip(best.tolist(), probabilities.tolist(), strict=True):
        rows.append([classes[k], *(round(probability, 6) for probability in row)])
    return ["prediction", *(f"p({name})" for name in classes)], rows


def _predicted_survival(task: Task, outputs: torch.Tensor) -> tuple[list[str], list[list[Any]]]:
    if task.outputs == 1:
        return ["log risk"], [[value] for value in outputs.squeeze(-1).tolist()]
    curves = hazard_curves(outputs.double().numpy(), task.scale)
    titles = ["risk", *(f"survival({end:.6g})" for end in curves.times)]
    rows = []
    for risk, row in zip(risk_scores(outputs.double().numpy()), curves.values, strict=True):
        rows.append([round(float(risk), 6), *(round(float(value), 6) for value in row)])
    return titles, rows


def _check_threshold(run: Run | SiteModels, threshold: float) -> None:
    """Refuse a threshold that is no probability, or for a task without two classes."""
    if not run.task.classifies or run.task.outputs != 2:
        kinds = {
            "classification": f"{run.task.outputs} classes",
            "regression": "a number",
            "survival": "survival",
        }
        kind = kinds[run.task.kind]
        raise RunError(
            f"--threshold: expected a run with two classes, got one that predicts {kind}; "
            "leave it out"
        )
    if not 0 <= threshold <= 1:
        raise RunError(f"--threshold: expected a probability from 0 to 1, got {threshold}")


def _samples(
    data: Path, recipe: dict[str, Any], client: str | None
) -> tuple[list[str], list[list[Any]], torch.Tensor]:
    """Return titles and cells that identify the samples, and the inputs of the model."""
    if recipe["kind"] == "histories":
        patients = new_patients(data, recipe)
        return ["patient"], [[name] for name in patients.ids], inputs_of(patients, recipe)
    x = inputs_from(data, recipe, client)
    if recipe["kind"] == "image" and data.suffix != ".npz":
        names = []
        for file in new_images(data):
            names.append([str(file.relative_to(data)) if data.is_dir() else file.name])
        return ["file"], names, x
    columns = _identifiers(data, recipe, client) if recipe["kind"] == "table" else {}
    cells = [values.tolist() for values in columns.values()]
    rows = [list(row) for row in zip(range(len(x)), *cells, strict=True)]
    return ["sample", *columns], rows, x


def _identifiers(data: Path, recipe: dict[str, Any], client: str | None) -> dict[str, np.ndarray]:
    """Return the columns of a table that identify its rows, as text."""
    schema = schema_from(recipe.get("schema")) or Schema()  # Runs of older versions have none.
    names = [column.name for column in schema.columns if column.kind == "identifier"]
    if not names:
        return {}
    table = rename_columns(read_table(data), schema.repairs_of(client).rename, str(data))
    return {name: cells_as_text(table[name]) for name in names if name in table}
