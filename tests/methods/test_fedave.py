"""FedAVE: values of data, reputations and rewards against plain numpy and scipy over whole runs;
its limits; the variant of a comparison.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.composition import IncompatibleComposition, compose
from equipoise.methods.fedave import FedAVE
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, PerClient, State
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree
from equipoise.weighting import batch_losses, loss_divergence
from tests.helpers.counting import counted
from tests.helpers.digits import refused, updates
from tests.helpers.images import NETWORKS, at, bench, net_of, own, plain_fit, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.rewards import IDS, assert_largest, ceilings, drawn, replies, server_for, vectors


def judged(workbench: Workbench) -> tuple[Tensor, Tensor]:
    """The server's validation data."""
    federation = workbench.federation
    assert federation is not None
    index = torch.from_numpy(np.array(federation.server_validation))
    return federation.x[index], federation.y[index]


def batch_by_batch(net: nn.Module, x: Tensor, y: Tensor, size: int) -> list[float]:
    """Mean cross-entropy of each batch, written out in float64."""
    found = []
    net = net.double().eval()
    for start in range(0, len(y), size):
        with torch.no_grad():
            p = net(x[start : start + size].double()).softmax(1)
        found.append(
            float(
                np.mean(
                    [
                        -math.log(row[label])
                        for row, label in zip(
                            p.tolist(), y[start : start + size].tolist(), strict=True
                        )
                    ]
                )
            )
        )
    return found


