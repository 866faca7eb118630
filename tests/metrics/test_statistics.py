"""Sufficient statistics: parts merge into the metric of all samples, exactly where that is claimed,
and clients keep no outputs then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference

import equipoise as eq
from equipoise.metrics import METRICS, Metric
from equipoise.metrics.statistics import Hits
from tests.helpers.runs import played, settings

MERGING = [metric for metric in METRICS if metric.statistic is not None]


def samples(metric: Metric, seed: int, n: int = 700) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and truth; of classes some rows tie, and one class occurs in few parts."""
    draw = np.random.default_rng(seed)
    if metric.needs == "values":
        y = draw.normal(size=n)
        return (y + draw.normal(size=n))[:, None], y
    y = draw.integers(0, 4, n)
    y[y == 3] = np.where(draw.random((y == 3).sum()) < 0.05, 3, 0)
    z = np.round(draw.normal(size=(n, 4)) + 1.5 * np.eye(4)[y], 1)
    return z, y.astype(np.float64)


@pytest.mark.parametrize("metric", MERGING, ids=lambda metric: f"{metric.name}-{metric.needs}")
@pytest.mark.parametrize("seed", range(5))
def test_parts_in_any_order_merge_into_the_value_of_all(metric: Metric, seed: int) -> None:
    z, y = samples(metric, seed)
    kind = metric.statistic
    assert kind is not None
    order = np.random.default_rng(seed).permutation(len(y))
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(y), 6))  # some parts may be empty
    total = kind.zero()
    for part in np.split(order, cuts):
        total = kind.from_batch(z[part], y[part]).merge(total)
    whole = metric(z, y)
    if kind.exact:
        assert total.result() == whole
    assert total.result() == pytest.approx(whole, rel=1e-12)
    assert np.isnan(kind.zero().result())
    assert kind.zero().merge(total) == total


def test_results_are_those_of_scikit_learn() -> None:
    by_name = {(metric.name, metric.needs): metric for metric in MERGING}
    z, y = samples(by_name["accuracy", "classes"], 9)
    chances = np.exp(z - z.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    classes = {
        "accuracy": reference.accuracy_score(y, z.argmax(1)),
        "balanced_accuracy": reference.balanced_accuracy_score(y, z.argmax(1)),
        "loss": reference.log_loss(y, chances, labels=range(4)),
    }
    v, t = samples(by_name["rmse", "values"], 9)
    values = {
        "rmse": reference.mean_squared_error(t, v) ** 0.5,
        "loss": reference.mean_squared_error(t, v),
        "mae": reference.mean_absolute_error(t, v),
    }
    for expected, needs, given in ((classes, "classes", (z, y)), (values, "values", (v, t))):
        for name, value in expected.items():
            kind = by_name[name, needs].statistic
            assert kind is not None
            halves = [kind.from_batch(*(one[k::2] for one in given)) for k in (0, 1)]
            assert halves[0].merge(halves[1]).result() == pytest.approx(value, rel=1e-10)


def test_a_diverged_part_makes_the_loss_of_all_undefined() -> None:
    (loss,) = (m.statistic for m in MERGING if (m.name, m.needs) == ("loss", "classes"))
    assert loss is not None
    good, bad = loss.from_batch([[0.0, 1.0]], [1.0]), loss.from_batch([[np.nan, 1.0]], [1.0])  # type: ignore[arg-type]
    assert np.isnan(good.merge(bad).result())
    assert Hits.from_batch([[np.nan, 1.0], [0.0, 1.0]], [1, 1]).result() == 0.5  # type: ignore[arg-type]


class Sizes(Hits):
    """Accuracy that records how many samples it saw at once."""

    seen: list[int] = []

    @classmethod
    def from_batch(cls, outputs: Any, y: Any) -> Any:
        cls.seen.append(len(y))
        return super().from_batch(outputs, y)


def whole(outputs: Any, y: Any) -> float:
    """Needs all outputs at once: not asked where the statistic is exact."""
    raise AssertionError("all outputs were kept")


def test_clients_evaluate_exact_metrics_batch_by_batch_with_the_same_bits(tmp_path: Path) -> None:
    metric = Metric("share", whole, True, "%", "classes", Sizes)
    base = {
        "data": {"name": "digits", "clients": 2},
        "rounds": 2,
        "workers": 0,
        "model": {"name": "mlp", "hidden": [8]},
    }
    evaluation: dict[str, Any] = {"splits": ["train", "test"], "curves": False}
    Sizes.seen.clear()
    by_batch = eq.run(
        {**base, "evaluation": {**evaluation, "metrics": [metric, "accuracy"]}}, tmp_path / "batch"
    )
    at_once = eq.run(
        {**base, "evaluation": {**evaluation, "metrics": ["accuracy", "loss"]}}, tmp_path / "once"
    )
    assert max(Sizes.seen) <= 256 < sum(Sizes.seen) / 8
    for split in ("train", "test"):
        found = [
            [row["value"] for row in run.table(split=split, metric=name, model="global")]
            for run, name in ((by_batch, "share"), (by_batch, "accuracy"), (at_once, "accuracy"))
        ]
        assert found[0] == found[1] == found[2] and len(found[0]) >= 4


def test_an_empty_part_has_no_value(tmp_path: Path) -> None:
    run = played(
        settings(
            "fedavg",
            rounds=1,
            evaluation={"metrics": ["accuracy"], "splits": ["validation", "test"]},
            data={"split": [0.8, 0.0, 0.2]},
        ),
        tmp_path / "run",
    )
    assert run.final() and not list(run.table(split="validation"))
