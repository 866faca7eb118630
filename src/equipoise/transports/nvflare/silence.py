"""Keeping FLARE's client from printing and logging, while other threads print as usual."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Silence:
    """The silent threads of this process, and its streams in the meantime.

    Standard streams belong to the process. A server's supervisor talks to FLARE in a thread of its
    own, so a redirection for the duration of a block would also discard what other threads print,
    and two blocks that overlap would leave it in place for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Counter[int] = Counter()
        self._streams: dict[str, _Filtered] = {}
        self._level = logging.WARNING

    def begin(self) -> None:
        """Silence the calling thread."""
        with self._lock:
            if not self._threads:
                self._install()
            self._threads[threading.get_ident()] += 1

    def end(self) -> None:
        """Let the calling thread print again, once for each begin."""
        with self._lock:
            thread = threading.get_ident()
            self._threads[thread] -= 1
            if not self._threads[thread]:
                del self._threads[thread]
            if not self._threads:
                self._remove()

    def is_silent(self) -> bool:
        """Return True if the calling thread is silent."""
        return threading.get_ident() in self._threads

    def _install(self) -> None:
        self._level = logging.getLogger().level
        logging.getLogger().setLevel(logging.CRITICAL)
        for name in ("stdout", "stderr"):
            self._streams[name] = _Filtered(getattr(sys, name), self)
            setattr(sys, name, self._streams[name])

    def _remove(self) -> None:
        logging.getLogger().setLevel(self._level)
        for name, filtered in self._streams.items():
            if getattr(sys, name) is filtered:  # nobody has replaced it since
                setattr(sys, name, filtered.stream)
        self._streams.clear()


class _Filtered:
    """A stream without the output of silent threads."""

    def __init__(self, stream: TextIO, silence: _Silence) -> None:
        self.stream = stream
        self._silence = silence

    def write(self, text: str) -> int:
        """Write a text unless the calling thread is silent."""
        if self._silence.is_silent():
            return len(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_silence = _Silence()


@contextmanager
def flare_is_silent() -> Iterator[None]:
    """Discard what the calling thread prints, and what is logged, for the duration of a block."""
    _silence.begin()
    try:
        yield
    finally:
        _silence.end()
