"""Ctrl-C in a run: it ends after the current client."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C end the run after the current client, and the second at once.

    Yields:
        A function that returns True once the run shall end.
    """
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping.is_set
        return

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = signal.signal(signal.SIGINT, request_stop)
    try:
        yield stopping.is_set
    finally:
        signal.signal(signal.SIGINT, before)
