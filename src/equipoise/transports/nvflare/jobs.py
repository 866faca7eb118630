"""A scientist's side of a run over FLARE: submit it, follow it, and fetch the result."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    JobNotDone,
    JobNotFound,
    JobNotRunning,
    NoConnection,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from equipoise.experiment import ConfigurationError
from equipoise.storage.files import DATABASE
from equipoise.transports.nvflare.controller import PROGRESS
from equipoise.transports.nvflare.job_states import MISSING, has_ended
from equipoise.transports.nvflare.kits import CONTROLLER, EXECUTOR, RETRY_TIMEOUT, Kit
from equipoise.transports.nvflare.link import TASK
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.serving import DELIVERED, OUTCOME, Outcome, plain_values
from equipoise.transports.nvflare.silence import flare_is_silent

ANSWER_DEADLINE = 10.0  # seconds for the server to answer
_FETCH_INTERVAL = 0.05  # seconds between two questions of a site for a task
_POLL = 1.0  # seconds between two looks at a job
_END_DEADLINE = 120.0  # seconds for FLARE to store the result of a job that has ended


def job_name(run: str, action: str = "run") -> str:
    """Return the name of all FLARE jobs of a run that carry out an action."""
    return f"equipoise-{action}-{run}"


def write_job(folder: Path, order: RunOrder, sites: Sequence[str] = ()) -> None:
    """Write the definition of a FLARE job that carries out an order.

    Args:
        folder: The folder of the definition, which must not exist.
        order: The order.
        sites: The sites that are in the job; all of the order by default.
    """
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": job_name(order.run, order.action),
        "resource_spec": {},
        # A site that is away must not keep the others from beginning.
        "min_clients": 1,
        "deploy_map": {"app": ["server", *(sites or order.sites)]},
    }
    server = {
        "format_version": 2,
        "server": {"task_request_interval": _FETCH_INTERVAL},
        "workflows": [{"id": "run", "path": CONTROLLER, "args": {"order": order.text()}}],
        "components": [],
    }
    site = {
        "format_version": 2,
        "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
        "components": [],
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(site))


@dataclass(frozen=True)
class JobStatus:
    """A job at the server.

    Attributes:
        job: Its identifier.
        state: FLARE's state of it.
        submitter: The person who submitted it.
    """

    job: str
    state: str
    submitter: str


@dataclass
class Desk:
    """The connection of a scientist or of the supervisor to the server; see `open_desk`."""

    kit: Kit
    session: Session

    def connected_sites(self) -> list[str]:
        """Return the names of the sites that are connected to the server."""
        with _explained(self.kit):
            info = self.session.get_system_info()
        return sorted(client.name for client in info.client_info)

    def heard(self) -> dict[str, float]:
        """Return the time at which each connected site was last heard."""
        with _explained(self.kit):
            info = self.session.get_system_info()
        return {client.name: float(client.last_connect_time or 0.0) for client in info.client_info}

    def submit(self, order: RunOrder, sites: Sequence[str] = ()) -> str:
        """Submit the job of an order; return its identifier.

        Args:
            order: The order.
            sites: The sites that are in the job; all of the order by default.
        """
        with tempfile.TemporaryDirectory(prefix="equipoise-") as temporary:
            folder = Path(temporary, job_name(order.run, order.action))
            write_job(folder, order, sites)
            with _explained(self.kit):
                return str(self.session.submit_job(str(folder)))

    def status(self, job: str) -> str:
        """Return FLARE's state of a job, such as RUNNING or FINISHED:COMPLETED, or `MISSING`."""
        try:
            with _explained(self.kit, JobNotFound):
                return str(self.session.get_job_meta(job).get("status", ""))
        except JobNotFound:
            return MISSING

    def last_job(self, run: str) -> JobStatus | None:
        """Return the last job that began or continued a run; None if the server has none."""
        with _explained(self.kit):
            jobs = self.session.list_jobs(
                detailed=True, limit=1, name_prefix=job_name(run), reverse=True
            )
        if not jobs:
            return None
        meta = jobs[0]
        return JobStatus(
            str(meta.get("job_id", "")),
            str(meta.get("status", "")),
            str(meta.get("submitter_name", "")),
        )

    def is_running(self, job: str) -> bool:
        """Return True if a job waits or is in progress."""
        return not has_ended(self.status(job))

    def progress(self, job: str) -> dict[str, Any] | None:
        """Return the progress of a job as the server reports it; None if it does not yet."""
        try:
            with flare_is_silent():
                statistics = self.session.show_stats(job, "server")
        except (JobNotFound, JobNotRunning, NoConnection, ValueError, KeyError, RuntimeError):
            return None
        for parts in _mappings(statistics):
            if isinstance(parts.get(PROGRESS), Mapping):
                return plain_values(parts[PROGRESS])
        return None

    def abort(self, job: str) -> None:
        """End a job, if it is in progress; its run can be resumed."""
        with (
            _explained(self.kit, JobNotFound, JobNotRunning),
            contextlib.suppress(JobNotFound, JobNotRunning),
        ):
            self.session.abort_job(job)

    def wait_until_end(self, job: str) -> None:
        """Wait until a job that was aborted has ended, for two minutes at most."""
        until = time.monotonic() + _END_DEADLINE
        while self.is_running(job) and time.monotonic() < until:
            time.sleep(_POLL)

    def fetch(self, job: str, out: Path) -> Outcome:
        """Fetch the run of a job that has ended.

        Args:
            job: The identifier of the job.
            out: The folder of the run; replaced if it is there.

        Returns:
            How the run ended at the server.

        Raises:
            ConfigurationError: If the server has no result of the job.
        """
        with tempfile.TemporaryDirectory(prefix="equipoise-") as temporary:
            location = Path(self._downloaded(job, temporary))
            database = next(location.rglob(f"{DELIVERED}/{DATABASE}"), None)
            outcome_file = next(location.rglob(OUTCOME), None)
            outcome = None if outcome_file is None else Outcome.read(outcome_file.parent)
            if database is not None:
                _replace(database.parent, out)
        if outcome is None:
            raise ConfigurationError(
                f"the server has no result of job {job}; ask its operator for the log of the job"
            )
        return outcome

    def outcome(self, job: str) -> Outcome | None:
        """Return how a job ended that has ended; None if it died."""
        with tempfile.TemporaryDirectory(prefix="equipoise-") as temporary:
            location = Path(self._downloaded(job, temporary))
            file = next(location.rglob(OUTCOME), None)
            return None if file is None else Outcome.read(file.parent)

    def _downloaded(self, job: str, folder: str) -> str:
        """Return the folder of a job's result, once FLARE has stored it."""
        until = time.monotonic() + _END_DEADLINE
        while True:
            try:
                with _explained(self.kit, JobNotDone):
                    return str(self.session.download_job_result(job, folder))
            except JobNotDone:
                if time.monotonic() > until:
                    raise ConfigurationError(
                        f"the server did not store the result of job {job} within "
                        f"{_END_DEADLINE:g} s; fetch it later with `equipoise resume --network`"
                    ) from None
                time.sleep(_POLL)


