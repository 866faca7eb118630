"""The part of a site that touches data: it prepares them, performs steps and keeps models."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from equipoise.data import Federation, prepare_client
from equipoise.data.roster import Roster
from equipoise.experiment import Experiment
from equipoise.records import CannotSave, Record
from equipoise.runtime import wire
from equipoise.runtime.client_evaluation import NotCommon
from equipoise.runtime.evaluation_messages import EvaluateModels
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.isolation import Late
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.runtime.states import CarriedStates, FileStates, StateMissing
from equipoise.site.checks import Refused, own_experiment
from equipoise.site.messages import (
    DISK_FULL,
    LATE,
    NO_STATE,
    RAISED,
    REFUSED,
    experiment_digest,
)
from equipoise.site.served_models import save_models
from equipoise.site.settings import SiteSettings
from equipoise.training.workbench import one_thread

STATES = "states"  # the folder of the client's states, inside of the folder of a run


@dataclass(frozen=True)
class Result:
    """The result of a request to a site.

    Attributes:
        code: Empty, or why there is no result.
        entries: The result as entries of an answer.
        text: A text for the log of the site, which no answer has.
    """

    code: str = ""
    entries: Record = field(default_factory=Record)
    text: str = ""


@dataclass(frozen=True)
class _Prepared:
    """Data, networks and method of an experiment.

    Attributes:
        digest: The digest of the experiment.
        executor: The client runtime.
    """

    digest: str
    executor: ClientExecutor


class Runtime(Protocol):
    """The executor of a site's requests, in this process or in a child."""

    def describe(self, job: Job) -> Result:
        """Return the roster of the site; nothing is written."""
        ...

    def open(self, job: Job, folder: Path) -> Result:
        """Begin or continue a run whose files are in a folder.

        Returns:
            A digest of the data, and the round of the newest state.
        """
        ...

    def perform(self, request: Request, deadline: float) -> Result:
        """Perform a step, or evaluate; return a reply without its upload, and the upload."""
        ...

    def interrupt(self) -> None:
        """End what is being done, if that is possible; called from another thread."""
        ...

    def close(self) -> None:
        """Release what a run holds."""
        ...


class SiteRuntime:
    """Executes the requests of a site in this process.

    Args:
        name: The name of the site, which is the name of its client.
        settings: The settings of the site.
    """

    def __init__(self, name: str, settings: SiteSettings) -> None:
        self.name = name
        self.settings = settings
        self._prepared: _Prepared | None = None
        self._executor: ClientExecutor | None = None
        self._job: Job | None = None
        self._folder = settings.folder

    def describe(self, job: Job) -> Result:
        """Return the roster of the site; see `Runtime.describe`."""
        return _guarded(lambda: self._described(job))

    def open(self, job: Job, folder: Path) -> Result:
        """Build networks and method; see `Runtime.open`."""
        return _guarded(lambda: self._opened(job, folder))

    def perform(self, request: Request, deadline: float) -> Result:
        """Perform a step; see `Runtime.perform`."""
        return _guarded(lambda: self._performed(request, deadline))

    def interrupt(self) -> None:
        """Do nothing: a step in this process takes as long as it takes."""

    def close(self) -> None:
        """Release networks and data."""
        self._executor = None
        self._prepared = None
        self._job = None

    def _described(self, job: Job) -> Result:
        # The name of the data set follows from the name of a file, which stays here.
        roster = replace(self._prepared_for(job).executor.roster(), name="")
        return Result(entries=Record(roster=roster.record()))

    def _opened(self, job: Job, folder: Path) -> Result:
        self._executor = self._prepared_for(job).executor
        states = FileStates(folder / STATES)
        self._executor.states = states
        self._job = job
        self._folder = folder
        digest = self._executor.roster().fingerprints[self.name]
        newest = states.newest_round(self.name)
        return Result(entries=Record(fingerprint=digest, newest=newest))

    def _performed(self, request: Request, deadline: float) -> Result:
        if self._executor is None or self._job is None:
            raise Refused("closed")
        request = _without_histograms(request, self.settings)
        with one_thread():
            reply = self._executor.execute(request, deadline)
        if reply.failure is not None:
            return Result(RAISED, text=reply.failure)
        if request.step == EvaluateModels.step and request.down.get("ending"):
            save_models(self._folder, self._job, self._executor, request, reply)
        entries = Record._trusted({"reply": wire.to_wire(reply), "up": reply.up})
        return Result(entries=entries)

    def _prepared_for(self, job: Job) -> _Prepared:
        """Return data, networks and method of an experiment; nothing is written.

        Raises:
            Refused: If the data do not fit the experiment, or the experiment not this site.
        """
        digest = experiment_digest(job.experiment)
        if self._prepared is None or self._prepared.digest != digest:
            experiment = own_experiment(job, self.name, self.settings)
            federation = self._federation(experiment)
            self._prepared = _Prepared(digest, _executor(job, federation, experiment))
        return self._prepared

    def _federation(self, experiment: Experiment) -> Federation:
        try:
            federation = prepare_client(
                experiment.data, experiment.seed, self.name, imports=experiment.imports
            )
        except (ValueError, OSError) as error:
            raise Refused("data", str(error)) from None
        _check_rows(federation, self.settings.minimum_rows)
        return federation


def _check_rows(federation: Federation, minimum: int) -> None:
    """Refuse a run over fewer samples than the site allows."""
    parts = (federation.train, federation.validation, federation.test)
    samples = sum(int(part.sizes.sum()) for part in parts)
    if samples < minimum:
        raise Refused("rows", f"{samples} samples, and minimum_rows is {minimum}")


def _without_histograms(request: Request, settings: SiteSettings) -> Request:
    """Return an evaluation without histograms of scores if the site sends none."""
    asks = request.step == EvaluateModels.step and request.down.get("curves")
    if settings.histograms or not asks:
        return request
    down = type(request.down)._trusted({**request.down, "curves": False})
    return replace(request, down=down)


def _executor(job: Job, federation: Federation, experiment: Experiment) -> ClientExecutor:
    """Return the client runtime of an experiment, which has no states until a run is open."""
    try:
        with one_thread():
            return ClientExecutor(job, federation, CarriedStates(), experiment)
    except ValueError as error:
        raise Refused("experiment", str(error)) from None


def roster_in(entries: Record) -> Roster:
    """Return the roster in the result of `describe`."""
    return Roster.of(entries["roster"])


def reply_in(entries: Any) -> Reply:
    """Return the reply in the result of `perform`."""
    return wire.reply_of(entries["reply"], entries["up"])


def _guarded(function: Callable[[], Result]) -> Result:
    """Return the result of a function, or the code of its exception."""
    try:
        return function()
    except Refused as error:
        return Result(f"{REFUSED}{error.word}", text=error.text)
    except NotCommon as error:
        return Result(f"{REFUSED}model", text=str(error))
    except StateMissing as error:
        return Result(NO_STATE, text=str(error))
    except CannotSave as error:
        return Result(DISK_FULL, text=str(error))
    except Late:
        return Result(LATE)
    except Exception:
        return Result(RAISED, text=traceback.format_exc())
