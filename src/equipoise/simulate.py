"""Entry to a run: `run` begins one, `resume` continues one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from equipoise.callbacks import Callback
from equipoise.data import Dataset, Federation
from equipoise.data.check import DataReport, check_data, check_loaded
from equipoise.data.pipeline import LoadedData, federate_loaded, is_user_path, load_with_tables
from equipoise.data.roster import Roster, old_fingerprint
from equipoise.data.samples import Samples
from equipoise.data.summary_text import default_model_text, summary_lines
from equipoise.experiment import ConfigurationError, Experiment, load
from equipoise.experiment import experiment as experiment_from
from equipoise.method import Method
from equipoise.models.registry import AUTO
from equipoise.runs.run import Run
from equipoise.runtime.messages import Job
from equipoise.server import ServerData
from equipoise.session import Session, check_resumable, configuration, monitor_of, never
from equipoise.storage.store import RunError, Store
from equipoise.transports.base import Transport
from equipoise.transports.inprocess import InProcess, Loopback
from equipoise.transports.workers.pool import Workers
from equipoise.transports.workers.processes import Pool
from equipoise.validation.deprecation import renamed_argument
from equipoise.validation.imports import permitted


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
        if describe is None:
            return simulation.start(folder)
        report = simulation.report
        return simulation.start(folder, lambda task: describe(experiment, report, task.shape))


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
    """Continue a run that was interrupted or killed.

    The result is bit-for-bit the same as without the interruption. A run may continue on another
    cluster or with another number of workers than it began with. A run that a callback or a budget
    stopped is finished: to train further, run the experiment again in another folder.

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
    store = Store(Path(folder), writing=True)
    with ExitStack() as on_failure:
        on_failure.callback(store.close)
        saved = check_resumable(store, from_round, dataset, experiment)
        if store.data_at_sites:
            raise RunError(
                f"the data of {store.folder} are at sites; continue it over their network with "
                f"{store.resume_command()}"
            )
        if experiment is None:
            objects = {} if dataset is None else {"dataset": dataset}
            experiment = experiment_from({**saved, **objects}, permitted(saved, allow_imports))
        simulation = Simulation(experiment, callbacks, connect)
        on_failure.pop_all()
    with simulation:
        return simulation.resume(store, from_round)


def retrain_without(
    run: Run,
    sites: Sequence[str],
    from_round: int | None = 0,
    callbacks: Callback | Iterable[Callback] | None = None,
    out: str | Path | None = None,
    allow_imports: Iterable[str] = (),
) -> Run:
    """Train a run again without some sites, as if they had never joined.

    The seed is that of the run, and nothing is taken from the rows of these sites. So the result
    equals that of a run in which they never joined, bit for bit (`runs.digests.result_digest`). The
    old run stays as it is.

    Args:
        run: The run.
        sites: The sites that leave.
        from_round: 0, since every later round has learnt from all sites.
        callbacks: As for `run`.
        out: The folder of the new run; by default next to the old one.
        allow_imports: As for `run`.

    Raises:
        RunError: If another round is named, the data are at sites, or a Python object is missing.
        ValueError: If there is no such site.
    """
    if from_round != 0:
        raise RunError(
            "--without: expected --from-round 0, since every later round has learnt from the site; "
            "add it"
        )
    reason = run.store.meta("not portable")
    if run.store.data_at_sites or reason is not None:
        raise RunError(
            f"{run.folder} cannot be trained again here: {reason or 'its data are at sites'}; "
            "start a run without the site in the way that it was started"
        )
    data = dict(run.config["data"])
    data["without"] = list(dict.fromkeys([*data.get("without", ()), *sites]))
    config = {**run.config, "data": data}
    experiment = experiment_from(config, permitted(config, allow_imports))
    folder = run.folder.with_name("-".join([run.folder.name, "without", *sites]))
    if out is not None:
        folder = Path(out)
    return start(experiment, folder, callbacks, None, None)


def on_cluster(address: str | None, trust_network: bool) -> Connect | None:
    """Return the transport to a Ray cluster, or None without an address.

    Ray is imported only if an address is given.
    """
    if address is None:
        return None
    from equipoise.transports.ray.cluster import Cluster

    return partial(Cluster, address=address, trust_network=trust_network)


class Simulation(Session):
    """A session whose data are on this machine.

    Attributes:
        experiment: The experiment, with the name of the model that ``auto`` stands for.
        transport: The transport to the clients.
        monitor: Passes progress on to the callbacks.
        report: How the user's own data were read, if it was asked for.
    """

    transport: Simulated

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
        self.monitor = monitor_of(experiment, callbacks)
        self.interrupted = never
        connect: Connect | None = Loopback if transport == "loopback" else transport
        with ExitStack() as on_failure:
            # The processes import torch while the data are prepared here.
            pool = _pool(experiment) if connect is None else None
            if pool is not None:
                on_failure.callback(pool.close)
            federation, self.report = load_data(experiment, report)
            self.experiment = experiment.with_model(federation.task.shape)
            on_failure.pop_all()
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

    def connect(self, job: Job, files: Path, known: Roster | None) -> Roster:
        """Start the client runtimes; return names and sizes of the clients."""
        return self.transport.open(job, files, self.monitor)

    def server_data(self, roster: Roster, method: Method) -> ServerData:
        """Return the server's validation data if the method needs them, and shared tests."""
        federation = self.federation
        validation = shared = None
        if "validation" in method.needs:
            if not len(federation.server_validation):
                raise ConfigurationError(
                    f"{method.title} measures models on validation data at the server, and there "
                    "are none; give the clients validation parts, such as "
                    "data.split=[0.7, 0.15, 0.15], or the server a set of its own: "
                    "data.server_validation=0.1"
                )
            validation = Samples.of(federation, federation.server_validation)
        if roster.shared:
            shared = Samples.of(federation, federation.shared_test)
        return ServerData(validation, shared)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the data that the store holds."""
        return self.federation.metadata

    @property
    def recipe(self) -> dict[str, Any]:
        """The preparation of inputs, with the statistics of all clients."""
        return self.federation.recipe

    def stored_roster(self, roster: Roster) -> None:
        """Return None: the data are here whenever the run is resumed."""
        return

    def same_data(self, store: Store, roster: Roster) -> bool:
        """Return True if clients have the data with which a stored run began."""
        if (
            store.meta("fingerprint of") is None
        ):  # versions whose fingerprint was one of all clients
            return bool(store.meta("fingerprint") == old_fingerprint(self.federation))
        return super().same_data(store, roster)


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
