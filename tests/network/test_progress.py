"""Progress of a run at the server, and its copy at the scientist's machine."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from equipoise.callbacks import ClientProgress
from equipoise.cli.network_run import progress_text
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.simulate import run as simulate
from equipoise.storage.store import RunError
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.progress import (
    LARGEST_DATABASE,
    NetworkProgress,
    packed_database,
    unpacked_database,
)
from equipoise.transports.nvflare.scientist import FILE, Mirror, NetworkRun
from tests.helpers.apart_sites import apart_config


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return apart_config(tmp_path, "fedavg")


@pytest.fixture
def snapshots(config: dict[str, Any], tmp_path: Path) -> list[dict[str, Any]]:
    """What a scientist would have read after each round."""
    taken = []

    class Watched(NetworkProgress):
        def on_round(self, record: Any) -> None:
            super().on_round(record)
            taken.append(self.snapshot())

    simulate(config, tmp_path / "run", Watched(lambda: {"ada": "idle", "bo": "away"}), quiet=True)
    return taken


def test_progress_has_the_round_its_evaluation_and_the_sites(
    snapshots: list[dict[str, Any]],
) -> None:
    last = snapshots[-1]
    assert (last["status"], last["round"], last["rounds"]) == ("running", 2, 2)
    assert last["evaluation"]["metric"] == "accuracy"
    assert 0 <= last["evaluation"]["worst"] <= last["evaluation"]["average"] <= 1
    assert last["sites"] == {"ada": "idle", "bo": "away"}
    text = progress_text(last)
    assert text.startswith("round 2 of 2: accuracy 0.") and text.endswith(
        "ada: ready; bo: not connected"
    )


def test_a_copy_of_the_tables_is_a_run_that_is_in_progress(
    snapshots: list[dict[str, Any]], config: dict[str, Any], tmp_path: Path
) -> None:
    order = RunOrder("a" * 32, experiment(config).to_spec(), ("ada", "bo"))
    mirrored = NetworkRun(tmp_path / "copy", order, "job")
    mirrored.save()
    mirror = Mirror(mirrored)
    mirror.update(snapshots[0])
    run = Run(tmp_path / "copy")
    assert run.status == "running" and run.last_round == 1
    run.store.close()
    with pytest.raises(RunError, match="another process"):
        Mirror(mirrored)
    mirror.update(snapshots[1])
    mirror.update({"database": "no database"})
    mirror.update({})
    mirror.close()
    run = Run(tmp_path / "copy")
    assert run.last_round == 2 and run.status != "running"
    assert NetworkRun.read(tmp_path / "copy") == mirrored


def test_tables_are_sent_once_a_round_and_again_after_a_while(
    config: dict[str, Any], tmp_path: Path
) -> None:
    clock = Clock()
    seen = []

    class Watched(NetworkProgress):
        def on_round(self, record: Any) -> None:
            super().on_round(record)
            seen.append("database" in self.snapshot())
            self.on_client(ClientProgress("client", 1, 2))
            seen.append("database" in self.snapshot())
            clock.now += 60
            seen.append("database" in self.snapshot())

    callback = Watched(dict, clock=clock)
    simulate({**config, "rounds": 1}, tmp_path / "run", callback, quiet=True)
    assert seen == [True, False, True]


def test_a_large_database_is_neither_sent_nor_accepted(tmp_path: Path) -> None:
    assert packed_database(tmp_path) is None
    bomb = base64.b64encode(zlib.compress(bytes(LARGEST_DATABASE + 1))).decode()
    with pytest.raises(ValueError, match="larger"):
        unpacked_database(bomb)


def test_a_folder_without_its_file_is_no_run_of_a_network(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=FILE):
        NetworkRun.read(tmp_path)


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"status": 3, "sites": "all"},
        {"status": "running", "evaluation": {"average": "high"}, "sites": {"a": None}},
    ],
)
def test_progress_of_another_form_is_shown_without_failing(strange: dict[str, Any]) -> None:
    assert isinstance(progress_text(strange), str)
