"""A folder of runs and comparisons: which there are, how each stands, and what came out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from equipoise.comparison.entries import RESULT
from equipoise.metrics.registry import find
from equipoise.report.cards import written
from equipoise.report.render import render
from equipoise.report.verdict import best_in_words
from equipoise.runs import Run
from equipoise.runs.summary import over_clients
from equipoise.storage.store import DATABASE
from equipoise.watch.pages import Page, State, comparison_page, in_words, open_inside, run_page
from equipoise.watch.progress import progress_of

LOOKED_INTO = 2000  # folders
KEPT = 32  # pages of members that are kept; the oldest goes first
SHOWN = 200  # runs and comparisons, the newest
RUNS = "runs"  # where a comparison keeps its own


@dataclass(frozen=True)
class Item:
    """One run or comparison of a gallery."""

    name: str
    address: str
    status: str
    headline: str
    about: str


class Gallery:
    """What `equipoise watch` shows of a folder: the list itself, and a page for each of its members."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.page = Page(self._look, self._make)
        self._items: list[Item] = []
        self._whole = 0
        self._told: dict[Path, tuple[object, Item]] = {}
        self._pages: dict[str, tuple[Path, Page]] = {}
        self._guard = Lock()

    def member(self, address: str) -> Page | None:
        """The page of a member; an address that belongs to none leads nowhere, since it is looked up and never followed."""
        with self._guard:
            if address not in self._pages:
                folder = next(
                    (
                        folder
                        for folder in _members(self.root)
                        if _address(folder, self.root) == address
                    ),
                    None,
                )
                if folder is None:
                    return None
                page = (
                    comparison_page(folder, self.root, "../")
                    if _is_file(folder / RESULT)
                    else run_page(folder, "../")
                )
                while len(self._pages) >= KEPT:
                    self._pages.pop(next(iter(self._pages)))
                self._pages[address] = folder, page
            folder, page = self._pages[address]
        return page if folder.resolve() == folder else None  # a link may have taken its place

    def _look(self) -> State:
        found = sorted(_members(self.root), key=lambda folder: (-_changed(folder), folder))
        self._whole = len(found)
        shown = found[:SHOWN]
        told = {folder: self._tell(folder) for folder in shown}
        self._told, self._items = told, [item for _, item in told.values()]
        going = sum(item.status == "going" for item in self._items)
        words = f"{going} going on" if going else "nothing is going on"
        version = hashlib.sha256(repr(self._items).encode()).hexdigest()[:16]
        return State(version, "going" if going else "finished", words)

    def _tell(self, folder: Path) -> tuple[object, Item]:
        """A member in words; asked again only of one that goes on or has changed."""
        stamp = (_changed(folder), _is_file(folder / RESULT))
        known = self._told.get(folder)
        if known is not None and known[0] == stamp and known[1].status != "going":
            return known
        try:
            item = self._of_comparison(folder) if stamp[1] else self._of_run(folder)
        except Exception as error:  # a damaged or a stranger's folder must not hide the others
            item = Item(
                self._name(folder),
                f"{_address(folder, self.root)}/",
                "damaged",
                in_words(error),
                "cannot be read",
            )
        return stamp, item

    def _of_run(self, folder: Path) -> Item:
        progress = progress_of(folder)
        run = Run(folder)
        try:
            metric, values = find(run.main_metric), run.final()
            level = over_clients(values, metric.name)
            worst = "highest" if metric.lower_is_better else "lowest"
            headline = (
                f"{metric.name}: average {written(level['average'], metric)}, {worst} {written(level['worst'], metric)}"
                if level
                else "Nothing is measured yet."
            )
            about = f"{run.config['method']['name']} on {run.store.meta('data')}, {len(run.clients):,} clients, seed {run.config['seed']}"
        finally:
            run.store.close()
        headline = headline.replace(" %", "\u00a0%")  # a number and its unit stay on one line
        failed = f"; {len(progress.failed)} clients failed" if progress.failed else ""
        return Item(
            self._name(folder),
            f"{_address(folder, self.root)}/",
            progress.status,
            headline,
            f"{about}; {progress.words}{failed}",
        )

    def _of_comparison(self, folder: Path) -> Item:
        found = open_inside(folder, self.root)
        about = f"comparison of {len(found.methods)} methods on {found.entries[0].run.data}, {len(found.seeds)} seeds"
        failed = f"; {len(found.failures)} runs failed" if found.failures else ""
        return Item(
            self._name(folder),
            f"{_address(folder, self.root)}/",
            "finished",
            best_in_words(found),
            about + failed,
        )

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self.root)) if folder != self.root else folder.name

    def _make(self, state: State) -> str:
        count = len(self._items)
        headline = (
            f"{self._whole:,} runs and comparisons" if self._whole != 1 else "1 run or comparison"
        )
        remarks = [f"The newest {count:,} are shown."] if self._whole > count else []
        if not count:
            remarks.append(
                "There is no run in this folder yet; `equipoise run --out` puts one there, and it appears here."
            )
        return render(
            "gallery.html",
            live=state.live(""),
            title=str(self.root),
            headline=headline,
            remarks=remarks,
            items=self._items,
        )


def _members(root: Path) -> Iterator[Path]:
    """Runs and comparisons: the folder itself, those in it, and the runs of a comparison that is not finished, or that was asked for by itself."""
    if _is_file(root / RESULT):
        yield root
    budget = LOOKED_INTO
    for folder in (*_folders(root), *_folders(root / RUNS)):
        budget -= 1
        if budget < 0:
            return
        if _is_file(folder / RESULT) or _is_file(folder / DATABASE):
            yield folder
            continue
        if folder == root / RUNS:
            continue
        for inner in _folders(folder / RUNS):
            budget -= 1
            if budget >= 0 and _is_file(inner / DATABASE):
                yield inner


def _folders(folder: Path) -> list[Path]:
    """The folders inside; symbolic links are not followed, and what may not be read is passed over."""
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as found:
            return sorted(
                folder / entry.name for entry in found if entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _changed(folder: Path) -> int:
    """When a run or a comparison last changed; SQLite writes beside the database first, and readers leave an empty file there."""
    stamps = [0]
    for name in (RESULT, DATABASE, f"{DATABASE}-wal"):
        try:
            found = (folder / name).lstat()
        except OSError:
            continue
        if found.st_size:
            stamps.append(found.st_mtime_ns)
    return max(stamps)


def _address(folder: Path, root: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.relative_to(root))).hexdigest()[:16]
