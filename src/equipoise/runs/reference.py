"""The run that others are judged against: each client training alone, on the same data and by the same schedule."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.runs.run import Run
from equipoise.storage.store import DATABASE, RunError

ALONE = "standalone"
SCHEDULE = (
    "rounds",
    "seed",
    "training",
    "model",
    "models",
)  # what a run and its reference share, beside the data


def is_baseline_for(
    alone: Mapping[str, Any], data_alone: str, config: Mapping[str, Any], data: str
) -> bool:
    """Whether the first run, by its configuration and the fingerprint of its data, is what the second is judged against."""
    return (
        bool(alone["method"]["name"] == ALONE)
        and data_alone == data
        and all(alone[key] == config[key] for key in SCHEDULE)
    )


def is_old(run: Run) -> bool:
    """Whether the fingerprint of its data is of the kind that older versions wrote: the two kinds cannot be matched."""
    return run.store.meta("fingerprint of") is None


def unmatched(older: Path) -> RunError:
    return RunError(
        f"{older} was written by an older version and cannot be matched with runs of this one; run it anew"
    )


def check_comparable(run: Run, alone: Run) -> None:
    """Refuse to judge a run by one of other data."""
    if is_old(run) != is_old(alone):
        raise unmatched(run.folder if is_old(run) else alone.folder)
    if run.store.meta("fingerprint") != alone.store.meta("fingerprint"):
        raise RunError(
            f"{run.folder} and {alone.folder} cannot be compared: their data or partition differ; use runs of the same data, partition and seed"
        )


def reference_of(run: Run) -> Run | None:
    """A finished run of training alone beside this one that it is judged against; None if there is none."""
    if run.config["method"]["name"] == ALONE:
        return None
    for folder in runs_in(run.folder.parent):
        if folder == run.folder:
            continue
        try:
            other = Run(folder)
            matched = is_baseline_for(
                other.config,
                other.store.meta("fingerprint"),
                run.config,
                run.store.meta("fingerprint"),
            )
            if matched and other.status == "finished":
                return other
        except (
            RunError,
            OSError,
            KeyError,
            TypeError,
            ValueError,
            sqlite3.Error,
        ):  # another's folder, in whatever state it is
            continue
    return None


def runs_in(folder: Path) -> list[Path]:
    """The folders inside that hold a run; what may not be read is passed over."""
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    # unlike Path.exists it takes no permission for an answer
    return [path for path in found if os.path.exists(path / DATABASE)]
