"""What is measured, where and on which data. Test data are touched here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.method import Served
from equipoise.task import Task

if TYPE_CHECKING:
    from equipoise.client import Client
    from equipoise.method import Method
    from equipoise.records import Down
    from equipoise.workbench import Model

LOWER_IS_BETTER = ("loss", "rmse", "mae", "calibration_error")


def default_metrics(task: Task) -> tuple[str, ...]:
    return ("accuracy", "loss") if task.classifies else ("rmse", "loss")


def main_metric(task: Task) -> str:
    return default_metrics(task)[0]


def score(task: Task, logits: Tensor, y: Tensor, metrics: Sequence[str]) -> dict[str, float]:
    """The value of each metric over some samples; nothing for none."""
    if not len(y):
        return {}
    found = {}
    for name in metrics:
        if name == "accuracy":
            right = (logits.argmax(1) == y) & torch.isfinite(logits).all(1)  # a diverged model gets nothing right
            found[name] = float(right.double().mean())
        elif name == "loss":
            found[name] = float(
                F.cross_entropy(logits.double(), y) if task.classifies else F.mse_loss(logits.squeeze(-1).double(), y.double())
            )
        elif name == "rmse":
            found[name] = float(F.mse_loss(logits.squeeze(-1).double(), y.double()).sqrt())
        else:
            found[name] = _further(name, logits, y)
    return found


def _further(name: str, logits: Tensor, y: Tensor) -> float:
    from equipoise import metrics

    outputs = logits.double()
    if name == "mae":
        return float((outputs.squeeze(-1) - y.double()).abs().mean())
    return float(getattr(metrics, name)(outputs.softmax(1).numpy(), y.numpy()))


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
