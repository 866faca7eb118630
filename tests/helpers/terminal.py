"""Commands as a user types them, in this process or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import equipoise as eq
from equipoise.cli import app, main

QUICK = (
    "--rounds",
    "2",
    "--workers",
    "0",
    "--seed",
    "3",
    "--set",
    "model={name: mlp, hidden: [6]}",
    "--set",
    "training.batch=5",
)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@cache
def built() -> Any:
    """The commands, built once: typer does it anew for every call."""
    return typer.main.get_command(app)


@dataclass(frozen=True)
class Terminal:
    """Types commands into the console entry, in this process."""

    capture: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch

    def __call__(self, *words: object) -> Answer:
        self.patch.setattr(sys, "argv", ["equipoise", *map(str, words)])
        self.patch.setattr("equipoise.cli.app", built())
        self.capture.readouterr()
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = self.capture.readouterr()
        assert isinstance(code, int)
        return Answer(code, out, err)


@pytest.fixture
def equipoise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    # a narrow terminal folds what tests look for
    monkeypatch.setattr("equipoise.cli.output.console.width", 300)
    return Terminal(capsys, monkeypatch)


def in_a_process(*words: object, folder: Path, path: Path | None = None) -> Answer:
    """The same entry as the installed command, in a process of its own."""
    source = Path(eq.__file__).parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(one) for one in (source, path) if one),
        "COLUMNS": "300",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-c",
        "import sys; from equipoise.cli import main; sys.exit(main())",
        *map(str, words),
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
