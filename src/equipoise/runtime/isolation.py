"""Isolation of a client's step: global settings are restored after it, and it has a time limit."""

from __future__ import annotations

import _random
import ctypes
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

_NUMPY_STATE = 2500  # bytes of numpy's Mersenne Twister: 624 numbers and a position
_PYTHON_STATE = 2504  # bytes of Python's, with padding
_AGAIN = 1.0  # seconds after which a step that caught the alarm is interrupted again


@contextmanager
def preserve_global_state() -> Iterator[None]:
    """Restore threads, gradient mode, dtype, determinism and global generators on exit."""
    settings = _settings()
    torch_state = torch.default_generator.get_state()
    python_state = _python.state()
    numpy_state = _numpy.state()
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        _python.restore(python_state)
        _numpy.restore(numpy_state)
        if _settings() != settings:
            _restore(settings)


class _Settings(NamedTuple):
    """Settings of torch that hold for the whole process."""

    threads: int
    gradients: bool
    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    matmul_precision: str
    cudnn_deterministic: bool
    cudnn_benchmark: bool


def _settings() -> _Settings:
    return _Settings(
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


def _restore(settings: _Settings) -> None:
    torch.set_num_threads(settings.threads)
    torch.set_grad_enabled(settings.gradients)
    torch.set_default_dtype(settings.dtype)
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=settings.warn_only)
    torch.set_float32_matmul_precision(settings.matmul_precision)
    torch.backends.cudnn.deterministic = settings.cudnn_deterministic
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark


class _Numpy:
    """The state of numpy's global generator.

    To copy it takes 35 microseconds. To see in its memory that nobody drew from it takes one.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, dict[str, Any]] = (b"", {})

    def _memory(self) -> bytes:
        # numpy's stubs do not list this function
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if not isinstance(generator, np.random.MT19937):
            return b""
        return ctypes.string_at(generator.ctypes.state_address, _NUMPY_STATE)

    def state(self) -> tuple[bytes, dict[str, Any]]:
        memory = self._memory()
        last_memory, last_state = self._last
        # Normal numbers are drawn in pairs. One that waits for the next call lies elsewhere, so
        # the memory does not show it.
        if not memory or memory != last_memory or last_state["has_gauss"]:
            self._last = memory, np.random.get_state(legacy=False)  # noqa: NPY002
        return self._last

    def restore(self, saved: tuple[bytes, dict[str, Any]]) -> None:
        memory, state = saved
        if not memory or memory != self._memory() or state["has_gauss"]:
            np.random.set_state(state)  # noqa: NPY002
        self._last = saved  # not the state that a nested step saved


class _Python:
    """The state of Python's global generator, which is as slow to copy; see `_Numpy`."""

    def __init__(self) -> None:
        self._last: tuple[bytes, tuple[Any, ...]] = (b"", ())

    def _memory(self) -> bytes:
        generator: Any = random._inst
        if _random.Random.__basicsize__ != object.__basicsize__ + _PYTHON_STATE:
            return b""  # a Python whose generator has another form
        # The second number of a pair of normal ones waits elsewhere.
        spare = repr(generator.gauss_next).encode()
        return spare + ctypes.string_at(id(generator) + object.__basicsize__, _PYTHON_STATE)

    def state(self) -> tuple[bytes, tuple[Any, ...]]:
        memory = self._memory()
        if not memory or memory != self._last[0]:
            self._last = memory, random.getstate()
        return self._last

    def restore(self, saved: tuple[bytes, tuple[Any, ...]]) -> None:
        memory, state = saved
        if not memory or memory != self._memory():
            random.setstate(state)
        self._last = saved


_numpy = _Numpy()
_python = _Python()


class Late(Exception):
    """A step did not end in time."""


class _Alarm(BaseException):
    """Interrupts a step; no Exception, so that a step that catches those does not catch this."""


UNKEPT = (
    "steps in this process take as long as they take: participation.deadline is kept in the main "
    "thread only, or with workers"
)


def can_interrupt() -> bool:
    """Return True if a step in this thread can be interrupted.

    Signals reach the main thread only, and Windows has no timer that sends them.
    """
    if not hasattr(signal, "setitimer"):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    # A handler that was not installed by Python could not be restored.
    return signal.getsignal(signal.SIGALRM) is not None


class _Timer:
    """The process's alarm, shared by a time limit and an alarm that was set before it.

    Attributes:
        alarm: The exception that interrupts the step.
        active: True while the step runs; an alarm that comes later interrupts nothing.
        expired: True once the limit has passed.
    """

    def __init__(self, seconds: float) -> None:
        self.alarm = _Alarm()
        self.active = True
        self.expired = False
        self._previous_handler = signal.getsignal(signal.SIGALRM)
        now = time.monotonic()
        self._due = now + seconds
        remaining, self._other_interval = signal.getitimer(signal.ITIMER_REAL)
        self._other_due = now + remaining if remaining else None

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._ring)
        self._arm()

    def stop(self) -> None:
        """Restore the alarm that was set before."""
        self.active = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous_handler)
        if self._other_due is not None:
            remaining = max(self._other_due - time.monotonic(), 1e-6)
            signal.setitimer(signal.ITIMER_REAL, remaining, self._other_interval)

    def _arm(self) -> None:
        next_due = self._due
        if self._other_due is not None:
            next_due = min(next_due, self._other_due)
        signal.setitimer(signal.ITIMER_REAL, max(next_due - time.monotonic(), 1e-6))

    def _ring(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_ours = now >= self._due
        is_other = self._other_due is not None and now >= self._other_due
        if is_ours:
            self._due = now + _AGAIN
            self.expired = True
        if is_other:
            self._other_due = now + self._other_interval if self._other_interval else None
        if self.active:
            self._arm()
        if is_other:
            self._pass_on(number, frame)
        if is_ours and self.active:
            raise self.alarm

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Do what the alarm that was set before would do."""
        if callable(self._previous_handler):
            self._previous_handler(number, frame)
        elif self._previous_handler == signal.SIG_DFL:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGALRM)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt the block when its time is over.

    A call into C is completed first. An alarm that was set before still comes in its time.

    Args:
        seconds: The limit; None for none.

    Raises:
        Late: If the block took longer.
    """
    if seconds is None or not can_interrupt():
        yield
        return
    timer = _Timer(seconds)
    try:
        timer.start()
        try:
            yield
        finally:
            timer.active = False
    except (_Alarm, Exception) as error:
        # An error after the limit is a consequence of the interruption. The alarm of a limit
        # around this one is not ours to catch.
        is_other_alarm = isinstance(error, _Alarm) and error is not timer.alarm
        if is_other_alarm or not timer.expired:
            raise
    finally:
        timer.stop()
    if timer.expired:
        raise Late
