"""Actors of a Ray cluster as lanes: several requests in one call, states by reference."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.records import Record, size, unpack
from equipoise.runtime import wire
from equipoise.runtime.messages import Reply, Request
from equipoise.storage.store import RunError
from equipoise.transports.base import Interrupted, Monitor, put_to_file
from equipoise.transports.lanes import Answered, Event, Exchange, Failed, Lane, Lost, share
from equipoise.transports.ray.actor import packed
from equipoise.transports.ray.actor_pool import FETCH_DEADLINE, LOOK, ActorLane, ActorPool
from equipoise.transports.ray.nodes import INLINE

log = logging.getLogger("equipoise")

TOGETHER = 16  # requests in one call
START_DEADLINE = 120.0  # seconds for an actor to import, find the data and say that it is ready
LOST_DEADLINE = 60.0  # seconds without any node, before the run stops
STATES = 0.2  # share of the smallest object store for states that may be needed again


class ActorLanes:
    """The actors of a cluster, for one run."""

    title = "an actor"
    patience: tuple[float, float] | None = (2.0, 3.0)

    def __init__(
        self, ray: Any, actors: ActorPool, files: Path, monitor: Monitor, store: float
    ) -> None:
        """Serve the actors of a pool.

        Args:
            ray: The module, connected.
            actors: The actors.
            files: The run's folder of files.
            monitor: Receives events by location, and says when to stop.
            store: Bytes of this node's object store.
        """
        self.ray = ray
        self.actors = actors
        self.files = files
        self.monitor = monitor
        self.store = store
        self.states = actors.states
        self.together = 1  # requests in one call of this exchange, at most
        self.largest = 0  # bytes of the largest reply and state so far

    @property
    def lanes(self) -> Sequence[ActorLane]:
        """The actors, also those that are still starting."""
        return self.actors.lanes

    @property
    def working(self) -> int:
        """The number of actors that execute requests, at least 1."""
        return max(1, sum(lane.ready for lane in self.lanes))

    def location_for(self, request: Request) -> None:
        """Return None: every actor can execute every request."""
        return

    # Sending.

    def begin(self, exchange: Exchange) -> Any:
        """Choose the number of requests per call; return the shared trees, or a reference."""
        stores = [self.store, *(node.store for node in self.actors.nodes.values())]
        self.states.limit = STATES * min(stores)
        each = max(1, self.largest, size(exchange.requests[0].down))
        self.together = max(1, min(TOGETHER, int(INLINE / each)))
        return self._parcel(exchange) if exchange.trees else None

    def _parcel(self, exchange: Exchange) -> Any:
        """Return trees as an array that travels with each call, or a reference to one.

        Small trees for few actors travel faster with the calls. Others are sent once to the
        object store of each node.
        """
        array = packed(Record._trusted({"trees": exchange.trees}))
        if array.nbytes * self.working <= INLINE:
            return array
        return self._put(array)

    def _put(self, array: np.ndarray) -> Any:
        try:
            return self.ray.put(array)
        except self.ray.exceptions.ObjectStoreFullError:
            raise RunError(
                f"the object store of this node ({self.store / 2**20:.0f} MB) cannot hold "
                f"{len(array) / 2**20:.0f} MB more; start its node with a larger --store, then "
                f"{self.actors.resume}"
            ) from None

    def take(self, waiting: deque[int], exchange: Exchange) -> list[int]:
        """Take the next requests that travel in one call; see `share`."""
        return share(waiting, exchange.weights, self.together, self.working, exchange.alone)

    # Receiving.

    def poll(self, seconds: float) -> Iterator[Event]:
        """Yield the event of the next actor that has one; check the nodes from time to time."""
        if not self.lanes:
            self._await_node()
        awaited = self._awaited()
        if not awaited:
            time.sleep(0.1)
        else:
            done, _ = self.ray.wait(list(awaited), num_returns=1, timeout=seconds)
            for reference in done:
                event = self._event(awaited[reference])
                if event is not None:
                    yield event
        now = time.monotonic()
        for lane in list(self.lanes):
            if not lane.ready and now - lane.began > START_DEADLINE:
                yield Lost(lane, f"it was not ready within {START_DEADLINE:.0f} s")
        if now - self.actors.looked > LOOK:
            self.actors.look()

    def _awaited(self) -> dict[Any, ActorLane]:
        """Return the references that will have a value next, with their actors."""
        awaited = {}
        for lane in self.lanes:
            if not lane.ready:
                awaited[lane.begun] = lane
            elif lane.outstanding:
                answer, _ = lane.outstanding[0].receipt
                awaited[answer] = lane
        return awaited

    def _event(self, lane: ActorLane) -> Event | None:
        """Return the answer to an actor's oldest call; None for the one that says it is ready."""
        errors = self.ray.exceptions
        try:
            if not lane.ready:
                self.actors.begun(lane)
                return None
            answer, references = lane.outstanding[0].receipt
            message, *states = self.ray.get([answer, *references], timeout=FETCH_DEADLINE)
        except (errors.RayActorError, errors.ActorUnschedulableError) as error:
            return Lost(lane, _cause(error))
        except errors.RayError as error:
            if not lane.ready:
                return Lost(lane, _cause(error))
            # A state that is lost with its node does not count as a failure of the request.
            counts = not isinstance(error, errors.ObjectLostError)
            return Failed(lane, _cause(error), counts)
        replies = unpack(bytearray(message))["replies"]
        if not references:  # an evaluation, which changes no states
            return Answered(lane, [(reply, None, None) for reply in replies])
        return Answered(lane, list(zip(replies, states, references, strict=True)))

    def accept(self, lane: Lane, request: Request, answer: Any) -> Reply:
        """Read a reply, count it for its node, and put its state into the run's files."""
        assert isinstance(lane, ActorLane)
        message, state, reference = answer
        reply = wire.reply_of(message["reply"], message["up"])
        state_bytes = reply.state.bytes if reply.state else 0
        self.largest = max(self.largest, reply.bytes, state_bytes)
        node = lane.node.name
        self.monitor.by_location.update(
            {
                f"clients@{node}": 1,
                f"seconds@{node}": reply.seconds,
                f"bytes@{node}": reply.bytes,
            }
        )
        return self.states.save_state(put_to_file(reply, request, self.files), state, reference)

    # Losses.

    def replace(self, lane: Lane, cause: str, hung: bool) -> None:
        """End an actor; a new one is started in its place."""
        assert isinstance(lane, ActorLane)
        self.actors.drop(lane)
        reason = f"it {cause}" if hung else cause
        log.warning("an actor on node %s is lost: %s", lane.node.name, reason)
        self.actors.look()

    def blamed(self, locations: list[str]) -> list[str]:
        """Return the nodes among some that are alive, and so not the cause of a loss."""
        time.sleep(LOOK)  # the death of a node is known a little later
        living = self.actors.living()
        return [location for location in locations if location in living]

    def _await_node(self) -> None:
        began = time.monotonic()
        log.warning("no node is left; waiting %.0f s for one", LOST_DEADLINE)
        while not self.lanes:
            if time.monotonic() - began > LOST_DEADLINE:
                raise RunError(
                    f"the cluster at {self.actors.address} has had no node for this work for "
                    f"{LOST_DEADLINE:.0f} s; committed rounds are kept: with nodes again, "
                    f"{self.actors.resume}"
                )
            if self.monitor.interrupted():
                raise Interrupted
            time.sleep(0.5)
            self.actors.look()


def _cause(error: Exception) -> str:
    """Return the first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
