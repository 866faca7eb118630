"""A callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise.callbacks import Callback, CallbackList, ClientProgress, RunStart
from equipoise.transports.base import Monitor


class Calling(Callback):
    """Calls the functions it is given; those that are missing do nothing."""

    def __init__(
        self,
        on_start: Callable[[RunStart], Any] | None = None,
        on_client: Callable[[ClientProgress], Any] | None = None,
        on_round: Callable[[Any], Any] | None = None,
        on_end: Callable[[Path, BaseException | None], Any] | None = None,
    ) -> None:
        self.start, self.client, self.round, self.end = on_start, on_client, on_round, on_end

    def on_start(self, start: RunStart) -> Any:
        return self.start and self.start(start)

    def on_client(self, progress: ClientProgress) -> Any:
        return self.client and self.client(progress)

    def on_round(self, record: Any) -> Any:
        return self.round and self.round(record)

    def on_end(self, folder: Path, error: BaseException | None) -> Any:
        return self.end and self.end(folder, error)


def monitor_of(on_clients: Callable[[str, int, int], Any] | None = None) -> Monitor:
    """Return what a transport reports to, with a function that is called after each answer."""
    if on_clients is None:
        return Monitor()
    hear = on_clients
    callback = Calling(on_client=lambda one: hear(one.step, one.done, one.total))
    return Monitor(CallbackList(callback))
