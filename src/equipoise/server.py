"""The server, as a method sees it: the twin of a client on the other side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from equipoise.data.samples import Samples
from equipoise.metrics import accuracy
from equipoise.models import Model
from equipoise.streams import number, torch_stream
from equipoise.task import Task
from equipoise.training import Training, minimise
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree


@dataclass(frozen=True)
class ServerData:
    """Samples of the server's own: in simulation parts of the federation, on a network files at the server."""

    validation: Samples | None = None
    shared: Samples | None = None  # a test set for all, or in simulation its labels at least


@dataclass
class Server:
    """Round, clients and data of the server at one moment of a run."""

    _bench: Workbench
    ids: Sequence[str]  # all clients
    sizes: Mapping[str, int]  # training samples of each
    rounds: int
    round: int = 0  # the one going on, counted from 1; 0 before the first
    attempt: int = 0
    # for every finished round the ids whose replies counted
    joined: list[list[str]] = field(default_factory=list)
    data: ServerData = field(default_factory=ServerData)
    main: str = "model"  # which of the experiment's models is meant where none is named

    @property
    def lr(self) -> float:
        """The clients' learning rate of this round."""
        return self._bench.training.rate(min(self.round, self.rounds))

    def load(self, tree: Tree | None, model: str | None = None) -> Model:
        """As `client.load`: the tree's parameters and buffers in its network; without a tree, the named model as it was initialised."""
        return self._bench.take(tree.model if tree is not None else model or self.main, tree)

    @property
    def task(self) -> Task:
        return self._bench.task

    @property
    def device(self) -> str:
        return self._bench.device

    @property
    def training(self) -> Training:
        """The clients' training settings."""
        return self._bench.training

    def initial(self, model: str | None = None) -> Tree:
        """The named model as it was initialised."""
        return self._bench.initial(model or self.main)

    @property
    def validation(self) -> Samples:
        """The server's own validation data."""
        if self.data.validation is None:
            raise RuntimeError(
                'this method has no validation data at the server; say so in its class: needs = ("validation",)'
            )
        return self.data.validation

    def predict(self, model: Model, on: Samples | None = None) -> torch.Tensor:
        """The model's logits on the validation data (or others), in evaluation mode."""
        return self._bench.outputs(model, self.validation if on is None else on)

    def accuracy(self, model: Model) -> float:
        """On the validation data; a model whose logits are not finite gets nothing right."""
        return accuracy(self.predict(model), self.validation.y)

    def loss(self, model: Model) -> float:
        """The task's loss on the validation data."""
        return float(self._bench.supervise(self.predict(model), self.validation.y))

    def _names(self, purpose: str) -> tuple[str | int, ...]:
        return (
            "server",
            self.round,
            *((f"attempt {self.attempt}",) if self.attempt else ()),
            purpose,
        )

    def stream(self, purpose: str) -> torch.Generator:
        """The server's random numbers of this round for this purpose."""
        return torch_stream(self._bench.seed, *self._names(purpose))

    def seed(self, purpose: str) -> int:
        return number(self._bench.seed, *self._names(purpose))

    minimise = staticmethod(minimise)
