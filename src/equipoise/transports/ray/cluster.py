"""The transport over a Ray cluster: an actor on every core of every node.

Which actor takes which client is decided by who is free, and never changes a bit: each request carries all that its result depends on. So what is
lost with an actor or a node is asked again, and what takes long is asked twice.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equipoise.data import Federation
from equipoise.data.roster import Roster, roster_of
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.records import Record, size, unpack
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.storage.store import RunError
from equipoise.transports import wire
from equipoise.transports.base import Interrupted, Watcher, put_to_file, timed_out_reply
from equipoise.transports.ray.actor import packed
from equipoise.transports.ray.connecting import connected
from equipoise.transports.ray.crew import FETCH_DEADLINE, LOOK, Call, Crew, Lane
from equipoise.transports.ray.going import Exchange
from equipoise.transports.ray.nodes import INLINE
from equipoise.transports.ray.references import References
from equipoise.transports.ray.work import work_of

log = logging.getLogger("equipoise")

TRIES = 3
TOGETHER = 16  # requests in one call
START_DEADLINE = 120.0  # seconds for an actor to import, find the data and say that it is ready
LOST_DEADLINE = 60.0  # seconds without any node, before the run stops
PATIENCE = (
    2.0,
    3.0,
)  # seconds, and times the slowest client so far, before a free actor repeats what is outstanding
STATES = 0.2  # of the smallest object store: for states that may be asked for again


class Cluster:
    """The actors of a cluster, for one run."""

    keeps: Literal["server", "client"] = "server"

    def __init__(
        self,
        federation: Federation,
        wanted: Experiment,
        address: str = "auto",
        trust_network: bool = False,
    ) -> None:
        self.federation, self.wanted, self.address, self.trust_network = (
            federation,
            wanted,
            address,
            trust_network,
        )
        self.ray: Any = None
        self.crew: Crew | None = None
        self.exchanges = 0
        self.largest = 0  # bytes of the largest reply and state so far

    @property
    def lanes(self) -> int:
        return max(1, sum(lane.ready for lane in self._crew.lanes))

    @property
    def _crew(self) -> Crew:
        assert self.crew is not None
        return self.crew

    def open(self, job: Job, files: Path, watcher: Watcher) -> Roster:
        if self.wanted.local is not None:
            raise ConfigurationError(
                f"--cluster: expected an experiment that other machines can rebuild, but {self.wanted.local}; "
                "move it to a module that can be imported and name it as package.module:name"
            )
        self.watcher, self.files = watcher, files
        self.ray, self.address, self.own = connected(self.address, self.trust_network)
        self.states = References(self.ray, files)
        self.roster = roster_of(self.federation)
        resume = f"`equipoise resume {files.parent} --cluster ADDRESS`, or without --cluster on this machine alone"
        here = self.ray.get_runtime_context().get_node_id()
        self.store = next(
            node["Resources"].get("object_store_memory", 0.0)
            for node in self.ray.nodes()
            if node["NodeID"] == here
        )
        work, self.federation = work_of(
            self.ray, self.wanted, job, self.federation, self.roster, self.store / 2
        )
        self.crew = Crew(self.ray, self.address, work, watcher, resume)
        self.crew.look()
        if not self.crew.lanes:
            raise ConfigurationError(self.crew.reason())
        self._until_ready()
        return self.roster

    def _until_ready(self) -> None:
        """Wait for the actors of all nodes; once there are some, for those of slow nodes not for ever."""
        nothing, first = Exchange({}, deque(), [], 1, {}, None), 0.0
        while any(not lane.ready for lane in self._crew.lanes) and not (
            first and time.monotonic() - first > START_DEADLINE / 4
        ):
            if self.watcher.interrupted():
                raise Interrupted
            if not first and any(lane.ready for lane in self._crew.lanes):
                first = time.monotonic()
            self._turn(nothing, None)
        if not self._crew.lanes:
            raise ConfigurationError(self._crew.reason())

    def close(self, keep: bool = False) -> None:
        if self.ray is None:
            return
        if self.crew is not None:
            for lane in list(self.crew.lanes):
                self.crew.drop(lane)
        ray, self.ray, self.crew, self.states = self.ray, None, None, References(None, Path())
        if self.own:
            with suppress(Exception):  # the cluster may be gone
                ray.shutdown()

    # Exchanges.

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        if not requests:
            return []
        self.exchanges += 1
        going = self._going(requests)
        while len(going.replies) < len(requests):
            if self.watcher.interrupted():
                raise Interrupted
            self._hand_out(going)
            self._turn(going, deadline)
        return [going.replies[number] for number in range(len(requests))]

    def _going(self, requests: Sequence[Request]) -> Exchange:
        """Large clients first, so that the last ones to finish are small; together as many as travel with one answer."""
        smallest = min([self.store, *(node.store for node in self._crew.nodes.values())])
        self.states.limit = STATES * smallest
        weights = [self.roster.sizes["train"][request.client] + 1 for request in requests]
        order = sorted(range(len(requests)), key=lambda number: -weights[number])
        shared, trees = wire.shared_trees(requests)
        each = max(1, self.largest, size(requests[0].down))
        together = max(1, min(TOGETHER, int(INLINE / each)))
        return Exchange(
            dict(enumerate(requests)),
            deque(order),
            weights,
            together,
            shared,
            self._sent(trees) if trees else None,
        )

    def _sent(self, trees: dict[str, Any]) -> Any:
        """Trees that many share: once to each node by its object store, or, small ones for few actors, with a call to each, which is quicker."""
        array = packed(Record._trusted({"trees": trees}))
        return array if array.nbytes * self.lanes <= INLINE else self._put(array)

    def _put(self, array: np.ndarray) -> Any:
        try:
            return self.ray.put(array)
        except self.ray.exceptions.ObjectStoreFullError:
            raise RunError(
                f"the object store of this node ({self.store / 2**20:.0f} MB) cannot hold {len(array) / 2**20:.0f} MB more; "
                f"start its node with a larger --store, then {self._crew.resume}"
            ) from None

    def _hand_out(self, going: Exchange) -> None:
        ready = [lane for lane in self._crew.lanes if lane.ready]
        # Small tasks are sent ahead, so that an actor never waits for the post; few large ones are given out one by one.
        for length in range(2 if len(going.pending) > 8 * self.lanes else 1):
            for lane in ready:
                if len(lane.asked) == length and going.waiting:
                    self._send(lane, going.share(self.lanes), going)
        if not going.waiting:
            self._repeat(going, [lane for lane in ready if not lane.asked])

    def _repeat(self, going: Exchange, free: list[Lane]) -> None:
        """What has been outstanding for long may be swallowed by a dead node: a free actor does it too, of another node if there is one."""
        now, (least, times) = time.monotonic(), PATIENCE
        for lane in self._crew.lanes:
            for call in lane.asked:
                missing = going.missing(call.numbers)
                # one of them may hang: together they would be late together, for ever
                if going.alone & set(missing):
                    missing = missing[:1]
                old = now - call.began > least + times * going.slowest * len(call.numbers)
                if (
                    free
                    and old
                    and missing
                    and call.exchange == self.exchanges
                    and not call.repeated
                ):
                    other = max(free, key=lambda one: one.node is not lane.node)  # called at once
                    free.remove(other)
                    call.repeated = True
                    self._forget(missing, going)
                    self._send(other, missing, going)

    def _send(self, lane: Lane, numbers: list[int], going: Exchange) -> None:
        requests = [going.pending[number] for number in numbers]
        names, keeps = (
            [request.state[0] for request in requests if request.state is not None],
            bool(requests[0].exchange),
        )
        tasks = [
            {"request": wire.to_wire(request), "down": wire.referring(request.down, going.shared)}
            for request in requests
        ]
        message = packed(Record._trusted({"tasks": tasks, "states": names, "keeps": keeps}))
        trees = going.trees if lane.knows_trees != self.exchanges else None
        lane.knows_trees = self.exchanges
        ask = lane.handle.execute.options(num_returns=1 + len(numbers) if keeps else 1)
        found = ask.remote(self.exchanges, trees, message, *map(self.states.of, names))
        answer, *states = found if keeps else [found]
        lane.asked.append(Call(self.exchanges, numbers, answer, states, time.monotonic()))

    def _turn(self, going: Exchange, deadline: float | None) -> None:
        """Take in what has arrived, and look at the clock."""
        crew = self._crew
        waited = {
            lane.asked[0].answer if lane.ready else lane.begun: lane
            for lane in crew.lanes
            if lane.asked or not lane.ready
        }
        if waited:
            for reference in self.ray.wait(list(waited), num_returns=1, timeout=0.5)[0]:
                self._take_in(waited[reference], going)
        else:
            time.sleep(0.1)
        now = time.monotonic()
        for lane in list(crew.lanes):
            if not lane.ready and now - lane.began > START_DEADLINE:
                self._lose(lane, going, f"it was not ready within {START_DEADLINE:.0f} s")
            elif deadline is not None and lane.asked and now - lane.asked[0].began > deadline:
                self._lose(lane, going, f"it did not answer within {deadline:g} s", deadline)
        if now - crew.looked > LOOK:
            crew.look()
        if not crew.lanes and going.pending:
            self._await_node()

    def _take_in(self, lane: Lane, going: Exchange) -> None:
        """The first answer of an actor, or what it did with the oldest call to it."""
        errors = self.ray.exceptions
        try:
            if not lane.ready:
                self._crew.begun(lane)
                return
            call = lane.asked[0]
            message, *states = self.ray.get([call.answer, *call.states], timeout=FETCH_DEADLINE)
        except (errors.RayActorError, errors.ActorUnschedulableError) as error:
            self._lose(lane, going, _cause(error))
            return
        except errors.RayError as error:
            if not lane.ready:
                self._lose(lane, going, _cause(error))
                return
            lane.asked.popleft()
            lane.knows_trees = 0
            # A state that is lost with its node is nobody's fault.
            self._ask_again(
                call,
                going,
                None if isinstance(error, errors.ObjectLostError) else lane.node.id,
                _cause(error),
            )
            return
        lane.asked.popleft()
        if lane.asked:
            lane.asked[0].began = time.monotonic()  # the next in its queue begins now
        if call.exchange == self.exchanges:  # else of one that did not need it any more
            nothing = [None] * len(call.numbers)
            replies = unpack(bytearray(message))["replies"]
            for number, told, state, reference in zip(
                call.numbers, replies, states or nothing, call.states or nothing, strict=True
            ):
                if number not in going.replies:
                    self._accept(
                        number,
                        wire.reply_of(told["reply"], told["up"]),
                        state,
                        reference,
                        lane,
                        going,
                    )

    def _accept(
        self, number: int, reply: Reply, state: Any, reference: Any, lane: Lane, going: Exchange
    ) -> None:
        request = going.pending[number]
        going.slowest = max(going.slowest, reply.seconds)
        self.largest = max(
            self.largest, reply.bytes, reply.state.bytes if reply.state is not None else 0
        )
        spent = {"clients": 1, "seconds": reply.seconds, "bytes": reply.bytes}
        self.watcher.by_place.update(
            {f"{what}@{lane.node.name}": value for what, value in spent.items()}
        )
        going.replies[number] = self.states.kept(
            put_to_file(reply, request, self.files), state, reference
        )
        self.watcher.on_clients(request.step, len(going.replies), len(going.pending))

    # Losses.

    def _lose(self, lane: Lane, going: Exchange, cause: str, hung: float | None = None) -> None:
        """An actor is gone, or is ended because it hangs: what it had is asked of others."""
        if lane not in self._crew.lanes:
            return
        self._crew.drop(lane)
        log.warning("an actor on node %s is lost: %s", lane.node.name, cause)
        for place, call in enumerate(lane.asked):
            if (
                hung is not None
                and not place
                and len(call.numbers) == 1
                and call.exchange == self.exchanges
            ):
                number = call.numbers[0]
                going.late[number] += 1
                if going.late[number] >= TRIES and number not in going.replies:
                    going.replies[number] = timed_out_reply(going.pending[number], hung, self.files)
            # It had not begun with others than the first.
            self._ask_again(
                call, going, lane.node.id if not place and hung is None else None, cause
            )
        self._crew.look()

    def _ask_again(self, call: Call, going: Exchange, node: str | None, cause: str) -> None:
        """The requests of a call that failed, one by one; one that lost its actor three times, and not with its node, ends the run."""
        if call.exchange != self.exchanges:
            return
        missing = going.missing(call.numbers)
        going.alone.update(missing)
        self._forget(missing, going)
        elsewhere = {
            number
            for lane in self._crew.lanes
            for other in lane.asked
            if other.exchange == call.exchange
            for number in other.numbers
        }
        for number in reversed(missing):
            request = going.pending[number] = replace(going.pending[number], die=False)
            lost = going.lost.setdefault(number, [])
            lost += [node] if node is not None else []
            if len(lost) >= TRIES and self._still_there(lost):
                raise RunError(
                    f"an actor ended {TRIES} times with client {request.client!r} in round {request.round}, step {request.step!r} (the last: {cause})"
                )
            if number not in elsewhere:
                going.waiting.appendleft(number)

    def _still_there(self, lost: list[str]) -> bool:
        """Whether so many of these nodes live; of one that just died it is known a little later."""
        time.sleep(LOOK)
        living = self._crew.living()
        lost[:] = [node for node in lost if node in living]
        return len(lost) >= TRIES

    def _forget(self, numbers: list[int], going: Exchange) -> None:
        """Their states are put again from the files: the references may be lost with a node."""
        for state in (going.pending[number].state for number in numbers):
            if state is not None:
                self.states.forget(state[0])

    def _await_node(self) -> None:
        began = time.monotonic()
        log.warning("no node is left; waiting %.0f s for one", LOST_DEADLINE)
        while not self._crew.lanes:
            if time.monotonic() - began > LOST_DEADLINE:
                raise RunError(
                    f"the cluster at {self.address} has had no node for this work for {LOST_DEADLINE:.0f} s; what is done is kept: "
                    f"with nodes again, {self._crew.resume}"
                )
            if self.watcher.interrupted():
                raise Interrupted
            time.sleep(0.5)
            self._crew.look()


def _cause(error: Exception) -> str:
    """The first line that says something."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
