"""A process on a node of the cluster that performs requests. Only bytes and arrays go in and out; records are packed by us."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import warnings
from typing import Any

import numpy as np
import torch

from equipoise.data import federate
from equipoise.data.roster import roster_of
from equipoise.experiment import experiment
from equipoise.records import Record, pack, unpack
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.messages import Job
from equipoise.runtime.states import CarriedStates
from equipoise.transports import wire
from equipoise.transports.workers.memory import from_arrays
from equipoise.transports.workers.processes import keep_heap
from equipoise.validation.imports import Imports
from equipoise.version import __version__


def kind() -> dict[str, str]:
    """What must be equal on all nodes, or the bits would differ."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "Python": python, "torch": torch.__version__, "equipoise": __version__,
        "CPU": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }  # fmt: skip


def packed(record: Record) -> np.ndarray:
    return np.frombuffer(b"".join(pack(record)), np.uint8)


class Actor:
    """One core of a node."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_heap()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
        # What lies in the object store is read-only, and so are data and trees by contract.
        warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")
        self.executor: ClientExecutor | None = None
        self.states = CarriedStates()
        self.exchange = 0
        self.trees: dict[str, Any] = {}

    def begin(self, told: bytes, arrays: dict[str, np.ndarray] | None) -> bytes:
        """Prepare for a run; answers {"kind"} and, where it cannot be done here, {"refused"} with a sentence.

        `arrays`: the data, from the object store of this node; None: they are made here, from its own data folder.
        """
        asked, here = json.loads(told), kind()
        answer: dict[str, Any] = {"kind": here}
        if here == asked["kind"]:
            sys.path[:0] = [
                path for path in asked["path"] if path not in sys.path and os.path.isdir(path)
            ]
            try:
                job = Job.of(asked["job"])
                if arrays is None:
                    wanted = experiment(job.experiment, Imports.of_job(job.allowed))
                    federation = federate(wanted.data, wanted.seed)
                    answer["fingerprint"] = roster_of(federation).fingerprint
                else:
                    federation = from_arrays(asked["data"], arrays)
                self.executor = ClientExecutor(job, federation, self.states)
            except (
                ValueError,
                OSError,
            ) as error:  # of the experiment, the method or the data: a sentence
                answer["refused"] = str(error)
        return json.dumps(answer).encode()

    def execute(
        self, exchange: int, trees: np.ndarray | None, message: np.ndarray, *states: np.ndarray
    ) -> Any:
        """Replies to packed requests, followed by the new state of each client (or nothing) where the exchange may change states.

        `trees` are those that many requests of an exchange share; they come with the first call of it.
        """
        assert self.executor is not None
        if trees is not None:
            self.exchange, self.trees = exchange, dict(unpack(trees.data)["trees"])
        elif exchange != self.exchange:
            self.exchange, self.trees = exchange, {}
        asked = unpack(message.data)
        self.states.carried = {
            name: state.tobytes() for name, state in zip(asked["states"], states, strict=True)
        }
        replies, new = [], []
        for task in asked["tasks"]:
            request = wire.request_of(task["request"], wire.resolved(task["down"], self.trees))
            if request.die:
                os.kill(os.getpid(), signal.SIGKILL)
            reply = self.executor.execute_catching(request)
            replies.append({"reply": wire.to_wire(reply), "up": reply.up})
            new.append(
                None
                if reply.state is None
                else np.frombuffer(self.states.carried.pop(reply.state.name), np.uint8)
            )
        answer = packed(Record._trusted({"replies": replies}))
        return (answer, *new) if asked["keeps"] else answer
