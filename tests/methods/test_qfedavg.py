"""qFedAvg: the paper's lines in float64, what it reduces to, and its edges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.composition import compose
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedprox import FedProx
from equipoise.methods.qfedavg import QFedAvg
from equipoise.records import State
from tests.helpers.counting import counted
from tests.helpers.digits import (
    NETWORKS,
    experiment,
    flat,
    model_of,
    plain_losses,
    refused,
    replies,
    samples,
    server,
    updates,
    vector,
)
from tests.helpers.plain import same

LR = 0.1


def stepped(
    q: float, start: list[float], models: list[list[float]], losses: list[float]
) -> np.ndarray:
    """The new model, from these uploaded ones."""
    method, state, asked = (
        QFedAvg(q=q),
        State(model=vector(start)),
        server([1] * len(models), lr=LR),
    )
    drift = [float(np.linalg.norm(np.array(start) - np.array(model))) for model in models]
    ups = replies(models, loss=losses, drift=drift)
    return flat(method.update(asked, state, ups, method.weights(asked, state, ups)).model)


def plain_step(
    q: float, lr: float, start: np.ndarray, models: list[np.ndarray], losses: list[float]
) -> np.ndarray:
    """Algorithm 2, as it is written."""
    numerator, denominator = np.zeros_like(start), 0.0
    for model, loss in zip(models, losses, strict=True):
        gradient = (start - model) / lr
        numerator += (loss + 1e-10) ** q * gradient
        denominator += (
            q * (loss + 1e-10) ** (q - 1) * float(gradient @ gradient) + (loss + 1e-10) ** q / lr
        )
    return start - numerator / denominator


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("lr_decay", [1.0, 0.37])
def test_with_q_0_it_is_uniform_fedavg(tmp_path: Path, network: str, lr_decay: float) -> None:
    training = {"lr": 0.07, "lr_decay": lr_decay}
    plain, none, own = (
        model_of(eq.run(experiment(method, network, training=training), out=tmp_path / str(k)))
        for k, method in enumerate((FedAvg(average="uniform"), QFedAvg(q=0), QFedAvg(q=1)))
    )
    assert same(plain, none) and not same(plain, own)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("q", [0.1, 1.0, 5.0])
def test_a_run_is_that_of_a_plain_loop(tmp_path: Path, network: str, q: float) -> None:
    wanted = experiment(
        QFedAvg(q=q), network, participation={"number": 4}, training={"lr": LR, "lr_decay": 0.5}
    )
    with updates(QFedAvg) as seen:
        eq.run(wanted, out=tmp_path / "run")
    for round, one in enumerate(seen):
        losses = plain_losses(wanted, one.state.model, one.ups.ids)
        np.testing.assert_allclose(one.ups.numbers("loss"), losses, rtol=1e-5)
        expected = plain_step(
            q, LR * 0.5**round, flat(one.state.model), [flat(up.model) for up in one.ups], losses
        )
        np.testing.assert_allclose(flat(one.new.model), expected, rtol=0, atol=2e-6)
        for name in one.new.model.rest:
            values = [up.model[name].double().numpy() for up in one.ups]
            powers = np.array(losses) ** q
            mean = sum(p * value for p, value in zip(powers / powers.sum(), values, strict=True))
            np.testing.assert_allclose(
                one.new.model[name].double().numpy(),
                mean if "running" in name else max(values),
                rtol=1e-5,
                atol=1e-6,
            )


def test_one_client_moves_by_its_update_divided_by_its_curvature() -> None:
    start, model, loss, q = np.array([1.0, -2.0, 0.5]), np.array([0.4, -1.0, 0.5]), 1.7, 2.0
    gradient = (start - model) / LR
    moved = start - stepped(q, start.tolist(), [model.tolist()], [loss])
    np.testing.assert_allclose(
        moved, gradient / (q * gradient @ gradient / loss + 1 / LR), rtol=1e-6
    )
    assert np.linalg.norm(moved) <= np.linalg.norm(start - model)


def test_equal_losses_and_norms_shorten_the_mean_step() -> None:
    start, loss, q = [0.0, 0.0], 0.8, 1.5
    models = [[0.3, 0.4], [0.5, 0.0], [-0.3, 0.4]]
    mean, square = np.mean(models, axis=0), (0.5 / LR) ** 2
    np.testing.assert_allclose(
        stepped(q, start, models, [loss] * 3), mean / (1 + q * square / (loss / LR)), rtol=1e-6
    )


@pytest.mark.parametrize("q", [0.1, 1.0, 3.0])
def test_coefficients_of_updates_are_as_losses_to_the_power_q(q: float) -> None:
    moved = stepped(q, [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [2.0, 0.5])
    assert moved[0] / moved[1] == pytest.approx(4**q, rel=1e-6)


def test_extreme_losses_and_powers_stay_defined() -> None:
    huge = stepped(200.0, [0.0, 0.0], [[0.1, 0.0], [0.0, 0.1]], [1e4, 1e3])
    assert np.isfinite(huge).all() and huge[0] > 0 and huge[1] == 0
    for losses in ([0.0, 0.0], [0.0, 1.0]):
        expected = plain_step(
            0.1, LR, np.zeros(2), [np.array([0.1, 0.0]), np.array([0.0, 0.1])], losses
        )
        np.testing.assert_allclose(
            stepped(0.1, [0.0, 0.0], [[0.1, 0.0], [0.0, 0.1]], losses), expected, rtol=1e-5
        )
    assert stepped(1.0, [3.0], [[3.0], [3.0]], [1.0, 2.0]).tolist() == [3.0], "nobody moved"


@pytest.mark.parametrize(
    "training",
    [{"optimiser": "adam"}, {"momentum": 0.9}, {"weight_decay": 1e-4}, {"clip": 1.0}],
    ids=lambda one: next(iter(one)),
)
def test_anything_but_plain_sgd_is_refused(tmp_path: Path, training: dict[str, Any]) -> None:
    sentence = refused(lambda: experiment("qfedavg", training=training), tmp_path / "run")
    assert (
        "QFedAvg needs plain sgd" in sentence
        and str(next(iter(training.values()))) in sentence
        and "set training.optimiser=sgd" in sentence
    )


def test_a_negative_power_is_refused(tmp_path: Path) -> None:
    assert "method.q" in refused(
        lambda: experiment({"name": "qfedavg", "q": -0.1}), tmp_path / "run"
    )


def test_it_costs_one_pass_without_gradient_more_than_fedavg(tmp_path: Path) -> None:
    with counted() as passes:
        run = eq.run(experiment("qfedavg", training={"epochs": 2}), out=tmp_path / "run")
    assert passes == {
        ("client", "gradient"): 3 * 2 * samples(run),
        ("client", "forward"): 3 * samples(run),
    }


def test_regression_is_weighed_by_squared_error(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    data = eq.from_arrays(x, x @ np.array([1.0, -2.0, 0.5]), kind="regression")
    with updates(QFedAvg) as seen:
        eq.run(
            experiment(
                QFedAvg(q=1), data={"partition": "iid", "clients": 2}, dataset=data, rounds=1
            ),
            out=tmp_path / "run",
        )
    assert (seen[0].ups.numbers("loss") > 0).all() and 0 < seen[0].weights.step < 1


@pytest.mark.thorough
def test_as_the_weight_rule_of_another_method(tmp_path: Path) -> None:
    own = eq.run(experiment(QFedAvg(q=1), "cnn"), out=tmp_path / "own")
    guest = eq.run(
        experiment(compose(FedProx(mu=0), weights=QFedAvg(q=1)), "cnn"), out=tmp_path / "guest"
    )
    assert own.weights() == guest.weights() and same(model_of(own), model_of(guest))
    assert not torch.equal(
        model_of(own)["head.weight"],
        model_of(eq.run(experiment("fedavg", "cnn"), out=tmp_path / "avg"))["head.weight"],
    )


def test_a_loss_of_nothing_counts_as_a_ten_billionth() -> None:
    server: Any = SimpleNamespace(lr=0.5)
    ups: Any = SimpleNamespace(
        numbers={"loss": np.array([0.0, 1.0 - 1e-10]), "drift": np.array([0.0, 3.0])}.__getitem__
    )
    found = QFedAvg(q=0.5).weights(server, State(), ups)
    np.testing.assert_allclose(found.shares, [1e-5, 1.0])
    # h = F^q (1 + q L |drift|^2 / F)
    assert found.step == pytest.approx((1 + 1e-5) / (1e-5 + 1 + 0.5 * 2 * 9))
