"""Loop over rounds: sample clients, exchange, aggregate, evaluate, commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from equipoise.callbacks import RunStart
from equipoise.composition import finishes
from equipoise.data.message_text import some
from equipoise.data.roster import Roster
from equipoise.engine.cohort import Clients, RoundAborted, RoundCohort
from equipoise.engine.commit import check_finite, commit, restored, round_failed
from equipoise.engine.evaluation import Evaluator
from equipoise.engine.sampling import choose
from equipoise.experiment import Experiment
from equipoise.method import Method
from equipoise.metrics import registry
from equipoise.records import State
from equipoise.runtime.states import NOT_HERE
from equipoise.server import Server, ServerData
from equipoise.storage.store import RoundRecord, RunError, RunStopped, Store
from equipoise.training.workbench import Workbench
from equipoise.transports.base import Monitor, Transport


@dataclass
class Loop:
    """A run in progress.

    Attributes:
        experiment: The experiment.
        method: Its method.
        bench: The networks of the server.
        roster: Names and sizes of the clients.
        transport: The transport to them.
        store: The store of the run.
        data: The data that the server holds.
        monitor: Passes progress on to callbacks.
    """

    experiment: Experiment
    method: Method
    bench: Workbench
    roster: Roster
    transport: Transport
    store: Store
    data: ServerData = field(default_factory=ServerData)
    monitor: Monitor = field(default_factory=Monitor)

    def __post_init__(self) -> None:
        experiment = self.experiment
        roster = self.roster
        evaluation = experiment.evaluation
        self.metrics = registry.check(roster.task, evaluation.metrics, evaluation.main)
        self.server = Server(
            self.bench,
            roster.ids,
            roster.sizes["train"],
            experiment.rounds,
            # Without test data: nothing that a method receives may lead to them.
            data=ServerData(self.data.validation),
        )
        self.finishes = finishes(self.method)
        self.stop = False  # set when a callback asks to stop
        self.clients = Clients(
            experiment, self.method, self.server, roster, self.transport, list(self.metrics)
        )

    def run(self) -> None:
        """Compute all rounds after the last committed one, and the exchanges after the last."""
        first = self.store.last_round() + 1
        rounds = self.experiment.rounds
        state = self._start() if first == 0 else restored(self.store, self.clients)
        was_evaluated = first > rounds + self.finishes
        held_out = self.method.held_out_rounds(rounds)
        start = RunStart(self.store.folder, min(max(1, first), rounds + 1), rounds, held_out)
        self.stop = self.monitor.callbacks.on_start(start)
        for number in range(max(1, first), rounds + 1):
            if self.stop:
                break
            state = self._round(number, state)
        late = self.store.unevaluated() if was_evaluated else []
        if late:
            self._evaluate_late(state, late)
        if self.finishes:
            clients = self.store.missed(rounds)
            if clients is None:
                clients = list(self.server.ids)
            if clients:
                self._finish(max(self.store.last_round(), rounds) + 1, state, clients)
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
                raise RunStopped(
                    f"{self.method.title} could not be set up before round 1: {reason}; "
                    f"when all are there, {self.store.resume_command()}"
                ) from None
        return self._commit(state, everyone)

    def _round(self, number: int, state: State) -> State:
        self.server.round = number
        self.clients.restart(number)
        settings = self.experiment.participation
        rejected: list[tuple[int, int, str, str]] = []
        # Clients that left in an exchange that needs all: the round is repeated without them.
        banned: set[str] = set()
        for attempt in settings.attempts(number):
            self.server.attempt = attempt
            self.server.contributions.clear()
            chosen = [client for client in self._choose(number, attempt) if client not in banned]
            record = RoundRecord(number, attempt, chosen, [], rejected=rejected)
            cohort = RoundCohort(self.clients, chosen, record)
            try:
                if not chosen:
                    raise RoundAborted("no client was available")
                with self.bench.lending():
                    new = self.method.round(self.server, state, cohort.restricted_view())
                if len(cohort.joined) < settings.floor:
                    raise RoundAborted(f"{len(cohort.joined)} replies counted")
            except RoundAborted as error:
                self.store.remove(cohort.left_over())
                banned |= cohort.banned
                reason = str(error)
                continue
            return self._complete(new, cohort)
        raise round_failed(self.store, settings, number, attempt, rejected, reason)

    def _finish(self, number: int, state: State, ids: Sequence[str]) -> None:
        """Hold the exchanges after the last round.

        They have a record of their own, so that after a kill nothing else is repeated.
        """
        self.server.round = number
        self.server.attempt = 0
        self.clients.restart(number)
        cohort = RoundCohort(self.clients, ids, RoundRecord(number, 0, list(ids), [], finish=True))
        try:
            with self.bench.lending():
                new = self.method.finish(self.server, state, cohort.restricted_view())
        except RoundAborted as reason:
            raise RunStopped(
                f"{self.method.title} could not be finished after the last round: {reason}; "
                f"{self.store.resume_command()} asks again"
            ) from None
        self._complete(new, cohort)

    def _end_early(self, state: State) -> None:
        """Evaluate a run that a callback stopped, as a record after the last round."""
        self.server.round = self.experiment.rounds + 1
        self.server.attempt = 0
        record = RoundRecord(self.server.round, 0, [], [], finish=True)
        self._complete(state, RoundCohort(self.clients, [], record))

    def _evaluate_late(self, state: State, clients: Sequence[str]) -> None:
        """Evaluate clients that missed the last evaluation, as a record after the last round.

        For clients it is still the round of that evaluation, so that they serve the same models.
        """
        rounds = self.experiment.rounds
        stopped_early = len(self.server.joined) < rounds
        self.server.round = rounds + 1 if self.finishes or stopped_early else rounds
        self.server.attempt = 0
        record = RoundRecord(self.store.last_round() + 1, 0, [], [], finish=True)
        cohort = RoundCohort(self.clients, [], record)
        self._evaluate(state, cohort, clients)
        if len(record.rejected) == len(clients):
            raise RunStopped(
                f"{some(map(repr, clients))} did not evaluate: {record.rejected[0][3]}; "
                f"{self.store.resume_command()} asks again"
            )
        self._commit(state, cohort)

    def _choose(self, number: int, attempt: int) -> list[str]:
        return choose(
            self.experiment.participation,
            self.server.ids,
            self.experiment.seed,
            number,
            attempt,
            self.transport.present(),
        )

    def _complete(self, state: State, cohort: RoundCohort) -> State:
        """Evaluate and commit a round whose exchanges are done."""
        cohort.close()
        check_finite(state, self.experiment.training, self.server.round)
        self._evaluate(state, cohort)
        self._check_kept_states(cohort.record)
        self._record_contributions(cohort.record)
        return self._commit(state, cohort)

    def _check_kept_states(self, record: RoundRecord) -> None:
        """End the run if a state that this machine keeps was removed in the meantime.

        A site that lost its own state is out of the round; here the folder of the run is damaged.
        """
        is_missing = any(reason.endswith(NOT_HERE) for *_, reason in record.rejected)
        if not is_missing or self.transport.keeps != "server":
            return
        lost = self.store.lost()
        if lost is not None:
            raise RunError(lost)

    def _evaluate(
        self, state: State, cohort: RoundCohort, late: Sequence[str] | None = None
    ) -> None:
        evaluator = Evaluator(
            self.method,
            self.server,
            self.metrics,
            self.experiment.evaluation,
            partial(self.clients.measure, cohort=cohort),
            self.bench.lending,
            self.roster.shared,
            self.data.shared,
            group_columns=self.experiment.data.groups,
        )
        evaluator.record(state, cohort, self.finishes, late)

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
            record.seconds |= self.monitor.by_location
            self.monitor.by_location.clear()
        last = record.finish or (record.round == self.experiment.rounds and not self.finishes)
        state = commit(self.store, state, cohort, self.experiment.keep, last)
        if record.round and self.monitor.callbacks.on_round(record):
            self.stop = True
        return state
