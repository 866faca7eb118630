"""Networks and method of an experiment, checked against each other and against the task."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from equipoise.composition import parts
from equipoise.data import Federation
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.losses.registry import resolve, try_loss
from equipoise.method import Method
from equipoise.metrics import registry
from equipoise.task import Task
from equipoise.training.workbench import Factory, Workbench, factories
from equipoise.validation.names import nearest

# The program trains one small network, as some machines fail in the backward pass only.
_BFLOAT16_TRIAL = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 8)).to(DEVICE)
with torch.autocast(DEVICE, torch.bfloat16):
    loss = net(torch.randn(16, 1, 8, 8, device=DEVICE)).float().square().sum()
loss.backward()
"""


def prepare(
    experiment: Experiment, task: Task, ids: Sequence[str], federation: Federation | None = None
) -> tuple[Workbench, Method]:
    """Return the networks and the method of an experiment.

    Args:
        experiment: The experiment.
        task: The task of its data.
        ids: The names of all clients; of a client runtime, of those that it holds.
        federation: The data, on a client runtime only.

    Raises:
        ConfigurationError: If method, networks, metrics and task do not fit each other.
        ValueError: If a setting names a client or a model that there is not.
    """
    method = experiment.build_method()
    _check_device(experiment.device)
    _check_task(method, task)
    metrics = registry.check(task, experiment.evaluation.metrics, experiment.evaluation.main)
    shared = _factories_of_all(experiment, task)
    by_client = _factories_by_client(experiment, task)
    if federation is None:  # a client runtime may hold some of the clients only
        _check_named_clients(experiment, by_client, ids)
    built = {**shared, **method.models(task, shared)}
    _check_named_model(method, built)
    _check_group_columns(method, experiment)
    bench = Workbench(
        task,
        built,
        experiment.training,
        experiment.seed,
        federation,
        experiment.device,
        _with_models_of_method(method, task, shared, by_client),
        tuple(experiment.data.augment),
        metrics,
    )
    for name in built:
        bench.initial(name)  # a specification that cannot be built is refused now, not in round 1
    if not method.trains:
        _refuse_batch_norm(method, bench, shared)
    return bench, method


def _check_device(device: str) -> None:
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigurationError(
            f"device: expected one that is present, got {device!r}; this machine has cpu only"
        )


def _check_task(method: Method, task: Task) -> None:
    method.check(task)
    if "classes" in method.needs and not task.classifies:
        raise ConfigurationError(
            f"{method.title} works on classes, but the task is {task.kind}; "
            "choose another method or a label of classes"
        )
    if "labels" in method.needs and task.survives:
        raise ConfigurationError(
            f"{method.title} works on classes or numbers, but the task is survival; "
            "choose another method, such as fedavg, fedadam or ditto"
        )


def _factories_of_all(experiment: Experiment, task: Task) -> dict[str, Factory]:
    """Return what builds each network, for all clients that have no network of their own."""
    specs: dict[str, Any] = {}
    for name, spec in experiment.architectures().items():
        if isinstance(spec, dict):
            spec = {key: value for key, value in spec.items() if key != "clients"}
        specs[name] = spec
    return factories(specs, task, experiment.imports)


def _factories_by_client(experiment: Experiment, task: Task) -> dict[str, dict[str, Factory]]:
    """Return by name and client what builds networks of clients that have their own.

    ``{name: cnn, clients: {"3": mlp}}`` gives client 3 another network than the others.
    """
    by_client = {}
    for name, spec in experiment.architectures().items():
        if isinstance(spec, dict) and "clients" in spec:
            by_client[name] = factories(spec["clients"], task, experiment.imports)
    return by_client


