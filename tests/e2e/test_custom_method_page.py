"""The page on custom methods runs by copy and paste: as a notebook does, and from a module on workers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import equipoise as eq

PAGE = Path(__file__).parents[2] / "docs" / "custom-method.md"
SOURCE = Path(eq.__file__).parent.parent


def executed(arguments: list[str], folder: Path, path: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, str(SOURCE)]), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_runs_by_copy_and_paste(tmp_path: Path) -> None:
    blocks = dict(zip(("class", "notebook", "commands"), re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL), strict=True))
    assert len(blocks["class"].split("@dataclass")[1].strip().splitlines()) < 30

    # As in a notebook, the class belongs to the main module.
    notebook = executed(["-c", blocks["class"] + blocks["notebook"]], tmp_path, "")
    assert len(notebook.splitlines()) == 2
    pasted = eq.Run(tmp_path / "runs" / "notebook")
    assert set(pasted.models()) == {"global", "personal"} and pasted.final(model="global") != pasted.final(model="personal")
    assert pasted.weights() != [] and len({round(row["share"], 9) for row in pasted.weights()}) == 15

    (tmp_path / "my_methods.py").write_text(blocks["class"])
    entry = ["-c", "import sys; from equipoise.cli import main; sys.exit(main())"]
    printed = []
    for line in blocks["commands"].splitlines():
        setting, command, *words = shlex.split(line)
        assert (setting, command) == ("PYTHONPATH=.", "equipoise")
        printed.append(executed([*entry, *words], tmp_path, "."))
    assert "larger numbers look more at the loss" in printed[1]
    assert eq.Run(tmp_path / "runs" / "module").table() == pasted.table()
