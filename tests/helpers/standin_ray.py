"""As much of Ray as the transport over a cluster uses, in this process: actors work when they are
waited for, nodes come and go as a test says.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from equipoise.records import unpack
from equipoise.runtime import executor
from equipoise.transports.ray import actor, actor_pool, cluster, dispatch

ADDRESS = "127.0.0.1:1"
MB = 2**20
TICK = 1 / 64  # seconds that every piece of a client's work takes


class Clock:
    """Time passes where somebody waits, and while a client works."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        self.now += TICK
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 5000, "nothing ends this wait"


class RayError(Exception):
    """As all of Ray's errors."""


RayActorError, ActorUnschedulableError, RayTaskError, ObjectLostError, ObjectStoreFullError = (
    type(name, (RayError,), {})
    for name in (
        "RayActorError",
        "ActorUnschedulableError",
        "RayTaskError",
        "ObjectLostError",
        "ObjectStoreFullError",
    )
)


class Died(BaseException):
    """Raised in an actor, or by a test's script: its process ends here."""


class Hangs(Exception):
    """Raised by a test's script: this call has not ended yet."""


@dataclass(eq=False)
class Machine:
    """A node; `changes` are other names in the actor's module there, `known` is when its death is
    known to others.
    """

    id: str
    cores: int = 1
    store: int = 100 * MB
    changes: dict[str, Any] = field(default_factory=dict)
    dead: bool = False
    known: float = 0.0

    @property
    def name(self) -> str:
        return f"10.0.0.1:{self.id}"


@dataclass(eq=False)
class Reference:
    """An object in the store of a machine, or what a call will leave there."""

    machine: Machine
    call: Call | None = None
    value: Any = None
    error: Exception | None = None


@dataclass(eq=False)
class Process:
    """An actor of ours."""

    made: Callable[[], Any]
    machine: Machine
    dead: bool = False
    instance: Any = None


@dataclass(eq=False)
class Call:
    number: int
    process: Process
    method: str
    arguments: tuple[Any, ...]
    left: list[Reference] = field(default_factory=list)
    done: bool = False

    @property
    def clients(self) -> list[str]:
        """Whose requests travel in it."""
        return (
            [task["request"]["client"] for task in unpack(self.arguments[2].data)["tasks"]]
            if self.method == "execute"
            else []
        )