def _with_models_of_method(
    method: Method,
    task: Task,
    shared: Mapping[str, Factory],
    by_client: Mapping[str, Mapping[str, Factory]],
) -> dict[str, dict[str, Factory]]:
    """Add the models that a method derives from a client's own networks.

    The network that travels, `model`, is the same for all clients, so nothing is derived from it.
    """
    result = {name: dict(own) for name, own in by_client.items()}
    differing = {name: own for name, own in by_client.items() if name != "model"}
    clients = dict.fromkeys(client for own in differing.values() for client in own)
    for client in clients:
        networks = dict(shared)
        for name, own in differing.items():
            if client in own:
                networks[name] = own[client]
        for name, factory in method.models(task, networks).items():
            if name not in shared:
                result.setdefault(name, {})[client] = factory
    return result


def _check_named_model(method: Method, built: Mapping[str, Factory]) -> None:
    """Check the name of the model that a method such as Standalone trains, of several."""
    name = getattr(parts(method)[0], "model", None)
    if isinstance(name, str) and name not in built:
        raise nearest("model of the experiment under method.model", name, list(built))


def _check_group_columns(method: Method, experiment: Experiment) -> None:
    """Refuse a method by group whose column is not among `data.groups`."""
    base, guests = parts(method)
    known = list(experiment.data.groups)
    for part in (base, *guests.values()):
        column = getattr(part, "column", "")
        if part.compares_groups and column and column not in known:
            raise nearest("column of data.groups under method.column", column, known)


def _check_named_clients(
    experiment: Experiment, by_client: Mapping[str, Mapping[str, Factory]], ids: Sequence[str]
) -> None:
    """Check every setting that names clients."""
    for name, own in by_client.items():
        _check_clients(f"models.{name}.clients", own, ids)
    for number, scripted in experiment.participation.script.items():
        _check_clients(f"participation.script.{number}", scripted.clients, ids)
    _check_clients("evaluation.no_curves", experiment.evaluation.no_curves, ids)
    faulty = [fault.client for fault in experiment.faults.script]
    _check_clients("faults.script", faulty, ids)


def _check_clients(key: str, clients: Iterable[str], ids: Sequence[str]) -> None:
    known = set(ids)
    for client in clients:
        if client not in known:
            raise nearest(f"client under {key}", client, list(ids))


def _refuse_batch_norm(method: Method, bench: Workbench, names: Iterable[str]) -> None:
    for name in names:
        if not bench.take(name).takes_single or _has_batch_norm(bench, name):
            raise ConfigurationError(
                f"{method.title} never trains a model, so batch-norm statistics would stay at "
                "their start; choose a model without batch norm"
            )


def _has_batch_norm(bench: Workbench, name: str) -> bool:
    with bench.lending():
        modules = bench.take(name).net.modules()
        return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in modules)


def check_loss(experiment: Experiment, task: Task) -> None:
    """Refuse a loss that cannot be minimised in a task.

    This is checked for new runs only, since older versions accepted such losses.

    Raises:
        ConfigurationError: If the loss is for other tasks.
        ValueError: If it fails on a small example.
    """
    loss, _ = resolve(experiment.training.loss)
    if not loss.fits(task):
        raise ConfigurationError(
            f"training.loss: {loss.name} needs {loss.needs}, but the task is {task.kind}; "
            "choose another, `equipoise losses` lists them"
        )
    try_loss(experiment.training.supervised_loss(task), task)


def try_precision(experiment: Experiment) -> None:
    """Refuse bfloat16 on a machine where it does not work.

    Raises:
        ConfigurationError: If a small network cannot be trained in bfloat16.
    """
    if experiment.training.precision == "bfloat16":
        _try_bfloat16(experiment.device)


@cache
def _try_bfloat16(device: str) -> None:
    """Train a small network in a child process.

    Some virtual machines announce bfloat16 and end in an illegal instruction.
    """
    program = _BFLOAT16_TRIAL.replace("DEVICE", repr(device))
    trial = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120
    )
    if trial.returncode:
        lines = trial.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"it ended with code {trial.returncode}"
        raise ConfigurationError(
            f"training.precision: bfloat16 does not work on this machine ({reason}); use float32"
        )
