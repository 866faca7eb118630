"""FedHEAL: masks, weights and update against plain loops over every number, what they reduce to,
and their edges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedheal import FedHEAL
from equipoise.methods.fedprox import FedProx
from equipoise.records import PerClient, State
from equipoise.storage.checkpoint import load_server
from tests.helpers.counting import counted
from tests.helpers.digits import (
    NETWORKS,
    experiment,
    flat,
    model_of,
    refused,
    replies,
    samples,
    server,
    updates,
    vector,
)
from tests.helpers.plain import same


def played(
    method: FedHEAL,
    start: list[float],
    *rounds: list[list[float]],
    sizes: tuple[int, ...] = (1, 50, 9),
) -> list[np.ndarray]:
    """The models after some rounds, whose clients upload the received model minus these updates."""
    asked = server(sizes)
    state, found = State(model=vector(start), signs=PerClient(), importance=PerClient()), []
    for updates_ in rounds:
        received = flat(state.model)
        ups = replies([(received - np.array(update)).tolist() for update in updates_])
        if not method.masks:
            ups = replies(
                [up.model["w"].tolist() for up in ups],
                drift=[float(np.linalg.norm(update)) for update in updates_],
            )
        state = method.observe(asked, state, ups)
        state = method.update(asked, state, ups, method.weights(asked, state, ups))
        found.append(flat(state.model))
    return found


class PlainFedHEAL:
    """One client after another, one number after another, as the specification is written."""

    def __init__(self, tau: float, beta: float) -> None:
        self.tau, self.beta = tau, beta
        self.history: dict[str, dict[str, np.ndarray]] = {}
        self.seen: dict[str, int] = {}
        self.q: dict[str, float] = {}
        self.dq: dict[str, float] = {}

    def round(
        self, received: dict[str, np.ndarray], uploaded: dict[str, dict[str, np.ndarray]]
    ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        masks: dict[str, dict[str, np.ndarray]] = {}
        drift: dict[str, float] = {}
        for client, model in uploaded.items():
            u = {name: received[name] - model[name] for name in received}
            s = {name: (u[name] >= 0).astype(float) for name in u}
            if client not in self.history:
                masks[client] = {name: np.ones_like(u[name]) for name in u}
                self.history[client], self.seen[client] = s, 1
            else:
                h, r = self.history[client], self.seen[client]
                kappa = {name: s[name] * h[name] + (1 - s[name]) * (1 - h[name]) for name in u}
                masks[client] = {name: (kappa[name] > self.tau).astype(float) for name in u}
                self.history[client] = {name: (h[name] * r + s[name]) / (r + 1) for name in u}
                self.seen[client] = r + 1
            drift[client] = sum(
                float(np.sqrt(((masks[client][name] * u[name]) ** 2).sum())) for name in u
            )
        for client in uploaded:
            self.dq[client] = (1 - self.beta) * self.dq.get(client, 0.0) + self.beta * drift[
                client
            ] / sum(drift.values())
            self.q[client] = self.q.get(client, 1 / len(uploaded)) + self.dq[client]
        w = {
            client: self.q[client] / sum(self.q[other] for other in uploaded) for client in uploaded
        }
        new = {}
        for name in received:
            total = sum(w[c] * masks[c][name] for c in uploaded)
            step = np.zeros_like(received[name])
            for c in uploaded:
                omega = np.divide(
                    w[c] * masks[c][name], total, out=np.zeros_like(step), where=total > 0
                )
                step += omega * masks[c][name] * (received[name] - uploaded[c][name])
            new[name] = received[name] - step
        return w, new


def arrays(tree: Any) -> dict[str, np.ndarray]:
    return {name: tree[name].numpy().astype(np.float64) for name in tree.trained}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_run_is_that_of_a_plain_loop(tmp_path: Path, network: str) -> None:
    tau, beta = 0.4, 0.4  # no share of up to four rounds is 0.4 itself: rounding decides nothing
    with updates(FedHEAL) as seen:
        eq.run(
            experiment(FedHEAL(tau=tau, beta=beta), network, rounds=6, participation={"number": 3}),
            out=tmp_path / "run",
        )
    plain = PlainFedHEAL(tau, beta)
    for one in seen:
        received = arrays(one.state.model)
        w, new = plain.round(
            received,
            {client: arrays(up.model) for client, up in zip(one.ups.ids, one.ups, strict=True)},
        )
        np.testing.assert_allclose(
            one.weights.shares / one.weights.shares.sum(), list(w.values()), rtol=0, atol=1e-7
        )  # ours subtracts models in float32
        for name, expected in new.items():
            np.testing.assert_allclose(one.new.model[name].numpy(), expected, rtol=0, atol=1e-6)
        for name in one.new.model.rest:
            values = [up.model[name].double() for up in one.ups]
            mean = sum(share * value for share, value in zip(w.values(), values, strict=True))
            torch.testing.assert_close(
                one.new.model[name].double(),
                mean if "running" in name else torch.stack(values).amax(0),
                rtol=1e-5,
                atol=1e-6,
            )
    assert max(plain.seen.values()) >= 4, "histories were long enough to matter"
    for client, rounds in plain.seen.items():
        kept = seen[-1].new.signs[client]
        assert kept["rounds"] == rounds
        for name, h in plain.history[client].items():
            np.testing.assert_allclose(
                kept["positive"][name].numpy() / rounds, h, rtol=0, atol=1e-12
            )


def test_equal_drift_in_round_1_gives_the_uniform_mean_whatever_the_sizes() -> None:
    (found,) = played(FedHEAL(), [1.0, 1.0], [[3.0, 4.0], [-5.0, 0.0], [0.0, 5.0]])
    np.testing.assert_allclose(found, [1 - (-2 / 3), 1 - 3], atol=1e-6)


def test_weights_follow_drift_and_accumulate() -> None:
    method, asked = FedHEAL(beta=0.4, masks=False), server([1, 1])
    state, q, dq = (
        State(model=vector([0.0]), importance=PerClient(), signs=PerClient()),
        [0.5, 0.5],
        [0.0, 0.0],
    )
    for drift in ([3.0, 1.0], [1.0, 1.0], [0.0, 2.0]):
        ups = replies([[1.0], [1.0]], drift=drift)
        state = method.observe(asked, state, ups)
        dq = [0.6 * old + 0.4 * one / sum(drift) for old, one in zip(dq, drift, strict=True)]
        q = [old + one for old, one in zip(q, dq, strict=True)]
        np.testing.assert_allclose(method.weights(asked, state, ups).shares, q, rtol=1e-12)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_threshold_below_0_masks_nothing(tmp_path: Path, network: str) -> None:
    all_kept, without, own = (
        model_of(eq.run(experiment(method, network), out=tmp_path / str(k)))
        for k, method in enumerate((FedHEAL(tau=-1), FedHEAL(masks=False), FedHEAL()))
    )
    for name in without:
        torch.testing.assert_close(all_kept[name], without[name], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(own["head.weight"], without["head.weight"], atol=1e-4)


def test_a_threshold_of_1_lets_nothing_move_after_round_1(tmp_path: Path) -> None:
    with updates(FedHEAL) as seen:
        eq.run(experiment(FedHEAL(tau=1), "cnn"), out=tmp_path / "run")
    first, *later = [one.new.model for one in seen]
    assert not same(first, seen[0].state.model)
    for model in later:
        assert same(model.params, first.params)
        assert not same(model.rest, first.rest), "statistics are averaged without masks"


@pytest.mark.parametrize("tau", [0.3, 0.999])
def test_updates_of_one_sign_are_never_masked(tau: float) -> None:
    rounds = [[[1.0, -2.0], [2.0, 1.0]], [[0.5, -1.0], [1.0, 0.1]], [[0.1, -9.0], [3.0, 2.0]]]
    for masked, free in zip(
        played(FedHEAL(tau=tau), [0.0, 0.0], *rounds),
        played(FedHEAL(masks=False), [0.0, 0.0], *rounds),
        strict=True,
    ):
        np.testing.assert_allclose(masked, free, rtol=1e-6)


def test_a_number_that_one_client_keeps_takes_its_full_update_and_one_that_nobody_keeps_stays() -> (
    None
):
    first = [[1.0, 1.0], [1.0, 1.0]]
    turned = [
        [1.0, -1.0],
        [-1.0, -1.0],
    ]  # only client 0 moves as before in the first number, and no client in the second
    one, two = played(FedHEAL(), [10.0, 10.0], first, turned, sizes=(1, 50))
    assert (one - two).tolist() == [1.0, 0.0]


def test_the_consistency_is_the_share_of_earlier_rounds_of_that_sign() -> None:
    """Two of three earlier updates were positive: a negative one has 1/3, a positive one 2/3.

    Exactly tau is not enough.
    """
    past = [[[1.0]], [[1.0]], [[-1.0]]]
    for tau, update, kept in (
        (0.3, -1.0, True),
        (0.34, -1.0, False),
        (0.6, 1.0, True),
        (2 / 3, 1.0, False),
    ):
        models = played(FedHEAL(tau=tau), [0.0], *past, [[update]], sizes=(5,))
        assert (models[-1] != models[-2]).item() == kept, (tau, update)


def test_a_zero_update_counts_as_not_negative() -> None:
    models = played(
        FedHEAL(tau=0.5),
        [0.0, 0.0],
        [[0.0, 0.0], [1.0, 1.0]],
        [[1.0, -1.0], [0.0, 0.0]],
        sizes=(1, 1),
    )
    # Of the second number only client 1 keeps its zero update.
    assert models[1][1] == models[0][1] and models[1][0] < models[0][0]


def test_nobody_moving_is_defined() -> None:
    for masks in (True, False):
        models = played(FedHEAL(masks=masks), [2.0], [[0.0], [0.0]], [[0.0], [0.0]], sizes=(1, 9))
        assert [model.tolist() for model in models] == [[2.0], [2.0]]


def test_an_absent_client_keeps_its_history_and_a_new_one_starts_with_its_own(
    tmp_path: Path,
) -> None:
    drop = [{"round": round, "client": "1", "kind": "drop"} for round in (1, 3)]
    with updates(FedHEAL) as seen:
        run = eq.run(experiment("fedheal", rounds=3, faults={"script": drop}), out=tmp_path / "run")
    assert "1" not in seen[0].new.signs and "1" not in seen[0].new.importance
    assert [seen[k].new.signs["1"]["rounds"] for k in (1, 2)] == [1, 1] and seen[2].new.signs["0"][
        "rounds"
    ] == 3
    assert same(seen[1].new.signs["1"]["positive"], seen[2].new.signs["1"]["positive"])
    assert seen[1].new.importance["1"] == seen[2].new.importance["1"]
    assert seen[0].new.importance["0"]["q"] == 1 / 5 + seen[0].new.importance["0"]["step"], (
        "a missing reply changes nobody's start"
    )
    assert seen[1].new.importance["1"]["q"] == 1 / 5 + seen[1].new.importance["1"]["step"], (
        "it starts with its share of those asked"
    )
    assert isinstance(load_server(run.store).signs, PerClient)


def test_it_costs_and_sends_what_fedavg_does(tmp_path: Path) -> None:
    with counted() as passes, updates(FedHEAL) as seen:
        run = eq.run(experiment("fedheal", training={"epochs": 2}), out=tmp_path / "run")
    assert passes == {("client", "gradient"): 3 * 2 * samples(run)}
    assert set(seen[0].ups[0]) == {"model"}


def test_bad_parameters_are_refused_before_round_1(tmp_path: Path) -> None:
    assert "method.beta" in refused(
        lambda: experiment({"name": "fedheal", "beta": 1.5}), tmp_path / "run"
    )


def test_without_masks_it_is_the_weight_rule_of_other_methods(tmp_path: Path) -> None:
    own = eq.run(experiment(FedHEAL(masks=False), "cnn"), out=tmp_path / "own")
    guest = eq.run(
        experiment(compose(FedProx(mu=0), weights=FedHEAL(masks=False)), "cnn"),
        out=tmp_path / "guest",
    )
    assert own.weights() == guest.weights() and same(model_of(own), model_of(guest))
    with pytest.raises(IncompatibleComposition, match="no weight rule that stands"):
        compose(FedAvg(), weights=FedHEAL())
    with pytest.raises(IncompatibleComposition, match="derived for its own weights"):
        compose(FedHEAL(), weights=FedAvg())


def test_with_beta_0_and_no_masks_all_clients_count_alike(tmp_path: Path) -> None:
    plain, own = (
        model_of(eq.run(experiment(method), out=tmp_path / str(k)))
        for k, method in enumerate((FedAvg(average="uniform"), FedHEAL(beta=0, masks=False)))
    )
    for name in plain:
        torch.testing.assert_close(own[name], plain[name], rtol=1e-5, atol=1e-6)
