"""A run over a transport: everything that needs no data, and runs whose data stay at sites."""

from __future__ import annotations

import logging
import platform
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch

from equipoise import mkl
from equipoise.callbacks import Callback, CallbackList
from equipoise.data import Dataset, prepare_client
from equipoise.data.agreement import task_of
from equipoise.data.preparation import recipe_without_data
from equipoise.data.roster import Roster
from equipoise.data.samples import Samples
from equipoise.engine.evaluation import check_main
from equipoise.engine.rounds import Loop
from equipoise.engine.signals import interruptible
from equipoise.experiment import OWN_DATA, ConfigurationError, Experiment
from equipoise.experiment import experiment as experiment_from
from equipoise.experiment.build import check_loss, prepare
from equipoise.method import Method
from equipoise.metrics import registry
from equipoise.runs.run import Run
from equipoise.runs.time_budget import TimeBudget
from equipoise.runtime.evaluation_messages import CheckState
from equipoise.runtime.messages import Job, Request, state_of
from equipoise.server import ServerData
from equipoise.storage.checkpoint import foreign_tensor
from equipoise.storage.files import FILES
from equipoise.storage.form import check_metadata, damaged, read_configuration
from equipoise.storage.outdated import DEFAULTS, outdated, with_its_defaults
from equipoise.storage.store import RunError, Store
from equipoise.task import Task
from equipoise.training.workbench import Workbench, one_thread
from equipoise.transports.base import ClientError, Interrupted, Monitor, Transport
from equipoise.validation import safe_yaml
from equipoise.validation.imports import Imports, permitted
from equipoise.version import __version__

log = logging.getLogger("equipoise")

SERVER = "server"  # the name under which files at the server are prepared


def never() -> bool:
    """Return False: nobody but Ctrl-C stops the run."""
    return False


class RemoteTransport(Transport, Protocol):
    """A transport to sites that hold their data themselves."""

    def open(self, job: Job, files: Path, monitor: Monitor, known: Roster | None = None) -> Roster:
        """Connect to the sites; see `Transport.open`.

        Args:
            job: The message that opens the sites.
            files: The run's folder of files.
            monitor: Passes progress on.
            known: The roster of a run that is resumed. Sites that are away are taken from it;
                without it every site must be there.
        """
        ...


