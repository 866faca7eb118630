"""Pa3Fed, reconstructed: its weights against plain loops, its reductions, its name in tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise import methods
from equipoise.cli import run_output
from equipoise.comparison.labels import labels
from equipoise.composition import compose
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedprox import FedProx
from equipoise.methods.pa3fed import Pa3Fed
from equipoise.records import PerClient, State
from equipoise.runs import read_result
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
)
from tests.helpers.plain import same


def state(movement: float = 1.0, **last: float) -> State:
    """The server's state after a round: mean squared norm of updates, and the clients' losses."""
    return State(
        losses=PerClient(changed={client: [loss, loss] for client, loss in last.items()}),
        movement=movement,
        critical=False,
    )


def weighed(
    method: Pa3Fed,
    sizes: list[float],
    losses: list[float],
    drift: list[float],
    before: State,
    round: int = 5,
) -> tuple[bool, np.ndarray]:
    """Whether the round is critical, and the shares."""
    asked, ups = server(sizes, round), replies(loss=losses, drift=drift)
    after = method.observe(asked, before, ups)
    found = method.weights(asked, after, ups).shares
    return after.critical, found / found.sum()


@pytest.mark.parametrize("network", NETWORKS)
def test_with_beta_0_it_is_fedavg(tmp_path: Path, network: str) -> None:
    plain, none, own = (
        model_of(eq.run(experiment(method, network), out=tmp_path / str(k)))
        for k, method in enumerate((FedAvg(), Pa3Fed(beta=0), Pa3Fed()))
    )
    assert same(plain, none) and not same(plain, own)


@pytest.mark.parametrize("network", NETWORKS)
def test_with_an_infinite_threshold_it_is_fedavg_from_the_third_round_on(
    tmp_path: Path, network: str
) -> None:
    with updates(Pa3Fed) as seen:
        eq.run(experiment(Pa3Fed(delta=math.inf), network, rounds=4), out=tmp_path / "run")
    assert [one.state.critical for one in seen] == [True, True, False, False]
    for one in seen[2:]:
        plain = FedAvg()
        expected = plain.update(
            one.server, one.state, one.ups, plain.weights(one.server, one.state, one.ups)
        )
        assert same(expected.model, one.new.model)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("change", "delta"), [("abs", 0.3), ("signed", 0.2)])
def test_a_run_is_that_of_a_plain_loop(
    tmp_path: Path, network: str, change: Any, delta: float
) -> None:
    beta = 0.3
    wanted = experiment(
        Pa3Fed(delta=delta, beta=beta, change=change),
        network,
        rounds=6,
        participation={"number": 3},
    )
    with updates(Pa3Fed) as seen:
        eq.run(wanted, out=tmp_path / "run")
    last: dict[str, float] = {}
    movement, periods = 0.0, []
    for t, one in enumerate(seen):
        ids, sizes = (
            one.ups.ids,
            np.array([one.server.sizes[client] for client in one.ups.ids], float),
        )
        p, losses = sizes / sizes.sum(), plain_losses(wanted, one.state.model, one.ups.ids)
        gamma = sum(
            share * np.sum((flat(one.state.model) - flat(up.model)) ** 2)
            for share, up in zip(p, one.ups, strict=True)
        )
        ratio = (gamma - movement) / movement if t else 0.0
        critical = t < 2 or (abs(ratio) if change == "abs" else ratio) >= delta
        v = [
            (loss - last[c]) / (last[c] + 1e-12) if c in last else 0.0
            for c, loss in zip(ids, losses, strict=True)
        ]
        s = np.exp(v) / np.exp(v).sum()
        expected = (1 - beta) * p + beta * s if critical else p
        assert one.state.critical == critical
        np.testing.assert_allclose(
            one.weights.shares / one.weights.shares.sum(), expected, rtol=0, atol=1e-5
        )
        mean = sum(w * flat(up.model) for w, up in zip(expected, one.ups, strict=True))
        np.testing.assert_allclose(flat(one.new.model), mean, rtol=0, atol=1e-5)
        last, movement = last | dict(zip(ids, losses, strict=True)), gamma
        periods.append(critical)
    assert True in periods[2:] and False in periods, "both kinds of period were seen"


def test_shrinking_updates_are_critical_unless_the_sign_counts() -> None:
    before = state(movement=4.0, **{"0": 1.0, "1": 1.0})
    given = ([10, 10], [1.0, 2.0], [1.0, 1.0], before)
    assert (
        weighed(Pa3Fed(delta=0.5), *given)[0]
        and not weighed(Pa3Fed(delta=0.5, change="signed"), *given)[0]
    )
    assert not weighed(Pa3Fed(delta=0.8), *given)[0]
    assert weighed(Pa3Fed(delta=0.75), *given)[0], "the threshold itself is critical"


def test_who_got_worse_counts_more_by_their_own_change_alone() -> None:
    before = state(**{"0": 1.0, "1": 2.0, "2": 4.0})
    critical, found = weighed(
        Pa3Fed(beta=0.3), [10, 10, 10], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], before
    )
    s = np.exp([1.0, 0.0, -0.5]) / np.exp([1.0, 0.0, -0.5]).sum()
    assert critical
    np.testing.assert_allclose(found, 0.7 / 3 + 0.3 * s, atol=1e-9)


def test_equal_changes_and_sizes_weigh_alike() -> None:
    _, found = weighed(Pa3Fed(), [10, 10], [2.0, 1.0], [5.0, 5.0], state(**{"0": 1.0, "1": 0.5}))
    np.testing.assert_allclose(found, [0.5, 0.5], atol=1e-9)


def test_weights_are_positive_shares_whatever_the_losses() -> None:
    for last, now in (((0.0, 1.0), (5.0, 1.0)), ((0.0, 0.0), (0.0, 0.0)), ((1.0, 1.0), (1e9, 0.0))):
        _, found = weighed(
            Pa3Fed(), [3, 5], list(now), [1.0, 1.0], state(**{"0": last[0], "1": last[1]})
        )
        assert (found > 0).all() and abs(found.sum() - 1) <= 1e-12


def test_a_loss_that_rose_from_nothing_takes_the_whole_share_of_change() -> None:
    _, found = weighed(
        Pa3Fed(beta=0.4, delta=0.0), [10, 30], [0.5, 1.0], [1.0, 1.0], state(**{"0": 0.0, "1": 1.0})
    )
    np.testing.assert_allclose(found, [0.6 * 0.25 + 0.4, 0.6 * 0.75])


def test_nobody_moving_is_defined() -> None:
    _, found = weighed(Pa3Fed(), [3, 5], [1.0, 1.0], [0.0, 0.0], state(movement=0.0))
    assert np.isfinite(found).all() and (found > 0).all()
    critical, found = weighed(
        Pa3Fed(delta=math.inf), [3, 5], [1.0, 1.0], [1.0, 0.0], state(movement=0.0)
    )
    assert not critical and found.tolist() == [0.375, 0.625]


def test_a_loss_is_compared_with_the_client_s_own_last_round(tmp_path: Path) -> None:
    drop = [{"round": round, "client": "2", "kind": "drop"} for round in (2, 3)]
    with updates(Pa3Fed) as seen:
        eq.run(experiment("pa3fed", rounds=4, faults={"script": drop}), out=tmp_path / "run")
    losses = [one.ups.table("loss") for one in seen]
    assert "2" not in losses[1] and "2" not in losses[2]
    assert seen[3].state.losses["2"] == [losses[0]["2"], losses[3]["2"]] and seen[3].state.losses[
        "1"
    ] == [losses[2]["1"], losses[3]["1"]]
    assert seen[2].state.losses["2"] == [losses[0]["2"]] * 2


def test_it_costs_one_pass_without_gradient_more_than_fedavg(tmp_path: Path) -> None:
    with counted() as passes:
        run = eq.run(experiment("pa3fed", training={"epochs": 2}), out=tmp_path / "run")
    assert passes == {
        ("client", "gradient"): 3 * 2 * samples(run),
        ("client", "forward"): 3 * samples(run),
    }


def test_bad_parameters_are_refused_before_round_1(tmp_path: Path) -> None:
    assert "method.beta" in refused(
        lambda: experiment({"name": "pa3fed", "beta": 1.5}), tmp_path / "run"
    )
    assert "method.delta" in refused(
        lambda: experiment({"name": "pa3fed", "delta": -1}), tmp_path / "run"
    )


def test_every_table_says_that_it_is_a_reconstruction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = [
        {"name": "pa3fed"},
        {"name": "fedavg", "weights": {"name": "pa3fed"}},
        {"name": "fedavg"},
        {"name": "mine:Pa3Fed"},
    ]
    found = labels([{"method": spec} for spec in specs])
    assert found == [
        "pa3fed (reconstruction)",
        "fedavg + weights=pa3fed (reconstruction)",
        "fedavg",
        "pa3fed",
    ]
    run = eq.run(experiment("pa3fed", rounds=1), out=tmp_path / "run")
    run_output.show(read_result(run))
    assert "pa3fed (reconstruction)" in capsys.readouterr().out
    assert "reconstruction" in methods.describe("pa3fed")["summary"]


@pytest.mark.thorough
def test_as_the_weight_rule_of_another_method(tmp_path: Path) -> None:
    own = eq.run(experiment("pa3fed", "cnn"), out=tmp_path / "own")
    guest = eq.run(
        experiment(compose(FedProx(mu=0), weights=Pa3Fed()), "cnn"), out=tmp_path / "guest"
    )
    assert own.weights() == guest.weights() and same(model_of(own), model_of(guest))
