"""Evaluation at the client. Test data are touched here and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.client import Client
from equipoise.data.samples import Samples
from equipoise.method import Method, Served
from equipoise.metrics import Metric, Statistic, parameter_distances, registry
from equipoise.metrics.score_histograms import MEASURES
from equipoise.metrics.survival import Baseline, breslow_baseline, hazard_curves
from equipoise.models import Model
from equipoise.models.group_offsets import GroupOffsets
from equipoise.models.network import Prepared, in_unit
from equipoise.records import Down, Record, Up
from equipoise.runtime import client_histograms, group_histograms
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
from equipoise.runtime.group_histograms import GroupCounts
from equipoise.task import Task
from equipoise.validation.arrays import Array

# Returns a part of a client's data, or the shared test set. A client has no access to it, so that
# no method trains on test data.
Part = Callable[[str], Samples]
Batches = Iterable[tuple[Tensor, Tensor]]  # outputs and truth of some samples
Rows = list[dict[str, Any]]


def score(
    task: Task,
    outputs: Tensor,
    y: Tensor,
    metrics: Iterable[str | Metric],
    baseline: Baseline | None = None,
) -> dict[str, float]:
    """Return the values of metrics over some samples.

    A metric that does not exist for the samples, such as AUROC of one class, has no value. A model
    that has diverged has the value NaN, so that it does not vanish from averages.

    Args:
        task: The task.
        outputs: The outputs of the model.
        y: The truth.
        metrics: The metrics, or their names.
        baseline: The baseline of a Cox model; without it, metrics of survival curves have no value.
    """
    if not len(y):
        return {}
    values = {}
    with warnings.catch_warnings():
        # A metric that does not exist has no row, and results name the clients without one.
        warnings.simplefilter("ignore")
        for metric in metrics:
            if isinstance(metric, str):
                metric = registry.find(metric, task)
            values[metric.name] = _value(task, metric, outputs, y, baseline)
    diverged = not bool(torch.isfinite(outputs).all())
    return {name: value for name, value in values.items() if diverged or not np.isnan(value)}


def _value(
    task: Task, metric: Metric, outputs: Tensor, y: Tensor, baseline: Baseline | None
) -> float:
    values, truth = _in_unit(task, metric, outputs, y)
    if not metric.of_curves:
        return metric(values, truth)
    if task.outputs > 1:
        return metric(hazard_curves(values, task.scale), truth)
    return metric(baseline.curves(values), truth) if baseline is not None else float("nan")


def clinical_values(
    task: Task, outputs: Tensor, y: Tensor, metrics: Iterable[str]
) -> dict[str, float]:
    """Return the clinical measures that exist for these samples and are not among the metrics."""
    measured = set(metrics)
    return score(task, outputs, y, [name for name in MEASURES if name not in measured])


def score_batches(task: Task, batches: Batches, metrics: Sequence[Metric]) -> dict[str, float]:
    """Return the values of metrics with exact statistics, without keeping all outputs.

    Args:
        task: The task.
        batches: Outputs and truth.
        metrics: The metrics, each of which has an exact statistic.
    """
    statistics: dict[str, Statistic] = {}
    diverged = False
    for outputs, y in batches:
        diverged = diverged or not bool(torch.isfinite(outputs).all())
        for metric in metrics:
            assert metric.statistic is not None
            if metric.name not in statistics:
                statistics[metric.name] = metric.statistic.zero()
            batch = metric.statistic.from_batch(*_in_unit(task, metric, outputs, y))
            statistics[metric.name] = statistics[metric.name].merge(batch)
    values = {name: statistic.result() for name, statistic in statistics.items()}
    return {name: value for name, value in values.items() if diverged or not np.isnan(value)}


def _in_unit(task: Task, metric: Metric, outputs: Tensor, y: Tensor) -> tuple[Array, Array]:
    """Return outputs and truth in the target's own unit; the loss has that of training.

    Outputs of survival models have no unit: they are log risks or logits.
    """
    values = outputs.double().numpy()
    truth = y.double().numpy()
    if task.classifies or metric.name == "loss":
        return values, truth
    if task.survives:
        return values, truth * task.scale
    return values * task.scale + task.centre, truth * task.scale + task.centre


def served(method: Method, client: Client, down: Down) -> dict[str, Served]:
    """Return the models that a client serves, by name.

    Exactly one is the main model: the one that is marked, or else the first. A model whose inputs
    are changed for this client is its own.

    Args:
        method: The method of the run.
        client: The client.
        down: What it received.
    """
    client.inputs = method.inputs(client, down)
    models: dict[str, Served] = {}
    for name, model in method.serves(client, down).items():
        models[name] = model if isinstance(model, Served) else Served(model)
    marked = [name for name, model in models.items() if model.main]
    main = next(iter([*marked, *models]), None)
    result = {}
    for name, model in models.items():
        same_for_all = model.same_for_all and client.inputs is None
        result[name] = Served(model.model, same_for_all, name == main)
    return result


def measure(
    client: Client,
    models: Mapping[str, Model],
    splits: Sequence[str],
    metrics: Sequence[str],
    part: Part,
) -> list[dict[str, Any]]:
    """Evaluate models on a client's own data.

    Args:
        client: The client.
        models: The models by name.
        splits: The parts of its data.
        metrics: The names of the metrics.
        part: Returns a part of its data.

    Returns:
        Rows (model, split, metric, value).
    """
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
    """Evaluate a model; batch by batch if no metric needs all outputs at once.

    Args:
        client: The client.
        name: The name of the model.
        split: The name of the part of the data.
        model: The model.
        samples: The samples.
        metrics: The names of the metrics.
        outputs: The outputs of the model, if they have been computed already.
    """
    resolved = [
        client.metrics.get(metric) or registry.find(metric, client.task) for metric in metrics
    ]
    is_exact = all(metric.statistic and metric.statistic.exact for metric in resolved)
    if outputs is None and is_exact:
        values = score_batches(client.task, _batches(client, model, samples), resolved)
    else:
        if outputs is None:
            outputs = outputs_of(client, model, samples)
        baseline = (
            _baseline(client, model) if any(metric.of_curves for metric in resolved) else None
        )
        values = score(client.task, outputs, samples.y, resolved, baseline)
    return [
        {"model": name, "split": split, "metric": metric, "value": value}
        for metric, value in values.items()
    ]


def _baseline(client: Client, model: Model) -> Baseline | None:
    """Return the baseline of a Cox model, from the client's own training data."""
    if not client.task.survives or client.task.outputs > 1:
        return None
    outputs = client.predict(model)
    if not len(outputs) or not bool(torch.isfinite(outputs).all()):
        return None
    times = client.train.y.double().numpy() * client.task.scale
    return breslow_baseline(outputs.double().numpy(), times)


