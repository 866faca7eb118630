"""In process: the reference. Breakpoints work, and a client's exception is raised where it happened."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from equipoise.method import Method
from equipoise.records import CannotSave, pack, unpack
from equipoise.transports.exchange import ClientError, Interrupted, Reply, Request, Watcher, late, perform
from equipoise.transports.isolation import UNKEPT, Late, can_interrupt
from equipoise.workbench import Workbench

log = logging.getLogger("equipoise")


class InProcess:
    """One client after another, here."""

    def __init__(self, bench: Workbench, method: Method, watcher: Watcher | None = None) -> None:
        self.bench, self.method, self.watcher = bench, method, watcher or Watcher()
        self.warned = False

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        if deadline is not None and not self.warned and not can_interrupt():
            log.warning(UNKEPT)
            self.warned = True
        replies: list[Reply] = []
        for request in requests:
            if self.watcher.interrupted():
                raise Interrupted
            replies.append(self._one(request, deadline))
            self.watcher.on_clients(request.step, len(replies), len(requests))
        return replies

    def _one(self, request: Request, deadline: float | None) -> Reply:
        try:
            return perform(self.bench, self.method, request, deadline)
        except Late:
            return late(request, deadline or 0.0)
        except CannotSave:
            raise
        except Exception as error:
            raise ClientError(
                f"client {request.client!r}, round {request.round}, step {request.step!r}: {type(error).__name__}: {error}"
            ) from error

    def close(self) -> None:
        pass


class Loopback(InProcess):
    """In process, but everything is packed and unpacked on its way: what shows that a method can travel."""

    def _one(self, request: Request, deadline: float | None) -> Reply:
        reply = super()._one(replace(request, down=unpack(bytearray(b"".join(pack(request.down))))), deadline)
        return replace(reply, up=None if reply.up is None else unpack(bytearray(b"".join(pack(reply.up)))))
