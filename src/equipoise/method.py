"""A method is a few short functions over plain data: what a client does, how the server weighs, updates and delivers.

A method is a frozen dataclass of hyper-parameters and holds no state: what the server and the clients remember are records that are passed
in and out. Subclass `Method`, override the slots that differ from FedAvg, and it runs in process, on workers and on a network, with
checkpoints and composition for free. The comment behind or above a field is its help text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from equipoise.records import Down, State, Up
from equipoise.tree import Tree, combine, gram
from equipoise.validation.names import closest

if TYPE_CHECKING:
    from equipoise.client import Client, Inputs
    from equipoise.models import Model
    from equipoise.server import Server
    from equipoise.task import Task

NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]

FAMILIES = {  # what kind of thing a method does, in the order of lists
    "reference": "what others are compared with",
    "drift": "local training is corrected, so that clients do not drift apart",
    "features": "what enters the head is made alike over clients",
    "distillation": "models teach each other by their answers",
    "aggregation": "the server weighs replies, or chooses its step, with an eye on every client",
    "personal": "every client ends with a model of its own",
    "rewards": "who contributes more receives more",
    "own": "methods of users",
}
NOTIONS = (
    "no harm",
    "even accuracy",
    "collaborative",
    "representation",
    "participation",
    "none",
)  # of fairness: docs/fairness.md
NEEDS = {
    "classes": "class labels; regression is refused",
    "validation": "validation data at the server",
    "sgd": "plain SGD: no momentum, weight decay, clipping or Adam",
    "no-batch-norm": "a network without batch norm",
    "images": "samples that are images",
    "head": "a network with a trained head",
    "units": "a network with hidden units",
}
PASSES = (
    "T: a pass with gradient over a client's training data, F: one without, V: one over the server's validation data; E: epochs, "
    "K: clients of the round; behind 'once': before round 1"
)


@dataclass(frozen=True)
class Weights:
    """How much each reply counts (any positive sum) and how far the model moves towards their mean."""

    shares: np.ndarray
    step: float = 1.0
    # shares of clients that did not answer, whose earlier updates count again
    absent: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shares = np.asarray([*self.shares, *self.absent.values()], dtype=np.float64)
        if shares.ndim != 1 or not np.isfinite(shares).all() or (shares < 0).any():
            raise ValueError(
                f"Weights: expected one finite share of at least 0 per reply, got {shares}"
            )

    def times(self, factor: float) -> Weights:
        return replace(self, step=self.step * factor)


@dataclass(frozen=True)
class Served:
    """A model that a client ends up using, and what is to be known of it when it is measured."""

    model: Model
    same_for_all: bool = False  # it follows from what was delivered alone: clients that are delivered the same serve the same
    main: bool = False  # what the method is for: the model that `show`, `compare` and `export` mean where none is named


def model_of(one: Model | Served) -> Model:
    return one.model if isinstance(one, Served) else one


def shared_of(given: Mapping[str, Model | Served]) -> tuple[str, Model]:
    """Of the models that a client serves the name and the network of the one that all have; where there is none, of the first."""
    name = next(
        (name for name, one in given.items() if isinstance(one, Served) and one.same_for_all),
        next(iter(given)),
    )
    return name, model_of(given[name])


class Ups(Sequence[Up]):
    """The accepted replies of one exchange, in the order of the cohort."""

    def __init__(self, positions: Sequence[tuple[str, Up | None]]) -> None:
        self.positions = list(positions)  # the whole cohort; None where a reply is missing
        self._present = [(client, up) for client, up in self.positions if up is not None]
        self.ids = [client for client, _ in self._present]

    def __len__(self) -> int:
        return len(self._present)

    def __getitem__(self, position: Any) -> Any:
        return (
            [up for _, up in self._present[position]]
            if isinstance(position, slice)
            else self._present[position][1]
        )

    def __iter__(self) -> Iterator[Up]:
        return (up for _, up in self._present)

    def of(self, ids: Sequence[str]) -> Ups:
        """The replies of some clients only; the others' positions stay empty."""
        wanted = set(ids)
        return Ups([(client, up if client in wanted else None) for client, up in self.positions])

    def values(self, name: str) -> list[Any]:
        return [up[name] for up in self]

    def table(self, name: str) -> dict[str, Any]:
        """Client id -> value."""
        return {client: up[name] for client, up in self._present}

    def numbers(self, name: str) -> np.ndarray:
        return np.array(self.values(name), dtype=np.float64)

    def stack(self, name: str) -> Tensor:
        """One row of float64 numbers per reply (for a tree: its trained entries)."""
        return torch.stack(
            [
                value.flat()
                if isinstance(value, Tree)
                else torch.as_tensor(value).reshape(-1).double()
                for value in self.values(name)
            ]
        )

    def mean(self, name: str, shares: Sequence[float] | np.ndarray) -> Any:
        """The weighted mean; float buffers of a tree are averaged alike, integer ones take the maximum."""
        total = float(np.sum(np.asarray(shares, dtype=np.float64)))
        if not total > 0:
            raise ValueError(
                f"{name}: expected shares with a positive sum, got {total} over {len(self)} replies; no mean has such weights"
            )
        return self._combined(name, shares, total)

    def sum(self, name: str, coefficients: Sequence[float] | np.ndarray) -> Any:
        return self._combined(name, coefficients, 1.0)

    def _combined(
        self, name: str, coefficients: Sequence[float] | np.ndarray, divide: float
    ) -> Any:
        if len(coefficients) != len(self):
            raise ValueError(
                f"{name}: expected {len(self)} coefficients, one per reply, got {len(coefficients)}"
            )
        given = iter(np.asarray(coefficients, dtype=np.float64).tolist())
        placed = [0.0 if up is None else next(given) for _, up in self.positions]
        values = [None if up is None else up[name] for _, up in self.positions]
        first = next(value for value in values if value is not None)
        if isinstance(first, Tree):
            return combine(values, placed, divide)
        wrapped = [
            None if value is None else Tree({"": torch.as_tensor(value, dtype=torch.float64)})
            for value in values
        ]
        result = combine(wrapped, placed, divide)[""]
        if not isinstance(first, Tensor):
            return float(result)
        # a mean of counts is not a count
        return result.to(first.dtype) if first.is_floating_point() else result

    def gram(self, name: str, more: Sequence[Tree] = ()) -> np.ndarray:
        """Inner products between the replies' trees (and `more` trees behind them)."""
        return gram([*self.values(name), *more])


