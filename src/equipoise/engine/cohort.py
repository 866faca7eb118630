"""The clients of a run as the server asks them, and the cohort of a round: whose replies count, and which states stand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from equipoise.composition import step_name
from equipoise.data.roster import Roster
from equipoise.engine.faults import FaultPlan
from equipoise.engine.reply_validation import validate_envelope, validate_upload
from equipoise.experiment import Experiment
from equipoise.method import Cohort, Method, Ups, Weights
from equipoise.records import Down, Record, Up, size
from equipoise.runtime.evaluation_messages import EvaluationRequest
from equipoise.runtime.messages import Reply, Request, StateRef, reply_file, state_file
from equipoise.server import Server
from equipoise.storage.store import RoundRecord, RunError
from equipoise.transports.base import ClientError, Transport

log = logging.getLogger("equipoise")


class RoundAborted(Exception):
    """This attempt at a round has too few replies."""


@dataclass
class Clients:
    """All clients of a run: the state of each that was committed, and the one way to ask them."""

    experiment: Experiment
    method: Method
    server: Server
    roster: Roster
    transport: Transport
    metrics: Sequence[str]
    committed: dict[str, StateRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.faults = FaultPlan(
            self.experiment.faults, self.experiment.training, self.experiment.seed
        )

    def request(
        self,
        client: str,
        step: str,
        down: Record,
        provisional: Mapping[str, StateRef],
        exchange: int = 0,
        large: bool = False,
    ) -> Request:
        """One request; the client works on its last accepted state, be it committed or of this round."""
        standing, committed = (
            provisional.get(client, self.committed.get(client)),
            self.committed.get(client),
        )
        request = Request(
            client, step, down, self.server.round, self.experiment.rounds, self.server.attempt, exchange, large=large,
            state=(standing.name, standing.digest) if standing is not None else None, committed=committed.name if committed else None,
        )  # fmt: skip
        settings = self.experiment.evaluation
        if settings.after_local and step == "client":
            request.after = {
                "splits": ["shared"] if self.roster.shared else list(settings.splits),
                "metrics": list(self.metrics),
            }
        return request

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """One exchange; a step that raised ends the run with its traceback, and a reply that no client runtime would send is a failure."""
        replies = self.transport.exchange(requests, self.experiment.participation.deadline)
        for position, (request, reply) in enumerate(zip(requests, replies, strict=True)):
            wrong = validate_envelope(request, reply)
            if wrong is not None:
                replies[position] = Reply(request.client, failure=wrong)
                continue
            if reply.stop is not None:
                raise RunError(reply.stop)
            if reply.error is not None:
                raise ClientError(
                    f"client {request.client!r}, round {request.round}, step {request.step!r} raised:\n{reply.error}"
                )
        return replies

    def measure(
        self, orders: Sequence[tuple[str, EvaluationRequest]], cohort: RoundCohort
    ) -> list[tuple[str, Up, list[dict[str, Any]]]]:
        """Ask for a measurement after a cohort's round, with the states that the round left; nobody may be missing, or averages would mislead."""
        replies = self.ask(
            [
                self.request(client, order.step, order.record(), cohort.provisional)
                for client, order in orders
            ]
        )
        for reply in replies:
            if reply.up is None:
                raise RunError(
                    f"client {reply.client!r} was to measure models in round {self.server.round}: {reply.failure or 'no reply'}; "
                    "see to it, or raise participation.deadline, then resume the run"
                )
        return [
            (reply.client, reply.up, reply.measured) for reply in replies if reply.up is not None
        ]

    def large(self, down: Record, cohort: int) -> bool:
        """Whether the replies of a cohort go through files: judged by what was sent, so that it never depends on load."""
        return size(down) * cohort > self.experiment.memory * 2**20


