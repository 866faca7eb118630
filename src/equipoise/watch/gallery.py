"""The gallery of a folder: its runs and comparisons, the status of each, and the main numbers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from equipoise.comparison.entries import RESULT
from equipoise.report.cards import written
from equipoise.report.render import render
from equipoise.report.verdict import best_methods
from equipoise.runs import Run, RunResult, read_result
from equipoise.storage.store import DATABASE
from equipoise.watch.pages import (
    Drawn,
    Page,
    State,
    comparison_page,
    describe,
    open_inside,
    run_page,
)
from equipoise.watch.progress import progress_of

MOST_FOLDERS = 2000  # that are searched
MOST_PAGES = 32  # of members that are kept; the oldest is dropped first
SHOWN = 200  # runs and comparisons, the newest
RUNS = "runs"  # the folder in which a comparison keeps its runs
NO_BREAK = "\u00a0"


@dataclass(frozen=True)
class Item:
    """One run or comparison of a gallery."""

    name: str
    address: str
    status: str
    headline: str
    about: str


@dataclass(frozen=True)
class _Stamp:
    """When a member last changed, and its kind."""

    changed: int
    is_comparison: bool


class Gallery:
    """The gallery of a folder, and a page for each of its members.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.page = Page(self._look, self._draw)
        self._state = State("", "finished", "")
        self._items: list[Item] = []
        self._total = 0
        self._known: dict[Path, tuple[_Stamp, Item]] = {}
        self._pages: dict[str, tuple[Path, Page]] = {}
        self._guard = Lock()

    def member(self, address: str) -> Page | None:
        """Return the page of a member; None if the address belongs to none.

        An address is looked up among the members. It is never used as a path.
        """
        with self._guard:
            if address not in self._pages:
                folder = self._folder_at(address)
                if folder is None:
                    return None
                while len(self._pages) >= MOST_PAGES:
                    self._pages.pop(next(iter(self._pages)))
                self._pages[address] = folder, self._page_of(folder)
            folder, page = self._pages[address]
        # A symbolic link may have replaced the folder.
        return page if folder.resolve() == folder else None

    def _folder_at(self, address: str) -> Path | None:
        for folder in _members(self.root):
            if _address(folder, self.root) == address:
                return folder
        return None

    def _page_of(self, folder: Path) -> Page:
        if _is_file(folder / RESULT):
            return comparison_page(folder, self.root, "../")
        return run_page(folder, "../")

    def _look(self) -> State:
        members = sorted(_members(self.root), key=lambda folder: (-_changed(folder), folder))
        self._total = len(members)
        self._known = {folder: self._described(folder) for folder in members[:SHOWN]}
        self._items = [item for _, item in self._known.values()]
        running = sum(item.status == "running" for item in self._items)
        noun = "run" if running == 1 else "runs"
        words = f"{running} {noun} in progress" if running else "no run in progress"
        version = hashlib.sha256(repr(self._items).encode()).hexdigest()[:16]
        self._state = State(version, "running" if running else "finished", words)
        return self._state

    def _described(self, folder: Path) -> tuple[_Stamp, Item]:
        """Describe a member; one that has not changed is read again only while it is running."""
        stamp = _Stamp(_changed(folder), _is_file(folder / RESULT))
        known = self._known.get(folder)
        if known is not None and known[0] == stamp and known[1].status != "running":
            return known
        name = str(folder.relative_to(self.root)) if folder != self.root else folder.name
        address = f"{_address(folder, self.root)}/"
        try:
            if stamp.is_comparison:
                status, headline, about = self._describe_comparison(folder)
            else:
                status, headline, about = _describe_run(folder)
        except Exception as error:  # a damaged or a stranger's folder must not hide the others
            status, headline, about = "damaged", describe(error), "cannot be read"
        return stamp, Item(name, address, status, headline, about)

    def _describe_comparison(self, folder: Path) -> tuple[str, str, str]:
        comparison = open_inside(folder, self.root)
        about = (
            f"comparison of {len(comparison.methods)} methods on "
            f"{comparison.entries[0].run.data}, {len(comparison.seeds)} seeds"
        )
        if comparison.failures:
            about += f"; {len(comparison.failures)} runs failed"
        return "finished", best_methods(comparison), about

    def _draw(self) -> Drawn:
        state = self._state  # of the look that found the items
        headline = "1 run or comparison"
        if self._total != 1:
            headline = f"{self._total:,} runs and comparisons"
        remarks = []
        if self._total > len(self._items):
            remarks.append(f"The newest {len(self._items):,} are shown.")
        if not self._items:
            remarks.append(
                "There is no run in this folder yet; `equipoise run --out` puts one there, and it "
                "appears here."
            )
        page = render(
            "gallery.html",
            live=state.live(""),
            title=str(self.root),
            headline=headline,
            remarks=remarks,
            items=self._items,
        )
        return state, page


def _describe_run(folder: Path) -> tuple[str, str, str]:
    """Return status, headline and description of a run at one moment."""
    run = Run(folder)
    try:
        with run.one_moment():
            progress = progress_of(run)
            result = read_result(run)
    finally:
        run.store.close()
    about = (
        f"{result.config['method']['name']} on {result.data}, {len(result.clients):,} clients, "
        f"seed {result.config['seed']}; {progress.words}"
    )
    if progress.failed:
        about += f"; {len(progress.failed)} clients failed"
    # A number and its unit stay on one line.
    headline = _headline(result).replace(" %", f"{NO_BREAK}%")
    return progress.status, headline, about


def _headline(result: RunResult) -> str:
    scores = result.main
    if not scores.values:
        return "Nothing is measured yet."
    metric = scores.metric
    extreme = "highest" if metric.lower_is_better else "lowest"
    average = written(scores.aggregates["average"], metric)
    worst = written(scores.aggregates["worst"], metric)
    return f"{metric.name}: average {average}, {extreme} {worst}"


def _members(root: Path) -> Iterator[Path]:
    """Yield the runs and comparisons of a folder.

    These are the folder itself, those in it, and the runs of a comparison that is not finished, or
    whose own folder is watched.
    """
    if _is_file(root / RESULT):
        yield root
    searched = 0
    for folder in (*_folders(root), *_folders(root / RUNS)):
        searched += 1
        if searched > MOST_FOLDERS:
            return
        if _is_file(folder / RESULT) or _is_file(folder / DATABASE):
            yield folder
            continue
        if folder == root / RUNS:
            continue
        for inner in _folders(folder / RUNS):
            searched += 1
            if searched <= MOST_FOLDERS and _is_file(inner / DATABASE):
                yield inner


def _folders(folder: Path) -> list[Path]:
    """Return the folders inside; symbolic links are not followed, unreadable ones left out."""
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(folder / name for name in names)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _changed(folder: Path) -> int:
    """Return when a run or a comparison last changed.

    SQLite writes next to the database first. Readers leave an empty file there, which is no change.
    """
    latest = 0
    for name in (RESULT, DATABASE, f"{DATABASE}-wal"):
        try:
            status = (folder / name).lstat()
        except OSError:
            continue
        if status.st_size:
            latest = max(latest, status.st_mtime_ns)
    return latest


def _address(folder: Path, root: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.relative_to(root))).hexdigest()[:16]
