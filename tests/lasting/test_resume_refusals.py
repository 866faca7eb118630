"""Runs that cannot be resumed say why; what stops a run leaves it whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import yaml

import equipoise as eq
from equipoise import simulate
from equipoise.experiment import experiment
from equipoise.runtime.messages import Request
from equipoise.storage import lock
from equipoise.storage.files import LOCK
from equipoise.storage.lock import acquire, is_held
from equipoise.storage.store import FORMAT, RunError, Store
from equipoise.transports.inprocess import InProcess
from tests.helpers.runs import config, environment, same_run, stopped


def test_an_interrupted_run_is_resumed_to_the_same_end(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    assert simulate.Run(folder).status == "stopped"
    simulate.resume(folder)
    simulate.run(experiment(config(tmp_path, "scaffold", rounds=3)), tmp_path / "whole")
    same_run(folder, tmp_path / "whole")


def test_a_finished_run_is_not_resumed(tmp_path: Path) -> None:
    simulate.run(experiment(config(tmp_path, "fedavg", rounds=1)), tmp_path / "run")
    with pytest.raises(RunError, match=r"is finished: all 1 rounds"):
        simulate.resume(tmp_path / "run")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run: it has no run.db"):
        simulate.resume(tmp_path)
    (tmp_path / "run.db").write_text("This is a shopping list, not a database. " * 100)
    with pytest.raises(RunError, match=r"damaged or not a run of Equipoise"):
        simulate.resume(tmp_path)
    (tmp_path / "run.db").unlink()
    sqlite3.connect(tmp_path / "run.db").execute("create table apples (n)").connection.close()
    with pytest.raises(RunError, match=r"damaged or not a run of Equipoise"):
        simulate.resume(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    victim = sorted((folder / "files").rglob("client-*-r2a0x1.safetensors"))[0]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-7])
    with pytest.raises(RunError, match=rf"damaged: {victim.parent.name}/{victim.name} is cut off"):
        simulate.resume(folder)
    victim.unlink()
    with pytest.raises(RunError, match=rf"damaged: {victim.parent.name}/{victim.name} is missing"):
        simulate.resume(folder)
    victim.write_bytes(whole)
    assert simulate.resume(folder).status == "finished"


def test_a_newer_run_asks_for_an_upgrade(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    store = Store(folder, writing=True)
    store.set_meta("format", 99)
    store.close()
    with pytest.raises(
        RunError, match=rf"newer version \(format 99, this one reads up to {FORMAT}\); upgrade"
    ):
        simulate.resume(folder)


def test_two_processes_on_one_run_are_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    holder = Store(folder, writing=True)
    try:
        assert simulate.Run(folder).status == "running"
        with pytest.raises(RunError, match="being run by another process"):
            simulate.resume(folder)
    finally:
        holder.close()


def test_changed_or_missing_data_are_refused_and_the_run_stays_whole(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    shutil.move(tmp_path / "sites", tmp_path / "elsewhere")
    with pytest.raises((RunError, ValueError, OSError), match="sites"):
        simulate.resume(folder)
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "sites")
    shutil.copy(tmp_path / "sites" / "ada.npz", tmp_path / "sites" / "bo.npz")
    with pytest.raises(RunError, match="data of .* have changed"):
        simulate.resume(folder)
    shutil.rmtree(tmp_path / "sites")
    shutil.move(tmp_path / "elsewhere", tmp_path / "sites")
    assert simulate.resume(folder).status == "finished"


def test_a_folder_in_use_or_not_writable_is_refused(tmp_path: Path) -> None:
    job = experiment(config(tmp_path, "fedavg", rounds=1))
    simulate.run(job, tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already; it is finished"):
        simulate.run(job, tmp_path / "run")
    (tmp_path / "a file").write_text("")
    with pytest.raises(RunError, match="cannot write a run to .*choose a folder"):
        simulate.run(job, tmp_path / "a file" / "run")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_a_full_disk_ends_the_run_with_a_sentence_and_it_can_be_resumed(
    workers: int, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for a full disk: the write of a checkpoint fails in
    the middle of the run.
    """
    job = config(tmp_path, "scaffold", rounds=2, workers=workers)
    program = (
        "import json, resource, sys\n"
        "import equipoise as eq\n"
        "from equipoise import cli\n"
        "class Limit(eq.Callback):\n"
        "    def on_start(self, start):\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))\n"
        "config = json.loads(sys.argv[1])\n"
        "sys.argv = ['equipoise']\n"
        "cli.app = lambda: eq.run(config, OUT, Limit())\n"
        "cli.main()\n"
    ).replace("OUT", repr(str(tmp_path / "run")))
    said = subprocess.run(
        [sys.executable, "-c", program, json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(),
    )
    assert said.returncode == 2, said.stderr
    assert (
        "error: cannot write" in said.stderr
        and "resume the run" in said.stderr
        and "Traceback" not in said.stderr
    )
    simulate.resume(tmp_path / "run")
    simulate.run(experiment(job | {"workers": 0}), tmp_path / "whole")
    same_run(tmp_path / "run", tmp_path / "whole")


def test_a_files_folder_that_vanishes_is_a_sentence(
    tmp_path: Path,
) -> None:
    files = tmp_path / "run" / "files"

    class Vanishing(InProcess):
        def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> Any:
            shutil.rmtree(files, ignore_errors=True)
            files.write_text("")
            return super().exchange(requests, deadline)

    job = config(tmp_path, "scaffold", rounds=2)
    with pytest.raises(RunError, match="files was removed or moved .*; bring it back and resume"):
        simulate.run(experiment(job), tmp_path / "run", transport=Vanishing)


@pytest.mark.thorough
def test_ctrl_c_ends_after_the_current_client_and_says_how_to_resume(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump(json.loads(json.dumps(config(tmp_path, "fedavg", rounds=5000))))
    )
    command = [
        sys.executable,
        "-c",
        "from equipoise.cli import main; main()",
        "run",
        str(tmp_path / "job.yaml"),
        "--out",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        deadline = time.monotonic() + 60
        while not (
            (tmp_path / "run" / "run.db").exists() and Store(tmp_path / "run").last_round() >= 2
        ):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (
        "stopped after round" in said
        and f"equipoise resume {tmp_path / 'run'}" in said
        and "Traceback" not in said
    )
    assert simulate.Run(tmp_path / "run").status == "stopped"


def test_a_table_run_from_before_there_were_schemas_is_told_so(tmp_path: Path) -> None:
    """Not that its data have changed: they have not."""
    folder = stopped(tmp_path)
    store = Store(folder, writing=True)
    store.set_meta("recipe", {"kind": "table", "columns": []})
    store.set_meta("fingerprint", "of other inputs")
    store.set_meta("version", "0.1.0")
    store.close()
    with pytest.raises(
        RunError,
        match=(
            r"begun by a version \(0\.1\.0\) that read tables in another way .*run the experiment "
            r"again"
        ),
    ):
        simulate.resume(folder)


def test_whoever_asks_for_the_lock_leaves_no_trace_and_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_held(tmp_path), "a folder that was never run"
    assert list(tmp_path.iterdir()) == []
    held = acquire(tmp_path)
    before = (tmp_path / LOCK).stat()
    assert is_held(tmp_path) and is_held(tmp_path)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("sys.platform", "win32")  # where a lock can only be tried
        assert is_held(tmp_path)
        held.release()
        assert not is_held(tmp_path)
    assert not is_held(tmp_path) and (tmp_path / LOCK).stat().st_mtime_ns == before.st_mtime_ns
    monkeypatch.setattr(lock, "PATIENCE", 60)  # the machine may be slow
    with open(tmp_path / LOCK) as looking:  # somebody asks in the moment in which a run begins
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_held(tmp_path), "who looks does not see others who look"
        Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        acquire(tmp_path).release()


def test_files_that_a_kill_after_the_last_commit_left_are_removed(tmp_path: Path) -> None:
    run = eq.run(
        {"data": {"name": "digits", "clients": 2, "samples": 60}, "rounds": 1, "workers": 0},
        tmp_path / "run",
    )
    named = {path.name for path in (run.folder / "files").iterdir()}
    left_over = run.folder / "files" / "server-r9a0.safetensors"
    left_over.write_bytes(b"half")
    with pytest.raises(RunError, match="is finished"):
        eq.resume(run.folder)
    assert {path.name for path in (run.folder / "files").iterdir()} == named
