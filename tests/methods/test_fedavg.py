"""FedAvg and its two ways of weighing (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise.client import Client
from equipoise.data.samples import Samples
from equipoise.streams import torch_stream
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import (
    WHOLE,
    averaged,
    bench_of,
    client_states,
    first_replies,
    server_state,
    trained,
)
from tests.helpers.runs import settings, sites

SHARES = {"size": lambda sizes: sizes, "uniform": lambda sizes: dict.fromkeys(sizes, 1)}


def training_sizes(run: eq.Run) -> dict[str, int]:
    return dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))


def test_one_client_is_plain_local_training(tmp_path: Path) -> None:
    """Two rounds against a loop of torch's own optimiser over the same batch order."""
    data = sites({"ada": 20})
    run = trained("fedavg", tmp_path / "run", "cnn", data, rounds=2)
    bench, _ = bench_of(settings("fedavg", "cnn"), data)
    model = bench.take("model")
    own = Client(bench, "ada", 1, 2, {}).train
    x, y = own.x, own.y
    for number in (1, 2):
        optimiser = torch.optim.SGD(model.net.parameters(), lr=0.05)
        model.net.train()
        for batch in torch.randperm(
            len(x), generator=torch_stream(7, "client", number, "ada", "batches")
        ).split(5):
            optimiser.zero_grad()
            F.cross_entropy(model.net(x[batch]), y[batch]).backward()
            optimiser.step()
    assert_near(server_state(run).model, dict(model.tree()))
    assert not torch.equal(
        server_state(run).model["head.weight"], bench.initial("model")["head.weight"]
    )


def test_identical_clients_average_to_any_of_them(tmp_path: Path) -> None:
    """One sample each, so that the order of batches cannot differ."""
    one = (np.ones((1, 1, 8, 8), np.float32), np.array([2]))
    same = dict.fromkeys(("ada", "bo", "cy"), one)
    together, alone = (
        trained(name, tmp_path / name, "cnn", same, data=WHOLE, rounds=2)
        for name in ("fedavg", "standalone")
    )
    assert set(client_states(alone)) == set(same)
    for state in client_states(alone).values():
        assert_equal(server_state(together).model, state["local"])


@pytest.mark.parametrize("average", ["size", "uniform"])
def test_the_global_model_is_the_weighted_mean_with_buffers(tmp_path: Path, average: str) -> None:
    """Parameters and running statistics by the same weights.

    The counter of batches is the largest, never a mean.
    """
    method = {"name": "fedavg", "average": average}
    bench, made = bench_of(settings(method, "cnn"), sites())
    run = trained(method, tmp_path / "run", "cnn", rounds=1)
    sizes = training_sizes(run)
    assert len(set(sizes.values())) == len(sizes)
    replies, new = first_replies(bench, made), server_state(run).model
    assert_near(new, averaged(replies, SHARES[average](sizes)))
    counters = {name: int(value) for name, value in new.items() if not value.is_floating_point()}
    assert counters == dict.fromkeys(
        (name for name in new if name.endswith("num_batches_tracked")), -(-max(sizes.values()) // 5)
    )
    assert len(counters) == 2


@pytest.mark.parametrize("average", ["size", "uniform"])
def test_recorded_weights_are_shares_of_who_took_part(tmp_path: Path, average: str) -> None:
    run = trained(
        {"name": "fedavg", "average": average},
        tmp_path / "run",
        "mlp",
        rounds=3,
        participation={"number": 3},
    )
    sizes = training_sizes(run)
    assert [len(row["joined"]) for row in run.rounds()] == [3, 3, 3]
    for row in run.rounds():
        shares = SHARES[average]({client: sizes[client] for client in row["joined"]})
        recorded = {
            entry["client"]: entry["share"]
            for entry in run.weights()
            if entry["round"] == row["round"]
        }
        assert recorded == pytest.approx(
            {client: share / sum(shares.values()) for client, share in shares.items()}, rel=1e-12
        )
        assert sum(recorded.values()) == pytest.approx(1, abs=1e-12)


def test_one_full_batch_step_is_a_step_on_the_pooled_data(tmp_path: Path) -> None:
    run = trained("fedavg", tmp_path / "run", "mlp", rounds=1, training={"lr": 0.3, "batch": 100})
    bench, _ = bench_of(settings("fedavg", "mlp"), sites())
    model, pooled = bench.take("model"), Samples.of(bench.federation, bench.federation.train.index)
    F.cross_entropy(model.net(pooled.x), pooled.y).backward()
    expected = {
        name: parameter.detach() - 0.3 * parameter.grad
        for name, parameter in model.net.named_parameters()
    }
    assert_near(server_state(run).model, expected)
