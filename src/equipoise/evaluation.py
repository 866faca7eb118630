"""What is measured, where and on which data. Test data are touched here and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equipoise.method import Served
from equipoise.metrics import registry
from equipoise.task import Task

if TYPE_CHECKING:
    from equipoise.client import Client
    from equipoise.data import Federation
    from equipoise.experiment import Evaluation
    from equipoise.method import Method
    from equipoise.records import Down
    from equipoise.workbench import Model


def score(task: Task, outputs: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, float]:
    """The value of each metric over some samples; nothing for a metric that does not exist for them, such as AUROC of one class.

    NaN is the value of a model that has diverged: it must not vanish from an average.
    """
    if not len(y):
        return {}
    values, truth = outputs.double().numpy(), y.double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what does not exist has no row, and whoever prints results names the clients
        found = {name: registry.find(name, task).function(values, truth) for name in metrics}
    diverged = not np.isfinite(values).all()
    return {name: value for name, value in found.items() if diverged or not np.isnan(value)}


def check_metrics(settings: Evaluation, task: Task, federation: Federation | None) -> None:
    """Refuse metrics that do not fit the task, and a main one that would not exist for any client."""
    registry.check(task, settings.metrics, settings.main)
    main = registry.main_of(registry.measured(task, settings.metrics, settings.main), settings.main)
    if federation is None or registry.find(main).needs != "two classes":
        return
    parts = [federation.shared_test] if len(federation.shared_test) else list(federation.test)
    y = federation.y.numpy()
    if any(len(part) for part in parts) and all(len(np.unique(y[part])) < 2 for part in parts):
        raise ValueError(
            f"evaluation.main: {main} needs samples of two classes, and no client's test data have them; choose accuracy, or another partition"
        )


def measure(client: Client, models: Mapping[str, Model], splits: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Rows (model, split, metric, value) of a client's models on its own data."""
    from equipoise.workbench import Samples

    federation = client.bench.federation
    assert federation is not None
    rows = []
    for split in splits:
        if split == "shared":
            samples = Samples.of(federation, federation.shared_test)
        else:
            samples = Samples.of(federation, getattr(federation, split)[client.bench.position[client.id]])
        y = samples.y
        for name, model in models.items():
            for metric, value in score(client.task, client.predict(model, samples), y, metrics).items():
                rows.append({"model": name, "split": split, "metric": metric, "value": value})
    return rows


def served(method: Method, client: Client, down: Down) -> dict[str, Served]:
    """What a client serves, by name; exactly one model is the main one. A model that sees inputs changed for this client is its own."""
    client.inputs = method.inputs(client, down)
    given = {name: one if isinstance(one, Served) else Served(one) for name, one in method.serves(client, down).items()}
    main = next((name for name, one in given.items() if one.main), next(iter(given), None))
    return {name: Served(one.model, one.same_for_all and client.inputs is None, name == main) for name, one in given.items()}


def alike(downs: Iterable[Down]) -> bool:
    """Whether all clients were delivered the same."""
    several = iter(downs)
    first = next(several, None)
    return first is None or all(_same(first, other) for other in several)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0)
