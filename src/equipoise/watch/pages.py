"""Pages that are made again when what they show has changed, but not so often that this slows the run that they show."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, RLock

from equipoise.comparison.entries import RESULT
from equipoise.comparison.table import Comparison, opened
from equipoise.report.page import page_of
from equipoise.report.render import Live, render
from equipoise.storage.store import RunError
from equipoise.validation.regular_files import check_regular
from equipoise.watch.progress import Progress, progress_of

AT_LEAST = 2.0  # seconds between two makings of a page while a run goes on
SHARE = 4  # or so many times what the last one took: at most a fifth of one core
FRESH = 0.4  # seconds for which a look at a run is good enough

_drawing = Lock()  # matplotlib's settings belong to the whole process


@dataclass(frozen=True)
class State:
    """What a page tells a browser that asks whether there is news."""

    version: str
    status: str
    words: str
    round: int = 0
    rounds: int = 0
    failed: tuple[str, ...] = ()

    def live(self, up: str) -> Live:
        return Live(self.version, self.words, self.round, self.rounds, self.failed, up, self.status)


class Page:
    """One page: `look` is cheap and says how things stand, `make` draws."""

    def __init__(self, look: Callable[[], State], make: Callable[[State], str]) -> None:
        self._look, self._make = look, make
        self._lock = RLock()
        self._seen: State | None = None
        self._version = self._text = ""
        self._look_again = self._make_again = 0.0

    def state(self) -> State:
        """How things stand; the version is that of the page that would be given out now."""
        with self._lock:
            began = time.monotonic()
            if self._seen is None or began >= self._look_again:
                self._seen = self._look()
                self._look_again = _pause(began, FRESH)
            if self._seen.version != self._version and (
                self._seen.status != "going" or began >= self._make_again
            ):
                self._version, self._text = self._seen.version, ""
            return replace(self._seen, version=self._version)

    def html(self) -> str:
        with self._lock:
            state = self.state()
            if not self._text:
                began = time.monotonic()
                with _drawing:
                    self._text = self._make(state)
                self._make_again = _pause(began, AT_LEAST)
            return self._text


def _pause(began: float, least: float) -> float:
    """When to do again what began then and ends now."""
    now = time.monotonic()
    return now + max(least, SHARE * (now - began))


def run_page(folder: Path, up: str = "") -> Page:
    """The page of a run; while nothing is measured yet, or if it cannot be read, one that says so."""

    def look() -> State:
        try:
            found: Progress = progress_of(folder)
        except Exception as error:  # whatever a folder in change, or a stranger's, leads to
            return State("unreadable", "damaged", in_words(error))
        return State(found.key, found.status, found.words, found.round, found.rounds, found.failed)

    def make(state: State) -> str:
        try:
            return page_of(_without_links(opened([folder])), state.live(up))
        except Exception as error:
            reason = "Nothing is measured yet." if state.status == "going" else in_words(error)
            return render(
                "waiting.html",
                live=state.live(up),
                title=folder.name,
                headline=reason,
                remarks=[str(folder)],
            )

    return Page(look, make)


def comparison_page(folder: Path, root: Path, up: str = "") -> Page:
    """The page of a finished comparison, if its runs lie in the folder that is watched."""

    def look() -> State:
        try:
            return State(
                str((folder / RESULT).stat().st_mtime_ns), "finished", "a finished comparison"
            )
        except OSError as error:
            return State("gone", "damaged", in_words(error))

    def make(state: State) -> str:
        try:
            return page_of(open_inside(folder, root), state.live(up))
        except Exception as error:
            return render(
                "waiting.html",
                live=state.live(up),
                title=folder.name,
                headline=in_words(error),
                remarks=[str(folder)],
            )

    return Page(look, make)


def _without_links(comparison: Comparison) -> Comparison:
    """The same without a run of training alone that a symbolic link beside the run leads to."""
    kept = [
        replace(entry, alone=None) if entry.alone and entry.alone.folder.is_symlink() else entry
        for entry in comparison.entries
    ]
    return replace(comparison, entries=kept)


def open_inside(folder: Path, root: Path) -> Comparison:
    """A comparison, refused if a run that its file names lies elsewhere or behind a symbolic link."""
    check_regular(folder / RESULT)
    try:
        saved = json.loads((folder / RESULT).read_bytes())
        named = [name for row in saved["entries"] for name in (row["run"], row["alone"]) if name]
        paths = [Path(os.path.normpath(folder / name)) for name in dict.fromkeys(named)]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{folder / RESULT} cannot be read: it is damaged") from error
    for path in paths:
        if not path.is_relative_to(root) or path.resolve() != path:
            raise RunError(
                f"{folder / RESULT} names {path}, which is not inside {root}; it is not shown here"
            )
    return opened([folder])


def in_words(error: Exception) -> str:
    """One sentence for the reader; what is not meant for one is named by its kind."""
    text = " ".join(str(error).split())
    return (
        text[:1].upper() + text[1:]
        if isinstance(error, (RunError, ValueError)) and text
        else f"It cannot be read ({type(error).__name__}: {text[:200]})."
    )
