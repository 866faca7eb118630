"""Evaluation at the client. Test data are touched here and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.data.samples import Samples
from equipoise.method import Method, Served
from equipoise.metrics import Metric, Statistic, parameter_distances, registry
from equipoise.metrics.score_histograms import MEASURES
from equipoise.models import Model
from equipoise.records import Down, Record, Up
from equipoise.runtime import client_histograms
from equipoise.runtime.evaluation_messages import (
    CheckState,
    EvaluateModels,
    EvaluationRequest,
    FeatureDistance,
    ModelsEvaluated,
    PredictShared,
    SendModel,
    ServedModel,
)
from equipoise.task import Task
from equipoise.validation.arrays import Array

# A part of a client's data, or the shared test set: not to be had through a client, so that no method trains on it.
Part = Callable[[str], Samples]


Batches = Iterable[tuple[Tensor, Tensor]]  # outputs and truth of some samples


def score(
    task: Task, outputs: Tensor, y: Tensor, metrics: Iterable[str | Metric]
) -> dict[str, float]:
    """The value of each metric over some samples; nothing for a metric that does not exist for them, such as AUROC of one class.

    NaN is the value of a model that has diverged: it must not vanish from an average.
    """
    if not len(y):
        return {}
    asked = [registry.find(one, task) if isinstance(one, str) else one for one in metrics]
    with warnings.catch_warnings():
        # what does not exist has no row, and whoever prints results names the clients
        warnings.simplefilter("ignore")
        found = {metric.name: metric(*_in_unit(task, metric, outputs, y)) for metric in asked}
    diverged = not bool(torch.isfinite(outputs).all())
    return {name: value for name, value in found.items() if diverged or not np.isnan(value)}


def clinical_values(
    task: Task, outputs: Tensor, y: Tensor, metrics: Iterable[str]
) -> dict[str, float]:
    """Return the clinical measures that exist for these samples and are not among the metrics."""
    measured = set(metrics)
    return score(task, outputs, y, [name for name in MEASURES if name not in measured])


def score_batches(task: Task, batches: Batches, metrics: Sequence[Metric]) -> dict[str, float]:
    """As `score`, for metrics with exact statistics: of each batch these are kept, not the outputs."""
    found: dict[str, Statistic] = {}
    diverged = False
    for outputs, y in batches:
        diverged = diverged or not bool(torch.isfinite(outputs).all())
        for metric in metrics:
            assert metric.statistic is not None  # the caller's choice
            if metric.name not in found:
                found[metric.name] = metric.statistic.zero()
            batch = metric.statistic.from_batch(*_in_unit(task, metric, outputs, y))
            found[metric.name] = found[metric.name].merge(batch)
    values = {name: one.result() for name, one in found.items()}
    return {name: value for name, value in values.items() if diverged or not np.isnan(value)}


def _in_unit(task: Task, metric: Metric, outputs: Tensor, y: Tensor) -> tuple[Array, Array]:
    """Errors are told in the target's own unit; the loss is what training minimises."""
    values, truth = outputs.double().numpy(), y.double().numpy()
    if task.classifies or metric.name == "loss":
        return values, truth
    return values * task.scale + task.centre, truth * task.scale + task.centre


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
        samples = part(split)
        for name, model in models.items():
            rows += _rows(client, name, split, model, samples, metrics)
    return rows


def _rows(
    client: Client,
    name: str,
    split: str,
    model: Model,
    samples: Samples,
    metrics: Sequence[str],
    outputs: Tensor | None = None,
) -> list[dict[str, Any]]:
    """The outputs are computed here if nobody needed them before; batch by batch where no metric needs all of them at once."""
    asked = [client.metrics.get(one) or registry.find(one, client.task) for one in metrics]
    exact = all(metric.statistic and metric.statistic.exact for metric in asked)
    if outputs is None and exact:
        found = score_batches(client.task, _batches(client, model, samples), asked)
    else:
        outputs = client.predict(model, samples) if outputs is None else outputs
        found = score(client.task, outputs, samples.y, asked)
    return [
        {"model": name, "split": split, "metric": metric, "value": value}
        for metric, value in found.items()
    ]


