"""Messages between server and client runtime, and the names of the files that they leave."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from equipoise.records import Down, Record, Up, size
from equipoise.storage.files import in_subfolder

PROTOCOL = 1  # version of the messages below
_GROUP = 25  # clients that are executed as a group at most
_GROUP_BYTES = 2 * 2**20  # of the messages to such a group


@dataclass(frozen=True)
class Job:
    """The message that opens a client runtime, as JSON.

    Attributes:
        run: The identifier of the run.
        experiment: The experiment as plain data.
        allowed: The packages from which code may be imported; see `Imports.plain`.
        protocol: The version of the messages.
        version: The version of the package that wrote the job.
    """

    run: str
    experiment: Mapping[str, Any]
    allowed: Mapping[str, Any] = field(default_factory=dict)
    protocol: int = PROTOCOL
    version: str = ""

    def text(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Job:
        """Read a job from JSON.

        Raises:
            ValueError: The job was written for another version of the protocol.
        """
        value = json.loads(text)
        if value.get("protocol") != PROTOCOL:
            raise ValueError(
                f"expected protocol {PROTOCOL}, got {value.get('protocol')!r} from equipoise "
                f"{value.get('version')}; install the same version on both sides"
            )
        return cls(**value)


class StateRef(NamedTuple):
    """A saved client state: its name, size, and a digest that readers verify."""

    name: str
    bytes: int
    digest: str


@dataclass
class Request:
    """Ask one client to execute one step."""

    client: str
    step: str
    down: Record
    round: int
    rounds: int
    attempt: int = 0
    exchange: int = 0  # 1, 2, ...; 0: an evaluation, which writes no state
    state: tuple[str, str] | None = None  # name and digest of the client's last accepted state
    # name of its last committed state: the client runtime keeps these two
    committed: str | None = None
    large: bool = False  # the reply shall not be held in memory
    # {"splits", "metrics"}: evaluate the uploaded model right after training
    after: dict[str, Any] | None = None
    die: bool = False  # a simulated fault: the worker process that takes this request is killed

    def __post_init__(self) -> None:
        # A mapping is made plain or refused here, by the same rule for every transport.
        if not isinstance(self.down, Record):
            self.down = Down(self.down)


def group_size(request: Request) -> int:
    """Return the number of requests like this one that are executed as a group at most."""
    if not request.exchange:
        return 1  # An evaluation trains nothing.
    return max(1, min(_GROUP, _GROUP_BYTES // max(1, size(request.down))))


@dataclass
class Reply:
    """The answer to a request: an upload, or the reason why there is none."""

    client: str
    up: Up | None = None
    state: StateRef | None = None  # its new state, if it changed
    failure: str | None = None  # the client could not answer: it is out of the round
    error: str | None = None  # the step raised: its traceback
    stop: str | None = None  # the run cannot continue: a sentence for the user
    seconds: float = 0.0
    steps: int = 0
    skipped: int = 0
    bytes: int = 0
    measured: list[dict[str, Any]] = field(default_factory=list)
    file: str | None = None  # a large reply that lies in the run's files, on the server's disk


def owner(client: str) -> str:
    """Return the prefix that the names of all states of a client share."""
    return hashlib.blake2b(client.encode(), digest_size=8).hexdigest()


def state_name(client: str, round: int, attempt: int, exchange: int) -> str:
    """Return the name of a client's state after an exchange; equal names have equal bits."""
    return f"{owner(client)}-r{round}a{attempt}x{exchange}"


def round_of(state: str) -> int:
    """Return the round in the name of a state.

    Raises:
        ValueError: If no state has such a name, for example a path to another folder.

    Example:
        >>> round_of(state_name("a", 3, 0, 1))
        3
    """
    match = re.fullmatch(r"[0-9a-f]+-r([0-9]+)a[0-9]+x[0-9]+", state)
    if match is None:
        raise ValueError(
            f"expected the name of a state such as 0123456789abcdef-r1a0x1, got {state!r}"
        )
    return int(match[1])


def state_file(state: str) -> str:
    """Return the file in which a state lies."""
    round_of(state)
    return in_subfolder(state, f"client-{state}.safetensors")


def state_of(file: str) -> str:
    """Return the name of the state that a file holds."""
    return file.removeprefix("client-").removesuffix(".safetensors")


def reply_file(request: Request) -> str:
    """Return the file of a large reply."""
    name = state_name(request.client, request.round, request.attempt, request.exchange)
    return in_subfolder(name, f"reply-{name}.safetensors")
