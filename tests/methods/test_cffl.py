"""CFFL: reputations, expulsion and rewards against plain numpy over whole runs; its first round is
FedAvg's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.experiment import ConfigurationError
from equipoise.methods.cffl import CFFL
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, PerClient, State
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from tests.helpers.counting import counted
from tests.helpers.digits import refused, updates
from tests.helpers.images import (
    NETWORKS,
    at,
    bench,
    net_of,
    own,
    passes_of,
    plain_fit,
    play,
    shared,
)
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.rewards import IDS, assert_largest, drawn, replies, server_for, vectors
from tests.helpers.runs import sites

OPEN = {"upload": 1.0, "clip": math.inf, "threshold": 0.0}


class Plain:
    """The reputations of the paper, in float64, for any cohort: all sum to 1, and a client that
    never took part has 1/K of it.
    """

    def __init__(self, clients: int, method: CFFL) -> None:
        self.clients, self.method = clients, method
        self.c: dict[str, float] = {}
        self.expelled: set[str] = set()

    def round(self, accuracies: dict[str, float]) -> None:
        trusted = [client for client in accuracies if client not in self.expelled]
        mass = sum(self.c.get(client, 1 / self.clients) for client in trusted)
        total = sum(accuracies[client] for client in trusted)
        if total == 0:
            self.c |= {client: self.c.get(client, 1 / self.clients) for client in trusted}
            return
        m = self.method
        old = {client: self.c.get(client, 0.0) / mass for client in trusted}
        raised = {
            client: math.sinh(
                m.alpha * (m.memory * old[client] + (1 - m.memory) * accuracies[client] / total)
            )
            for client in trusted
        }
        c = {client: value / sum(raised.values()) for client, value in raised.items()}
        out = {client for client, value in c.items() if value < m.threshold / len(trusted)}
        left = sum(value for client, value in c.items() if client not in out)
        self.c |= {
            client: 0.0 if client in out else mass * value / left for client, value in c.items()
        }
        self.expelled |= out


def accuracy_of(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((net.eval()(x).argmax(1) == y).double().mean())


@pytest.mark.parametrize("network", NETWORKS)
def test_a_run_is_that_of_a_plain_loop(tmp_path: Path, network: str) -> None:
    """Client models, reputations, the global model and what each is paid, over five rounds of three
    clients, one of which is spoilt.
    """
    method = CFFL(upload=0.6, clip=0.2, alpha=3.0, memory=0.5, threshold=0.8)
    data = sites()
    data["cy"] = (data["cy"][0], 2 - data["cy"][1])  # wrong labels
    changes: dict[str, Any] = {
        "on": data,
        "rounds": 5,
        "participation": {"number": 3},
        "training": {"lr": 0.2, "batch": 5},
    }
    with updates(CFFL) as seen:
        run = play(method, tmp_path / "run", network, **changes)
    workbench, _ = bench(method, network, on=data)
    federation = workbench.federation
    assert federation is not None
    index = torch.from_numpy(np.array(federation.server_validation))
    x, y = federation.x[index], federation.y[index]
    plain, models, paid = (
        Plain(4, method),
        {client: workbench.initial("model") for client in run.clients},
        {},
    )
    for round, one in enumerate(seen, 1):
        sizes, ids = one.server.sizes, one.ups.ids
        accuracies, uploads = {}, {}
        for client, up in zip(ids, one.ups, strict=True):
            start = models[client]
            if client in paid:
                reward, share, uploaded = paid[client]
                start = start + (reward - share * uploaded)
            net = net_of(workbench, start)
            plain_fit(
                net,
                at(workbench, client).train,
                torch.optim.SGD(net.parameters(), lr=0.2),
                client,
                round,
            )
            ends = net.state_dict()
            delta = (
                vectors([type(start)(dict(ends), "model", start.untrained)])[0]
                - vectors([start])[0]
            )
            delta *= min(1, 0.2 / np.linalg.norm(delta))
            uploads[client] = start.params.with_flat(torch.from_numpy(delta))
            models[client] = (start + uploads[client]).with_rest(
                type(start)(dict(ends), "model", start.untrained).rest
            )
            assert_near(own(run, "model", round)[client], models[client], 1e-4)
            assert_largest(up.update, uploads[client], math.floor(0.6 * start.count()))
            # continue from the same numbers, so that errors do not grow
            models[client] = own(run, "model", round)[client]
            accuracies[client] = accuracy_of(
                net_of(workbench, (one.state.model + up.update).with_rest(up.rest)), x, y
            )
        plain.round(accuracies)
        for client in ids:
            assert one.new.reputation[client] == pytest.approx(plain.c[client], rel=1e-9, abs=1e-9)
        trusted = [client for client in ids if client not in plain.expelled]
        n = sum(sizes[client] for client in trusted)
        sent = dict(zip(ids, one.ups, strict=True))
        common = sum(sizes[client] / n * vectors([sent[client].update])[0] for client in trusted)
        np.testing.assert_allclose(
            vectors([one.new.model - one.state.model])[0], common, rtol=0, atol=1e-6
        )
        whole = one.state.model.params.with_flat(torch.from_numpy(common))
        for client in ids:
            paid.pop(client, None)
            if client not in trusted:
                assert one.new.rewards[client] == {}
                continue
            share = sizes[client] / max(sizes[other] for other in trusted)
            worth = plain.c[client] / max(plain.c[other] for other in trusted) * share
            assert_largest(
                one.new.rewards[client]["reward"], whole, math.floor(worth * whole.count() + 1e-6)
            )
            assert one.new.rewards[client]["own"] == pytest.approx(share)
            paid[client] = (one.new.rewards[client]["reward"], share, sent[client].update)
        for name in one.new.model.rest:
            values = [sent[client].rest[name].double() for client in trusted]
            weights = [sizes[client] / n for client in trusted]
            mean = (
                sum(w * value for w, value in zip(weights, values, strict=True))
                if "running" in name
                else max(values)
            )
            torch.testing.assert_close(one.new.model[name].double(), mean, rtol=1e-5, atol=1e-6)
    assert sum(plain.c.values()) == pytest.approx(1, abs=1e-9) and len(plain.c) == 4
    assert plain.expelled or network != "mlp", "somebody was expelled"
    state = load_server(run.store)
    assert all(isinstance(state[name], PerClient) for name in ("reputation", "rewards"))


@pytest.mark.parametrize("network", NETWORKS)
def test_all_sent_and_nobody_expelled_the_first_round_is_that_of_fedavg(
    tmp_path: Path, network: str
) -> None:
    plain, own_ = (
        play("fedavg", tmp_path / "a", network, rounds=1),
        play(CFFL(**OPEN), tmp_path / "b", network, rounds=1),
    )
    assert_near(shared(own_), shared(plain))
    assert not torch.allclose(
        shared(play("cffl", tmp_path / "c", network, rounds=1))["head.weight"],
        shared(plain)["head.weight"],
        atol=1e-6,
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_an_expelled_client_trains_alone_from_then_on(tmp_path: Path, network: str) -> None:
    """From the start, with a state in which it is expelled: nothing comes down, and its models are
    those of Standalone.
    """
    alone = play("standalone", tmp_path / "a", network)
    workbench, _ = bench("cffl", network)
    method, state = CFFL(clip=math.inf), {}
    server = Server(workbench, ["ada"], {"ada": 1}, 3, 1)
    expelled = method.start(server).with_(reputation=PerClient().put({"ada": 0.0}))
    for round in (1, 2, 3):
        client = at(workbench, "ada", round, state)
        method.client(client, method.deliver(server, expelled, "ada"))
        state = dict(client.state)
    assert_near(state["model"], own(alone, "local")["ada"], 1e-5)


def step(method: CFFL, server: Server, state: State, updates_: Any) -> State:
    ups = replies(server, updates_, "update")
    state = method.observe(server, state, ups)
    return method.update(server, state, ups, method.weights(server, state, ups))


def judged(server: Server, accuracies: list[list[float]]) -> Server:
    """A server whose validation gives these accuracies, by round and then by client."""
    given = iter([one for row in accuracies for one in row])
    server.accuracy = lambda model: next(given)  # type: ignore[method-assign]
    return server


def test_expelled_clients_have_no_reputation_are_paid_nothing_and_never_return() -> None:
    method = CFFL(memory=0.0, threshold=0.5)
    # The expelled are not measured again.
    server = judged(
        server_for("cffl"), [[0.9, 0.9, 0.9, 0.9, 0.1], [0.9, 0.9, 0.9, 0.2], [0.5, 0.5, 0.5]]
    )
    state, one = method.start(server), drawn(server, 1)
    trusted = [["a", "b", "c", "d"], ["a", "b", "c"], ["a", "b", "c"]]
    for left in trusted:
        before = state
        state = step(
            method, server, state, {client: one * (10 if client in "de" else 1) for client in IDS}
        )
        assert [client for client in IDS if state.reputation[client]] == left
        assert sum(state.reputation[client] for client in IDS) == pytest.approx(1, abs=1e-12)
        assert all((state.rewards[client] == {}) == (client not in left) for client in IDS)
        # Client d counts in round 1 alone, e never: sizes are equal.
        np.testing.assert_allclose(
            vectors([state.model - before.model])[0],
            vectors([one])[0] * (13 / 4 if "d" in left else 1),
            rtol=0,
            atol=1e-6,
        )


def test_a_cohort_of_expelled_clients_changes_nothing() -> None:
    server = judged(server_for("cffl"), [])
    method, one = CFFL(), drawn(server, 1)
    state = method.start(server).with_(reputation=PerClient().put({"d": 0.0, "e": 0.0}))
    new = step(method, server, state, {"d": one, "e": one})
    assert_equal(new.model, state.model)
    assert new.rewards["d"] == new.rewards["e"] == {}


def test_equal_accuracies_are_equal_reputations_and_no_accuracy_at_all_changes_none() -> None:
    method = CFFL(alpha=5.0)
    server = judged(server_for("cffl"), [[0.3] * 5, [0.1, 0.2, 0.3, 0.4, 0.5], [0.0] * 5])
    state, one = method.start(server), drawn(server, 1)
    states = [state := step(method, server, state, dict.fromkeys(IDS, one)) for _ in range(3)]
    values = [[state.reputation[client] for client in IDS] for state in states]
    np.testing.assert_allclose(values[0], [0.2] * 5, rtol=1e-12)
    assert values[1] == sorted(values[1]) and values[1][0] < values[1][4]
    assert values[2] == values[1]
    nobody = step(
        method,
        judged(server_for("cffl"), [[0.0] * 5]),
        method.start(server),
        dict.fromkeys(IDS, one),
    )
    assert [nobody.reputation[client] for client in IDS] == [0.2] * 5


def test_rewards_grow_with_reputation_and_with_size() -> None:
    sizes = {"a": 10, "b": 10, "c": 10, "d": 5, "e": 0}
    method = CFFL(threshold=0.0, alpha=1e-6)  # in proportion
    server = judged(server_for("cffl", sizes=sizes, network="cnn"), [[0.2, 0.4, 0.8, 0.8, 0.0]])
    steps = {client: drawn(server, place) for place, client in enumerate(IDS)}
    new = step(method, server, method.start(server), steps)
    common = new.model - server.initial()
    mean = sum(sizes[client] / 35 * vectors([steps[client]])[0] for client in IDS)
    np.testing.assert_allclose(vectors([common])[0], mean, rtol=0, atol=1e-6)
    for client, worth in zip(IDS, (0.25, 0.5, 1.0, 0.5, 0.0), strict=True):
        paid = new.rewards[client]["reward"]
        count = int(sum((paid[name] != 0).sum() for name in paid))
        assert abs(count - worth * common.count()) <= 1, client
        assert new.rewards[client]["own"] == sizes[client] / 10


def test_a_large_update_is_cut_to_the_norm_and_a_small_one_left() -> None:
    workbench, _ = bench("cffl", "cnn", training={"lr": 0.5, "batch": 5})
    found = {}
    for clip in (0.05, math.inf):
        client = at(workbench, "ada")
        up = CFFL(clip=clip, upload=1.0).client(client, Down())
        assert_near(client.state["model"].params, (workbench.initial("model") + up.update).params)
        assert_equal(up.update, client.state["uploaded"])
        found[clip] = up.update
    assert found[0.05].norm() == pytest.approx(0.05, rel=1e-5) and found[math.inf].norm() > 0.06
    assert_near(found[0.05], found[math.inf] * (0.05 / found[math.inf].norm()))


def test_the_reward_comes_with_the_next_round_and_is_served_before(tmp_path: Path) -> None:
    run = play(
        "cffl",
        tmp_path / "run",
        "cnn",
        rounds=2,
        faults={"script": [{"round": 2, "client": "ada", "kind": "drop"}]},
    )
    state = load_server(run.store)
    assert (run.models(), run.main_model) == (["personal"], "personal")
    for client in run.clients:
        paid, model = state.rewards[client], own(run, "model")[client]
        expected = (
            model + (paid["reward"] - paid["own"] * own(run, "uploaded")[client]) if paid else model
        )
        assert paid or client != "ada", (
            "ada was absent in round 2: what it earned in round 1 still waits"
        )
        assert_near(run.model("personal", client=client).state_dict(), expected)


def test_it_costs_fedavg_and_a_validation_pass_per_client(tmp_path: Path) -> None:
    assert passes_of(CFFL(threshold=0), tmp_path / "run", epochs=3)["client gradient"] == 3
    with counted() as passes:
        run = play(CFFL(threshold=0), tmp_path / "validation", rounds=2)
    assert set(passes) == {("client", "gradient"), ("server", "forward")}
    assert passes["server", "forward"] == 2 * 4 * sum(run.store.meta("sizes")["validation"])


def test_what_it_cannot_do_is_refused_before_round_1(tmp_path: Path) -> None:
    for wrong in ({"upload": 1.1}, {"clip": 0}, {"alpha": 0}, {"memory": 1.0}, {"threshold": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            eq.Experiment(method={"name": "cffl", **wrong})
    without = {"name": "digits", "clients": 3, "split": (0.8, 0.0, 0.2)}
    assert "CFFL measures models on validation data at the server, and there are none" in refused(
        lambda: eq.Experiment(data=without, method="cffl"), tmp_path / "none"
    )
    with pytest.raises(IncompatibleComposition, match="uploads none"):
        compose(CFFL(), weights=FedAvg())


def test_losses_fall_for_everybody(tmp_path: Path) -> None:
    """Subtracting the own share of the common update must not undo the training."""
    run = play("cffl", tmp_path / "run", rounds=8, training={"lr": 0.1, "batch": 5})
    workbench, _ = bench("cffl")
    for client in run.clients:
        data, nets = (
            at(workbench, client).train,
            [net_of(workbench), run.model("personal", client=client)],
        )
        with torch.no_grad():
            first, last = (float(cross_entropy(net(data.x), data.y)) for net in nets)
        assert last < 0.7 * first, client


def test_the_server_can_have_a_validation_set_that_belongs_to_no_client(tmp_path: Path) -> None:
    data = {"name": "digits", "clients": 2, "samples": 200, "split": [0.8, 0.0, 0.2]}
    settings = {"model": {"name": "mlp", "hidden": [4]}, "method": "cffl", "rounds": 1}
    with pytest.raises(ConfigurationError, match="server_validation"):
        eq.run({"data": data, **settings}, tmp_path / "without")
    own = {**data, "server_validation": 0.1}
    run = eq.run({"data": own, **settings}, tmp_path / "with")
    assert run.status == "finished"