class Session:
    """A run whose data stay at sites.

    Model and task follow from the schema of the experiment. The store holds the schema and the
    scaling, and no statistics of a site.

    Attributes:
        experiment: The experiment, with the name of the model that ``auto`` stands for.
        transport: The transport to the clients.
        monitor: Passes progress on to the callbacks.
        data: The samples at the server.
    """

    transport: Transport

    def __init__(
        self,
        experiment: Experiment,
        transport: RemoteTransport,
        callbacks: Callback | Iterable[Callback] | None = None,
        data: ServerData | None = None,
        interrupted: Callable[[], bool] = never,
    ) -> None:
        """Check that an experiment can be run without data at the server.

        Args:
            experiment: The experiment, with `data.apart` and a schema.
            transport: The transport to the sites.
            callbacks: As for `equipoise.run`.
            data: Samples at the server, see `server_data`.
            interrupted: Returns True once the run shall stop; Ctrl-C stops it in any case.

        Raises:
            ConfigurationError: If the experiment needs data at the server, or cannot travel.
        """
        check_remote(experiment)
        self.experiment = experiment.with_model(task_of(experiment.data.schema).shape)
        self.transport = self._sites = transport
        self.monitor = monitor_of(experiment, callbacks)
        self.data = data or ServerData()
        self.interrupted = interrupted
        self._check_validation(experiment.build_method())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.transport.close()

    def connect(self, job: Job, files: Path, known: Roster | None) -> Roster:
        """Open the transport; return names and sizes of the clients.

        Args:
            job: The message that opens client runtimes.
            files: The run's folder of files.
            known: The roster of a run that is resumed, if it was stored.
        """
        roster = self._sites.open(job, files, self.monitor, known)
        expected = task_of(self.experiment.data.schema)
        if _complete(roster.task) != _complete(expected):
            raise ConfigurationError(
                f"expected sites with the task of the schema, {expected}, got {roster.task}; "
                "give all sites the schema of the experiment"
            )
        return roster

    def server_data(self, roster: Roster, method: Method) -> ServerData:
        """Return the samples at the server that a run uses.

        Args:
            roster: Names and sizes of the clients.
            method: The method.
        """
        validation = self.data.validation if "validation" in method.needs else None
        return ServerData(validation, self.data.shared)

    def _check_validation(self, method: Method) -> None:
        """Refuse a method that needs validation data, before any site hears of the run."""
        if "validation" in method.needs and not self.data.validation:
            raise ConfigurationError(
                f"{method.title} measures models on validation data at the server, and there are "
                "none; give a file of validation data at the server that fits the schema"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the data that the store holds."""
        return {}

    @property
    def recipe(self) -> dict[str, Any]:
        """The preparation of inputs as the store holds it."""
        return recipe_without_data(self.experiment.data)

    def stored_roster(self, roster: Roster) -> dict[str, Any] | None:
        """Return the roster as the store holds it, so that a run resumes while sites are away."""
        return roster.record()

    def same_data(self, store: Store, roster: Roster) -> bool:
        """Return True if clients have the data with which a stored run began."""
        return bool(store.meta("fingerprint") == roster.fingerprint)

    def open(
        self, job: Job, folder: Path, known: Roster | None = None
    ) -> tuple[Roster, Workbench, Method]:
        """Connect, and check that method, networks and data fit, before anything is written.

        Args:
            job: The message that opens client runtimes.
            folder: The folder of the run, which may not exist yet.
            known: The roster of a run that is resumed, if it was stored.

        Returns:
            The roster, the networks of the server and the method.
        """
        with one_thread():
            roster = self.connect(job, folder / FILES, known)
            bench, method = prepare(self.experiment, roster.task, roster.ids)
        check_main(self.experiment.evaluation, roster)
        self.server_data(roster, method)
        return roster, bench, method

    def start(
        self,
        folder: Path,
        describe: Callable[[Task], None] | None = None,
        run: str | None = None,
    ) -> Run:
        """Run the experiment from its beginning to its end.

        Args:
            folder: The folder of the run, which must not hold one.
            describe: Called with the task once all settings have been checked.
            run: The identifier of the run, 32 hexadecimal digits; a new one by default.

        Returns:
            The finished run.
        """
        if mkl.was_requested_too_late():
            log.warning(
                "torch multiplied matrices before equipoise was imported, so that the last bits of "
                "this run may differ from those of the same run elsewhere; import equipoise first"
            )
        text = configuration(self.experiment)
        job = job_of(self.experiment, run or uuid.uuid4().hex)
        roster, bench, method = self.open(job, folder)
        check_loss(self.experiment, roster.task)
        if describe is not None:
            describe(roster.task)
        store = Store.create(folder, text, _metadata(self, job, roster))
        return self.train(store, roster, bench, method)

    def resume(self, store: Store, from_round: int | None = None) -> Run:
        """Continue a run to its end.

        Args:
            store: Its store, opened for writing; closed at the end.
            from_round: Go back to the checkpoint of this round.

        Returns:
            The finished run.
        """
        with ExitStack() as on_failure:
            on_failure.callback(store.close)
            _warn_of_other_products(store)
            stored = store.meta("roster")
            known = None if stored is None else Roster.of(stored)
            job = job_of(self.experiment, store.meta("run") or "")
            roster, bench, method = self.open(job, store.folder, known)
            _check_data_unchanged(store, self.same_data(store, roster))
            if from_round is None:
                _check_not_older(store, getattr(self.transport, "newest", {}))
            else:
                _check_states(store, self.transport, from_round, self.experiment)
                store.go_back(from_round)
            store.sweep()
            on_failure.pop_all()
        try:
            return self.train(store, roster, bench, method)
        except ClientError as error:
            wrong = _foreign_tensor(store.folder, bench)
            if wrong is None:
                raise
            raise damaged(store.folder, wrong) from error

    def train(self, store: Store, roster: Roster, bench: Workbench, method: Method) -> Run:
        """Compute all rounds that are missing, and close transport and store."""
        data = self.server_data(roster, method)
        loop = Loop(
            self.experiment, method, bench, roster, self.transport, store, data, self.monitor
        )
        began = time.time()
        failure: BaseException | None = None
        try:
            with one_thread(), interruptible() as requested:
                self.monitor.interrupted = lambda: requested() or self.interrupted()
                loop.run()
        except Interrupted:
            failure = KeyboardInterrupt(
                f"stopped after round {store.last_round()}; continue with {store.resume_command()}"
            )
            raise failure from None
        except BaseException as error:
            failure = error
            lost = store.lost() if isinstance(error, Exception) else None
            if lost is not None:
                raise RunError(lost) from error
            raise
        finally:
            with suppress(sqlite3.Error, RunError):  # the error of a full disk is raised already
                before = store.meta("wall seconds") or 0.0
                store.set_meta("wall seconds", before + time.time() - began)
            self.transport.close()
            store.close()
            self.monitor.callbacks.on_end(store.folder, failure)
        return self._finished(store.folder)

    def _finished(self, folder: Path) -> Run:
        imports = Imports(self.experiment.imports.packages)
        imports = imports.with_names(self.experiment.model_dump(mode="json"))
        experiment = None
        if self.experiment.why_not_remote is not None:
            # A run object must not keep the data in memory.
            experiment = self.experiment.model_copy(update={"dataset": None})
        return Run(folder, imports, experiment)


def resume_session(
    folder: str | Path,
    transport: RemoteTransport,
    callbacks: Callback | Iterable[Callback] | None = None,
    data: ServerData | None = None,
    from_round: int | None = None,
    allow_imports: Iterable[str] = (),
    interrupted: Callable[[], bool] = never,
) -> Run:
    """Continue a run whose data are at sites.

    Sites that are away are not needed: they miss rounds until they are back.

    Args:
        folder: The folder of the run.
        transport: The transport to the sites.
        callbacks: As for `equipoise.run`.
        data: Samples at the server.
        from_round: Go back to the checkpoint of this round.
        allow_imports: Packages from which code that the run's file names may be imported.
        interrupted: As for `Session`.

    Returns:
        The finished run.

    Raises:
        RunError: If the run is finished, damaged, or cannot be continued by this version.
    """
    store = Store(Path(folder), writing=True)
    with ExitStack() as on_failure:
        on_failure.callback(store.close)
        saved = check_resumable(store, from_round)
        experiment = experiment_from(saved, permitted(saved, allow_imports))
        session = Session(experiment, transport, callbacks, data, interrupted)
        on_failure.pop_all()
    with session:
        return session.resume(store, from_round)


def server_data(
    experiment: Experiment, validation: Path | None = None, test: Path | None = None
) -> ServerData:
    """Return samples from files at the server, prepared by the schema of an experiment.

    Args:
        experiment: The experiment, with `data.apart` and a schema.
        validation: A file or folder of validation data, for methods that need them.
        test: A file or folder of test data, on which models that all clients share are evaluated.

    Raises:
        ValueError: If a file cannot be read or does not fit the schema.
    """
    return ServerData(_samples_of(experiment, validation), _samples_of(experiment, test))


def _samples_of(experiment: Experiment, path: Path | None) -> Samples | None:
    """Return all samples of a file in its order; scaling by client uses the file's own rows."""
    if path is None:
        return None
    whole = {"name": str(path), "split": (1.0, 0.0, 0.0), "test": "local"}
    config = experiment.data.model_copy(update=whole)
    federation = prepare_client(config, experiment.seed, SERVER, imports=experiment.imports)
    positions = federation.train[0]
    in_order = positions[np.argsort(federation.source[positions], kind="stable")]
    return Samples.of(federation, in_order)


def check_remote(experiment: Experiment) -> None:
    """Refuse an experiment whose data or code cannot stay with, or travel to, sites.

    Raises:
        ConfigurationError: If sites cannot prepare their data alone, or not rebuild the method.
    """
    if not experiment.data.apart:
        raise ConfigurationError(
            "data.apart: expected true for data that stay at sites, got false; set it, and give "
            "the schema on which the sites agreed"
        )
    reason = experiment.why_not_remote
    if reason is not None:
        raise ConfigurationError(
            f"expected an experiment that sites can rebuild, but {reason}; "
            "move it to a module that can be imported and name it as package.module:name"
        )


def monitor_of(experiment: Experiment, callbacks: Callback | Iterable[Callback] | None) -> Monitor:
    """Return the monitor of a run: its callbacks, and one for the experiment's budget."""
    all_callbacks = CallbackList(callbacks)
    if experiment.budget is not None:
        budget = TimeBudget(experiment.budget)
        all_callbacks = CallbackList([*all_callbacks.callbacks, budget])
    return Monitor(all_callbacks)


def job_of(experiment: Experiment, run: str) -> Job:
    """Return the message that opens client runtimes: the experiment and its permissions.

    Args:
        experiment: The experiment.
        run: The identifier of the run.
    """
    return Job(run, experiment.to_spec(), experiment.imports.plain(), version=__version__)


def configuration(experiment: Experiment) -> str:
    """Return the text of the experiment's file.

    Raises:
        ConfigurationError: If the file could not be read again.
    """
    text = safe_yaml.dumped(experiment.model_dump(mode="json"))
    try:
        safe_yaml.parsed(text, "this experiment, written to a file,")
    except safe_yaml.Unreadable as error:
        raise ConfigurationError(str(error)) from None
    if len(text.encode()) > safe_yaml.MOST_BYTES:
        raise ConfigurationError(
            f"expected an experiment of at most 1 MB, got one of {len(text) / 1e6:.1f} MB; "
            "shorten its lists"
        )
    return text


def check_resumable(
    store: Store,
    from_round: int | None,
    dataset: Dataset | None = None,
    experiment: Experiment | None = None,
) -> Mapping[str, Any]:
    """Check that a stored run can be continued; return its configuration.

    Args:
        store: Its store.
        from_round: The round to which it goes back, if any.
        dataset: The data, if the caller has them.
        experiment: The experiment, if the caller has it.

    Raises:
        RunError: If the run is finished, damaged, or cannot be continued by this version.
    """
    check_metadata(store.folder, store.facts)
    saved = with_its_defaults(read_configuration(store.folder), store.meta("defaults"))
    _check_unfinished(store, saved, from_round)
    _check_can_be_rebuilt(store, saved, dataset, experiment)
    if from_round is None:
        store.check_files()
    return saved


def is_complete(store: Store, rounds: int) -> bool:
    """Return True if a run is finished and no client has to make or evaluate a model any more.

    Args:
        store: Its store.
        rounds: The number of rounds of its experiment.
    """
    return store.is_finished and not store.missed(rounds) and not store.unevaluated()


def _check_unfinished(store: Store, saved: Mapping[str, Any], from_round: int | None) -> None:
    """Refuse to resume a finished run.

    Finished runs can be resumed if the last checkpoint is damaged, from an earlier round, or if
    clients have not made their personal models or not evaluated the last ones yet.
    """
    if not store.is_finished:
        return
    if from_round is None:
        is_over = is_complete(store, saved["rounds"])
    else:
        is_over = store.flaw(store.last_round()) is None
    if is_over:
        # A kill right after the last commit leaves files that no row names.
        store.sweep()
        run = Run(store.folder)
        reason = f"all {saved['rounds']} rounds are done"
        if run.stopped_early:
            reason = f"a callback stopped it after round {run.last_round} of {saved['rounds']}"
        run.store.close()
        raise RunError(
            f"{store.folder} is finished: {reason}; "
            f"`equipoise show {store.folder}` prints its result"
        )


def _check_can_be_rebuilt(
    store: Store,
    saved: Mapping[str, Any],
    dataset: Dataset | None,
    experiment: Experiment | None,
) -> None:
    """Refuse a run that cannot be rebuilt, or that this version would compute differently."""
    reason = store.meta("not portable")
    if dataset is not None and reason == OWN_DATA:
        reason = None
    if experiment is None and reason is not None:
        raise RunError(
            f"{store.folder} cannot be resumed from its file alone: {reason}; "
            "call equipoise.resume(folder, experiment=experiment)"
        )
    reason = outdated(saved, store.meta("version"), store.meta("task"), store.meta("clients"))
    if reason is not None:
        raise RunError(
            f"{store.folder} was {reason}; this version would compute other numbers than it "
            "began with: run it again"
        )


def _check_data_unchanged(store: Store, is_unchanged: bool) -> None:
    if is_unchanged:
        return
    recipe = store.meta("recipe")
    if recipe.get("kind") == "table" and "schema" not in recipe:
        raise RunError(
            f"{store.folder} was begun by a version ({store.meta('version')}) that read tables in "
            "another way (it had no schema), so it cannot be resumed; run the experiment again"
        )
    raise RunError(
        f"the data of {store.folder} have changed since it began; bring back the original data, "
        "or run the experiment again"
    )


def _check_not_older(store: Store, newest: Mapping[str, int]) -> None:
    """Refuse a store that was replaced by an old copy, while sites have states of later rounds.

    Args:
        store: The store.
        newest: The round of the newest state of each site that keeps its states itself.
    """
    if store.meta("went back"):
        return
    last = store.last_round()
    restarted = {client for client, _ in store.restarted()}
    for client, number in newest.items():
        # A site may be one round ahead: the server died before it committed the round.
        if number > last + 1 and client not in restarted:
            raise RunError(
                f"{store.folder} ends with round {last}, and site {client!r} has a state of round "
                f"{number}, so this is an old copy of the run; restore a newer copy, or reset the "
                f"state of the site with `equipoise network restart-client RUN {client}`"
            )


def _warn_of_other_products(store: Store) -> None:
    """Warn if matrix products of this process have other last bits than those of a stored run."""
    # Versions that did not record the mode left it to MKL's default.
    before = store.meta("environment").get("mkl", mkl.OFF)
    now = mkl.mode()
    if now != before:
        log.warning(
            "%s began with matrix products in MKL's mode %s, and this process has the mode %s: the "
            "last bits of further rounds may differ from those of an uninterrupted run; to avoid "
            "this, resume with the environment variable %s",
            store.folder,
            before,
            now,
            mkl.setting_of(before),
        )


def _foreign_tensor(folder: Path, bench: Workbench) -> str | None:
    """Return the saved tensor that explains why a resumed run failed; None if there is none."""
    store = Store(folder)
    try:
        return foreign_tensor(store, bench.initial)
    finally:
        store.close()


def _check_states(store: Store, transport: Transport, number: int, experiment: Experiment) -> None:
    """Refuse to go back to a round whose client states are no longer on the clients' disks."""
    then = store.current("client", at=number)
    now = store.current("client")
    requests = []
    for client, file in then.items():
        if file.kept_at == "client":
            request = Request(
                client,
                CheckState.step,
                CheckState().record(),
                number,
                experiment.rounds,
                state=(state_of(file.path.name), file.digest),
                committed=state_of(now[client].path.name),
            )
            requests.append(request)
    replies = transport.exchange(requests, experiment.participation.deadline)
    missing = [reply for reply in replies if reply.up is None]
    if missing:
        first = missing[0]
        raise RunError(
            f"{store.folder} cannot go back to round {number}: {len(missing)} of {len(then)} "
            f"clients cannot; the first, {first.client!r}: "
            f"{first.failure or first.error or first.stop}; "
            "restore the states there, or run the experiment again"
        )


def _metadata(session: Session, job: Job, roster: Roster) -> dict[str, Any]:
    experiment = session.experiment
    metadata = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "mkl": mkl.mode(),
        },
        "run": job.run,
        "task": asdict(roster.task),
        "data": roster.name,
        "clients": list(roster.ids),
        "sizes": {part: list(sizes.values()) for part, sizes in roster.sizes.items()},
        "shared test": roster.shared,
        "facts": session.facts,
        "recipe": session.recipe,
        "fingerprint": roster.fingerprint,
        "fingerprint of": "clients",  # runs of formats 1 and 2 have one of the whole federation
        "method": experiment.model_dump(mode="json")["method"],
        "defaults": DEFAULTS,
        "held out rounds": experiment.build_method().held_out_rounds(experiment.rounds),
        "not portable": experiment.why_not_portable,
        "metrics": _facts_of_metrics(experiment, roster.task),
    }
    stored = session.stored_roster(roster)
    return metadata if stored is None else {**metadata, "roster": stored}


def _facts_of_metrics(experiment: Experiment, task: Task) -> dict[str, Any]:
    """Return direction and unit of metrics that a reader's installation may not have."""
    metrics = registry.check(task, experiment.evaluation.metrics, experiment.evaluation.main)
    built_in = registry.REGISTRY.built_in
    return {name: metric.facts for name, metric in metrics.items() if name not in built_in}


def _complete(task: Task) -> tuple[Task, float, float]:
    """Return all facts of a task, also those that `Task` does not compare."""
    return task, task.centre, task.scale
