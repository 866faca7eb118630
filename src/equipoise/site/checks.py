"""Checks of what a server asks of a site, before anything is executed."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

from equipoise.composition import SLOTS, guest_named, parts
from equipoise.data.agreement import task_of
from equipoise.data.schema import schema_from
from equipoise.experiment import Experiment
from equipoise.experiment import experiment as experiment_from
from equipoise.method import Method
from equipoise.methods import REGISTRY
from equipoise.metrics import registry
from equipoise.records import Record
from equipoise.runtime import client_evaluation, wire
from equipoise.runtime.evaluation_messages import EvaluateModels, FeatureDistance, PredictShared
from equipoise.runtime.messages import PROTOCOL, Job, Request, owner, round_of
from equipoise.site.messages import experiment_digest
from equipoise.site.settings import AUDIT, SiteSettings
from equipoise.validation.imports import Imports
from equipoise.version import __version__

# Entries of the server's `data` section that follow from the agreement between sites. Names of
# files and sets are those of the site.
AGREED = (
    "schema",
    "split",
    "test",
    "pool",
    "task",
    "label",
    "normalise",
    "image_size",
    "window",
    "augment",
    "duplicates",
    "events",
    "groups",
)
# Functions of a method with the signature of a step that return no upload.
NO_STEPS = ("inputs", "serves", "base_models", "main_of_base")
_RUN = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = ["self", "client", "down"]


class Refused(Exception):
    """A message that a site does not act on.

    Attributes:
        word: What is wrong, one of `messages.WORDS`.
        text: More about it, for the log of the site.
    """

    def __init__(self, word: str, text: str = "") -> None:
        super().__init__(f"{word}: {text}")
        self.word = word
        self.text = text


def check_envelope(message: Record, name: str) -> str:
    """Check the entries that every message has; return its kind.

    Args:
        message: The message.
        name: The name of the site.

    Raises:
        Refused: If the message is not for this site or not of this version.
    """
    expected: dict[str, tuple[str, int | str]] = {
        "protocol": ("protocol", PROTOCOL),
        "version": ("version", __version__),
        "site": ("name", name),
    }
    for key, (word, expected_value) in expected.items():
        if not _is_same(message.get(key), expected_value):
            raise Refused(word, f"{message.get(key)!r:.80}")
    run = message.get("run")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise Refused("run", f"{run!r:.80}")
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in ("describe", "open", "perform", "close"):
        raise Refused("message", f"kind {kind!r:.80}")
    return kind


def _is_same(value: Any, expected: int | str) -> bool:
    """Return True for the same plain value; a stranger may send a tensor, or True for 1."""
    return type(value) is type(expected) and bool(value == expected)


def read_ticket(message: Record) -> str:
    """Return the ticket of a message; empty if it has none."""
    ticket = message.get("ticket")
    return ticket if isinstance(ticket, str) else ""


def read_deadline(message: Record) -> float | None:
    """Return the seconds that a step may take, or None for as long as the site allows.

    Raises:
        Refused: If it is something else than a positive number.
    """
    deadline = message.get("deadline")
    if deadline is None:
        return None
    if type(deadline) not in (int, float) or not deadline > 0:
        raise Refused("message", f"deadline {deadline!r:.80}")
    return float(min(deadline, sys.float_info.max))


def read_job(message: Record) -> Job:
    """Return the job in a message.

    Raises:
        Refused: If it is malformed, or not the one that the message announces.
    """
    try:
        job = Job.of(message["job"])
        digest = experiment_digest(job.experiment)
    except Exception as error:  # JSON of a stranger may fail in many ways
        raise Refused("message", f"job: {error}") from None
    if job.run != message["run"]:
        raise Refused("run", f"{job.run!r:.80}")
    if not _is_same(message.get("experiment"), digest):
        raise Refused("experiment", "its digest is another one")
    return job


def own_experiment(job: Job, name: str, settings: SiteSettings) -> Experiment:
    """Return the experiment as this site executes it.

    Names of data, devices, memory, imports, workers and simulated faults are the site's.

    Args:
        job: The message of the server.
        name: The name of the site.
        settings: The settings of the site.

    Raises:
        Refused: If the method or the schema is not allowed, or the experiment is not valid here.
    """
    spec = dict(job.experiment)
    for method in _method_names(spec.get("method")):
        if not _is_allowed(method, settings.methods):
            raise Refused("method", method)
    imports = Imports(frozenset(settings.imports), frozenset({AUDIT}))
    try:
        experiment = experiment_from(_own_spec(spec, name, settings), imports)
    except Exception as error:
        raise Refused("experiment", str(error)) from None
    _check_schema(experiment, settings)
    return experiment


def _check_schema(experiment: Experiment, settings: SiteSettings) -> None:
    """Refuse a schema other than the agreed one, which decides what is predicted from what."""
    if settings.schema is None:
        return
    agreed = schema_from(settings.schema)
    offered = experiment.data.schema
    if agreed is None or offered is None or agreed.plain() != offered.plain():
        raise Refused("schema", f"it is not the one of {settings.schema}")
    listed = [*settings.groups, *(column.name for column in agreed.columns)]
    for column in experiment.data.groups:
        if column not in listed:
            raise Refused(
                "schema",
                f"data.groups names {column!r:.80}, which is not a column of the agreed schema",
            )


def _own_spec(spec: Mapping[str, Any], name: str, settings: SiteSettings) -> dict[str, Any]:
    data = spec["data"]
    if not isinstance(data["schema"], Mapping):
        raise ValueError("expected the schema itself, not the name of a file")
    own_data = {key: data[key] for key in AGREED if key in data}
    own_data |= {"apart": True, "partition": "natural", "name": str(settings.data)}
    if settings.codes is not None:
        own_data["codes"] = str(settings.codes)
    own = {key: value for key, value in spec.items() if key not in ("faults", "memory", "dataset")}
    own |= {"data": own_data, "device": settings.device, "workers": 0}
    own["participation"] = {}  # the cohort is the server's affair
    evaluation = dict(spec["evaluation"])
    # Other clients are not known here.
    evaluation["no_curves"] = [client for client in evaluation["no_curves"] if client == name]
    own["evaluation"] = evaluation
    return own


def _method_names(spec: Any) -> list[str]:
    """Return the names of a method and of all methods that are composed with it."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise Refused("method", f"{spec!r:.80}")
    names = [spec["name"]]
    for slot in (*SLOTS, "beside"):
        if spec.get(slot) is not None:
            names += _method_names(spec[slot])
    return names


