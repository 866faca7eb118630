"""From an experiment to a run: build what a loop needs, let it go, and keep what it leaves."""

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
from equipoise.data import Dataset, Federation, federate
from equipoise.data.check import check_data
from equipoise.data.pipeline import is_user_path
from equipoise.data.roster import Roster, old_fingerprint
from equipoise.data.samples import Samples
from equipoise.data.summary_text import default_model_text, summary_lines
from equipoise.engine.evaluation import check_main
from equipoise.engine.rounds import Loop
from equipoise.engine.signals import interruptible
from equipoise.experiment import OWN_DATA, ConfigurationError, Experiment, experiment, load
from equipoise.experiment.build import check_loss, prepare
from equipoise.method import Method
from equipoise.metrics import registry
from equipoise.models.registry import AUTO
from equipoise.runs.run import Run
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
from equipoise.validation.imports import Imports, permitted
from equipoise.version import __version__


class Simulated(Transport, Protocol):
    """A transport whose client runtimes are on this machine, with the data that they share."""

    federation: Federation


Connect = Callable[[Federation, Experiment], Simulated]


def run(
    given: Experiment | Mapping[str, Any] | str | Path,
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
        given: An experiment, a mapping with the same keys, or the path of a YAML file.
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
    if isinstance(given, (str, Path)):
        given = load(given)
    wanted = (
        given
        if isinstance(given, Experiment)
        else experiment(given, permitted(given, allow_imports))
    )
    configuration(wanted)
    folder = Path(out) if out is not None else fresh_folder(wanted)
    with Simulation(
        wanted, callbacks, transport or on_cluster(cluster, trust_network)
    ) as simulation:
        job = job_of(simulation.wanted, uuid.uuid4().hex)
        roster, bench, method = simulation.open(job, folder)
        check_loss(simulation.wanted, roster.task)
        if not quiet:
            tell(simulation.wanted, roster.task.shape, wanted.model)
        store = Store.create(
            folder,
            configuration(simulation.wanted),
            _metadata(simulation.wanted, job, roster, simulation),
        )
        return simulation.go(store, roster, bench, method)


def resume(
    folder: str | Path,
    callbacks: Callback | Iterable[Callback] | None = None,
    dataset: Dataset | None = None,
    given: Experiment | None = None,
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
        given: The experiment, if the run was started with models or methods as Python objects.
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
    with ExitStack() as on_failure:
        store = Store(Path(folder), writing=True)
        on_failure.callback(store.close)
        check_metadata(store.folder, store.meta)
        saved = with_its_defaults(read_configuration(Path(folder)), store.meta("defaults"))
        # Of a finished run nothing is given up, unless its last checkpoint is damaged; clients that missed its end are asked again.
        done = (
            not store.missed(saved["rounds"])
            if from_round is None
            else store.flaw(store.last_round()) is None
        )
        if store.meta("status") == "finished" and done:
            raise RunError(
                f"{folder} is finished: all {saved['rounds']} rounds are there; `equipoise show {folder}` prints its result"
            )
        reason = store.meta("not portable")
        if given is None and reason not in (None, OWN_DATA if dataset is not None else None):
            raise RunError(
                f"{folder} cannot be resumed from its file alone: {reason}; call equipoise.resume(folder, given=experiment)"
            )
        reason = outdated(saved, store.meta("version"), store.meta("task"))
        if reason is not None:
            raise RunError(
                f"{folder} was {reason}; this version would go on with other numbers than it began with: run it anew"
            )
        more = {"dataset": dataset} if dataset is not None else {}
        wanted = given or experiment({**saved, **more}, permitted(saved, allow_imports))
        if from_round is None:
            store.check_files()
        with Simulation(
            wanted, callbacks, transport or on_cluster(cluster, trust_network)
        ) as simulation:
            # begun by a version whose fingerprint was one of the whole federation
            old = store.meta("fingerprint of") is None
            roster, bench, method = simulation.open(
                job_of(simulation.wanted, store.meta("run") or ""), Path(folder)
            )
            if store.meta("fingerprint") != (
                old_fingerprint(simulation.federation) if old else roster.fingerprint
            ):
                recipe = store.meta("recipe")
                raise RunError(
                    f"{folder} was begun by a version ({store.meta('version')}) that read tables in another way (it had no schema), so this one "
                    "cannot go on with it; run the experiment anew"
                    if recipe.get("kind") == "table" and "schema" not in recipe
                    else f"the data of {folder} have changed since it began; bring back the original data, or run the experiment anew"
                )
            if from_round is not None:
                _check_states(store, simulation.transport, from_round, wanted)
                store.go_back(from_round)
            store.sweep()
            on_failure.pop_all()
            try:
                return simulation.go(store, roster, bench, method)
            except ClientError as error:
                wrong = _foreign_tensor(store.folder, bench)
                if wrong is None:
                    raise
                raise damaged(store.folder, wrong) from error


def _foreign_tensor(folder: Path, bench: Workbench) -> str | None:
    """Return the saved tensor that explains why a resumed run failed; None if there is none."""
    store = Store(folder)
    try:
        return foreign_tensor(store, bench.initial)
    finally:
        store.close()


def on_cluster(address: str | None, trust_network: bool) -> Connect | None:
    """Where clients do their work if a cluster is named; nothing of Ray is imported before it is needed."""
    if address is None:
        return None
    from equipoise.transports.ray.cluster import Cluster

    return partial(Cluster, address=address, trust_network=trust_network)


class Simulation:
    """An experiment whose data are on this machine: its transport, and what a loop needs beside it."""

    def __init__(
        self,
        wanted: Experiment,
        callbacks: Callback | Iterable[Callback] | None = None,
        transport: Connect | Literal["loopback"] | None = None,
    ) -> None:
        self.monitor = Monitor(CallbackList(callbacks))
        connect: Connect | None = Loopback if transport == "loopback" else transport
        with ExitStack() as on_failure:
            # processes import torch while the data are prepared here
            pool = _pool(wanted) if connect is None else None
            if pool is not None:
                on_failure.callback(pool.close)
            federation = federate(wanted.data, wanted.seed, wanted.dataset, wanted.imports)
            self.wanted = wanted = wanted.with_model(federation.task.shape)
            on_failure.pop_all()
        self.transport: Simulated = (
            Workers(pool, federation)
            if pool is not None
            else (connect or InProcess)(federation, wanted)
        )

    @property
    def federation(self) -> Federation:
        """As the transport holds it: workers put it into memory that all share, and a second copy must not stay here."""
        return self.transport.federation

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *error: object) -> None:
        self.transport.close()

    def open(self, job: Job, folder: Path) -> tuple[Roster, Workbench, Method]:
        """Connect, and check that method, networks and data fit, before anything is written."""
        with one_thread():
            roster = self.transport.open(job, folder / FILES, self.monitor)
            bench, method = prepare(self.wanted, roster.task, roster.ids)
        check_main(self.wanted.evaluation, self.federation)
        if "validation" in method.needs and not len(self.federation.server_validation):
            raise ConfigurationError(
                f"{method.title} measures models on validation data at the server, and there are none; "
                "give the clients validation parts: data.split=[0.7, 0.15, 0.15], say"
            )
        return roster, bench, method

    def go(self, store: Store, roster: Roster, bench: Workbench, method: Method) -> Run:
        """The loop, to its end."""
        validation = (
            Samples.of(self.federation, self.federation.server_validation)
            if "validation" in method.needs
            else None
        )
        shared = Samples.of(self.federation, self.federation.shared_test) if roster.shared else None
        began = time.time()
        data = ServerData(validation, shared)
        loop = Loop(self.wanted, method, bench, roster, self.transport, store, data, self.monitor)
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
            with suppress(sqlite3.Error, RunError):  # a full disk has its own error on its way
                store.set_meta(
                    "wall seconds", (store.meta("wall seconds") or 0.0) + time.time() - began
                )
            self.transport.close()
            store.close()
            self.monitor.callbacks.on_end(store.folder, failure)
        return Run(
            store.folder,
            Imports(self.wanted.imports.packages).with_names(self.wanted.model_dump(mode="json")),
            # without the data: a run that is kept must not keep them in memory
            self.wanted.model_copy(update={"dataset": None}) if self.wanted.local else None,
        )


def tell(wanted: Experiment, shape: tuple[int, ...], asked: Any) -> None:
    """How the user's own data were understood, and a model that was chosen for images: printed before training where nobody watches."""
    lines = []
    if wanted.dataset is not None or is_user_path(wanted.data):
        lines = summary_lines(check_data(wanted.data, wanted.dataset))
    if asked == AUTO and wanted.model == "cnn" and not wanted.models:
        lines.append(default_model_text(wanted.model, shape))
    for line in lines:
        print(line, file=sys.stderr)


def job_of(wanted: Experiment, run: str) -> Job:
    """What client runtimes are told: the experiment as names, and what they may import."""
    return Job(run, wanted.to_spec(), wanted.imports.plain(), version=__version__)


def configuration(wanted: Experiment) -> str:
    """The file of a run; one that could not be read again is refused before anything begins."""
    text = safe_yaml.dumped(wanted.model_dump(mode="json"))
    try:
        safe_yaml.parsed(text, "this experiment, written to a file,")
    except safe_yaml.Unreadable as error:
        raise ConfigurationError(str(error)) from None
    if len(text.encode()) > safe_yaml.MOST_BYTES:
        raise ConfigurationError(
            f"expected an experiment of at most 1 MB, got one of {len(text) / 1e6:.1f} MB; shorten its lists"
        )
    return text


def _check_states(store: Store, transport: Transport, number: int, wanted: Experiment) -> None:
    """Refuse to go back to a round where a client does not have the state of then any more; what is committed stays, whatever it says."""
    then, now = store.current("client", at=number), store.current("client")
    requests = [
        Request(
            client, CheckState.step, CheckState().record(), number, wanted.rounds,
            state=(state_of(file.path.name), file.digest), committed=state_of(now[client].path.name),
        )
        for client, file in then.items() if file.kept_at == "client"
    ]  # fmt: skip
    missing = [
        reply
        for reply in transport.exchange(requests, wanted.participation.deadline)
        if reply.up is None
    ]
    if missing:
        raise RunError(
            f"{store.folder} cannot go back to round {number}: {len(missing)} of {len(then)} clients cannot; the first, {missing[0].client!r}: "
            f"{missing[0].failure or missing[0].error or missing[0].stop}; restore the states there, or run the experiment anew"
        )


def _pool(wanted: Experiment) -> Pool | None:
    """Worker processes, if the experiment asks for some and they can do its work; None: in process."""
    count = wanted.workers if wanted.workers is not None else (os.cpu_count() or 1)
    reason = (
        wanted.local if os.name == "posix" else "this system cannot hand sockets to child processes"
    )
    if count == 0 or (wanted.workers is None and reason is not None):
        return None
    if reason is not None:
        raise ConfigurationError(
            f"workers: expected 0 because {reason} and cannot be rebuilt in a worker process, got {count}; "
            "use workers=0, or move it to a module that can be imported and name it as package.module:name"
        )
    return Pool(count)


def _metadata(
    wanted: Experiment, job: Job, roster: Roster, simulation: Simulation
) -> dict[str, Any]:
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
        "method": wanted.model_dump(mode="json")["method"],
        "defaults": DEFAULTS,
        "not portable": wanted.portable,
        "metrics": _facts_of_metrics(wanted, roster.task),
    }


def _facts_of_metrics(wanted: Experiment, task: Task) -> dict[str, Any]:
    """Direction and unit of metrics that are not built in: whoever reads the run may not have their package."""
    found = registry.check(task, wanted.evaluation.metrics, wanted.evaluation.main)
    return {
        name: metric.facts
        for name, metric in found.items()
        if name not in registry.REGISTRY.built_in
    }


def fresh_folder(wanted: Experiment) -> Path:
    """A new folder under runs/, named by time, method, data and seed."""
    method = wanted.model_dump(mode="json")["method"]["name"].rpartition(":")[2]
    stem = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{method}-{Path(wanted.data.name).name}-s{wanted.seed}"
    folder, count = Path("runs") / stem, 1
    while folder.exists():
        count += 1
        folder = Path("runs") / f"{stem}-{count}"
    return folder
