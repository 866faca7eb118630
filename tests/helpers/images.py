"""Small runs on three networks, and what they left, to be compared bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.client import Client
from equipoise.data.samples import Samples
from equipoise.models.network import Network
from equipoise.runs import Run
from equipoise.streams import number, torch_stream
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree
from tests.helpers.counting import counted
from tests.helpers.problems import bench_of, client_states, server_state, trained
from tests.helpers.runs import settings, sites


def dropping() -> Network:
    return Network(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Dropout(0.4)), nn.Linear(10, 3)
    )


NETWORKS: dict[str, Any] = {
    "mlp": {"name": "mlp", "hidden": [6]},
    "cnn": {"name": "cnn", "width": 4, "hidden": 6},  # convolutions with batch norm
    "dropout": dropping,
}


def play(method: Any, out: Path, network: str = "mlp", on: Any = None, **changes: Any) -> Run:
    """A run of three rounds on small images that keeps every checkpoint."""
    return trained(method, out, on=on, **{"models": {"model": NETWORKS[network]}, **changes})


def own(run: Run, name: str, round: int | None = None) -> dict[str, Any]:
    """What each client that has it remembers under a name."""
    return {
        client: state[name] for client, state in client_states(run, round).items() if name in state
    }


def shared(run: Run, round: int | None = None) -> Mapping[str, Tensor]:
    """The global model."""
    model: Mapping[str, Tensor] = server_state(run, round).model
    return model


def bench(
    method: Any, network: str = "mlp", on: Any = None, **changes: Any
) -> tuple[Workbench, Any]:
    """A workbench and the method, to work with single clients by hand."""
    return bench_of(
        settings(method, **{"models": {"model": NETWORKS[network]}, **changes}), on or sites()
    )


def at(
    bench: Workbench, client: str, round: int = 1, state: Mapping[str, Any] | None = None
) -> Client:
    return Client(bench, client, round, 3, state or {})


def passes_of(
    method: Any, out: Path, rounds: int = 2, epochs: int = 2, **changes: Any
) -> dict[str, float]:
    """Passes per client's training samples and round, with and without gradient."""
    training = {"lr": 0.05, "batch": 5, "epochs": epochs, **changes.pop("training", {})}
    with counted() as passes:
        run = play(method, out, rounds=rounds, training=training, **changes)
    samples = rounds * sum(run.store.meta("sizes")["train"])
    return {f"{who} {kind}": count / samples for (who, kind), count in passes.items()}


SEED = 7  # of every run here


def net_of(workbench: Workbench, tree: Tree | None = None) -> nn.Module:
    """A network of its own with these weights (default: the initial ones), in torch's own memory
    layout.
    """
    net: nn.Module = copy.deepcopy(workbench.take("model").net).to(
        memory_format=torch.contiguous_format
    )
    net.load_state_dict(dict(tree or workbench.initial("model")))
    return net


def plain_fit(
    net: nn.Module,
    samples: Samples,
    optimiser: torch.optim.Optimizer,
    client: str,
    round: int,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy,
    *,
    batch: int = 5,
    epochs: int = 1,
    change: Callable[[], object] = lambda: None,
    purpose: str = "batches",
) -> int:
    """A textbook loop over the batches that a client sees, with the random numbers that its dropout
    draws; `change` may touch gradients.
    """
    order, steps = torch_stream(SEED, "client", round, client, purpose), 0
    net.train()
    with torch.random.fork_rng():
        torch.manual_seed(number(SEED, "client", round, client, f"{purpose} torch"))
        for _ in range(epochs):
            for places in torch.randperm(len(samples), generator=order).split(batch):
                optimiser.zero_grad()
                loss(net(samples.x[places]), samples.y[places]).backward()
                change()
                optimiser.step()
                steps += 1
    return steps
