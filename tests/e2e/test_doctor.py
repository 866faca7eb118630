"""`equipoise doctor`: versions, devices, extras and folders, and an exit code for scripts."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from equipoise import __version__
from tests.helpers.terminal import Terminal
from tests.helpers.terminal import equipoise as equipoise


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data folder and a working folder that can be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    requires = ["torch>=2.6", "numpy>=1.26", 'pyarrow>=18; extra == "tables"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3")


def test_a_sound_installation_has_code_0_and_names_versions_and_folders(
    equipoise: Terminal, tmp_path: Path
) -> None:
    answer = equipoise("doctor")
    assert answer.code == 0
    for part in (f"equipoise {__version__}", "torch", "1.2.3", "[tables]", "cores", str(tmp_path)):
        assert part in answer.out


def test_json_has_one_entry_for_each_check(equipoise: Terminal) -> None:
    entries = json.loads(equipoise("doctor", "--json").out)
    by_name = {entry["name"]: entry for entry in entries}
    assert by_name["numpy"] == {"name": "numpy", "status": "ok", "text": "1.2.3", "remedy": ""}
    assert {"versions", "cpu", "cuda", "data folder", "this folder"} < set(by_name)


def test_a_data_folder_that_is_a_file_has_code_1_and_a_remedy(
    equipoise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "file"))
    answer = equipoise("doctor")
    assert answer.code == 1 and "set EQUIPOISE_DATA" in answer.out


def test_a_missing_package_has_code_2_and_a_missing_extra_has_0(
    equipoise: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    missing = {"pyarrow"}
    answer = equipoise("doctor")
    assert answer.code == 0 and "pip install 'equipoise[tables]'" in answer.out
    missing = {"numpy"}
    answer = equipoise("doctor")
    assert answer.code == 2 and "pip install numpy" in answer.out
