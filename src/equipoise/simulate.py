"""Entry to a run: `run` begins one, `resume` continues one."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from equipoise.callbacks import Callback, CallbackList
from equipoise.data import Dataset, Federation
from equipoise.data.check import DataReport, check_data, check_loaded
from equipoise.data.pipeline import LoadedData, federate_loaded, is_user_path, load_with_tables
from equipoise.data.roster import Roster, old_fingerprint
from equipoise.data.samples import Samples
from equipoise.data.summary_text import default_model_text, summary_lines
from equipoise.engine.evaluation import check_main
from equipoise.engine.rounds import Loop
from equipoise.engine.signals import interruptible
from equipoise.experiment import OWN_DATA, ConfigurationError, Experiment, load
from equipoise.experiment import experiment as experiment_from
from equipoise.experiment.build import check_loss, prepare
from equipoise.method import Method
from equipoise.metrics import registry
from equipoise.models.registry import AUTO
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
from equipoise.transports.inprocess import InProcess, Loopback
from equipoise.transports.workers.pool import Workers
from equipoise.transports.workers.processes import Pool
from equipoise.validation import safe_yaml
from equipoise.validation.deprecation import renamed_argument
from equipoise.validation.imports import Imports, permitted
from equipoise.version import __version__


class Simulated(Transport, Protocol):
    """A transport whose client runtimes are on this machine, with the data that they share."""

    federation: Federation


Connect = Callable[[Federation, Experiment], Simulated]
# Called with the experiment, the report on the user's own data, and the shape of one input.
Describe = Callable[[Experiment, DataReport | None, tuple[int, ...]], None]


@renamed_argument("given", "experiment")
def run(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    callbacks: Callback | Iterable[Callback] | None = None,
    transport: Connect | Literal["loopback"] | None = None,
    allow_imports: Iterable[str] = (),
    cluster: str | None = None,
    trust_network: bool = False,
    quiet: bool = False,
) -> Run:
    """Run an experiment to its end and return its record.

    Args:
        experiment: An experiment, a mapping with the same keys, or the path of a YAML file.
        out: The folder of the run; a new one under ``runs/`` by default.
        callbacks: One or several `equipoise.Callback` objects that hear of the run's progress
            and may stop it early.
        transport: Another way to reach the clients than the experiment's ``workers``;
            ``"loopback"`` packs and unpacks every message, for tests.
        allow_imports: Packages from which code that a file names may be imported.
        cluster: The address of a Ray cluster that executes the clients: ``HOST:PORT``, or
            ``"auto"`` for the one on this machine.
        trust_network: Accept a cluster that asks for no token.
        quiet: Do not print how your own data were read.

    Returns:
        The finished run.

    Raises:
        ConfigurationError: If the experiment cannot be run as it is.
        RunError: If the folder cannot be written, or training cannot continue.
    """
    if isinstance(experiment, (str, Path)):
        experiment = load(experiment)
    if not isinstance(experiment, Experiment):
        experiment = experiment_from(experiment, permitted(experiment, allow_imports))
    connect = transport or on_cluster(cluster, trust_network)
    return start(experiment, out, callbacks, connect, None if quiet else print_description)


def start(
    experiment: Experiment,
    out: str | Path | None,
    callbacks: Callback | Iterable[Callback] | None,
    transport: Connect | Literal["loopback"] | None,
    describe: Describe | None,
) -> Run:
    """Run an experiment to its end.

    Args:
        experiment: The experiment.
        out: As for `run`.
        callbacks: As for `run`.
        transport: As for `run`.
        describe: Shows what the run learns from, once all settings have been checked.

    Returns:
        The finished run.
    """
    configuration(experiment)
    folder = Path(out) if out is not None else fresh_folder(experiment)
    with Simulation(experiment, callbacks, transport, report=describe is not None) as simulation:
        job = job_of(simulation.experiment, uuid.uuid4().hex)
        roster, bench, method = simulation.open(job, folder)
        check_loss(simulation.experiment, roster.task)
        if describe is not None:
            describe(experiment, simulation.report, roster.task.shape)
        store = Store.create(
            folder, configuration(simulation.experiment), _metadata(simulation, job, roster)
        )
        return simulation.train(store, roster, bench, method)


@renamed_argument("given", "experiment")
def resume(
    folder: str | Path,
    callbacks: Callback | Iterable[Callback] | None = None,
    dataset: Dataset | None = None,
    experiment: Experiment | None = None,
    from_round: int | None = None,
    transport: Connect | Literal["loopback"] | None = None,
    allow_imports: Iterable[str] = (),
    cluster: str | None = None,
    trust_network: bool = False,
) -> Run:
    """Continue a run that was stopped or killed.

    The result is bit-for-bit the same as without the interruption. A run may continue on another
    cluster or with another number of workers than it began with.

    Args:
        folder: The folder of the run.
        callbacks: As for `run`. Callbacks are not stored: pass them again.
        dataset: The data, if the run was started with a data set object.
        experiment: The experiment, if the run was started with models or methods as Python
            objects.
        from_round: Go back to the checkpoint of this round, for example if the newest one is
            damaged. Later rounds are computed again.
        transport: As for `run`.
        allow_imports: As for `run`.
        cluster: As for `run`.
        trust_network: As for `run`.

    Returns:
        The finished run.

    Raises:
        RunError: If the run is finished, damaged, or cannot be continued by this version.
    """
    connect = transport or on_cluster(cluster, trust_network)
    with ExitStack() as on_failure:
        store = Store(Path(folder), writing=True)
        on_failure.callback(store.close)
        check_metadata(store.folder, store.meta)
        saved = with_its_defaults(read_configuration(store.folder), store.meta("defaults"))
        _check_unfinished(store, saved, from_round)
        _check_resumable(store, saved, dataset, experiment)
        if experiment is None:
            objects = {} if dataset is None else {"dataset": dataset}
            experiment = experiment_from({**saved, **objects}, permitted(saved, allow_imports))
        if from_round is None:
            store.check_files()
        with Simulation(experiment, callbacks, connect) as simulation:
            job = job_of(simulation.experiment, store.meta("run") or "")
            roster, bench, method = simulation.open(job, store.folder)
            _check_data_unchanged(store, roster, simulation)
            if from_round is not None:
                _check_states(store, simulation.transport, from_round, experiment)
                store.go_back(from_round)
            store.sweep()
            on_failure.pop_all()
            try:
                return simulation.train(store, roster, bench, method)
            except ClientError as error:
                wrong = _foreign_tensor(store.folder, bench)
                if wrong is None:
                    raise
                raise damaged(store.folder, wrong) from error


def _check_unfinished(store: Store, saved: Mapping[str, Any], from_round: int | None) -> None:
    """Refuse to resume a finished run.

    Finished runs can be resumed if the last checkpoint is damaged, from an earlier round, or if
    clients have not made their personal models or not evaluated the last ones yet.
    """
    if store.meta("status") != "finished":
        return
    if from_round is None:
        is_complete = not store.missed(saved["rounds"]) and not store.unevaluated()
    else:
        is_complete = store.flaw(store.last_round()) is None
    if is_complete:
        # A kill right after the last commit leaves files that no row names.
        store.sweep()
        raise RunError(
            f"{store.folder} is finished: all {saved['rounds']} rounds are there; "
            f"`equipoise show {store.folder}` prints its result"
        )


def _check_resumable(
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
            "began with: run it anew"
        )


def _check_data_unchanged(store: Store, roster: Roster, simulation: Simulation) -> None:
    if store.meta("fingerprint of") is None:  # versions whose fingerprint was one of all clients
        fingerprint = old_fingerprint(simulation.federation)
    else:
        fingerprint = roster.fingerprint
    if store.meta("fingerprint") == fingerprint:
        return
    recipe = store.meta("recipe")
    if recipe.get("kind") == "table" and "schema" not in recipe:
        raise RunError(
            f"{store.folder} was begun by a version ({store.meta('version')}) that read tables in "
            "another way (it had no schema), so it cannot be resumed; run the experiment anew"
        )
    raise RunError(
        f"the data of {store.folder} have changed since it began; bring back the original data, "
        "or run the experiment anew"
    )


def _foreign_tensor(folder: Path, bench: Workbench) -> str | None:
    """Return the saved tensor that explains why a resumed run failed; None if there is none."""
    store = Store(folder)
    try:
        return foreign_tensor(store, bench.initial)
    finally:
        store.close()


def on_cluster(address: str | None, trust_network: bool) -> Connect | None:
    """Return the transport to a Ray cluster, or None without an address.

    Ray is imported only if an address is given.
    """
    if address is None:
        return None
    from equipoise.transports.ray.cluster import Cluster

    return partial(Cluster, address=address, trust_network=trust_network)


def _with_budget(callbacks: CallbackList, experiment: Experiment) -> CallbackList:
    """Return the callbacks, and one that ends the run when the experiment's budget is spent."""
    if experiment.budget is None:
        return callbacks
    return CallbackList([*callbacks.callbacks, TimeBudget(experiment.budget)])


