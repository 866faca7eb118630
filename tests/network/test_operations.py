"""Operation of a network: health, units, backups, and folders of old jobs."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from equipoise.callbacks import Callback
from equipoise.runs import Run
from equipoise.storage.backup import back_up
from equipoise.storage.store import RunError, Store
from equipoise.transports.nvflare.entry import RUNS, RunEntry, job_lock, update_entry
from equipoise.transports.nvflare.health import health
from equipoise.transports.nvflare.kits import open_kit, point_stores
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.processes import RUNNING, Running, began
from equipoise.transports.nvflare.sweeping import sweep_jobs
from equipoise.transports.nvflare.units import unit
from tests.helpers.apart_sites import apart_config, network_of, resume_apart, run_apart, run_joined
from tests.helpers.runs import same_run
from tests.helpers.terminal import Terminal
from tests.network.consortium import Consortium

RUN = "a" * 32
ENTRY = RunEntry(RunOrder(RUN, {}, ("north",)), "ann@example.org")


def pretend_to_run(folder: Path) -> None:
    """Let this process pass for the one that runs a party, whose folder was moved."""
    if "server" in folder.name:
        point_stores(open_kit(folder, "server"))
    own = Running(os.getpid(), began(os.getpid()), "mark")
    (folder / RUNNING).write_text(json.dumps(vars(own)))


def test_a_party_that_does_not_run_has_the_code_2(copied: Consortium, equipoise: Terminal) -> None:
    state = health(copied.server)
    assert state.code == 2 and "server start" in state.problems[-1]
    result = equipoise("site", "health", copied.sites["north"].folder)
    assert result.code == 2


def test_a_server_that_runs_has_the_code_0_and_lists_its_runs(copied: Consortium) -> None:
    pretend_to_run(copied.server.folder)
    assert health(copied.server).code == 0
    runs = copied.server.folder / RUNS
    update_entry(runs, RUN, lambda entry: replace(ENTRY, tries=3))
    assert any("waits" in fact for fact in health(copied.server).facts)
    with job_lock(runs, RUN):
        assert any("in progress" in fact for fact in health(copied.server).facts)
    assert health(copied.server).code == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"is_active": False, "reason": "20 jobs ended without a new round"},
        {"left_out": {"north": "its job process died 3 times"}},
    ],
)
def test_what_needs_attention_has_the_code_1(
    copied: Consortium, equipoise: Terminal, changes: dict[str, Any]
) -> None:
    pretend_to_run(copied.server.folder)
    entry = replace(ENTRY, **changes)
    update_entry(copied.server.folder / RUNS, RUN, lambda present: entry)
    result = equipoise("server", "health", copied.server.folder)
    assert result.code == 1 and RUN in result.out


def test_a_site_whose_server_does_not_answer_has_the_code_1(copied: Consortium) -> None:
    site = copied.sites["north"]
    pretend_to_run(site.folder)
    state = health(site)
    assert state.code == 1 and "cannot be reached" in state.problems[-1]


def test_a_unit_starts_the_party_again_whatever_happens(copied: Consortium) -> None:
    text = unit(copied.sites["north"], ["--data", "/data/100% north.csv"])
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert lines["Restart"] == "always"
    words = shlex.split(lines["ExecStart"])
    folder = str(copied.sites["north"].folder)
    assert words[-5:] == ["site", "start", folder, "--data", "/data/100%% north.csv"]
    assert Path(words[0]).is_absolute()


def test_a_unit_is_printed_by_the_command_that_it_runs(
    copied: Consortium, equipoise: Terminal
) -> None:
    result = equipoise("server", "start", copied.server.folder, "--unit")
    assert result.code == 0 and "ExecStart=" in result.out


def test_folders_of_old_jobs_are_removed_but_the_newest(copied: Consortium) -> None:
    kit = copied.server
    jobs = []
    for number in range(6):
        for parent in (kit.startup, kit.startup / "jobs"):
            folder = parent / f"0000000{number}-0000-0000-0000-000000000000"
            folder.mkdir(parents=True)
            os.utime(folder, (time.time() - 9000 + number,) * 2)
            jobs.append(folder)
    in_progress = jobs[0]
    (in_progress / "log.txt").touch()
    before = {path for path in kit.startup.iterdir() if path not in jobs}
    assert sweep_jobs(kit, keep=2) == 4 + 4
    left = {path for path in jobs if path.exists()}
    assert left == {in_progress, jobs[10], jobs[9], jobs[11]}
    assert before <= set(kit.startup.iterdir())
    assert sweep_jobs(kit, keep=0) == 3
    assert in_progress.exists()


class BackUp(Callback):
    """Backs a run up in the middle of it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def on_round(self, record: Any) -> None:
        if record.round == 1:
            assert back_up(self.target.parent / "run", self.target) == 1


def test_a_backup_of_a_run_in_progress_can_be_resumed_with_the_same_bits(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg")
    target = tmp_path / "copy"
    run_apart(config, tmp_path / "run", network_of(tmp_path).transport(), callbacks=BackUp(target))
    assert Run(target).last_round == 1
    resumed = resume_apart(target, network_of(tmp_path).transport())
    same_run(run_joined(config, tmp_path / "joined"), resumed, network_of(tmp_path).states(resumed))


def test_an_old_copy_of_a_run_is_refused_until_its_sites_begin_afresh(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "scaffold", rounds=3)
    target = tmp_path / "copy"
    run_apart(config, tmp_path / "run", network_of(tmp_path).transport(), callbacks=BackUp(target))
    with pytest.raises(RunError, match=r"round 1, .* round 3.*restart-client"):
        resume_apart(target, network_of(tmp_path).transport())
    store = Store(target, writing=True)
    for client in store.meta("clients"):
        store.restart(client)
    store.close()
    assert resume_apart(target, network_of(tmp_path).transport()).status == "finished"


def test_a_backup_by_command_lies_next_to_the_run(tmp_path: Path, equipoise: Terminal) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=1)
    run_apart(config, tmp_path / "run", network_of(tmp_path).transport())
    result = equipoise("network", "backup", tmp_path / "run")
    assert result.code == 0 and "round 1" in result.out
    (copy,) = tmp_path.glob("run.*.backup")
    assert Run(copy).status == "finished"


def test_a_backup_names_only_files_of_a_run(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=1)
    run_apart(config, tmp_path / "run", network_of(tmp_path).transport())
    with pytest.raises(RunError, match="exists"):
        back_up(tmp_path / "run", tmp_path)
    with pytest.raises(RunError, match="not a run"):
        back_up(tmp_path, tmp_path / "copy")
    with sqlite3.connect(tmp_path / "run" / "run.db") as database:
        database.execute("update files set name = '../../secret'")
    with pytest.raises(RunError, match="no run has"):
        back_up(tmp_path / "run", tmp_path / "copy")
