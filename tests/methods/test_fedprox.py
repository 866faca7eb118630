"""FedProx: the pull to the received model (Li et al., MLSys 2020, Eq. 2)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from equipoise.losses.terms import Batch, proximity
from equipoise.methods.fedprox import FedProx
from equipoise.tree import Tree
from tests.helpers.plain import assert_equal
from tests.helpers.problems import RATE, bench_of, scalar, server_state, trained, weight
from tests.helpers.runs import settings, sites


def test_without_the_pull_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    plain, free, pulled = (
        trained(m, tmp_path / str(k), "cnn")
        for k, m in enumerate(("fedavg", FedProx(mu=0), FedProx(mu=1.0)))
    )
    assert_equal(server_state(plain).model, server_state(free).model)
    assert not torch.equal(
        server_state(plain).model["head.weight"], server_state(pulled).model["head.weight"]
    )


@pytest.mark.parametrize("mu", [0.01, 100.0])
def test_the_first_step_does_not_feel_the_pull(tmp_path: Path, mu: float) -> None:
    changes = {"rounds": 1, "training": {"lr": 0.05, "batch": 5, "steps": 1}}
    plain, pulled = (
        trained("fedavg", tmp_path / "a", "cnn", **changes),
        trained(FedProx(mu=mu), tmp_path / "b", "cnn", **changes),
    )
    assert_equal(server_state(plain).model, server_state(pulled).model)


def test_the_second_step_adds_mu_times_the_distance(tmp_path: Path) -> None:
    h, a, start, mu = 1.5, 2.0, -1.0, 0.8
    run = scalar(
        FedProx(mu=mu), tmp_path / "run", (h,), (a,), start, rounds=1, training={"steps": 2}
    )
    first = start - RATE * h * (start - a)
    assert weight(run) == pytest.approx(
        first - RATE * (h * (first - a) + mu * (first - start)), abs=1e-6
    )


@pytest.mark.parametrize("mu", [0.5, 3.0])
def test_long_training_ends_between_the_own_optimum_and_the_received_model(
    tmp_path: Path, mu: float
) -> None:
    a, received = 2.0, -1.0
    run = scalar(
        FedProx(mu=mu), tmp_path / "run", (1.0,), (a,), received, rounds=1, training={"steps": 400}
    )
    assert weight(run) == pytest.approx((a + mu * received) / (1 + mu), abs=1e-5)


def test_a_stronger_pull_keeps_clients_nearer(tmp_path: Path) -> None:
    distances = [
        abs(weight(scalar(FedProx(mu=mu), tmp_path / str(mu), (1.0,), (2.0,), rounds=1)))
        for mu in (0.0, 0.01, 0.1, 1.0, 10.0)
    ]
    assert distances == sorted(distances, reverse=True)
    assert len(set(distances)) == len(distances)


def test_the_pull_covers_every_trained_entry_and_no_buffer() -> None:
    """Batch norm's scale and shift are trained, its statistics are not."""
    bench, _ = bench_of(settings("fedprox", "cnn"), sites())
    model = bench.take("model")
    here = model.tree()
    far = Tree(
        {name: value + (1 if name in here.untrained else 0) for name, value in here.items()},
        here.model,
        here.untrained,
    )
    x = bench.federation.x[:4]
    batch = Batch(x, bench.federation.y[:4], torch.arange(4), bench.supervise)
    assert float(proximity(far)(model(x), batch).detach()) == 0
    moved = here + here.apply(torch.ones_like)
    value = proximity(moved)(model(x), batch)
    value.backward()
    assert float(value.detach()) == pytest.approx(here.count() / 2)
    assert all(
        torch.allclose(parameter.grad, torch.full_like(parameter, -1))
        for parameter in model.net.parameters()
    )
