"""A site that leaves: a run trained anew without it equals one in which it never joined, by
digests.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.runs import Run
from equipoise.runs.digests import result_digest
from equipoise.simulate import retrain_without
from equipoise.storage.store import RunError
from tests.helpers.group_sites import experiment, finished, hospitals, write_sites

HEART = Path(os.environ.get("EQUIPOISE_DATA", "")) / "uci_heart_disease.npz"
APART = {"apart": True, "groups": []}
INFERRED = {"schema": None, "label": "disease", "groups": []}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return all hospitals; only west has the category x in a column."""
    tables = hospitals()
    for site, table in tables.items():
        table["sex"][:30] = "x" if site == "west" else "f"
    return write_sites(tmp_path_factory.mktemp("whole"), tables)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    folder = tmp_path_factory.mktemp("rest") / "hospitals"
    shutil.copytree(whole, folder)
    (folder / "west.csv").unlink()
    return folder


@pytest.mark.parametrize("method", ["fedavg", "poise"])
@pytest.mark.parametrize("data", [APART, INFERRED], ids=["apart", "schema of all rows"])
def test_a_run_without_a_site_is_one_in_which_it_never_joined(
    method: str, data: dict[str, Any], tmp_path: Path, whole: Path, rest: Path
) -> None:
    joined = finished(tmp_path / "joined", whole, method=method, data=dict(data))
    never = finished(tmp_path / "never", rest, method=method, data=dict(data))
    left = retrain_without(joined, ["west"])
    assert left.folder.name == "joined-without-west"
    assert result_digest(left) == result_digest(never) != result_digest(joined)
    assert left.clients == ["east", "north"]
    assert Run(tmp_path / "joined").clients == ["east", "north", "west"], "the old run stays"


def test_the_command_line_has_it_and_shows_the_digest(
    tmp_path: Path, whole: Path, rest: Path
) -> None:
    never = finished(tmp_path / "never", rest, data=dict(INFERRED))
    arguments = [
        "run",
        "--data",
        str(whole),
        "--label",
        "disease",
        "--method",
        "fedavg",
        "--rounds",
        "2",
    ]
    for setting in ("training.lr=0.2", "training.batch=32", "evaluation.every=0", "workers=0"):
        arguments += ["--set", setting]
    arguments += ["--set", "model={name: mlp, hidden: [6]}", "--quiet"]
    done = CliRunner().invoke(app, [*arguments, "--without", "west", "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert result_digest(never) in done.output.replace("\n", "")
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "b")])
    done = CliRunner().invoke(
        app, ["resume", str(tmp_path / "b"), "--without", "west", "--from-round", "0", "--quiet"]
    )
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "b-without-west"), "--json"]).output
    summary = json.loads(shown)
    assert summary["without"] == ["west"] and summary["digest"] == result_digest(never)


@pytest.mark.skipif(not HEART.is_file(), reason="uci_heart_disease.npz is not in EQUIPOISE_DATA")
def test_sites_of_one_file_and_of_a_registered_set_can_leave(tmp_path: Path) -> None:
    section = {"name": "uci_heart_disease", "without": ["va", "hungary"]}
    from equipoise.data import federate

    assert federate(eq.DataConfig(**section), 0).ids == ("cleveland", "switzerland")
    tables = hospitals()
    lines = ["site,a,b,c,disease"]
    for site, table in tables.items():
        for row in zip(*(table[name] for name in ("a", "b", "c", "disease")), strict=True):
            lines.append(",".join([site, *map(str, row)]))
    file = tmp_path / "all.csv"
    file.write_text("\n".join(lines) + "\n")
    config = eq.DataConfig(name=str(file), site="site", label="disease", without=["west"])
    assert federate(config, 0).ids == ("east", "north")


@pytest.mark.parametrize(
    ("without", "message"), [(["wset"], "'wset'.*west"), (["east", "north", "west"], "remains")]
)
def test_other_sites_and_all_of_them_cannot_leave(
    without: list[str], message: str, whole: Path
) -> None:
    from equipoise.data import federate

    section = {**experiment(whole)["data"], "without": without}
    with pytest.raises(ValueError, match=message):
        federate(eq.DataConfig(**section), 0)
    with pytest.raises(ValueError, match=message):
        federate(eq.DataConfig(**{**section, "apart": True}), 0)


def test_data_without_sites_and_folders_of_images_are_refused(tmp_path: Path) -> None:
    from equipoise.data import federate

    with pytest.raises(ValueError, match="data with sites"):
        federate(eq.DataConfig(name="digits", without=["0"]), 0)


def test_a_later_round_has_learnt_from_the_site(tmp_path: Path, whole: Path) -> None:
    run = finished(tmp_path / "run", whole, data=dict(APART))
    for number in (None, 1):
        with pytest.raises(RunError, match="--from-round 0"):
            retrain_without(run, ["west"], number)
