"""What tests of registered sets are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.data import sets
from equipoise.data.sets.registered import RegisteredSet
from tests.helpers.terminal import equipoise as equipoise


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data of the test's own."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RegisteredSet]:
    """An entry whose official checksums are forgotten, so that files made here can stand in for the
    official ones.
    """

    def entry(name: str) -> RegisteredSet:
        found = sets.entry(name)
        changed = replace(found, remotes=(), also=(), files=found.official)
        monkeypatch.setitem(sets.ENTRIES, name, changed)
        return changed

    return entry