class Simulation:
    """An experiment whose data are on this machine, with its transport.

    Attributes:
        experiment: The experiment, with the name of the model that ``auto`` stands for.
        transport: The transport to the clients.
        monitor: Passes progress on to the callbacks.
        report: How the user's own data were read, if it was asked for.
    """

    def __init__(
        self,
        experiment: Experiment,
        callbacks: Callback | Iterable[Callback] | None = None,
        transport: Connect | Literal["loopback"] | None = None,
        report: bool = False,
    ) -> None:
        """Load the data and connect to the client runtimes.

        Args:
            experiment: The experiment.
            callbacks: As for `run`.
            transport: As for `run`.
            report: True to keep a report on the user's own data.
        """
        self.monitor = Monitor(_with_budget(CallbackList(callbacks), experiment))
        connect: Connect | None = Loopback if transport == "loopback" else transport
        with ExitStack() as on_failure:
            # The processes import torch while the data are prepared here.
            pool = _pool(experiment) if connect is None else None
            if pool is not None:
                on_failure.callback(pool.close)
            federation, self.report = load_data(experiment, report)
            self.experiment = experiment.with_model(federation.task.shape)
            on_failure.pop_all()
        self.transport: Simulated
        if pool is not None:
            self.transport = Workers(pool, federation)
        elif connect is not None:
            self.transport = connect(federation, self.experiment)
        else:
            self.transport = InProcess(federation, self.experiment)

    @property
    def federation(self) -> Federation:
        """The data of the clients, as the transport holds them.

        Workers move them into shared memory, and a second copy must not stay in this process.
        """
        return self.transport.federation

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *error: object) -> None:
        self.transport.close()

    def open(self, job: Job, folder: Path) -> tuple[Roster, Workbench, Method]:
        """Connect, and check that method, networks and data fit, before anything is written."""
        with one_thread():
            roster = self.transport.open(job, folder / FILES, self.monitor)
            bench, method = prepare(self.experiment, roster.task, roster.ids)
        check_main(self.experiment.evaluation, self.federation)
        if "validation" in method.needs and not len(self.federation.server_validation):
            raise ConfigurationError(
                f"{method.title} measures models on validation data at the server, and there are "
                "none; give the clients validation parts: data.split=[0.7, 0.15, 0.15], say"
            )
        return roster, bench, method

    def train(self, store: Store, roster: Roster, bench: Workbench, method: Method) -> Run:
        """Compute all rounds that are missing, and close transport and store."""
        data = self._server_data(roster, method)
        loop = Loop(
            self.experiment, method, bench, roster, self.transport, store, data, self.monitor
        )
        began = time.time()
        failure: BaseException | None = None
        try:
            with one_thread(), interruptible() as requested:
                self.monitor.interrupted = requested
                loop.run()
        except Interrupted:
            failure = KeyboardInterrupt(
                f"stopped after round {store.last_round()}; "
                f"continue with `equipoise resume {store.folder}`"
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

    def _server_data(self, roster: Roster, method: Method) -> ServerData:
        federation = self.federation
        validation = shared = None
        if "validation" in method.needs:
            validation = Samples.of(federation, federation.server_validation)
        if roster.shared:
            shared = Samples.of(federation, federation.shared_test)
        return ServerData(validation, shared)

    def _finished(self, folder: Path) -> Run:
        imports = Imports(self.experiment.imports.packages)
        imports = imports.with_names(self.experiment.model_dump(mode="json"))
        experiment = None
        if self.experiment.why_not_remote is not None:
            # A run object must not keep the data in memory.
            experiment = self.experiment.model_copy(update={"dataset": None})
        return Run(folder, imports, experiment)


def load_data(experiment: Experiment, report: bool) -> tuple[Federation, DataReport | None]:
    """Read the data of an experiment once, and divide them among clients.

    Args:
        experiment: The experiment.
        report: True to report on the data, if they are the user's own.

    Returns:
        The clients with their data; the report, or None.

    Raises:
        ValueError: If the data cannot be read, or not be divided as the experiment says.
    """
    loaded = load_with_tables(experiment.data, experiment.imports, experiment.dataset)
    summary = _report(experiment, loaded) if report else None
    return federate_loaded(experiment.data, experiment.seed, loaded.dataset), summary


def _report(experiment: Experiment, loaded: LoadedData) -> DataReport | None:
    if experiment.dataset is not None:
        return check_data(experiment.data, experiment.dataset)
    if is_user_path(experiment.data):
        return check_loaded(experiment.data, loaded)
    return None


def print_description(
    experiment: Experiment, report: DataReport | None, shape: tuple[int, ...]
) -> None:
    """Print on standard error how the user's data were read, and a model chosen for images.

    Args:
        experiment: The experiment as it was given.
        report: The report on the data; None for registered data sets.
        shape: The shape of one input.
    """
    lines = summary_lines(report) if report is not None else []
    model = experiment.with_model(shape).model
    if experiment.model == AUTO and model == "cnn" and not experiment.models:
        lines.append(default_model_text(model, shape))
    for line in lines:
        print(line, file=sys.stderr)


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
            "restore the states there, or run the experiment anew"
        )


