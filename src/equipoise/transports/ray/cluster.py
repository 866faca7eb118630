"""The transport over a Ray cluster: an actor on every core of every node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from equipoise.data import Federation
from equipoise.data.roster import Roster, roster_of
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.transports.base import Monitor
from equipoise.transports.dispatcher import Dispatcher
from equipoise.transports.ray.actor_pool import ActorPool
from equipoise.transports.ray.connecting import connected
from equipoise.transports.ray.dispatch import START_DEADLINE, ActorLanes
from equipoise.transports.ray.job_spec import job_spec_of
from equipoise.transports.ray.references import References


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
        self.federation, self.wanted = federation, wanted
        self.address, self.trust_network = address, trust_network
        self.ray: Any = None
        self.group: ActorLanes | None = None
        self.dispatcher: Dispatcher | None = None

    @property
    def lanes(self) -> int:
        assert self.group is not None
        return self.group.working

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        if self.wanted.why_not_remote is not None:
            raise ConfigurationError(
                f"--cluster: expected an experiment that other machines can rebuild, but {self.wanted.why_not_remote}; "
                "move it to a module that can be imported and name it as package.module:name"
            )
        self.ray, self.address, self.own = connected(self.address, self.trust_network)
        roster = roster_of(self.federation)
        store = self._own_store()
        spec, self.federation = job_spec_of(
            self.ray, self.wanted, job, self.federation, roster, store / 2
        )
        resume = f"`equipoise resume {files.parent} --cluster ADDRESS`, or without --cluster on this machine alone"
        actors = ActorPool(
            self.ray, self.address, spec, References(self.ray, files), monitor, resume
        )
        self.group = ActorLanes(self.ray, actors, files, monitor, store)
        self.dispatcher = Dispatcher(
            self.group, roster.sizes["train"], files, monitor, time.monotonic
        )
        actors.look()
        if actors.lanes:
            self._until_ready(actors)
        if not actors.lanes:
            raise ConfigurationError(actors.reason())
        return roster

    def _own_store(self) -> float:
        """Return the bytes of this node's object store."""
        here = self.ray.get_runtime_context().get_node_id()
        own = next(node for node in self.ray.nodes() if node["NodeID"] == here)
        return float(own["Resources"].get("object_store_memory", 0.0))

    def _until_ready(self, actors: ActorPool) -> None:
        """Wait for the actors of all nodes; once there are some, for those of slow nodes not for ever."""
        first: float | None = None

        def settled() -> bool:
            nonlocal first
            if first is None and any(lane.ready for lane in actors.lanes):
                first = time.monotonic()
            if first is not None and time.monotonic() - first > START_DEADLINE / 4:
                return True
            return all(lane.ready for lane in actors.lanes)

        assert self.dispatcher is not None
        self.dispatcher.wait_until(settled)

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        assert self.dispatcher is not None
        return self.dispatcher.exchange(requests, deadline)

    def close(self, keep: bool = False) -> None:
        if self.ray is None:
            return
        if self.group is not None:
            for lane in list(self.group.lanes):
                self.group.actors.drop(lane)
        ray, self.ray, self.group, self.dispatcher = self.ray, None, None, None
        if self.own:
            with suppress(Exception):  # the cluster may be gone
                ray.shutdown()
