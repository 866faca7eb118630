"""A run at a scientist's machine: submitted to a network, followed, and fetched at its end."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.experiment import ConfigurationError, Experiment
from equipoise.session import Session, configuration
from equipoise.storage.files import CONFIGURATION, DATABASE
from equipoise.storage.lock import acquire
from equipoise.storage.store import RunError
from equipoise.transports.apart import Apart
from equipoise.transports.nvflare.jobs import Desk, follow
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.progress import unpacked_database
from equipoise.transports.nvflare.serving import Outcome, ordered_experiment

FILE = "network.json"  # the run at the server that a folder stands for


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
    if (folder / DATABASE).exists() or (folder / FILE).exists():
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
    if from_round is None and desk.is_running(run.job):
        return run
    order = replace(run.order, from_round=from_round)
    run = NetworkRun(folder, run.order, desk.submit(order))
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
    desk: Desk, run: NetworkRun, show: Callable[[Mapping[str, Any]], None]
) -> Outcome:
    """Follow a run to its end and fetch it.

    Args:
        desk: The connection to the server.
        run: The run.
        show: Takes the progress once a second.

    Returns:
        How the run ended at the server.
    """
    mirror = Mirror(run)

    def update(progress: Mapping[str, Any]) -> None:
        mirror.update(progress)
        show(progress)

    try:
        follow(desk, run.job, update)
    finally:
        mirror.close()
    return fetch(desk, run)


def fetch(desk: Desk, run: NetworkRun) -> Outcome:
    """Fetch a run whose job has ended; return how it ended at the server."""
    outcome = desk.fetch(run.job, run.folder)
    run.save()
    return outcome


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
