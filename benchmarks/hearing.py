"""A callback of functions, for benchmarks that mark moments of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from equipoise.callbacks import Callback, ClientProgress, RunStart


class Hearing(Callback):
    """Calls ``on_start(first, rounds)``, ``on_clients(step, done, total)`` and
    ``on_round(record)``.
    """

    def __init__(
        self,
        on_start: Callable[[int, int], Any] | None = None,
        on_clients: Callable[[str, int, int], Any] | None = None,
        on_round: Callable[[Any], Any] | None = None,
    ) -> None:
        self.start, self.clients, self.round = on_start, on_clients, on_round

    def on_start(self, start: RunStart) -> None:
        """Call the function for the start of a run."""
        if self.start is not None:
            self.start(start.first, start.rounds)

    def on_client(self, progress: ClientProgress) -> None:
        """Call the function for a finished client."""
        if self.clients is not None:
            self.clients(progress.step, progress.done, progress.total)

    def on_round(self, record: Any) -> None:
        """Call the function for a finished round."""
        if self.round is not None:
            self.round(record)
