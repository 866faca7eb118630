"""A run at the server of a network, whatever carries the messages to its sites."""

from __future__ import annotations

import json
import os
import shutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equipoise.callbacks import Callback
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.experiment import experiment as experiment_from
from equipoise.records.files import CannotSave
from equipoise.server import ServerData
from equipoise.session import (
    Session,
    configuration,
    is_complete,
    resume_session,
    server_data,
)
from equipoise.site.settings import AUDIT
from equipoise.storage.files import DATABASE, FILES
from equipoise.storage.form import read_configuration
from equipoise.storage.store import RunError, RunStopped, Store
from equipoise.transports.apart import Apart, Connection, SiteUnreachable
from equipoise.transports.nvflare.order import RunOrder
from equipoise.validation import safe_yaml
from equipoise.validation.imports import Imports

OUTCOME = "outcome.json"
RUNNING = "running"
STOPPED = "the run was stopped; it can be resumed"
DISK = (
    "the disk of the server is full or cannot be written to; the run continues when there is room, "
    "and `equipoise resume` follows it"
)
BEGINS_LATER = "the server begins it when the site is back; follow it with `equipoise resume`"
DELIVERED = "run"  # the folder in which a run is delivered to the scientist


@dataclass(frozen=True)
class Outcome:
    """The end of a run at the server.

    Attributes:
        status: finished; running (another job continues it); stopped (it can be resumed);
            refused (it cannot be begun or continued as it is); failed (by a defect, see the log
            of the server).
        text: A sentence for the scientist.
    """

    status: str
    text: str = ""

    def write(self, folder: Path) -> None:
        """Write the outcome to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / OUTCOME).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Outcome | None:
        """Return the outcome in a folder, which may come from a stranger; None without one."""
        try:
            values = json.loads((folder / OUTCOME).read_bytes())
            return cls(str(values["status"]), str(values["text"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True)
class ServerFiles:
    """Data at the server that fit the schema, which some methods need.

    Attributes:
        validation: A file or folder of validation data.
        test: A file or folder of test data.
    """

    validation: Path | None = None
    test: Path | None = None


def serve_run(
    order: RunOrder,
    runs: Path,
    connections: Mapping[str, Connection],
    callback: Callback,
    interrupted: Callable[[], bool],
    files: ServerFiles | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Begin the run of an order, or continue it if the server has it.

    Args:
        order: The order.
        runs: The folder with the runs of the server.
        connections: The connections to the sites of the order.
        callback: Receives the progress.
        interrupted: Returns True once the run shall stop.
        files: Data at the server.
        log: Takes tracebacks of defects.

    Returns:
        How the run ended. Nothing is raised: FLARE would send a traceback to everybody.
    """
    folder = runs / order.run
    try:
        _serve(order, folder, connections, callback, interrupted, files or ServerFiles())
    except KeyboardInterrupt:
        return Outcome("stopped", STOPPED)
    except RunStopped as error:
        return Outcome("stopped", str(error))
    except SiteUnreachable as error:
        return Outcome("stopped", f"{error}; {BEGINS_LATER}")
    except (ConfigurationError, RunError, ValueError) as error:
        if interrupted():  # sites could not be reached any more because the job ends
            return Outcome("stopped", STOPPED)
        return Outcome("refused", str(error))
    except CannotSave:
        log(traceback.format_exc())
        return Outcome("stopped", DISK)
    except Exception as error:
        log(traceback.format_exc())
        return Outcome(
            "failed", f"the server met an error of type {type(error).__name__}; see its log"
        )
    return Outcome("finished")


def _serve(
    order: RunOrder,
    folder: Path,
    connections: Mapping[str, Connection],
    callback: Callback,
    interrupted: Callable[[], bool],
    files: ServerFiles,
) -> None:
    experiment = ordered_experiment(order)
    data = _server_data(experiment, files)
    transport = Apart(connections, parallel=True)
    if (folder / DATABASE).exists():
        _check_same_experiment(folder, experiment)
        if order.from_round is None and is_finished(folder, experiment):
            return
        resume_session(folder, transport, callback, data, order.from_round, interrupted=interrupted)
        return
    if order.from_round is not None:
        raise RunError(f"the server has no run {order.run}; it cannot go back to a round of it")
    with Session(experiment, transport, callback, data, interrupted) as session:
        session.start(folder, run=order.run)


def is_finished(folder: Path, experiment: Experiment) -> bool:
    """Return True if the run in a folder needs no site any more."""
    if not (folder / DATABASE).exists():
        return False
    store = Store(folder)
    try:
        return is_complete(store, experiment.rounds)
    finally:
        store.close()


def ordered_experiment(order: RunOrder) -> Experiment:
    """Return the experiment of an order; no code is imported for it.

    Raises:
        ConfigurationError: If the experiment is not valid, or needs code of the scientist.
    """
    imports = Imports(frozenset(), frozenset({AUDIT}))
    return experiment_from(order.experiment, imports)


def _server_data(experiment: Experiment, files: ServerFiles) -> ServerData:
    if files.validation is None and files.test is None:
        return ServerData()
    return server_data(experiment, files.validation, files.test)


def _check_same_experiment(folder: Path, experiment: Experiment) -> None:
    """Refuse to continue a run with another experiment than it began with."""
    resolved = Session(experiment, Apart({})).experiment
    begun = read_configuration(folder)
    if begun != safe_yaml.parsed(configuration(resolved), "the experiment"):
        raise RunError(
            "the server has a run of this identifier with another experiment; "
            "run the experiment again"
        )


def deliver(folder: Path, target: Path) -> None:
    """Copy a run to the folder that a scientist fetches.

    Args:
        folder: The folder of the run at the server; nothing is copied if there is none.
        target: The folder of the copy.
    """
    if not (folder / DATABASE).exists():
        return
    shutil.copytree(folder, target, ignore=_unneeded, copy_function=_linked)


def _unneeded(folder: str, names: list[str]) -> list[str]:
    """Return what a copy of a run leaves out: the lock, which belongs to a process."""
    return [name for name in names if name.endswith(".lock")]


def _linked(source: str, target: str) -> None:
    """Link a file that never changes, and copy the others."""
    if FILES in Path(source).parts:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system
            pass
    shutil.copy2(source, target)


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a stranger that are numbers, texts or mappings of these, and no others."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            plain[str(name)] = plain_values(value)
        elif value is None or isinstance(value, (str, int, float, bool)):
            plain[str(name)] = value
    return plain
