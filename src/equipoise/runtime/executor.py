"""Execution of requests at clients, in process, in a worker, on a cluster and at a site."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from equipoise import mkl
from equipoise.client import Client
from equipoise.composition import guest_named, parts
from equipoise.data import Federation
from equipoise.data.roster import Roster, roster_of
from equipoise.experiment import Experiment
from equipoise.experiment import experiment as experiment_from
from equipoise.experiment.build import prepare, try_precision
from equipoise.method import Method
from equipoise.records import CannotSave, Down, Record, Up, finite, size, tensors_of, write
from equipoise.runtime import client_evaluation
from equipoise.runtime.isolation import preserve_global_state, time_limit
from equipoise.runtime.messages import Job, Reply, Request, reply_file, round_of, state_name
from equipoise.runtime.states import StateMissing, States
from equipoise.storage.files import place
from equipoise.training.direct import DirectNetwork
from equipoise.training.stack import Deferral, FitPlanned, PlannedFit, train_stacks
from equipoise.tree import Tree
from equipoise.validation.imports import Imports

# Executes a request, as one of a group if there is a deferral.
ExecuteStep = Callable[[Request, Deferral | None], Reply]


class ClientExecutor:
    """Executes requests for the clients whose data it holds.

    Attributes:
        experiment: The experiment of the run.
        method: Its method.
        bench: The networks that steps borrow.
        federation: The data of the clients.
        states: The store of the clients' states.
        disk: The folder of the run's files, if it is on this disk.
    """

    def __init__(
        self,
        job: Job,
        federation: Federation,
        states: States,
        experiment: Experiment | None = None,
        disk: Path | None = None,
    ) -> None:
        """Build networks and method.

        Args:
            job: The message that opens this runtime.
            federation: The data of the clients.
            states: The store of the clients' states.
            experiment: The experiment itself, if this process has it; it may hold Python objects
                that a job cannot name.
            disk: The folder of the run's files, if it is on this disk.

        Raises:
            ConfigurationError: If the experiment cannot be executed on this machine.
        """
        if experiment is None:
            experiment = experiment_from(job.experiment, Imports.of_job(job.allowed))
        self.experiment = experiment
        self.federation = federation
        self.states = states
        self.disk = disk
        try_precision(experiment)
        self.bench, self.method = prepare(experiment, federation.task, federation.ids, federation)

    def roster(self) -> Roster:
        """Return names and sizes of the clients."""
        return roster_of(self.federation)

    @property
    def trains_groups(self) -> bool:
        """True if the fits of several clients may be trained together; see `execute_group`."""
        if not mkl.is_reproducible() or "model" not in self.bench.architectures:
            return False
        with self.bench.lending():
            network = DirectNetwork.of(self.bench.take("model"))
        return network is not None and network.is_dense

    def execute(
        self,
        request: Request,
        deadline: float | None = None,
        deferral: Deferral | None = None,
    ) -> Reply:
        """Execute a request and write the client's new state under its name.

        Args:
            request: The request.
            deadline: Seconds that the step may take, if this thread can be interrupted.
            deferral: Set if the step is one of a group; see `execute_group`.

        Returns:
            The upload, or the reason why there is none.

        Raises:
            FitPlanned: If the next fit of the step can be trained with those of others.
            Late: If the step took longer.
            StateMissing: If the client's state is absent or damaged.
            CannotSave: If the state or a large reply cannot be written.
            Exception: Whatever the step raises.
        """
        began = time.perf_counter()
        current = request.state[0] if request.state else None
        needed = {name for name in (request.committed, current) if name}
        # A request whose state is absent must not delete the states that are there.
        state = self.read_state(request)
        self.states.keep(request.client, needed)
        client = Client(
            self.bench,
            request.client,
            request.round,
            request.rounds,
            state,
            request.attempt,
            deferral,
        )
        with preserve_global_state(), self.bench.lending(), time_limit(deadline):
            up, measured = self._perform(client, request)
        if client.state.changed:
            for name, value in tensors_of(dict(client.state)):
                if not finite(value):
                    return Reply(
                        request.client,
                        failure=f"its own state {name} holds values that are not finite",
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

    def _perform(self, client: Client, request: Request) -> tuple[Up, list[dict[str, Any]]]:
        """Perform the step; return the upload and measurements."""
        part = partial(self.bench.part, request.client)
        if client_evaluation.handles(request.step):
            return client_evaluation.evaluate(request.step, self.method, client, request.down, part)
        up = _step(self.method, client, request)
        if not request.after or "model" not in up:
            return up, []
        models = {"global": client.load(up.model)}
        return up, client_evaluation.measure(client, models, part=part, **request.after)

    def execute_group(
        self, requests: Sequence[Request], execute: ExecuteStep | None = None
    ) -> list[Reply]:
        """Execute requests, and train the fits of their steps together where that pays.

        Each step is executed until its first fit, and again after each fit that was trained with
        those of others. Its result is the same, since it depends on the request only.

        Args:
            requests: Requests of different clients.
            execute: Executes one request; by default `execute_catching`.

        Returns:
            One reply per request, in their order.
        """
        execute = execute or self.execute_catching
        if len(requests) == 1:
            return [execute(requests[0], None)]
        steps = [_GroupedStep(request) for request in requests]
        unfinished = steps
        while unfinished:
            for step in unfinished:
                step.execute(execute)
            unfinished = [step for step in unfinished if step.fit is not None]
            train_stacks([step.fit for step in unfinished if step.fit is not None])
        return [step.finished_reply() for step in steps]

    def execute_catching(self, request: Request, deferral: Deferral | None = None) -> Reply:
        """Execute a request; an exception becomes a reply with its traceback."""
        try:
            return self.execute(request, deferral=deferral)
        except StateMissing as error:
            return Reply(request.client, failure=str(error))
        except CannotSave as error:
            return Reply(request.client, stop=str(error))
        except Exception:
            return Reply(request.client, error=traceback.format_exc())

    def read_state(self, request: Request) -> dict[str, Any]:
        """Return the state of the client with which a request begins.

        Raises:
            StateMissing: If it is absent or damaged.
        """
        if request.state is None:
            return {}
        name, digest = request.state
        state = self.states.read(name, digest)
        if round_of(name) == request.round:
            return dict(state)
        return _lasting(state)


@dataclass
class _GroupedStep:
    """A step of a group, which is executed again after each fit that a stack has trained.

    Attributes:
        request: The request.
        deferral: What the step need not compute again.
        fit: The planned fit at which the step ended.
        reply: The reply, once the step was executed to its end.
        seconds: The time so far.
    """

    request: Request
    deferral: Deferral = field(default_factory=Deferral)
    fit: PlannedFit | None = None
    reply: Reply | None = None
    seconds: float = 0.0

    def execute(self, execute: ExecuteStep) -> None:
        """Execute the step until its next fit that can be trained with those of others."""
        if self.fit is not None:
            self._take_over(self.fit)
        self.deferral.repeat()
        self.fit = None
        began = time.perf_counter()
        try:
            self.reply = execute(self.request, self.deferral)
        except FitPlanned as planned:
            self.fit = planned.fit
            self.seconds += time.perf_counter() - began

    def _take_over(self, fit: PlannedFit) -> None:
        """Add a trained fit to the results; without one, the step is executed to its end."""
        self.seconds += fit.seconds
        if fit.trained:
            self.deferral.results.append(fit)
        else:
            self.deferral.plans = False

    def finished_reply(self) -> Reply:
        """Return the reply with the time of all executions of the step."""
        assert self.reply is not None
        self.reply.seconds += self.seconds
        return self.reply


def _lasting(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without the entries of one round, whose names begin with an underscore."""
    lasting = {}
    for key, value in state.items():
        if key.startswith("@"):  # the branch of a composed method
            lasting[key] = _lasting(value)
        elif not key.startswith("_"):
            lasting[key] = value
    return lasting


