"""Worker processes: the same bits as in process, replaced when they die, gone when the parent is."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import assert_same, config, environment, everything, same_run

import equipoise as eq
from equipoise import methods, simulate
from equipoise.experiment import ConfigurationError, experiment
from equipoise.runs.store import RunError
from equipoise.transports import workers
from equipoise.transports.base import ClientError

FAULTS = {
    "script": [
        {"round": 1, "client": "bo", "kind": "drop"},
        {"round": 2, "client": "ada", "kind": "nan"},
        {"round": 2, "client": "di", "kind": "kill"},
    ]
}


@pytest.mark.parametrize("method", methods.names())
def test_a_run_with_faults_is_the_same_in_process_and_with_two_workers(method: str, tmp_path: Path) -> None:
    """Dropouts, a reply that is not finite and a worker that dies: the same script ends in the same state, whoever does the work."""
    job = config(tmp_path, method, faults=FAULTS)
    simulate.run(experiment(job), tmp_path / "serial")
    simulate.run(experiment(job | {"workers": 2}), tmp_path / "parallel")
    same_run(tmp_path / "serial", tmp_path / "parallel")


@pytest.mark.parametrize("count", [1, 3])
def test_any_number_of_workers_gives_the_same_bits(count: int, tmp_path: Path) -> None:
    job = config(tmp_path, "scaffold", model="cnn")
    simulate.run(experiment(job), tmp_path / "serial")
    simulate.run(experiment(job | {"workers": count}), tmp_path / "parallel")
    same_run(tmp_path / "serial", tmp_path / "parallel")


def test_replies_through_files_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = config(tmp_path, "fedequilibria")
    simulate.run(experiment(job), tmp_path / "memory")
    monkeypatch.setattr("equipoise.engine.cohort.Clients.large", lambda self, down, cohort: True)
    simulate.run(experiment(job), tmp_path / "files")
    same_run(tmp_path / "memory", tmp_path / "files")


def test_a_worker_that_dies_again_and_again_ends_the_run_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The fault is not cleared: it kills every worker that takes it.
    monkeypatch.setattr(workers, "replace", lambda value, **changes: value if "die" in changes else dataclasses.replace(value, **changes))
    job = config(tmp_path, "fedavg", faults={"script": [{"round": 1, "client": "bo", "kind": "kill"}]}, workers=1)
    with pytest.raises(RunError, match=r"died 3 times .* client 'bo' in round 1; .*--workers"):
        simulate.run(experiment(job), tmp_path / "run")


def test_an_exception_in_a_worker_names_client_round_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clumsy_module.py").write_text(
        "from dataclasses import dataclass\nfrom equipoise import Method\n@dataclass(frozen=True)\nclass Clumsy(Method):\n"
        "    def client(self, client, down):\n        raise ArithmeticError('seven apples')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    job = config(tmp_path, "clumsy_module:Clumsy", workers=1)
    with pytest.raises(ClientError, match=r"client '\w+', round 1, step 'client'(?s:.*)seven apples"):
        simulate.run(experiment(job), tmp_path / "run")


def test_a_method_of_a_notebook_runs_in_process_and_says_why_not_in_workers(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Mine(eq.Method):
        pass

    job = config(tmp_path, Mine())
    assert eq.run(eq.Experiment(**job), tmp_path / "run").status == "finished"
    with pytest.raises(ConfigurationError, match=r"workers: expected 0 .*Mine is defined in a notebook.*module that can be imported"):
        eq.run(eq.Experiment(**job | {"workers": 2}), tmp_path / "other")


PROGRAM = "import json, sys; from equipoise import simulate; from equipoise.experiment import experiment; simulate.run(experiment(json.loads(sys.argv[1])), sys.argv[2])"
PLAIN = "from equipoise.transports.workers import processes; processes.this_process_is_plain(); "


def test_forked_workers_give_the_same_bits_and_are_replaced_when_they_die(tmp_path: Path) -> None:
    job = config(tmp_path, "scaffold", model="cnn", faults=FAULTS)
    simulate.run(experiment(job), tmp_path / "serial")
    counted = "from equipoise.transports.workers.processes import Pool; fork = Pool._fork; Pool._fork = lambda *a: (print('forked', flush=True), fork(*a))[1]; "
    program = [sys.executable, "-c", PLAIN + counted + PROGRAM, json.dumps(job | {"workers": 2}), str(tmp_path / "parallel")]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["forked"] * 3  # two, and one in place of the one that the script kills
    assert "exit code -9" in done.stderr
    same_run(tmp_path / "serial", tmp_path / "parallel")


@pytest.mark.parametrize("program", [PROGRAM, PLAIN + PROGRAM], ids=["started", "forked"])
def test_no_worker_survives_its_parent(program: str, tmp_path: Path) -> None:
    job = config(tmp_path, "fedavg", rounds=10_000, workers=2)
    parent = subprocess.Popen([sys.executable, "-c", program, json.dumps(job), str(tmp_path / "run")], env=environment())
    try:
        children = _until(
            lambda: found if len(found := _children(parent.pid)) == 2 and (tmp_path / "run" / "run.db").exists() else None, 60
        )
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(timeout=10)
        _until(lambda: not any(_alive(child) for child in children), 20)
    finally:
        parent.kill()


def _until(condition, seconds: float):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def _children(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return [int(word) for word in listed.split()]


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleepy_module.py").write_text(
        "import os, time\nfrom dataclasses import dataclass\nfrom equipoise import Method\n@dataclass(frozen=True)\nclass Sleepy(Method):\n    flag: str = ''\n"
        "    def client(self, client, down):\n        if client.id == 'bo' and not os.path.exists(self.flag):\n            open(self.flag, 'w').close(); time.sleep(600)\n"
        "        return super().client(client, down)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    job = config(tmp_path, {"name": "sleepy_module:Sleepy", "flag": str(tmp_path / "slept")}, rounds=2, participation={"deadline": 3.0})
    hung = simulate.run(experiment(job | {"workers": 1}), tmp_path / "hung")
    assert (tmp_path / "slept").exists()
    assert_same(everything(hung), everything(simulate.run(experiment(job), tmp_path / "serial")))
