"""Health of a party, for monitoring: whether it runs, and what needs attention."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.connection import check_server
from equipoise.transports.nvflare.entry import RUNS, RunEntry, has_live_job, read_entries
from equipoise.transports.nvflare.kits import Kit, kit_warnings, loosened
from equipoise.transports.nvflare.parties import has_supervisor
from equipoise.transports.nvflare.processes import running

FREE = 2**30  # bytes on the disk of a party below which it may fail soon


@dataclass(frozen=True)
class Health:
    """Health of a party.

    Attributes:
        is_running: True if the party runs.
        facts: Sentences about what it does.
        problems: Sentences about what needs attention.
    """

    is_running: bool
    facts: list[str]
    problems: list[str]

    @property
    def code(self) -> int:
        """The exit code: 0 all is well, 1 something needs attention, 2 it does not run."""
        if not self.is_running:
            return 2
        return 1 if self.problems else 0


def health(kit: Kit) -> Health:
    """Return the health of a server or a site on this machine.

    Args:
        kit: The kit of the party.
    """
    process = running(kit)
    facts = []
    problems = [*kit_warnings(kit), *(f"loosened: {line}" for line in loosened(kit))]
    if process is None:
        problems.append(f"the {kit.kind} does not run; `equipoise {kit.kind} start {kit.folder}`")
    else:
        facts.append(f"the {kit.kind} {kit.name} runs as process {process.pid}")
    free = shutil.disk_usage(kit.folder).free
    if free < FREE:
        problems.append(f"{free / 2**20:.0f} MB are free on the disk of {kit.folder}; make room")
    if kit.kind == "site" and process is not None:
        problems += _unreachable_server(kit)
    if kit.kind == "server":
        _add_runs(kit, facts, problems)
    return Health(process is not None, facts, problems)


def _unreachable_server(kit: Kit) -> list[str]:
    try:
        check_server(kit)
    except ConfigurationError as error:
        return [str(error)]
    return []


def _add_runs(kit: Kit, facts: list[str], problems: list[str]) -> None:
    """Add what is known about the runs of a server."""
    if not has_supervisor(kit):
        problems.append(
            "the supervisor has no certificate, so no run is continued by itself; "
            "`equipoise server install` its answer"
        )
    entries, damaged = read_entries(kit.folder / RUNS)
    problems += [f"{line}; move this file away, and resume the run" for line in damaged]
    for entry in entries:
        if entry.is_active:
            facts.append(_active_run(kit, entry))
        elif entry.reason and entry.outcome in ("", "stopped"):
            problems.append(f"run {entry.run} of {entry.owner} is not continued: {entry.reason}")
        for site, reason in entry.left_out.items():
            if entry.is_active:
                problems.append(f"run {entry.run} leaves out {site}: {reason}")


def _active_run(kit: Kit, entry: RunEntry) -> str:
    if has_live_job(kit.folder / RUNS, entry.run):
        away = f"; away: {', '.join(sorted(entry.away))}" if entry.away else ""
        return f"run {entry.run} of {entry.owner} is in progress{away}"
    return f"run {entry.run} of {entry.owner} waits for its next job, after {entry.tries} tries"
