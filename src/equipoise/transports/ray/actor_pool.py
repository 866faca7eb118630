"""Nodes of a Ray cluster and our actors on them."""

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
from equipoise.runtime import wire
from equipoise.storage.store import RunError
from equipoise.transports.base import Monitor
from equipoise.transports.lanes import Batch, Lane
from equipoise.transports.ray.actor import Actor, kind, packed
from equipoise.transports.ray.job_spec import JobSpec
from equipoise.transports.ray.references import References

log = logging.getLogger("equipoise")

LOOK = 5.0  # seconds between two checks of the nodes
STARTS = 3  # times that an actor is started on a core in a row, without one that was ready
FETCH_DEADLINE = 60.0  # seconds for an answer to arrive from a node


class HeadLost(RunError):
    """An error for a head of the cluster that does not answer any more."""


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
    """An actor as a lane.

    Attributes:
        node: Its node.
        handle: Ray's handle to it.
        begun: The reference of its first answer.
        began: The time at which it was started.
        states: References to clients' states.
    """

    node: Node
    handle: Any
    begun: Any
    began: float
    states: References

    def send(self, batch: Batch, trees: Any) -> tuple[Any, list[Any]]:
        """Call the actor; return the references of its answer and of the new states."""
        names = [request.state[0] for request in batch.requests if request.state is not None]
        if batch.again:
            # They are put again from the files, since the references may be lost with a node.
            for name in names:
                self.states.forget(name)
        keeps = bool(batch.requests[0].exchange)
        tasks = [
            {"request": wire.to_wire(request), "down": wire.referring(request.down, batch.shared)}
            for request in batch.requests
        ]
        message = packed(Record._trusted({"tasks": tasks, "states": names, "keeps": keeps}))
        call = self.handle.execute.options(num_returns=1 + len(tasks) if keeps else 1)
        references = call.remote(batch.exchange, trees, message, *map(self.states.of, names))
        if not keeps:
            return references, []
        answer, *states = references
        return answer, states


class ActorPool:
    """The actors of a run: one on every core of every node that can execute its clients."""

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
            spec: The run, as actors receive it.
            states: References to clients' states.
            monitor: Receives the nodes that come and go.
            resume: The command that resumes the run, for messages.
        """
        self.ray = ray
        self.address = address
        self.spec = spec
        self.states = states
        self.monitor = monitor
        self.resume = resume
        self.nodes: dict[str, Node] = {}
        self.lanes: list[ActorLane] = []
        self.left_out: dict[str, str] = {}  # reason by id of a node
        self.looked = 0.0  # the time of the last check of the nodes
        # The dispatcher repeats requests, so Ray must not.
        self._actor_class = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Actor)

    def look(self) -> None:
        """Check which nodes there are, and start actors on cores that have none.

        Calls to the actors of a lost node fail by themselves.

        Raises:
            HeadLost: If the head of the cluster does not answer.
        """
        is_first = not self.looked
        self.looked = time.monotonic()
        self._check_head()
        present = self._present_nodes()
        for node in self.nodes.values():
            if node.id not in present and node.id not in self.left_out:
                self._event("lost", node, "is lost")
        for node in present.values():
            if not is_first and node.id not in self.nodes:
                self._event("joined", node, "has joined")
        self.nodes = present
        for node in list(present.values()):
            actors = sum(lane.node is node for lane in self.lanes)
            for _ in range(node.cores - actors):
                self._start(node)

    def _present_nodes(self) -> dict[str, Node]:
        """Return the nodes that are alive, have cores and are not left out, by id."""
        present: dict[str, Node] = {}
        for facts in self.ray.nodes():
            id = facts["NodeID"]
            cores = int(facts["Resources"].get("CPU", 0))
            if not facts["Alive"] or not cores or id in self.left_out:
                continue
            store = int(facts["Resources"].get("object_store_memory", 0))
            name = f"{facts['NodeManagerAddress']}:{facts['NodeManagerPort']}"
            present[id] = self.nodes.get(id) or Node(id, name, cores, store)
        return present

    def living(self) -> set[str]:
        """Return the ids of the nodes that are alive."""
        return {facts["NodeID"] for facts in self.ray.nodes() if facts["Alive"]}

    def begun(self, lane: ActorLane) -> None:
        """Read an actor's first answer: it is ready, or its node is left out.

        Raises:
            ConfigurationError: If no actor can execute the experiment.
        """
        answer = json.loads(self.ray.get(lane.begun, timeout=FETCH_DEADLINE))
        expected = kind()
        differing = [
            f"{name} {version} instead of {expected[name]}"
            for name, version in answer["kind"].items()
            if version != expected[name]
        ]
        if differing:
            self._leave_out(lane.node, f"it has {', '.join(differing)}")
        elif "refused" in answer and not self.spec.made_at(lane.node.store):
            raise ConfigurationError(answer["refused"])  # the same sentence as in process
        elif "refused" in answer:
            self._leave_out(lane.node, f"it cannot make the data: {answer['refused']}")
        elif answer.get("fingerprint", self.spec.fingerprint) != self.spec.fingerprint:
            self._leave_out(lane.node, "what is in its data folder differs from the data here")
        else:
            lane.ready = True
            lane.node.starts = 0

    def drop(self, lane: ActorLane) -> None:
        """End an actor."""
        self.lanes.remove(lane)
        with suppress(Exception):  # it may be gone
            self.ray.kill(lane.handle)

    def reason(self) -> str:
        """Return the reason why there are no actors."""
        if not self.left_out:
            return (
                f"the cluster at {self.address} offers no CPUs; start nodes with "
                f"`equipoise cluster start --join {self.address} --token FILE`"
            )
        reasons = "; ".join(dict.fromkeys(self.left_out.values()))
        return f"no node of the cluster at {self.address} can do this work: {reasons}"

    def _start(self, node: Node) -> None:
        if node.id in self.left_out:
            return
        if node.starts >= STARTS * node.cores:
            self._leave_out(node, f"its actors ended {node.starts} times while starting")
            return
        if self.spec.made_at(node.store) and not self.spec.can_be_made:
            self._leave_out(
                node,
                f"the data ({self.spec.bytes / 2**20:.0f} MB) exceed half of its object store "
                f"({node.store / 2**20:.0f} MB) and cannot be made there",
            )
            return
        node.starts += 1
        strategies = self.ray.util.scheduling_strategies
        on_node = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        handle = self._actor_class.options(scheduling_strategy=on_node).remote()
        data = None if self.spec.made_at(node.store) else self.spec.data
        begun = handle.begin.remote(self.spec.message, data)
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
        self.monitor.by_location[f"{kind}@{node.name}"] += 1
        log.warning("node %s %s", node.name, sentence)

    def _check_head(self) -> None:
        """Stop the run if the head is lost, before Ray ends this process a minute later."""
        host, _, port = self.address.rpartition(":")
        for _ in range(3):
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=LOOK):
                return
            time.sleep(0.3)
        raise HeadLost(
            f"the head of the cluster at {self.address} is lost; committed rounds are kept: "
            f"with a cluster again, {self.resume}"
        )
