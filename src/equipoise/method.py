"""The base class of federated algorithms.

A method is a frozen dataclass of hyper-parameters with a few short functions over plain data: what
a client does, and how the server weighs, updates and delivers. It holds no state; the server's and
the clients' states are records that are passed in and out. Subclass `Method` and override the slots
that differ from FedAvg. The method then runs in process, with worker processes and on a cluster,
and checkpoints and composition need no further code. The help text of a parameter is its entry in
the `Attributes` of the class docstring, or else the comment behind or above its field.
"""

from __future__ import annotations

import inspect
import warnings
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

# Families of methods, in the order of lists.
FAMILIES = {
    "reference": "baselines that other methods are compared with",
    "drift": "local training is corrected, so that clients do not drift apart",
    "features": "features before the head are aligned across clients",
    "distillation": "models teach each other by their outputs",
    "aggregation": "aggregation weights or server steps that consider every client",
    "personal": "every client ends with its own model",
    "rewards": "clients that contribute more receive more",
    "own": "methods of users",
}
# Notions of fairness, see docs/fairness.md.
NOTIONS = (
    "no harm",
    "even accuracy",
    "collaborative",
    "representation",
    "participation",
    "groups",
    "none",
)
# Requirements that a method can declare in `needs`.
NEEDS = {
    "classes": "class labels; regression and survival are refused",
    "labels": "class labels or numbers; survival is refused",
    "validation": "validation data at the server",
    "sgd": "plain SGD: no momentum, weight decay, clipping or Adam",
    "no-batch-norm": "a network without batch norm",
    "images": "samples that are images",
    "head": "a network with a trained head",
    "units": "a network with hidden units",
}
_FLAGS_OF_0_2 = {
    "needs_classes": "classes",
    "needs_validation": "validation",
    "needs_plain_sgd": "sgd",
}
# The notation of `passes`, the computational cost of a round.
PASSES = (
    "T: a forward and backward pass over a client's training data, F: a forward pass, V: a pass "
    "over the server's validation data; E: epochs, K: clients of the round; after 'once': before "
    "round 1"
)


@dataclass(frozen=True)
class Weights:
    """Aggregation weights.

    Attributes:
        shares: One number of at least 0 per reply; only their proportions matter.
        step: How far the model moves from the received one towards the weighted mean.
        absent: Shares of clients that did not answer but whose earlier updates count again.
    """

    shares: np.ndarray
    step: float = 1.0
    absent: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shares = np.asarray([*self.shares, *self.absent.values()], dtype=np.float64)
        if shares.ndim != 1 or not np.isfinite(shares).all() or (shares < 0).any():
            raise ValueError(
                f"Weights: expected one finite share of at least 0 per reply, got {shares}"
            )

    def times(self, factor: float) -> Weights:
        """Return the same weights with the step multiplied by a factor."""
        return replace(self, step=self.step * factor)


@dataclass(frozen=True)
class Served:
    """A model that a client uses in the end.

    Attributes:
        model: The network.
        same_for_all: True if it depends only on what was delivered, so that it needs to be
            evaluated only once on shared test data.
        main: True for the model that `show`, `compare` and `export` use if none is named.
    """

    model: Model
    same_for_all: bool = False
    main: bool = False


def model_of(served: Model | Served) -> Model:
    """Return the network of a served model."""
    return served.model if isinstance(served, Served) else served


def shared_of(served: Mapping[str, Model | Served]) -> tuple[str, Model]:
    """Return name and network of the served model that all clients have, or else of the first."""
    for name, model in served.items():
        if isinstance(model, Served) and model.same_for_all:
            return name, model.model
    first = next(iter(served))
    return first, model_of(served[first])


