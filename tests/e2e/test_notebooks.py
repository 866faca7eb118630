"""The notebooks of the documentation run from top to bottom in an empty folder, and are kept
without results.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import equipoise

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
SLOW = (
    "cluster",
    "compare",
    "hospitals",
    "method",
    "network",
)  # they start many processes, or train for long
NEEDS = {"cluster": "ray", "network": "nvflare"}
NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    names = ["cluster", "compare", "hospitals", "method", "models", "network"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in SLOW else ())
        for path in NOTEBOOKS
    ],
)
@pytest.mark.thorough
def test_a_notebook_runs_and_is_kept_without_results(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason=f"{NEEDS[path.stem]} is not installed")
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert all(
        not cell.outputs and cell.execution_count is None
        for cell in book.cells
        if cell.cell_type == "code"
    )
    for link in [
        link.split(")")[0]
        for cell in book.cells
        if cell.cell_type == "markdown"
        for link in cell.source.split("](")[1:]
    ]:
        assert (path.parent / link.split("#")[0]).exists(), link
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(
            [str(Path(equipoise.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
    )
    for name in (
        "IPYTHONDIR",
        "JUPYTER_RUNTIME_DIR",
    ):  # nothing of the user's own is read or written
        monkeypatch.setenv(name, str(tmp_path / name))
    work = tmp_path / "work"
    work.mkdir()
    done = nbclient.NotebookClient(
        book, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()
    said = "".join(
        output.get("text", "")
        for cell in done.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "error:" not in said and "Traceback" not in said
    assert any(work.iterdir()), "results are in the folder of the notebook"