class StandIn:
    """The module `ray`.

    `script` sees every call before it is done, and raises what shall become of it.
    """

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayActorError=RayActorError,
        ActorUnschedulableError=ActorUnschedulableError,
        ObjectLostError=ObjectLostError,
        ObjectStoreFullError=ObjectStoreFullError,
    )
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft)
        )
    )

    def __init__(self, clock: Clock) -> None:
        self.clock, self.script = clock, lambda call: None
        self.head = Machine("head", cores=0)
        self.machines = [self.head]
        self.processes: list[Process] = []
        self.calls: list[Call] = []
        self.put_values: list[Any] = []
        self.said: list[
            Any
        ] = []  # what actors did to their process, and how the cluster was reached
        self.shutdowns, self.unreachable, self.numbers = 0, 0, itertools.count()

    def add(self, **more: Any) -> Machine:
        self.machines.append(Machine(str(len(self.machines)), **more))
        return self.machines[-1]

    def lose(self, machine: Machine, known_after: float = 0.0) -> None:
        machine.dead, machine.known = True, self.clock.now + known_after

    @property
    def living(self) -> list[Process]:
        return [one for one in self.processes if not one.dead and not one.machine.dead]

    # What the transport calls.

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": one.id,
                "Alive": not one.dead or self.clock.now < one.known,
                "NodeManagerAddress": "10.0.0.1",
                "NodeManagerPort": one.id,
                "Resources": {
                    "object_store_memory": float(one.store),
                    **({"CPU": float(one.cores)} if one.cores else {}),
                },
            }
            for one in self.machines
        ]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: self.head.id)

    def put(self, value: Any) -> Reference:
        if (
            sum(array.nbytes for array in (value.values() if isinstance(value, dict) else [value]))
            > self.head.store
        ):
            raise ObjectStoreFullError
        self.put_values.append(value)
        return Reference(self.head, value=_stored(value))

    def get(self, reference: Any, timeout: float = 0.0) -> Any:
        if isinstance(reference, list):
            return [self.get(one) for one in reference]
        if reference.error is not None:
            raise reference.error
        if reference.machine.dead:
            raise ObjectLostError("Failed to retrieve object")
        assert reference.call is None or reference.call.done
        return reference.value

    def wait(
        self, references: list[Reference], num_returns: int, timeout: float
    ) -> tuple[list[Reference], list[Reference]]:
        """Calls end in the order in which they were made, one at a time."""
        assert num_returns == 1
        for one in sorted(references, key=lambda one: one.call.number if one.call else -1):
            if one.call is None or self._do(one.call):
                return [one], [other for other in references if other is not one]
        self.clock.sleep(timeout)
        return [], references

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        assert options == {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        return lambda made: SimpleNamespace(
            options=lambda scheduling_strategy: SimpleNamespace(
                remote=lambda: self._start(made, *scheduling_strategy)
            )
        )

    def kill(self, handle: Any) -> None:
        handle.process.dead = True

    def shutdown(self) -> None:
        self.shutdowns += 1

    # How it does that.

    def _start(self, made: Callable[[], Any], node: str, soft: bool) -> Any:
        assert not soft
        process = Process(made, next(one for one in self.machines if one.id == node))
        self.processes.append(process)

        def method(name: str, count: int = 1) -> Any:
            return SimpleNamespace(
                remote=lambda *arguments: self._ask(process, name, arguments, count),
                options=lambda num_returns: method(name, num_returns),
            )

        return SimpleNamespace(process=process, begin=method("begin"), execute=method("execute"))

    def _ask(self, process: Process, name: str, arguments: tuple[Any, ...], count: int) -> Any:
        call = Call(next(self.numbers), process, name, tuple(_stored(one) for one in arguments))
        call.left = [Reference(process.machine, call) for _ in range(count)]
        self.calls.append(call)
        return call.left if count > 1 else call.left[0]

    def _do(self, call: Call) -> bool:
        """Let the actor do a call; False if it hangs."""
        if call.done:
            return True
        process = call.process
        try:
            if process.dead or process.machine.dead:
                raise Died
            self.script(call)
            arguments = [
                self.get(one) if isinstance(one, Reference) else one for one in call.arguments
            ]
            with patch.multiple(actor, **{"kind": actor.kind, **process.machine.changes}):
                process.instance = process.instance or process.made()
                found = getattr(process.instance, call.method)(*arguments)
            for one, value in zip(call.left, found if len(call.left) > 1 else [found], strict=True):
                one.value = _stored(value)
        except Hangs:
            return False
        except (RayError, Exception, Died) as error:
            process.dead |= isinstance(error, Died)
            reported: Exception = RayTaskError(f"{type(error).__name__}: {error}")
            if isinstance(error, Died):
                reported = RayActorError("\n  The actor died\nof a fault.")
            elif isinstance(error, RayError):
                reported = error
            for one in call.left:
                one.error = reported
        call.done = True
        return True

    def reach(self, address: tuple[str, int], timeout: float) -> Any:
        self.said.append(address)
        if self.unreachable:
            self.unreachable -= 1
            raise OSError
        return nullcontext()

    def end_own(self, process: int, number: int) -> None:
        assert (process, number) == (os.getpid(), signal.SIGKILL)
        raise Died


def _stored(value: Any) -> Any:
    """As it lies in an object store: a copy that nobody writes to."""
    if isinstance(value, dict):
        return {name: _stored(one) for name, one in value.items()}
    return (
        np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape)
        if isinstance(value, np.ndarray)
        else value
    )


@contextmanager
def stood_in(*cores: int) -> Iterator[StandIn]:
    """A cluster with a head without cores and such nodes.

    What actors change of their process is restored.
    """
    clock, threads = Clock(), torch.get_num_threads()
    ray = StandIn(clock)
    for count in cores:
        ray.add(cores=count)
    with pytest.MonkeyPatch.context() as change, warnings.catch_warnings():
        for module in (cluster, dispatch, actor_pool, executor):
            change.setattr(module, "time", clock)
        change.setattr(cluster, "connected", lambda address, trust: (ray, address, True))
        change.setattr(actor_pool, "socket", SimpleNamespace(create_connection=ray.reach))
        change.setattr(
            actor, "os", SimpleNamespace(path=os.path, getpid=os.getpid, kill=ray.end_own)
        )
        names = {name: getattr(signal, name) for name in ("SIGINT", "SIG_IGN", "SIGKILL")}
        change.setattr(
            actor, "signal", SimpleNamespace(**names, signal=lambda *asked: ray.said.append(asked))
        )
        change.setattr(actor, "keep_heap", lambda: ray.said.append("heap"))
        change.setattr(sys, "path", sys.path[:])
        yield ray
    torch.set_num_threads(threads)
