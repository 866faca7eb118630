"""Composition of methods: the slots of one method filled by others.

`compose(FedAKD(), weights=FedEquilibria(t=0.7))` trains as FedAKD and weighs as FedEquilibria. A
method that fills a slot (a guest) keeps its measurements, its state and what it delivers under its
own name, so that names cannot clash. It sees the model that the base trains as `model`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from equipoise.client import Client, Inputs
from equipoise.composition.compatibility import SLOTS, IncompatibleComposition, check, label
from equipoise.method import SLOTS as METHOD_SLOTS
from equipoise.method import Cohort, Method, Served, Ups, Weights, overridden
from equipoise.models import Model
from equipoise.records import Down, Record, State, Up
from equipoise.server import Server
from equipoise.training.workbench import Factory
from equipoise.tree import Tree

if TYPE_CHECKING:
    from equipoise.task import Task


def compose(
    base: Method,
    *,
    weights: Method | None = None,
    inputs: Method | None = None,
    companion: Method | None = None,
    finish: Method | None = None,
    beside: Method | None = None,
) -> Method:
    """Return a method that trains as one paper says and does other things as others say.

    Args:
        base: Trains the clients.
        weights: Its rule weighs the replies.
        inputs: Its transform changes the inputs.
        companion: Runs alongside; it keeps its own state and adds the model that it serves.
        finish: Makes each client's final model from the models that the base serves.
        beside: Deprecated name of `companion`.

    Raises:
        IncompatibleComposition: If the composition would not compute what its parts promise.
    """
    if beside is not None:
        warnings.warn("compose(beside=) is now companion=", DeprecationWarning, stacklevel=2)
        companion = beside
    slots = {"weights": weights, "inputs": inputs, "companion": companion, "finish": finish}
    guests = {slot: guest for slot, guest in slots.items() if guest is not None}
    return Composed(base, guests) if guests else base


def parts(method: Method) -> tuple[Method, Mapping[str, Method]]:
    """Return the base of a method and its guests by slot.

    A method that is no composition is its own base.
    """
    if isinstance(method, Composed):
        return method.base, method.guests
    return method, {}


@dataclass(frozen=True)
class Composed(Method):
    """A method whose slots are filled by others.

    Attributes:
        base: The method that trains.
        guests: The methods that fill its slots, by slot. They are no part of the hash, since a
            mapping has none.
    """

    base: Method
    guests: Mapping[str, Method] = field(hash=False)

    weighs = property(lambda self: self.base.weighs)
    uploads_model = property(lambda self: self.base.uploads_model)
    shares_model = property(lambda self: self.base.shares_model)
    trains = property(lambda self: self.base.trains)
    own_objective = property(lambda self: self.base.own_objective)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The requirements of the base and of all guests."""
        needs = list(self.base.needs)
        for guest in self.guests.values():
            needs += guest.needs
        return tuple(dict.fromkeys(needs))

    def __post_init__(self) -> None:
        for part in (self.base, *self.guests.values()):
            if isinstance(part, Composed):
                raise IncompatibleComposition(
                    f"{part.title} is a composition already; give all slots in one call of compose"
                )
        check(self.base, self.guests)
        # Copies, because the object that a step is bound to says whose step it is, even if one
        # object fills two slots.
        copies = {slot: copy(self.guests[slot]) for slot in SLOTS if slot in self.guests}
        object.__setattr__(self, "guests", copies)
        if "finish" in copies:
            # It ends with the base's models in place of its own: `base_models` and `main_of_base`
            # are shadowed in the instance, as slots are in `flow`.
            vars(copies["finish"])["base_models"] = self._served_by_base
            vars(copies["finish"])["main_of_base"] = self._main_of_base

    @property
    def title(self) -> str:
        """The titles of all parts, joined by plus signs."""
        return "+".join([self.base.title, *(guest.title for guest in self.guests.values())])

    def _in(self, *slots: str) -> list[tuple[str, Method]]:
        """Return the guests in some slots by branch; a method in two slots is listed once."""
        guests = {}
        for slot in slots:
            if slot in self.guests:
                guest = self.guests[slot]
                guests[label(guest)] = guest
        return list(guests.items())

    def check(self, task: Task) -> None:
        """Check that all parts fit the task."""
        self.base.check(task)
        for _, guest in self._in(*SLOTS):
            guest.check(task)

    def advice(self, rounds: int) -> str:
        """Return the advice of all parts."""
        texts = [self.base.advice(rounds)]
        texts += [guest.advice(rounds) for _, guest in self._in(*SLOTS)]
        return "; ".join(text for text in texts if text)

    def held_out_rounds(self, rounds: int) -> int | None:
        """Return that of the base; a guest that finishes trains after the last round only."""
        of_base = self.base.held_out_rounds(rounds)
        if of_base is not None:
            return of_base
        finishing = self.guests.get("finish")
        if finishing is None or finishing.held_out_rounds(rounds) is None:
            return None
        return rounds

    def models(self, task: Task, others: Mapping[str, Factory]) -> Mapping[str, Factory]:
        """Return the models that the parts bring."""
        models = dict(self.base.models(task, others))
        for _, guest in self._in(*SLOTS):
            brought = guest.models(task, {**others, **models})
            for name in brought.keys() & (others.keys() | models.keys()):
                raise IncompatibleComposition(
                    f"{guest.title} brings a model {name!r}, which would replace the one of that "
                    f"name that {self.base.title} trains with; give the experiment's model another "
                    f"name under `models`, or use {guest.title} alone"
                )
            models |= brought
        return models

    def start(self, server: Server) -> State:
        """Return the base's state with a branch for each guest."""
        state = self.base.start(server)
        if "finish" in self.guests and "model" not in state:
            raise IncompatibleComposition(
                f"finish={self.guests['finish'].title}() on {self.base.title}(): "
                "its server has no model that clients could end with"
            )
        if "model" in state:
            # A guest that starts from "the model" means the one that the base trains, whatever
            # its name is.
            server = replace(server, main=state.model.model)
        branches = {name: _without_model(guest.start(server)) for name, guest in self._in(*SLOTS)}
        return state.with_(**branches)

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        """Set up the base, then its guests."""
        state = self._with_branches(state, self.base.setup(server, state, everyone))
        for name, guest in self._in(*SLOTS):
            branch = guest.setup(server, _seen_by(state, name), everyone)
            state = _with_branch(state, name, branch)
        return state

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        """Finish the base, then its guests."""
        cohort = self._with_inputs(server, state, everyone)
        state = self._with_branches(state, self.base.finish(server, state, cohort))
        for name, guest in self._in(*SLOTS):
            cohort = self._for_guest(server, state, everyone)
            branch = guest.finish(server, _seen_by(state, name), cohort)
            state = _with_branch(state, name, branch)
        return state

    def _served_by_base(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """Return the base's models, for a guest that makes the final ones from them."""
        with client.host_state():
            served = self.base.serves(client, down)
            return {name: _not_main(model) for name, model in served.items()}

    def _main_of_base(self, client: Client, down: Down) -> str:
        """Return the name of the model that clients of the base end up using."""
        with client.host_state():
            served = self.base.serves(client, down)
        for name, model in served.items():
            if isinstance(model, Served) and model.main:
                return name
        return next(iter(served))

    def _with_inputs(self, server: Server, state: State, cohort: Cohort) -> Cohort:
        """Return a cohort for exchanges of the base, which change inputs like any other."""

        def add(client: str, down: Down) -> Down:
            return self._delivered(server, state, client, down, "inputs")

        return _AccompaniedCohort(cohort, add)

    def _for_guest(self, server: Server, state: State, cohort: Cohort) -> Cohort:
        """Return a cohort for exchanges of a guest.

        With a model goes everything that the base delivers with it, and always that from which
        inputs follow.
        """

        def add(client: str, down: Down) -> Down:
            if "model" in down:
                down = Down({**self.base.deliver(server, state, client), **down})
            elif overridden(self.base, "inputs"):
                delivered = self.base.deliver(server, state, client)
                down = Down({**_without_model(delivered), **down})
            return self._delivered(server, state, client, down, "inputs")

        return _AccompaniedCohort(cohort, add)

    def inputs(self, client: Client, down: Down) -> Inputs | None:
        """Return the input transform of the guest for inputs, or of the base."""
        for name, guest in self._in("inputs"):
            if name not in down and not client.round:
                break  # the base is set up before its guests: nothing was delivered for them yet
            with client.guest_state(name):
                return guest.inputs(client, Down({**down, **down[name]}))
        return self.base.inputs(client, down)

    def before(self, client: Client, received: Tree | None) -> Up:
        """Measure the received model for the base and for the weights."""
        up = self.base.before(client, received)
        for name, guest in self._in("weights"):
            with client.guest_state(name):
                up = up.with_(**{name: dict(guest.before(client, received))})
        return up

    def client(self, client: Client, down: Down) -> Up | None:
        """Train as the base does."""
        return self.base.client(client, down)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        """Measure the uploaded model for the base and for the weights."""
        up = self.base.after(client, received, uploaded)
        for name, guest in self._in("weights"):
            with client.guest_state(name):
                up = up.with_(**{name: dict(guest.after(client, received, uploaded))})
        return up

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Let guests and base remember what they need of the replies."""
        # Guests observe first: what they remember refers to the model that this round's clients
        # received.
        for name, guest in self._in("weights", "companion"):
            branch = guest.observe(server, _seen_by(state, name), _ups_of(ups, name))
            state = _with_branch(state, name, branch)
        return self._with_branches(state, self.base.observe(server, state, ups))

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Weigh as the guest for weights does, or the base."""
        for name, guest in self._in("weights"):
            return guest.weights(server, _seen_by(state, name), _ups_of(ups, name))
        return self.base.weights(server, state, ups)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Update as the base does."""
        return self._with_branches(state, self.base.update(server, state, ups, weights))

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Deliver what the base and its guests deliver."""
        down = self.base.deliver(server, state, client_id)
        return self._delivered(server, state, client_id, down, "inputs", "companion", "finish")

    def local_model(self, server: Server, down: Down, up: Up) -> Tree | None:
        """Return the model of a client after its step, as the base reads its reply."""
        return self.base.local_model(server, down, up)

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """Return the models of the base, of the companion and of the guest that finishes."""
        served = dict(self.base.serves(client, down))
        for name, guest in self._in("companion"):
            with client.guest_state(name):
                models = guest.serves(client, Down({**down, **down[name]}))
            for key, model in models.items():
                served.setdefault(key, _not_main(model))
        for name, guest in self._in("finish"):
            served = {key: _not_main(model) for key, model in served.items()}
            with client.guest_state(name):
                models = guest.serves(client, Down({**down, **down[name]}))
            for key, model in models.items():
                is_main = isinstance(model, Served) and model.main
                if is_main and key in served:
                    # The final model must not be taken for another one of the same name.
                    key = name.removeprefix("@")
                served.setdefault(key, model if is_main else _not_main(model))
        return served

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Lead a round as the base does, then let the guest that finishes take part."""
        after = self.flow.round(server, state, self._with_inputs(server, state, cohort))
        return self.after_round_guest(server, self._with_branches(state, after), cohort)

    def after_round_guest(self, server: Server, state: State, cohort: Cohort) -> State:
        """Let the guest that finishes add exchanges to a round."""
        for name, guest in self._in("finish"):
            own_cohort = self._for_guest(server, state, cohort)
            branch = guest.after_round_guest(server, _seen_by(state, name), own_cohort)
            state = _with_branch(state, name, branch)
        return state

    @cached_property
    def flow(self) -> Method:
        """The base as its own `round` sees it: with the slots of the composition.

        A round calls the slots of `self` and often `super().round`, so `self` must be of the
        base's class and still have our slots: a copy of the base, its slots shadowed in the
        instance. A subclass made for each composition would do the same, but two equal
        compositions would then have two classes, neither equal nor found by name in another
        process.
        """
        flow = copy(self.base)
        vars(flow).update({slot: getattr(self, slot) for slot in METHOD_SLOTS if slot != "round"})
        return flow

    def _delivered(
        self, server: Server, state: State, client_id: str, down: Down, *slots: str
    ) -> Down:
        """Return a message with what the guests in some slots add to it."""
        branches = {}
        for name, guest in self._in(*slots):
            if name not in down:
                delivered = guest.deliver(server, _seen_by(state, name), client_id)
                branches[name] = _without_model(delivered)
        return down.with_(**branches)

    def _with_branches(self, before: State, after: State) -> State:
        """Return a state with the guests' branches, also if the base made a new state."""
        missing = {name: before[name] for name, _ in self._in(*SLOTS) if name not in after}
        return after.with_(**missing)


class _AccompaniedCohort(Cohort):
    """A cohort that adds something to every message.

    Args:
        cohort: The cohort of the round.
        add: Returns the message that a client receives in place of another.
    """

    def __init__(self, cohort: Cohort, add: Callable[[str, Down], Down]) -> None:
        self.cohort = cohort
        self.ids = cohort.ids
        self.add = add

    def run(
        self,
        step: Callable[..., Up | None],
        down: Down | None = None,
        *,
        each: Callable[[str], Down] | None = None,
        strict: bool = False,
    ) -> Ups:
        """Ask all clients; see `Cohort.run`."""

        def each_with_addition(client: str) -> Down:
            own = each(client) if each is not None else down
            return self.add(client, own or Down())

        return self.cohort.run(step, each=each_with_addition, strict=strict)

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        """Record the weights of the round."""
        self.cohort.weighed(ids, weights)


def finishes(method: Method) -> bool:
    """Return True if a part of a method has exchanges after the last round."""
    base, guests = parts(method)
    return any(overridden(part, "finish") for part in (base, *guests.values()))


def served_names(method: Method) -> set[str] | None:
    """Return the names of all models that a method may serve.

    Args:
        method: A method or a composition.

    Returns:
        The names; None if a class overrides `serves` without declaring `served_models`.
    """
    base, guests = parts(method)
    serving = [base, *(guests[slot] for slot in ("companion", "finish") if slot in guests)]
    names: set[str] = set()
    for part in serving:
        if not _declares_served_models(type(part)):
            return None
        names.update(part.served_models)
    if "finish" in guests:
        # The final model has this name if the base serves one of the same name.
        names.add(label(guests["finish"]).removeprefix("@"))
    return names


def _declares_served_models(kind: type[Method]) -> bool:
    """Return True if a class declares `served_models` at least as recently as `serves`."""
    for base in kind.__mro__:
        if "served_models" in vars(base):
            return True
        if "serves" in vars(base):
            return False
    return False


def step_name(method: Method, step: Callable[..., Any]) -> str:
    """Return the name under which a step travels, such as "@fedrdn.statistics" of a guest.

    Args:
        method: The method of the run.
        step: A method of its class, or of a guest's class.

    Raises:
        TypeError: If it is something else, such as a lambda.
    """
    owner = getattr(step, "__self__", None)
    name = getattr(step, "__name__", "")
    base, guests = parts(method)
    owners = [method, base]
    if isinstance(method, Composed):
        owners.append(method.flow)
    if any(owner is known for known in owners):
        return name
    for guest in guests.values():
        if owner is guest:
            return f"{label(guest)}.{name}"
    raise TypeError(
        f"cohort.run: expected a method of {method.title} such as self.client, got {step!r}; "
        "steps travel by name"
    )


def guest_named(method: Method, name: str) -> Method:
    """Return the guest whose branch has a name."""
    return next(guest for guest in parts(method)[1].values() if label(guest) == name)


def _not_main(model: Model | Served) -> Model | Served:
    """Return a served model that is not the one the composition is for."""
    return replace(model, main=False) if isinstance(model, Served) else model


def _without_model(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "model"}


def _seen_by(state: State, name: str) -> State:
    """Return a guest's own state, with the model that the base trains."""
    if "model" in state:
        return State({**state[name], "model": state.model})
    return State(state[name])


def _with_branch(state: State, name: str, branch: State) -> State:
    return state.with_(**{name: _without_model(branch)})


def _ups_of(ups: Ups, name: str) -> Ups:
    """Return the replies as a guest sees them, with its own branch on top."""
    positions: list[tuple[str, Up | None]] = []
    for client, up in ups.positions:
        if up is not None:
            up = Up({**up, **up.get(name, {})})
        positions.append((client, up))
    return Ups(positions)