@dataclass(frozen=True)
class Method:
    """A federated algorithm. The defaults are FedAvg: average the uploaded models by size, send the mean to all."""

    weighs: ClassVar[bool] = True  # False: its round never asks `weights`
    uploads_model: ClassVar[bool] = True  # False: no `model` in its uploads
    shares_model: ClassVar[bool] = True  # False: clients train alone
    # True: momentum, weight decay, clipping and Adam are refused
    needs_plain_sgd: ClassVar[bool] = False
    needs_validation: ClassVar[bool] = False  # True: the server holds validation data
    needs_classes: ClassVar[bool] = False  # True: regression is refused
    # True: it never minimises `eq.supervised`, so a loss that the experiment names is refused
    own_objective: ClassVar[bool] = False
    # False: batch-norm statistics never move, so batch norm is refused
    trains: ClassVar[bool] = True
    # True: its weight rule stands without its own client and update
    composable_weights: ClassVar[bool] = False
    # True: its own update is right under any aggregation weights
    composable_update: ClassVar[bool] = False
    # True: its `finish` and what it serves then stand on the rounds of any method
    composable_finish: ClassVar[bool] = False
    # True: its paper's equations were not to be had; tables say so behind its name
    reconstruction: ClassVar[bool] = False
    paper: ClassVar[str] = ""
    year: ClassVar[int | None] = None  # of the paper
    family: ClassVar[str] = "own"  # one of FAMILIES
    # the notions it is after, of NOTIONS, with commas; empty: not stated
    fairness: ClassVar[str] = ""
    needs: ClassVar[
        tuple[str, ...]
    ] = ()  # of NEEDS, with its default parameters, beside what the flags above say
    # `cohort.run` per round, "; once N" before round 1; empty: 1, if neither round nor setup is its
    # own
    exchanges: ClassVar[str] = ""
    # per round, as a sum of terms in the signs of PASSES; empty: not stated
    passes: ClassVar[str] = ""

    @property
    def title(self) -> str:
        """Its name in sentences."""
        return type(self).__name__

    def check(self, task: Task) -> None:
        """Refuse, by a ValueError with one sentence, a task that this method with these parameters cannot do. Called before round 1."""

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Architectures the method brings along; `others` build the experiment's own, whose shapes they may depend on."""
        return {}

    def start(self, server: Server) -> State:
        """The server's state before round 1."""
        return State(model=server.load(None).tree())

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        """Exchanges with all clients before round 1."""
        return state

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        """Exchanges with all clients after the last round; asked again, with them alone, for clients that were away and came back."""
        return state

    def alongside(self, server: Server, state: State, cohort: Cohort) -> State:
        """As a guest in the slot `finish`: exchanges of its own after each round of the method that it finishes."""
        return state

    def inputs(self, client: Client, down: Down) -> Inputs | None:
        """How this method changes what enters the networks."""
        return None

    def before(self, client: Client, received: Tree | None) -> Up:
        """What is measured on the received model."""
        return Up()

    def client(self, client: Client, down: Down) -> Up | None:
        """A client's part of the round; the uploaded model is called `model`."""
        model = client.load(down.model)
        client.fit(model)
        return Up(model=model)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """What is measured on the uploaded model."""
        return Up()

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """What the server remembers of the replies, before it weighs them."""
        return state

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.array([server.sizes[client] for client in ups.ids], dtype=np.float64))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """received + step * (mean - received); step 1 is the mean itself. Buffers take the mean."""
        mean = ups.mean("model", weights.shares)
        if weights.step != 1:
            mean = (state.model + weights.step * (mean - state.model)).with_rest(mean.rest)
        return state.with_(model=mean)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """What a client receives."""
        return Down(model=state.model)

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """At the client: the models it ends up using, by name. All are measured; the first is the main one unless another is marked."""
        return {"global": Served(client.load(down.model), same_for_all=True)}

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        ups = cohort.run(self.client, each=lambda client: self.deliver(server, state, client))
        state = self.observe(server, state, ups)
        weights = self.weights(server, state, ups)
        if not isinstance(weights, Weights):
            raise TypeError(
                f"{self.title}.weights returned {type(weights).__name__}; expected Weights(shares), one share per reply"
            )
        cohort.weighed(ups.ids, weights)
        return self.update(server, state, ups, weights)


