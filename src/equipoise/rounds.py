"""The loop: choose, ask, weigh, update, measure, save."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from equipoise import evaluation
from equipoise.checking import corrupted, refusal
from equipoise.client import Client
from equipoise.composition import label
from equipoise.experiment import Experiment
from equipoise.method import Cohort, Method, Ups, Weights
from equipoise.records import Down, Record, State, Up, size
from equipoise.runs.checkpoint import load_server, save_server
from equipoise.runs.store import RoundRecord, RunError, Store
from equipoise.server import Server
from equipoise.streams import stream
from equipoise.transports.exchange import MEASURE, OUTPUTS, ClientError, Reply, Request, Transport, Watcher
from equipoise.workbench import Samples, Workbench

log = logging.getLogger("equipoise")

SHARED_CHUNK = 1024  # samples of the shared test set per request: fixed, a multiple of the evaluation batch


class GivenUp(Exception):
    """This attempt at a round has too few replies."""


@dataclass
class Loop:
    """A run in motion."""

    experiment: Experiment
    method: Method
    bench: Workbench
    transport: Transport
    store: Store
    watcher: Watcher = field(default_factory=Watcher)

    def __post_init__(self) -> None:
        federation = self.bench.federation
        assert federation is not None
        self.server = Server(
            bench=self.bench,
            ids=federation.ids,
            sizes=dict(zip(federation.ids, (int(n) for n in federation.train.sizes), strict=True)),
            rounds=self.experiment.rounds,
            validation=Samples.of(federation, federation.server_validation) if self.method.needs_validation else None,
        )
        self.metrics = self.experiment.evaluation.metrics or evaluation.default_metrics(self.bench.task)
        self.states: dict[str, tuple[str, int]] = {}  # client -> file of its committed state, round that wrote it

    def run(self) -> None:
        """From the last committed round to the end."""
        first = self.store.last_round() + 1
        if first == 0:
            state = self._start()
        else:
            state = load_server(self.store)
            self.states = {key: (str(path), number) for key, (path, number) in self.store.current("client").items()}
            joined = self.store.rows("select joined from rounds where round > 0 order by round")
            self.server.joined = [json.loads(row["joined"]) for row in joined]
        self.watcher.on_start(max(1, first), self.experiment.rounds)
        for number in range(max(1, first), self.experiment.rounds + 1):
            state = self._round(number, state)

    def _start(self) -> State:
        self.server.round = 0
        record = RoundRecord(0, 0, [], [])
        with self.bench.lending():
            state = self.method.start(self.server)
            everyone = RoundCohort(self, list(self.server.ids), 0, record)
            state = self.method.setup(self.server, state, everyone)
        return self._commit(state, everyone, record)

    def _round(self, number: int, state: State) -> State:
        self.server.round = number
        rejected: list[tuple[int, int, str, str]] = []
        banned: set[str] = set()  # clients that broke a strict exchange: the round is repeated without them
        for attempt in range(self.experiment.participation.tries):
            self.server.attempt = attempt
            record = RoundRecord(number, attempt, [], [], rejected=rejected)
            began = time.perf_counter()
            cohort = RoundCohort(self, [client for client in self._choose(number, attempt) if client not in banned], attempt, record)
            record.cohort = list(cohort.ids)
            try:
                if not cohort.ids:
                    raise GivenUp("no client was available")
                with self.bench.lending():
                    new = self.method.round(self.server, state, cohort)
                if len(cohort.joined) < self.experiment.participation.floor:
                    raise GivenUp(f"{len(cohort.joined)} replies counted")
            except GivenUp as reason:
                self.store.remove(cohort.discarded | {Path(name).name for name, _ in cohort.provisional.values()})
                banned |= cohort.banned
                last = str(reason)
                continue
            record.joined = list(cohort.joined)
            wall = time.perf_counter() - began
            busy = cohort.busy / max(1, self.lanes)
            record.seconds |= {
                "clients": busy,
                "transport": max(0.0, cohort.waited - busy),
                "aggregation": max(0.0, wall - cohort.waited),
            }
            self._measure(new, cohort, record)
            return self._commit(new, cohort, record)
        floor = self.experiment.participation.floor
        raise RunError(
            f"round {number} was given up {self.experiment.participation.tries} times: {last}, {floor} needed; "
            f"lower participation.floor, raise participation.tries, or ask more clients, then `equipoise resume {self.store.folder}`"
        )

    @property
    def lanes(self) -> int:
        """How many clients work at a time."""
        return getattr(self.transport, "lanes", 1)

    def _choose(self, number: int, attempt: int) -> list[str]:
        settings, ids = self.experiment.participation, np.array(self.server.ids, dtype=object)
        draw = stream(self.experiment.seed, "cohort", number, *((attempt,) if attempt else ()))
        available = ids if settings.availability == 1 else ids[draw.random(len(ids)) < settings.availability]
        wanted = min(settings.size(len(ids)), len(available))
        if wanted == len(ids):
            return [str(client) for client in ids]
        chosen = draw.choice(len(available), size=wanted, replace=False)
        return [str(available[place]) for place in sorted(chosen)]

    def _commit(self, state: State, cohort: RoundCohort, record: RoundRecord) -> State:
        began = time.perf_counter()
        number = record.round
        self.states |= {client: (name, number) for client, (name, _) in cohort.provisional.items()}
        record.files += [("client", client, Path(name).name) for client, (name, _) in cohort.provisional.items()]
        settle = save_server(self.store, state, record)
        last = number == self.experiment.rounds
        record.seconds["store"] = time.perf_counter() - began
        self.store.commit(record, self.experiment.keep, "finished" if last else "running")
        self.store.remove(cohort.discarded)
        if number:
            self.server.joined.append(record.joined)
            self.watcher.on_round(record)
        return settle()

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """One exchange; a step that raised ends the run with its traceback."""
        replies = self.transport.exchange(requests, self.experiment.participation.deadline)
        for request, reply in zip(requests, replies, strict=True):
            if reply.stop is not None:
                raise RunError(reply.stop)
            if reply.error is not None:
                raise ClientError(f"client {request.client!r}, round {request.round}, step {request.step!r} raised:\n{reply.error}")
        return replies

    def spools(self, down: Record, cohort: int) -> bool:
        """Whether the replies of a cohort go through files: judged by what was sent, so that it never depends on load."""
        return size(down) * cohort > self.experiment.memory * 2**20

    def request(self, client: str, step: str, down: Record, **more: Any) -> Request:
        name, number = self.states.get(client, (None, 0))
        return Request(
            client, step, down, self.server.round, self.experiment.rounds, self.server.attempt, state=name, state_round=number, **more
        )

    def _measure(self, state: State, cohort: RoundCohort, record: RoundRecord) -> None:
        settings, number = self.experiment.evaluation, record.round
        last = number == self.experiment.rounds
        began = time.perf_counter()
        if settings.distances and "model" in state and "model" in (cohort.last[0] if cohort.last is not None and len(cohort.last) else ()):
            record.measurements += _distances(cohort.last, state)
        if last or (settings.every and number % settings.every == 0):
            federation = self.bench.federation
            assert federation is not None
            clients = list(self.server.ids) if settings.clients == "all" else cohort.joined
            downs = {client: self.method.deliver(self.server, state, client) for client in clients}
            rows = self._measure_clients(downs, cohort, list(settings.splits), shared=True) if settings.splits else []
            if len(federation.shared_test):
                rows += self._measure_shared(downs, cohort)
            for client, model, split, metric, value in rows:
                record.measurements.append((client, model, "received", split, metric, value))
                if last:
                    record.measurements.append((client, model, "final", split, metric, value))
        record.seconds["evaluation"] = time.perf_counter() - began

    def _state_of(self, cohort: RoundCohort, request: Request) -> Request:
        if request.client in cohort.provisional:
            request.state, request.state_round = cohort.provisional[request.client]
        return request

    def _measure_clients(
        self, downs: dict[str, Down], cohort: RoundCohort, splits: list[str], shared: bool
    ) -> list[tuple[str, str, str, str, float]]:
        """Each client's models on some of its data; without `shared`, only those that are the client's own."""
        requests = [
            self._state_of(
                cohort, self.request(client, MEASURE, Record(down=down, splits=splits, metrics=list(self.metrics), shared=shared))
            )
            for client, down in downs.items()
        ]
        return [
            (reply.client, row["model"], row["split"], row["metric"], row["value"])
            for reply in self.ask(requests)
            for row in reply.measured
        ]

    def _measure_shared(self, downs: dict[str, Down], cohort: RoundCohort) -> list[tuple[str, str, str, str, float]]:
        """The one test set for all: personal models client by client; models that all share once, its slices going to whoever is free."""
        federation = self.bench.federation
        assert federation is not None
        someone, down = next(iter(downs.items()))
        with self.bench.lending():
            names = list(evaluation.served(self.method, Client(self.bench, someone, self.server.round, self.server.rounds, {}), down))
        rows = []
        if any(name not in evaluation.SHARED for name in names):
            rows += self._measure_clients(downs, cohort, ["shared"], shared=False)
        y = Samples.of(federation, federation.shared_test).y
        for name in (name for name in names if name in evaluation.SHARED):
            requests = [
                self._state_of(cohort, self.request(someone, OUTPUTS, Record(down=down, model=name, start=start, stop=start + SHARED_CHUNK)))
                for start in range(0, len(federation.shared_test), SHARED_CHUNK)
            ]
            logits = evaluation.joined([reply.up.logits for reply in self.ask(requests) if reply.up is not None])
            found = evaluation.score(self.bench.task, logits, y, self.metrics)
            rows += [("all", name, "shared", metric, value) for metric, value in found.items()]
        return rows


class RoundCohort(Cohort):
    """The clients of one attempt at one round."""

    def __init__(self, loop: Loop, ids: list[str], attempt: int, record: RoundRecord) -> None:
        self.loop, self.ids, self.attempt, self.record = loop, ids, attempt, record
        self.everyone = list(ids)  # places of the whole cohort: a client that left keeps its empty place
        self.joined = list(ids)
        self.exchanges = 0
        self.provisional: dict[str, tuple[str, int]] = {}  # client -> file of its state after its last accepted exchange
        self.discarded: set[str] = set()  # names of files that no one will read again
        self.banned: set[str] = set()
        self.busy = self.waited = 0.0
        self.last: Ups | None = None

    def run(
        self, step: Callable[..., Up | None], down: Down | None = None, *, each: Callable[[str], Down] | None = None, strict: bool = False
    ) -> Ups:
        loop, began = self.loop, time.perf_counter()
        self.exchanges += 1
        name = _name(loop.method, step)
        asked = list(self.joined)
        downs = {client: each(client) if each is not None else down or Down() for client in asked}
        requests = [self._request(client, name, downs[client]) for client in asked]
        dropped = self._faults(requests, name)
        replies = iter(loop.ask([request for request in requests if request.client not in dropped]))
        accepted: dict[str, Up] = {}
        majority = None
        received = [
            Reply(request.client, failure=dropped[request.client]) if request.client in dropped else next(replies) for request in requests
        ]
        received = [self._corrupted(reply) for reply in received]
        keys = [frozenset(reply.up) for reply in received if reply.up is not None]
        majority = max(keys, key=keys.count) if keys else frozenset()
        for reply in received:
            reason = reply.failure or refusal(reply.up, majority, loop, name)
            if reason is None and reply.up is not None:
                accepted[reply.client] = reply.up
                self._accept(reply)
            else:
                self._refuse(reply, reason or "no reply")
        self.record.bytes_down += sum(size(downs[client]) for client in asked)
        self.waited += time.perf_counter() - began
        if strict and len(accepted) < len(asked):
            self.banned |= set(asked) - set(accepted)
            raise GivenUp(f"client {sorted(self.banned)[0]!r} left in a step that needs all")
        if not accepted or (loop.server.round and len(accepted) < loop.experiment.participation.floor):
            raise GivenUp(f"{len(accepted)} replies counted")
        self.last = Ups([(client, accepted.get(client)) for client in self.everyone])
        return self.last

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        total = float(np.sum(weights.shares))
        self.record.weights = {client: float(share) / total for client, share in zip(ids, weights.shares, strict=True)} if total else {}

    def _request(self, client: str, step: str, down: Down) -> Request:
        loop = self.loop
        place = loop.bench.position[client]
        stem = f"{place:06d}-r{loop.server.round}a{self.attempt}x{self.exchanges}"
        request = loop.request(client, step, down, exchange=self.exchanges, keep=str(loop.store.files / f"client-{stem}.safetensors"))
        if loop.spools(down, len(self.joined)):
            request.spool = str(loop.store.files / f"reply-{stem}.safetensors")
            self.discarded.add(Path(request.spool).name)
        if loop.experiment.evaluation.after_local and step == "client":
            assert loop.bench.federation is not None
            shared = len(loop.bench.federation.shared_test) > 0
            request.after = {"splits": ["shared"] if shared else list(loop.experiment.evaluation.splits), "metrics": list(loop.metrics)}
        return loop._state_of(self, request)

    def _accept(self, reply: Reply) -> None:
        self.busy += reply.seconds
        self.record.bytes_up += reply.bytes
        self.record.steps += reply.steps
        self.record.skipped += reply.skipped
        if reply.state is not None:
            if reply.client in self.provisional:
                self.discarded.add(Path(self.provisional[reply.client][0]).name)
            self.provisional[reply.client] = (reply.state, self.loop.server.round)
        for row in reply.measured:
            self.record.measurements.append((reply.client, "local", "after_local", row["split"], row["metric"], row["value"]))

    def _refuse(self, reply: Reply, reason: str) -> None:
        self.joined.remove(reply.client)
        self.record.rejected.append((self.attempt, self.exchanges, reply.client, reason))
        log.warning("round %d: the reply of client %r does not count: %s", self.loop.server.round, reply.client, reason)
        if reply.state is not None:
            self.discarded.add(Path(reply.state).name)

    def _scripted(self, client: str) -> set[str]:
        faults = self.loop.experiment.faults.script
        return (
            {fault.kind for fault in faults if fault.round == self.loop.server.round and fault.client == client}
            if not self.attempt
            else set()
        )

    def _draw(self, client: str, what: str) -> np.random.Generator:
        return stream(self.loop.experiment.seed, "faults", what, self.loop.server.round, self.attempt, client)

    def _faults(self, requests: Sequence[Request], step: str) -> dict[str, str]:
        """Clients that a simulated fault keeps from answering, with the reason; slow ones are timed on a virtual clock."""
        faults = self.loop.experiment.faults
        if not faults.any or self.loop.server.round == 0 or self.exchanges > 1:
            return {}
        found, slowest = {}, 0.0
        for request in requests:
            client = request.client
            request.die = "kill" in self._scripted(client)
            if "drop" in self._scripted(client) or self._draw(client, "dropout").random() < faults.dropout:
                found[client] = "dropped out"
                continue
            seconds = self._virtual_seconds(client)
            if faults.deadline is not None and seconds > faults.deadline:
                found[client] = f"missed the deadline: {seconds:.3g} of {faults.deadline:.3g} virtual seconds"
                seconds = faults.deadline
            slowest = max(slowest, seconds)
        self.record.virtual_seconds = slowest
        return found

    def _virtual_seconds(self, client: str) -> float:
        faults, training = self.loop.experiment.faults, self.loop.experiment.training
        slow = stream(self.loop.experiment.seed, "faults", "speed", client).random() < faults.stragglers
        samples = training.steps * training.batch if training.steps else training.epochs * self.loop.server.sizes[client]
        return samples / 1000 * (faults.slowdown if slow else 1.0) * float(np.exp(0.1 * self._draw(client, "noise").standard_normal()))

    def _corrupted(self, reply: Reply) -> Reply:
        faults = self.loop.experiment.faults
        if reply.up is None or not faults.any or self.loop.server.round == 0 or self.exchanges > 1:
            return reply
        kinds = self._scripted(reply.client) & {"nan", "shape", "names"}
        if faults.corrupt and self._draw(reply.client, "corrupt").random() < faults.corrupt:
            kinds.add(faults.corruption)
        for kind in kinds:
            reply.up = corrupted(reply.up, kind)
        return reply


def _name(method: Method, step: Callable[..., Any]) -> str:
    """The name under which a step travels: it must be a method of the class, never a lambda."""
    owner, name = getattr(step, "__self__", None), getattr(step, "__name__", "")
    if owner is method:
        return name
    if any(owner is guest for guest in getattr(method, "guests", {}).values()):
        return f"{label(cast(Method, owner))}.{name}"
    raise TypeError(f"cohort.run: expected a method of {type(method).__name__} such as self.client, got {step!r}; steps travel by name")


def _distances(ups: Ups | None, state: State) -> list[tuple[str, str, str, str, str, float]]:
    from equipoise.metrics import parameter_distances

    rows = []
    for client, up in zip(ups.ids, ups, strict=True) if ups is not None else ():
        for metric, value in parameter_distances(up.model.params, state.model.params).items():
            rows.append((client, "local", "after_local", "parameters", metric, value))
    return rows
