"""Small experiments on digits with three kinds of network, what they learn, every update of a run,
and plain torch to judge them by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.client import Client
from equipoise.data import federate
from equipoise.data.federation import Parts
from equipoise.experiment.build import prepare
from equipoise.method import Method, Ups, Weights
from equipoise.models import Network, build
from equipoise.records import State, Up
from equipoise.runs.run import Run
from equipoise.storage.checkpoint import load_server
from equipoise.streams import default_generator, torch_stream
from equipoise.task import Task
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree

SEED = 5
DIGITS = {"name": "digits", "partition": "dirichlet:0.5", "clients": 5}
# an object, so a run starts from its weights as they are: they must not differ from process to
# process
with default_generator(SEED, "tests"):
    DROPPING = Network(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(16, 10),
    )
NETWORKS: dict[str, Any] = {
    "mlp": {"name": "mlp", "hidden": [8]},
    "cnn": {"name": "cnn", "width": 2, "hidden": 8},  # convolutions and batch norm
    "dropout": DROPPING,
}


def experiment(method: Any, network: str = "mlp", **changes: Any) -> eq.Experiment:
    settings = {
        "data": DIGITS,
        "model": NETWORKS[network],
        "rounds": 3,
        "workers": 0,
        "seed": SEED,
        "evaluation": {"every": 0},
    }
    return eq.Experiment(**{**settings, **changes, "method": method})


def few(method: Any, network: str = "cnn", **changes: Any) -> eq.Experiment:
    """The same with three clients and few samples."""
    return experiment(
        method, network, **{"data": {**DIGITS, "clients": 3, "samples": 240}, **changes}
    )


def finished(method: Any, out: Path, network: str = "cnn", **changes: Any) -> State:
    """The server's state at the end of a run on few samples."""
    return load_server(eq.run(few(method, network, **changes), out).store)


def bench_for(method: Any = "fedavg", network: str = "cnn", **changes: Any) -> Workbench:
    small = few(method, network, **changes)
    federation = federate(small.data, small.seed, small.dataset)
    return prepare(small, federation.task, federation.ids, federation)[0]


def model_of(run: Run) -> Tree:
    """The server's model after the last round."""
    model: Tree = load_server(run.store).model
    return model


@dataclass
class ColumnReport:
    """One update of a run: the server and its state then, the replies, their weights, and the new
    state.
    """

    server: Any
    state: State
    ups: Ups
    weights: Weights
    new: State


@contextmanager
def updates(kind: type[Method]) -> Iterator[list[ColumnReport]]:
    """Every update by a method of this class while experiments run in process."""
    found: list[ColumnReport] = []
    original = kind.update

    def update(self: Method, server: Any, state: State, ups: Ups, weights: Weights) -> State:
        new = original(self, server, state, ups, weights)
        found.append(
            ColumnReport(
                SimpleNamespace(
                    round=server.round, rounds=server.rounds, lr=server.lr, sizes=server.sizes
                ),
                state,
                ups,
                weights,
                new,
            )
        )
        return new

    with patch.object(kind, "update", update):
        yield found


def server(sizes: Sequence[float], round: int = 1, rounds: int = 1, lr: float = 0.1) -> Any:
    """What weight rules ask of a server, for clients "0", "1", ..."""
    return SimpleNamespace(
        sizes={str(k): size for k, size in enumerate(sizes)}, round=round, rounds=rounds, lr=lr
    )


def replies(models: Sequence[Sequence[float]] | None = None, **numbers: Sequence[float]) -> Ups:
    """Replies of clients "0", "1", ... with models of one tensor, and with these numbers."""
    count = len(models) if models is not None else len(next(iter(numbers.values())))
    return Ups(
        [
            (
                str(k),
                Up(
                    **({"model": vector(models[k])} if models is not None else {}),
                    **{name: values[k] for name, values in numbers.items()},
                ),
            )
            for k in range(count)
        ]
    )


def vector(numbers: Sequence[float]) -> Tree:
    return Tree({"w": torch.tensor(numbers, dtype=torch.float32)})


def client_of(settings: eq.Experiment, id: str = "0", empty: bool = False) -> Client:
    """A client at work in round 1; `empty`: it has no training data."""
    federation = federate(settings.data, settings.seed, settings.dataset)
    if empty:
        parts = [
            np.empty(0, np.int64) if name == id else part
            for name, part in zip(federation.ids, federation.train, strict=True)
        ]
        federation = replace(federation, train=Parts.of(parts))
    return Client(
        prepare(settings, federation.task, federation.ids, federation)[0],
        id,
        1,
        settings.rounds,
        {},
    )


def plain_losses(settings: eq.Experiment, model: Tree, ids: Sequence[str]) -> list[float]:
    """Mean cross-entropy of each client's training data, in float64, by a plain torch network."""
    federation = federate(settings.data, settings.seed, settings.dataset)
    spec = settings.model
    net = (
        (
            copy.deepcopy(spec)
            if isinstance(spec, nn.Module)
            else build(spec, Task("classification", (1, 8, 8), 10))
        )
        .double()
        .eval()
    )
    net.load_state_dict(
        {
            name: value.double() if value.is_floating_point() else value
            for name, value in model.items()
        }
    )
    found = []
    with torch.no_grad():
        for id in ids:
            index = torch.from_numpy(np.array(federation.train[federation.ids.index(id)]))
            logits, y = net(federation.x[index].double()), federation.y[index]
            found.append(
                float((torch.logsumexp(logits, 1) - logits[torch.arange(len(y)), y]).mean())
            )
    return found


def flat(tree: Tree) -> np.ndarray:
    """All trained numbers, in float64."""
    return np.concatenate([tree[name].numpy().astype(np.float64).ravel() for name in tree.trained])


def samples(run: Run) -> int:
    return int(sum(run.store.meta("sizes")["train"]))


def refused(settings: Any, out: Path) -> str:
    """The message that refuses an experiment before its first round; nothing was written."""
    try:
        eq.run(settings() if callable(settings) else settings, out=out)
    except ValueError as error:
        assert not out.exists()
        return str(error)
    raise AssertionError("it was not refused")


def plain_net(bench: Workbench, entries: Mapping[str, Tensor]) -> Network:
    """The experiment's network with these weights, in float64 and in torch's own memory layout."""
    net = copy.deepcopy(bench.take("model").net).to(memory_format=torch.contiguous_format).double()
    net.load_state_dict(
        {
            name: entry.double() if entry.is_floating_point() else entry
            for name, entry in entries.items()
        }
    )
    return net


def plain_epoch(
    net: Network,
    x: Tensor,
    y: Tensor,
    order: torch.Generator,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    **optimiser: Any,
) -> None:
    """An epoch of torch's SGD; `loss(features, logits, places)` is added to cross-entropy."""
    steps = torch.optim.SGD(net.parameters(), **{"lr": 0.1, **optimiser})
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
    """The order in which a client's samples come in a round."""
    return torch_stream(SEED, "client", round, client, "batches")