class Cohort:
    """The clients asked in this round, and the only door to them."""

    ids: list[str]

    def run(
        self,
        step: Callable[..., Up | None],
        down: Down | None = None,
        *,
        each: Callable[[str], Down] | None = None,
        strict: bool = False,
    ) -> Ups:
        """Ask every client of the cohort to perform a step of the method, and wait for the replies.

        All receive `down`, or each its own from `each`. A client that fails is out of the round; with `strict` the round is given
        up and repeated without it.
        """
        raise NotImplementedError

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        """Note the aggregation weights that replies were given: they are part of the run's record."""


def mistake(kind: type[Method]) -> str | None:
    """What an author most likely did not mean: a class without @dataclass, a slot with a name that nothing asks for."""
    for base in kind.__mro__[: kind.__mro__.index(Method)]:
        fields = [
            name
            for name, hint in inspect.get_annotations(base).items()
            if "ClassVar" not in str(hint)
        ]
        if fields and "__dataclass_fields__" not in vars(base):
            return f"{base.__name__} has the parameter {fields[0]!r} but is no dataclass, so it would be ignored; write @dataclass(frozen=True) above the class"
        for name, found in vars(base).items():
            close = closest(name, SLOTS, 0.85)
            if inspect.isfunction(found) and close and name not in SLOTS:
                return f"{base.__name__}.{name} is asked by nothing; did you mean {close}? (A step of your own needs another name.)"
    return None


SLOTS = (
    "check", "models", "start", "setup", "inputs", "before", "client", "after", "observe", "weights", "update", "deliver", "serves", "round",
    "finish", "alongside",
)  # fmt: skip


def overridden(method: Method, slot: str) -> bool:
    """Whether a method fills a slot itself."""
    return getattr(type(method), slot) is not getattr(Method, slot)
