"""Sockets between our own processes: records in frames, large ones in shared memory."""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.records import Record, pack, unpack

# A larger message travels as memory that both sides map. A socket would copy it twice, in pieces,
# with both sides waiting.
_IN_LINE = 2**16
_MAPS_MEMORY = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
_FRAME = struct.Struct("<QQ")  # bytes, number of the memory that holds them (0: they follow)


class Sender:
    """Sends records over a connection.

    Memory that the receiver has released is used again, since new pages are expensive.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._memories: dict[int, Tensor] = {}
        self._free: list[int] = []

    def send(self, message: Record) -> None:
        """Send a record."""
        parts = pack(message)
        total = sum(map(len, parts))
        if not _MAPS_MEMORY or total <= _IN_LINE:
            self.connection.sendall(b"".join([_FRAME.pack(total, 0), *parts]))
            return
        number, descriptor = self._memory(total)
        target = self._memories[number].numpy()
        offset = 0
        for part in parts:
            target[offset : offset + len(part)] = np.frombuffer(part, np.uint8)
            offset += len(part)
        descriptors = [] if descriptor is None else [descriptor]
        try:
            socket.send_fds(self.connection, [_FRAME.pack(total, number)], descriptors)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _memory(self, total: int) -> tuple[int, int | None]:
        """Return the number of a memory of the right size, and its descriptor if it is new."""
        fitting = [
            number for number in self._free if total <= self._memories[number].numel() <= 2 * total
        ]
        if fitting:
            number = min(fitting, key=lambda number: self._memories[number].numel())
            self._free.remove(number)
            return number, None
        descriptor = os.memfd_create("equipoise message")
        number = len(self._memories) + 1
        # Rounded up, since headers vary by some bytes; pages are allocated when they are written.
        os.ftruncate(descriptor, -(-total // _IN_LINE) * _IN_LINE)
        self._memories[number] = _map(descriptor)
        return number, descriptor

    def take_back(self, numbers: Iterable[int]) -> None:
        """Use memories again that the receiver has released."""
        self._free += numbers


class Receiver:
    """Receives the records of a `Sender`."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._memories: dict[int, Tensor] = {}
        self._done: deque[int] = deque()

    def receive(self) -> Any:
        """Return the next record.

        Raises:
            EOFError: If the other side has closed the connection.
            ValueError: If a message is malformed.
        """
        frame, descriptors, _, _ = socket.recv_fds(self.connection, _FRAME.size, 1)
        if not frame:
            raise EOFError("the other side closed the connection")
        total, number = _FRAME.unpack(frame + _exactly(self.connection, _FRAME.size - len(frame)))
        if not number:
            if _MAPS_MEMORY and total > _IN_LINE:
                raise ValueError(
                    f"a message of at most {_IN_LINE} bytes was expected in line, "
                    f"{total} were announced"
                )
            return unpack(memoryview(_exactly(self.connection, total)))
        for descriptor in descriptors:
            self._memories[number] = _map(descriptor)
            os.close(descriptor)
        if number not in self._memories:
            raise ValueError(f"a message lies in memory {number}, which was never sent")
        view = self._memories[number].numpy().data[:total]
        # Tensors of the record keep the view alive.
        weakref.finalize(view, self._done.append, number).atexit = False
        return unpack(view)

    def returned(self) -> list[int]:
        """Return the numbers of memories that no tensor uses any more, each once."""
        return [self._done.popleft() for _ in range(len(self._done))]


def _map(descriptor: int) -> Tensor:
    """Return the memory behind a descriptor; unlike `mmap` it keeps no descriptor open."""
    return torch.from_file(
        f"/proc/self/fd/{descriptor}",
        shared=True,
        size=os.fstat(descriptor).st_size,
        dtype=torch.uint8,
    )


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    received = 0
    while received < count:
        size = connection.recv_into(view[received:])
        if not size:
            raise EOFError("the other side closed the connection")
        received += size
    return data
