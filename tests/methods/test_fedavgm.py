"""FedAvgM: momentum at the server (Hsu et al., 2019)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.methods.fedavgm import FedAvgM
from equipoise.records import State
from equipoise.tree import Tree
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import (
    RATE,
    averaged,
    bench_of,
    first_replies,
    scalar,
    server_of,
    server_state,
    trained,
    weight,
)
from tests.helpers.runs import settings, sites

H, A = (1.0, 3.0), (-2.0, 2.0)


def stepped(method: FedAvgM, state: State, *replies: Tree, step: float = 1.0) -> State:
    """The server's state after clients of one size uploaded these models."""
    ups = eq.Ups([(str(place), eq.Up(model=reply)) for place, reply in enumerate(replies)])
    return method.update(
        server_of(bench_of(settings("fedavgm"), sites())[0]),
        state,
        ups,
        eq.Weights(np.ones(len(replies)), step),
    )


def fresh(value: float = 0.5) -> State:
    model = Tree(
        {"w": torch.full((3,), value), "mean": torch.tensor([1.0]), "count": torch.tensor(4)},
        untrained=["mean", "count"],
    )
    return State(model=model, velocity=0 * model)


def test_without_momentum_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    plain, still, moving = (
        trained(m, tmp_path / str(k), "cnn")
        for k, m in enumerate(("fedavg", FedAvgM(beta=0), FedAvgM()))
    )
    assert_equal(server_state(plain).model, server_state(still).model)
    assert not torch.equal(
        server_state(plain).model["head.weight"], server_state(moving).model["head.weight"]
    )


@pytest.mark.parametrize(
    ("rate", "step"), [(0.5, 1.0), (1.0, 0.5), (0.5, 0.5), (2.0, 0.5), (1.5, 1.0)]
)
def test_without_momentum_the_server_goes_its_rate_times_the_step_of_the_way(
    rate: float, step: float
) -> None:
    """To the mean 2.5 of the replies, from 0.5; buffers take their mean whatever the step."""
    replies = [
        Tree(
            {"w": torch.full((3,), w), "mean": torch.tensor([m]), "count": torch.tensor(c)},
            untrained=["mean", "count"],
        )
        for w, m, c in ((2.0, 3.0, 5), (3.0, 5.0, 6))
    ]
    for dampening in (0.0, 0.25):
        state = stepped(
            FedAvgM(beta=0, dampening=dampening, server_rate=rate), fresh(), *replies, step=step
        )
        assert state.model["w"].tolist() == pytest.approx(
            [0.5 + rate * step * (1 - dampening) * 2.0] * 3, rel=1e-6
        )
        assert (state.model["mean"].tolist(), int(state.model["count"])) == ([4.0], 6)
        assert state.velocity["w"].tolist() == pytest.approx([-2.0 * (1 - dampening)] * 3)


def test_a_run_without_momentum_at_half_the_rate(tmp_path: Path) -> None:
    run = scalar(FedAvgM(beta=0, server_rate=0.5), tmp_path / "run", H, A, rounds=4)
    left, w = (1 - RATE * np.array(H)) ** 10, 0.0
    for number in range(1, 5):
        w += 0.5 * (np.mean(A + left * (w - np.array(A))) - w)
        assert weight(run, number) == pytest.approx(w, abs=1e-6)


@pytest.mark.parametrize(("dampening", "gain"), [(0.0, 1 / (1 - 0.7)), (0.7, 1.0)])
def test_velocity_under_a_constant_pull(dampening: float, gain: float) -> None:
    """v_n = (1 - beta^n) D / (1 - beta), and 1 - beta times that when damped by beta."""
    method, state, pull, rate = (
        FedAvgM(beta=0.7, dampening=dampening, server_rate=0.5),
        fresh(),
        0.25,
        0.5,
    )
    for n in range(1, 8):
        before = state.model["w"]
        state = stepped(
            method, state, state.model + state.model.apply(lambda w: torch.full_like(w, -pull))
        )
        assert state.velocity["w"].tolist() == pytest.approx(
            [pull * gain * (1 - 0.7**n)] * 3, rel=1e-5
        )
        assert (before - state.model["w"]).tolist() == pytest.approx(
            [rate * pull * gain * (1 - 0.7**n)] * 3, rel=1e-4
        )


def test_fully_damped_momentum_never_moves() -> None:
    state = stepped(FedAvgM(beta=1.0, dampening=1.0), fresh(), fresh(9.0).model, fresh(-4.0).model)
    assert state.model["w"].tolist() == [0.5] * 3
    assert state.velocity.norm() == 0


def test_nothing_moves_when_all_return_what_they_received() -> None:
    state = fresh(0.1)
    after = stepped(FedAvgM(), state, state.model, state.model, state.model)
    assert_equal(after.model, state.model)


def test_momentum_covers_parameters_and_buffers_take_the_plain_mean() -> None:
    bench, _ = bench_of(settings("fedavg", "cnn"), sites())
    method, server = FedAvgM(beta=0.9, server_rate=0.5), server_of(bench)
    start, replies = method.start(server), first_replies(bench, FedAvgM())
    ups = eq.Ups(list(replies.items()))
    state = start.with_(velocity=start.velocity.apply(torch.ones_like))
    new = method.update(server, state, ups, method.weights(server, state, ups))
    mean = averaged(replies, server.sizes)
    assert not set(new.velocity) & new.model.untrained
    assert set(new.velocity) == set(start.model.trained)
    for name, value in mean.items():
        velocity = 0.9 + (start.model[name] - value) if name in new.velocity else None
        mean[name] = value if velocity is None else start.model[name] - 0.5 * velocity
    assert_near(new.model, mean)


def test_a_run_follows_the_recursion(tmp_path: Path) -> None:
    run = scalar(FedAvgM(beta=0.6, server_rate=0.8), tmp_path / "run", H, A, rounds=6)
    left, w, v = (1 - RATE * np.array(H)) ** 10, 0.0, 0.0
    for number in range(1, 7):
        v = 0.6 * v + w - np.mean(A + left * (w - np.array(A)))
        w -= 0.8 * v
        assert weight(run, number) == pytest.approx(w, abs=1e-5)
