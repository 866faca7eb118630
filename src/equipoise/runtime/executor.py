"""The client's side of a run: the same code in process, in a worker, in an actor of a cluster and at a site."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.client import Client
from equipoise.composition import guest_named, parts
from equipoise.data import Federation
from equipoise.data.roster import Roster, roster_of
from equipoise.experiment import Experiment, experiment
from equipoise.experiment.build import prepare, try_precision
from equipoise.method import Method
from equipoise.records import CannotSave, Down, Record, Up, finite, size, tensors_of, write
from equipoise.runtime import client_evaluation
from equipoise.runtime.isolation import preserve_global_state, time_limit
from equipoise.runtime.messages import Job, Reply, Request, reply_file, round_of, state_name
from equipoise.runtime.states import StateMissing, States
from equipoise.storage.files import place
from equipoise.tree import Tree
from equipoise.validation.imports import Imports


class ClientExecutor:
    """Does what requests ask of the clients whose data are here."""

    def __init__(
        self,
        job: Job,
        federation: Federation,
        states: States,
        wanted: Experiment | None = None,
        disk: Path | None = None,
    ) -> None:
        """`wanted`: the experiment itself, where it holds Python objects that a job cannot name. `disk`: the run's files, where they are on this disk."""
        self.federation, self.states, self.disk = federation, states, disk
        self.wanted = (
            wanted
            if wanted is not None
            else experiment(job.experiment, Imports.of_job(job.allowed))
        )
        try_precision(self.wanted)
        self.bench, self.method = prepare(self.wanted, federation.task, federation.ids, federation)

    def roster(self) -> Roster:
        return roster_of(self.federation)

    def execute(self, request: Request, deadline: float | None = None) -> Reply:
        """Do what a request asks, and keep the client's new state under its name. Raises `Late` where this thread can be interrupted."""
        began = time.perf_counter()
        self.states.keep(
            request.client,
            {name for name in (request.committed, request.state and request.state[0]) if name},
        )
        try:
            state = self._state(request)
        except StateMissing as error:
            return Reply(request.client, failure=str(error))
        part = partial(self.bench.part, request.client)
        client = Client(
            self.bench, request.client, request.round, request.rounds, state, request.attempt
        )
        with preserve_global_state(), self.bench.lending(), time_limit(deadline):
            if client_evaluation.handles(request.step):
                up, measured = client_evaluation.evaluate(
                    request.step, self.method, client, request.down, part
                )
            else:
                up, measured = _step(self.method, client, request), []
                if request.after and "model" in up:
                    measured = client_evaluation.measure(
                        client, {"global": client.load(up.model)}, part=part, **request.after
                    )
        if client.state.changed:
            broken = next(
                (name for name, value in tensors_of(dict(client.state)) if not finite(value)), None
            )
            if broken is not None:
                return Reply(
                    request.client,
                    failure=f"its own state {broken} holds values that are not finite",
                )
        reply = Reply(
            request.client,
            up,
            steps=client.steps,
            skipped=client.skipped,
            bytes=size(up),
            measured=measured,
        )
        if request.large and self.disk is not None:
            reply.file = reply_file(request)
            write(up, place(self.disk, reply.file))
            reply.up = None
        if client.state.changed and request.exchange:
            name = state_name(request.client, request.round, request.attempt, request.exchange)
            reply.state = self.states.write(name, Record(dict(client.state)))
        reply.seconds = time.perf_counter() - began
        return reply

    def execute_catching(self, request: Request) -> Reply:
        """As `execute`, with an exception turned into a reply that carries its traceback."""
        try:
            return self.execute(request)
        except CannotSave as error:
            return Reply(request.client, stop=str(error))
        except Exception:
            return Reply(request.client, error=traceback.format_exc())

    def _state(self, request: Request) -> dict[str, Any]:
        if request.state is None:
            return {}
        name, digest = request.state
        this_round = round_of(name) == request.round  # keys with a leading _ end with it
        return (
            dict(self.states.read(name, digest))
            if this_round
            else _lasting(self.states.read(name, digest))
        )


def _lasting(state: Mapping[str, Any]) -> dict[str, Any]:
    """Without what ends with a round, also in the branches of guests."""
    return {
        key: _lasting(value) if key.startswith("@") else value
        for key, value in state.items()
        if not key.startswith("_")
    }


def _step(method: Method, client: Client, request: Request) -> Up:
    down = request.down if isinstance(request.down, Down) else Down(request.down)
    if request.step.startswith("@"):  # a step of a guest: "@fedrdn.statistics"
        owner, _, name = request.step.partition(".")
        if client.round:  # before round 1 nothing was delivered yet that inputs could follow from
            client.inputs = method.inputs(client, down)
        with client.guest_state(owner):
            return _replied(getattr(guest_named(method, owner), name)(client, down), name)
    client.inputs = method.inputs(client, down)
    if request.step != "client":
        return _replied(getattr(parts(method)[0], request.step)(client, down), request.step)
    received = down.get("model")
    up = method.before(client, received)
    up = _merged(up, _replied(method.client(client, down), "client"))
    if method.uploads_model and not isinstance(up.get("model"), Tree):
        raise TypeError(
            f"{parts(method)[0].title}.client sent {sorted(up) or 'nothing'}, but no `model`; end it with `return Up(model=model)`, "
            "or say in the class that it uploads none: uploads_model = False"
        )
    return _merged(up, method.after(client, received, up.get("model")))


def _replied(given: Any, step: str) -> Up:
    if given is None:
        return Up()
    if not isinstance(given, Up):
        raise TypeError(
            f"{step}: expected an Up, got {type(given).__name__}; end the step with `return Up(name=value)`"
        )
    return given


def _merged(first: Up, second: Up) -> Up:
    if not first or not second:
        return second or first
    branches = {
        key: {**first[key], **second[key]}
        for key in first.keys() & second.keys()
        if key.startswith("@")
    }
    return Up({**first, **second, **branches})