def _is_allowed(name: str, allowed: Collection[str] | None) -> bool:
    if allowed is None:
        return name in REGISTRY.built_in or name == AUDIT
    return name in allowed


def read_request(message: Record, name: str) -> Request:
    """Return the request in a message.

    Args:
        message: The message.
        name: The name of the site, which is the name of its client.

    Raises:
        Refused: If it is malformed, or for another client.
    """
    try:
        request = wire.request_of(message["request"], message["down"])
    except Exception as error:
        raise Refused("message", f"request: {error}") from None
    counts = (request.round, request.rounds, request.attempt, request.exchange)
    valid = [
        isinstance(request.client, str),
        isinstance(request.step, str),
        all(type(count) is int and 0 <= count < 2**31 for count in counts),
        type(request.large) is bool,
        request.after is None or isinstance(request.after, Mapping),
    ]
    if not all(valid):
        raise Refused("message", "a request of another form")
    if request.client != name:
        raise Refused("name", f"{request.client!r:.80}")
    _check_state_names(request)
    return request


def _check_state_names(request: Request) -> None:
    """Refuse names of states that are not of this client."""
    names = [] if request.committed is None else [request.committed]
    if request.state is not None:
        name, digest = request.state
        names.append(name)
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise Refused("message", "a state without a digest")
    for name in names:
        try:
            round_of(name)
        except (ValueError, TypeError) as error:
            raise Refused("message", str(error)) from None
        if not name.startswith(f"{owner(request.client)}-"):
            raise Refused("name", "a state of another client")


def check_request(request: Request, experiment: Experiment) -> None:
    """Refuse a request for an unknown step, metric or part of the data.

    Args:
        request: The request.
        experiment: The experiment of the open run.

    Raises:
        Refused: With the first of them.
    """
    if request.rounds != experiment.rounds:
        raise Refused("round", f"{request.rounds} rounds in place of {experiment.rounds}")
    if client_evaluation.handles(request.step):
        _check_evaluation(request, experiment)
    elif not request.exchange or not is_step(experiment.build_method(), request.step):
        raise Refused("step", f"{request.step!r:.80}")
    if request.after is not None:
        if request.after.keys() != {"splits", "metrics"}:
            raise Refused("message", "after: expected splits and metrics")
        if not experiment.evaluation.after_local:
            raise Refused("metrics", "the experiment does not evaluate after local training")
        _check_names(request.after, experiment)


def _check_evaluation(request: Request, experiment: Experiment) -> None:
    """Refuse an evaluation that the experiment does not have."""
    settings = experiment.evaluation
    if request.exchange:
        raise Refused("step", "an evaluation in an exchange of a round")
    if request.step == PredictShared.step:
        raise Refused("splits", "a site holds no shared test set")
    if request.step == FeatureDistance.step and not settings.distances:
        raise Refused("metrics", "the experiment does not measure distances")
    if request.step != EvaluateModels.step:
        return
    if not isinstance(request.down.get("down"), Record):
        raise Refused("message", "an evaluation without what was delivered")
    _check_names(request.down, experiment)
    sends_curves = settings.curves and request.client not in settings.no_curves
    if request.down.get("curves") and not sends_curves:
        raise Refused("metrics", "the experiment has no counts of scores of this client")
    fewest = settings.group_minimum if experiment.data.groups else 0
    if request.down.get("groups", 0) not in (0, fewest):
        raise Refused("metrics", "the experiment has no groups of so few samples")


def _check_names(values: Mapping[str, Any], experiment: Experiment) -> None:
    """Refuse metrics and parts of the data that the experiment does not have."""
    settings = experiment.evaluation
    splits = values.get("splits")
    if not _are_among(splits, settings.splits):
        raise Refused("splits", f"{splits!r:.80}")
    metrics = values.get("metrics")
    task = task_of(experiment.data.schema)
    known_metrics = registry.measured(task, settings.metrics, settings.main)
    if not _are_among(metrics, known_metrics):
        raise Refused("metrics", f"{metrics!r:.80}")


def _are_among(names: Any, known: Collection[str]) -> bool:
    """Return True for a list of known names, each at most once: a repetition would only cost."""
    if not isinstance(names, list) or len(names) > len(known):
        return False
    return all(isinstance(name, str) and name in known for name in names)


def is_step(method: Method, step: str) -> bool:
    """Return True if a method has a public step of this name.

    Args:
        method: The method, which may be composed of several.
        step: The name, such as "client", or "@fedrdn.statistics" of a guest.
    """
    part = parts(method)[0]
    name = step
    if step.startswith("@"):
        guest, _, name = step.partition(".")
        try:
            part = guest_named(method, guest)
        except StopIteration:
            return False
    if not name.isidentifier() or name.startswith("_") or name in NO_STEPS:
        return False
    function = inspect.getattr_static(type(part), name, None)
    if not inspect.isfunction(function):
        return False
    return list(inspect.signature(function).parameters) == _SIGNATURE
