"""Supervisor of the runs at a server: it continues a run whose job has ended or died.

FLARE resumes nothing and takes no site back into a job in progress. A new job with the same run
does both. `decide` says what to do with a run, from facts alone; `Supervisor` collects the facts
and does it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from equipoise.experiment import ConfigurationError
from equipoise.storage.files import DATABASE
from equipoise.storage.store import RunError, Store
from equipoise.transports.nvflare.entry import (
    RunEntry,
    has_live_job,
    read_entries,
    request_end,
    requested_end,
    set_fields,
    update_entry,
)
from equipoise.transports.nvflare.job_states import ABORTED, SUBMITTED, has_ended
from equipoise.transports.nvflare.order import RunOrder

MOST_TRIES = 20  # jobs without a new round after which a run is given up
LONGEST_PAUSE = 60.0  # seconds between two such jobs
START_GRACE = 120.0  # seconds in which FLARE starts the processes of a job, on a busy machine
# Seconds for FLARE to state why it ended a job, which it does after all processes have ended.
STATE_GRACE = 30.0
HEARD = 30.0  # seconds since the last heartbeat in which a site counts as connected
RETURNED = (
    5.0  # seconds after which a site that is heard again does not answer its old job any more
)
SETTLE = 20.0  # seconds in which sites that were in the last job are waited for
DEATHS = 3  # job processes of a site that may die
DEATHS_WITHIN = 600.0  # seconds


@dataclass(frozen=True)
class Facts:
    """Facts about a run that its entry does not have.

    Attributes:
        is_live: True if a job of the run lives, by its lock.
        last_round: The last committed round; -1 before the first.
        state: FLARE's state of the last job; empty if it is not known.
        heard: The time at which each connected site was last heard.
        is_end_requested: True if the live job was asked to end.
        deaths: The sites whose job processes died in the last job.
    """

    is_live: bool = False
    last_round: int = -1
    state: str = ""
    heard: Mapping[str, float] = field(default_factory=dict)
    is_end_requested: bool = False
    deaths: Sequence[str] = ()


@dataclass(frozen=True)
class EndJob:
    """Ask the live job to end after the next commit, since sites have returned."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class NoteEnd:
    """Note that the last job is over."""


@dataclass(frozen=True)
class Submit:
    """Submit a new job with these sites."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class GiveUp:
    """Do not continue the run, for a reason."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Do nothing yet, for a reason."""

    reason: str


Action = EndJob | NoteEnd | Submit | GiveUp | Wait


def decide(entry: RunEntry, facts: Facts, now: float, started: float) -> Action | None:
    """Return what to do with a run.

    Args:
        entry: The entry of the run.
        facts: Further facts.
        now: The time.
        started: The time at which the server was started; jobs of before have died with it.

    Returns:
        The action; None if there is nothing to do.
    """
    if not entry.is_active:
        return None
    if facts.is_live:
        return _with_live_job(entry, facts, now)
    if not entry.ended:
        return _before_the_end_is_noted(entry, facts, now, started)
    return _after_the_end(entry, facts, now, started)


def _with_live_job(entry: RunEntry, facts: Facts, now: float) -> Action | None:
    returned = []
    for site, since in entry.away.items():
        heard = facts.heard.get(site, 0.0)
        if heard > since + RETURNED and is_connected(entry, facts, site, now):
            returned.append(site)
    if not returned or facts.is_end_requested:
        return None
    return EndJob(tuple(sorted(returned)))


def _before_the_end_is_noted(
    entry: RunEntry, facts: Facts, now: float, started: float
) -> Action | None:
    """Return what to do with a job that has no controller: it starts, has ended or has died."""
    if has_ended(facts.state):
        return NoteEnd()
    if not facts.state:
        return Wait("the server does not answer")
    if facts.state == SUBMITTED:
        return Wait("FLARE starts the job when it has a free slot")
    is_recent = entry.submitted > started and now < entry.submitted + START_GRACE
    if is_recent:
        return Wait("the processes of the job start")
    return NoteEnd()


