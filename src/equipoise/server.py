"""The server as a method sees it."""

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
    """Samples at the server: parts of the federation in simulation, files on a network.

    Attributes:
        validation: Validation data for methods that require them.
        shared: A test set shared by all clients. Methods never see it.
    """

    validation: Samples | None = None
    shared: Samples | None = None


@dataclass
class Server:
    """The server in one round.

    Attributes:
        ids: The ids of all clients.
        sizes: The number of training samples of each client.
        rounds: The number of rounds of the run.
        round: The current round, from 1; 0 before the first.
        attempt: How often this round was aborted before.
        joined: For every finished round, the ids of the clients whose replies counted.
        data: Samples at the server.
        main: The name of the model that is meant if none is named.
        contributions: Name -> client -> value, logged in this round (`log_contributions`).
    """

    _bench: Workbench
    ids: Sequence[str]
    sizes: Mapping[str, int]
    rounds: int
    round: int = 0
    attempt: int = 0
    joined: list[list[str]] = field(default_factory=list)
    data: ServerData = field(default_factory=ServerData)
    main: str = "model"
    contributions: dict[str, dict[str, float]] = field(default_factory=dict)

    def log_contributions(self, name: str, values: Mapping[str, float]) -> None:
        """Record how much each client counts for a method in this round.

        They are rows of `Run.table(phase="contribution")` and never change the run.

        Args:
            name: What the values are, such as "reputation".
            values: Client -> value; clients without one are absent.
        """
        numbers = {client: float(value) for client, value in values.items()}
        self.contributions.setdefault(name, {}).update(numbers)

    @property
    def lr(self) -> float:
        """The learning rate of the clients in this round."""
        return self._bench.training.rate(min(self.round, self.rounds))

    def load(self, tree: Tree | None, model: str | None = None) -> Model:
        """Return a network with the given weights.

        Args:
            tree: Parameters and buffers; None takes the initial weights.
            model: The name of the model to initialise if `tree` is None.
        """
        return self._bench.take(tree.model if tree is not None else model or self.main, tree)

    @property
    def task(self) -> Task:
        """Shape, classes and kind of the task."""
        return self._bench.task

    @property
    def device(self) -> str:
        """The torch device of networks."""
        return self._bench.device

    @property
    def training(self) -> Training:
        """The training settings of the clients."""
        return self._bench.training

    def initial(self, model: str | None = None) -> Tree:
        """Return the initial weights of a model."""
        return self._bench.initial(model or self.main)

    @property
    def validation(self) -> Samples:
        """The validation data at the server.

        Raises:
            RuntimeError: If the method does not declare that it needs them.
        """
        if self.data.validation is None:
            raise RuntimeError(
                "this method has no validation data at the server; declare in its class: "
                'needs = ("validation",)'
            )
        return self.data.validation

    def predict(self, model: Model, on: Samples | None = None) -> torch.Tensor:
        """Return the logits of a model on the validation data, or on `on`, in evaluation mode."""
        return self._bench.outputs(model, self.validation if on is None else on)

    def accuracy(self, model: Model) -> float:
        """Return the accuracy on the validation data; logits that are not finite count as wrong."""
        return accuracy(self.predict(model), self.validation.y)

    def loss(self, model: Model) -> float:
        """Return the loss of the task on the validation data."""
        return float(self._bench.supervise(self.predict(model), self.validation.y))

    def _names(self, purpose: str) -> tuple[str | int, ...]:
        attempt = (f"attempt {self.attempt}",) if self.attempt else ()
        return ("server", self.round, *attempt, purpose)

    def stream(self, purpose: str) -> torch.Generator:
        """Return a generator that depends on seed, round and purpose only."""
        return torch_stream(self._bench.seed, *self._names(purpose))

    def seed(self, purpose: str) -> int:
        """Return an integer seed that depends on seed, round and purpose only."""
        return number(self._bench.seed, *self._names(purpose))

    minimise = staticmethod(minimise)