class Ups(Sequence[Up]):
    """The accepted replies of one exchange, in the order of the cohort.

    Attributes:
        ids: The clients that replied.
        positions: All clients of the cohort with their replies; None where one is missing.
    """

    def __init__(self, positions: Sequence[tuple[str, Up | None]]) -> None:
        self.positions = list(positions)
        self._present = [(client, up) for client, up in self.positions if up is not None]
        self.ids = [client for client, _ in self._present]

    def __len__(self) -> int:
        return len(self._present)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [up for _, up in self._present[position]]
        return self._present[position][1]

    def __iter__(self) -> Iterator[Up]:
        return (up for _, up in self._present)

    def of(self, ids: Sequence[str]) -> Ups:
        """Return the replies of some clients; the positions of the others stay empty."""
        chosen = set(ids)
        return Ups([(client, up if client in chosen else None) for client, up in self.positions])

    def values(self, name: str) -> list[Any]:
        """Return one entry of every reply."""
        return [up[name] for up in self]

    def table(self, name: str) -> dict[str, Any]:
        """Return one entry of every reply by client id."""
        return {client: up[name] for client, up in self._present}

    def numbers(self, name: str) -> np.ndarray:
        """Return one number of every reply as a float64 array."""
        return np.array(self.values(name), dtype=np.float64)

    def stack(self, name: str) -> Tensor:
        """Return a float64 matrix with one row per reply; of a tree, its trained entries."""
        rows = []
        for value in self.values(name):
            if isinstance(value, Tree):
                rows.append(value.flat())
            else:
                rows.append(torch.as_tensor(value).reshape(-1).double())
        return torch.stack(rows)

    def mean(self, name: str, shares: Sequence[float] | np.ndarray) -> Any:
        """Return the weighted mean of an entry over the replies.

        Float buffers of a tree are averaged with the same weights; integer buffers take the
        maximum.

        Args:
            name: The entry of the replies.
            shares: One weight per reply; they are divided by their sum.

        Raises:
            ValueError: If the sum of the shares is not positive.
        """
        total = float(np.sum(np.asarray(shares, dtype=np.float64)))
        if not total > 0:
            raise ValueError(
                f"{name}: expected shares with a positive sum, got {total} over {len(self)} "
                "replies; no mean has such weights"
            )
        return self._combined(name, shares, total)

    def sum(self, name: str, coefficients: Sequence[float] | np.ndarray) -> Any:
        """Return the weighted sum of an entry over the replies."""
        return self._combined(name, coefficients, 1.0)

    def _combined(
        self, name: str, coefficients: Sequence[float] | np.ndarray, divide: float
    ) -> Any:
        if len(coefficients) != len(self):
            raise ValueError(
                f"{name}: expected {len(self)} coefficients, one per reply, got {len(coefficients)}"
            )
        remaining = iter(np.asarray(coefficients, dtype=np.float64).tolist())
        factors = []
        values = []
        for _, up in self.positions:
            factors.append(0.0 if up is None else next(remaining))
            values.append(None if up is None else up[name])
        first = next(value for value in values if value is not None)
        if isinstance(first, Tree):
            return combine(values, factors, divide)
        wrapped = [
            None if value is None else Tree({"": torch.as_tensor(value, dtype=torch.float64)})
            for value in values
        ]
        result = combine(wrapped, factors, divide)[""]
        if not isinstance(first, Tensor):
            return float(result)
        # The mean of integers is not an integer.
        return result.to(first.dtype) if first.is_floating_point() else result

    def gram(self, name: str, more: Sequence[Tree] = ()) -> np.ndarray:
        """Return the inner products of the trees of the replies, followed by `more` trees."""
        return gram([*self.values(name), *more])


