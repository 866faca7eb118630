"""Transport to a Ray cluster, with an actor on every core of every node."""

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
    """A Ray cluster that executes the clients of one run.

    Args:
        federation: The data of the clients.
        experiment: The experiment.
        address: HOST:PORT of the head, or ``auto`` for the cluster of this machine.
        trust_network: Accept a cluster that asks for no token.
    """

    keeps: Literal["server", "client"] = "server"

    def __init__(
        self,
        federation: Federation,
        experiment: Experiment,
        address: str = "auto",
        trust_network: bool = False,
    ) -> None:
        self.federation = federation
        self.experiment = experiment
        self.address = address
        self.trust_network = trust_network
        self.ray: Any = None
        self.group: ActorLanes | None = None
        self.dispatcher: Dispatcher | None = None

    @property
    def lanes(self) -> int:
        """The number of actors that execute requests."""
        assert self.group is not None
        return self.group.working

    def open(self, job: Job, files: Path, monitor: Monitor) -> Roster:
        """Connect and start actors; see `Transport.open`."""
        reason = self.experiment.why_not_remote
        if reason is not None:
            raise ConfigurationError(
                f"--cluster: expected an experiment that other machines can rebuild, but {reason}; "
                "move it to a module that can be imported and name it as package.module:name"
            )
        self.ray, self.address, self.own = connected(self.address, self.trust_network)
        roster = roster_of(self.federation)
        store = self._own_store()
        spec, self.federation = job_spec_of(
            self.ray, self.experiment, job, self.federation, roster, store / 2
        )
        resume = (
            f"`equipoise resume {files.parent} --cluster ADDRESS`, "
            "or without --cluster on this machine alone"
        )
        states = References(self.ray, files)
        actors = ActorPool(self.ray, self.address, spec, states, monitor, resume)
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
        """Wait for the actors of all nodes, but not long for slow nodes once some are ready."""
        first_ready: float | None = None

        def settled() -> bool:
            nonlocal first_ready
            if first_ready is None and any(lane.ready for lane in actors.lanes):
                first_ready = time.monotonic()
            if first_ready is not None and time.monotonic() - first_ready > START_DEADLINE / 4:
                return True
            return all(lane.ready for lane in actors.lanes)

        assert self.dispatcher is not None
        self.dispatcher.wait_until(settled)

    def present(self) -> Sequence[str]:
        """Return all clients: any executor can execute any of them."""
        return self.federation.ids

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Execute requests on the cluster; see `Transport.exchange`."""
        assert self.dispatcher is not None
        return self.dispatcher.exchange(requests, deadline)

    def close(self, keep: bool = False) -> None:
        """End the actors, and the connection if it was made for this run."""
        if self.ray is None:
            return
        if self.group is not None:
            for lane in list(self.group.lanes):
                self.group.actors.drop(lane)
        ray = self.ray
        self.ray = None
        self.group = None
        self.dispatcher = None
        if self.own:
            with suppress(Exception):  # the cluster may be gone
                ray.shutdown()
