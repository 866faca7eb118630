"""The page on custom methods runs by copy and paste: as a notebook does, and from a module on
workers.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.cli import main
from equipoise.testing import CHECKS, NETWORKS

PAGE = Path(__file__).parents[2] / "docs" / "custom-method.md"


@pytest.mark.slow
def test_the_page_runs_by_copy_and_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_class, notebook, commands, checked = re.findall(
        r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    assert len(own_class.split("@dataclass")[1].strip().splitlines()) < 30
    monkeypatch.chdir(tmp_path)

    Path("notebook.py").write_text(own_class + notebook)
    # as in a notebook, the class belongs to the main module
    runpy.run_path("notebook.py", run_name="__main__")
    pasted = eq.Run("runs/notebook")
    assert set(pasted.models()) == {"global", "personal"} and pasted.final(
        model="global"
    ) != pasted.final(model="personal")
    assert len({row["share"] for row in pasted.weights()}) == 15, (
        "five clients, three rounds, no two weights alike"
    )

    capsys.readouterr()
    Path("checked.py").write_text(own_class + checked)
    runpy.run_path("checked.py", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"passed {check} ({network})" for network in NETWORKS for check in CHECKS]
    described = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| .+ \|$",
        PAGE.read_text().partition("| check |")[2].partition("\n\n")[0],
        re.MULTILINE,
    )
    assert re.findall(r"\w+", " ".join(described)) == list(CHECKS), (
        "the page describes every check, in the order in which they are made"
    )

    Path("my_methods.py").write_text(own_class)
    monkeypatch.syspath_prepend(str(tmp_path))
    for line in commands.splitlines():
        setting, *words = shlex.split(line)
        assert setting == "PYTHONPATH=."
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    out = capsys.readouterr().out
    assert (
        "0 is by size alone" in out
        and f"my_methods:Attentive: {len(CHECKS) * len(NETWORKS)} checks passed, 0 failed" in out
    )
    assert eq.Run("runs/module").table() == pasted.table()
