"""The server, as a method sees it: the twin of a client on the other side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from equipoise.streams import number, torch_stream
from equipoise.training import minimise
from equipoise.tree import Tree
from equipoise.workbench import Model, Samples, Workbench


@dataclass
class Server:
    """Round, clients and data of the server at one moment of a run."""

    bench: Workbench
    ids: Sequence[str]  # all clients
    sizes: Mapping[str, int]  # training samples of each
    rounds: int
    round: int = 0  # the one going on, counted from 1; 0 before the first
    attempt: int = 0
    joined: list[list[str]] = field(default_factory=list)  # for every finished round the ids whose replies counted
    validation: Samples | None = None
    main: str = "model"  # which of the experiment's models is meant where none is named

    @property
    def lr(self) -> float:
        """The clients' learning rate of this round."""
        return self.bench.training.rate(max(1, self.round))

    def load(self, tree: Tree | None, model: str | None = None) -> Model:
        """As `client.load`: the tree's weights in its network; without a tree, the named model as it was initialised."""
        return self.bench.take(tree.model if tree is not None else model or self.main, tree)

    def predict(self, model: Model, on: Samples) -> torch.Tensor:
        return self.bench.outputs(model, on)

    def _names(self, purpose: str) -> tuple[str | int, ...]:
        return ("server", self.round, *((f"attempt {self.attempt}",) if self.attempt else ()), purpose)

    def stream(self, purpose: str) -> torch.Generator:
        """The server's random numbers of this round for this purpose."""
        return torch_stream(self.bench.seed, *self._names(purpose))

    def seed(self, purpose: str) -> int:
        return number(self.bench.seed, *self._names(purpose))

    minimise = staticmethod(minimise)
