"""The baseline of a run: each client trains alone, on the same data and schedule."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.experiment.sections import Faults, Participation
from equipoise.runs.run import Run
from equipoise.storage.store import DATABASE, RunError
from equipoise.training import Training

ALONE = "standalone"
# settings that a run and its baseline share, in addition to the data
SCHEDULE = (
    "rounds",
    "seed",
    "training",
    "model",
    "models",
    "participation",
    "faults",
    "budget",
)
# A limit of real time, which ends a run that hangs and changes no result.
OPERATIONAL = {"participation": ("deadline",)}


def is_baseline_for(
    alone: Mapping[str, Any], data_alone: str, config: Mapping[str, Any], data: str
) -> bool:
    """Return True if the first run is the baseline of the second.

    Args:
        alone: Configuration of the first run.
        data_alone: Fingerprint of its data.
        config: Configuration of the second run.
        data: Fingerprint of its data.
    """
    if alone["method"]["name"] != ALONE or data_alone != data:
        return False
    return not different_settings(alone, config)


def different_settings(alone: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the settings that a run and its baseline should share and do not."""
    return [key for key in SCHEDULE if _setting(alone, key) != _setting(config, key)]


def _setting(config: Mapping[str, Any], key: str) -> Any:
    """Return a setting, with defaults for what an older version did not write."""
    value = config.get(key)
    defaults = _defaults().get(key)
    if defaults is None:
        return value
    complete = {**defaults, **(value or {})}
    for name in OPERATIONAL.get(key, ()):
        del complete[name]
    return complete


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    sections = {"training": Training(), "participation": Participation(), "faults": Faults()}
    return {key: section.model_dump(mode="json") for key, section in sections.items()}


def has_old_fingerprint(run: Run) -> bool:
    """Return True if an older version wrote the fingerprint, which this version cannot match."""
    return run.store.meta("fingerprint of") is None


def unmatched(older: Path) -> RunError:
    """Return the error about a run whose data cannot be matched with those of newer runs."""
    return RunError(
        f"{older} was written by an older version and cannot be matched with runs of this one; "
        "run it again"
    )


def check_comparable(run: Run, baseline: Run) -> None:
    """Refuse two runs of different data.

    Raises:
        RunError: Their data or partition differ, or one was written by an older version.
    """
    if has_old_fingerprint(run) != has_old_fingerprint(baseline):
        raise unmatched(run.folder if has_old_fingerprint(run) else baseline.folder)
    if run.store.meta("fingerprint") != baseline.store.meta("fingerprint"):
        raise RunError(
            f"{run.folder} and {baseline.folder} cannot be compared: their data or partition "
            "differ; use runs of the same data, partition and seed"
        )


def find_baseline(run: Run) -> Run | None:
    """Return a finished run of training alone, next to this run, that is its baseline.

    The caller closes it. None if there is no such run.
    """
    if run.config["method"]["name"] == ALONE:
        return None
    for folder in runs_in(run.folder.parent):
        if folder == run.folder:
            continue
        candidate = _open_or_none(folder)
        if candidate is None:
            continue
        if _matches(candidate, run):
            return candidate
        candidate.store.close()
    return None


# The folder may be anybody's, in any state.
_UNREADABLE = (RunError, OSError, KeyError, TypeError, ValueError, sqlite3.Error)


def _open_or_none(folder: Path) -> Run | None:
    try:
        return Run(folder)
    except _UNREADABLE:
        return None


def _matches(candidate: Run, run: Run) -> bool:
    try:
        matched = is_baseline_for(
            candidate.config,
            candidate.store.meta("fingerprint"),
            run.config,
            run.store.meta("fingerprint"),
        )
        return matched and candidate.status == "finished" and _ended_alike(candidate, run)
    except _UNREADABLE:
        return False


def _ended_alike(candidate: Run, run: Run) -> bool:
    """Return False if a callback ended one of two finished runs before its last round.

    A budget of time may end runs in different rounds: they are comparable, as it is the same one.
    """
    if candidate.config.get("budget") is not None or run.status != "finished":
        return True
    return candidate.stopped_early == run.stopped_early


def runs_in(folder: Path) -> list[Path]:
    """Return the folders inside that hold a run; those that may not be read are left out."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    # Unlike Path.exists, os.path.exists is False without permission.
    return [path for path in entries if os.path.exists(path / DATABASE)]
