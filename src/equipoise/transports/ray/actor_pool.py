"""The nodes of a cluster and our actors on them: which there are, which may work, which are lost."""

from __future__ import annotations

import json
import logging
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from equipoise.experiment import ConfigurationError
from equipoise.records import Record
from equipoise.storage.store import RunError
from equipoise.transports import wire
from equipoise.transports.base import Monitor
from equipoise.transports.lanes import Batch, Lane
from equipoise.transports.ray.actor import Actor, kind, packed
from equipoise.transports.ray.job_spec import JobSpec
from equipoise.transports.ray.references import References

log = logging.getLogger("equipoise")

LOOK = 5.0  # seconds between two looks at the nodes
STARTS = 3  # times that an actor is started on a core in a row, without one that was ready
FETCH_DEADLINE = 60.0  # seconds for what an actor has done to arrive here


class HeadLost(RunError):
    """The head of the cluster does not answer any more."""


@dataclass(eq=False)
class Node:
    """A machine of the cluster."""

    id: str
    name: str
    cores: int
    store: int  # bytes of its object store
    starts: int = 0  # actors that were started here since one was ready


@dataclass(eq=False, kw_only=True)
class ActorLane(Lane):
    """An actor as this side knows it."""

    node: Node
    handle: Any
    begun: Any  # the reference of its first answer
    began: float
    states: References

    def send(self, batch: Batch, trees: Any) -> tuple[Any, list[Any]]:
        """Call the actor; return the references of its answer and of the new states."""
        names = [request.state[0] for request in batch.requests if request.state is not None]
        if batch.again:
            # They are put again from the files: the references may be lost with a node.
            for name in names:
                self.states.forget(name)
        keeps = bool(batch.requests[0].exchange)
        tasks = [
            {"request": wire.to_wire(request), "down": wire.referring(request.down, batch.shared)}
            for request in batch.requests
        ]
        message = packed(Record._trusted({"tasks": tasks, "states": names, "keeps": keeps}))
        call = self.handle.execute.options(num_returns=1 + len(tasks) if keeps else 1)
        left = call.remote(batch.exchange, trees, message, *map(self.states.of, names))
        answer, *states = left if keeps else [left]
        return answer, states


class ActorPool:
    """An actor on every core of every node that can do the work."""

    def __init__(
        self,
        ray: Any,
        address: str,
        spec: JobSpec,
        states: References,
        monitor: Monitor,
        resume: str,
    ) -> None:
        """Begin without actors: `look` starts them.

        Args:
            ray: The module, connected.
            address: HOST:PORT of the head.
            spec: What actors are told of the run.
            states: References to clients' states.
            monitor: Is told which nodes come and go.
            resume: For messages: how a run that stops here is resumed.
        """
        self.ray, self.address, self.spec, self.states = ray, address, spec, states
        self.monitor, self.resume = monitor, resume
        self.nodes: dict[str, Node] = {}
        self.lanes: list[ActorLane] = []
        self.left_out: dict[str, str] = {}  # id of a node -> why
        self.looked = 0.0
        # We repeat, not Ray.
        self.made = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Actor)

    def look(self) -> None:
        """See which nodes there are; new ones get actors, and so do those that lost some. What a lost one had fails by itself."""
        first, self.looked = not self.looked, time.monotonic()
        self._check_head()
        there: dict[str, Node] = {}
        for told in self.ray.nodes():
            place, cores, store = (
                told["NodeID"],
                int(told["Resources"].get("CPU", 0)),
                int(told["Resources"].get("object_store_memory", 0)),
            )
            if told["Alive"] and cores and place not in self.left_out:
                name = f"{told['NodeManagerAddress']}:{told['NodeManagerPort']}"
                there[place] = self.nodes.get(place) or Node(place, name, cores, store)
        for node in self.nodes.values():
            if node.id not in there and node.id not in self.left_out:
                self._event("lost", node, "is lost")
        for node in there.values():
            if not first and node.id not in self.nodes:
                self._event("joined", node, "has joined")
        self.nodes = there
        for node in list(there.values()):
            for _ in range(node.cores - sum(lane.node is node for lane in self.lanes)):
                self._start(node)

    def living(self) -> set[str]:
        return {told["NodeID"] for told in self.ray.nodes() if told["Alive"]}

    def begun(self, lane: ActorLane) -> None:
        """An actor has spoken for the first time: it may do the work, or says why not."""
        said = json.loads(self.ray.get(lane.begun, timeout=FETCH_DEADLINE))
        differing = [
            f"{name} {theirs} instead of {kind()[name]}"
            for name, theirs in said["kind"].items()
            if theirs != kind()[name]
        ]
        if differing:
            self._leave_out(lane.node, f"it has {', '.join(differing)}")
        elif "refused" in said and not self.spec.made_at(lane.node.store):
            raise ConfigurationError(said["refused"])  # the same sentence as in process
        elif "refused" in said:
            self._leave_out(lane.node, f"it cannot make the data: {said['refused']}")
        elif said.get("fingerprint", self.spec.fingerprint) != self.spec.fingerprint:
            self._leave_out(lane.node, "what is in its data folder differs from the data here")
        else:
            lane.ready, lane.node.starts = True, 0

    def drop(self, lane: ActorLane) -> None:
        self.lanes.remove(lane)
        with suppress(Exception):  # it may be gone
            self.ray.kill(lane.handle)

    def reason(self) -> str:
        """Why there is nobody."""
        if not self.left_out:
            return f"the cluster at {self.address} offers no CPUs; start nodes with `equipoise cluster start --join {self.address} --token FILE`"
        return f"no node of the cluster at {self.address} can do this work: " + "; ".join(
            dict.fromkeys(self.left_out.values())
        )

    def _start(self, node: Node) -> None:
        if node.id in self.left_out:
            return
        if node.starts >= STARTS * node.cores:
            self._leave_out(node, f"its actors ended {node.starts} times while starting")
            return
        if self.spec.made_at(node.store) and not self.spec.can_be_made:
            size, room = self.spec.bytes / 2**20, node.store / 2**20
            self._leave_out(
                node,
                f"the data ({size:.0f} MB) exceed half of its object store ({room:.0f} MB) and cannot be made there",
            )
            return
        node.starts += 1
        here = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node.id, soft=False
        )
        handle = self.made.options(scheduling_strategy=here).remote()
        data = None if self.spec.made_at(node.store) else self.spec.data
        begun = handle.begin.remote(self.spec.told, data)
        self.lanes.append(
            ActorLane(
                node.id,
                node=node,
                handle=handle,
                begun=begun,
                began=time.monotonic(),
                states=self.states,
            )
        )

    def _leave_out(self, node: Node, reason: str) -> None:
        self.left_out[node.id] = f"node {node.name}: {reason}"
        self._event("left out", node, f"is left out: {reason}")
        for lane in [lane for lane in self.lanes if lane.node is node]:
            self.drop(lane)

    def _event(self, kind: str, node: Node, sentence: str) -> None:
        self.monitor.by_place[f"{kind}@{node.name}"] += 1
        log.warning("node %s %s", node.name, sentence)

    def _check_head(self) -> None:
        """Ray ends a process a minute after the head is gone; the run stops before that, with a sentence."""
        host, _, port = self.address.rpartition(":")
        for _ in range(3):
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=LOOK):
                return
            time.sleep(0.3)
        raise HeadLost(
            f"the head of the cluster at {self.address} is lost; what is done is kept: with a cluster again, {self.resume}"
        )
