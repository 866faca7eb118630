"""FedAdagrad, FedAdam and FedYogi: adaptive steps at the server (Reddi et al., 2021)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.methods.fedadagrad import FedAdagrad
from equipoise.methods.fedadam import FedAdam
from equipoise.methods.fedyogi import FedYogi
from equipoise.records import State
from equipoise.tree import Tree
from tests.helpers.plain import assert_equal
from tests.helpers.problems import RATE, bench_of, scalar, server_of, weight
from tests.helpers.runs import settings, sites

H, A = (1.0, 3.0), (-2.0, 2.0)
B2 = 0.95
# The second moments of Algorithm 2, written for single numbers.
RULES: dict[type[FedAdagrad], Callable[[float, float], float]] = {
    FedAdagrad: lambda v, d: v + d * d,
    FedAdam: lambda v, d: B2 * v + (1 - B2) * d * d,
    FedYogi: lambda v, d: v - (1 - B2) * d * d * float(np.sign(v - d * d)),
}


def made(kind: type[FedAdagrad], **changes: float) -> FedAdagrad:
    decay = {} if kind is FedAdagrad else {"beta2": B2}
    return kind(**{"beta1": 0.6, "tau": 0.01, "server_rate": 0.2, **decay, **changes})


def replied(*values: float) -> list[Tree]:
    """Return uploads with one parameter of three numbers, and two buffers."""
    return [
        Tree(
            {"w": torch.full((3,), value), "mean": torch.tensor([value]), "count": torch.tensor(5)},
            untrained=["mean", "count"],
        )
        for value in values
    ]


def stepped(method: FedAdagrad, state: State, *replies: Tree, step: float = 1.0) -> State:
    """Return the state of the server after clients of one size uploaded these models."""
    ups = eq.Ups([(str(number), eq.Up(model=reply)) for number, reply in enumerate(replies)])
    server = server_of(bench_of(settings("fedadam"), sites())[0])
    return method.update(server, state, ups, eq.Weights(np.ones(len(replies)), step))


def fresh(method: FedAdagrad, value: float = 0.5) -> State:
    model = replied(value)[0]
    second = (0 * model).apply(lambda entry: torch.full_like(entry, method.tau**2))
    return State(model=model, first_moment=0 * model, second_moment=second)


@pytest.mark.parametrize("kind", RULES)
def test_a_run_follows_algorithm_2(kind: type[FedAdagrad], tmp_path: Path) -> None:
    run = scalar(made(kind), tmp_path / "run", H, A, rounds=6)
    left, x, m, v = (1 - RATE * np.array(H)) ** 10, 0.0, 0.0, 0.01**2
    for number in range(1, 7):
        delta = float(np.mean(A + left * (x - np.array(A)))) - x
        m = 0.6 * m + 0.4 * delta
        v = RULES[kind](v, delta)
        x += 0.2 * m / (np.sqrt(v) + 0.01)
        assert weight(run, number) == pytest.approx(x, abs=1e-5)


def test_fedadagrad_without_momentum_is_torchs_adagrad_on_the_mean_update() -> None:
    method = made(FedAdagrad, beta1=0.0)
    state = fresh(method)
    reference = torch.nn.Parameter(torch.full((3,), 0.5))
    adagrad = torch.optim.Adagrad([reference], lr=0.2, eps=0.01, initial_accumulator_value=0.01**2)
    for first, second in ((2.0, 3.0), (-1.0, 0.0), (0.4, 0.6), (8.0, 8.0)):
        reference.grad = reference.detach() - (first + second) / 2
        adagrad.step()
        state = stepped(method, state, *replied(first, second))
        assert state.model["w"].tolist() == pytest.approx(reference.tolist(), rel=1e-5)


@pytest.mark.parametrize("kind", RULES)
def test_nothing_moves_when_all_return_the_received_model(kind: type[FedAdagrad]) -> None:
    method = made(kind)
    state = fresh(method)
    assert_equal(stepped(method, state, state.model, state.model).model, state.model)


@pytest.mark.parametrize("kind", RULES)
def test_buffers_take_the_plain_mean_and_have_no_moments(kind: type[FedAdagrad]) -> None:
    method = made(kind)
    state = stepped(method, fresh(method), *replied(2.0, 4.0), step=0.5)
    assert (state.model["mean"].tolist(), int(state.model["count"])) == ([3.0], 5)
    assert set(state.first_moment) == set(state.second_moment) == {"w"}


@pytest.mark.parametrize("kind", RULES)
def test_the_step_of_a_weight_rule_shortens_the_move(kind: type[FedAdagrad]) -> None:
    method = made(kind)
    whole, half = (
        stepped(method, fresh(method), *replied(2.0, 4.0), step=step).model["w"] - 0.5
        for step in (1.0, 0.5)
    )
    assert half.tolist() == pytest.approx((whole / 2).tolist(), rel=1e-5)


def test_the_second_moment_of_yogi_falls_slower_than_that_of_adam() -> None:
    adam, yogi = made(FedAdam), made(FedYogi)
    v, small = torch.tensor(4.0), torch.tensor(0.1)
    assert float(yogi.second_moment(v, small)) == pytest.approx(4.0 - 0.05 * 0.01)
    assert float(adam.second_moment(v, small)) == pytest.approx(0.95 * 4.0 + 0.05 * 0.01)
