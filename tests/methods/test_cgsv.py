"""CGSV: reputations and rewards against plain numpy over whole runs, its limits, and what nobody
may lose or gain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.methods.cgsv import CGSV
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, PerClient, State
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from tests.helpers.digits import updates
from tests.helpers.images import NETWORKS, at, bench, net_of, passes_of, plain_fit, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.rewards import IDS, assert_largest, ceilings, drawn, replies, server_for, vectors
from tests.helpers.runs import sites


class Plain:
    """The server of the paper's algorithm, in float64, for any cohort."""

    def __init__(self, sizes: dict[str, int], alpha: float, beta: float) -> None:
        self.n, self.alpha, self.beta = sizes, alpha, beta
        self.r: dict[str, float] = {}

    def round(self, ids: list[str], u: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        total = sum(self.n.values())
        mass = {c: self.r[c] if c in self.r else self.n[c] / total for c in ids}
        everything = sum(mass.values())
        u_n = sum(mass[c] / everything * row for c, row in zip(ids, u, strict=True))
        new = {}
        for c, row in zip(ids, u, strict=True):
            lengths = np.sqrt((row**2).sum() * (u_n**2).sum())
            phi = float((row * u_n).sum() / lengths) if lengths > 0 else 0.0
            new[c] = max(
                self.alpha * self.r.get(c, 0.0) / everything + (1 - self.alpha) * phi, 1e-3
            )
        r = {c: value / sum(new.values()) for c, value in new.items()}
        self.r |= {c: value * everything for c, value in r.items()}
        q = {c: np.tanh(self.beta * value) for c, value in r.items()}
        return u_n, {c: value / max(q.values()) for c, value in q.items()}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_run_is_that_of_a_plain_loop(tmp_path: Path, network: str) -> None:
    method = CGSV(gamma=0.3, alpha=0.8, beta=2.0)
    with updates(CGSV) as seen:
        run = play(method, tmp_path / "run", network, rounds=5, participation={"number": 3})
    plain, initial = Plain(seen[0].server.sizes, 0.8, 2.0), shared(run, 0)
    for one in seen:
        steps = [up.step for up in one.ups]
        u_n, q = plain.round(one.ups.ids, vectors(steps))
        np.testing.assert_allclose(
            [one.new.reputation[c] for c in one.ups.ids],
            [plain.r[c] for c in one.ups.ids],
            rtol=1e-5,
        )
        np.testing.assert_allclose(
            vectors([one.new.model - one.state.model])[0], u_n, rtol=0, atol=1e-6
        )
        assert max(q.values()) == 1 > min(q.values())
        common = steps[0].with_flat(torch.from_numpy(u_n))
        for client in one.ups.ids:
            before, after = one.state.models.get(client, initial), one.new.models[client]
            paid = {
                name: torch.where(
                    (after[name] - before[name]).abs() > 1e-9, after[name] - before[name], 0
                )
                for name in common
            }
            for name, count in ceilings(q[client], common).items():
                moved, full = paid[name].double().reshape(-1), common[name].double().reshape(-1)
                kept = moved != 0
                torch.testing.assert_close(moved[kept], full[kept], rtol=0, atol=1e-6)
                # A number too small to move a weight in float32 counts as not paid here; exact
                # counts are tested apart.
                assert kept.sum() <= count
                assert (
                    count == kept.sum()
                    or float(full[~kept].abs().topk(int(count - kept.sum())).values.max()) < 1e-6
                )
            shares = one.weights.shares / one.weights.shares.sum()
            for name in after.rest:
                values = [up.rest[name].double() for up in one.ups]
                mean = (
                    sum(s * value for s, value in zip(shares, values, strict=True))
                    if "running" in name
                    else max(values)
                )
                torch.testing.assert_close(after[name].double(), mean, rtol=1e-5, atol=1e-6)
    assert len(plain.r) == 4 and sum(plain.r.values()) == pytest.approx(1, abs=1e-12)
    assert isinstance(load_server(run.store).models, PerClient) and isinstance(
        load_server(run.store).reputation, PerClient
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_a_client_uploads_the_direction_of_a_plain_training(network: str) -> None:
    workbench, _ = bench("cgsv", network)
    # its own model, which is no longer the initial one
    start = workbench.initial("model") + 0.1 * workbench.initial("model")
    up = CGSV(gamma=0.7).client(at(workbench, "ada", 2), Down(model=start))
    net = net_of(workbench, start)
    plain_fit(net, at(workbench, "ada").train, torch.optim.SGD(net.parameters(), lr=0.05), "ada", 2)
    ends = dict(net.state_dict())
    delta = np.concatenate(
        [(ends[name].double() - start[name].double()).numpy().ravel() for name in start.trained]
    )
    np.testing.assert_allclose(
        vectors([up.step])[0], 0.7 * delta / np.linalg.norm(delta), rtol=0, atol=1e-4
    )
    assert up.step.norm() == pytest.approx(0.7, rel=1e-5)
    assert set(up) == {"step", "rest"} and set(up.step) == set(start.trained), (
        "no statistic enters a direction"
    )
    assert_near(up.rest, {name: ends[name] for name in start.rest}, 1e-4)


def update(method: CGSV, server: Server, state: State, steps: Any) -> State:
    ups = replies(server, steps)
    return method.update(server, state, ups, method.weights(server, state, ups))


def test_the_length_of_an_update_is_forgotten() -> None:
    """One step over all data: three times the rate is three times the update."""
    found = []
    for lr in (0.05, 0.15):
        workbench, method = bench("cgsv", "cnn", training={"lr": lr, "batch": 100})
        found.append(method.client(at(workbench, "ada"), Down(model=workbench.initial("model"))))
    assert_near(found[0].step, found[1].step)


@pytest.mark.parametrize("network", NETWORKS)
def test_with_much_altruism_every_client_has_the_global_model(tmp_path: Path, network: str) -> None:
    with updates(CGSV) as seen:
        run = play(CGSV(beta=1e7), tmp_path / "run", network)
    for one in seen:
        for client in run.clients:
            assert_near(one.new.models[client], one.new.model)
    own = load_server(play("cgsv", tmp_path / "own", network).store)
    assert any(
        not torch.allclose(own.models[client]["head.weight"], own.model["head.weight"])
        for client in run.clients
    )


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_numbers_are_paid_per_tensor_rounded_up_and_all_to_the_best(network: str) -> None:
    server = server_for("cgsv", network=network)
    method = CGSV(beta=1.0)
    state = method.start(server)
    common = drawn(server, 0)
    noisy = {client: common + place * drawn(server, place + 1) for place, client in enumerate(IDS)}
    steps = {client: step / step.norm() for client, step in noisy.items()}
    new = update(method, server, state, steps)
    plain = Plain(dict(server.sizes), method.alpha, method.beta)
    u_n, q = plain.round(IDS, vectors(list(steps.values())))
    whole, zero = common.with_flat(torch.from_numpy(u_n)), 0 * server.initial()
    # On a model of zeros nothing is lost to rounding.
    empty = State(
        model=zero.with_rest(server.initial().rest), models=PerClient(), reputation=PerClient()
    )
    empty = empty.with_(models=empty.models.put(dict.fromkeys(IDS, empty.model)))
    paid = update(method, server, empty, steps)
    for client in IDS:
        assert_largest(paid.models[client].params, whole, ceilings(q[client], whole))
    assert sorted(q, key=lambda client: -q[client]) == IDS and q["a"] == 1, (
        "who points along the common step is paid most"
    )
    assert_near(new.models["a"], new.model)


def test_identical_clients_are_paid_alike_and_in_full() -> None:
    server = server_for("cgsv", network="cnn")
    method, state = CGSV(), CGSV().start(server)
    for seed in (1, 2):
        state = update(method, server, state, dict.fromkeys(IDS, drawn(server, seed)))
        assert [state.reputation[client] for client in IDS] == pytest.approx([0.2] * 5)
        for client in IDS:
            assert_near(state.models[client], state.model)


def test_who_does_not_move_or_moves_against_the_others_keeps_the_least_reputation() -> None:
    server = server_for("cgsv")
    method, one = CGSV(alpha=0.5), drawn(server, 1)
    state = update(
        method,
        server,
        method.start(server),
        {"a": one, "b": one, "c": 0 * one, "d": -1 * one, "e": one},
    )
    r = {client: state.reputation[client] for client in IDS}
    assert r["c"] == r["d"] == pytest.approx(1e-3 / (3 * 0.5 + 2e-3))
    assert sum(r.values()) == pytest.approx(1)
    nobody = update(method, server, method.start(server), dict.fromkeys(IDS, 0 * one))
    assert_equal(nobody.model, server.initial())
    assert [nobody.reputation[client] for client in IDS] == pytest.approx([0.2] * 5)


def test_in_a_first_round_steps_count_by_size_and_afterwards_by_reputation() -> None:
    sizes = {"a": 1, "b": 3, "c": 6}
    server = server_for("cgsv", list(sizes), sizes)
    method, state = CGSV(), CGSV().start(server)
    steps = {client: drawn(server, place) for place, client in enumerate(sizes)}
    np.testing.assert_allclose(
        method.weights(server, state, replies(server, steps)).shares, [0.1, 0.3, 0.6]
    )
    state = update(method, server, state, steps)
    np.testing.assert_allclose(
        method.weights(server, state, replies(server, steps)).shares,
        [state.reputation[c] for c in sizes],
    )


def test_absent_clients_keep_model_and_reputation(tmp_path: Path) -> None:
    drop = {"script": [{"round": round, "client": "ada", "kind": "drop"} for round in (1, 3)]}
    with updates(CGSV) as seen:
        run = play("cgsv", tmp_path / "run", faults=drop)
    states = [one.new for one in seen]
    assert "ada" not in states[0].models and "ada" not in states[0].reputation
    assert_equal(states[1].models["ada"], states[2].models["ada"])
    assert states[1].reputation["ada"] == states[2].reputation["ada"]
    assert sum(states[2].reputation[client] for client in run.clients) == pytest.approx(
        1, abs=1e-12
    )


def test_each_client_is_delivered_and_serves_its_own_model(tmp_path: Path) -> None:
    run = play("cgsv", tmp_path / "run", "cnn", rounds=2, participation={"number": 2})
    state = load_server(run.store)
    assert (run.models(), run.main_model) == (["personal"], "personal")
    for client in run.clients:
        assert_equal(
            run.model("personal", client=client).state_dict(),
            state.models.get(client, shared(run, 0)),
        )


def test_it_costs_what_fedavg_does(tmp_path: Path) -> None:
    assert passes_of("cgsv", tmp_path / "run", epochs=3) == {"client gradient": 3}


def test_one_client_is_paid_all_it_gave(tmp_path: Path) -> None:
    run = play("cgsv", tmp_path / "run", "cnn", on=sites({"ada": 20}))
    assert_near(load_server(run.store).models["ada"], shared(run))


def test_what_it_cannot_do_is_refused() -> None:
    for wrong in ({"gamma": 0}, {"alpha": 1.2}, {"beta": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            eq.Experiment(method={"name": "cgsv", **wrong})
    with pytest.raises(IncompatibleComposition, match="uploads none"):
        compose(CGSV(), weights=FedAvg())
    with pytest.raises(IncompatibleComposition, match="no weight rule that stands"):
        compose(FedAvg(), weights=CGSV())
