"""Clients of a run, and the cohort of a round: which replies count, and which states hold."""

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
from equipoise.tree import Tree

log = logging.getLogger("equipoise")


class RoundAborted(Exception):
    """An attempt at a round that has too few replies."""


@dataclass
class Clients:
    """All clients of a run, with the committed state of each.

    Attributes:
        experiment: The experiment.
        method: Its method.
        server: The server.
        roster: Names and sizes of the clients.
        transport: The transport to them.
        metrics: The names of the metrics that clients compute.
        committed: The committed state of each client that has one.
    """

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

    def restart(self, number: int) -> None:
        """Forget the states of the clients that begin a round afresh.

        Args:
            number: The round.
        """
        for client in self.faults.restarts(number):
            self.committed.pop(client, None)

    def request(
        self,
        client: str,
        step: str,
        down: Record,
        provisional: Mapping[str, StateRef],
        exchange: int = 0,
        large: bool = False,
    ) -> Request:
        """Return a request; the client works on its last accepted state.

        Args:
            client: The client.
            step: The step that it performs.
            down: The message to it.
            provisional: The states that clients reached in this round.
            exchange: The number of the exchange; 0 for an evaluation.
            large: True if the reply shall go through a file.
        """
        committed = self.committed.get(client)
        current = provisional.get(client, committed)
        request = Request(
            client,
            step,
            down,
            self.server.round,
            self.experiment.rounds,
            self.server.attempt,
            exchange,
            large=large,
        )
        if current is not None:
            request.state = (current.name, current.digest)
        if committed is not None:
            request.committed = committed.name
        settings = self.experiment.evaluation
        if settings.after_local and step == "client":
            request.after = {
                "splits": ["shared"] if self.roster.shared else list(settings.splits),
                "metrics": list(self.metrics),
            }
        return request

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Exchange requests and replies.

        Args:
            requests: One request per client.

        Returns:
            The replies in the same order; one that is malformed is a failure of its client.

        Raises:
            ClientError: If a step raised, with its traceback.
            RunError: If a client runtime says that the run cannot continue.
        """
        replies = self.transport.exchange(requests, self.experiment.participation.deadline)
        checked = []
        for request, reply in zip(requests, replies, strict=True):
            problem = validate_envelope(request, reply)
            if problem is not None:
                reply = Reply(request.client, failure=problem)
            if reply.stop is not None:
                raise RunError(reply.stop)
            if reply.error is not None:
                raise ClientError(
                    f"client {request.client!r}, round {request.round}, step {request.step!r} "
                    f"raised:\n{reply.error}"
                )
            checked.append(reply)
        return checked

    def measure(
        self, orders: Sequence[tuple[str, EvaluationRequest]], cohort: RoundCohort
    ) -> list[Reply]:
        """Evaluate models after a cohort's round, on the states that the round left.

        Args:
            orders: Clients and what they shall evaluate.
            cohort: The cohort of the round.

        Returns:
            One reply per order, in their order; without an upload if the client did not answer.
        """
        dropped = self._dropped_from_evaluation(cohort.record, {client for client, _ in orders})
        requests = [
            self.request(client, order.step, order.record(), cohort.provisional)
            for client, order in orders
            if client not in dropped
        ]
        replies = iter(self.ask(requests))
        answers = []
        for client, _ in orders:
            if client in dropped:
                answers.append(Reply(client, failure=dropped[client]))
            else:
                answers.append(next(replies))
        return answers

    def _dropped_from_evaluation(
        self, record: RoundRecord, clients: Iterable[str]
    ) -> dict[str, str]:
        """Return the clients that a scripted fault keeps from evaluating, with the reason."""
        if not self.experiment.faults.script:
            return {}
        reasons = {}
        for client in clients:
            reason, _ = self.faults.missing(
                record.round, record.attempt, 0, client, self.server.sizes[client]
            )
            if reason is not None:
                reasons[client] = reason
        return reasons

    def large(self, down: Record, cohort: int) -> bool:
        """Return True if the replies of a cohort go through files.

        This follows from the size of what is sent, so that it never depends on load.

        Args:
            down: The message to a client.
            cohort: The number of clients.
        """
        return size(down) * cohort > self.experiment.memory * 2**20


class RoundCohort(Cohort):
    """The clients of one attempt at one round.

    In round 0 these are all clients, and each must answer. After the last round these are all
    clients, and those that answer count.

    Attributes:
        ids: The clients that were sampled.
        joined: Those whose replies have all counted so far.
        exchanges: The number of exchanges so far.
        provisional: The states that clients reached in this round.
        discarded: Files that nobody will read again.
        banned: Clients that are not sampled in the next attempt.
        local_models: The models of clients after their last step, if distances are measured.
    """

    def __init__(self, clients: Clients, ids: Iterable[str], record: RoundRecord) -> None:
        """Begin an attempt.

        Args:
            clients: All clients of the run.
            ids: The clients of this cohort.
            record: The record of the round, which is filled.
        """
        self.clients = clients
        self.server = clients.server
        self.record = record
        self.ids = list(ids)
        self.joined = list(self.ids)
        self.exchanges = 0
        self.provisional: dict[str, StateRef] = {}
        self.discarded: set[str] = set()
        self.banned: set[str] = set()
        self.local_models: dict[str, Tree] = {}
        self._began = time.perf_counter()
        self._busy = 0.0  # seconds of work at clients
        self._waited = 0.0  # seconds in exchanges

    def run(
        self,
        step: Callable[..., Up | None],
        down: Down | None = None,
        *,
        each: Callable[[str], Down] | None = None,
        strict: bool = False,
    ) -> Ups:
        """Ask all clients that have not left the round; see `Cohort.run`."""
        began = time.perf_counter()
        self.exchanges += 1
        name = step_name(self.clients.method, step)
        clients = list(self.joined)
        downs = {}
        for client in clients:
            downs[client] = each(client) if each is not None else down or Down()
        accepted = self._accepted(name, self._received(name, downs))
        self.record.bytes_down += sum(size(downs[client]) for client in clients)
        self._waited += time.perf_counter() - began
        self._check_enough(clients, accepted, strict)
        ups = Ups([(client, accepted.get(client)) for client in self.ids])
        if self._measures_distances():
            self.local_models = self._local_models(downs, ups) or self.local_models
        return ups

    def _measures_distances(self) -> bool:
        experiment = self.clients.experiment
        evaluation = experiment.evaluation
        return evaluation.distances and evaluation.is_due(self.record.round, experiment.rounds)

    def _local_models(self, downs: Mapping[str, Down], ups: Ups) -> dict[str, Tree]:
        """Return the models that follow from the replies of a step; none if it is no training."""
        models = {}
        for client, up in zip(ups.ids, ups, strict=True):
            model = self.clients.method.local_model(self.server, downs[client], up)
            if model is not None:
                models[client] = model
        return models

    def _accepted(self, step: str, replies: Sequence[Reply]) -> dict[str, Up]:
        """Validate replies; return the uploads that count, by client."""
        keys = [frozenset(reply.up) for reply in replies if reply.up is not None]
        majority = max(keys, key=keys.count) if keys else frozenset()
        accepted: dict[str, Up] = {}
        for reply in replies:
            reason = reply.failure or validate_upload(
                reply.up, majority, self.server, self.clients.method, step
            )
            if reason is None and reply.up is not None:
                accepted[reply.client] = reply.up
                self._accept(reply)
            else:
                self._refuse(reply, reason or "no reply")
        return accepted

    def _check_enough(
        self, clients: Sequence[str], accepted: Mapping[str, Up], strict: bool
    ) -> None:
        """Abort the attempt if too few replies counted."""
        missing = len(clients) - len(accepted)
        if missing and not self.server.round:
            client, reason = self.record.rejected[0][2:]
            raise RoundAborted(
                f"every client has to answer, and {missing} of {len(clients)} did not; "
                f"the first, {client!r}: {reason}"
            )
        if missing and strict:
            self.banned |= set(clients) - set(accepted)
            raise RoundAborted(f"client {sorted(self.banned)[0]!r} left in a step that needs all")
        is_training = 0 < self.server.round <= self.server.rounds
        floor = self.clients.experiment.participation.floor if is_training else 1
        if len(accepted) < floor:
            raise RoundAborted(f"{len(accepted)} of {len(clients)} replies counted")

    def weighed(self, ids: Sequence[str], weights: Weights) -> None:
        """Record the shares of clients in the aggregation; see `Cohort.weighed`."""
        shares = dict(zip(ids, map(float, weights.shares), strict=True))
        shares |= weights.absent
        total = sum(shares.values())
        self.record.weights = {}
        if total:
            self.record.weights = {client: share / total for client, share in shares.items()}

    def close(self) -> None:
        """Record who took part and where the time went, after the last exchange."""
        wall = time.perf_counter() - self._began
        busy = self._busy / max(1, self.clients.transport.lanes)
        self.record.seconds |= {
            "clients": busy,
            "transport": max(0.0, self._waited - busy),
            "aggregation": max(0.0, wall - self._waited),
        }
        self.record.joined = list(self.joined)

    def left_over(self) -> set[str]:
        """Return the files of an attempt that was aborted."""
        return self.discarded | {state_file(state.name) for state in self.provisional.values()}

    def restricted_view(self) -> Cohort:
        """Return the cohort for a method.

        No attribute of it leads to the transport and the data behind it.
        """
        cohort = self

        class RestrictedCohort(Cohort):
            ids = self.ids

            def run(self, *arguments: Any, **options: Any) -> Ups:
                return cohort.run(*arguments, **options)

            def weighed(self, ids: Sequence[str], weights: Weights) -> None:
                cohort.weighed(ids, weights)

        return RestrictedCohort()

    def _received(self, step: str, downs: Mapping[str, Down]) -> list[Reply]:
        """Return one reply per client: what arrived, or why nothing did."""
        requests = [self._request(client, step, down) for client, down in downs.items()]
        dropped = self._simulate_faults(requests)
        sent = [request for request in requests if request.client not in dropped]
        replies = {reply.client: reply for reply in self.clients.ask(sent)}
        if not self.server.round:
            self._ask_again(requests, replies)
        for client, reason in dropped.items():
            replies[client] = Reply(client, failure=reason)
        faults = self.clients.faults
        server = self.server
        return [
            faults.damaged(server.round, server.attempt, self.exchanges, replies[client])
            for client in downs
        ]

    def _ask_again(self, requests: Sequence[Request], replies: dict[str, Reply]) -> None:
        """Ask clients again before round 1, where all must answer, as often as rounds are tried."""
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

    def _simulate_faults(self, requests: Sequence[Request]) -> dict[str, str]:
        """Return the clients that a simulated fault keeps from answering, with the reason.

        Faults that are drawn at random occur in the first exchange of a round.
        """
        if not self.clients.experiment.faults.any or not self.server.round:
            return {}
        reasons = {}
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
                reasons[request.client] = reason
            if self.exchanges == 1:
                self.record.virtual_seconds = max(self.record.virtual_seconds or 0.0, seconds)
        return reasons

    def _accept(self, reply: Reply) -> None:
        self._busy += reply.seconds
        by_client = self.record.client_seconds
        by_client[reply.client] = by_client.get(reply.client, 0.0) + reply.seconds
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
