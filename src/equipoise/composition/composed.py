"""Composition: the slots of one method filled from different papers.

`compose(FedAKD(), weights=FedEquilibria(t=0.7))` trains as FedAKD and weighs as FedEquilibria. Whoever fills a slot keeps its measurements,
its state and what it delivers under its own name, so that names cannot clash; it sees the trained method's model as `model`.
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
        IncompatibleComposition: If the composition would not do what it says.
    """
    if beside is not None:
        warnings.warn("compose(beside=) is now companion=", DeprecationWarning, stacklevel=2)
        companion = beside
    given = {"weights": weights, "inputs": inputs, "companion": companion, "finish": finish}
    guests = {slot: guest for slot, guest in given.items() if guest is not None}
    return Composed(base, guests) if guests else base


def parts(method: Method) -> tuple[Method, Mapping[str, Method]]:
    """The base of a method and its guests by slot; a method that is no composition is its own base."""
    return (method.base, method.guests) if isinstance(method, Composed) else (method, {})


@dataclass(frozen=True)
class Composed(Method):
    """A base that trains, with slots filled by guests."""

    base: Method
    # by slot; the base's hash is enough, and a mapping has none
    guests: Mapping[str, Method] = field(hash=False)

    weighs = property(lambda self: self.base.weighs)
    uploads_model = property(lambda self: self.base.uploads_model)
    shares_model = property(lambda self: self.base.shares_model)
    trains = property(lambda self: self.base.trains)
    own_objective = property(lambda self: self.base.own_objective)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the base or a guest requires."""
        parts = (self.base, *self.guests.values())
        return tuple(dict.fromkeys(need for part in parts for need in part.needs))

    def __post_init__(self) -> None:
        for part in (self.base, *self.guests.values()):
            if isinstance(part, Composed):
                raise IncompatibleComposition(
                    f"{part.title} is a composition already; give all slots in one call of compose"
                )
        check(self.base, self.guests)
        # Copies: a guest's steps are told from those of the base by whose they are, also where one object was given twice.
        object.__setattr__(
            self, "guests", {slot: copy(self.guests[slot]) for slot in SLOTS if slot in self.guests}
        )
        # what it is given to end with, in place of a model of its own: shadowed in the instance, as
        # in `flow`
        if "finish" in self.guests:
            vars(self.guests["finish"])["base_models"] = self._given

    @property
    def title(self) -> str:
        return "+".join([self.base.title, *(guest.title for guest in self.guests.values())])

    def _in(self, *slots: str) -> list[tuple[str, Method]]:
        """The guests in some slots, with the names of their branches: a method in two slots is there once."""
        return list(
            {
                label(self.guests[slot]): self.guests[slot] for slot in slots if slot in self.guests
            }.items()
        )

    def check(self, task: Task) -> None:
        self.base.check(task)
        for _, guest in self._in(*SLOTS):
            guest.check(task)

    def advice(self, rounds: int) -> str:
        parts = [self.base, *(guest for _, guest in self._in(*SLOTS))]
        return "; ".join(text for part in parts if (text := part.advice(rounds)))

    def models(self, task: Task, others: Mapping[str, Factory]) -> Mapping[str, Factory]:
        found = dict(self.base.models(task, others))
        for _, guest in self._in(*SLOTS):
            brought = guest.models(task, {**others, **found})
            for name in brought.keys() & (others.keys() | found.keys()):
                raise IncompatibleComposition(
                    f"{guest.title} brings a model {name!r}, which would replace the one of that name that {self.base.title} trains with; "
                    f"give the experiment's model another name under `models`, or use {guest.title} alone"
                )
            found |= brought
        return found

    def start(self, server: Server) -> State:
        state = self.base.start(server)
        if "finish" in self.guests and "model" not in state:
            raise IncompatibleComposition(
                f"finish={self.guests['finish'].title}() on {self.base.title}(): its server has no model that clients could end with"
            )
        # A guest that starts from "the model" means the one that is trained here, whatever it is called.
        seen = replace(server, main=state.model.model) if "model" in state else server
        return state.with_(
            **{name: _without_model(guest.start(seen)) for name, guest in self._in(*SLOTS)}
        )

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        state = self._kept(state, self.base.setup(server, state, everyone))
        for name, guest in self._in(*SLOTS):
            state = _put(state, name, guest.setup(server, _seen_by(state, name), everyone))
        return state

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        accompanied = _Accompanied(
            everyone, lambda client, down: self._delivered(server, state, client, down, "inputs")
        )
        state = self._kept(state, self.base.finish(server, state, accompanied))
        for name, guest in self._in(*SLOTS):
            state = _put(
                state,
                name,
                guest.finish(server, _seen_by(state, name), self._carried(server, state, everyone)),
            )
        return state

    def _given(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """What the base serves, as a guest that finishes asks for it."""
        with client.host_state():
            return {name: _minor(one) for name, one in self.base.serves(client, down).items()}

    def _carried(self, server: Server, state: State, cohort: Cohort) -> Cohort:
        """For a guest's own exchanges: with a model go all things that the base delivers with it, and always what inputs follow from."""

        def add(client: str, down: Down) -> Down:
            if "model" in down or overridden(self.base, "inputs"):
                sent = self.base.deliver(server, state, client)
                down = Down({**(sent if "model" in down else _without_model(sent)), **down})
            return self._delivered(server, state, client, down, "inputs")

        return _Accompanied(cohort, add)

    def inputs(self, client: Client, down: Down) -> Inputs | None:
        for name, guest in self._in("inputs"):
            if name not in down and not client.round:
                break  # the base prepares itself before its guests: nothing was delivered for them yet
            with client.guest_state(name):
                return guest.inputs(client, Down({**down, **down[name]}))
        return self.base.inputs(client, down)

    def before(self, client: Client, received: Tree | None) -> Up:
        up = self.base.before(client, received)
        for name, guest in self._in("weights"):
            with client.guest_state(name):
                up = up.with_(**{name: dict(guest.before(client, received))})
        return up

    def client(self, client: Client, down: Down) -> Up | None:
        return self.base.client(client, down)

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        up = self.base.after(client, received, uploaded)
        for name, guest in self._in("weights"):
            with client.guest_state(name):
                up = up.with_(**{name: dict(guest.after(client, received, uploaded))})
        return up

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        # Guests look first: what they remember refers to the model that this round's clients received.
        for name, guest in self._in("weights", "companion"):
            state = _put(
                state, name, guest.observe(server, _seen_by(state, name), _ups_of(ups, name))
            )
        return self._kept(state, self.base.observe(server, state, ups))

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        for name, guest in self._in("weights"):
            return guest.weights(server, _seen_by(state, name), _ups_of(ups, name))
        return self.base.weights(server, state, ups)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        return self._kept(state, self.base.update(server, state, ups, weights))

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return self._delivered(
            server,
            state,
            client_id,
            self.base.deliver(server, state, client_id),
            "inputs",
            "companion",
            "finish",
        )

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        served = dict(self.base.serves(client, down))
        for name, guest in self._in("companion"):
            with client.guest_state(name):
                for key, one in guest.serves(client, Down({**down, **down[name]})).items():
                    served.setdefault(key, _minor(one))
        for name, guest in self._in("finish"):
            served = {key: _minor(one) for key, one in served.items()}
            with client.guest_state(name):
                for key, one in guest.serves(client, Down({**down, **down[name]})).items():
                    main = isinstance(one, Served) and one.main
                    # Under its own name where the base has a model of that name: what all end with must not be taken for another.
                    served.setdefault(
                        name.removeprefix("@") if main and key in served else key,
                        one if main else _minor(one),
                    )
        return served

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        # An exchange of the base's own, with another Down than `deliver` gives, changes inputs like any other.
        accompanied = _Accompanied(
            cohort, lambda client, down: self._delivered(server, state, client, down, "inputs")
        )
        return self.after_round_guest(
            server, self._kept(state, self.flow.round(server, state, accompanied)), cohort
        )

    def after_round_guest(self, server: Server, state: State, cohort: Cohort) -> State:
        for name, guest in self._in("finish"):
            state = _put(
                state,
                name,
                guest.after_round_guest(
                    server, _seen_by(state, name), self._carried(server, state, cohort)
                ),
            )
        return state

    @cached_property
    def flow(self) -> Method:
        """The base as its own `round` sees it: with the slots of the composition.

        A round asks `self` for every slot and is often continued by `super().round`, so `self` must be of the base's class and still answer
        with our slots: a copy of the base, its slots shadowed in the instance. A subclass made for each composition would do the same,
        but two equal compositions would then be of two classes: neither equal nor found by name in another process.
        """
        flow = copy(self.base)
        vars(flow).update({slot: getattr(self, slot) for slot in METHOD_SLOTS if slot != "round"})
        return flow

    def _delivered(
        self, server: Server, state: State, client_id: str, down: Down, *slots: str
    ) -> Down:
        """What a client receives, with what the guests in these slots add to it."""
        added = {name: guest for name, guest in self._in(*slots) if name not in down}
        return down.with_(
            **{
                name: _without_model(guest.deliver(server, _seen_by(state, name), client_id))
                for name, guest in added.items()
            }
        )

    def _kept(self, before: State, after: State) -> State:
        """The guests' branches stay, also where the base made a state anew."""
        return after.with_(
            **{name: before[name] for name, _ in self._in(*SLOTS) if name not in after}
        )


