"""States of clients: on the disk of the server before they count. Small ones travel with a call; large ones are references into the object stores."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.records import CannotSave
from equipoise.runtime.messages import Reply
from equipoise.runtime.states import ServerStates, state_path
from equipoise.transports.ray.nodes import INLINE


class References:
    """The least recently used go, beyond a limit of bytes; what is not here is put again from its file."""

    def __init__(self, ray: Any, files: Path) -> None:
        self.ray, self.files, self.written = ray, files, ServerStates(files)
        # name of a state -> its reference and size
        self.held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.bytes = 0
        self.limit = 0.0

    def of(self, name: str) -> Any:
        """What to send for a state: the reference that an actor left, or a new one of its file; of a small one the file's content."""
        if name not in self.held:
            data = np.frombuffer(state_path(self.files, name).read_bytes(), np.uint8)
            if len(data) <= INLINE:
                return data
            self._hold(name, self.ray.put(data), len(data))
        self.held.move_to_end(name)
        return self.held[name][0]

    def kept(self, reply: Reply, state: Any, reference: Any) -> Reply:
        """The reply, once its state is in the run's files."""
        if reply.state is None:
            return reply
        try:
            written = self.written.put(reply.state.name, memoryview(state))
        except CannotSave as error:
            return Reply(reply.client, stop=str(error))
        if written != reply.state:
            return Reply(reply.client, failure=f"state {reply.state.name} was damaged on its way")
        if written.bytes > INLINE:
            self._hold(written.name, reference, written.bytes)
        return reply

    def forget(self, name: str) -> None:
        """Release the reference to a state."""
        self.bytes -= self.held.pop(name, (None, 0))[1]

    def _hold(self, name: str, reference: Any, bytes: int) -> None:
        self.forget(name)
        self.held[name] = reference, bytes
        self.bytes += bytes
        while self.bytes > self.limit and len(self.held) > 1:
            self.forget(next(iter(self.held)))
