"""From an experiment to a run: build what a loop needs, let it go, and keep what it leaves."""

from __future__ import annotations

import os
import platform
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import yaml

import equipoise
from equipoise import plainyaml
from equipoise.data import Dataset, Federation, federate
from equipoise.experiment import OWN_DATA, ConfigurationError, Experiment, experiment, load
from equipoise.imports import Imports, permitted
from equipoise.method import Method
from equipoise.names import nearest
from equipoise.rounds import Loop
from equipoise.runs.run import Run, read_configuration
from equipoise.runs.store import RunError, Store
from equipoise.task import Task
from equipoise.transports.exchange import Interrupted, Watcher
from equipoise.transports.inprocess import InProcess, Loopback
from equipoise.transports.workers import Workers
from equipoise.workbench import Factory, Workbench, factories, one_thread


def run(
    given: Experiment | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    transport: str | None = None,
    allow_imports: Iterable[str] = (),
) -> Run:
    """Run an experiment to its end and return its record.

    `given` may also be the path of a YAML file; code that it names is imported from the packages in `allow_imports` only. `out` is the run's
    folder (default: a new one under `runs/`). `transport="loopback"` packs and unpacks everything on its way, for tests.
    """
    if isinstance(given, (str, Path)):
        given = load(given)
    wanted = given if isinstance(given, Experiment) else experiment(given, permitted(given, allow_imports))
    text = configuration(wanted)
    with ExitStack() as on_failure:
        pool = _workers(wanted, transport)  # processes import torch while the data are prepared here
        if pool is not None:
            on_failure.callback(pool.close)
        federation = federate(wanted.data, wanted.seed, wanted.dataset)
        bench, method = prepare(wanted, federation.task, federation)
        folder = Path(out) if out is not None else fresh_folder(wanted)
        store = Store.create(folder, text, _facts(wanted, federation))
        on_failure.pop_all()
        del federation  # the workbench has it; workers put it into shared memory, and a second copy must not stay here
    return _go(wanted, method, bench, store, watcher, pool or (Loopback if transport == "loopback" else InProcess)(bench, method))


def resume(
    folder: str | Path,
    watcher: Watcher | None = None,
    dataset: Dataset | None = None,
    given: Experiment | None = None,
    allow_imports: Iterable[str] = (),
) -> Run:
    """Go on with a run that was stopped or killed; the result is the same, bit for bit, as if it never was.

    A run whose data, model or method were Python objects needs them again: `given` is the experiment it was started with. Code that the
    run's file names is imported from the packages in `allow_imports` only.
    """
    with ExitStack() as on_failure:
        store = Store(Path(folder), writing=True)
        on_failure.callback(store.close)
        if store.meta("status") == "finished":
            raise RunError(f"{folder} is finished: all {store.last_round()} rounds are there; `equipoise show {folder}` prints its result")
        reason = store.meta("not portable")
        if given is None and reason not in (None, OWN_DATA if dataset is not None else None):
            raise RunError(f"{folder} cannot be resumed from its file alone: {reason}; call equipoise.resume(folder, given=experiment)")
        wanted = given or _saved(Path(folder), dataset, allow_imports)
        store.check_files()
        store.sweep()
        pool = _workers(wanted, None)
        if pool is not None:
            on_failure.callback(pool.close)
        federation = federate(wanted.data, wanted.seed, wanted.dataset)
        if fingerprint(federation) != store.meta("fingerprint"):
            raise RunError(f"the data of {folder} have changed since it began; bring back the original data, or run the experiment anew")
        bench, method = prepare(wanted, federation.task, federation)
        on_failure.pop_all()
        del federation
    return _go(wanted, method, bench, store, watcher, pool or InProcess(bench, method))


def _saved(folder: Path, dataset: Dataset | None, allow_imports: Iterable[str]) -> Experiment:
    """The experiment that a run's own file holds."""
    config = read_configuration(folder)
    return experiment({**config, **({"dataset": dataset} if dataset is not None else {})}, permitted(config, allow_imports))


def configuration(wanted: Experiment) -> str:
    """The file of a run; one that could not be read again is refused before anything begins."""
    text = yaml.safe_dump(wanted.model_dump(mode="json"), sort_keys=False)
    try:
        plainyaml.parsed(text, "this experiment, written to a file,")
    except plainyaml.Unreadable as error:
        raise ConfigurationError(str(error)) from None
    if len(text.encode()) > plainyaml.MOST_BYTES:
        raise ConfigurationError(f"expected an experiment of at most 1 MB, got one of {len(text) / 1e6:.1f} MB; shorten its lists")
    return text


