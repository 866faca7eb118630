"""The gallery of a folder: its runs and comparisons, the status of each, and the main numbers."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from threading import Lock

from equipoise.comparison.entries import RESULT
from equipoise.report.render import render
from equipoise.storage.lock import is_held
from equipoise.storage.store import CONFIGURATION, DATABASE
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

MOST_PAGES = 32  # of members that are kept; the oldest is dropped first
RESULTS = (RESULT, DATABASE, f"{DATABASE}-wal")  # SQLite writes next to the database first
RUNS = "runs"  # the folder in which a comparison keeps its runs
UNSTABLE = 60.0  # seconds after a change in which a member that cannot be read is tried again


@dataclass(frozen=True)
class Limits:
    """Bounds of a gallery, so that its page appears quickly whatever the folder holds.

    Attributes:
        folders: Folders that are searched.
        shown: Runs and comparisons that are shown, the newest.
        read_seconds: Time in which members are read before the page is shown; the others follow.
    """

    folders: int = 5000
    shown: int = 1000
    read_seconds: float = 1.5


@dataclass(frozen=True)
class _Stamp:
    """The part of a member that changes with it, and that is read without opening its store.

    Attributes:
        changed: When its results last changed, in nanoseconds.
        files: Time and size of every file with content.
        is_comparison: True for a comparison, False for a run.
        is_held: True if a process works on the run.
    """

    changed: int
    files: tuple[tuple[int, int], ...]
    is_comparison: bool
    is_held: bool


_Members = dict[Path, _Stamp]
_Known = dict[Path, tuple[_Stamp, Item]]


class Gallery:
    """The gallery of a folder, and a page for each of its members.

    Args:
        root: The folder.
        limits: Its bounds.
    """

    def __init__(self, root: Path, limits: Limits | None = None) -> None:
        self.root = root
        self.limits = limits or Limits()
        self.page = Page(self._look, self._draw)
        self._state = State("", "finished", "")
        self._items: list[Item] = []
        self._total = 0
        self._known: _Known = {}
        self._version = 0
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
        for folder in self._members():
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
        members = self._members()
        newest = sorted(members, key=lambda folder: (-members[folder].changed, folder))
        known = self._read({folder: members[folder] for folder in newest[: self.limits.shown]})
        if self._version == 0 or known != self._known or self._total != len(members):
            self._version += 1
            self._items = with_differences([item for _, item in known.values()])
        self._known = known
        self._total = len(members)
        self._state = self._state_of_items()
        return self._state

    def _state_of_items(self) -> State:
        running = sum(item.status == "running" for item in self._items)
        unread = sum(item.status == "reading" for item in self._items)
        noun = "run" if running == 1 else "runs"
        words = f"{running} {noun} in progress" if running else "no run in progress"
        status = "running" if running else "finished"
        if unread:
            words = f"reading: {len(self._items) - unread:,} of {len(self._items):,} runs"
            status = "reading"
        return State(str(self._version), status, words)

    def _members(self) -> _Members:
        """Return the runs and comparisons of the folder.

        These are the folder itself, those in it, and the runs of a comparison that is not finished,
        or whose own folder is watched.
        """
        members: _Members = {}
        root = _stamp(self.root)
        if root is not None and root.is_comparison:
            members[self.root] = root
        for folder in islice(_candidates(self.root), self.limits.folders):
            stamp = _stamp(folder)
            if stamp is not None:
                members[folder] = stamp
        return members

    def _read(self, members: _Members) -> _Known:
        """Describe members for a limited time, the newest first; others are marked as unread.

        A page of many runs then appears at once, and the next looks complete it.
        """
        end = time.monotonic() + self.limits.read_seconds
        known: _Known = {}
        for folder, stamp in members.items():
            earlier = self._known.get(folder)
            if earlier is not None and _is_settled(*earlier, stamp):
                known[folder] = earlier
            elif time.monotonic() < end:
                known[folder] = stamp, self._describe(folder, stamp)
            else:
                known[folder] = earlier or (stamp, self._unread(folder, stamp))
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

    def _unread(self, folder: Path, stamp: _Stamp) -> Item:
        changed = _date(stamp.changed)
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
    """Return True if the card of a member needs no second reading.

    A run that is being copied or written may be readable a moment later, though its files do not
    change any more.
    """
    if before != now or item.status == "reading":
        return False
    if item.status == "damaged":
        return time.time() - now.changed / 1e9 > UNSTABLE
    return True


def _date(nanoseconds: int) -> str:
    """Return a time of a file in ISO format."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")


def _candidates(root: Path) -> Iterator[Path]:
    """Yield the folders that may be members of a gallery."""
    for folder in (*_folders(root), *_folders(root / RUNS)):
        yield folder
        if folder != root / RUNS and _stamp(folder) is None:
            for inner in _folders(folder / RUNS):
                if not _is_file(inner / RESULT):
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
    return [folder / name for name in sorted(names)]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _stamp(folder: Path) -> _Stamp | None:
    """Return the stamp of a run or a comparison; None for any other folder."""
    files = {}
    for name in (*RESULTS, CONFIGURATION):
        try:
            status = os.lstat(os.path.join(folder, name))
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            files[name] = (status.st_mtime_ns, status.st_size)
    is_comparison = RESULT in files
    if not is_comparison and DATABASE not in files:
        return None
    # Readers of a database leave an empty file next to it, which is no change.
    filled = {name: file for name, file in files.items() if file[1]}
    changed = max((filled[name][0] for name in RESULTS if name in filled), default=0)
    held = not is_comparison and is_held(folder)
    return _Stamp(changed, tuple(filled.values()), is_comparison, held)


def _address(folder: Path, root: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.relative_to(root))).hexdigest()[:16]
