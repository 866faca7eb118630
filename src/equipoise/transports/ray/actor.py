"""Actor of a Ray cluster: a process on a node that executes requests.

Only bytes and arrays go in and out; records are packed by us, never pickled.
"""

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

from equipoise import mkl
from equipoise.data import federate
from equipoise.data.roster import roster_of
from equipoise.experiment import experiment as experiment_from
from equipoise.records import Record, pack, unpack
from equipoise.runtime import wire
from equipoise.runtime.environment import keep_heap
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.messages import Job
from equipoise.runtime.states import CarriedStates
from equipoise.transports.workers.memory import from_arrays
from equipoise.validation.imports import Imports
from equipoise.version import __version__


def kind() -> dict[str, str]:
    """Return the versions that must be equal on all nodes, or the bits would differ."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "equipoise": __version__,
        "CPU": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        mkl.VARIABLE: mkl.mode(),
    }


def packed(record: Record) -> np.ndarray:
    """Return a packed record as one array of bytes."""
    return np.frombuffer(b"".join(pack(record)), np.uint8)


class Actor:
    """Executes requests on one core of a node."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_heap()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
        # Arrays in the object store are read-only, and so are data and trees by contract.
        warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")
        self.executor: ClientExecutor | None = None
        self.states = CarriedStates()
        self.exchange = 0
        self.trees: dict[str, Any] = {}

    def begin(self, message: bytes, arrays: dict[str, np.ndarray] | None) -> bytes:
        """Prepare for a run.

        Args:
            message: The job as JSON; see `JobSpec`.
            arrays: The data, from the object store of this node; None if they are made here from
                the node's own data folder.

        Returns:
            JSON with the versions of this node as "kind" and, if it cannot execute the run, a
            sentence as "refused".
        """
        spec = json.loads(message)
        answer: dict[str, Any] = {"kind": kind()}
        if answer["kind"] == spec["kind"]:
            self._add_paths(spec["path"])
            try:
                job = Job.of(spec["job"])
                experiment = experiment_from(job.experiment, Imports.of_job(job.allowed))
                if arrays is None:
                    federation = federate(experiment.data, experiment.seed)
                    answer["fingerprint"] = roster_of(federation).fingerprint
                else:
                    federation = from_arrays(spec["data"], arrays)
                self.executor = ClientExecutor(job, federation, self.states, experiment)
            except (ValueError, OSError) as error:
                answer["refused"] = str(error)
        return json.dumps(answer).encode()

    def _add_paths(self, paths: list[str]) -> None:
        """Import from the driver's folders first, if this node has them."""
        new = [path for path in paths if path not in sys.path and os.path.isdir(path)]
        sys.path[:0] = new

    def execute(
        self, exchange: int, trees: np.ndarray | None, message: np.ndarray, *states: np.ndarray
    ) -> Any:
        """Execute requests.

        Args:
            exchange: The number of the exchange.
            trees: The trees that many requests of the exchange share, with its first call.
            message: The packed requests.
            states: The states of their clients.

        Returns:
            The packed replies; for an exchange that may change states, a tuple with the new state
            of each client, or None, after the replies.
        """
        assert self.executor is not None
        if trees is not None:
            self.trees = dict(unpack(trees.data)["trees"])
        elif exchange != self.exchange:
            self.trees = {}
        self.exchange = exchange
        call = unpack(message.data)
        self.states.carried = {
            name: state.tobytes() for name, state in zip(call["states"], states, strict=True)
        }
        requests = []
        for task in call["tasks"]:
            request = wire.request_of(task["request"], wire.resolved(task["down"], self.trees))
            if request.die:
                os.kill(os.getpid(), signal.SIGKILL)
            requests.append(request)
        replies = []
        new_states = []
        for reply in self.executor.execute_group(requests):
            replies.append({"reply": wire.to_wire(reply), "up": reply.up})
            new_state = None
            if reply.state is not None:
                new_state = np.frombuffer(self.states.carried.pop(reply.state.name), np.uint8)
            new_states.append(new_state)
        answer = packed(Record._trusted({"replies": replies}))
        if call["keeps"]:
            return (answer, *new_states)
        return answer
