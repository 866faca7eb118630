"""The command ``equipoise doctor``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

OLDEST_PYTHON = (3, 11)
FREE_GIGABYTES = 2  # below this, data sets and checkpoints soon fill the disk
_REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)([^;]*)(?:;\s*extra\s*==\s*['\"](.+?)['\"])?")
Status = Literal["ok", "warning", "error"]
_CODES: dict[Status, int] = {"ok": 0, "warning": 1, "error": 2}


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: What was checked.
        status: `ok`, `warning` if something deserves attention, `error` if nothing can run.
        text: What was found.
        remedy: What to do; empty if nothing.
    """

    name: str
    status: Status
    text: str
    remedy: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Check the installation: versions, devices, extras and the data folder.

    The exit code is 0 if everything works, 1 if something needs attention, and 2 if Equipoise
    cannot run.
    """
    checks = list(_checks())
    if as_json:
        import json

        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _show(checks)
    raise typer.Exit(max(_CODES[check.status] for check in checks))


def _show(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.name:<{width}}  {check.status:<7}  {check.text}".rstrip())
        if check.remedy:
            print(f"{'':<{width}}  {'':<7}  {check.remedy}")


def _checks() -> Iterable[Check]:
    yield _python()
    required, extras = _requirements()
    yield from (_package(name) for name in required)
    yield from _devices()
    for extra, names in extras.items():
        yield _extra(extra, names)
    yield _data_folder()
    yield _results_folder()


def _python() -> Check:
    from equipoise.version import __version__

    text = f"equipoise {__version__}, Python {platform.python_version()}, {platform.platform()}"
    if sys.version_info < OLDEST_PYTHON:
        return Check("versions", "error", text, "install Python 3.11 or newer")
    return Check("versions", "ok", text)


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the packages that are always needed, and those of each extra for users."""
    try:
        lines = importlib.metadata.requires("equipoise") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []  # used from its source, without an installation
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        name, _, extra = match.groups()
        if extra is None:
            required.append(name)
        elif extra not in ("dev", "docs"):
            extras.setdefault(extra, []).append(name)
    return required, extras


def _package(name: str) -> Check:
    version = _version_of(name)
    if version is None:
        return Check(name, "error", "not installed", f"pip install {name}")
    return Check(name, "ok", version)


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extra(extra: str, names: list[str]) -> Check:
    versions = {name: _version_of(name) for name in names}
    present = [f"{name} {version}" for name, version in versions.items() if version is not None]
    missing = [name for name, version in versions.items() if version is None]
    remedy = f"pip install 'equipoise[{extra}]'"
    if not missing:
        return Check(f"[{extra}]", "ok", ", ".join(present))
    if not present:
        return Check(f"[{extra}]", "ok", f"not installed; {remedy}")
    return Check(f"[{extra}]", "warning", f"without {', '.join(missing)}", remedy)


def _devices() -> Iterable[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library cannot be loaded
        text = " ".join(str(error).split())
        yield Check("torch", "error", f"cannot be imported ({text})", "install torch again")
        return
    from equipoise import mkl

    yield Check("cpu", "ok", f"{os.cpu_count()} cores, MKL mode {mkl.mode()}")
    if not torch.cuda.is_available():
        yield Check("cuda", "ok", "no GPU; runs use the CPU")
        return
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield Check("cuda", "ok", ", ".join(names))


def _data_folder() -> Check:
    from equipoise.data.sets import data_folder

    folder = data_folder()
    text = f"{folder}"
    if not folder.exists():
        return Check("data folder", "ok", f"{text} (created when a data set is fetched)")
    if not folder.is_dir():
        return Check("data folder", "warning", f"{text} is no folder", "set EQUIPOISE_DATA")
    sets = len(list(folder.glob("*.npz")))
    free = shutil.disk_usage(folder).free / 1e9
    text = f"{text}, {sets} prepared data sets, {free:.0f} GB free"
    if not _is_writable(folder):
        return Check(
            "data folder",
            "warning",
            f"{text}, cannot be written",
            "data sets cannot be fetched; set EQUIPOISE_DATA to a folder of yours",
        )
    if free < FREE_GIGABYTES:
        return Check("data folder", "warning", text, "free some space on this disk")
    return Check("data folder", "ok", text)


def _results_folder() -> Check:
    folder = Path.cwd()
    if _is_writable(folder):
        return Check("this folder", "ok", f"{folder} can be written: runs go to runs/")
    return Check(
        "this folder",
        "warning",
        f"{folder} cannot be written",
        "give --out, or change to another folder",
    )


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
