"""What travels between server and clients, and what a client's side does with it: the same code in process, in a worker and on a network."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from equipoise import evaluation
from equipoise.client import Client
from equipoise.composition import guest_named, parts
from equipoise.method import Method
from equipoise.metrics import parameter_distances
from equipoise.records import CannotSave, Down, Record, Up, finite, read, size, tensors_of, write
from equipoise.runs.files import digest
from equipoise.transports.isolation import settings_kept, time_limit
from equipoise.tree import Tree
from equipoise.workbench import Samples, Workbench

MEASURE = "@measure"  # steps of the engine's own, beside those of a method
OUTPUTS = "@outputs"
DISTANCE = "@distance"


@dataclass
class Request:
    """Ask one client to perform one step."""

    client: str
    step: str
    down: Record
    round: int
    rounds: int
    attempt: int = 0
    exchange: int = 0
    state: str | None = None  # the file of the client's last accepted state
    state_round: int = 0  # the round that wrote it
    keep: str | None = None  # the new file for its next state
    spool: str | None = None  # where a reply goes that is too large to be held in memory with its cohort
    die: bool = False  # a simulated fault: the worker process that takes this request is killed
    after: dict[str, Any] | None = None  # {"splits", "metrics"}: measure the uploaded model right after training

    def __post_init__(self) -> None:
        if not isinstance(self.down, Record):  # a mapping: refused or made plain here, for every transport
            self.down = Down(self.down)


@dataclass
class Reply:
    """What came back: an upload, or the reason why there is none."""

    client: str
    up: Up | None = None
    state: str | None = None  # the file of its new state, if it changed
    digest: str | None = None  # of that file
    failure: str | None = None  # the client could not answer: it is out of the round
    error: str | None = None  # the step raised: its traceback
    stop: str | None = None  # the run cannot go on: a sentence for the user
    seconds: float = 0.0
    steps: int = 0
    skipped: int = 0
    bytes: int = 0
    measured: list[dict[str, Any]] = field(default_factory=list)


def late(request: Request, deadline: float) -> Reply:
    """The reply of a client whose step did not end in time; what it may have written is removed."""
    for name in (request.keep, request.spool):
        if name is not None:
            Path(name).unlink(missing_ok=True)
    what = f"did not answer within {deadline:g} s"
    if request.step in (MEASURE, OUTPUTS, DISTANCE):  # without its numbers the round could not be told
        return Reply(
            request.client,
            stop=f"client {request.client!r} {what} when it was to measure models in round {request.round}; raise participation.deadline, then resume",
        )
    return Reply(request.client, failure=what)


class ClientError(RuntimeError):
    """A client's step raised; says which client, round and step."""


class Interrupted(Exception):
    """The user asked to stop; the run can be resumed."""


@dataclass
class Watcher:
    """What a run tells to whoever watches, and how it learns that it should stop; the defaults say nothing."""

    on_start: Callable[[int, int], None] = lambda first, rounds: None
    on_clients: Callable[[str, int, int], None] = lambda step, done, total: None
    on_round: Callable[[Any], None] = lambda record: None
    interrupted: Callable[[], bool] = lambda: False


class Transport(Protocol):
    """How the server reaches its clients."""

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Replies in the order of the requests; a client that did not answer in time has a failure in its reply."""
        ...

    def close(self) -> None: ...


def perform(bench: Workbench, method: Method, request: Request, deadline: float | None = None) -> Reply:
    """Do what a request asks, and keep the client's new state in a new file. Raises `Late` where this thread can be interrupted."""
    began = time.perf_counter()
    client = Client(bench, request.client, request.round, request.rounds, _state(request), request.attempt)
    measured: list[dict[str, Any]] = []
    with settings_kept(), bench.lending(), time_limit(deadline):
        if request.step == MEASURE:
            up, measured = _measured(method, client, request.down)
        elif request.step == OUTPUTS:
            up = _outputs(bench, method, client, request.down)
        elif request.step == DISTANCE:
            up = _distance(client, request.down)
        else:
            up = _step(method, client, request)
            if request.after and "model" in up:
                measured = evaluation.measure(client, {"global": client.load(up.model)}, **request.after)
    broken = next((name for name, value in tensors_of(dict(client.state)) if not finite(value)), None) if client.state.changed else None
    if broken is not None:
        return Reply(request.client, failure=f"its own state {broken} holds values that are not finite")
    sent = size(up)
    if request.spool is not None:
        write(up, Path(request.spool))
        up = read(Path(request.spool))
    kept = None
    if client.state.changed and request.keep is not None:
        write(Record(dict(client.state)), Path(request.keep))
        kept = request.keep
    return Reply(
        request.client,
        up,
        kept,
        None if kept is None else digest(Path(kept)),
        seconds=time.perf_counter() - began,
        steps=client.steps,
        skipped=client.skipped,
        bytes=sent,
        measured=measured,
    )


