"""Pages that are drawn again when a run has changed, but not so often that this slows the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, RLock

from equipoise.comparison.entries import RESULT, entry_of, open_run
from equipoise.comparison.plan import default_baseline
from equipoise.comparison.table import Comparison, opened
from equipoise.report.page import page_of
from equipoise.report.render import Live, render
from equipoise.runs import Run
from equipoise.storage.store import RunError
from equipoise.validation.regular_files import check_regular
from equipoise.watch.progress import progress_of

REDRAWN_AFTER = 2.0  # seconds between two drawings of a page while a run is in progress
SHARE = 4  # or so many times what the last drawing took: at most a fifth of one core
FRESH = 0.4  # seconds for which a state is good enough

DRAWING = Lock()  # matplotlib's settings belong to the whole process


@dataclass(frozen=True)
class State:
    """The state of a page, which a browser asks for.

    Attributes:
        version: Of the page; a browser fetches a newer one.
        status: "running", "finished", "stopped" or "damaged"; "reading" while a gallery has runs
            that were not read yet.
        words: The progress as a sentence.
        round: The last round.
        rounds: The number of rounds; 0 if there is no progress bar.
        failed: Sentences about clients that failed.
    """

    version: str
    status: str
    words: str
    round: int = 0
    rounds: int = 0
    failed: tuple[str, ...] = ()

    def live(self, up: str) -> Live:
        """Return the state for a page; `up` is the address of its gallery."""
        return Live(self.version, self.words, self.round, self.rounds, self.failed, up, self.status)


Drawn = tuple[State, str]  # the state that a page shows, and its HTML


class Page:
    """A page that is kept up to date.

    Args:
        look: Returns the state; it is cheap.
        draw: Returns a page and the state that it shows.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        look: Callable[[], State],
        draw: Callable[[], Drawn],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._draw = draw
        self._clock = clock
        self._lock = RLock()
        self._seen: State | None = None
        self._version = ""  # of the page that is served
        self._text = ""  # empty if it must be drawn
        self._look_again = 0.0
        self._draw_again = 0.0

    def state(self) -> State:
        """Return the state; its version is that of the page that would be served now."""
        with self._lock:
            began = self._clock()
            if self._seen is None or began >= self._look_again:
                self._seen = self._look()
                self._look_again = self._after(began, FRESH)
                if self._seen.status == "reading":  # the rest follows without a pause
                    self._look_again = self._clock()
            changed = self._seen.version != self._version
            if changed and (self._seen.status != "running" or began >= self._draw_again):
                self._version = self._seen.version
                self._text = ""
            return replace(self._seen, version=self._version)

    def html(self) -> str:
        """Return the page, drawn again if the run has changed."""
        with self._lock:
            self.state()
            if not self._text:
                began = self._clock()
                with DRAWING:
                    drawn, self._text = self._draw()
                # The run may have moved on since `look`: the page is of the version that it shows.
                self._version = drawn.version
                self._draw_again = self._after(began, REDRAWN_AFTER)
            return self._text

    def _after(self, began: float, least: float) -> float:
        """Return when to repeat what began then and ends now."""
        now = self._clock()
        return now + max(least, SHARE * (now - began))


def run_page(folder: Path, up: str = "") -> Page:
    """Return the page of a run.

    If nothing is measured yet, or the run cannot be read, the page says so.

    Args:
        folder: The folder of the run.
        up: The address of the gallery that the page belongs to.
    """

    def draw() -> Drawn:
        try:
            state, comparison = _read_run(folder)
            return state, page_of(comparison, state.live(up))
        except Exception as error:  # the folder may be changing, or a stranger's
            state = run_state(folder)
            reason = describe(error)
            if state.status == "running":
                reason = "Nothing is measured yet."
            return state, _waiting(folder, state, reason, up)

    return Page(lambda: run_state(folder), draw)


def run_state(folder: Path) -> State:
    """Return the state of a run; "damaged" if it cannot be read."""
    try:
        run = Run(folder)
        try:
            return _state_of(run)
        finally:
            run.store.close()
    except Exception as error:  # the folder may be changing, or a stranger's
        return State("unreadable", "damaged", describe(error))


def _state_of(run: Run) -> State:
    progress = progress_of(run)
    return State(
        progress.key,
        progress.status,
        progress.words,
        progress.round,
        progress.rounds,
        progress.failed,
    )


def _read_run(folder: Path) -> tuple[State, Comparison]:
    """Return state and result of a run, both of the same moment."""
    run = open_run(folder)
    try:
        with run.one_moment():
            state = _state_of(run)
            entry = entry_of(run, details=True)
    finally:
        run.store.close()
    baseline = entry.run.baseline
    if baseline is not None and baseline.folder.is_symlink():
        entry = replace(entry, run=entry.run.without_baseline())
    return state, Comparison([entry], default_baseline([entry.label]))


def comparison_page(folder: Path, root: Path, up: str = "") -> Page:
    """Return the page of a finished comparison.

    Args:
        folder: The folder of the comparison.
        root: The folder that is watched; the runs must lie in it.
        up: The address of the gallery that the page belongs to.
    """

    def look() -> State:
        try:
            version = str((folder / RESULT).stat().st_mtime_ns)
        except OSError as error:
            return State("gone", "damaged", describe(error))
        return State(version, "finished", "a finished comparison")

    def draw() -> Drawn:
        state = look()
        try:
            return state, page_of(open_inside(folder, root, details=True), state.live(up))
        except Exception as error:  # the folder may be changing, or a stranger's
            return state, _waiting(folder, state, describe(error), up)

    return Page(look, draw)


def _waiting(folder: Path, state: State, reason: str, up: str) -> str:
    return render(
        "waiting.html",
        live=state.live(up),
        title=folder.name,
        headline=reason,
        remarks=[str(folder)],
    )


def open_inside(folder: Path, root: Path, details: bool = False) -> Comparison:
    """Read a comparison whose runs lie in the folder that is watched.

    Args:
        folder: The folder of the comparison.
        root: The folder that is watched.
        details: Read what only reports show, too.

    Raises:
        RunError: The file is damaged, or names a run elsewhere or behind a symbolic link.
    """
    check_regular(folder / RESULT)
    try:
        saved = json.loads((folder / RESULT).read_bytes())
        names = [name for row in saved["entries"] for name in (row["run"], row["alone"]) if name]
        paths = [Path(os.path.normpath(folder / name)) for name in dict.fromkeys(names)]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{folder / RESULT} cannot be read: it is damaged") from error
    for path in paths:
        if not path.is_relative_to(root) or path.resolve() != path:
            raise RunError(
                f"{folder / RESULT} names {path}, which is not inside {root}; it is not shown here"
            )
    return opened([folder], details=details)


def describe(error: Exception) -> str:
    """Return an error as one sentence; an unexpected one is named by its type."""
    text = " ".join(str(error).split())
    if isinstance(error, (RunError, ValueError)) and text:
        return text[:1].upper() + text[1:]
    return f"It cannot be read ({type(error).__name__}: {text[:200]})."
