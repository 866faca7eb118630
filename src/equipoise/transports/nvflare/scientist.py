"""A run at a scientist's machine: submitted to a network, followed, and fetched at its end."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.experiment import ConfigurationError, Experiment
from equipoise.session import Session, configuration
from equipoise.storage.files import CONFIGURATION, DATABASE
from equipoise.storage.lock import acquire
from equipoise.storage.store import RunError, folder_in_use
from equipoise.transports.apart import Apart
from equipoise.transports.nvflare.job_states import COMPLETED, has_ended
from equipoise.transports.nvflare.jobs import Desk, JobStatus
from equipoise.transports.nvflare.order import Action, RunOrder
from equipoise.transports.nvflare.progress import unpacked_database
from equipoise.transports.nvflare.serving import RUNNING, Outcome, ordered_experiment

FILE = "network.json"  # the run at the server that a folder stands for
# Seconds without a new job after which the scientist requests the reason why the server does not
# continue a run. The supervisor pauses for a minute at most.
PATIENCE = 90.0
FOLLOWED = 10.0  # seconds in which a job follows one that ended in order to let a site in
_POLL = 1.0  # seconds between two looks at a run
WAITING = {"status": "waiting"}  # progress of a run between two jobs


@dataclass(frozen=True)
class NetworkRun:
    """A run at the server of a network, with the scientist's folder of it.

    Attributes:
        folder: The scientist's folder of the run.
        order: The order that began it.
        job: FLARE's identifier of the job that carries it out.
    """

    folder: Path
    order: RunOrder
    job: str

    def save(self) -> None:
        """Write the file that `read` reads."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"job": self.job, "order": self.order.text()})
        _write(self.folder / FILE, content.encode())

    @classmethod
    def read(cls, folder: Path) -> NetworkRun:
        """Return the run that a folder stands for.

        Raises:
            RunError: If the folder is not that of a run over a network.
        """
        try:
            values = json.loads((folder / FILE).read_bytes())
            return cls(folder, RunOrder.of(values["order"]), str(values["job"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise RunError(
                f"{folder} is not a run over a network: it has no readable {FILE}; give the "
                "folder that `equipoise run --network` named"
            ) from None


def submit(
    desk: Desk, experiment: Experiment, folder: Path, sites: Sequence[str] = ()
) -> NetworkRun:
    """Begin a run at sites of a network.

    Args:
        desk: The connection to the server.
        experiment: The experiment, with a schema.
        folder: The scientist's folder of the run, which must not hold one.
        sites: The sites that take part; all that are connected by default.

    Raises:
        ConfigurationError: If the experiment cannot be run over a network, or a site is not
            connected.
    """
    if (folder / DATABASE).exists():
        raise folder_in_use(folder)
    if (folder / FILE).exists():
        raise RunError(
            f"{folder} holds a run already; continue it with `equipoise resume {folder} "
            "--network KIT`, or choose another --out"
        )
    # Everything that needs no site is checked before anything is sent.
    order = RunOrder(uuid.uuid4().hex, experiment.to_spec(), ("?",))
    _check(order)
    order = replace(order, sites=_chosen(sites, desk.connected_sites()))
    run = NetworkRun(folder, order, desk.submit(order))
    run.save()
    return run


def resubmit(desk: Desk, folder: Path, from_round: int | None = None) -> NetworkRun:
    """Continue a run, or follow it if it is still in progress.

    Args:
        desk: The connection to the server.
        folder: The scientist's folder of the run.
        from_round: Go back to the checkpoint of this round.
    """
    run = NetworkRun.read(folder)
    last = desk.last_job(run.order.run)
    if from_round is None and last is not None and not has_ended(last.state):
        return run
    order = replace(run.order, from_round=from_round)
    run = NetworkRun(folder, run.order, desk.submit(order))
    run.save()
    return run


def restart_client(desk: Desk, folder: Path, site: str) -> NetworkRun:
    """Continue a run in which a site begins afresh, since it has lost its state.

    Args:
        desk: The connection to the server.
        folder: The scientist's folder of the run.
        site: The name of the site.

    Raises:
        RunError: If the run has no such site.
    """
    run = NetworkRun.read(folder)
    if site not in run.order.sites:
        raise RunError(
            f"{folder} has no site {site!r}; its sites are {', '.join(map(repr, run.order.sites))}"
        )
    job = desk.submit(replace(run.order, restarted=(site,)))
    run = NetworkRun(folder, run.order, job)
    run.save()
    return run


def _check(order: RunOrder) -> None:
    """Refuse an experiment that a server without data could not run."""
    experiment = ordered_experiment(order)
    method = experiment.build_method()
    if "validation" not in method.needs:  # such data may be at the server
        Session(experiment, Apart({}))


def _chosen(sites: Sequence[str], connected: Sequence[str]) -> tuple[str, ...]:
    """Return the sites that take part, in the order of their names, as files of a folder have."""
    missing = sorted(set(sites) - set(connected))
    if missing or not connected:
        present = ", ".join(connected) or "none"
        named = f"site {missing[0]!r}" if missing else "at least one site"
        raise ConfigurationError(
            f"expected {named} to be connected to the server; connected: {present}. Ask the site "
            "to run `equipoise site start`, and check its name with `equipoise network status`"
        )
    return tuple(sorted(set(sites or connected)))


class Mirror:
    """The tables of a run in progress, in the scientist's folder, for `watch` and `show`.

    Args:
        run: The run.

    Raises:
        RunError: If another process follows the run.
    """

    def __init__(self, run: NetworkRun) -> None:
        self._folder = run.folder
        self._lock = acquire(run.folder)
        if not (run.folder / CONFIGURATION).exists():
            experiment = ordered_experiment(run.order)
            text = configuration(experiment)
            _write(run.folder / CONFIGURATION, text.encode())

    def update(self, progress: Mapping[str, Any]) -> None:
        """Write the tables that came with some progress, if any did."""
        text = progress.get("database")
        if not isinstance(text, str):
            return
        try:
            content = unpacked_database(text)
        except ValueError:  # the whole run arrives at the end
            return
        _write(self._folder / DATABASE, content)

    def close(self) -> None:
        """Release the folder."""
        self._lock.release()


def watch_until_end(
    desk: Desk,
    run: NetworkRun,
    show: Callable[[Mapping[str, Any]], None],
    patience: float = PATIENCE,
) -> Outcome:
    """Follow a run to its end and fetch it.

    The supervisor of the server submits new jobs for a run, whose results are its own. At the end
    the scientist submits an order to deliver the run.

    Args:
        desk: The connection to the server.
        run: The run.
        show: Takes the progress once a second.
        patience: Seconds without a job after which the reason is requested from the server.

    Returns:
        How the run ended at the server.
    """
    while True:
        mirror = Mirror(run)

        def update(progress: Mapping[str, Any], mirror: Mirror = mirror) -> None:
            mirror.update(progress)
            show(progress)

        try:
            _follow(desk, run, update, patience)
        finally:
            mirror.close()
        outcome = deliver(desk, run)
        if outcome.status != RUNNING:
            return outcome


def _follow(
    desk: Desk, run: NetworkRun, show: Callable[[Mapping[str, Any]], None], patience: float
) -> None:
    """Show the progress of a run once a second until it has no job any more."""
    ended = ""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        last = desk.last_job(run.order.run)
        if last is not None and last.job != ended:
            until = time.monotonic() + patience
            progress = desk.progress(last.job)
            if progress is not None:
                show(progress)
            if has_ended(last.state):
                if _is_final(desk, last):
                    return
                ended = last.job
                show(WAITING)
                if last.state == COMPLETED:  # in order: another job follows at once, or none
                    until = time.monotonic() + min(patience, FOLLOWED)
        time.sleep(_POLL)


def _is_final(desk: Desk, last: JobStatus) -> bool:
    """Return True if a job that has ended is known to be the last of its run."""
    if last.submitter != desk.kit.name:
        return False  # only the supervisor may fetch its result
    outcome = desk.outcome(last.job)
    return outcome is not None and outcome.status != "stopped"


def deliver(desk: Desk, run: NetworkRun) -> Outcome:
    """Fetch a run whose job has ended; return how it ended at the server."""
    last = desk.last_job(run.order.run)
    if last is not None and last.job == run.job:
        return _fetched(desk, run, run.job)
    return _fetched(desk, run, _ordered(desk, run, "deliver"))


def abort(desk: Desk, run: NetworkRun) -> Outcome:
    """End a run in progress, keep its last round, and fetch it.

    Args:
        desk: The connection to the server.
        run: The run.
    """
    last = desk.last_job(run.order.run)
    if last is None or last.job != run.job:  # only the supervisor may end its own job
        return _fetched(desk, run, _ordered(desk, run, "stop"))
    desk.abort(run.job)
    desk.wait_until_end(run.job)
    return _fetched(desk, run, run.job)


def _ordered(desk: Desk, run: NetworkRun, action: Action) -> str:
    """Carry out an order that needs no site; return its job."""
    job = desk.submit(replace(run.order, action=action))
    desk.wait_until_end(job)
    return job


def _fetched(desk: Desk, run: NetworkRun, job: str) -> Outcome:
    """Fetch the run that a job delivered; return how it ended at the server."""
    outcome = desk.fetch(job, run.folder)
    run.save()
    return outcome


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
