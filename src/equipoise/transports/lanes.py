"""Lanes, which a transport provides to the dispatcher; each executes one request after another.

A lane is a worker process, an actor of a cluster, or a site on a network. Lanes come and go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from equipoise.runtime.messages import Reply, Request
from equipoise.tree import Tree


@dataclass(eq=False)
class Batch:
    """Requests that travel to a lane in one message, by their numbers in an exchange."""

    exchange: int
    numbers: list[int]
    requests: list[Request]
    shared: dict[int, str]  # the trees that a lane is sent once, see `wire.referring`
    began: float  # when it was sent, or when the batch before it on this lane ended
    again: bool = False  # whether one of its requests was sent before
    duplicated: bool = False  # True if it was also sent to another lane, since this one is slow
    receipt: Any = None  # what `Lane.send` returned


@dataclass(eq=False)
class Lane(ABC):
    """One executor of requests, with the batches that it was sent and has not answered."""

    # Where it runs. A request that is bound to a location is sent to a lane there, and losses are
    # counted by location.
    location: str
    ready: bool = False  # whether it may be sent requests
    outstanding: deque[Batch] = field(default_factory=deque)
    trees_of: int = 0  # the exchange whose shared trees it has

    @abstractmethod
    def send(self, batch: Batch, trees: Any) -> Any:
        """Send a batch, without waiting.

        A lane that has died swallows it: `LaneGroup.poll` reports the loss.

        Args:
            batch: The requests.
            trees: What `LaneGroup.begin` returned, with the first batch of an exchange; else None.

        Returns:
            A receipt, kept in the batch.
        """


@dataclass(frozen=True)
class Answered:
    """A lane has executed its oldest batch; one answer per request, in their order."""

    lane: Lane
    answers: Sequence[Any]


@dataclass(frozen=True)
class Failed:
    """A lane lives, but could not execute its oldest batch."""

    lane: Lane
    cause: str
    blamed: bool  # whether it counts against the requests


@dataclass(frozen=True)
class Lost:
    """A lane has died. What it had begun counts against the request that it had begun with."""

    lane: Lane
    cause: str


Event = Answered | Failed | Lost


class Exchange(Protocol):
    """The facts about an exchange that a group of lanes may use."""

    @property
    def number(self) -> int:
        """The number of the exchange in its run."""
        ...

    @property
    def requests(self) -> Sequence[Request]:
        """The requests."""
        ...

    @property
    def weights(self) -> Sequence[int]:
        """Work per request, for even shares."""
        ...

    @property
    def trees(self) -> dict[str, Tree]:
        """The trees that several requests share, by key."""
        ...

    @property
    def alone(self) -> Collection[int]:
        """Numbers of requests that must travel alone."""
        ...


class LaneGroup(Protocol):
    """All lanes of a transport."""

    title: str  # of one lane, for messages: "a worker process"
    # Seconds, and a multiple of the slowest request so far, after which an outstanding request is
    # also sent to a free lane. None: never.
    patience: tuple[float, float] | None

    @property
    def lanes(self) -> Sequence[Lane]:
        """The present lanes. The requests of one that has left are not blamed for its end."""
        ...

    def location_for(self, request: Request) -> str | None:
        """Return the only location that can execute a request; None if every lane may take it."""
        ...

    def begin(self, exchange: Exchange) -> Any:
        """Prepare for an exchange; return its shared trees in the form that lanes are sent."""
        ...

    def take(self, waiting: deque[int], exchange: Exchange) -> list[int]:
        """Remove from the left of `waiting` what shall travel together; at least one."""
        ...

    def poll(self, seconds: float) -> Iterable[Event]:
        """Wait for something to happen, for so long at most.

        Also bounds the time in which a lane has to become ready, and in which there is no lane.
        """
        ...

    def accept(self, lane: Lane, request: Request, answer: Any) -> Reply:
        """Turn an answer into the reply that counts; called once per request."""
        ...

    def replace(self, lane: Lane, cause: str, hung: bool) -> None:
        """End a lane that is lost or hangs, and start another in its place where that can help."""
        ...

    def blamed(self, locations: list[str]) -> list[str]:
        """Return the locations that count against a request, of those at which it lost its lane."""
        ...


def share(
    waiting: deque[int],
    weights: Sequence[int],
    together: int,
    lanes: int,
    alone: Collection[int] = (),
) -> list[int]:
    """Take the next requests that travel together.

    Shares of the work left become smaller towards the end, so that no lane waits long for another.

    Args:
        waiting: Numbers of requests, the largest first; what is taken leaves it.
        weights: Work by number.
        together: The most that one call carries.
        lanes: How many lanes share the work.
        alone: Numbers that must not travel with others.

    Example:
        >>> waiting = deque(range(12))
        >>> [share(waiting, [5] * 12, together=16, lanes=2) for _ in range(4)]
        [[0, 1, 2], [3, 4], [5], [6]]
    """
    alone = set(alone)
    room = sum(weights[number] for number in waiting) / (2 * lanes)
    first = waiting.popleft()
    taken = [first]
    weight = weights[first]
    while waiting and len(taken) < together and not alone & {first, waiting[0]}:
        weight += weights[waiting[0]]
        if weight > room:
            break
        taken.append(waiting.popleft())
    return taken
