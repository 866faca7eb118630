"""SCAFFOLD against problems with a known answer (Karimireddy et al., ICML 2020, Algorithm 1, option
II).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.client import Client
from equipoise.methods.scaffold import Scaffold
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import (
    RATE,
    averaged,
    bench_of,
    client_states,
    first_replies,
    scalar,
    server_of,
    server_state,
    trained,
    weight,
)
from tests.helpers.runs import settings, sites

H, A = (1.0, 3.0), (-2.0, 2.0)


def controls(run: eq.Run, round: int | None = None) -> dict[str, dict[str, torch.Tensor]]:
    """Every client's control after a round; zero where a client never took part."""
    zero = 0 * server_state(run, round).control
    known = {client: state["control"] for client, state in client_states(run, round).items()}
    return {client: dict(known.get(client, zero)) for client in run.clients}


def mean_control(run: eq.Run, round: int) -> dict[str, torch.Tensor]:
    own = controls(run, round)
    return {
        name: torch.stack([control[name].double() for control in own.values()]).mean(0)
        for name in next(iter(own.values()))
    }


@pytest.mark.thorough
def test_two_quadratics_meet_at_the_true_optimum_where_fedavg_does_not(tmp_path: Path) -> None:
    optimum = np.dot(H, A) / np.sum(H)
    left = (
        1 - RATE * np.array(H)
    ) ** 10  # what ten local steps leave of a client's distance to its own optimum
    drift = np.dot(1 - left, A) / np.sum(1 - left)
    assert (optimum, round(drift, 3)) == (1.0, 0.667)
    assert weight(scalar("scaffold", tmp_path / "scaffold", H, A, rounds=60)) == pytest.approx(
        optimum, abs=1e-5
    )
    assert weight(scalar("fedavg", tmp_path / "fedavg", H, A, rounds=60)) == pytest.approx(
        drift, abs=1e-5
    )


def test_every_round_is_algorithm_1_written_out(tmp_path: Path) -> None:
    """With half of the clients in each round, a decaying rate and a server rate of its own."""
    h, a, server_rate, steps = (1.0, 3.0, 2.0, 0.5), (-2.0, 2.0, 1.0, 5.0), 0.7, 4
    run = scalar(
        Scaffold(server_rate=server_rate),
        tmp_path / "run",
        h,
        a,
        rounds=6,
        participation={"number": 2},
        training={"steps": steps, "lr_decay": 0.9},
    )
    x, c, own = 0.0, 0.0, np.zeros(4)
    for row in run.rounds():
        lr, ends = RATE * 0.9 ** (row["round"] - 1), {}
        for k in (run.clients.index(client) for client in row["joined"]):
            y = x
            for _ in range(steps):
                y -= lr * (h[k] * (y - a[k]) - own[k] + c)
            ends[k] = y
        new = {k: own[k] - c + (x - y) / (steps * lr) for k, y in ends.items()}
        x += server_rate * np.mean([y - x for y in ends.values()])
        c += sum(new[k] - own[k] for k in new) / len(h)
        for k, value in new.items():
            own[k] = value
        state = server_state(run, row["round"])
        assert float(state.model["features.weight"]) == pytest.approx(x, rel=1e-4, abs=1e-5)
        assert float(state.control["features.weight"]) == pytest.approx(c, rel=1e-4, abs=1e-5)
    assert len({tuple(row["joined"]) for row in run.rounds()}) > 1, (
        "the cohort never changed: nothing was shown"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"participation": {"number": 2}},
        {"faults": {"script": [{"round": 2, "client": "ada", "kind": "nan"}]}},
    ],
)
def test_the_server_control_is_the_mean_of_all_clients_controls(
    tmp_path: Path, changes: dict
) -> None:
    run = trained("scaffold", tmp_path / "run", rounds=4, **changes)
    for number in range(1, 5):
        control = server_state(run, number).control
        assert control.norm() > 0
        assert_near(control, mean_control(run, number), 1e-5)


