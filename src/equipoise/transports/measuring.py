"""What a client does when it is asked to measure. Test data are touched here and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.data.samples import Samples
from equipoise.method import Method, Served
from equipoise.metrics import parameter_distances, registry
from equipoise.metrics.score_histograms import MEASURES
from equipoise.models import Model
from equipoise.records import Down, Record, Up
from equipoise.task import Task
from equipoise.transports import curves

# A part of a client's data, or the shared test set: not to be had through a client, so that no method trains on it.
Part = Callable[[str], Samples]


def score(task: Task, outputs: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, float]:
    """The value of each metric over some samples; nothing for a metric that does not exist for them, such as AUROC of one class.

    NaN is the value of a model that has diverged: it must not vanish from an average.
    """
    if not len(y):
        return {}
    values, truth = outputs.double().numpy(), y.double().numpy()
    own = (
        (values, truth)
        if task.classifies
        else (values * task.scale + task.centre, truth * task.scale + task.centre)
    )
    with warnings.catch_warnings():
        # what does not exist has no row, and whoever prints results names the clients
        warnings.simplefilter("ignore")
        # Errors are told in the target's own unit; the loss is what training minimises.
        found = {
            name: registry.find(name, task).function(*((values, truth) if name == "loss" else own))
            for name in metrics
        }
    diverged = not np.isfinite(values).all()
    return {name: value for name, value in found.items() if diverged or not np.isnan(value)}


def clinical_values(
    task: Task, outputs: Tensor, y: Tensor, metrics: Sequence[str]
) -> dict[str, float]:
    """Return the clinical measures beside the metrics that are measured anyway; those that exist for these samples."""
    return score(task, outputs, y, [name for name in MEASURES if name not in metrics])


def served(method: Method, client: Client, down: Down) -> dict[str, Served]:
    """What a client serves, by name; exactly one model is the main one. A model that sees inputs changed for this client is its own."""
    client.inputs = method.inputs(client, down)
    given = {
        name: one if isinstance(one, Served) else Served(one)
        for name, one in method.serves(client, down).items()
    }
    main = next((name for name, one in given.items() if one.main), next(iter(given), None))
    return {
        name: Served(one.model, one.same_for_all and client.inputs is None, name == main)
        for name, one in given.items()
    }


def measure(
    client: Client,
    models: Mapping[str, Model],
    splits: Sequence[str],
    metrics: Sequence[str],
    part: Part,
) -> list[dict[str, Any]]:
    """Rows (model, split, metric, value) of a client's models on its own data."""
    rows = []
    for split in splits:
        for name, outputs, y in _predicted(client, models, part(split)):
            rows += _rows(client, name, split, outputs, y, metrics)
    return rows


def _predicted(
    client: Client, models: Mapping[str, Model], samples: Samples
) -> Iterator[tuple[str, Tensor, Tensor]]:
    for name, model in models.items():
        yield name, client.predict(model, samples), samples.y


def _rows(
    client: Client, model: str, split: str, outputs: Tensor, y: Tensor, metrics: Sequence[str]
) -> list[dict[str, Any]]:
    found = score(client.task, outputs, y, metrics)
    return [
        {"model": model, "split": split, "metric": metric, "value": value}
        for metric, value in found.items()
    ]


def _measured(
    method: Method, client: Client, asked: Record, part: Part
) -> tuple[Up, list[dict[str, Any]]]:
    """The client's models on its own data, and on the shared test set those that are its own; the reply says which are the same for all.

    At the last measurement it also says how frequent its most frequent class is and, if it may, histograms of scores
    and the clinical measures of the scores themselves.
    """
    models = served(method, client, asked["down"])
    common = {name for name, one in models.items() if one.same_for_all and asked["alike"]}
    tested = "shared" if "shared" in asked["splits"] else "test"
    rows: list[dict[str, Any]] = []
    more: dict[str, Any] = {}
    counts: dict[str, Tensor] = {}
    clinical: dict[str, dict[str, float]] = {}
    for split in asked["splits"]:
        wanted = {
            name: one.model
            for name, one in models.items()
            if split != "shared" or name not in common
        }
        samples = part(split)
        for name, outputs, y in _predicted(client, wanted, samples):
            rows += _rows(client, name, split, outputs, y, asked["metrics"])
            if asked.get("curves") and split == tested and curves.allowed():
                histogram = curves.of(client.task, outputs, y, name)
                counts |= histogram
                if histogram:
                    clinical[name] = clinical_values(client.task, outputs, y, asked["metrics"])
        if asked.get("ending") and split == "test" and client.task.classifies:
            more["majority"] = curves.majority(samples.y)
    if counts:
        more["curves"] = counts
        more["clinical"] = clinical
    return Up(
        served={name: {"common": name in common, "main": one.main} for name, one in models.items()},
        **more,
    ), rows


def _outputs(
    method: Method, client: Client, asked: Record, part: Part
) -> tuple[Up, list[dict[str, Any]]]:
    """Logits of a model that is the same for all, on a slice of the shared test set."""
    model = served(method, client, asked["down"])[asked["model"]].model
    chosen = torch.arange(asked["start"], asked["stop"])
    return Up(logits=client.predict(model, part("shared").some(chosen))), []


def _handed(
    method: Method, client: Client, asked: Record, part: Part
) -> tuple[Up, list[dict[str, Any]]]:
    """A model that is the same for all, for a server that holds the shared test set itself."""
    return Up(model=served(method, client, asked["down"])[asked["model"]].model), []


def _distance(
    method: Method, client: Client, asked: Record, part: Part
) -> tuple[Up, list[dict[str, Any]]]:
    """Angle and Manhattan distance between the mean features of the client's data under its own and under the new global model."""
    if not len(client.train):
        return Up(), []
    client.inputs = method.inputs(client, asked["down"])
    local, new = (
        client.features(client.load(asked[name])).flatten(1).double().mean(0).numpy()
        for name in ("local", "new")
    )
    return Up(parameter_distances(local, new)), []


def _present(
    method: Method, client: Client, asked: Record, part: Part
) -> tuple[Up, list[dict[str, Any]]]:
    """Nothing but its state, which was read before."""
    return Up(), []


# Steps of the engine's own, beside a method's.
MEASURE, OUTPUTS, HANDED, DISTANCE, PRESENT = (
    "@measure",
    "@outputs",
    "@handed",
    "@distance",
    "@present",
)
STEPS: dict[str, Callable[[Method, Client, Record, Part], tuple[Up, list[dict[str, Any]]]]] = {
    MEASURE: _measured, OUTPUTS: _outputs, HANDED: _handed, DISTANCE: _distance, PRESENT: _present,
}  # fmt: skip
