"""Methods that fail or disturb, each in its way; child processes import them from here."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass
from typing import Any

from equipoise.methods.fedavg import FedAvg
from equipoise.records import Up


@dataclass(frozen=True)
class Dying(FedAvg):
    """Takes its process with it."""

    def client(self, client: Any, down: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Raising(FedAvg):
    """Raises at every client."""

    def client(self, client: Any, down: Any) -> None:
        raise RuntimeError("no patience left")


@dataclass(frozen=True)
class Fragile(FedAvg):
    """Trains and fails on some partitions (`solid: false`), or never does either."""

    solid: bool = False
    limit: int = 0

    def client(self, client: Any, down: Any) -> Any:
        if self.solid:
            return Up(model=client.load(down.model))
        if len(client.train) > self.limit:
            raise RuntimeError("too many samples")
        return super().client(client, down)


@dataclass(frozen=True)
class Talking(FedAvg):
    """Prints what could be taken for a message of its process."""

    def client(self, client: Any, down: Any) -> Any:
        print('{"event": "failed", "reason": "says the method"}', flush=True)
        return super().client(client, down)


@dataclass(frozen=True)
class Thrifty(FedAvg):
    """Fails if its process returns every large block of memory to the system (glibc only)."""

    def client(self, client: Any, down: Any) -> Any:
        if _is_mapped(31 * 2**20):
            raise RuntimeError("large blocks are mapped, so each step pays for new pages")
        return super().client(client, down)


def _is_mapped(size: int) -> bool:
    """Return True if a new block has a mapping of its own; glibc marks such blocks in a bit."""
    allocate, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    free.argtypes = [ctypes.c_void_p]
    block = allocate(size)
    header = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    free(block)
    return bool(header & 2)
