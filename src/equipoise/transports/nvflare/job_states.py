"""FLARE's states of a job."""

from __future__ import annotations

SUBMITTED = "SUBMITTED"  # it waits to be started
COMPLETED = "FINISHED:COMPLETED"  # the controller ended in order
ABORTED = "FINISHED:ABORTED"
MISSING = "FINISHED:MISSING"  # ours: the server does not know the job
_ENDED = "FINISHED:"  # how the states of a job that has ended begin


def has_ended(state: str) -> bool:
    """Return True for the state of a job that has ended.

    Example:
        >>> has_ended("RUNNING"), has_ended("FINISHED:COMPLETED")
        (False, True)
    """
    return state.startswith(_ENDED)
