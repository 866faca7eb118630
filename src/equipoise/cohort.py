"""The cohort of a round at work: asks, checks replies, and keeps what an accepted reply changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.checking import refusal
from equipoise.composition import step_name
from equipoise.method import Cohort, Ups, Weights
from equipoise.records import Down, Up, size
from equipoise.runs.store import RoundRecord
from equipoise.transports.exchange import Reply, Request

if TYPE_CHECKING:
    from equipoise.rounds import Loop

log = logging.getLogger("equipoise")


class GivenUp(Exception):
    """This attempt at a round has too few replies."""


class RoundCohort(Cohort):
    """The clients of one attempt at one round."""

    def __init__(self, loop: Loop, ids: list[str], attempt: int, record: RoundRecord) -> None:
        self.loop, self.ids, self.attempt, self.record = loop, ids, attempt, record
        self.everyone = list(ids)  # places of the whole cohort: a client that left keeps its empty place
        self.joined = list(ids)
        self.exchanges = 0
        self.provisional: dict[str, tuple[str, int]] = {}  # client -> file of its state after its last accepted exchange
        self.digests: dict[str, str] = {}  # client -> digest of that file
        self.discarded: set[str] = set()  # names of files that no one will read again
        self.banned: set[str] = set()
        self.busy = self.waited = 0.0
        self.uploads: Ups | None = None  # the last replies that brought models

    def run(
        self, step: Callable[..., Up | None], down: Down | None = None, *, each: Callable[[str], Down] | None = None, strict: bool = False
    ) -> Ups:
        loop, began = self.loop, time.perf_counter()
        self.exchanges += 1
        name = step_name(loop.method, step)
        asked = list(self.joined)
        downs = {client: each(client) if each is not None else down or Down() for client in asked}
        requests = [self._request(client, name, downs[client]) for client in asked]
        dropped = self._faulty(requests)
        replies = iter(loop.ask([request for request in requests if request.client not in dropped]))
        accepted: dict[str, Up] = {}
        received = [
            Reply(request.client, failure=dropped[request.client]) if request.client in dropped else next(replies) for request in requests
        ]
        if self.exchanges == 1:
            received = [loop.faults.damaged(loop.server.round, self.attempt, reply) for reply in received]
        keys = [frozenset(reply.up) for reply in received if reply.up is not None]
        majority = max(keys, key=keys.count) if keys else frozenset()
        for reply in received:
            reason = reply.failure or refusal(reply.up, majority, loop, name)
            if reason is None and reply.up is not None:
                accepted[reply.client] = reply.up
                self._accept(reply)
            else:
                self._refuse(reply, reason or "no reply")
        self.record.bytes_down += sum(size(downs[client]) for client in asked)
        self.waited += time.perf_counter() - began
        if strict and len(accepted) < len(asked):
            self.banned |= set(asked) - set(accepted)
            raise GivenUp(f"client {sorted(self.banned)[0]!r} left in a step that needs all")
        if not accepted or (loop.server.round and len(accepted) < loop.experiment.participation.floor):
            raise GivenUp(f"{len(accepted)} of {len(asked)} replies counted")
        ups = Ups([(client, accepted.get(client)) for client in self.everyone])
        if "model" in ups[0]:
            self.uploads = ups
        return ups

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        shares = {**dict(zip(ids, map(float, weights.shares), strict=True)), **weights.absent}
        total = sum(shares.values())
        self.record.weights = {client: share / total for client, share in shares.items()} if total else {}

    def _request(self, client: str, step: str, down: Down) -> Request:
        loop = self.loop
        place = loop.bench.position[client]
        stem = f"{place:06d}-r{loop.server.round}a{self.attempt}x{self.exchanges}"
        request = loop.request(client, step, down, exchange=self.exchanges, keep=str(loop.store.files / f"client-{stem}.safetensors"))
        if loop.spools(down, len(self.joined)):
            request.spool = str(loop.store.files / f"reply-{stem}.safetensors")
            self.discarded.add(Path(request.spool).name)
        if loop.experiment.evaluation.after_local and step == "client":
            assert loop.bench.federation is not None
            shared = len(loop.bench.federation.shared_test) > 0
            request.after = {"splits": ["shared"] if shared else list(loop.experiment.evaluation.splits), "metrics": list(loop.metrics)}
        return loop._state_of(self, request)

    def _faulty(self, requests: Sequence[Request]) -> dict[str, str]:
        """Clients that a simulated fault keeps from answering, with the reason. A client fails in the first exchange of a round or not at all."""
        loop = self.loop
        if not loop.experiment.faults.any or loop.server.round == 0 or self.exchanges > 1:
            return {}
        found = {}
        for request in requests:
            request.die = loop.faults.kills(loop.server.round, self.attempt, request.client)
            reason, seconds = loop.faults.missing(loop.server.round, self.attempt, request.client, loop.server.sizes[request.client])
            if reason is not None:
                found[request.client] = reason
            self.record.virtual_seconds = max(self.record.virtual_seconds or 0.0, seconds)
        return found

    def _accept(self, reply: Reply) -> None:
        self.busy += reply.seconds
        self.record.bytes_up += reply.bytes
        self.record.steps += reply.steps
        self.record.skipped += reply.skipped
        if reply.state is not None:
            if reply.client in self.provisional:
                self.discarded.add(Path(self.provisional[reply.client][0]).name)
            self.provisional[reply.client] = (reply.state, self.loop.server.round)
            self.digests[reply.client] = reply.digest or ""
        for row in reply.measured:
            self.record.measurements.append((reply.client, "local", "after_local", row["split"], row["metric"], row["value"]))

    def _refuse(self, reply: Reply, reason: str) -> None:
        self.joined.remove(reply.client)
        self.record.rejected.append((self.attempt, self.exchanges, reply.client, reason))
        log.warning("round %d: the reply of client %r does not count: %s", self.loop.server.round, reply.client, reason)
        if reply.state is not None:
            self.discarded.add(Path(reply.state).name)