class RoundCohort(Cohort):
    """The clients of one attempt at one round; in round 0 all of them, each of which must answer; after the last, whoever does."""

    def __init__(self, clients: Clients, ids: Iterable[str], record: RoundRecord) -> None:
        self.clients, self.server, self.record = clients, clients.server, record
        self.ids = list(ids)
        self.joined = list(self.ids)
        self.exchanges = 0
        self.provisional: dict[
            str, StateRef
        ] = {}  # client -> its state after its last accepted exchange
        self.discarded: set[str] = set()  # names of files that no one will read again
        self.banned: set[str] = set()
        self.began, self.busy, self.waited = time.perf_counter(), 0.0, 0.0
        self.uploads: Ups | None = None  # the last replies that brought models

    def run(
        self,
        step: Callable[..., Up | None],
        down: Down | None = None,
        *,
        each: Callable[[str], Down] | None = None,
        strict: bool = False,
    ) -> Ups:
        began = time.perf_counter()
        self.exchanges += 1
        name = step_name(self.clients.method, step)
        asked = list(self.joined)
        downs = {client: each(client) if each is not None else down or Down() for client in asked}
        received = self._received(name, downs)
        accepted: dict[str, Up] = {}
        keys = [frozenset(reply.up) for reply in received if reply.up is not None]
        majority = max(keys, key=keys.count) if keys else frozenset()
        for reply in received:
            reason = reply.failure or validate_upload(
                reply.up, majority, self.server, self.clients.method, name
            )
            if reason is None and reply.up is not None:
                accepted[reply.client] = reply.up
                self._accept(reply)
            else:
                self._refuse(reply, reason or "no reply")
        self.record.bytes_down += sum(size(downs[client]) for client in asked)
        self.waited += time.perf_counter() - began
        if not self.server.round and len(accepted) < len(asked):
            client, reason = self.record.rejected[0][2:]
            raise RoundAborted(
                f"every client has to answer, and {len(asked) - len(accepted)} of {len(asked)} did not; the first, {client!r}: {reason}"
            )
        if strict and len(accepted) < len(asked):
            self.banned |= set(asked) - set(accepted)
            raise RoundAborted(f"client {sorted(self.banned)[0]!r} left in a step that needs all")
        if len(accepted) < (
            self.clients.experiment.participation.floor
            if 0 < self.server.round <= self.server.rounds
            else 1
        ):
            raise RoundAborted(f"{len(accepted)} of {len(asked)} replies counted")
        ups = Ups([(client, accepted.get(client)) for client in self.ids])
        if "model" in ups[0]:
            self.uploads = ups
        return ups

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        shares = {**dict(zip(ids, map(float, weights.shares), strict=True)), **weights.absent}
        total = sum(shares.values())
        self.record.weights = (
            {client: share / total for client, share in shares.items()} if total else {}
        )

    def close(self) -> None:
        """All exchanges are done: who counted, and where the time went."""
        wall, busy = (
            time.perf_counter() - self.began,
            self.busy / max(1, self.clients.transport.lanes),
        )
        self.record.seconds |= {
            "clients": busy, "transport": max(0.0, self.waited - busy), "aggregation": max(0.0, wall - self.waited),
        }  # fmt: skip
        self.record.joined = list(self.joined)

    def left_over(self) -> set[str]:
        """The files of an attempt that was given up."""
        return self.discarded | {state_file(kept.name) for kept in self.provisional.values()}

    def restricted_view(self) -> Cohort:
        """What a method is given: functions, from which no attribute leads to the transport and the data behind it."""
        cohort = self

        class Door(Cohort):
            ids = self.ids

            def run(self, *given: Any, **more: Any) -> Ups:
                return cohort.run(*given, **more)

            def weighed(self, ids: Sequence[str], weights: Weights) -> None:
                cohort.weighed(ids, weights)

        return Door()

    def _received(self, step: str, downs: Mapping[str, Down]) -> list[Reply]:
        """One reply per client: what arrived, or why nothing did."""
        requests = [self._request(client, step, down) for client, down in downs.items()]
        dropped = self._faulty(requests)
        replies = {
            reply.client: reply
            for reply in self.clients.ask(
                [request for request in requests if request.client not in dropped]
            )
        }
        if not self.server.round:
            self._ask_again(requests, replies)
        replies |= {client: Reply(client, failure=reason) for client, reason in dropped.items()}
        faults, server = self.clients.faults, self.server
        return [
            faults.damaged(server.round, server.attempt, self.exchanges, replies[client])
            for client in downs
        ]

    def _ask_again(self, requests: Sequence[Request], replies: dict[str, Reply]) -> None:
        """Before round 1 everybody has to answer: those that did not are waited for, as often as a round is tried."""
        for _ in range(self.clients.experiment.participation.tries - 1):
            missing = [
                request for request in requests if replies[request.client].failure is not None
            ]
            if not missing:
                return
            names = ", ".join(repr(request.client) for request in missing)
            log.warning(
                "before round 1 every client has to answer; waiting for %d of %d: %s",
                len(missing),
                len(requests),
                names,
            )
            replies |= {reply.client: reply for reply in self.clients.ask(missing)}

    def _request(self, client: str, step: str, down: Down) -> Request:
        request = self.clients.request(
            client,
            step,
            down,
            self.provisional,
            self.exchanges,
            self.clients.large(down, len(self.joined)),
        )
        if request.large:
            self.discarded.add(reply_file(request))
        return request

    def _faulty(self, requests: Sequence[Request]) -> dict[str, str]:
        """Clients that a simulated fault keeps from answering, with the reason. Drawn faults strike the first exchange of a round."""
        if not self.clients.experiment.faults.any or not self.server.round:
            return {}
        found = {}
        for request in requests:
            request.die = self.clients.faults.kills(
                self.server.round, self.server.attempt, self.exchanges, request.client
            )
            reason, seconds = self.clients.faults.missing(
                self.server.round,
                self.server.attempt,
                self.exchanges,
                request.client,
                self.server.sizes[request.client],
            )
            if reason is not None:
                found[request.client] = reason
            if self.exchanges == 1:
                self.record.virtual_seconds = max(self.record.virtual_seconds or 0.0, seconds)
        return found

    def _accept(self, reply: Reply) -> None:
        self.busy += reply.seconds
        self.record.bytes_up += reply.bytes
        self.record.steps += reply.steps
        self.record.skipped += reply.skipped
        if reply.state is not None:
            if reply.client in self.provisional:
                self.discarded.add(state_file(self.provisional[reply.client].name))
            self.provisional[reply.client] = reply.state
        for row in reply.measured:
            self.record.measurements.append(
                (reply.client, "local", "after_local", row["split"], row["metric"], row["value"])
            )

    def _refuse(self, reply: Reply, reason: str) -> None:
        self.joined.remove(reply.client)
        self.record.rejected.append((self.server.attempt, self.exchanges, reply.client, reason))
        log.warning(
            "round %d: the reply of client %r does not count: %s",
            self.server.round,
            reply.client,
            reason,
        )
        if reply.state is not None:
            self.discarded.add(state_file(reply.state.name))
