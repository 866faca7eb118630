"""A step at a client is alone: what it changes for the whole process ends with it, and it ends when its time is over."""

from __future__ import annotations

import ctypes
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

_NUMPY_STATE = 2500  # bytes of numpy's Mersenne Twister: 624 numbers and a position
_AGAIN = 1.0  # seconds after which a step that caught the alarm is interrupted again


@contextmanager
def preserve_global_state() -> Iterator[None]:
    """Threads, gradient mode, default dtype, deterministic algorithms and global generators are afterwards as they were before."""
    settings = _settings()
    torch_state, python_state, numpy_state = (
        torch.default_generator.get_state(),
        random.getstate(),
        _numpy.state(),
    )
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        _numpy.restore(numpy_state)
        if _settings() != settings:
            threads, grad, dtype, deterministic, warns, precision, repeatable, tries = settings
            torch.set_num_threads(threads)
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = repeatable, tries


def _settings() -> tuple[int, bool, torch.dtype, bool, bool, str, bool, bool]:
    return (
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


class _Numpy:
    """The state of numpy's global generator. To copy it takes 35 microseconds, to see in its memory that no one drew from it takes one."""

    def __init__(self) -> None:
        self._kept: tuple[bytes, dict[str, Any]] = (b"", {})

    def _memory(self) -> bytes:
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # numpy's stubs forgot it
        return (
            ctypes.string_at(generator.ctypes.state_address, _NUMPY_STATE)
            if isinstance(generator, np.random.MT19937)
            else b""
        )

    def state(self) -> tuple[bytes, dict[str, Any]]:
        memory = self._memory()
        # A normal number that was drawn in a pair and waits for the next call lies elsewhere: with one the memory does not tell all.
        if not memory or memory != self._kept[0] or self._kept[1]["has_gauss"]:
            self._kept = memory, np.random.get_state(legacy=False)  # noqa: NPY002
        return self._kept

    def restore(self, kept: tuple[bytes, dict[str, Any]]) -> None:
        memory, state = kept
        if not memory or memory != self._memory() or state["has_gauss"]:
            np.random.set_state(state)  # noqa: NPY002
        self._kept = kept  # not what a step inside this one found


_numpy = _Numpy()


class Late(Exception):
    """A step did not end in time."""


class _Alarm(BaseException):
    """Interrupts a step; no Exception, so that a step that catches those does not catch this."""


UNKEPT = "steps in this process take as long as they take: participation.deadline is kept in the main thread only, or with workers"


def can_interrupt() -> bool:
    """Whether a step in this thread can be interrupted: signals reach the main thread only, and Windows has no timer that sends them."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM)
        is not None  # a handler that is not Python's could not be put back
    )


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `Late` inside when the time is over; a call into C ends first. Another alarm that was set before still comes in its time."""
    if seconds is None or not can_interrupt():
        yield
        return
    alarm, inside, rang = _Alarm(), True, False
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    due, other, interval = began + seconds, None, 0.0  # the other alarm: when, and how often again

    def arm() -> None:
        wait = (due if other is None else min(due, other)) - time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(wait, 1e-6))

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal due, other, rang
        now = time.monotonic()
        ours, theirs = now >= due, other is not None and now >= other
        if ours:
            due, rang = now + _AGAIN, True
        if theirs:
            other = now + interval if interval else None
        if inside:
            arm()
        if theirs:
            if callable(before):
                before(number, frame)
            elif before == signal.SIG_DFL:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.raise_signal(signal.SIGALRM)
        if ours and inside:
            raise alarm

    left, interval = signal.getitimer(signal.ITIMER_REAL)
    if left:
        other = began + left
    try:
        signal.signal(signal.SIGALRM, ring)
        arm()
        try:
            yield
        finally:
            inside = False  # from here on an alarm that comes late finds nothing to interrupt
    except (_Alarm, Exception) as error:
        # the step's own, or the alarm of a run around this one
        if not rang or (isinstance(error, _Alarm) and error is not alarm):
            raise
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if other is not None:
            signal.setitimer(signal.ITIMER_REAL, max(other - time.monotonic(), 1e-6), interval)
    if rang:
        raise Late
