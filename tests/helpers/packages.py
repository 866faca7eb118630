"""Packages outside the project, as pip would install them: modules and entry points in a folder on
the Python path.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from equipoise.extensions import REGISTRIES


def write_package(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    points: Mapping[str, Mapping[str, str]],
) -> Path:
    """Write modules ("name/module.py") and the metadata that announces entry points (group -> name
    -> value).
    """
    for file, text in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.parent != folder:
            (path.parent / "__init__.py").touch()
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@contextmanager
def installed(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    name: str,
    files: Mapping[str, str],
    points: Mapping[str, Mapping[str, str]],
) -> Iterator[Path]:
    """A package that this process and its children find; nothing of it is left behind."""
    write_package(folder, name, files, points)
    before = {kind: dict(registry.registered) for kind, registry in REGISTRIES.items()}
    monkeypatch.syspath_prepend(str(folder))
    try:
        yield folder
    finally:
        packages = {file.partition("/")[0].removesuffix(".py") for file in files}
        for module in [one for one in sys.modules if one.partition(".")[0] in packages]:
            del sys.modules[module]
        for kind, registry in REGISTRIES.items():
            registry.registered.clear()
            registry.registered.update(before[kind])
