"""The nodes of a cluster and our actors on them: who is there, who may work, who is lost."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from equipoise.experiment import ConfigurationError
from equipoise.storage.store import RunError
from equipoise.transports.base import Monitor
from equipoise.transports.ray.actor import Actor, kind
from equipoise.transports.ray.work import Work

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


@dataclass(eq=False)
class Call:
    """Requests that travel together."""

    exchange: int
    numbers: list[int]
    answer: Any  # a reference, as are the states
    states: list[Any]
    began: float
    repeated: bool = False


@dataclass(eq=False)
class Lane:
    """An actor as this side knows it."""

    node: Node
    handle: Any
    begun: Any  # the reference of its first answer
    began: float
    ready: bool = False
    asked: deque[Call] = field(default_factory=deque)
    knows_trees: int = 0  # the last exchange whose trees it was sent


class Crew:
    """An actor on every core of every node that can do the work."""

    def __init__(self, ray: Any, address: str, work: Work, monitor: Monitor, resume: str) -> None:
        self.ray, self.address, self.work, self.monitor, self.resume = (
            ray,
            address,
            work,
            monitor,
            resume,
        )
        self.nodes: dict[str, Node] = {}
        self.lanes: list[Lane] = []
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

    def begun(self, lane: Lane) -> None:
        """An actor has spoken for the first time: it may do the work, or says why not."""
        said = json.loads(self.ray.get(lane.begun, timeout=FETCH_DEADLINE))
        differing = [
            f"{name} {theirs} instead of {kind()[name]}"
            for name, theirs in said["kind"].items()
            if theirs != kind()[name]
        ]
        if differing:
            self._leave_out(lane.node, f"it has {', '.join(differing)}")
        elif "refused" in said and not self.work.made_at(lane.node.store):
            raise ConfigurationError(said["refused"])  # the same sentence as in process
        elif "refused" in said:
            self._leave_out(lane.node, f"it cannot make the data: {said['refused']}")
        elif said.get("fingerprint", self.work.fingerprint) != self.work.fingerprint:
            self._leave_out(lane.node, "what is in its data folder differs from the data here")
        else:
            lane.ready, lane.node.starts = True, 0

    def drop(self, lane: Lane) -> None:
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
        if self.work.made_at(node.store) and not self.work.can_be_made:
            size, room = self.work.bytes / 2**20, node.store / 2**20
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
        data = None if self.work.made_at(node.store) else self.work.data
        self.lanes.append(
            Lane(node, handle, handle.begin.remote(self.work.told, data), time.monotonic())
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