def prepare(wanted: Experiment, task: Task, federation: Federation | None) -> tuple[Workbench, Method]:
    """The workbench and the method of an experiment, checked against each other."""
    method = wanted.build_method()
    if wanted.device != "cpu" and not torch.cuda.is_available():
        raise ConfigurationError(f"device: expected one that is present, got {wanted.device!r}; this machine has cpu only")
    if wanted.training.precision == "bfloat16" and federation is not None:
        _try_bfloat16(wanted.device)
    overrides: dict[str, dict[str, Factory]] = {}
    architectures: dict[str, Any] = {}
    for name, spec in wanted.architectures().items():
        if isinstance(spec, dict) and "clients" in spec:  # {name: cnn, clients: {"3": mlp}}: some clients have their own
            overrides[name] = factories(spec["clients"], task, wanted.imports)
            unknown = [client for client in overrides[name] if federation is not None and client not in federation.ids]
            if unknown and federation is not None:
                raise nearest(f"client under models.{name}.clients", unknown[0], list(federation.ids))
            spec = {key: value for key, value in spec.items() if key != "clients"}
        architectures[name] = spec
    if method.needs_classes and not task.classifies:
        raise ConfigurationError(
            f"{type(method).__name__} works on classes, but the task is regression; choose another method or a label of classes"
        )
    method.check(task)
    if method.needs_validation and federation is not None and not len(federation.server_validation):
        raise ConfigurationError(
            f"{type(method).__name__} measures models on validation data at the server, and there are none; "
            "give the clients validation parts: data.split=[0.7, 0.15, 0.15], say"
        )
    own = factories(architectures, task, wanted.imports)
    built = {**own, **method.models(task, own)}
    bench = Workbench(task, built, wanted.training, wanted.seed, federation, wanted.device, overrides)
    for name in built:
        bench.initial(name)  # a specification that cannot be built is refused now, not in round 1
    if not method.trains and any(not bench.take(name).takes_single or _has_batch_norm(bench, name) for name in architectures):
        raise ConfigurationError(
            f"{type(method).__name__} never trains a model, so batch-norm statistics would stay at their start; choose a model without batch norm"
        )
    return bench, method


@cache
def _try_bfloat16(device: str) -> None:
    """Refuse bfloat16 where it does not work: some virtual machines announce it and end in an illegal instruction, so a child process tries."""
    program = (
        "import torch; from torch import nn; net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 8)).to(D)\n"
        "with torch.autocast(D, torch.bfloat16): loss = net(torch.randn(16, 1, 8, 8, device=D)).float().square().sum()\n"
        "loss.backward()"
    ).replace("D", repr(device))
    tried = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120)
    if tried.returncode:
        said = tried.stderr.strip().splitlines()[-1:] or [f"it ended with code {tried.returncode}"]
        raise ConfigurationError(f"training.precision: bfloat16 does not work on this machine ({said[0]}); use float32")


def _has_batch_norm(bench: Workbench, name: str) -> bool:
    with bench.lending():
        return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in bench.take(name).net.modules())


def _go(wanted: Experiment, method: Method, bench: Workbench, store: Store, watcher: Watcher | None, transport: InProcess | Workers) -> Run:
    watcher = watcher or Watcher()
    began = time.time()
    try:
        with one_thread(), interruptible() as requested:
            watcher.interrupted = requested
            transport.watcher = watcher
            if isinstance(transport, Workers):
                transport.begin(wanted, bench)
            Loop(wanted, method, bench, transport, store, watcher).run()
    except Interrupted:
        raise KeyboardInterrupt(f"stopped after round {store.last_round()}; go on with `equipoise resume {store.folder}`") from None
    finally:
        with suppress(sqlite3.Error):  # a full disk has its own error on its way
            store.set_meta("wall seconds", (store.meta("wall seconds") or 0.0) + time.time() - began)
        transport.close()
        store.close()
    return Run(store.folder, Imports(wanted.imports.packages).with_names(wanted.model_dump(mode="json")))


def _workers(wanted: Experiment, kind: str | None) -> Workers | None:
    """Worker processes, if the experiment asks for some and they can do its work; None: in process."""
    count = wanted.workers if wanted.workers is not None else (os.cpu_count() or 1)
    reason = wanted.local if os.name == "posix" else "this system cannot hand sockets to child processes"
    if count == 0 or kind is not None or (wanted.workers is None and reason is not None):
        return None
    if reason is not None:
        raise ConfigurationError(
            f"workers: expected 0 because {reason} and cannot be rebuilt in a worker process, got {count}; "
            "use workers=0, or move it to a module that can be imported and name it as package.module:name"
        )
    return Workers(count)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C asks the run to end after the current client; a second one ends it at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def fingerprint(federation: Federation) -> str:
    """A short digest of the data and how they were dealt: two runs are comparable when it is equal."""
    import hashlib

    digest = hashlib.sha256()  # processors have instructions for it
    for tensor in (federation.x, federation.y):
        digest.update(tensor.contiguous().numpy().data)
    for parts in (federation.train, federation.validation, federation.test):
        digest.update(parts.index.tobytes() + parts.offsets.tobytes())
    digest.update(federation.shared_test.tobytes() + repr(federation.ids).encode())
    return digest.hexdigest()[:32]


def _facts(wanted: Experiment, federation: Federation) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": equipoise.__version__,
        "environment": {"python": platform.python_version(), "torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()},
        "task": asdict(federation.task),
        "data": federation.name,
        "clients": list(federation.ids),
        "sizes": {part: [int(n) for n in getattr(federation, part).sizes] for part in ("train", "validation", "test")},
        "shared test": len(federation.shared_test),
        "facts": federation.facts,
        "recipe": federation.recipe,
        "fingerprint": fingerprint(federation),
        "method": wanted.model_dump(mode="json")["method"],
        "not portable": wanted.portable,
    }


def fresh_folder(wanted: Experiment) -> Path:
    """A new folder under runs/, named by time, method, data and seed."""
    method = wanted.model_dump(mode="json")["method"]["name"].rpartition(":")[2]
    stem = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{method}-{Path(wanted.data.name).name}-s{wanted.seed}"
    folder, place = Path("runs") / stem, 1
    while folder.exists():
        place += 1
        folder = Path("runs") / f"{stem}-{place}"
    return folder
