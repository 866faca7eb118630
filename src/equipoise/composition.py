"""Composition: the slots of one method filled from different papers.

`compose(FedAKD(), weights=FedEquilibria(t=0.7))` trains as FedAKD and weighs as FedEquilibria. Whoever fills a slot keeps its measurements,
its state and what it delivers under its own name, so that names cannot clash; it sees the trained method's model as `model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from equipoise.client import Client, Inputs
from equipoise.method import Cohort, Method, Served, Ups, Weights, overridden
from equipoise.records import Down, Record, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.workbench import Model

SLOTS = ("weights", "inputs", "beside")


class Unsound(ValueError):
    """A composition that would not do what it says."""


def compose(base: Method, *, weights: Method | None = None, inputs: Method | None = None, beside: Method | None = None) -> Method:
    """A method that trains as `base`, weighs replies by the rule of `weights`, changes inputs as `inputs` does, and lets `beside` remember and serve."""
    guests = {slot: guest for slot, guest in (("weights", weights), ("inputs", inputs), ("beside", beside)) if guest is not None}
    if not guests:
        return base
    if isinstance(base, _Composed):
        raise Unsound(f"{type(base).__name__} is a composition already; give all slots in one call of compose")
    for slot, guest in guests.items():
        if any(label(other) == label(guest) and other != guest for other in guests.values()):
            raise Unsound(
                f"{type(guest).__name__} stands in two slots with different settings, but has one name in records; give both the same"
            )
        reason = _unsound(base, slot, guest)
        if reason:
            raise Unsound(f"{slot}={type(guest).__name__}() on {type(base).__name__}(): {reason}")
    name = type(base).__name__ + "".join(f"+{type(guest).__name__}" for guest in guests.values())
    whole: Method = object.__new__(type(name, (_Composed, type(base)), {"__doc__": type(base).__doc__}))
    # Frozen dataclasses keep their fields in the instance dictionary; the composition is the base with guests added.
    whole.__dict__.update(base.__dict__, guests=guests, base=base)
    return whole


def _unsound(base: Method, slot: str, guest: Method) -> str | None:
    if slot == "weights":
        if not base.weighs:
            return "its round never weighs replies, so a rule would be ignored"
        if not base.uploads_model:
            return "the rule measures the uploaded model, but this method uploads none"
        if overridden(base, "update") and not base.composable_update:
            return "its update is derived for its own weights; others would break it"
        if not guest.composable_weights:
            return "it has no weight rule that stands without its own client or update; take one that has, such as FedEquilibria or CoReFed"
    if slot == "inputs" and not overridden(guest, "inputs"):
        return "it does not change inputs"
    if slot == "beside":
        if not overridden(guest, "observe"):
            return "it remembers nothing that could stand beside another method"
        if not base.uploads_model:
            return "it remembers uploaded models, but this method uploads none"
    return None


class _Composed(Method):
    """The mixin in front of a base method's class that hands its slots to guests."""

    guests: ClassVar[Mapping[str, Method]]
    base: Method

    def _each(self, *slots: str) -> list[tuple[str, Method]]:
        # By name, so that a method in two slots remembers once.
        return list({label(self.guests[slot]): self.guests[slot] for slot in slots if slot in self.guests}.items())

    def models(self, task: Any, others: Any) -> Mapping[str, Any]:
        found = dict(super().models(task, others))
        for _, guest in self._each(*SLOTS):
            found |= guest.models(task, others)
        return found

    def start(self, server: Server) -> State:
        state = super().start(server)
        # A guest that starts from "the model" means the one that is trained here, whatever it is called.
        seen = replace(server, main=state.model.model) if "model" in state else server
        return state.with_(**{name: _without_model(guest.start(seen)) for name, guest in self._each(*SLOTS)})

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        state = super().setup(server, state, everyone)
        for name, guest in self._each(*SLOTS):
            state = _put(state, name, guest.setup(server, _seen_by(state, name), everyone))
        return state

    def inputs(self, client: Client, down: Down) -> Inputs | None:
        for name, guest in self._each("inputs"):
            if name not in down and not client.round:
                break  # the base prepares itself before its guests: nothing was delivered for them yet
            return guest.inputs(client, Down({**down, **down[name]}))
        return super().inputs(client, down)

    def before(self, client: Client, received: Tree | None) -> Up:
        up = super().before(client, received)
        for name, guest in self._each("weights"):
            with client.owned_by(name):
                up = up.with_(**{name: dict(guest.before(client, received))})
        return up

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        up = super().after(client, received, uploaded)
        for name, guest in self._each("weights"):
            with client.owned_by(name):
                up = up.with_(**{name: dict(guest.after(client, received, uploaded))})
        return up

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        # Guests look first: what they remember refers to the model that this round's clients received.
        for name, guest in self._each("weights", "beside"):
            state = _put(state, name, guest.observe(server, _seen_by(state, name), _ups_of(ups, name)))
        return super().observe(server, state, ups)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        for name, guest in self._each("weights"):
            return guest.weights(server, _seen_by(state, name), _ups_of(ups, name))
        return super().weights(server, state, ups)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        down = super().deliver(server, state, client_id)
        for name, guest in self._each("inputs", "beside"):
            down = down.with_(**{name: _without_model(guest.deliver(server, _seen_by(state, name), client_id))})
        return down

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        served = dict(super().serves(client, down))
        for name, guest in self._each("beside"):
            with client.owned_by(name):
                for key, one in guest.serves(client, Down({**down, **down[name]})).items():
                    served.setdefault(key, replace(one, main=False) if isinstance(one, Served) else one)
        return served


def label(guest: Method) -> str:
    """The name of a guest's branch in records."""
    return f"@{type(guest).__name__.lower()}"


def guest_named(method: Method, name: str) -> Method:
    """The guest whose branch has this name."""
    guests: Mapping[str, Method] = getattr(method, "guests", {})
    return next(guest for guest in guests.values() if label(guest) == name)


def _without_model(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "model"}


def _seen_by(state: State, name: str) -> State:
    """A guest's own state, with the trained method's model."""
    return State({**state[name], **({"model": state.model} if "model" in state else {})})


def _put(state: State, name: str, own: State) -> State:
    return state.with_(**{name: _without_model(own)})


def _ups_of(ups: Ups, name: str) -> Ups:
    return Ups([(client, None if up is None else Up({**up, **up.get(name, {})})) for client, up in ups.places])
