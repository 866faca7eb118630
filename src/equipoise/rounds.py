"""The loop: choose, ask, weigh, update, measure, save."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import evaluation
from equipoise.checking import not_finite
from equipoise.cohort import GivenUp, RoundCohort
from equipoise.experiment import Experiment
from equipoise.faults import FaultPlan
from equipoise.method import Method, Ups
from equipoise.metrics import parameter_distances
from equipoise.metrics.registry import measured
from equipoise.records import Down, Record, State, size
from equipoise.runs.checkpoint import load_server, save_server
from equipoise.runs.store import RoundRecord, RunError, Store
from equipoise.server import Server
from equipoise.streams import stream
from equipoise.transports.exchange import DISTANCE, MEASURE, OUTPUTS, ClientError, Reply, Request, Transport, Watcher
from equipoise.workbench import Samples, Workbench

SHARED_CHUNK = 1024  # samples of the shared test set per request: fixed, a multiple of the evaluation batch


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
            _validation=Samples.of(federation, federation.server_validation) if self.method.needs_validation else None,
        )
        self.faults = FaultPlan(self.experiment.faults, self.experiment.training, self.experiment.seed)
        self.metrics = measured(self.bench.task, self.experiment.evaluation.metrics, self.experiment.evaluation.main)
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
            try:
                state = self.method.setup(self.server, state, everyone)
            except GivenUp as reason:
                raise RunError(f"{self.method.title} could not be set up before round 1: {reason}") from None
        self._check_finite(state)
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
            self._check_finite(new)
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
            + (
                f"the first reply that was refused in its last attempt, of client {refused[2]!r}: {refused[3]}"
                if (refused := next((row for row in rejected if row[0] == attempt), None)) is not None
                else "lower participation.floor, raise participation.tries, or ask more clients"
            )
            + f"; then `equipoise resume {self.store.folder}`"
        )

    def _check_finite(self, state: State) -> None:
        broken = not_finite(state)
        if broken is not None:
            raise RunError(
                f"round {self.server.round}: {broken} in the server's state holds values that are not finite, so the run ends here; the training "
                f"has diverged: lower training.lr (now {self.experiment.training.lr:g}) or set training.clip=1, and run anew"
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
        record.files += [("client", client, Path(name).name, cohort.digests[client]) for client, (name, _) in cohort.provisional.items()]
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
        if settings.distances and "model" in state and cohort.uploads is not None:
            record.measurements += self._distances(cohort.uploads, state)
        if last or (settings.every and number % settings.every == 0):
            federation = self.bench.federation
            assert federation is not None
            clients = list(self.server.ids) if settings.clients == "all" else cohort.joined
            downs = {client: self._delivered(state, client) for client in clients}
            rows, served = self._measure_clients(downs, cohort, len(federation.shared_test) > 0)
            record.main = next((name for name, scope in served.items() if scope["main"]), "")
            common = [name for name, scope in served.items() if scope["common"]]
            if len(federation.shared_test):
                rows += self._measure_shared(downs, cohort, common)
            for client, model, split, metric, value in rows:
                record.measurements.append((client, model, "received", split, metric, value))
                if last:
                    record.measurements.append((client, model, "final", split, metric, value))
        record.seconds["evaluation"] = time.perf_counter() - began

    def _distances(self, ups: Ups, state: State) -> list[tuple[str, str, str, str, str, float]]:
        """How far each client's model is from the new global one, in parameters and in mean features of the client's data."""
        rows = []
        asked = [self.request(client, DISTANCE, Record(local=up.model, new=state.model)) for client, up in zip(ups.ids, ups, strict=True)]
        for client, up, reply in zip(ups.ids, ups, self.ask(asked), strict=True):
            found = {"parameters": parameter_distances(up.model.params, state.model.params), "embedding": dict(reply.up or {})}
            rows += [
                (client, "local", "after_local", space, metric, value)
                for space, values in found.items()
                for metric, value in values.items()
            ]
        return rows

    def _state_of(self, cohort: RoundCohort, request: Request) -> Request:
        if request.client in cohort.provisional:
            request.state, request.state_round = cohort.provisional[request.client]
        return request

    def _delivered(self, state: State, client: str) -> Down:
        with self.bench.lending():
            return self.method.deliver(self.server, state, client)

    def _measure_clients(
        self, downs: dict[str, Down], cohort: RoundCohort, shared: bool
    ) -> tuple[list[tuple[str, str, str, str, float]], dict[str, dict[str, bool]]]:
        """Each client's models on its own data and, those that are its own, on the shared test set; and what the clients said they serve."""
        settings = self.experiment.evaluation
        splits, alike = [*settings.splits, *(["shared"] if shared else [])], evaluation.alike(downs.values())
        rows: list[tuple[str, str, str, str, float]] = []
        served: dict[str, dict[str, bool]] = {}
        waiting = list(downs)
        # Without parts of their own to measure, one client tells whether anything is left for the others.
        while waiting and (settings.splits or not served or not all(scope["common"] for scope in served.values())):
            asked, waiting = (waiting, []) if settings.splits or served else (waiting[:1], waiting[1:])
            requests = [
                self._state_of(
                    cohort,
                    self.request(client, MEASURE, Record(down=downs[client], splits=splits, metrics=list(self.metrics), alike=alike)),
                )
                for client in asked
            ]
            for reply in self.ask(requests):
                for name, scope in reply.up["served"].items() if reply.up is not None else ():
                    known = served.setdefault(name, dict(scope))
                    known["common"] = known["common"] and scope["common"]
                rows += [(reply.client, row["model"], row["split"], row["metric"], row["value"]) for row in reply.measured]
        return rows, served

    def _measure_shared(self, downs: dict[str, Down], cohort: RoundCohort, common: list[str]) -> list[tuple[str, str, str, str, float]]:
        """Models that are the same for all, once, on the one test set for all; its slices go to whoever is free."""
        federation = self.bench.federation
        assert federation is not None
        someone, down = next(iter(downs.items()))
        rows = []
        y = Samples.of(federation, federation.shared_test).y
        for name in common:
            requests = [
                self._state_of(
                    cohort, self.request(someone, OUTPUTS, Record(down=down, model=name, start=start, stop=start + SHARED_CHUNK))
                )
                for start in range(0, len(federation.shared_test), SHARED_CHUNK)
            ]
            logits = evaluation.joined([reply.up.logits for reply in self.ask(requests) if reply.up is not None])
            found = evaluation.score(self.bench.task, logits, y, self.metrics)
            rows += [("all", name, "shared", metric, value) for metric, value in found.items()]
        return rows