def test_a_refused_reply_leaves_the_client_its_old_control(tmp_path: Path) -> None:
    run = trained(
        "scaffold",
        tmp_path / "run",
        rounds=2,
        faults={"script": [{"round": 2, "client": "ada", "kind": "nan"}]},
    )
    assert_equal(controls(run, 1)["ada"], controls(run, 2)["ada"])
    assert not torch.equal(
        controls(run, 1)["bo"]["head.weight"], controls(run, 2)["bo"]["head.weight"]
    )


def test_the_first_round_is_uniform_fedavg(tmp_path: Path) -> None:
    controlled, plain = (
        trained("scaffold", tmp_path / "a", rounds=1),
        trained({"name": "fedavg", "average": "uniform"}, tmp_path / "b", rounds=1),
    )
    assert_equal(server_state(controlled).model, server_state(plain).model)


def test_identical_clients_have_the_servers_control_and_move_as_fedavg(tmp_path: Path) -> None:
    same = {"h": (3.0, 3.0, 3.0), "a": (2.0, 2.0, 2.0), "rounds": 5}
    run, plain = (
        scalar("scaffold", tmp_path / "a", **same),
        scalar("fedavg", tmp_path / "b", **same),
    )
    for number in range(1, 6):
        shared = dict(server_state(run, number).control)
        for control in controls(run, number).values():
            assert_near(control, shared, 1e-5)
        assert weight(run, number) == pytest.approx(weight(plain, number), abs=1e-5)


def test_one_full_batch_makes_the_control_the_exact_gradient(tmp_path: Path) -> None:
    """In every round, whatever the controls were: the corrections cancel.

    Shows that the decayed rate is the one divided by.
    """
    data = sites({"ada": 12, "bo": 7})
    config = settings(
        "scaffold", "mlp", training={"lr": 0.1, "lr_decay": 0.5, "batch": 100}, rounds=3
    )
    run = trained("scaffold", tmp_path / "run", "mlp", data, training=config["training"])
    bench, _ = bench_of(config, data)
    for number in (1, 2, 3):
        received = server_state(run, number - 1).model
        assert set(controls(run, number)) == set(data)
        for client, control in controls(run, number).items():
            worker = Client(bench, client, number, 3, {})
            assert_near(control, dict(worker.gradient(worker.load(received))), 1e-4)


def test_the_server_rate_scales_the_mean_move_and_buffers_are_averaged() -> None:
    bench, method = bench_of(settings({"name": "scaffold", "server_rate": 0.25}, "cnn"), sites())
    server, ups = server_of(bench), first_replies(bench, method)
    state = method.start(server)
    replies = eq.Ups(list(ups.items()))
    new = method.update(server, state, replies, method.weights(server, state, replies)).model
    mean = averaged(ups, dict.fromkeys(ups, 1.0))
    expected = {
        name: mean[name]
        if name in new.untrained
        else state.model[name] + 0.25 * (mean[name] - state.model[name])
        for name in mean
    }
    assert len(new.untrained) == 6
    assert_near(new, expected)


def test_a_client_that_took_no_step_moves_no_control() -> None:
    """A single sample and a batch norm that cannot take it: dividing by no steps would poison the
    server.
    """
    normed = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    bench, method = bench_of(
        settings("scaffold", models={"model": normed}), sites({"ada": 24, "bo": 1})
    )
    replies = first_replies(bench, method)
    assert replies["bo"].control.norm() == 0
    assert_equal(replies["bo"].model, bench.initial("model"))
    assert replies["ada"].control.norm() > 0


@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.9},
        {"weight_decay": 1e-4},
        {"optimiser": "adam"},
        {"optimiser": "adamw"},
        {"clip": 1.0},
    ],
)
def test_anything_but_plain_sgd_is_refused_with_the_reason(training: dict) -> None:
    with pytest.raises(
        ValueError, match=r"Scaffold needs plain sgd.*update divided by the learning rate"
    ):
        eq.Experiment(method="scaffold", training=training)