def _pool(experiment: Experiment) -> Pool | None:
    """Return worker processes, or None if clients are executed in this process."""
    count = experiment.workers
    if count is None:
        count = os.cpu_count() or 1
    if os.name == "posix":
        reason = experiment.why_not_remote
    else:
        reason = "this system cannot hand sockets to child processes"
    if count == 0 or (experiment.workers is None and reason is not None):
        return None
    if reason is not None:
        raise ConfigurationError(
            f"workers: expected 0 because {reason} and cannot be rebuilt in a worker process, "
            f"got {count}; use workers=0, or move it to a module that can be imported and name it "
            "as package.module:name"
        )
    return Pool(count)


def _metadata(simulation: Simulation, job: Job, roster: Roster) -> dict[str, Any]:
    experiment = simulation.experiment
    federation = simulation.federation
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cpu": torch.backends.cpu.get_cpu_capability(),
        },
        "run": job.run,
        "task": asdict(roster.task),
        "data": roster.name,
        "clients": list(roster.ids),
        "sizes": {part: list(sizes.values()) for part, sizes in roster.sizes.items()},
        "shared test": roster.shared,
        "facts": federation.metadata,
        "recipe": federation.recipe,
        "fingerprint": roster.fingerprint,
        "fingerprint of": "clients",  # runs of formats 1 and 2 have one of the whole federation
        "method": experiment.model_dump(mode="json")["method"],
        "defaults": DEFAULTS,
        "not portable": experiment.why_not_portable,
        "metrics": _facts_of_metrics(experiment, roster.task),
    }


def _facts_of_metrics(experiment: Experiment, task: Task) -> dict[str, Any]:
    """Return direction and unit of metrics that a reader's installation may not have."""
    metrics = registry.check(task, experiment.evaluation.metrics, experiment.evaluation.main)
    built_in = registry.REGISTRY.built_in
    return {name: metric.facts for name, metric in metrics.items() if name not in built_in}


def fresh_folder(experiment: Experiment) -> Path:
    """Return the path of a new folder under runs/, named by time, method, data and seed."""
    method = experiment.model_dump(mode="json")["method"]["name"].rpartition(":")[2]
    data = Path(experiment.data.name).name
    began = datetime.now().strftime("%Y%m%d-%H%M%S")
    stem = f"{began}-{method}-{data}-s{experiment.seed}"
    folder = Path("runs") / stem
    count = 1
    while folder.exists():
        count += 1
        folder = Path("runs") / f"{stem}-{count}"
    return folder
