"""Small experiments on three kinds of network, what they learn, and every update of a run: what the tests of weight rules share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

import equipoise as eq
from equipoise.client import Client
from equipoise.data import federate
from equipoise.data.federation import Parts
from equipoise.method import Method, Ups, Weights
from equipoise.models import Network, build
from equipoise.records import State, Up
from equipoise.runs.run import Run
from equipoise.simulate import prepare
from equipoise.storage.checkpoint import load_server
from equipoise.streams import default_generator
from equipoise.task import Task
from equipoise.tree import Tree

DIGITS = {"name": "digits", "partition": "dirichlet:0.5", "clients": 5}
with default_generator(5, "tests"):  # an object, so a run starts from its weights as they are: they must not differ from process to process
    DROPPING = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5)), nn.Linear(16, 10))
NETWORKS: dict[str, Any] = {
    "mlp": {"name": "mlp", "hidden": [8]},
    "cnn": {"name": "cnn", "width": 2, "hidden": 8},  # convolutions and batch norm
    "dropout": DROPPING,
}


def experiment(method: Any, network: str = "mlp", **changes: Any) -> eq.Experiment:
    settings = {"data": DIGITS, "model": NETWORKS[network], "rounds": 3, "workers": 0, "seed": 5, "evaluation": {"every": 0}}
    return eq.Experiment(**{**settings, **changes, "method": method})


def model_of(run: Run) -> Tree:
    """The server's model after the last round."""
    model: Tree = load_server(run.store).model
    return model


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Bit for bit, buffers included."""
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


@dataclass
class Seen:
    """One update of a run: the server and its state then, the replies, their weights, and the new state."""

    server: Any
    state: State
    ups: Ups
    weights: Weights
    new: State


@contextmanager
def updates(kind: type[Method]) -> Iterator[list[Seen]]:
    """Every update by a method of this class while experiments run in process."""
    found: list[Seen] = []
    original = kind.update

    def update(self: Method, server: Any, state: State, ups: Ups, weights: Weights) -> State:
        new = original(self, server, state, ups, weights)
        found.append(
            Seen(SimpleNamespace(round=server.round, rounds=server.rounds, lr=server.lr, sizes=server.sizes), state, ups, weights, new)
        )
        return new

    with patch.object(kind, "update", update):
        yield found


def server(sizes: Sequence[float], round: int = 1, rounds: int = 1, lr: float = 0.1) -> Any:
    """What weight rules ask of a server, for clients "0", "1", ..."""
    return SimpleNamespace(sizes={str(k): size for k, size in enumerate(sizes)}, round=round, rounds=rounds, lr=lr)


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


def client_of(wanted: eq.Experiment, id: str = "0", empty: bool = False) -> Client:
    """A client at work in round 1; `empty`: it has no training data."""
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    if empty:
        parts = [np.empty(0, np.int64) if name == id else part for name, part in zip(federation.ids, federation.train, strict=True)]
        federation = replace(federation, train=Parts.of(parts))
    return Client(prepare(wanted, federation.task, federation.ids, federation)[0], id, 1, wanted.rounds, {})


def plain_losses(wanted: eq.Experiment, model: Tree, ids: Sequence[str]) -> list[float]:
    """Mean cross-entropy of each client's training data, in float64, by a network of torch's own."""
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    spec = wanted.model
    net = (deepcopy(spec) if isinstance(spec, nn.Module) else build(spec, Task("classification", (1, 8, 8), 10))).double().eval()
    net.load_state_dict({name: value.double() if value.is_floating_point() else value for name, value in model.items()})
    found = []
    with torch.no_grad():
        for id in ids:
            index = torch.from_numpy(np.array(federation.train[federation.ids.index(id)]))
            logits, y = net(federation.x[index].double()), federation.y[index]
            found.append(float((torch.logsumexp(logits, 1) - logits[torch.arange(len(y)), y]).mean()))
    return found


def flat(tree: Tree) -> np.ndarray:
    """All trained numbers, in float64."""
    return np.concatenate([tree[name].numpy().astype(np.float64).ravel() for name in tree.trained])


def samples(run: Run) -> int:
    return int(sum(run.store.meta("sizes")["train"]))


def refused(wanted: Any, out: Path) -> str:
    """The sentence with which an experiment is refused before its first round: nothing was written."""
    try:
        eq.run(wanted() if callable(wanted) else wanted, out=out)
    except ValueError as error:
        assert not out.exists()
        return str(error)
    raise AssertionError("it was not refused")
