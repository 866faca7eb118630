"""The one interface between a server and its clients, whatever lies between them: what is asked, what comes back, and who carries it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from equipoise.callbacks import CallbackList, ClientProgress
from equipoise.data.roster import Roster
from equipoise.records import Down, Record, Up, read, write
from equipoise.storage.files import in_subfolder, place

PROTOCOL = 1  # of the messages between server and performing sides


@dataclass(frozen=True)
class Job:
    """All that a performing side is told of a run, as JSON."""

    run: str  # the run's id
    experiment: Mapping[str, Any]  # names only
    # what of the user's may be imported, see `imports.Imports.plain`
    allowed: Mapping[str, Any] = field(default_factory=dict)
    protocol: int = PROTOCOL
    version: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Job:
        given = json.loads(text)
        if given.get("protocol") != PROTOCOL:
            raise ValueError(
                f"expected protocol {PROTOCOL}, got {given.get('protocol')!r} from equipoise {given.get('version')}; install the same version on both sides"
            )
        return cls(**given)


class StateRef(NamedTuple):
    """A client's state as it was written: its name, its size, and the digest that every reader verifies."""

    name: str
    bytes: int
    digest: str


@dataclass
class Request:
    """Ask one client to perform one step."""

    client: str
    step: str
    down: Record
    round: int
    rounds: int
    attempt: int = 0
    exchange: int = 0  # 1, 2, ...; 0: measures, writes no state
    state: tuple[str, str] | None = None  # name and digest of the client's last accepted state
    # name of its last committed one: the performing side keeps these two
    committed: str | None = None
    large: bool = False  # the reply shall not be held in memory
    # {"splits", "metrics"}: measure the uploaded model right after training
    after: dict[str, Any] | None = None
    die: bool = False  # a simulated fault: the worker process that takes this request is killed

    def __post_init__(self) -> None:
        # a mapping: refused or made plain here, for every transport
        if not isinstance(self.down, Record):
            self.down = Down(self.down)


@dataclass
class Reply:
    """What came back: an upload, or the reason why there is none."""

    client: str
    up: Up | None = None
    state: StateRef | None = None  # its new state, if it changed
    failure: str | None = None  # the client could not answer: it is out of the round
    error: str | None = None  # the step raised: its traceback
    stop: str | None = None  # the run cannot go on: a sentence for the user
    seconds: float = 0.0
    steps: int = 0
    skipped: int = 0
    bytes: int = 0
    measured: list[dict[str, Any]] = field(default_factory=list)
    file: str | None = None  # a large reply that lies in the run's files, on the server's disk


class ClientError(RuntimeError):
    """A client's step raised; says which client, round and step."""


class Interrupted(Exception):
    """The user asked to stop; the run can be resumed."""


@dataclass
class Monitor:
    """Reports a transport's progress to callbacks, and says if the user asked to stop."""

    callbacks: CallbackList = field(default_factory=CallbackList)
    interrupted: Callable[[], bool] = lambda: False
    # Events by place, such as "clients@NODE"; the record of the round takes them.
    by_place: Counter[str] = field(default_factory=Counter)

    def on_clients(self, step: str, done: int, total: int) -> None:
        """Report that so many clients of an exchange have answered."""
        if not self.callbacks.callbacks:
            return
        by_node = {}
        for event, count in self.by_place.items():
            kind, _, node = event.partition("@")
            if kind == "clients":
                by_node[node] = float(count)
        self.callbacks.on_client(ClientProgress(step, done, total, by_node))


class Transport(Protocol):
    """How the server reaches its clients."""

    keeps: Literal["server", "client"]  # on whose disk committed client states lie

    @property
    def lanes(self) -> int:
        """How many clients are at work at a time."""
        ...

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        """Start or connect; refuse in one sentence what cannot run. `files` is the run's folder of files, which may not exist yet."""
        ...

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """One reply per request, in their order; a client that did not answer in time has a failure in its reply."""
        ...

    def close(self, keep: bool = False) -> None:
        """Also twice, also after a failed open. `keep`: what was started stays for the next run."""
        ...


def owner(client: str) -> str:
    """What the names of all of a client's states begin with."""
    return hashlib.blake2b(client.encode(), digest_size=8).hexdigest()


def state_name(client: str, round: int, attempt: int, exchange: int) -> str:
    """The name of the state that a client has after an exchange; the same name is the same bits."""
    return f"{owner(client)}-r{round}a{attempt}x{exchange}"


def round_of(state: str) -> int:
    """The round in a state's name; a name that no state has is refused, wherever it would lead.

    >>> round_of(state_name("a", 3, 0, 1))
    3
    """
    found = re.fullmatch(r"[0-9a-f]+-r([0-9]+)a[0-9]+x[0-9]+", state)
    if found is None:
        raise ValueError(
            f"expected the name of a state such as 0123456789abcdef-r1a0x1, got {state!r}"
        )
    return int(found[1])


def state_file(state: str) -> str:
    """The file in which a state lies."""
    round_of(state)
    return in_subfolder(state, f"client-{state}.safetensors")


def state_of(file: str) -> str:
    return file.removeprefix("client-").removesuffix(".safetensors")


def reply_file(request: Request) -> str:
    """The file of a large reply."""
    name = state_name(request.client, request.round, request.attempt, request.exchange)
    return in_subfolder(name, f"reply-{name}.safetensors")


def with_file(reply: Reply, files: Path) -> Reply:
    """A large reply as the server reads it: tensor by tensor, from the run's files."""
    return reply if reply.file is None else replace(reply, up=read(files / reply.file))


def put_to_file(reply: Reply, request: Request, files: Path) -> Reply:
    """A large reply that came from another disk, put into the run's files by the first process that has them."""
    if not request.large or reply.up is None or reply.file is not None:
        return reply
    name = reply_file(request)
    write(reply.up, place(files, name))
    return with_file(replace(reply, file=name), files)


def timed_out_reply(request: Request, deadline: float, files: Path) -> Reply:
    """The reply of a client whose step did not end in time; what it may have written is removed."""
    name = state_name(request.client, request.round, request.attempt, request.exchange)
    for file in (state_file(name), reply_file(request)):
        (files / file).unlink(missing_ok=True)
    return Reply(request.client, failure=f"did not answer within {deadline:g} s")
