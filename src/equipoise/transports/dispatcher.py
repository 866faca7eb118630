"""The dispatcher: sends the requests of an exchange to lanes, and collects one reply for each.

A request goes to any free lane. That never changes a bit of the result, because a request carries
all that its result depends on. So a request that is lost with its lane is sent again, and one that
takes long may be sent twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equipoise.runtime import wire
from equipoise.runtime.messages import Reply, Request
from equipoise.storage.store import RunError
from equipoise.transports.base import Interrupted, Monitor, timed_out_reply
from equipoise.transports.lanes import Answered, Batch, Event, Failed, Lane, LaneGroup, Lost
from equipoise.tree import Tree

TRIES = 3  # times that a request may lose its lane
POLL = 0.5  # seconds between two looks at the clock


@dataclass
class _Exchange:
    """The requests of one exchange, by number, and their progress."""

    number: int
    requests: list[Request]
    weights: list[int]
    shared: dict[int, str]  # see `wire.shared_trees`
    trees: dict[str, Tree]
    parcel: Any = None  # the shared trees as lanes are sent them
    # Largest first, by the location that alone may take them; None: any lane.
    waiting: dict[str | None, deque[int]] = field(default_factory=dict)
    absent: dict[str, float] = field(default_factory=dict)  # location without a lane -> since when
    alone: set[int] = field(default_factory=set)  # were sent before, so they travel alone
    duplicated: set[int] = field(default_factory=set)
    losses: dict[int, list[str]] = field(default_factory=dict)  # number -> where it lost a lane
    replies: dict[int, Reply] = field(default_factory=dict)
    slowest: float = 0.0  # seconds of one request

    def queues(self, location: str) -> Iterable[deque[int]]:
        """Yield the queues from which a lane may take requests, its own first."""
        return [queue for queue in (self.waiting.get(location), self.waiting.get(None)) if queue]

    def missing(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if number not in self.replies]


class Dispatcher:
    """Owns the queue, the order, retries and deadlines of a transport's exchanges."""

    def __init__(
        self,
        group: LaneGroup,
        sizes: Mapping[str, int],
        files: Path,
        monitor: Monitor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve a group of lanes.

        Args:
            group: The lanes of a transport.
            sizes: Training samples per client; large clients are sent first.
            files: The run's folder of files.
            monitor: Receives progress, and says when to stop.
            clock: Returns seconds; monotonic.
        """
        self.group, self.sizes, self.files = group, sizes, files
        self.monitor, self.clock = monitor, clock
        self._exchange = _Exchange(0, [], [], {}, {})
        self._known: set[Lane] = set()

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Return one reply per request, in their order.

        The reply of a client whose step takes longer than `deadline` seconds is a failure, and its
        request is not sent again. A request whose lane died is sent up to `TRIES` times.

        Raises:
            Interrupted: The user requested a stop.
            RunError: A request lost its lane too often, or the group has no lanes any more.
        """
        if not requests:
            return []
        exchange = self._begin(requests)
        while len(exchange.replies) < len(requests):
            self._hand_out()
            self._turn(deadline)
        return [exchange.replies[number] for number in range(len(requests))]

    def wait_until(self, settled: Callable[[], bool]) -> None:
        """Process events until a condition holds, such as that lanes are ready."""
        while not settled():
            self._turn(None)

    def _begin(self, requests: Sequence[Request]) -> _Exchange:
        shared, trees = wire.shared_trees(requests)
        weights = [self.sizes[request.client] + 1 for request in requests]
        number = self._exchange.number + 1
        self._exchange = exchange = _Exchange(number, list(requests), weights, shared, trees)
        # Large clients first, so that the last ones to finish are small.
        for position in sorted(range(len(requests)), key=lambda position: -weights[position]):
            location = self.group.location_for(requests[position])
            exchange.waiting.setdefault(location, deque()).append(position)
        exchange.parcel = self.group.begin(exchange)
        return exchange

    # Sending.

    def _hand_out(self) -> None:
        ready = [lane for lane in self.group.lanes if lane.ready]
        # Small tasks are sent ahead, so that a lane never waits for the next one. Few large ones
        # are sent one by one.
        ahead = 2 if len(self._exchange.requests) > 8 * max(1, len(ready)) else 1
        for length in range(ahead):
            for lane in ready:
                if len(lane.outstanding) == length:
                    self._feed(lane)
        if self.group.patience is not None and not any(self._exchange.waiting.values()):
            self._send_twice([lane for lane in ready if not lane.outstanding])

    def _feed(self, lane: Lane) -> None:
        for queue in self._exchange.queues(lane.location):
            self._send(lane, self.group.take(queue, self._exchange))
            return

    def _send(self, lane: Lane, numbers: list[int]) -> None:
        exchange = self._exchange
        requests = [exchange.requests[number] for number in numbers]
        again = not exchange.alone.isdisjoint(numbers)
        batch = Batch(exchange.number, numbers, requests, exchange.shared, self.clock(), again)
        lane.outstanding.append(batch)
        trees = exchange.parcel if lane.trees_of != exchange.number else None
        lane.trees_of = exchange.number
        batch.receipt = lane.send(batch, trees)

    def _send_twice(self, free: list[Lane]) -> None:
        """Send slow requests to free lanes, too; the machine of the first lane may have died."""
        for lane in self.group.lanes:
            for batch in lane.outstanding:
                if free and self._is_slow(batch):
                    self._duplicate(batch, lane.location, free)

    def _is_slow(self, batch: Batch) -> bool:
        assert self.group.patience is not None
        seconds, factor = self.group.patience
        allowed = seconds + factor * self._exchange.slowest * len(batch.numbers)
        current = batch.exchange == self._exchange.number and not batch.duplicated
        return current and self.clock() - batch.began > allowed

    def _duplicate(self, batch: Batch, location: str, free: list[Lane]) -> None:
        """Send the unanswered requests of a batch to other lanes, if possible at another location.

        One of the requests may hang, so each travels alone from now on and has its own deadline.
        """
        exchange = self._exchange
        batch.duplicated = True
        missing = [
            number
            for number in exchange.missing(batch.numbers)
            if number not in exchange.duplicated and self._any_lane(number)
        ]
        if not missing:
            return
        exchange.alone.update(missing)
        exchange.duplicated.update(missing)
        other = next((lane for lane in free if lane.location != location), free[0])
        free.remove(other)
        self._put_back(missing[1:])
        self._send(other, missing[:1])

    def _any_lane(self, number: int) -> bool:
        return self.group.location_for(self._exchange.requests[number]) is None

    # Receiving.

    def _turn(self, deadline: float | None) -> None:
        """Process the events of the lanes, and enforce the deadline."""
        if self.monitor.interrupted():
            raise Interrupted
        for event in self.group.poll(POLL):
            self._process(event)
        self._notice_departures()
        if deadline is not None:
            self._end_overdue(deadline)
            self._end_absent(deadline)

    def _process(self, event: Event) -> None:
        lane = event.lane
        if isinstance(event, Lost):
            self._lose(lane, event.cause)
            return
        batch = lane.outstanding.popleft()
        if lane.outstanding:
            lane.outstanding[0].began = self.clock()  # the next in its queue begins now
        if isinstance(event, Failed):
            lane.trees_of = 0
            self._send_again(batch, lane.location if event.blamed else None, event.cause)
        elif batch.exchange == self._exchange.number:
            self._accept(lane, batch, event)

    def _accept(self, lane: Lane, batch: Batch, event: Answered) -> None:
        exchange = self._exchange
        for number, answer in zip(batch.numbers, event.answers, strict=True):
            if number in exchange.replies:  # another lane was quicker
                continue
            reply = self.group.accept(lane, exchange.requests[number], answer)
            exchange.slowest = max(exchange.slowest, reply.seconds)
            self._settle(number, reply)

    def _settle(self, number: int, reply: Reply) -> None:
        exchange = self._exchange
        exchange.replies[number] = reply
        if number in exchange.duplicated:
            for queue in exchange.waiting.values():
                if number in queue:
                    queue.remove(number)
        self.monitor.on_clients(
            exchange.requests[number].step, len(exchange.replies), len(exchange.requests)
        )

    # Losses.

    def _lose(self, lane: Lane, cause: str) -> None:
        if lane not in self.group.lanes:  # with its machine, in the same turn
            return
        self.group.replace(lane, cause, hung=False)
        self._known.discard(lane)
        self._send_again_all(lane, lane.location, cause)

    def _notice_departures(self) -> None:
        """Send the requests of lanes again that the group has removed by itself."""
        present = set(self.group.lanes)
        for lane in self._known - present:
            self._send_again_all(lane, None, "")
        self._known = present

    def _end_overdue(self, deadline: float) -> None:
        now = self.clock()
        for lane in list(self.group.lanes):
            if not lane.outstanding or now - lane.outstanding[0].began <= deadline:
                continue
            first = lane.outstanding[0]
            # The lane is ended first, so that all that it writes is removed below.
            self.group.replace(lane, f"did not answer within {deadline:g} s", hung=True)
            self._known.discard(lane)
            if first.exchange == self._exchange.number and len(first.numbers) == 1:
                self._time_out(first.numbers[0], deadline)
            self._send_again_all(lane, None, "")

    def _time_out(self, number: int, deadline: float) -> None:
        """Exclude a client whose step takes too long, unless another lane still executes it."""
        exchange = self._exchange
        if number not in exchange.replies and not self._is_on_its_way(number):
            request = exchange.requests[number]
            self._settle(number, timed_out_reply(request, deadline, self.files))

    def _end_absent(self, deadline: float) -> None:
        """Exclude the clients of a location that has had no lane for as long as the deadline."""
        exchange, now = self._exchange, self.clock()
        bound = [location for location in exchange.waiting if location is not None]
        present = {lane.location for lane in self.group.lanes} if bound else set()
        for location in bound:
            if location in present:
                exchange.absent.pop(location, None)
            elif now - exchange.absent.setdefault(location, now) > deadline:
                queue = exchange.waiting[location]
                while queue:
                    self._time_out(queue.popleft(), deadline)

    def _send_again_all(self, lane: Lane, blamed: str | None, cause: str) -> None:
        """Send the requests of a lane to others; it had begun with the first batch only."""
        batches = list(lane.outstanding)
        lane.outstanding.clear()
        for batch in reversed(batches):
            self._send_again(batch, blamed if batch is batches[0] else None, cause)

    def _send_again(self, batch: Batch, blamed: str | None, cause: str) -> None:
        exchange = self._exchange
        if batch.exchange != exchange.number:
            return
        missing = exchange.missing(batch.numbers)
        exchange.alone.update(missing)
        for number in missing:
            # A simulated fault happens once.
            exchange.requests[number] = replace(exchange.requests[number], die=False)
            if blamed is not None:
                self._blame(number, blamed, cause)
        self._put_back([number for number in missing if not self._is_on_its_way(number)])

    def _blame(self, number: int, location: str, cause: str) -> None:
        losses = self._exchange.losses.setdefault(number, [])
        losses.append(location)
        if len(losses) >= TRIES:
            losses[:] = self.group.blamed(losses)
        if len(losses) >= TRIES:
            request = self._exchange.requests[number]
            raise RunError(
                f"{self.group.title} ended {TRIES} times with client {request.client!r} in round "
                f"{request.round}, step {request.step!r} (the last: {cause})"
            )

    def _put_back(self, numbers: list[int]) -> None:
        """Let requests be the next to be sent, in their order."""
        for number in reversed(numbers):
            location = self.group.location_for(self._exchange.requests[number])
            queue = self._exchange.waiting.setdefault(location, deque())
            if number not in queue:
                queue.appendleft(number)

    def _is_on_its_way(self, number: int) -> bool:
        return any(
            number in batch.numbers
            for lane in self.group.lanes
            for batch in lane.outstanding
            if batch.exchange == self._exchange.number
        )
