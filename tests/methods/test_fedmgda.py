"""FedMGDA+: weights against a general solver, the update in float64, step lengths, edge cases."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedmgda import FedMGDA
from equipoise.records import State
from equipoise.tree import FileTensors
from tests.helpers.counting import counted
from tests.helpers.digits import (
    NETWORKS,
    experiment,
    flat,
    refused,
    replies,
    samples,
    server,
    updates,
    vector,
)
from tests.helpers.plain import same


def stepped(
    method: FedMGDA, steps: list[list[float]], sizes: list[float] | None = None, **asked: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The weights and the step (old minus new model) of clients whose updates are these.

    The model starts at 0, so that no bit is lost.
    """
    ups = replies(
        [[-value for value in step] for step in steps],
        length=[float(np.linalg.norm(np.float32(step).astype(float))) for step in steps],
    )
    at, state = (
        server(sizes or [1] * len(steps), **asked),
        State(model=vector([0.0] * len(steps[0]))),
    )
    given = method.weights(at, state, ups)
    return given.shares, -flat(method.update(at, state, ups, given).model)


def by_slsqp(unit: np.ndarray, centre: np.ndarray, epsilon: float) -> np.ndarray:
    """The weights in the box that minimise the norm, by a general solver from several starts."""
    products, best = unit @ unit.T, None
    bounds = [(max(0.0, c - epsilon), min(1.0, c + epsilon)) for c in centre]
    for start in (centre, np.ones(len(centre)) / len(centre)):
        found = minimize(
            lambda w: w @ products @ w,
            start,
            jac=lambda w: 2 * products @ w,
            bounds=bounds,
            method="SLSQP",
            constraints=[
                {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(len(w))}
            ],
            options={"ftol": 1e-15, "maxiter": 500},
        )
        best = found if best is None or found.fun < best.fun else best
    return np.asarray(best.x)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_a_run_is_that_of_a_plain_loop(tmp_path: Path, network: str, epsilon: float) -> None:
    rounds = 3
    with updates(FedMGDA) as seen:
        eq.run(
            experiment(
                FedMGDA(epsilon=epsilon), network, rounds=rounds, participation={"number": 4}
            ),
            out=tmp_path / "run",
        )
    for t, one in enumerate(seen):
        start = flat(one.state.model)
        g = np.stack([start - flat(up.model) for up in one.ups])
        unit = g / np.linalg.norm(g, axis=1, keepdims=True)
        sizes = np.array([one.server.sizes[client] for client in one.ups.ids], float)
        weights = one.weights.shares / one.weights.shares.sum()
        expected = by_slsqp(unit, sizes / sizes.sum(), epsilon)
        assert np.linalg.norm(weights @ unit) <= np.linalg.norm(expected @ unit) + 1e-6
        np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-4)
        eta = 0.1 ** (t / (rounds - 1))
        np.testing.assert_allclose(
            flat(one.new.model), start - eta * weights @ unit, rtol=0, atol=1e-6
        )
        for name in one.new.model.rest:
            values = [up.model[name].double() for up in one.ups]
            mean = sum(share * value for share, value in zip(weights, values, strict=True))
            torch.testing.assert_close(
                one.new.model[name].double(),
                mean if "running" in name else torch.stack(values).amax(0),
                rtol=1e-5,
                atol=1e-6,
            )


def test_buffers_are_weighed_by_lambda_not_by_lambda_over_length(tmp_path: Path) -> None:
    with updates(FedMGDA) as seen:
        eq.run(
            experiment(FedMGDA(epsilon=0), "cnn", rounds=1, training={"steps": 9}),
            out=tmp_path / "run",
        )
    (one,) = seen
    name = next(name for name in one.new.model.rest if name.endswith("running_var"))
    sizes = np.array([one.server.sizes[client] for client in one.ups.ids], float)
    right, wrong = (
        sum(
            share * up.model[name].double()
            for share, up in zip(shares / shares.sum(), one.ups, strict=True)
        )
        for shares in (sizes, sizes / one.ups.numbers("length"))
    )
    torch.testing.assert_close(one.new.model[name].double(), right, rtol=1e-6, atol=1e-7)
    assert (right - wrong).abs().max() > 1e-5