def _batches(client: Client, model: Model, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    for positions in samples.chunks():
        some = samples.some(positions)
        yield outputs_of(client, model, some), some.y


def outputs_of(client: Client, model: Model, samples: Samples) -> Tensor:
    """Return the outputs of a model, with offsets of groups if it has some."""
    outputs = client.predict(model, samples)
    if samples.groups is None or not isinstance(model.net, GroupOffsets):
        return outputs
    return model.net.adjusted(outputs, samples.groups.names_of(model.net.column))


def _evaluate_models(
    method: Method, client: Client, request: EvaluateModels, part: Part
) -> tuple[Up, Rows]:
    """Evaluate the client's models on its own data, and its own models on the shared test set.

    At the last evaluation the reply also holds the share of the client's most frequent class and,
    if the client may send them, histograms of scores, also by group, and clinical measures.
    """
    models = served(method, client, request.down)
    common = {name for name, model in models.items() if model.same_for_all and request.alike}
    tested = "shared" if "shared" in request.splits else "test"
    rows: Rows = []
    majority: float | None = None
    counts: dict[str, Tensor] = {}
    clinical: dict[str, dict[str, float]] = {}
    groups = GroupCounts()
    for split in request.splits:
        samples = part(split)
        y = samples.y
        sends_counts = request.curves and split == tested and client_histograms.allowed()
        cells = _cells(samples, request) if sends_counts else []
        for name, model in models.items():
            if split == "shared" and name in common:
                continue
            outputs = outputs_of(client, model.model, samples) if sends_counts else None
            rows += _rows(client, name, split, model.model, samples, request.metrics, outputs)
            if outputs is not None:
                histogram = client_histograms.of(client.task, outputs, y, name)
                counts |= histogram
                if histogram and client.task.classifies:
                    clinical[name] = clinical_values(client.task, outputs, y, request.metrics)
                if histogram and cells and client.task.classifies:
                    groups.cells = [[cell.column, cell.group] for cell in cells]
                    groups.tables[name] = group_histograms.counted(outputs, y, cells)
        if request.ending and split == "test" and client.task.classifies:
            majority = client_histograms.majority(y)
    statements = {name: ServedModel(name in common, model.main) for name, model in models.items()}
    return ModelsEvaluated(statements, majority, counts, clinical, groups).up(), rows


def _cells(samples: Samples, request: EvaluateModels) -> list[group_histograms.Cell]:
    """Return the groups of samples that the client sends; a site may withhold more."""
    if not request.groups:
        return []
    return group_histograms.sent_cells(samples.groups, group_histograms.minimum(request.groups))


class NotCommon(ValueError):
    """A request for a model that is not the same for all clients, or that there is not."""


def _common_model(method: Method, client: Client, down: Down, name: str) -> Model:
    """Return a served model that is the same for all; no other leaves a client this way."""
    models = served(method, client, down)
    if name not in models or not models[name].same_for_all:
        raise NotCommon(f"{name!r} is not a served model that is the same for all clients")
    return models[name].model


def network(model: Served, client: Client) -> nn.Module:
    """Return a served model as a network that predicts in the unit of the target.

    Args:
        model: The served model.
        client: The client that serves it, with its input transform.
    """
    net = in_unit(model.model.net, client.task).eval()
    if client.inputs is None:
        return net
    return Prepared(client.inputs.other, net).eval()


def _predict_shared(
    method: Method, client: Client, request: PredictShared, part: Part
) -> tuple[Up, Rows]:
    model = _common_model(method, client, request.down, request.model)
    chosen = torch.arange(request.start, request.stop)
    return Up(logits=client.predict(model, part("shared").some(chosen))), []


def _send_model(method: Method, client: Client, request: SendModel, part: Part) -> tuple[Up, Rows]:
    return Up(model=_common_model(method, client, request.down, request.model)), []


def _feature_distance(
    method: Method, client: Client, request: FeatureDistance, part: Part
) -> tuple[Up, Rows]:
    """Return angle and Manhattan distance between the mean features under both models."""
    if not len(client.train):
        return Up(), []
    client.inputs = method.inputs(client, request.down)
    local, new = (
        client.features(client.load(tree)).flatten(1).double().mean(0).numpy()
        for tree in (request.local, request.new)
    )
    return Up(parameter_distances(local, new)), []


def _check_state(
    method: Method, client: Client, request: CheckState, part: Part
) -> tuple[Up, Rows]:
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
    """Return True if a step is an evaluation, not a step of a method."""
    return step in _HANDLERS


def evaluate(
    step: str, method: Method, client: Client, record: Record, part: Part
) -> tuple[Up, Rows]:
    """Execute an evaluation.

    Args:
        step: The name of the request.
        method: The method of the run.
        client: The client that is request.
        record: The request as it travelled.
        part: Gives a part of the client's data, or the shared test set.

    Returns:
        The upload, and rows (model, split, metric, value).
    """
    kind, handler = _HANDLERS[step]
    return handler(method, client, kind.of(record), part)