@dataclass(frozen=True)
class Method:
    """A federated algorithm.

    The defaults are FedAvg: average the uploaded models by size and send the mean to all clients.

    Attributes:
        needs: Requirements, of `NEEDS`; a property where they depend on parameters.
        weighs: False if `round` never calls `weights`.
        uploads_model: False if the replies contain no ``model``.
        shares_model: False if clients train alone.
        own_objective: True if the method never minimises the supervised loss, so that a loss
            that the experiment names is refused.
        served_models: The names of all models that `serves` may return. A class that overrides
            `serves` declares it, too; else a comparison cannot check names of models before it
            runs.
        trains: False if the method never calls `Client.fit`; batch norm is then refused, because
            its statistics would never change.
        composable_weights: True if the weight rule works without the method's own client and
            update, so that it can be used by another method.
        composable_update: True if the update is right under any aggregation weights.
        composable_finish: True if `finish`, and what is served afterwards, work on the rounds of
            any method.
        uses_validation: True if `finish` relies on validation data that no model was trained on.
        compares_groups: True if it is about groups of samples, so that without `data.groups` it
            does nothing of its own.
        reconstruction: True if the full text or code of the paper was not available; tables mark
            such methods.
        paper: The citation.
        year: The year of the paper.
        family: One of `FAMILIES`.
        fairness: The notions of fairness it aims at, of `NOTIONS`, separated by commas.
        exchanges: Calls of ``cohort.run`` per round, then "; once N" for those before round 1;
            empty means 1.
        passes: The cost of a round in the notation of `PASSES`.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    weighs: ClassVar[bool] = True
    uploads_model: ClassVar[bool] = True
    shares_model: ClassVar[bool] = True
    own_objective: ClassVar[bool] = False
    served_models: ClassVar[tuple[str, ...]] = ("global",)
    trains: ClassVar[bool] = True
    composable_weights: ClassVar[bool] = False
    composable_update: ClassVar[bool] = False
    composable_finish: ClassVar[bool] = False
    uses_validation: ClassVar[bool] = False
    compares_groups: ClassVar[bool] = False
    reconstruction: ClassVar[bool] = False
    paper: ClassVar[str] = ""
    year: ClassVar[int | None] = None
    family: ClassVar[str] = "own"
    fairness: ClassVar[str] = ""
    exchanges: ClassVar[str] = ""
    passes: ClassVar[str] = ""

    def __init_subclass__(cls, **more: Any) -> None:
        """Translate the flags by which classes of version 0.2 declared what they require."""
        super().__init_subclass__(**more)
        for flag, need in _FLAGS_OF_0_2.items():
            if vars(cls).get(flag) is True and isinstance(cls.needs, tuple):
                warnings.warn(
                    f"{cls.__name__}.{flag} is deprecated; write needs = ({need!r},) instead",
                    DeprecationWarning,
                    stacklevel=2,
                )
                cls.needs = (*cls.needs, need)
        if "alongside" in vars(cls):
            warnings.warn(
                f"{cls.__name__}.alongside is now called after_round_guest",
                DeprecationWarning,
                stacklevel=2,
            )
            cls.after_round_guest = vars(cls)["alongside"]  # type: ignore[method-assign]

    @property
    def title(self) -> str:
        """The name of the method in sentences."""
        return type(self).__name__

    def check(self, task: Task) -> None:
        """Refuse a task that this method cannot do with these parameters; called before round 1.

        Raises:
            ValueError: With one sentence that says what to do instead.
        """

    def advice(self, rounds: int) -> str:
        """Return what a user should know before a training of so many rounds; empty: nothing."""
        return ""

    def held_out_rounds(self, rounds: int) -> int | None:
        """Return the last round up to which no model is trained on validation data.

        Afterwards values on validation data are values on training data. None: never.

        Args:
            rounds: The number of rounds. This number as the result means that clients train on
                validation data only after the last round.
        """
        return None

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return factories of further networks that the method needs.

        Args:
            task: The task.
            others: Factories of the experiment's own networks.
        """
        return {}

    def start(self, server: Server) -> State:
        """Return the state of the server before round 1."""
        return State(model=server.load(None).tree())

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        """Exchange messages with all clients before round 1; return the new state."""
        return state

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        """Exchange messages with all clients after the last round; return the new state.

        Called again for clients that were away and came back, with these clients only.
        """
        return state

    def after_round_guest(self, server: Server, state: State, cohort: Cohort) -> State:
        """Exchange messages after each round of another method that this one finishes."""
        return state

    def inputs(self, client: Client, down: Down) -> Inputs | None:
        """Return the transform of inputs at a client, or None."""
        return None

    def before(self, client: Client, received: Tree | None) -> Up:
        """Return measures of the received model, for weight rules; they join the reply."""
        return Up()

    def client(self, client: Client, down: Down) -> Up | None:
        """Do the client's part of the round; the uploaded model is called ``model``."""
        model = client.load(down.model)
        client.fit(model)
        return Up(model=model)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Return measures of the uploaded model, for weight rules; they join the reply."""
        return Up()

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Return the state with what the server remembers of the replies."""
        return state

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return the aggregation weights of the replies; by size unless overridden."""
        return Weights(np.array([server.sizes[client] for client in ups.ids], dtype=np.float64))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Move the model towards the weighted mean by ``weights.step``; buffers take the mean."""
        mean = ups.mean("model", weights.shares)
        if weights.step != 1:
            mean = (state.model + weights.step * (mean - state.model)).with_rest(mean.rest)
        return state.with_(model=mean)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Return what a client receives in a round."""
        return Down(model=state.model)

    def local_model(self, server: Server, down: Down, up: Up) -> Tree | None:
        """Return the model of a client after its step, from what it received and sent.

        Distances from the global model are measured on it (`evaluation.distances`). None: the
        reply has no model, and none follows from it.
        """
        model: Tree | None = up.get("model")
        return model

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """Return the models that a client uses in the end, by name.

        All are evaluated. The first is the main one unless another is marked with `Served`.
        """
        return {"global": Served(client.load(down.model), same_for_all=True)}

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Do one round and return the new state of the server."""
        ups = cohort.run(self.client, each=lambda client: self.deliver(server, state, client))
        state = self.observe(server, state, ups)
        weights = self.weights(server, state, ups)
        if not isinstance(weights, Weights):
            raise TypeError(
                f"{self.title}.weights returned {type(weights).__name__}; expected Weights(shares) "
                "with one share per reply"
            )
        cohort.weighed(ups.ids, weights)
        return self.update(server, state, ups, weights)


