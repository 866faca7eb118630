"""From an experiment to what does its work: the networks, the method, and whether they fit each other and the task."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
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


def prepare(
    wanted: Experiment, task: Task, ids: Sequence[str], federation: Federation | None = None
) -> tuple[Workbench, Method]:
    """The workbench and the method of an experiment, checked against each other; with the data on a client runtime only."""
    method = wanted.build_method()
    if wanted.device != "cpu" and not torch.cuda.is_available():
        raise ConfigurationError(
            f"device: expected one that is present, got {wanted.device!r}; this machine has cpu only"
        )
    method.check(task)
    if "classes" in method.needs and not task.classifies:
        raise ConfigurationError(
            f"{method.title} works on classes, but the task is regression; "
            "choose another method or a label of classes"
        )
    metrics = registry.check(task, wanted.evaluation.metrics, wanted.evaluation.main)
    overrides: dict[str, dict[str, Factory]] = {}
    architectures: dict[str, Any] = {}
    for name, spec in wanted.architectures().items():
        # {name: cnn, clients: {"3": mlp}}: some clients have their own
        if isinstance(spec, dict) and "clients" in spec:
            overrides[name] = factories(spec["clients"], task, wanted.imports)
            if federation is None:  # a client runtime may hold some of the clients only
                _check_clients(f"models.{name}.clients", overrides[name], ids)
            spec = {key: value for key, value in spec.items() if key != "clients"}
        architectures[name] = spec
    if federation is None:
        for number, scripted in wanted.participation.script.items():
            _check_clients(f"participation.script.{number}", scripted.clients, ids)
        _check_clients("evaluation.no_curves", wanted.evaluation.no_curves, ids)
        _check_clients("faults.script", [fault.client for fault in wanted.faults.script], ids)
    own = factories(architectures, task, wanted.imports)
    built = {**own, **method.models(task, own)}
    # Standalone's, say: which of several models it trains
    named = getattr(parts(method)[0], "model", None)
    if isinstance(named, str) and named not in built:
        raise nearest("model of the experiment under method.model", named, list(built))
    # What a method brings follows from a client's own architectures; the one that travels, `model`, is the same for all.
    differing = {name: theirs for name, theirs in overrides.items() if name != "model"}
    for client in dict.fromkeys(client for theirs in differing.values() for client in theirs):
        seen = {
            **own,
            **{name: theirs[client] for name, theirs in differing.items() if client in theirs},
        }
        for name, factory in method.models(task, seen).items():
            if name not in own:
                overrides.setdefault(name, {})[client] = factory
    bench = Workbench(
        task,
        built,
        wanted.training,
        wanted.seed,
        federation,
        wanted.device,
        overrides,
        tuple(wanted.data.augment),
        metrics,
    )
    for name in built:
        bench.initial(name)  # a specification that cannot be built is refused now, not in round 1
    if not method.trains and any(
        not bench.take(name).takes_single or _has_batch_norm(bench, name) for name in architectures
    ):
        raise ConfigurationError(
            f"{method.title} never trains a model, so batch-norm statistics would stay at their start; choose a model without batch norm"
        )
    return bench, method


def check_loss(wanted: Experiment, task: Task) -> None:
    """Refuse a loss that cannot be minimised in a task; to be asked of a new run, since older versions let it pass."""
    loss, _ = resolve(wanted.training.loss)
    if not loss.fits(task):
        raise ConfigurationError(
            f"training.loss: {loss.name} needs {loss.needs}, but the task is {task.kind}; choose another, `equipoise losses` lists them"
        )
    try_loss(wanted.training.supervised_loss(task), task)


def _check_clients(where: str, given: Iterable[str], ids: Sequence[str]) -> None:
    known = set(ids)
    for client in given:
        if client not in known:
            raise nearest(f"client under {where}", client, list(ids))


def _has_batch_norm(bench: Workbench, name: str) -> bool:
    with bench.lending():
        return any(
            isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
            for module in bench.take(name).net.modules()
        )


def try_precision(wanted: Experiment) -> None:
    """Refuse bfloat16 where it does not work; a matter of the machines that train."""
    if wanted.training.precision == "bfloat16":
        _try_bfloat16(wanted.device)


@cache
def _try_bfloat16(device: str) -> None:
    """Some virtual machines announce it and end in an illegal instruction, so a child process tries."""
    program = (
        "import torch; from torch import nn; net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 8)).to(D)\n"
        "with torch.autocast(D, torch.bfloat16): loss = net(torch.randn(16, 1, 8, 8, device=D)).float().square().sum()\n"
        "loss.backward()"
    ).replace("D", repr(device))
    tried = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120
    )
    if tried.returncode:
        said = tried.stderr.strip().splitlines()[-1:] or [f"it ended with code {tried.returncode}"]
        raise ConfigurationError(
            f"training.precision: bfloat16 does not work on this machine ({said[0]}); use float32"
        )