@contextmanager
def open_desk(kit: Kit) -> Iterator[Desk]:
    """Connect to the server with the kit of a lead or member.

    Raises:
        ConfigurationError: If the server does not answer, or refuses the kit.
    """
    # A person's process reads no communication settings from its kit, only from the environment.
    os.environ.setdefault("NVFLARE_STREAMING_RETRY_TIMEOUT", str(RETRY_TIMEOUT))
    with _explained(kit):
        session = new_secure_session(kit.name, str(kit.startup), timeout=ANSWER_DEADLINE)
    try:
        yield Desk(kit, session)
    finally:
        with contextlib.suppress(Exception), flare_is_silent():
            session.close()


def _replace(source: Path, out: Path) -> None:
    """Move a fetched run to its folder; anything but files and folders is left out."""
    for path in source.rglob("*"):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            path.unlink()
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        shutil.rmtree(out)
    shutil.move(str(source), out)


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a value and all mappings inside it."""
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _mappings(item)


@contextmanager
def _explained(kit: Kit, *passed: type[Exception]) -> Iterator[None]:
    """Turn FLARE's errors into one sentence for the scientist."""
    host, port = kit.server
    try:
        with flare_is_silent():
            yield
    except passed:
        raise
    except (NoConnection, ConnectionError, TimeoutError):
        raise ConfigurationError(
            f"the server {host}:{port} did not answer within {ANSWER_DEADLINE:g} s; check that it "
            "runs (`equipoise server start`) and can be reached from here"
        ) from None
    except (AuthenticationError, FLCommunicationError):
        raise ConfigurationError(
            f"the server {host}:{port} does not accept the certificate of {kit.folder}; check "
            "that it is a kit of this network and has not expired"
        ) from None
    except AuthorizationError as error:
        raise ConfigurationError(
            f"the server {host}:{port} refuses this to {kit.name}, a {kit.kind}: {error}; only a "
            "lead may run experiments"
        ) from None
    except (JobNotFound, JobNotRunning) as error:
        raise ConfigurationError(f"the server {host}:{port} has no such job: {error}") from None
    except Exception as error:
        if not type(error).__module__.startswith("nvflare."):
            raise
        raise ConfigurationError(
            f"the server {host}:{port} could not do this: {type(error).__name__}: {error}"
        ) from None
