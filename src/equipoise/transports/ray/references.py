"""Client states on a cluster: small ones travel with calls, large ones as references.

A state is on the disk of the server before it counts.
"""

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
    """References to states in the object stores, up to a number of bytes.

    The least recently used are released first. A state that has none is put again from its file.

    Args:
        ray: The module, connected.
        files: The run's folder of files.
    """

    def __init__(self, ray: Any, files: Path) -> None:
        self.ray = ray
        self.files = files
        self.written = ServerStates(files)
        # reference and size by the name of a state
        self.held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.bytes = 0
        self.limit = 0.0

    def of(self, name: str) -> Any:
        """Return what is sent for a state: a reference, or the bytes of a small one."""
        if name not in self.held:
            data = np.frombuffer(state_path(self.files, name).read_bytes(), np.uint8)
            if len(data) <= INLINE:
                return data
            self._hold(name, self.ray.put(data), len(data))
        self.held.move_to_end(name)
        return self.held[name][0]

    def save_state(self, reply: Reply, state: Any, reference: Any) -> Reply:
        """Write the state of a reply to the run's files; return the reply, or why it failed."""
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
        _, size = self.held.pop(name, (None, 0))
        self.bytes -= size

    def _hold(self, name: str, reference: Any, bytes: int) -> None:
        self.forget(name)
        self.held[name] = reference, bytes
        self.bytes += bytes
        while self.bytes > self.limit and len(self.held) > 1:
            self.forget(next(iter(self.held)))