def accuracy_of(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((net.eval()(x).argmax(1) == y).double().mean())


class Plain:
    """Reputations and shares of the authors' code, in float64, for any cohort."""

    def __init__(self, clients: int, alpha: float, beta: float) -> None:
        self.clients, self.alpha, self.beta = clients, alpha, beta
        self.r: dict[str, float] = {}

    def round(
        self, accuracies: dict[str, float], kl: dict[str, float | None]
    ) -> tuple[dict[str, float], dict[str, float]]:
        inverse = {
            client: 1 / max(value, 1e-6) for client, value in kl.items() if value is not None
        }
        top, middle = (
            (max(inverse.values()), float(np.median(list(inverse.values()))))
            if inverse
            else (1.0, 1.0)
        )
        kappa = {client: inverse.get(client, middle) / top for client in kl}
        r = self.reputation({client: accuracies[client] * kappa[client] ** 2 for client in kl})
        best = max(math.tanh(self.beta * value) for value in r.values())
        return kappa, {
            client: kappa[client] * (math.tanh(self.beta * r[client]) / best) for client in kl
        }

    def reputation(self, value: dict[str, float]) -> dict[str, float]:
        mass = sum(self.r.get(client, 1 / self.clients) for client in value)
        new = {
            client: max(
                self.alpha * self.r[client] / mass + (1 - self.alpha) * one
                if client in self.r
                else one,
                1e-3,
            )
            for client, one in value.items()
        }
        r = {client: one / sum(new.values()) for client, one in new.items()}
        self.r |= {client: one * mass for client, one in r.items()}
        return r


@pytest.mark.parametrize("network", NETWORKS)
def test_a_run_is_that_of_a_plain_loop(tmp_path: Path, network: str) -> None:
    method = FedAVE(gamma=0.4, alpha=0.7, beta=3.0, batch=3)
    with updates(FedAVE) as seen:
        run = play(method, tmp_path / "run", network, rounds=4, participation={"number": 3})
    workbench, _ = bench(method, network)
    x, y = judged(workbench)
    plain, seen_before = Plain(4, 0.7, 3.0), set()
    for round, one in enumerate(seen, 1):
        ids, sizes = one.ups.ids, one.server.sizes
        seen_before |= set(ids)
        held = {client: one.state.models.get(client, workbench.initial("model")) for client in ids}
        accuracies, kl, u = {}, {}, {}
        for client, up in zip(ids, one.ups, strict=True):
            data = at(workbench, client).train
            first = batch_by_batch(net_of(workbench, held[client]), data.x, data.y, 3)
            np.testing.assert_allclose(up.losses, first, rtol=1e-4)
            second = batch_by_batch(net_of(workbench, held[client]), x, y, 3)
            length = min(len(first), len(second))
            # scipy scales both to sum 1; single precision of the losses is the only difference
            kl[client] = (
                float(scipy.stats.entropy(up.losses[:length], second[:length]))
                if length > 1
                else None
            )
            net = net_of(workbench, held[client])
            plain_fit(net, data, torch.optim.SGD(net.parameters(), lr=0.05), client, round)
            trained = Tree(dict(net.state_dict()), "model", held[client].untrained)
            assert_near((held[client] + up.update).with_rest(up.rest), trained, 1e-4)
            accuracies[client] = accuracy_of(
                net_of(workbench, (held[client] + up.update).with_rest(up.rest)), x, y
            )
            delta = vectors([up.update])[0]
            u[client] = 0.4 * delta / (np.linalg.norm(delta) + 1e-7)
        kappa, q = plain.round(accuracies, kl)
        np.testing.assert_allclose(
            [one.new.reputation[c] for c in ids], [plain.r[c] for c in ids], rtol=2e-3
        )
        assert (
            max(q[client] / kappa[client] for client in ids) == 1 and len(set(kappa.values())) > 1
        )
        n = sum(sizes[client] for client in ids)
        u_g = sum(sizes[client] / n * u[client] for client in ids)
        whole = one.ups[0].update.with_flat(torch.from_numpy(u_g))
        for client in ids:
            after = one.new.models[client]
            for name, count in ceilings(q[client], whole).items():
                moved, full = (
                    (after[name] - held[client][name]).double().reshape(-1),
                    whole[name].double().reshape(-1),
                )
                kept = moved.abs() > 1e-9
                torch.testing.assert_close(moved[kept], full[kept], rtol=0, atol=1e-6)
                assert abs(int(kept.sum()) - count) <= 1 + 0.003 * len(full) + int(
                    (full.abs() < 1e-6).sum()
                ), (name, kept.sum(), count)
                assert (
                    kept.all()
                    or not kept.any()
                    or full[kept].abs().min() >= full[~kept].abs().max() - 1e-6
                )
            for name in after.rest:
                values = [up.rest[name].double() for up in one.ups]
                mean = (
                    sum(sizes[c] / n * value for c, value in zip(ids, values, strict=True))
                    if "running" in name
                    else max(values)
                )
                torch.testing.assert_close(after[name].double(), mean, rtol=1e-5, atol=1e-6)
    assert len(seen_before) == 4 and sum(plain.r.values()) == pytest.approx(1, abs=1e-12)
    state = load_server(run.store)
    assert all(isinstance(state[name], PerClient) for name in ("models", "reputation"))


def step(
    method: FedAVE,
    server: Server,
    state: State,
    steps: dict[str, Tree],
    losses: dict[str, list[float]],
) -> State:
    ups = replies(server, steps, "update", losses=losses)
    return method.update(server, state, ups, method.weights(server, state, ups))


def own_losses(server: Server, size: int) -> list[float]:
    """The losses of the initial model on the validation data: those of a client whose data are
    worth most.
    """
    return batch_losses(server.predict(server.load(None)), server.validation.y, size)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_exact_numbers_are_paid(network: str) -> None:
    """On models of zeros nothing is lost to rounding; losses of a model of zeros are all ln 3."""
    method = FedAVE(beta=2.0, batch=5)
    server = server_for(method, network=network)
    zero = (0 * server.initial()).with_rest(server.initial().rest)
    state = method.start(server)
    state = state.with_(models=state.models.put(dict.fromkeys(IDS, zero)))
    server.accuracy = lambda model: 0.5  # type: ignore[method-assign]
    steps = {client: drawn(server, place) for place, client in enumerate(IDS)}
    losses = {client: [1.0] * 5 + [2.0 + place] for place, client in enumerate(IDS)}
    new = step(method, server, state, steps, losses)
    kl = {client: scipy.stats.entropy(losses[client], [1.0] * 6) for client in IDS}
    _, q = Plain(5, method.alpha, method.beta).round(dict.fromkeys(IDS, 0.5), kl)
    u_g = sum(0.5 / 5 * row / np.linalg.norm(row) for row in vectors(list(steps.values())))
    whole = steps["a"].with_flat(torch.from_numpy(u_g))
    assert q["a"] == 1 > q["b"] > q["c"] > q["d"] > q["e"] > 0
    for client in IDS:
        assert_largest(new.models[client].params, whole, ceilings(q[client], whole))


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_data_of_equal_value_are_paid_the_whole_step(network: str) -> None:
    method = FedAVE(batch=5)
    server = server_for(method, network=network)
    server.accuracy = lambda model: 0.5  # type: ignore[method-assign]
    steps = {client: drawn(server, place) for place, client in enumerate(IDS)}
    new = step(
        method, server, method.start(server), steps, dict.fromkeys(IDS, own_losses(server, 5))
    )
    mean = sum(0.5 / 5 * row / np.linalg.norm(row) for row in vectors(list(steps.values())))
    for client in IDS:
        np.testing.assert_allclose(
            vectors([new.models[client] - server.initial()])[0], mean, rtol=0, atol=1e-6
        )
        assert new.reputation[client] == pytest.approx(0.2)


def test_losses_too_few_to_compare_give_the_median_value() -> None:
    method = FedAVE(batch=5)
    server = server_for(method)
    likely = own_losses(server, 5)
    losses = {
        "a": likely,
        "b": [2 * likely[0], *likely[1:]],
        "c": [9 * likely[0], *likely[1:]],
        "d": likely[:1],
        "e": [],
    }
    found = method.likeness(
        server,
        replies(server, dict.fromkeys(IDS, drawn(server, 1)), "update", losses=losses),
        dict.fromkeys(IDS, server.initial()),
    )
    assert found[0] == 1 > found[1] > found[2] > 0
    assert found[3] == found[4] == found[1]
    few = dict.fromkeys(IDS, likely[:1])
    alike = method.likeness(
        server,
        replies(server, dict.fromkeys(IDS, drawn(server, 1)), "update", losses=few),
        dict.fromkeys(IDS, server.initial()),
    )
    assert alike.tolist() == [1.0] * 5


def test_the_divergence_is_scipys_and_finite_at_its_edges() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        first, second = (
            draw.exponential(1, draw.integers(2, 9)),
            draw.exponential(1, draw.integers(2, 9)),
        )
        length = min(len(first), len(second))
        assert loss_divergence(list(first), list(second)) == pytest.approx(
            scipy.stats.entropy(first[:length], second[:length]), rel=1e-9
        )
    assert loss_divergence([1.0, 2.0], [2.0, 4.0, 9.0]) == 1e-6
    assert loss_divergence([0.0, 0.0], [0.0, 0.0]) == 1e-6
    assert 0 < loss_divergence([1.0, 1.0], [1.0, 0.0]) < 100
    assert loss_divergence([3.0], [1.0, 2.0]) is None


def test_losses_are_of_batches_in_the_order_of_the_data_and_the_last_may_be_short() -> None:
    logits, y = torch.randn(11, 3, generator=torch.Generator().manual_seed(0)), torch.arange(11) % 3
    rows = -logits.double().log_softmax(1)[torch.arange(11), y]
    np.testing.assert_allclose(
        batch_losses(logits, y, 4), [rows[:4].mean(), rows[4:8].mean(), rows[8:].mean()], rtol=1e-6
    )
    assert batch_losses(logits[:0], y[:0], 4) == []


def test_reputations_stay_with_alpha_1_and_models_without_movement() -> None:
    method = FedAVE(alpha=1.0, batch=5)
    server = server_for(method, network="cnn")
    given = iter([0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.1, 0.1, 0.1, 0.9])
    server.accuracy = lambda model: next(given)  # type: ignore[method-assign]
    losses = dict.fromkeys(IDS, own_losses(server, 5))
    first = step(
        method,
        server,
        method.start(server),
        {client: 0 * drawn(server, 1) for client in IDS},
        losses,
    )
    values = [first.reputation[client] for client in IDS]
    np.testing.assert_allclose(values, np.array([1, 2, 3, 4, 5]) / 15)
    for client in IDS:
        assert_equal(first.models[client], server.initial())
    second = step(method, server, first, dict.fromkeys(IDS, drawn(server, 1)), losses)
    np.testing.assert_allclose([second.reputation[client] for client in IDS], values, rtol=1e-12)


def test_absent_clients_keep_model_and_reputation(tmp_path: Path) -> None:
    with updates(FedAVE) as seen:
        play(
            FedAVE(batch=2),
            tmp_path / "run",
            faults={
                "script": [{"round": round, "client": "ada", "kind": "drop"} for round in (1, 3)]
            },
        )
    states = [one.new for one in seen]
    assert "ada" not in states[0].models and "ada" not in states[0].reputation
    assert_equal(states[1].models["ada"], states[2].models["ada"])
    assert states[1].reputation["ada"] == states[2].reputation["ada"]


@pytest.mark.parametrize("variant", ["original", "seed"])
def test_what_it_costs(tmp_path: Path, variant: Any) -> None:
    with counted() as passes:
        run = play(
            FedAVE(batch=2, variant=variant),
            tmp_path / "run",
            rounds=2,
            training={"lr": 0.05, "batch": 5, "epochs": 3},
        )
    sizes = {part: sum(count) for part, count in run.store.meta("sizes").items()}
    expected = {
        ("client", "gradient"): 2 * 3 * sizes["train"],
        ("server", "forward"): 2 * 2 * 4 * sizes["validation"],
    }
    if variant == "original":
        expected["client", "forward"] = 2 * sizes["train"]
    else:
        expected["server", "forward"] //= 2
    assert passes == expected


def test_each_client_is_delivered_and_serves_its_own_model(tmp_path: Path) -> None:
    run = play(FedAVE(batch=2), tmp_path / "run", "cnn", rounds=2, participation={"number": 2})
    state = load_server(run.store)
    assert (run.models(), run.main_model) == (["personal"], "personal") and "model" not in state
    workbench, _ = bench("fedave", "cnn")
    for client in run.clients:
        assert_equal(
            run.model("personal", client=client).state_dict(),
            state.models.get(client, workbench.initial("model")),
        )


@pytest.mark.parametrize("network", NETWORKS)
def test_the_variant_of_a_comparison(tmp_path: Path, network: str) -> None:
    """All start from the global model; half of the update goes up, 30 % and more of the mean comes
    down, on top of the trained model.
    """
    method = FedAVE(variant="seed", alpha=0.5)
    with updates(FedAVE) as seen:
        run = play(method, tmp_path / "run", network, rounds=3)
    workbench, _ = bench(method, network)
    x, y = judged(workbench)
    plain = Plain(4, 0.5, 1.0)
    for round, one in enumerate(seen, 1):
        ids, sizes = one.ups.ids, one.server.sizes
        n = sum(sizes[client] for client in ids)
        for client, up in zip(ids, one.ups, strict=True):
            net = net_of(workbench, one.state.model)
            plain_fit(
                net,
                at(workbench, client).train,
                torch.optim.SGD(net.parameters(), lr=0.05),
                client,
                round,
            )
            trained = own(run, "trained", round)[client]
            assert_near(trained, dict(net.state_dict()), 1e-4)
            assert_largest(up.update, trained - one.state.model, math.floor(0.5 * trained.count()))
        common = sum(
            sizes[client] / n * vectors([up.update])[0]
            for client, up in zip(ids, one.ups, strict=True)
        )
        np.testing.assert_allclose(
            vectors([one.new.model - one.state.model])[0], common, rtol=0, atol=1e-6
        )
        tried = {
            c: net_of(workbench, (one.state.model + up.update).with_rest(up.rest))
            for c, up in zip(ids, one.ups, strict=True)
        }
        r = plain.reputation({client: accuracy_of(net, x, y) for client, net in tried.items()})
        whole = one.ups[0].update.with_flat(torch.from_numpy(common))
        for client in ids:
            share = 0.3 + 0.7 * math.tanh(r[client])
            assert_largest(
                one.new.rewards[client]["reward"], whole, math.floor(share * whole.count())
            )
    assert (set(run.models()), run.main_model) == ({"personal", "global"}, "personal")
    # a network given in Python is not rebuilt
    for client in run.clients if network != "dropout" else ():
        paid = load_server(run.store).rewards[client]["reward"]
        assert_near(
            run.model("personal", client=client).state_dict(), own(run, "trained")[client] + paid
        )
        assert_near(run.model("global", client=client).state_dict(), shared(run))


def test_with_everything_sent_the_variants_global_model_is_that_of_fedavg(tmp_path: Path) -> None:
    own_ = play(FedAVE(variant="seed", upload=1.0), tmp_path / "a", "cnn", rounds=1)
    assert_near(shared(own_), shared(play("fedavg", tmp_path / "b", "cnn", rounds=1)))


def test_what_it_cannot_do_is_refused_before_round_1(tmp_path: Path) -> None:
    for wrong in (
        {"gamma": 0},
        {"alpha": 1.2},
        {"beta": 0},
        {"batch": 0},
        {"variant": "other"},
        {"upload": 2},
        {"download": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            eq.Experiment(method={"name": "fedave", **wrong})
    without = {"name": "digits", "clients": 3, "split": (0.8, 0.0, 0.2)}
    assert "FedAVE measures models on validation data at the server, and there are none" in refused(
        lambda: eq.Experiment(data=without, method="fedave"), tmp_path / "none"
    )
    with pytest.raises(IncompatibleComposition, match="uploads none"):
        compose(FedAVE(), weights=FedAvg())


def test_only_updates_statistics_and_losses_are_uploaded() -> None:
    workbench, method = bench(FedAVE(batch=2), "cnn")
    up = method.client(at(workbench, "ada"), Down(model=workbench.initial("model")))
    assert set(up) == {"update", "rest", "losses"} and set(up.update) == set(
        workbench.initial("model").trained
    )


def test_a_reputation_never_falls_below_a_thousandth_of_a_whole_value() -> None:
    logged: dict[str, Any] = {}
    server: Any = SimpleNamespace(ids=["a", "b", "c", "d"], log_contributions=logged.__setitem__)
    ups: Any = SimpleNamespace(ids=["a", "b"])
    shares, held = FedAVE().reputation(
        server, State(reputation=PerClient()), ups, np.array([0.0, 0.999])
    )
    np.testing.assert_allclose(shares, [0.001, 0.999], rtol=1e-12)
    # of the half that belongs to two of four clients
    assert held == pytest.approx({"a": 0.0005, "b": 0.4995})
    known = State(reputation=PerClient().put({"a": 0.4, "b": 0.1}))
    shares, held = FedAVE(alpha=0.75).reputation(server, known, ups, np.array([0.2, 1.0]))
    # 3/4 of 0.8 and 0.2, the shares of what both hold, and 1/4 of the values
    np.testing.assert_allclose(shares, np.array([0.65, 0.4]) / 1.05)
    assert held == pytest.approx({"a": 0.5 * 0.65 / 1.05, "b": 0.5 * 0.4 / 1.05})
