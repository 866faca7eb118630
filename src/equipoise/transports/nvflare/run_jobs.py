"""Jobs of a run at the server: each carries out an order and keeps the entry of the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.callbacks import Callback, CallbackList, RunStart
from equipoise.storage.store import RunError, Store
from equipoise.storage.tables import RoundRecord
from equipoise.transports.apart import Connection
from equipoise.transports.nvflare.entry import (
    RunEntry,
    clear_request,
    has_live_job,
    job_lock,
    read_entry,
    request_end,
    requested_end,
    set_fields,
    update_entry,
)
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.serving import (
    RUNNING,
    STOPPED,
    Outcome,
    ServerFiles,
    deliver,
    is_finished,
    ordered_experiment,
    serve_run,
)

STOP_DEADLINE = 60.0  # seconds for a job to end after its run was stopped
_POLL = 0.2
_LOOK = 0.5  # seconds between two looks at whether the job was asked to end


@dataclass(frozen=True)
class JobFacts:
    """Facts about a job.

    Attributes:
        job: FLARE's identifier.
        submitter: The person who submitted it.
        is_continuation: True if the supervisor submitted it.
        sites: The sites that are in the job.
    """

    job: str
    submitter: str
    is_continuation: bool
    sites: tuple[str, ...]


class RunJob:
    """The job of a run, at the server.

    Args:
        order: The order that the job carries out.
        facts: Facts about the job.
        runs: The folder of the runs.
        aborted: Returns True once FLARE ends the job.

    Attributes:
        left_out: The sites that take no part any more, with the reason.
    """

    def __init__(
        self, order: RunOrder, facts: JobFacts, runs: Path, aborted: Callable[[], bool]
    ) -> None:
        self.order = order
        self.facts = facts
        self.runs = runs
        self.aborted = aborted
        self.left_out: dict[str, str] = {}
        self._away_lock = threading.Lock()
        self._away: dict[str, float] = {}
        self._wish = _Wish(runs, order.run)

    def carry_out(
        self,
        connections: Mapping[str, Connection],
        callback: Callback,
        target: Path,
        files: ServerFiles | None = None,
        log: Callable[[str], None] = lambda text: None,
    ) -> Outcome:
        """Carry out the order, and deliver the run.

        Args:
            connections: The connections to the sites of the order.
            callback: Receives the progress.
            target: The folder in which the run is delivered.
            files: Data at the server.
            log: Takes tracebacks of defects.

        Returns:
            How the run ended, or why the order was refused.
        """
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        if self.order.action == "stop" or self.order.restarted:
            self._stop_other_job()
        with job_lock(self.runs, self.order.run) as is_only:
            if not is_only:
                return Outcome(RUNNING, "another job of the run is in progress")
            if self.order.action == "run":
                outcome = self._run(connections, callback, files, log)
            else:
                outcome = self._present_outcome()
            deliver(self.runs / self.order.run, target)
            return outcome

    def note(self, site: str, is_away: bool) -> None:
        """Note in the entry of the run that a site left or returned."""
        with self._away_lock:
            if is_away:
                self._away[site] = time.time()
            else:
                self._away.pop(site, None)
            set_fields(self.runs, self.order.run, away=dict(self._away))

    def _refusal(self) -> Outcome | None:
        """Refuse the order of somebody else than the owner of the run."""
        try:
            entry = read_entry(self.runs, self.order.run)
        except ValueError as error:
            return Outcome("refused", f"the server cannot read its entry of the run: {error}")
        if entry is None:
            return None
        if self.facts.is_continuation:
            return None if entry.is_active else Outcome("stopped", entry.reason or STOPPED)
        if self.facts.submitter != entry.owner:
            return Outcome(
                "refused", f"the run belongs to {entry.owner}; only its owner may continue it"
            )
        return None

    def _run(
        self,
        connections: Mapping[str, Connection],
        callback: Callback,
        files: ServerFiles | None,
        log: Callable[[str], None],
    ) -> Outcome:
        try:
            self._restart_sites()
        except RunError as error:
            return Outcome("refused", str(error))
        clear_request(self.runs, self.order.run)
        now = time.time()
        self._away = {site: now for site in self.order.sites if site not in self.facts.sites}
        entry = update_entry(self.runs, self.order.run, self._begun)
        assert entry is not None
        self.left_out = dict(entry.left_out)
        callbacks = CallbackList([callback, self._wish, _Started(self.runs, self.order)])

        def interrupted() -> bool:
            return self.aborted() or self._wish.is_due()

        outcome = serve_run(self.order, self.runs, connections, callbacks, interrupted, files, log)
        update_entry(self.runs, self.order.run, lambda entry: self._ended(entry, outcome))
        clear_request(self.runs, self.order.run)
        return outcome

    def _restart_sites(self) -> None:
        """Let sites begin afresh, and forget that it was ordered."""
        if not self.order.restarted:
            return
        store = Store(self.runs / self.order.run, writing=True)
        try:
            for site in self.order.restarted:
                store.restart(site)
        finally:
            store.close()
        self.order = replace(self.order, restarted=())

    def _begun(self, present: RunEntry | None) -> RunEntry:
        """Return the entry of the run at the beginning of this job."""
        if present is None or not self.facts.is_continuation:
            # The owner may have repaired what made earlier jobs fail.
            present = RunEntry(self.order, self.facts.submitter)
        return replace(
            present,
            job=self.facts.job,
            submitted=time.time(),
            away=dict(self._away),
            ended=0.0,
            outcome="",
        )

    def _ended(self, entry: RunEntry | None, outcome: Outcome) -> RunEntry | None:
        """Return the entry of the run at the end of this job."""
        if entry is None:
            return None
        is_stopped = outcome.status == "stopped"
        reason = entry.reason
        if outcome.status in ("refused", "failed"):
            reason = outcome.text
        return replace(
            entry,
            ended=time.time(),
            outcome="aborted" if is_stopped and self.aborted() else outcome.status,
            is_active=entry.is_active and is_stopped,
            reason=reason,
        )

    def _stop_other_job(self) -> None:
        """End the job in progress, and keep the supervisor from continuing the run."""
        run = self.order.run
        set_fields(self.runs, run, is_active=False, reason="its owner stopped it")
        until = time.monotonic() + STOP_DEADLINE
        while has_live_job(self.runs, run) and time.monotonic() < until:
            # A job that begins at this moment clears the request.
            request_end(self.runs, run, "stop")
            time.sleep(_POLL)
        clear_request(self.runs, run)

    def _present_outcome(self) -> Outcome:
        entry = read_entry(self.runs, self.order.run)
        if entry is None:
            return Outcome("refused", f"the server has no run {self.order.run}")
        if is_finished(self.runs / self.order.run, ordered_experiment(self.order)):
            return Outcome("finished")
        if entry.outcome in ("refused", "failed"):
            return Outcome(entry.outcome, entry.reason)
        if entry.reason:
            return Outcome("stopped", f"the run is not continued: {entry.reason}; resume it")
        return Outcome(RUNNING, "the supervisor of the server continues it")


class _Wish(Callback):
    """A request to end the job: after the next commit, or at once."""

    def __init__(self, runs: Path, run: str) -> None:
        self._runs = runs
        self._run = run
        self._is_set = False
        self._looked = 0.0

    def on_round(self, record: RoundRecord) -> None:
        """End after this commit if that was requested."""
        self._is_set = bool(requested_end(self._runs, self._run))

    def is_due(self) -> bool:
        """Return True if the job shall end now."""
        now = time.monotonic()
        if not self._is_set and now - self._looked > _LOOK:
            self._looked = now
            self._is_set = requested_end(self._runs, self._run) == "stop"
        return self._is_set


class _Started(Callback):
    """Notes that a run has gone back to an earlier round, which further jobs do not repeat."""

    def __init__(self, runs: Path, order: RunOrder) -> None:
        self._runs = runs
        self._order = order

    def on_start(self, start: RunStart) -> None:
        """Store the order without the round to go back to."""
        if self._order.from_round is not None:
            order = replace(self._order, from_round=None)
            set_fields(self._runs, self._order.run, order=order)
