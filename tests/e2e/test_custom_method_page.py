"""The page on custom methods runs by copy and paste: as a notebook does, and from a module on workers."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "custom-method.md"


def test_the_page_runs_by_copy_and_paste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own_class, notebook, commands = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(own_class.split("@dataclass")[1].strip().splitlines()) < 30
    monkeypatch.chdir(tmp_path)

    Path("notebook.py").write_text(own_class + notebook)
    runpy.run_path("notebook.py", run_name="__main__")  # as in a notebook, the class belongs to the main module
    pasted = eq.Run("runs/notebook")
    assert set(pasted.models()) == {"global", "personal"} and pasted.final(model="global") != pasted.final(model="personal")
    assert len({row["share"] for row in pasted.weights()}) == 15, "five clients, three rounds, no two weights alike"

    Path("my_methods.py").write_text(own_class)
    monkeypatch.syspath_prepend(str(tmp_path))
    for line in commands.splitlines():
        setting, *words = shlex.split(line)
        assert setting == "PYTHONPATH=."
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    assert "0 is by size alone" in capsys.readouterr().out
    assert eq.Run("runs/module").table() == pasted.table()