class Cohort:
    """The clients of this round; `run` is the only way to reach them."""

    ids: list[str]

    def run(
        self,
        step: Callable[..., Up | None],
        down: Down | None = None,
        *,
        each: Callable[[str], Down] | None = None,
        strict: bool = False,
    ) -> Ups:
        """Let every client of the cohort execute a step of the method, and return the replies.

        Args:
            step: A method of the class with the signature ``(self, client, down)``.
            down: What all clients receive.
            each: What each client receives, by its id; instead of `down`.
            strict: If a client fails, abort the round and repeat it without this client. By
                default its reply is missing.
        """
        raise NotImplementedError

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        """Record the aggregation weights of the replies."""


def mistake(kind: type[Method]) -> str | None:
    """Return a sentence about a likely mistake in a class, such as a missing decorator, or None."""
    for base in kind.__mro__[: kind.__mro__.index(Method)]:
        fields = [
            name
            for name, hint in inspect.get_annotations(base).items()
            if "ClassVar" not in str(hint)
        ]
        if fields and "__dataclass_fields__" not in vars(base):
            return (
                f"{base.__name__} has the parameter {fields[0]!r} but is no dataclass, so it would "
                "be ignored; write @dataclass(frozen=True) above the class"
            )
        for name, member in vars(base).items():
            close = closest(name, SLOTS, 0.85)
            if inspect.isfunction(member) and close and name not in SLOTS:
                return (
                    f"{base.__name__}.{name} is never called; did you mean {close}? "
                    "(A step of your own needs another name.)"
                )
    return None


SLOTS = (
    "advice",
    "check",
    "models",
    "start",
    "setup",
    "inputs",
    "before",
    "client",
    "after",
    "observe",
    "weights",
    "update",
    "deliver",
    "serves",
    "round",
    "finish",
    "after_round_guest",
)


def overridden(method: Method, slot: str) -> bool:
    """Return True if a method overrides a slot."""
    return getattr(type(method), slot) is not getattr(Method, slot)
