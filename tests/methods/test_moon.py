"""MOON: its reductions to FedAvg, its contrast, and a plain reference of its rounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import equipoise as eq
from equipoise import methods
from equipoise.client import Client
from equipoise.losses import model_contrast
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.moon import MOON
from equipoise.records import Down
from equipoise.storage.checkpoint import load_server
from tests.helpers.counting import counted
from tests.helpers.digits import (
    NETWORKS,
    batches_of,
    bench_for,
    few,
    finished,
    plain_epoch,
    plain_net,
    samples_of,
)
from tests.helpers.plain import assert_near, plain_mean, same


@pytest.mark.parametrize("network", NETWORKS)
def test_without_the_contrast_it_is_fedavg(tmp_path: Path, network: str) -> None:
    assert same(
        finished(MOON(mu=0), tmp_path / "moon", network).model,
        finished("fedavg", tmp_path / "fedavg", network).model,
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_the_first_round_is_fedavg_and_the_second_is_not(tmp_path: Path, network: str) -> None:
    for rounds in (1, 2):
        found = [
            finished(name, tmp_path / f"{name} {rounds}", network, rounds=rounds).model
            for name in ("moon", "fedavg")
        ]
        assert same(*found) == (rounds == 1)


def test_a_client_first_asked_later_trains_plainly() -> None:
    bench = bench_for()
    down = Down(model=bench.initial("model"))
    late = MOON().client(Client(bench, "1", 7, 9, {}), down).model
    assert same(late, FedAvg().client(Client(bench, "1", 7, 9, {}), down).model)


def test_the_previous_model_is_the_one_that_was_uploaded() -> None:
    bench = bench_for()
    client = Client(bench, "1", 1, 9, {})
    up = MOON().client(client, Down(model=bench.initial("model")))
    assert same(client.state["previous"], up.model)
    assert "previous" not in Client(bench, "1", 1, 9, {}).state
    without = Client(bench, "1", 1, 9, {})
    MOON(mu=0).client(without, Down(model=bench.initial("model")))
    assert not without.state.changed  # nothing is kept for nothing


@pytest.mark.parametrize("network", NETWORKS)
def test_equal_models_give_ln_2_and_no_gradient(network: str) -> None:
    """A previous model equal to the received one: training is plain, bit for bit."""
    bench = bench_for(network=network)
    down = Down(model=bench.initial("model"))
    indifferent = MOON().client(Client(bench, "0", 2, 3, {"previous": down.model}), down).model
    assert same(indifferent, FedAvg().client(Client(bench, "0", 2, 3, {}), down).model)
    own = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    other = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    losses = model_contrast(own, other, other.clone())
    losses.sum().backward()
    torch.testing.assert_close(losses, torch.full((5,), math.log(2)))
    assert own.grad is not None and not own.grad.any()


def test_the_contrast_is_a_cross_entropy_over_two_classes() -> None:
    draw = torch.Generator().manual_seed(4)
    own, near, far = (torch.randn(6, 2, 3, generator=draw, dtype=torch.float64) for _ in range(3))
    cosines = [
        [
            float(torch.dot(a, b) / a.norm() / b.norm())
            for a, b in zip(own.flatten(1), other.flatten(1), strict=True)
        ]
        for other in (near, far)
    ]
    for temperature in (0.5, 0.05):
        found = model_contrast(own, near, far, temperature)
        wanted = [
            -math.log(
                math.exp(p / temperature) / (math.exp(p / temperature) + math.exp(n / temperature))
            )
            for p, n in zip(*cosines, strict=True)
        ]
        torch.testing.assert_close(
            found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12
        )
    swapped = model_contrast(own, far, near)
    torch.testing.assert_close(
        swapped - model_contrast(own, near, far),
        2 * torch.tensor(cosines[0]).double() - 2 * torch.tensor(cosines[1]).double(),
    )


def test_the_contrast_pulls_towards_the_received_model() -> None:
    own = torch.tensor([[1.0, 1.0]], requires_grad=True)
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    before = model_contrast(own, near, far)
    before.sum().backward()
    assert own.grad is not None
    after = model_contrast(own.detach() - 0.1 * own.grad, near, far)
    assert float(after) < float(before.detach())
    assert functional.cosine_similarity(
        own.detach() - 0.1 * own.grad, near
    ) > functional.cosine_similarity(own.detach(), near)


def test_extreme_and_empty_features_stay_finite() -> None:
    own = torch.tensor([[0.0, 0.0], [1e-3, 0.0], [1.0, 0.0]], requires_grad=True)
    near, far = (
        torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]),
        torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]),
    )
    losses = model_contrast(own, near, far, temperature=1e-4)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([math.log(2), math.log(2), 2e4])
    assert own.grad is not None and torch.isfinite(own.grad).all() and not own.grad[:2].any()


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_rounds_match_a_plain_reference(tmp_path: Path, network: str) -> None:
    mu, temperature = 2.0, 0.4
    run = eq.run(few(MOON(mu=mu, temperature=temperature), network), tmp_path / "run")
    bench = bench_for(network=network)
    shared: Any = bench.initial("model")
    previous: dict[str, Any] = {}
    for number in (1, 2, 3):
        uploads, sizes = [], []
        for client in run.clients:
            x, y = samples_of(bench, client)
            net, received = plain_net(bench, shared), plain_net(bench, shared).eval()
            last = plain_net(bench, previous[client]).eval() if client in previous else None

            def contrast(
                features: Any,
                logits: Any,
                places: Any,
                x: Any = x,
                received: Any = received,
                last: Any = last,
            ) -> Any:
                if last is None:
                    return 0.0
                with torch.no_grad():
                    others = [other.features(x[places]).flatten(1) for other in (received, last)]
                scores = (
                    torch.stack(
                        [
                            functional.cosine_similarity(features.flatten(1), other)
                            for other in others
                        ],
                        1,
                    )
                    / temperature
                )
                return mu * functional.cross_entropy(
                    scores, torch.zeros(len(places), dtype=torch.int64)
                )

            plain_epoch(net, x, y, batches_of(client, number), contrast)
            previous[client] = net.state_dict()
            uploads.append(previous[client])
            sizes.append(len(y))
        shared = plain_mean(uploads, sizes)
    assert_near(load_server(run.store).model, shared, 2e-5)


def test_random_inputs_reach_all_three_models_alike() -> None:
    """Augmented batches: nothing is cached, so that equal models are still indifferent and
    different ones are not.
    """
    data = {"name": "digits", "partition": "iid", "clients": 2, "samples": 120, "augment": ["flip"]}
    bench = bench_for(data=data)
    down = Down(model=bench.initial("model"))
    plain = FedAvg().client(Client(bench, "0", 2, 3, {}), down).model
    for previous in (down.model, down.model + 2 * down.model):
        client = Client(bench, "0", 2, 3, {"previous": previous})
        assert client.random_inputs
        assert same(MOON().client(client, down).model, plain) == (previous is down.model)


def test_what_it_costs(tmp_path: Path) -> None:
    for name, forward in (("moon", 2), (MOON(mu=0), 0)):
        with counted() as passes:
            run = eq.run(few(name, rounds=3, training={"epochs": 2}), tmp_path / str(forward))
        samples = sum(run.store.meta("sizes")["train"])
        # The table: E passes to train, and from a client's second round on one pass of each of the
        # two frozen models.
        assert passes == {
            ("client", "gradient"): 3 * 2 * samples,
            **({("client", "forward"): 2 * forward * samples} if forward else {}),
        }


@pytest.mark.parametrize(("name", "value"), [("mu", -1), ("temperature", 0), ("tau", 1)])
def test_bad_parameters_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}"):
        methods.make("moon", {name: value})


def test_what_is_served(tmp_path: Path) -> None:
    run = eq.run(few("moon", "mlp", rounds=2, evaluation={"every": 1}), tmp_path / "run")
    assert run.models() == ["global"] and run.main_model == "global"
    assert same(run.model("global").state_dict(), load_server(run.store).model)
