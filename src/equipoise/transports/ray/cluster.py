"""The transport over a Ray cluster: an actor on every core of every node.

Which actor takes which client is decided by who is free, and never changes a bit: each request carries all that its result depends on. So what is
lost with an actor or a node is asked again, and what takes long is asked twice.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from equipoise.data import Federation
from equipoise.data.roster import Roster, roster_of
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.records import CannotSave, Record, size, unpack
from equipoise.runs.store import RunError
from equipoise.transports import wire
from equipoise.transports.base import Interrupted, Job, Reply, Request, Watcher, late, put_to_file, state_file
from equipoise.transports.ray import nodes
from equipoise.transports.ray.actor import Actor, kind, packed
from equipoise.transports.states import ServerStates
from equipoise.transports.workers.memory import taken_apart

log = logging.getLogger("equipoise")

TRIES = 3
TOGETHER = 16  # requests in one call
LOOK = 5.0  # seconds between two looks at the nodes
START_DEADLINE = 120.0  # for an actor to import, find the data and say that it is ready
FETCH_DEADLINE = 60.0  # for what an actor has done to arrive here
LOST_DEADLINE = 60.0  # without any node, before the run stops
PATIENCE = 2.0, 3.0  # seconds, and times the slowest client so far, before a free actor repeats what is outstanding
CACHE = 0.2  # of the smallest object store: for states


@dataclass
class _Node:
    """A machine of the cluster."""

    id: str
    name: str
    cores: int
    store: int  # bytes of its object store
    starts: int = 0  # actors that were started here since one was ready


@dataclass(eq=False)
class _Call:
    """Requests that travel together."""

    exchange: int
    numbers: list[int]
    answer: Any  # references
    states: list[Any]
    began: float
    repeated: bool = False


@dataclass(eq=False)
class _Actor:
    """An actor as this side knows it."""

    node: _Node
    handle: Any
    begun: Any  # the reference of its first answer
    began: float
    ready: bool = False
    asked: deque[_Call] = field(default_factory=deque)
    knows_trees: int = 0  # the last exchange whose trees it was sent


@dataclass
class _Exchange:
    """Requests on their way."""

    pending: dict[int, Request]
    waiting: deque[int]
    weights: list[int]  # of the requests, for a fair share of work
    together: int  # at most so many in a call
    alone: set[int] = field(default_factory=set)  # those that were lost once travel alone
    lost: dict[int, list[str]] = field(default_factory=dict)  # the nodes on which a request lost its actor
    late: Counter[int] = field(default_factory=Counter)
    replies: dict[int, Reply] = field(default_factory=dict)
    slowest: float = 0.0


class Cluster:
    """The actors of a cluster, for one run."""

    keeps: Literal["server", "client"] = "server"

    def __init__(self, federation: Federation, wanted: Experiment, address: str = "auto", trust: bool = False) -> None:
        self.federation, self.wanted, self.address, self.trust = federation, wanted, address, trust
        self.watcher = Watcher()
        self.actors: list[_Actor] = []
        self.nodes: dict[str, _Node] = {}
        self.left_out: dict[str, str] = {}  # id of a node -> why
        self.cache: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # name of a state -> its reference and size
        self.exchanges, self.looked = 0, 0.0
        self.data: Any = None
        self.trees: Any = None
        self.largest = 0  # bytes of the largest state and reply so far
        self.ray: Any = None
        self.connected = False

    @property
    def lanes(self) -> int:
        return max(1, sum(actor.ready for actor in self.actors))

    # Beginning and end.

    def open(self, job: Job, files: Path, watcher: Watcher) -> Roster:
        self.watcher, self.files, self.states = watcher, files, ServerStates(files)
        nodes.check_installed()
        if self.wanted.local is not None:
            raise ConfigurationError(
                f"--cluster: expected an experiment that other machines can rebuild, but {self.wanted.local}; "
                "move it to a module that can be imported and name it as package.module:name"
            )
        self.address = nodes.address_of(self.address)
        self.ray, self.connected = connect(self.address, self.trust)
        self.roster = roster_of(self.federation)
        told, arrays = taken_apart(self.federation)
        self.told = json.dumps(
            {"kind": kind(), "job": job.text(), "path": [path or os.getcwd() for path in sys.path], "data": told}
        ).encode()
        self.bytes = sum(array.nbytes for array in arrays.values())
        here = self.ray.get_runtime_context().get_node_id()
        self.store = min(
            (node["Resources"].get("object_store_memory", 0.0) for node in self.ray.nodes() if node["NodeID"] == here), default=0.0
        )
        if self.bytes <= self.store / 2:
            self.data = self.ray.put(arrays)
            self.federation = replace(self.federation, **_read_only(self.ray.get(self.data)))  # this process, too, needs the data once only
        self._look()
        if not self.nodes:
            raise ConfigurationError(self._without_nodes())
        self._until_ready()
        return self.roster

    def _until_ready(self) -> None:
        """Wait for the actors of all nodes; for those of a slow node not for ever."""
        nothing, first = _Exchange({}, deque(), [], 1), None
        while any(not actor.ready for actor in self.actors) or not self.actors:
            if self.watcher.interrupted():
                raise Interrupted
            if first is None and any(actor.ready for actor in self.actors):
                first = time.monotonic()
            if first is not None and time.monotonic() - first > START_DEADLINE / 4:
                return
            if not self.actors and self.left_out:
                raise ConfigurationError(self._without_nodes())
            self._turn(nothing, None)

    def _without_nodes(self) -> str:
        if not self.left_out:
            return f"the cluster at {self.address} offers no CPUs; start nodes with `equipoise cluster start --join {self.address} --token FILE`"
        return f"no node of the cluster at {self.address} can do this work: " + "; ".join(dict.fromkeys(self.left_out.values()))

    def close(self, keep: bool = False) -> None:
        if self.ray is None:
            return
        with suppress(Exception):  # the cluster may be gone
            for actor in self.actors:
                self.ray.kill(actor.handle)
        self.actors, self.data, self.trees = [], None, None
        self.cache.clear()
        if self.connected:
            with suppress(Exception):
                self.ray.shutdown()
        self.ray = None

    # Nodes come and go.

    def _look(self) -> None:
        """See which nodes there are: new ones get actors, as do those that lost some; the actors of lost ones are dropped."""
        self.looked = time.monotonic()
        self._check_head()
        there = {}
        for told in self.ray.nodes():
            cores, store = int(told["Resources"].get("CPU", 0)), int(told["Resources"].get("object_store_memory", 0))
            if told["Alive"] and cores and told["NodeID"] not in self.left_out:
                name = f"{told['NodeManagerAddress']}:{told['NodeManagerPort']}"
                there[told["NodeID"]] = self.nodes.get(told["NodeID"]) or _Node(told["NodeID"], name, cores, store)
        for node in self.nodes.values():
            if node.id not in there and node.id not in self.left_out:
                self._say(f"node {node.name} is lost", f"lost@{node.name}")
        joined = [node for node in there.values() if node.id not in self.nodes]
        for node in joined if self.nodes else []:
            self._say(f"node {node.name} has joined", f"joined@{node.name}")
        self.nodes = there
        for node in there.values():
            for _ in range(node.cores - sum(actor.node.id == node.id for actor in self.actors)):
                self._start(node)

    def _start(self, node: _Node) -> None:
        if node.starts >= TRIES * node.cores:
            self._leave_out(node, f"its actors ended {node.starts} times while starting")
            return
        own = self.data is None or self.bytes > node.store / 2
        if own and self.wanted.dataset is not None:
            self._leave_out(node, f"the data ({self.bytes / 2**20:.0f} MB) exceed half of its object store ({node.store / 2**20:.0f} MB), "
                                  "and data given as Python objects cannot be made there")  # fmt: skip
            return
        node.starts += 1
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        made = self.ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Actor)
        handle = made.options(scheduling_strategy=strategy).remote()
        self.actors.append(_Actor(node, handle, handle.begin.remote(self.told, None if own else self.data), time.monotonic()))

    def _begun(self, actor: _Actor) -> None:
        """An actor has spoken for the first time: it may do the work, or says why not."""
        said = json.loads(self.ray.get(actor.begun, timeout=FETCH_DEADLINE))
        other = [f"{name} {theirs} and not {kind()[name]}" for name, theirs in said["kind"].items() if theirs != kind()[name]]
        if other:
            self._leave_out(actor.node, f"it has {', '.join(other)}")
        elif "refused" in said:
            if self.data is not None and self.bytes <= actor.node.store / 2:
                raise ConfigurationError(said["refused"])
            self._leave_out(actor.node, f"it cannot make the data: {said['refused']}")
        elif said.get("fingerprint", self.roster.fingerprint) != self.roster.fingerprint:
            self._leave_out(actor.node, "its data folder holds other data than this machine")
        else:
            actor.ready, actor.node.starts = True, 0

    def _leave_out(self, node: _Node, reason: str) -> None:
        self.left_out[node.id] = f"node {node.name} is left out: {reason}"
        self._say(self.left_out[node.id], f"left out@{node.name}")
        for actor in [actor for actor in self.actors if actor.node is node]:
            self.actors.remove(actor)
            self.ray.kill(actor.handle)

    def _say(self, sentence: str, event: str) -> None:
        log.warning(sentence)

    def _check_head(self) -> None:
        """Ray ends a process a minute after the head is gone; the run stops before that, with a sentence."""
        host, _, port = self.address.rpartition(":")
        for _ in range(TRIES):
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=LOOK):
                return
            time.sleep(0.3)
        raise RunError(
            f"the head of the cluster at {self.address} is lost, so the run stops; what is done is kept: start a cluster again, then {self._resume()}"
        )

    def _resume(self) -> str:
        return f"`equipoise resume {self.files.parent} --cluster ADDRESS`, or without --cluster on this machine"

    # Exchanges.

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        if not requests:
            return []
        self.exchanges += 1
        shared, trees = wire.shared_trees(requests)
        self.shared, self.trees = shared, self.ray.put(packed(Record(trees=trees))) if trees else None
        going = self._going(requests)
        while len(going.replies) < len(requests):
            if self.watcher.interrupted():
                raise Interrupted
            self._hand_out(going)
            self._turn(going, deadline)
        self.trees = None
        return [going.replies[number] for number in range(len(requests))]

    def _going(self, requests: Sequence[Request]) -> _Exchange:
        """Large clients first, so that the last ones to finish are small; together as many as a small part of an object store holds."""
        weights = [self.roster.sizes["train"][request.client] + 1 for request in requests]
        order = sorted(range(len(requests)), key=lambda number: -weights[number])
        room = min((node.store for node in self.nodes.values()), default=0) / TOGETHER
        each = max(1, self.largest, size(requests[0].down))
        return _Exchange(dict(enumerate(requests)), deque(order), weights, max(1, min(TOGETHER, int(room / each))))

    def _hand_out(self, going: _Exchange) -> None:
        """Give the free actors work: shares that become smaller towards the end."""
        ready = [actor for actor in self.actors if actor.ready]
        # Small tasks are sent ahead, so that an actor never waits for the post; few large ones are given out one by one.
        ahead = 2 if len(going.pending) > 8 * self.lanes else 1
        for length in range(ahead):
            for actor in ready:
                if len(actor.asked) == length and going.waiting:
                    self._send(actor, self._share(going), going)
        if not going.waiting:
            self._repeat(going, [actor for actor in ready if not actor.asked])

    def _share(self, going: _Exchange) -> list[int]:
        taken = [going.waiting.popleft()]
        share = (going.weights[taken[0]] + sum(going.weights[number] for number in going.waiting)) / (2 * self.lanes)
        weight = going.weights[taken[0]]
        while taken[0] not in going.alone and going.waiting and len(taken) < going.together and going.waiting[0] not in going.alone:
            weight += going.weights[going.waiting[0]]
            if weight > share:
                break
            taken.append(going.waiting.popleft())
        return taken

    def _repeat(self, going: _Exchange, free: list[_Actor]) -> None:
        """What has been outstanding for long may have been swallowed by a dead node: a free actor does it, too, on another node if there is one."""
        now, (least, times) = time.monotonic(), PATIENCE
        for actor in self.actors:
            for call in actor.asked:
                missing = [number for number in call.numbers if number not in going.replies]
                old = now - call.began > least + times * going.slowest * len(call.numbers)
                if free and call.exchange == self.exchanges and old and not call.repeated and missing:
                    other = max(free, key=lambda one: one.node is not actor.node)
                    free.remove(other)
                    call.repeated = True
                    going.alone.update(missing)
                    self._forget(missing, going)
                    self._send(other, missing, going)

    def _send(self, actor: _Actor, numbers: list[int], going: _Exchange) -> None:
        requests = [going.pending[number] for number in numbers]
        names = [request.state[0] for request in requests if request.state is not None]
        keeps = bool(requests[0].exchange)
        tasks = [{"request": wire.told(request), "down": wire.referring(request.down, self.shared)} for request in requests]
        message = packed(Record._trusted({"tasks": tasks, "states": names, "keeps": keeps}))
        trees = self.trees if actor.knows_trees != self.exchanges else None
        actor.knows_trees = self.exchanges
        ask = actor.handle.perform.options(num_returns=1 + len(numbers) if keeps else 1)
        found = ask.remote(self.exchanges, trees, message, *map(self._state, names))
        answer, *states = found if keeps else [found]
        actor.asked.append(_Call(self.exchanges, numbers, answer, states, time.monotonic()))

    def _turn(self, going: _Exchange, deadline: float | None) -> None:
        """Take in what has arrived, and look at the clock."""
        waited = {actor.asked[0].answer if actor.ready else actor.begun: actor for actor in self.actors if actor.asked or not actor.ready}
        if waited:
            arrived, _ = self.ray.wait(list(waited), num_returns=1, timeout=0.5)
        else:
            arrived = []
            time.sleep(0.1)
        for reference in arrived:
            self._take_in(waited[reference], going)
        now = time.monotonic()
        for actor in list(self.actors):
            if not actor.ready and now - actor.began > START_DEADLINE:
                self._lose(actor, going, f"was not ready within {START_DEADLINE:.0f} s")
            elif deadline is not None and actor.asked and now - actor.asked[0].began > deadline:
                self._lose(actor, going, f"did not answer within {deadline:g} s", hung=deadline)
        if now - self.looked > LOOK:
            self._look()
        if not self.actors:
            self._await_node()

    def _take_in(self, actor: _Actor, going: _Exchange) -> None:
        """The first answer of an actor, or what it did with the oldest call to it."""
        errors = self.ray.exceptions
        if not actor.ready:
            try:
                self._begun(actor)
            except (errors.RayError, errors.ActorUnschedulableError) as error:
                self._lose(actor, going, _cause(error))
            return
        call = actor.asked[0]
        try:
            message, *states = self.ray.get([call.answer, *call.states], timeout=FETCH_DEADLINE)
        except errors.RayActorError as error:
            self._lose(actor, going, _cause(error))
            return
        except errors.RayError as error:
            actor.asked.popleft()
            actor.knows_trees = 0
            self._failed(call, going, "" if isinstance(error, errors.ObjectLostError) else actor.node.id, _cause(error))
            return
        actor.asked.popleft()
        if actor.asked:
            actor.asked[0].began = time.monotonic()  # the next in its queue begins now
        if call.exchange != self.exchanges:
            return  # of an exchange that did not need it any more
        replies = unpack(bytearray(message))["replies"]
        for number, told, state, reference in zip(
            call.numbers, replies, states or [None] * len(replies), call.states or [None] * len(replies), strict=True
        ):
            if number not in going.replies:
                reply = wire.reply_of(told["reply"], told["up"])
                going.slowest = max(going.slowest, reply.seconds)
                self.largest = max(self.largest, reply.bytes)
                going.replies[number] = self._kept(put_to_file(reply, going.pending[number], self.files), state, reference)
                self.watcher.on_clients(going.pending[number].step, len(going.replies), len(going.pending))

    # Losses.

    def _lose(self, actor: _Actor, going: _Exchange, cause: str, hung: float | None = None) -> None:
        """An actor is gone or is ended: what it had is asked of others."""
        if actor not in self.actors:
            return
        self.actors.remove(actor)
        with suppress(Exception):
            self.ray.kill(actor.handle)
        log.warning("an actor on node %s is lost: %s", actor.node.name, cause)
        for place, call in enumerate(actor.asked):  # it had not begun with others than the first
            if hung is not None and not place and len(call.numbers) == 1 and call.exchange == self.exchanges:
                number = call.numbers[0]
                going.late[number] += 1
                if going.late[number] >= TRIES and number not in going.replies:
                    going.replies[number] = late(going.pending[number], hung, self.files)
            self._failed(call, going, actor.node.id if not place and hung is None else "", cause)
        actor.asked.clear()
        self._look()

    def _failed(self, call: _Call, going: _Exchange, node: str, cause: str) -> None:
        """The requests of a call that failed are asked again one by one; who lost its actor three times, not with its node, ends the run."""
        if call.exchange != self.exchanges:
            return
        for number in reversed(call.numbers):
            if number in going.replies:
                continue
            request = going.pending[number] = replace(going.pending[number], die=False)
            going.alone.add(number)
            if node:
                going.lost.setdefault(number, []).append(node)
            if len(going.lost.get(number, ())) >= TRIES and self._still_there(going.lost[number]):
                raise RunError(
                    f"an actor ended {TRIES} times with client {request.client!r} in round {request.round}, step {request.step!r} (the last: {cause})"
                )
            if not any(
                number in other.numbers
                for actor in self.actors
                for other in actor.asked
                if other.exchange == self.exchanges and other is not call
            ):
                going.waiting.appendleft(number)
        self._forget(call.numbers, going)

    def _still_there(self, lost: list[str]) -> bool:
        """Whether that many of the nodes live; a node that just died is known as dead a little later."""
        time.sleep(LOOK)
        living = {told["NodeID"] for told in self.ray.nodes() if told["Alive"]}
        lost[:] = [node for node in lost if node in living]
        return len(lost) >= TRIES

    def _await_node(self) -> None:
        """No actor is left: wait for a node."""
        began = time.monotonic()
        log.warning("no node is left; waiting %.0f s for one", LOST_DEADLINE)
        while not self.actors:
            if time.monotonic() - began > LOST_DEADLINE:
                raise RunError(
                    f"the cluster at {self.address} has had no node for this work for {LOST_DEADLINE:.0f} s, so the run stops; what is done is kept: "
                    f"when there are nodes again, {self._resume()}"
                )
            if self.watcher.interrupted():
                raise Interrupted
            time.sleep(0.5)
            self._look()

    # States.

    def _kept(self, reply: Reply, state: Any, reference: Any) -> Reply:
        """The reply once its state is in the run's files; the reference stays for the client's next request."""
        if reply.state is None:
            return reply
        try:
            written = self.states.put(reply.state.name, memoryview(state))
        except CannotSave as error:
            return Reply(reply.client, stop=str(error))
        if written != reply.state:
            return Reply(reply.client, failure=f"state {reply.state.name} was damaged on its way")
        self.largest = max(self.largest, written.bytes)
        self._cached(written.name, reference, written.bytes)
        return reply

    def _state(self, name: str) -> Any:
        """The reference of a state: of the one that an actor left, or put again from its file."""
        if name not in self.cache:
            data = np.frombuffer((self.files / state_file(name)).read_bytes(), np.uint8)
            self._cached(name, self.ray.put(data), len(data))
        self.cache.move_to_end(name)
        return self.cache[name][0]

    def _cached(self, name: str, reference: Any, bytes: int) -> None:
        self.cache[name] = reference, bytes
        limit = CACHE * min([self.store, *(node.store for node in self.nodes.values())])
        while len(self.cache) > 1 and sum(held for _, held in self.cache.values()) > limit:
            self.cache.popitem(last=False)

    def _forget(self, numbers: list[int], going: _Exchange) -> None:
        """Their states are put again from the files: references may be lost with a node."""
        for number in numbers:
            state = going.pending[number].state
            self.cache.pop(state[0] if state is not None else "", None)


def _read_only(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The samples as they lie in the object store; nobody writes to data."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(arrays[name]) for name in ("x", "y")}


def connect(address: str, trust: bool) -> tuple[Any, bool]:
    """Ray, connected to a cluster; and whether it was not before."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return sys.modules["ray"], False
    token = nodes.token_for(address)
    found = nodes.look(address, token, trust)
    os.environ |= {"RAY_AUTH_MODE": "token" if found["token"] else "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    if token is not None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    import ray
    import ray.util.scheduling_strategies
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config

    loopback = nodes.is_loopback(address)
    # Ray replaces loopback by the machine's own address unless it believes that there are no other machines.
    ray_constants.ENABLE_RAY_CLUSTER = not loopback
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **({"_node_ip_address": "127.0.0.1"} if loopback else {}))
    except Exception as error:
        raise ConfigurationError(
            f"this machine cannot work with the cluster at {address}: {_cause(error)}; it has to be a node of it: "
            f"`equipoise cluster start --join {address} --token FILE`"
        ) from error
    return ray, True


def _cause(error: Exception) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