def test_without_room_weights_are_those_of_fedavg() -> None:
    weights, step = stepped(FedMGDA(epsilon=0), [[3.0, 0.0], [0.0, -0.1]], [30, 10])
    np.testing.assert_allclose(weights, [0.75, 0.25], rtol=0, atol=1e-12)
    np.testing.assert_allclose(step, [0.75, -0.25], rtol=1e-6)
    assert stepped(FedMGDA(epsilon=0, average="uniform"), [[3.0, 0.0], [0.0, -0.1]], [30, 10])[
        0
    ].tolist() == [0.5, 0.5]


def test_orthogonal_updates_weigh_alike_whatever_their_length() -> None:
    weights, step = stepped(
        FedMGDA(epsilon=1, server_rate=0.7), np.diag([0.01, 1.0, 30.0, 5.0]).tolist(), [1, 2, 3, 4]
    )
    np.testing.assert_allclose(weights, 0.25, atol=1e-9)
    assert np.linalg.norm(step) == pytest.approx(0.7 / 2, rel=1e-6)


def test_opposite_updates_cancel() -> None:
    _, step = stepped(FedMGDA(epsilon=1), [[0.3, 0.4], [-3.0, -4.0]], [1, 99])
    assert np.abs(step).max() < 1e-7


def test_with_full_room_the_step_descends_for_all() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        steps = draw.normal(size=(int(draw.integers(2, 8)), 12)) + draw.normal(size=12)
        weights, d = stepped(
            FedMGDA(epsilon=1), steps.tolist(), draw.integers(1, 99, len(steps)).tolist()
        )
        products = steps / np.linalg.norm(steps, axis=1, keepdims=True) @ d
        assert (products >= d @ d - 1e-6).all()
        np.testing.assert_allclose(products[weights > 1e-9], d @ d, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_the_length_of_an_update_changes_nothing(epsilon: float) -> None:
    steps = np.random.default_rng(1).normal(size=(5, 9))
    scaled = steps * np.array([[1.0, 100.0, 0.01, 1.0, 7.0]]).T
    (weights, step), (again, same_step) = (
        stepped(FedMGDA(epsilon=epsilon), rows.tolist(), [5, 10, 20, 10, 5])
        for rows in (steps, scaled)
    )
    np.testing.assert_allclose(weights, again, atol=1e-6)
    np.testing.assert_allclose(step, same_step, atol=1e-6)


def test_weights_stay_in_the_box() -> None:
    draw = np.random.default_rng(2)
    for _ in range(100):
        count, epsilon = int(draw.integers(1, 9)), float(draw.choice([0.001, 0.05, 0.1, 0.5, 0.99]))
        sizes = draw.integers(1, 100, count)
        weights, _ = stepped(
            FedMGDA(epsilon=epsilon), draw.normal(size=(count, 20)).tolist(), sizes.tolist()
        )
        assert abs(weights.sum() - 1) <= 1e-12 and (weights >= 0).all()
        assert (np.abs(weights - sizes / sizes.sum()) <= epsilon + 1e-9).all()


def test_the_step_of_one_client_is_as_long_as_the_rate_which_decays_over_the_run() -> None:
    for round, expected in ((1, 2.0), (6, 2.0 * 0.1**0.5), (11, 0.2)):
        _, step = stepped(FedMGDA(server_rate=2.0), [[0.03, 0.04]], round=round, rounds=11)
        np.testing.assert_allclose(step, expected * np.array([0.6, 0.8]), rtol=1e-6)
    _, only = stepped(FedMGDA(), [[0.03, 0.04]], round=1, rounds=1)
    np.testing.assert_allclose(only, [0.6, 0.8], rtol=1e-6)


def test_the_preset_of_corefed_steps_by_the_clients_learning_rate(tmp_path: Path) -> None:
    training = {"lr": 0.2, "lr_decay": 0.5}
    with updates(FedMGDA) as seen:
        eq.run(experiment(FedMGDA(preset="corefed"), training=training), out=tmp_path / "run")
    assert [one.weights.step for one in seen] == [0.2, 0.1, 0.05]


def test_rescaled_by_the_mean_norm_one_client_moves_to_its_own_model() -> None:
    _, step = stepped(FedMGDA(rescale="mean_norm"), [[0.03, 0.04]])
    np.testing.assert_allclose(step, [0.03, 0.04], rtol=1e-6)
    _, step = stepped(
        FedMGDA(rescale="mean_norm", epsilon=1), [[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [1, 1, 1]
    )
    np.testing.assert_allclose(step, [1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_a_client_that_did_not_move_is_left_out(epsilon: float) -> None:
    steps = [[0.3, 0.1], [0.0, 0.0], [-0.1, 0.5]]
    weights, step = stepped(FedMGDA(epsilon=epsilon), steps, [10, 50, 30])
    without, same_step = stepped(FedMGDA(epsilon=epsilon), [steps[0], steps[2]], [10, 30])
    assert weights[1] == 0
    np.testing.assert_allclose(weights[[0, 2]], without, atol=1e-12)
    np.testing.assert_allclose(step, same_step, atol=1e-7)


def test_if_nobody_moved_the_model_stays() -> None:
    weights, step = stepped(FedMGDA(), [[0.0, 0.0], [0.0, 0.0]], [10, 30])
    assert (step == 0).all() and weights.tolist() == [10, 30]


def test_replies_through_files_change_no_bit(tmp_path: Path) -> None:
    settings = {
        "data": {"name": "digits", "partition": "iid", "clients": 12},
        "model": {"name": "mlp", "hidden": [300]},
        "rounds": 1,
    }
    with updates(FedMGDA) as seen:
        for folder, memory in (("held", 512), ("spooled", 1)):
            eq.run(experiment(FedMGDA(), **settings, memory=memory), out=tmp_path / folder)
    held, spooled = seen
    assert isinstance(spooled.ups[0].model._tensors, FileTensors) and not isinstance(
        held.ups[0].model._tensors, FileTensors
    )
    assert same(held.new.model, spooled.new.model)


def test_it_costs_what_fedavg_costs(tmp_path: Path) -> None:
    with counted() as passes:
        run = eq.run(experiment("fedmgda", training={"epochs": 2}), out=tmp_path / "run")
    assert passes == {("client", "gradient"): 3 * 2 * samples(run)}


def test_bad_parameters_are_refused_before_round_1(tmp_path: Path) -> None:
    for name, value in (
        ("epsilon", 1.5),
        ("server_rate", 0),
        ("decay", 0),
        ("decay", 2),
        ("preset", "easyfl"),
    ):
        assert f"method.{name}" in refused(
            lambda name=name, value=value: experiment({"name": "fedmgda", name: value}),
            tmp_path / "run",
        )


def test_weights_and_update_go_together() -> None:
    with pytest.raises(IncompatibleComposition, match="derived for its own weights"):
        compose(FedMGDA(), weights=FedAvg())
    with pytest.raises(IncompatibleComposition, match="no weight rule that stands"):
        compose(FedAvg(), weights=FedMGDA())


@pytest.mark.parametrize(
    ("round", "rounds", "rate"),
    [(1, 1, 2.0), (1, 2, 2.0), (2, 2, 0.18), (1, 5, 2.0), (3, 5, 0.6), (5, 5, 0.18)],
)
def test_the_rate_falls_to_its_share_in_the_last_round(
    round: int, rounds: int, rate: float
) -> None:
    server: Any = SimpleNamespace(round=round, rounds=rounds, lr=0.07)
    assert FedMGDA(server_rate=2.0, decay=0.09).rate(server) == pytest.approx(rate)
    assert FedMGDA(server_rate=2.0, preset="corefed").rate(server) == 0.07
