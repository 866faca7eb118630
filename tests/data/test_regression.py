"""Numbers as targets: trained in a standard unit, reported in their own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_diabetes

import equipoise as eq
from equipoise.data import Dataset, federate, from_arrays
from equipoise.data.config import DataConfig
from equipoise.runs.export import export
from equipoise.storage.outdated import outdated
from equipoise.task import Task


def diabetes() -> Dataset:
    """As a table: its numbers are scaled."""
    found = load_diabetes()
    return from_arrays(
        found.data, found.target, name="diabetes", columns=found.feature_names, kind="regression"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> eq.Run:
    """The defaults, but for the number of clients."""
    return eq.run(
        eq.Experiment(data={"clients": 4}, dataset=diabetes(), seed=1, workers=0),
        tmp_path_factory.mktemp("run") / "diabetes",
    )


def test_diabetes_trains_with_the_defaults(run: eq.Run) -> None:
    # the error of a constant prediction: 77
    spread = float(load_diabetes(return_X_y=True)[1].std())
    assert 40 < np.mean(list(run.final("rmse").values())) < 0.85 * spread


@pytest.mark.thorough
def test_a_heart_rate_trains_with_the_defaults(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        ages = rng.integers(20, 80, 120)
        rates = 60 + 0.6 * ages + rng.normal(0, 3, 120)
        (tmp_path / f"{site}.csv").write_text(
            "age,rate\n" + "".join(f"{a},{r:.1f}\n" for a, r in zip(ages, rates, strict=True))
        )
    run = eq.run(
        {"data": {"name": str(tmp_path), "label": "rate"}, "workers": 0, "seed": 1},
        tmp_path / "run",
    )
    assert max(run.final("rmse").values()) < 4.5  # the noise is 3, the spread of all rates 11


def test_errors_are_in_the_targets_own_unit(run: eq.Run) -> None:
    _, y = load_diabetes(return_X_y=True)
    federation = federate(DataConfig(clients=4), 1, diabetes())
    rows = federation.source[federation.train.index]
    assert (run.task.centre, run.task.scale) == (
        pytest.approx(y[rows].mean()),
        pytest.approx(y[rows].std()),
    )
    assert federation.y.numpy() == pytest.approx(
        (y[federation.source] - y[rows].mean()) / y[rows].std(), abs=1e-5
    )
    net = run.model("global")
    with torch.no_grad():
        predicted = net(federation.x).squeeze(-1).double().numpy()
    for place, client in enumerate(federation.ids):
        test = federation.test[place]
        error = np.sqrt(np.mean((predicted[test] - y[federation.source[test]]) ** 2))
        assert run.final("rmse")[client] == pytest.approx(error, rel=1e-5)
        # what training minimises
        assert run.final("loss")[client] == pytest.approx((error / run.task.scale) ** 2, rel=1e-4)


def test_the_last_step_is_part_of_the_exported_model(run: eq.Run, tmp_path: Path) -> None:
    saved = load_file(export(run, out=tmp_path / "model.safetensors")[0])
    assert (float(saved["head.1.centre"]), float(saved["head.1.scale"])) == (
        pytest.approx(run.task.centre),
        pytest.approx(run.task.scale),
    )
    assert isinstance(run.model("global").features, torch.nn.Module)


def test_the_unit_of_the_target_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    """Twice the numbers plus 1024, which float32 holds exactly for these: the same standardised
    targets.
    """
    x, y = load_diabetes(return_X_y=True)
    settings: dict[str, Any] = {
        "data": {"clients": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "rounds": 2,
        "seed": 1,
        "workers": 0,
    }
    runs = [
        eq.run(
            eq.Experiment(dataset=from_arrays(x, values, kind="regression"), **settings),
            tmp_path / name,
        )
        for name, values in {"one": y, "two": 2 * y + 1024}.items()
    ]
    one, two = (run.model("global").state_dict() for run in runs)
    for name in one:
        if not name.startswith("head.1."):
            assert torch.allclose(one[name], two[name], atol=1e-5)
    first, second = (run.final("rmse") for run in runs)
    assert len(first) == 3 and second == pytest.approx(
        {client: 2 * error for client, error in first.items()}, rel=1e-4
    )


def test_a_schemas_centre_and_scale_stand_in_place_of_training_rows() -> None:
    _, y = load_diabetes(return_X_y=True)
    federation = federate(
        DataConfig(schema={"task": "regression", "centre": 100.0, "scale": 50.0}), 1, diabetes()
    )
    assert (federation.task.centre, federation.task.scale) == (100.0, 50.0)
    assert federation.y.numpy() == pytest.approx((y[federation.source] - 100) / 50, abs=1e-6)


def test_only_whole_numbers_from_zero_can_be_classes() -> None:
    def numbers(*targets: float) -> Dataset:
        return from_arrays(np.zeros((len(targets), 2)), np.array(targets), kind="regression")

    classes = numbers(2.0, 0.0, 1.0, 2.0).as_task("classification")
    assert (
        classes.y.tolist() == [2, 0, 1, 2]
        and classes.task.outputs == 3
        and classes.as_task(None) is classes
    )
    for targets in ((0.0, 1.5), (0.5, 1.5), (-1.0, 1.0)):
        with pytest.raises(
            ValueError,
            match=(
                "its targets are not whole numbers from 0, so they cannot be classes; use task: "
                "regression"
            ),
        ):
            numbers(*targets).as_task("classification")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_targets_must_be_finite(bad: float) -> None:
    with pytest.raises(
        ValueError, match="every target must be finite; leave out samples without one"
    ):
        Dataset("sensors", torch.zeros(2, 3), torch.tensor([1.0, bad]), Task("regression", (3,), 1))


def test_equal_targets_do_not_divide_by_zero() -> None:
    federation = federate(
        DataConfig(), 1, from_arrays(np.arange(40.0)[:, None], np.full(40, 7.5), kind="regression")
    )
    assert (federation.task.centre, federation.task.scale) == (7.5, 1.0)
    assert federation.y.abs().sum() == 0


def test_worker_processes_know_the_unit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data": {"clients": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "rounds": 1,
        "seed": 1,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here, there = (
            eq.run(
                eq.Experiment(dataset=diabetes(), workers=workers, **settings),
                tmp_path / str(workers),
            )
            for workers in (0, 1)
        )
    assert here.final("rmse") == there.final("rmse")
    assert min(here.final("rmse").values()) > 30


def test_runs_from_before_are_said_to_be_outdated() -> None:
    config = {"training": {}, "method": {"name": "fedavg"}}
    assert "did not standardise" in str(
        outdated(config, "0.2.0", {"kind": "regression", "shape": [3]})
    )
    assert (
        outdated(config, "0.2.0", {"kind": "regression", "shape": [3], "centre": 1.0, "scale": 2.0})
        is None
    )
    assert outdated(config, "0.2.0", {"kind": "classification", "shape": [3]}) is None
