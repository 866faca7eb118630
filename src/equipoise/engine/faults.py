"""Simulated faults: clients that drop out, are late on a virtual clock, or send damaged replies.

All are drawn from named streams, so a run with faults can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from equipoise.experiment import Faults
from equipoise.records import Up
from equipoise.runtime.messages import Reply
from equipoise.streams import stream
from equipoise.training import Training
from equipoise.tree import Tree


@dataclass(frozen=True)
class FaultPlan:
    """The faults of a run."""

    faults: Faults
    training: Training
    seed: int

    def _scripted(self, round: int, attempt: int, exchange: int, client: str) -> set[str]:
        """Return the kinds of faults that a script plans for an exchange.

        Unless it names another attempt it is about the first, so a repeated round can succeed.
        """
        at = (round, attempt, exchange, client)
        return {
            fault.kind
            for fault in self.faults.script
            if (fault.round, fault.attempt, fault.exchange, fault.client) == at
        }

    def _draw(self, purpose: str, round: int, attempt: int, client: str) -> np.random.Generator:
        return stream(self.seed, "faults", purpose, round, attempt, client)

    def kills(self, round: int, attempt: int, exchange: int, client: str) -> bool:
        """Return True if the worker process that executes this client's request shall die."""
        return "kill" in self._scripted(round, attempt, exchange, client)

    def restarts(self, round: int) -> list[str]:
        """Return the clients that begin a round without their states."""
        return [
            fault.client
            for fault in self.faults.script
            if fault.kind == "restart" and fault.round == round
        ]

    def missing(
        self, round: int, attempt: int, exchange: int, client: str, samples: int
    ) -> tuple[str | None, float]:
        """Return why a client does not answer, or None, and the virtual seconds of waiting."""
        if "drop" in self._scripted(round, attempt, exchange, client):
            return "dropped out", 0.0
        # Random faults are drawn once per round, with its first exchange. Evaluations, which have
        # the number 0, fail by script only.
        if exchange != 1:
            return None, 0.0
        if self._draw("dropout", round, attempt, client).random() < self.faults.dropout:
            return "dropped out", 0.0
        seconds = self._seconds(round, attempt, client, samples)
        deadline = self.faults.deadline
        if deadline is not None and seconds > deadline:
            return f"missed the deadline: {seconds:.3g} of {deadline:.3g} virtual seconds", deadline
        return None, seconds

    def _seconds(self, round: int, attempt: int, client: str, samples: int) -> float:
        """Return the virtual duration of a client's step."""
        if self.training.steps:
            visits = self.training.steps * self.training.batch
        else:
            visits = self.training.epochs * samples
        is_slow = stream(self.seed, "faults", "speed", client).random() < self.faults.stragglers
        slowdown = self.faults.slowdown if is_slow else 1.0
        noise = float(np.exp(0.1 * self._draw("noise", round, attempt, client).standard_normal()))
        return visits / 1000 * slowdown * noise

    def damaged(self, round: int, attempt: int, exchange: int, reply: Reply) -> Reply:
        """Return a reply as it arrives."""
        if reply.up is None or not self.faults.any or round == 0:
            return reply
        kinds = self._scripted(round, attempt, exchange, reply.client) & {"nan", "shape", "names"}
        if exchange == 1 and self.faults.corrupt:
            draw = self._draw("corrupt", round, attempt, reply.client).random()
            if draw < self.faults.corrupt:
                kinds.add(self.faults.corruption)
        up = reply.up
        for kind in kinds:
            up = corrupted(up, kind)
        return replace(reply, up=up)


def corrupted(up: Up, kind: str) -> Up:
    """Return a damaged upload: NaN values, a wrong shape, or a missing name."""
    for name, value in up.items():
        if isinstance(value, Tree) and value.trained:
            first = value.trained[0]
            tensors = dict(value.items())
            if kind == "nan":
                tensors[first] = torch.full_like(tensors[first], float("nan"))
            elif kind == "shape":
                tensors[first] = tensors[first].flatten()[:-1]
            else:
                del tensors[first]
            return up.with_(**{name: Tree(tensors, value.model, value.untrained)})
    return up.with_(damaged=float("nan"))
