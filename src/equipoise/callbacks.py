"""Callbacks: hear of a run's progress, log it elsewhere, or stop it early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.storage.tables import RoundRecord


@dataclass(frozen=True)
class RunStart:
    """A run that is about to begin or to continue.

    Attributes:
        folder: The folder of the run. Its store holds every round that was committed before.
        first: The first round that will be computed; 1 for a new run.
        rounds: The number of rounds of the experiment.
        held_out_rounds: The last round up to which clients do not train on validation data; None if
            they never do.
    """

    folder: Path
    first: int
    rounds: int
    held_out_rounds: int | None = None


@dataclass(frozen=True)
class ClientProgress:
    """Progress within one exchange between server and clients.

    Attributes:
        step: The step that clients perform, such as ``client`` or ``measure``.
        done: The number of clients that have answered.
        total: The number of clients in the exchange.
        by_node: On a cluster, the number of answers in this round by node.
    """

    step: str
    done: int
    total: int
    by_node: Mapping[str, float] = field(default_factory=dict)


class Callback:
    """Base class of callbacks; override the methods you need.

    A callback runs in the process of the server. An exception that it raises ends the run, which
    can be resumed.

    Example:
        >>> class PrintJoined(Callback):
        ...     def on_round(self, record):
        ...         print(record.round, len(record.joined))
    """

    def on_start(self, start: RunStart) -> bool | None:
        """Called once before the first round of this process. Return True to compute none."""

    def on_client(self, progress: ClientProgress) -> None:
        """Called after each client's answer."""

    def on_round(self, record: RoundRecord) -> bool | None:
        """Called after a round has been committed. Return True to stop training here.

        A run that is stopped early is evaluated once more and ends as a finished run; methods
        that personalise models after the last round still do so.
        """

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        """Called once at the end, with the error that ended the run, or None."""


class CallbackList(Callback):
    """Several callbacks as one.

    Every callback receives every event, even if an earlier one requested a stop.
    """

    def __init__(self, callbacks: Callback | Iterable[Callback] | None = None) -> None:
        """Collect callbacks.

        Args:
            callbacks: One callback, several, or none.

        Raises:
            TypeError: If something is given that is no `Callback`.
        """
        if callbacks is None:
            callbacks = ()
        if isinstance(callbacks, Callback):
            callbacks = (callbacks,)
        self.callbacks = tuple(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(
                    "callbacks: expected objects of a subclass of equipoise.Callback, "
                    f"got {type(callback).__name__}"
                )

    def on_start(self, start: RunStart) -> bool:
        """Tell all callbacks; True if one of them asks to stop."""
        answers = [callback.on_start(start) for callback in self.callbacks]
        return True in answers

    def on_client(self, progress: ClientProgress) -> None:
        """Tell all callbacks."""
        for callback in self.callbacks:
            callback.on_client(progress)

    def on_round(self, record: RoundRecord) -> bool:
        """Tell all callbacks; True if one of them asks to stop."""
        answers = [callback.on_round(record) for callback in self.callbacks]
        return True in answers

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        """Tell all callbacks, the last one first, as context managers are closed."""
        for callback in reversed(self.callbacks):
            callback.on_end(folder, error)