def _step(method: Method, client: Client, request: Request) -> Up:
    """Perform a step of a method, or of a method that is composed with it."""
    down = request.down if isinstance(request.down, Down) else Down(request.down)
    if request.step.startswith("@"):  # such as "@fedrdn.statistics"
        return _guest_step(method, client, request.step, down)
    client.inputs = method.inputs(client, down)
    if request.step == "client":
        return _client_step(method, client, down)
    step = getattr(parts(method)[0], request.step)
    return _checked_up(step(client, down), request.step)


def _guest_step(method: Method, client: Client, step: str, down: Down) -> Up:
    owner, _, name = step.partition(".")
    if client.round:  # before round 1 nothing was delivered from which inputs could follow
        client.inputs = method.inputs(client, down)
    with client.guest_state(owner):
        return _checked_up(getattr(guest_named(method, owner), name)(client, down), name)


def _client_step(method: Method, client: Client, down: Down) -> Up:
    received = down.get("model")
    up = method.before(client, received)
    up = _merged(up, _checked_up(method.client(client, down), "client"))
    if method.uploads_model and not isinstance(up.get("model"), Tree):
        raise TypeError(
            f"{parts(method)[0].title}.client sent {sorted(up) or 'nothing'}, but no `model`; "
            "end it with `return Up(model=model)`, or say in the class that it uploads none: "
            "uploads_model = False"
        )
    return _merged(up, method.after(client, received, up.get("model")))


def _checked_up(value: Any, step: str) -> Up:
    if value is None:
        return Up()
    if not isinstance(value, Up):
        raise TypeError(
            f"{step}: expected an Up, got {type(value).__name__}; "
            "end the step with `return Up(name=value)`"
        )
    return value


def _merged(first: Up, second: Up) -> Up:
    """Return the entries of both, where both may fill the branch of a composed method."""
    if not first or not second:
        return second or first
    entries = {**first, **second}
    for key in first.keys() & second.keys():
        if key.startswith("@"):
            entries[key] = {**first[key], **second[key]}
    return Up(entries)