def _after_the_end(entry: RunEntry, facts: Facts, now: float, started: float) -> Action:
    is_aborted = entry.outcome == "aborted"
    if is_aborted and not has_ended(facts.state) and now < entry.ended + STATE_GRACE:
        return Wait("FLARE ends the job")
    if is_aborted and facts.state == ABORTED and not facts.deaths:
        return GiveUp("its owner aborted it; `equipoise resume` continues it")
    if entry.tries >= MOST_TRIES:
        return GiveUp(f"{entry.tries} jobs ended without a new round; see the log of the server")
    pause = pause_after(entry.tries)
    if now < entry.ended + pause:
        return Wait(f"the next job follows {pause:g} s after the last")
    return _with_sites(entry, facts, now, started)


def _with_sites(entry: RunEntry, facts: Facts, now: float, started: float) -> Action:
    """Submit a job once enough sites are there."""
    sites = tuple(site for site in entry.order.sites if is_connected(entry, facts, site, now))
    missing = [site for site in entry.order.sites if site not in sites]
    if facts.last_round < 0 and missing:
        if missing[0] in entry.left_out:
            return GiveUp(f"site {missing[0]!r} is left out ({entry.left_out[missing[0]]})")
        return Wait(f"a run begins with all of its sites, and {missing[0]!r} is not connected")
    floor = floor_of(entry.order)
    if len(sites) < floor:
        return Wait(f"{len(sites)} of at least {floor} sites are connected")
    expected = [site for site in missing if site not in entry.away and site not in entry.left_out]
    if expected and now < max(entry.ended, started) + SETTLE:
        return Wait(f"site {expected[0]!r} may be back in some seconds")
    return Submit(sites)


def is_connected(entry: RunEntry, facts: Facts, site: str, now: float) -> bool:
    """Return True if a site can be in the next job of a run."""
    return site not in entry.left_out and now - facts.heard.get(site, 0.0) < HEARD


def pause_after(tries: int) -> float:
    """Return the seconds between the end of a job and the next one.

    Args:
        tries: The number of jobs since the last new round.

    Example:
        >>> [pause_after(tries) for tries in range(9)]
        [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    """
    return float(min(LONGEST_PAUSE, 2 ** max(0, tries - 1)))


def floor_of(order: RunOrder) -> int:
    """Return the number of sites without which no round counts."""
    participation = order.experiment.get("participation")
    floor = participation.get("floor") if isinstance(participation, Mapping) else None
    return floor if isinstance(floor, int) else 1


def noted_end(entry: RunEntry, facts: Facts, now: float) -> RunEntry:
    """Return the entry of a run after the end of its job; the same if it was noted before.

    Args:
        entry: The entry.
        facts: Further facts.
        now: The time.
    """
    tries = 0 if facts.last_round > entry.round else entry.tries
    deaths = dict(entry.deaths)
    left_out = dict(entry.left_out)
    for site in facts.deaths:
        times = {entry.job: now} | dict(deaths.get(site, {}))
        deaths[site] = {job: at for job, at in times.items() if now - at < DEATHS_WITHIN}
        if len(deaths[site]) >= DEATHS:
            left_out[site] = (
                f"its job process died {DEATHS} times within {DEATHS_WITHIN / 60:.0f} minutes; "
                "see its log, then `equipoise resume`"
            )
    return replace(entry, ended=entry.ended or now, tries=tries, deaths=deaths, left_out=left_out)


def reported_deaths(log: str, job: str) -> list[str]:
    """Return the sites whose job processes died, by the log of FLARE's server.

    Args:
        log: The text of the log.
        job: The identifier of the job.

    Example:
        >>> reported_deaths("x - Failing job 1-2 due to reported failure from va: aborted", "1-2")
        ['va']
    """
    pattern = rf"Failing job {re.escape(job)} due to reported failure from ([A-Za-z0-9_-]+)"
    return sorted(set(re.findall(pattern, log)))


class Office(Protocol):
    """The part of a server that a supervisor uses; see `jobs.Desk`."""

    def submit(self, order: RunOrder, sites: Sequence[str] = ()) -> str:
        """Submit the job of an order with these sites; return its identifier."""
        ...

    def status(self, job: str) -> str:
        """Return FLARE's state of a job, or `MISSING`."""
        ...

    def abort(self, job: str) -> None:
        """End a job, if it is in progress."""
        ...

    def heard(self) -> Mapping[str, float]:
        """Return the time at which each connected site was last heard."""
        ...


