"""The loop: choose, ask, aggregate, measure, commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from equipoise.callbacks import RunStart
from equipoise.composition import finishes
from equipoise.data.roster import Roster
from equipoise.engine.cohort import Clients, RoundAborted, RoundCohort
from equipoise.engine.commit import check_finite, commit, given_up, restored
from equipoise.engine.evaluation import Evaluator
from equipoise.engine.sampling import choose
from equipoise.experiment import Experiment
from equipoise.method import Method
from equipoise.metrics import registry
from equipoise.records import State
from equipoise.server import Server, ServerData
from equipoise.storage.store import RoundRecord, RunError, Store
from equipoise.training.workbench import Workbench
from equipoise.transports.base import Monitor, Transport


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
    monitor: Monitor = field(default_factory=Monitor)

    def __post_init__(self) -> None:
        wanted, roster = self.experiment, self.roster
        self.metrics = registry.check(
            roster.task, wanted.evaluation.metrics, wanted.evaluation.main
        )
        # No test data: what a method is given must not lead to them.
        self.server = Server(
            self.bench,
            roster.ids,
            roster.sizes["train"],
            wanted.rounds,
            data=ServerData(self.data.validation),
        )
        self.finishes = finishes(self.method)
        self.stop = False  # set when a callback asks to stop
        self.clients = Clients(
            wanted, self.method, self.server, roster, self.transport, list(self.metrics)
        )

    def run(self) -> None:
        """From the last committed round to the end."""
        first, rounds = self.store.last_round() + 1, self.experiment.rounds
        state = self._start() if first == 0 else restored(self.store, self.clients)
        start = RunStart(self.store.folder, min(max(1, first), rounds + 1), rounds)
        self.stop = self.monitor.callbacks.on_start(start)
        for number in range(max(1, first), rounds + 1):
            if self.stop:
                break
            state = self._round(number, state)
        if self.finishes:
            missed = self.store.missed(rounds)
            self._finish(
                max(first, rounds + 1), state, self.server.ids if missed is None else missed
            )
        elif self.stop and self.store.last_round() < rounds:
            self._end_early(state)
        self.store.sweep()  # a worker that was ended while it wrote leaves half a file

    def _start(self) -> State:
        self.server.round = 0
        everyone = RoundCohort(self.clients, self.server.ids, RoundRecord(0, 0, [], []))
        with self.bench.lending():
            state = self.method.start(self.server)
            try:
                state = self.method.setup(self.server, state, everyone.restricted_view())
            except RoundAborted as reason:
                raise RunError(
                    f"{self.method.title} could not be set up before round 1: {reason}; when all are there, `equipoise resume {self.store.folder}`"
                ) from None
        return self._commit(state, everyone)

    def _round(self, number: int, state: State) -> State:
        self.server.round = number
        settings, rejected = self.experiment.participation, list[tuple[int, int, str, str]]()
        # clients that broke a strict exchange: the round is repeated without them
        banned: set[str] = set()
        for attempt in settings.attempts(number):
            self.server.attempt = attempt
            self.server.contributions.clear()
            chosen = [client for client in self._choose(number, attempt) if client not in banned]
            cohort = RoundCohort(
                self.clients, chosen, RoundRecord(number, attempt, chosen, [], rejected=rejected)
            )
            try:
                if not chosen:
                    raise RoundAborted("no client was available")
                with self.bench.lending():
                    new = self.method.round(self.server, state, cohort.restricted_view())
                if len(cohort.joined) < settings.floor:
                    raise RoundAborted(f"{len(cohort.joined)} replies counted")
            except RoundAborted as error:
                self.store.remove(cohort.left_over())
                banned, reason = banned | cohort.banned, str(error)
                continue
            return self._done(new, cohort)
        raise given_up(self.store, settings, number, attempt, rejected, reason)

    def _finish(self, number: int, state: State, ids: Sequence[str]) -> None:
        """The exchanges after the last round: a record of its own, so that a kill repeats nothing else."""
        self.server.round, self.server.attempt = number, 0
        cohort = RoundCohort(self.clients, ids, RoundRecord(number, 0, list(ids), [], finish=True))
        try:
            with self.bench.lending():
                new = self.method.finish(self.server, state, cohort.restricted_view())
        except RoundAborted as reason:
            raise RunError(
                f"{self.method.title} could not be finished after the last round: {reason}; `equipoise resume {self.store.folder}` asks again"
            ) from None
        self._done(new, cohort)

    def _end_early(self, state: State) -> None:
        """Evaluate the models of a run that a callback stopped, as a record after the last round."""
        self.server.round, self.server.attempt = self.experiment.rounds + 1, 0
        record = RoundRecord(self.server.round, 0, [], [], finish=True)
        self._done(state, RoundCohort(self.clients, [], record))

    def _choose(self, number: int, attempt: int) -> list[str]:
        return choose(
            self.experiment.participation, self.server.ids, self.experiment.seed, number, attempt
        )

    def _done(self, state: State, cohort: RoundCohort) -> State:
        cohort.close()
        check_finite(state, self.experiment.training, self.server.round)
        ask, evaluation = partial(self.clients.measure, cohort=cohort), self.experiment.evaluation
        measuring = Evaluator(
            self.method,
            self.server,
            self.metrics,
            evaluation,
            ask,
            self.bench.lending,
            self.roster.shared,
            self.data.shared,
        )
        measuring.record(state, cohort, self.finishes)
        self._record_contributions(cohort.record)
        return self._commit(state, cohort)

    def _record_contributions(self, record: RoundRecord) -> None:
        for name, values in self.server.contributions.items():
            for client, value in values.items():
                record.measurements.append(
                    (client, record.main or "", "contribution", "server", name, value)
                )
        self.server.contributions.clear()

    def _commit(self, state: State, cohort: RoundCohort) -> State:
        record = cohort.record
        if not record.round:
            check_finite(state, self.experiment.training, 0)
        else:  # what happened before round 1 belongs to it
            record.seconds |= self.monitor.by_place
            self.monitor.by_place.clear()
        last = record.finish or (record.round == self.experiment.rounds and not self.finishes)
        state = commit(self.store, state, cohort, self.experiment.keep, last)
        if record.round and self.monitor.callbacks.on_round(record):
            self.stop = True
        return state