class _Accompanied(Cohort):
    """A cohort whose clients receive what guests add to everything that the base sends."""

    def __init__(self, cohort: Cohort, add: Callable[[str, Down], Down]) -> None:
        self.cohort, self.ids, self.add = cohort, cohort.ids, add

    def run(
        self,
        step: Callable[..., Up | None],
        down: Down | None = None,
        *,
        each: Callable[[str], Down] | None = None,
        strict: bool = False,
    ) -> Ups:
        return self.cohort.run(
            step,
            each=lambda client: self.add(
                client, each(client) if each is not None else down or Down()
            ),
            strict=strict,
        )

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        self.cohort.weighed(ids, weights)


def finishes(method: Method) -> bool:
    """Whether a method, or a part of it, has exchanges after the last round."""
    base, guests = parts(method)
    return any(overridden(part, "finish") for part in (base, *guests.values()))


def step_name(method: Method, step: Callable[..., Any]) -> str:
    """The name under which a step travels, "@fedrdn.statistics" for one of a guest: it must be a method of the class, never a lambda."""
    owner, name = getattr(step, "__self__", None), getattr(step, "__name__", "")
    base, guests = parts(method)
    if owner is method or owner is base or (isinstance(method, Composed) and owner is method.flow):
        return name
    for guest in guests.values():
        if owner is guest:
            return f"{label(guest)}.{name}"
    raise TypeError(
        f"cohort.run: expected a method of {method.title} such as self.client, got {step!r}; steps travel by name"
    )


def guest_named(method: Method, name: str) -> Method:
    """The guest whose branch has this name."""
    return next(guest for guest in parts(method)[1].values() if label(guest) == name)


def _minor(one: Model | Served) -> Model | Served:
    """A served model that is not the one the composition is for."""
    return replace(one, main=False) if isinstance(one, Served) else one


def _without_model(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "model"}


def _seen_by(state: State, name: str) -> State:
    """A guest's own state, with the trained method's model."""
    return State({**state[name], **({"model": state.model} if "model" in state else {})})


def _put(state: State, name: str, own: State) -> State:
    return state.with_(**{name: _without_model(own)})


def _ups_of(ups: Ups, name: str) -> Ups:
    return Ups(
        [
            (client, None if up is None else Up({**up, **up.get(name, {})}))
            for client, up in ups.positions
        ]
    )