def last_round(folder: Path) -> int:
    """Return the last committed round of a run; -1 before the first, or if it cannot be read."""
    if not (folder / DATABASE).exists():
        return -1
    try:
        with closing(Store(folder)) as store:
            return int(store.last_round())
    except RunError:
        return -1


@dataclass
class Supervisor:
    """Continues the runs of a server.

    Attributes:
        runs: The folder of the runs.
        log: The log of FLARE's server.
        report: Takes a sentence about each thing that was done.
        clock: Returns the time.
        started: The time at which the server was started.
        last_round: Returns the last committed round of the run in a folder.
    """

    runs: Path
    log: Path
    report: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.time
    started: float = 0.0
    last_round: Callable[[Path], int] = last_round

    def __post_init__(self) -> None:
        self.started = self.started or self.clock()
        self._reported: dict[str, str] = {}

    def step(self, office: Office) -> None:
        """Do what is due for each run.

        Args:
            office: The connection to the server.
        """
        entries, problems = read_entries(self.runs)
        for problem in problems:
            self._report_once(problem, problem)
        active = [entry for entry in entries if entry.is_active]
        if not active:
            return
        heard = office.heard()
        for entry in active:
            self._attend(entry, office, heard)

    def _attend(self, entry: RunEntry, office: Office, heard: Mapping[str, float]) -> None:
        facts = self.facts(entry, office, heard)
        now = self.clock()
        if entry.ended and not facts.is_live:
            entry = noted_end(entry, facts, now)
        action = decide(entry, facts, now, self.started)
        if isinstance(action, EndJob):
            request_end(self.runs, entry.run, "end")
            self._say(entry, f"ends its job after this round for {', '.join(action.sites)}")
        elif isinstance(action, NoteEnd):
            self._note_end(entry, office, facts)
        elif isinstance(action, GiveUp):
            set_fields(self.runs, entry.run, is_active=False, reason=action.reason)
            self._say(entry, f"is not continued: {action.reason}")
        elif isinstance(action, Submit):
            self._submit(entry, office, action.sites, facts)
        elif isinstance(action, Wait):
            self._report_once(entry.run, f"run {entry.run} waits: {action.reason}")

    def facts(self, entry: RunEntry, office: Office, heard: Mapping[str, float]) -> Facts:
        """Return the facts about a run.

        Args:
            entry: The entry of the run.
            office: The connection to the server.
            heard: The time at which each connected site was last heard.
        """
        if has_live_job(self.runs, entry.run):
            is_end_requested = bool(requested_end(self.runs, entry.run))
            return Facts(is_live=True, heard=heard, is_end_requested=is_end_requested)
        return Facts(
            last_round=self.last_round(self.runs / entry.run),
            state=office.status(entry.job),
            heard=heard,
            deaths=reported_deaths(self._log_text(), entry.job),
        )

    def _log_text(self) -> str:
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def _note_end(self, entry: RunEntry, office: Office, facts: Facts) -> None:
        now = self.clock()
        if not has_ended(facts.state):
            # FLARE lists a dead job as running without end, and may refuse to end it.
            with suppress(ConfigurationError):
                office.abort(entry.job)

        def change(present: RunEntry | None) -> RunEntry | None:
            if present is None or present.job != entry.job or present.ended:
                return None
            return noted_end(present, facts, now)

        update_entry(self.runs, entry.run, change)
        self._say(entry, f"lost its job {entry.job} ({facts.state or 'dead'})")

    def _submit(self, entry: RunEntry, office: Office, sites: Sequence[str], facts: Facts) -> None:
        job = office.submit(entry.order, sites)
        set_fields(
            self.runs,
            entry.run,
            job=job,
            submitted=self.clock(),
            ended=0.0,
            outcome="",
            away={},
            tries=entry.tries + 1,
            round=facts.last_round,
            deaths=entry.deaths,
            left_out=entry.left_out,
        )
        self._say(entry, f"continues as job {job} with {', '.join(sites)}")

    def _say(self, entry: RunEntry, text: str) -> None:
        self._reported.pop(entry.run, None)
        self.report(f"run {entry.run} {text}")

    def _report_once(self, key: str, text: str) -> None:
        if self._reported.get(key) != text:
            self._reported[key] = text
            self.report(text)
