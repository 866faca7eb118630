"""Tracing of executed lines, in this process and its child processes."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDER, SOURCE = "MUTATION_FOLDER", "MUTATION_SOURCE"  # sent to child processes


class Tracer:
    """The executed lines of files below one folder since the last `fresh`."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[str, set[int]] = {}
        self.left: dict[
            CodeType, set[int]
        ] = {}  # a function is no longer watched once all its lines were seen

    def start(self) -> None:
        """Trace this thread and all later ones."""
        threading.settrace(self.call)
        sys.settrace(self.call)

    def fresh(self) -> None:
        """Forget all lines."""
        self.lines, self.left = {}, {}

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace a function until all its lines were executed."""
        code = frame.f_code
        if not code.co_filename.startswith(self.source):
            return None
        left = self.left.get(code)
        if left is None:
            self.saw(
                code.co_filename,
                code.co_firstlineno,
                self.lines.setdefault(code.co_filename, set()),
            )  # all that a lambda has
            left = self.left[code] = {
                line for _, _, line in code.co_lines() if line not in (None, code.co_firstlineno)
            }
        if not left:
            return None
        seen = self.lines.setdefault(code.co_filename, set())

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                self.saw(code.co_filename, frame.f_lineno, seen)
                left.discard(frame.f_lineno)
            return line

        return line

    def saw(self, file: str, number: int, seen: set[int]) -> None:
        """Note an executed line."""
        seen.add(number)


class ChildTracer(Tracer):
    """A tracer that writes each line at once, because a worker process may end at any moment."""

    def __init__(self, source: str, file: Path) -> None:
        super().__init__(source)
        self.out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def saw(self, file: str, number: int, seen: set[int]) -> None:
        """Write an executed line, the first time."""
        if number not in seen:
            seen.add(number)
            os.write(self.out, f"{file}\t{number}\n".encode())


def trace_child() -> None:
    """Trace a child process; called by a sitecustomize on its path."""
    if FOLDER in os.environ:
        ChildTracer(
            os.environ[SOURCE],
            Path(os.environ[FOLDER]) / f"child-{os.getpid()}-{time.monotonic_ns()}",
        ).start()
