"""Small experiments on digits, and plain torch to judge them by, that tests of methods share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.client import Client
from equipoise.data import federate
from equipoise.models import Network
from equipoise.records import State
from equipoise.simulate import prepare
from equipoise.storage.checkpoint import load_server
from equipoise.streams import torch_stream
from equipoise.training.workbench import Workbench

SEED = 3


def dropping() -> Network:
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.4)), nn.Linear(12, 10))


NETWORKS: dict[str, Any] = {"mlp": {"name": "mlp", "hidden": [8]}, "cnn": {"name": "cnn", "width": 4, "hidden": 8}, "dropout": dropping}


def experiment(method: Any, network: str = "cnn", **changes: Any) -> eq.Experiment:
    data = {"name": "digits", "partition": "dirichlet:0.5", "clients": 3, "samples": 240}
    settings = {"data": data, "model": NETWORKS[network], "rounds": 3, "workers": 0, "seed": SEED, "evaluation": {"every": 0}}
    return eq.Experiment(**{**settings, **changes, "method": method})


def finished(method: Any, out: Path, network: str = "cnn", **changes: Any) -> State:
    """The server's state at the end of a run."""
    return load_server(eq.run(experiment(method, network, **changes), out).store)


def bench_for(method: Any = "fedavg", network: str = "cnn", **changes: Any) -> Workbench:
    wanted = experiment(method, network, **changes)
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    return prepare(wanted, federation.task, federation.ids, federation)[0]


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def assert_near(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float = 1e-6) -> None:
    assert set(found) == set(wanted)
    for name in wanted:
        torch.testing.assert_close(
            found[name].double(), wanted[name].double(), rtol=0, atol=tolerance, msg=lambda text, name=name: name + text
        )


def plain_net(bench: Workbench, entries: Mapping[str, Tensor]) -> Network:
    """The experiment's network with these weights, in float64 and in torch's own memory layout."""
    net = copy.deepcopy(bench.take("model").net).to(memory_format=torch.contiguous_format).double()
    net.load_state_dict({name: entry.double() if entry.is_floating_point() else entry for name, entry in entries.items()})
    return net


def plain_fit(
    net: Network, x: Tensor, y: Tensor, order: torch.Generator, loss: Callable[[Tensor, Tensor, Tensor], Tensor], **optimiser: Any
) -> None:
    """An epoch of torch's own SGD; `loss(features, logits, places)` comes on top of cross-entropy."""
    steps = torch.optim.SGD(net.parameters(), **{"lr": 0.05, **optimiser})
    net.train()
    for places in torch.split(torch.randperm(len(y), generator=order), 32):
        features = net.features(x[places])
        logits = net.head(features)
        steps.zero_grad()
        (nn.functional.cross_entropy(logits, y[places]) + loss(features, logits, places)).backward()
        steps.step()


def samples_of(bench: Workbench, client: str) -> tuple[Tensor, Tensor]:
    train = Client(bench, client, 1, 1, {}).train
    return train.x.double(), train.y


def batches_of(client: str, round: int) -> torch.Generator:
    return torch_stream(SEED, "client", round, client, "batches")


def plain_mean(trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    shares = np.array(weights, dtype=np.float64) / np.sum(weights)
    return {
        name: sum(share * tree[name].double() for share, tree in zip(shares, trees, strict=True))
        if first.is_floating_point()
        else torch.stack([tree[name] for tree in trees]).amax(0)
        for name, first in trees[0].items()
    }