Rows = list[dict[str, Any]]


def _batches(client: Client, model: Model, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    for positions in samples.chunks():
        some = samples.some(positions)
        yield client.predict(model, some), some.y


def _evaluate_models(
    method: Method, client: Client, asked: EvaluateModels, part: Part
) -> tuple[Up, Rows]:
    """Evaluate the client's models on its own data, and those that are its own on the shared test set.

    At the last evaluation the reply also says how frequent the client's most frequent class is and, if it may, holds
    histograms of scores and the clinical measures of the scores themselves.
    """
    models = served(method, client, asked.down)
    common = {name for name, one in models.items() if one.same_for_all and asked.alike}
    tested = "shared" if "shared" in asked.splits else "test"
    rows: Rows = []
    majority: float | None = None
    counts: dict[str, Tensor] = {}
    clinical: dict[str, dict[str, float]] = {}
    for split in asked.splits:
        own = {
            name: one.model
            for name, one in models.items()
            if split != "shared" or name not in common
        }
        samples = part(split)
        drawn = asked.curves and split == tested and client_histograms.allowed()
        for name, model in own.items():
            outputs = client.predict(model, samples) if drawn else None
            rows += _rows(client, name, split, model, samples, asked.metrics, outputs)
            if outputs is not None:
                histogram = client_histograms.of(client.task, outputs, samples.y, name)
                counts |= histogram
                if histogram:
                    y, metrics = samples.y, asked.metrics
                    clinical[name] = clinical_values(client.task, outputs, y, metrics)
        if asked.ending and split == "test" and client.task.classifies:
            majority = client_histograms.majority(samples.y)
    told = {name: ServedModel(name in common, one.main) for name, one in models.items()}
    return ModelsEvaluated(told, majority, counts, clinical).up(), rows


def _predict_shared(
    method: Method, client: Client, asked: PredictShared, part: Part
) -> tuple[Up, Rows]:
    model = served(method, client, asked.down)[asked.model].model
    chosen = torch.arange(asked.start, asked.stop)
    return Up(logits=client.predict(model, part("shared").some(chosen))), []


def _send_model(method: Method, client: Client, asked: SendModel, part: Part) -> tuple[Up, Rows]:
    return Up(model=served(method, client, asked.down)[asked.model].model), []


def _feature_distance(
    method: Method, client: Client, asked: FeatureDistance, part: Part
) -> tuple[Up, Rows]:
    """Return angle and Manhattan distance between the mean features under both models."""
    if not len(client.train):
        return Up(), []
    client.inputs = method.inputs(client, asked.down)
    local, new = (
        client.features(client.load(tree)).flatten(1).double().mean(0).numpy()
        for tree in (asked.local, asked.new)
    )
    return Up(parameter_distances(local, new)), []


def _check_state(method: Method, client: Client, asked: CheckState, part: Part) -> tuple[Up, Rows]:
    return Up(), []  # its state was read before


_HANDLERS: dict[str, tuple[type[EvaluationRequest], Callable[..., tuple[Up, Rows]]]] = {
    kind.step: (kind, handler)
    for kind, handler in (
        (EvaluateModels, _evaluate_models),
        (PredictShared, _predict_shared),
        (SendModel, _send_model),
        (FeatureDistance, _feature_distance),
        (CheckState, _check_state),
    )
}


def handles(step: str) -> bool:
    """Return whether a step is an evaluation, not a method's own."""
    return step in _HANDLERS


def evaluate(
    step: str, method: Method, client: Client, record: Record, part: Part
) -> tuple[Up, Rows]:
    """Execute an evaluation.

    Args:
        step: The name of the request.
        method: The method of the run.
        client: The client that is asked.
        record: The request as it travelled.
        part: Gives a part of the client's data, or the shared test set.

    Returns:
        The upload, and rows (model, split, metric, value).
    """
    kind, handler = _HANDLERS[step]
    return handler(method, client, kind.of(record), part)