def perform_safely(bench: Workbench, method: Method, request: Request) -> Reply:
    """As `perform`, with an exception turned into a reply that carries its traceback."""
    try:
        return perform(bench, method, request)
    except CannotSave as error:
        return Reply(request.client, stop=str(error))
    except Exception:
        return Reply(request.client, error=traceback.format_exc())


def _state(request: Request) -> dict[str, Any]:
    if request.state is None:
        return {}
    saved = read(Path(request.state), lazy=False)
    return {key: value for key, value in saved.items() if not key.startswith("_") or request.state_round == request.round}


def _step(method: Method, client: Client, request: Request) -> Up:
    down = request.down if isinstance(request.down, Down) else Down(request.down)
    if request.step.startswith("@"):  # a step of a guest: "@fedrdn.statistics"
        owner, _, name = request.step.partition(".")
        with client.owned_by(owner):
            return _replied(getattr(guest_named(method, owner), name)(client, down), name)
    client.inputs = method.inputs(client, down)
    if request.step != "client":
        return _replied(getattr(parts(method)[0], request.step)(client, down), request.step)
    received = down.get("model")
    up = method.before(client, received)
    up = _merged(up, _replied(method.client(client, down), "client"))
    if method.uploads_model and not isinstance(up.get("model"), Tree):
        raise TypeError(
            f"{parts(method)[0].title}.client sent {sorted(up) or 'nothing'}, but no `model`; end it with `return Up(model=model)`, "
            "or say in the class that it uploads none: uploads_model = False"
        )
    return _merged(up, method.after(client, received, up.get("model")))


def _replied(given: Any, step: str) -> Up:
    if given is None:
        return Up()
    if not isinstance(given, Up):
        raise TypeError(f"{step}: expected an Up, got {type(given).__name__}; end the step with `return Up(name=value)`")
    return given


def _merged(first: Up, second: Up) -> Up:
    if not first or not second:
        return second or first
    branches = {key: {**first[key], **second[key]} for key in first.keys() & second.keys() if key.startswith("@")}
    return Up({**first, **second, **branches})


def _measured(method: Method, client: Client, asked: Record) -> tuple[Up, list[dict[str, Any]]]:
    """The client's models on its own data, and on the shared test set those that are its own; the reply says which are the same for all."""
    served = evaluation.served(method, client, asked["down"])
    common = {name for name, one in served.items() if one.same_for_all and asked["alike"]}
    rows = []
    for split in asked["splits"]:
        models = {name: one.model for name, one in served.items() if split != "shared" or name not in common}
        rows += evaluation.measure(client, models, [split], asked["metrics"])
    return Up(served={name: {"common": name in common, "main": one.main} for name, one in served.items()}), rows


def _outputs(bench: Workbench, method: Method, client: Client, asked: Record) -> Up:
    """Logits of a model that is the same for all, on a slice of the shared test set."""
    assert bench.federation is not None
    model = evaluation.served(method, client, asked["down"])[asked["model"]].model
    return Up(logits=client.predict(model, Samples.of(bench.federation, bench.federation.shared_test[asked["start"] : asked["stop"]])))


def _distance(client: Client, asked: Record) -> Up:
    """Angle and Manhattan distance between the mean features of the client's data under its own and under the new global model."""
    if not len(client.train):
        return Up()
    local, new = (client.features(client.load(asked[name])).flatten(1).double().mean(0).numpy() for name in ("local", "new"))
    return Up(parameter_distances(local, new))
