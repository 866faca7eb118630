"""The gallery of a folder: its runs and comparisons, the status of each, and the main numbers."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from equipoise.comparison.entries import RESULT
from equipoise.report.render import render
from equipoise.storage.store import DATABASE
from equipoise.watch.items import Item, comparison_item, run_item, with_differences
from equipoise.watch.overlay import overlay_page
from equipoise.watch.pages import (
    DRAWING,
    Drawn,
    Page,
    State,
    comparison_page,
    describe,
    open_inside,
    run_page,
)

MOST_FOLDERS = 5000  # that are searched
MOST_PAGES = 32  # of members that are kept; the oldest is dropped first
SHOWN = 1000  # runs and comparisons, the newest
READ_SECONDS = 1.0  # for which members are read before the page is shown; the others follow
RUNS = "runs"  # the folder in which a comparison keeps its runs


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

    def items(self) -> list[Item]:
        """Return the cards of the gallery as they are now."""
        self.page.state()
        return self._items

    def overlay(self, addresses: Sequence[str]) -> str:
        """Return a page with the curves of some runs in one figure.

        Args:
            addresses: The addresses of members; unknown ones are left out.
        """
        chosen = []
        for item in self.items():
            if item.address.rstrip("/") in addresses and item.curve.rounds:
                chosen.append(item)
        with DRAWING:
            return overlay_page(chosen)

    def _look(self) -> State:
        members = sorted(_members(self.root), key=lambda folder: (-_changed(folder), folder))
        self._total = len(members)
        self._known = self._read(members[:SHOWN])
        self._items = with_differences([item for _, item in self._known.values()])
        running = sum(item.status == "running" for item in self._items)
        unread = sum(item.status == "reading" for item in self._items)
        noun = "run" if running == 1 else "runs"
        words = f"{running} {noun} in progress" if running else "no run in progress"
        status = "running" if running else "finished"
        if unread:
            words = f"reading: {len(self._items) - unread:,} of {len(self._items):,} runs"
            status = "reading"
        version = hashlib.sha256(repr(self._items).encode()).hexdigest()[:16]
        self._state = State(version, status, words)
        return self._state

    def _read(self, members: Sequence[Path]) -> dict[Path, tuple[_Stamp, Item]]:
        """Describe members for a limited time, the newest first; others are marked as unread.

        A page of many runs then appears at once, and the next looks complete it.
        """
        end = time.monotonic() + READ_SECONDS
        known: dict[Path, tuple[_Stamp, Item]] = {}
        for folder in members:
            stamp = _Stamp(_changed(folder), _is_file(folder / RESULT))
            earlier = self._known.get(folder)
            if earlier is not None and _is_settled(*earlier, stamp):
                known[folder] = earlier
            elif time.monotonic() < end:
                known[folder] = stamp, self._describe(folder, stamp)
            else:
                known[folder] = earlier or (stamp, self._unread(folder))
        return known

    def _describe(self, folder: Path, stamp: _Stamp) -> Item:
        name, address = self._name(folder), f"{_address(folder, self.root)}/"
        try:
            if stamp.is_comparison:
                return comparison_item(open_inside(folder, self.root), name, address)
            return run_item(folder, name, address)
        except Exception as error:  # a damaged or a stranger's folder must not hide the others
            changed = _date(stamp.changed)
            return Item(
                name, address, "damaged", describe(error), "cannot be read", started=changed
            )

    def _unread(self, folder: Path) -> Item:
        changed = _date(_changed(folder))
        name, address = self._name(folder), f"{_address(folder, self.root)}/"
        return Item(name, address, "reading", "", "", started=changed)

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self.root)) if folder != self.root else folder.name

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


def _is_settled(before: _Stamp, item: Item, now: _Stamp) -> bool:
    """Return True if a card needs no second reading: nothing changed, and the run is over."""
    return before == now and item.status not in ("running", "reading")


def _date(nanoseconds: int) -> str:
    """Return a time of a file in ISO format."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")


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
