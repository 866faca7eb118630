"""The loop: choose, ask, aggregate, measure, commit."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from equipoise.composition import finishes
from equipoise.data.roster import Roster
from equipoise.engine.checking import not_finite
from equipoise.engine.cohort import Clients, GivenUp, RoundCohort
from equipoise.engine.evaluation import Measuring
from equipoise.experiment import Experiment
from equipoise.method import Method
from equipoise.metrics.registry import measured
from equipoise.records import State
from equipoise.server import Server, ServerData
from equipoise.storage.checkpoint import load_server, save_server
from equipoise.storage.store import RoundRecord, RunError, Store
from equipoise.streams import stream
from equipoise.training.workbench import Workbench
from equipoise.transports.base import Kept, Transport, Watcher, state_file, state_of


@dataclass
class Loop:
    """A run in motion."""

    experiment: Experiment
    method: Method
    bench: Workbench
    roster: Roster
    transport: Transport
    store: Store
    data: ServerData = field(default_factory=ServerData)
    watcher: Watcher = field(default_factory=Watcher)

    def __post_init__(self) -> None:
        wanted = self.experiment
        self.metrics = measured(self.roster.task, wanted.evaluation.metrics, wanted.evaluation.main)
        self.server = Server(self.bench, self.roster.ids, self.roster.sizes["train"], wanted.rounds, data=self.data)
        self.finishes = finishes(self.method)
        self.clients = Clients(wanted, self.method, self.server, self.roster, self.transport, self.metrics)

    def run(self) -> None:
        """From the last committed round to the end."""
        first = self.store.last_round() + 1
        state = self._start() if first == 0 else self._restored()
        self.watcher.on_start(min(max(1, first), self.experiment.rounds + 1), self.experiment.rounds)
        for number in range(max(1, first), self.experiment.rounds + 1):
            state = self._round(number, state)
        if self.finishes:
            missed = self.store.missed(self.experiment.rounds)
            self._finish(max(first, self.experiment.rounds + 1), state, self.server.ids if missed is None else missed)
        self.store.sweep()  # a worker that was ended while it wrote leaves half a file

    def _start(self) -> State:
        self.server.round = 0
        everyone = RoundCohort(self.clients, self.server.ids, RoundRecord(0, 0, [], []))
        with self.bench.lending():
            state = self.method.start(self.server)
            try:
                state = self.method.setup(self.server, state, everyone)
            except GivenUp as reason:
                raise RunError(
                    f"{self.method.title} could not be set up before round 1: {reason}; when all are there, `equipoise resume {self.store.folder}`"
                ) from None
        return self._commit(state, everyone)

    def _restored(self) -> State:
        saved = self.store.current("client")
        away = next((file.kept_at for file in saved.values() if file.kept_at != self.transport.keeps), None)
        if away is not None:
            raise RunError(
                f"the states of the clients of {self.store.folder} lie at the {away}, and this transport keeps them at the {self.transport.keeps}; "
                "resume the run over the transport that it was begun with"
            )
        self.clients.committed = {client: Kept(state_of(file.path.name), file.bytes, file.digest) for client, file in saved.items()}
        joined = self.store.rows("select joined from rounds where round between 1 and ? order by round", [self.experiment.rounds])
        self.server.joined = [json.loads(row["joined"]) for row in joined]
        return load_server(self.store)

    def _round(self, number: int, state: State) -> State:
        self.server.round = number
        settings, scripted = self.experiment.participation, self.experiment.participation.script.get(number)
        first = scripted.attempt if scripted is not None else 0
        rejected: list[tuple[int, int, str, str]] = []
        banned: set[str] = set()  # clients that broke a strict exchange: the round is repeated without them
        for attempt in range(first, first + settings.tries):
            self.server.attempt = attempt
            chosen = [client for client in self._choose(number, attempt) if client not in banned]
            cohort = RoundCohort(self.clients, chosen, RoundRecord(number, attempt, chosen, [], rejected=rejected))
            began = time.perf_counter()
            try:
                if not chosen:
                    raise GivenUp("no client was available")
                with self.bench.lending():
                    new = self.method.round(self.server, state, cohort)
                if len(cohort.joined) < settings.floor:
                    raise GivenUp(f"{len(cohort.joined)} replies counted")
            except GivenUp as reason:
                self.store.remove(cohort.discarded | {state_file(kept.name) for kept in cohort.provisional.values()})
                banned |= cohort.banned
                last = str(reason)
                continue
            return self._done(new, cohort, began)
        refused = next((row for row in rejected if row[0] == attempt), None)
        raise RunError(
            f"round {number} was given up {settings.tries} times: {last}, {settings.floor} needed; "
            + ("lower participation.floor, raise participation.tries, or ask more clients" if refused is None else
               f"the first reply that was refused in its last attempt, of client {refused[2]!r}: {refused[3]}")
            + f"; then `equipoise resume {self.store.folder}`"
        )  # fmt: skip

    def _finish(self, number: int, state: State, ids: Sequence[str]) -> None:
        """The exchanges after the last round: a record of its own, so that a kill repeats nothing else."""
        self.server.round, self.server.attempt = number, 0
        cohort = RoundCohort(self.clients, ids, RoundRecord(number, 0, list(ids), [], finish=True))
        began = time.perf_counter()
        try:
            with self.bench.lending():
                new = self.method.finish(self.server, state, cohort)
        except GivenUp as reason:
            raise RunError(
                f"{self.method.title} could not be finished after the last round: {reason}; `equipoise resume {self.store.folder}` asks again"
            ) from None
        self._done(new, cohort, began)

    def _done(self, state: State, cohort: RoundCohort, began: float) -> State:
        """What follows the exchanges of a round: who counted and where the time went, the measurement, the commit."""
        wall, busy = time.perf_counter() - began, cohort.busy / max(1, self.transport.lanes)
        cohort.record.seconds |= {
            "clients": busy, "transport": max(0.0, cohort.waited - busy), "aggregation": max(0.0, wall - cohort.waited),
        }  # fmt: skip
        cohort.record.joined = list(cohort.joined)
        self._check_finite(state)
        self._measure(state, cohort)
        return self._commit(state, cohort)

    def _choose(self, number: int, attempt: int) -> list[str]:
        settings, ids = self.experiment.participation, np.array(self.server.ids, dtype=object)
        if number in settings.script:
            return [client for client in self.server.ids if client in set(settings.script[number].clients)]
        draw = stream(self.experiment.seed, "cohort", number, *((attempt,) if attempt else ()))
        available = ids if settings.availability == 1 else ids[draw.random(len(ids)) < settings.availability]
        wanted = min(settings.size(len(ids)), len(available))
        if wanted == len(ids):
            return [str(client) for client in ids]
        chosen = draw.choice(len(available), size=wanted, replace=False)
        return [str(available[place]) for place in sorted(chosen)]

    def _check_finite(self, state: State) -> None:
        broken = not_finite(state)
        if broken is not None:
            raise RunError(
                f"round {self.server.round}: {broken} in the server's state holds values that are not finite, so the run ends here; the training "
                f"has diverged: lower training.lr (now {self.experiment.training.lr:g}) or set training.clip=1, and run anew"
            )

    def _measure(self, state: State, cohort: RoundCohort) -> None:
        settings, record = self.experiment.evaluation, cohort.record
        last = record.round >= self.experiment.rounds
        began = time.perf_counter()
        measuring = Measuring(
            self.method, self.server, self.metrics, settings.splits, partial(self.clients.measure, cohort=cohort), self.roster.shared,
            self.data.shared,
        )  # fmt: skip
        if settings.distances and "model" in state and cohort.uploads is not None:
            record.measurements += [
                (client, "local", "after_local", space, measure, value)
                for client, space, measure, value in measuring.distances(cohort.uploads, state)
            ]
        if last or (settings.every and record.round % settings.every == 0):
            everyone = record.cohort if record.finish else self.server.ids  # who came late is measured, and nobody else again
            rows, record.main = measuring.clients(state, everyone if settings.clients == "all" else cohort.joined)
            phases = (["final"] if record.finish else ["received"]) + (["final"] if last and not self.finishes else [])
            record.measurements += [
                (client, model, phase, split, metric, value) for client, model, split, metric, value in rows for phase in phases
            ]
        record.seconds["evaluation"] = time.perf_counter() - began

    def _commit(self, state: State, cohort: RoundCohort) -> State:
        began, record = time.perf_counter(), cohort.record
        if not record.round:
            self._check_finite(state)
        self.clients.committed |= cohort.provisional
        states = [(client, state_file(kept.name), kept.bytes, kept.digest) for client, kept in cohort.provisional.items()]
        if self.transport.keeps == "client":
            record.elsewhere += states
        else:
            record.files += [("client", client, file, digest) for client, file, _, digest in states]
        settle = save_server(self.store, state, record)
        record.seconds["store"] = time.perf_counter() - began
        last = record.finish or (record.round == self.experiment.rounds and not self.finishes)
        self.store.commit(record, self.experiment.keep, "finished" if last else "running")
        self.store.remove(cohort.discarded)
        if record.round:
            if not record.finish:
                self.server.joined.append(record.joined)
            self.watcher.on_round(record)
        return settle()
