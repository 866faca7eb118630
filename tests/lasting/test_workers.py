"""Worker processes: the same bits as in process, replaced if they die, ended with the parent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import equipoise as eq
from equipoise import simulate
from equipoise.experiment import ConfigurationError, experiment
from equipoise.runs import Run
from equipoise.storage.checkpoint import load_server
from equipoise.storage.store import RunError
from equipoise.transports.base import ClientError
from equipoise.transports.workers import lanes, processes
from equipoise.transports.workers.pool import Workers
from tests.helpers.runs import assert_same, config, environment, everything, same_run

FAULTS = {
    "script": [
        {"round": 1, "client": "bo", "kind": "drop"},
        {"round": 2, "client": "ada", "kind": "nan"},
        {"round": 2, "client": "di", "kind": "kill"},
    ]
}


@pytest.mark.parametrize(("count", "anew"), [(1, False), (2, True), (3, False)])
@pytest.mark.thorough
def test_any_number_of_workers_gives_the_same_bits(
    count: int, anew: bool, tmp_path: Path, new_processes: None
) -> None:
    job = config(tmp_path, "scaffold", model="cnn")
    processes.allow_fork(not anew)
    simulate.run(experiment(job), tmp_path / "serial")
    simulate.run(experiment(job | {"workers": count}), tmp_path / "parallel")
    same_run(tmp_path / "serial", tmp_path / "parallel")


KILL_BO = {"script": [{"round": 1, "client": "bo", "kind": "kill"}]}


@pytest.mark.parametrize(
    ("name", "counted", "said"),
    [
        ("SIGKILL", 0, "killed by signal 9 (SIGKILL)"),
        ("SIGTERM", 1, "killed by signal 15 (SIGTERM)"),  # the kernel does not end processes so
        (
            "SIGKILL",
            1,
            "killed by signal 9 (SIGKILL): the system ran out of memory; try fewer --workers or a "
            "smaller batch",
        ),
    ],
)
def test_a_worker_that_is_killed_again_and_again_ends_the_run_and_its_cause_is_said(
    name: str, counted: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of memory it speaks only where the kernel has counted such an end since the last one."""
    kernel = {"/proc/vmstat": 5}  # some process, once, for want of memory: not this one

    def kills() -> dict[str, int]:
        kernel["/proc/vmstat"] += counted
        return dict(kernel)

    monkeypatch.setattr(processes, "out_of_memory_kills", kills)
    step = f"if client.id == 'bo': os.kill(os.getpid(), signal.{name})"
    method = module(tmp_path, monkeypatch, f"killing_{name}_{counted}", "", step)
    sentence = (
        "a worker process ended 3 times with client 'bo' in round 1, step 'client' (the last: "
        f"{said})"
    )
    with pytest.raises(RunError, match=f"^{re.escape(sentence)}$"):
        simulate.run(experiment(config(tmp_path, method, workers=1)), tmp_path / "run")


def test_the_kernels_counts_are_found_in_either_version_of_control_groups(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    assert processes.out_of_memory_kills(tmp_path / "proc", tmp_path / "cgroup") == {}
    write("proc/self/cgroup", "4:cpu,memory:/jobs/a:b\n2:pids:/\n0::/user.slice\n")
    machine = write("proc/vmstat", "nr_free_pages 7\noom_kill 2\n")
    new = write("cgroup/user.slice/memory.events", "low 0\nhigh 0\noom 3\noom_kill 4\n")
    old = write(
        "cgroup/memory/jobs/a:b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 6\n"
    )
    assert processes.out_of_memory_kills(tmp_path / "proc", tmp_path / "cgroup") == {
        machine: 2,
        new: 4,
        old: 6,
    }
    assert isinstance(processes.out_of_memory_kills(), dict)  # whatever this system has


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (7, "exit code 7"),
        (-11, "killed by signal 11 (SIGSEGV)"),
        (-200, "killed by signal 200"),
    ],
)
def test_an_end_is_told_by_its_exit_code_or_signal(code: int, words: str) -> None:
    assert processes.ending(code) == words


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, top: str, step: str) -> str:
    """A method in a module of its own, with code that runs when it is imported and code that its
    step begins with.
    """
    lines = [
        "import os, signal, sys, time",
        "from dataclasses import dataclass",
        "from equipoise import Method, Up",
        top,
    ]
    lines += [
        "@dataclass(frozen=True)",
        "class Odd(Method):",
        "    def client(self, client, down):",
        f"        {step}",
    ]
    lines += ["        return super().client(client, down)"]
    (tmp_path / f"{name}.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:Odd"


def test_a_step_that_ends_its_process_is_told_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = module(
        tmp_path, monkeypatch, "leaving_module", "", "if client.id == 'cy': os._exit(5)"
    )
    with pytest.raises(
        RunError,
        match=r"3 times with client 'cy' in round 1, step 'client' \(the last: exit code 5\)$",
    ):
        simulate.run(experiment(config(tmp_path, method, workers=2)), tmp_path / "run")


IN_A_WORKER = (
    "if os.getpid() != {parent}:\n    open({path!r}, 'a').write('x'); starts = "
    "os.path.getsize({path!r})\n    if {when}: os._exit(7)"
)


@pytest.mark.slow
def test_a_worker_that_dies_while_starting_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_processes: None
) -> None:
    """The first one starts, is killed, and two of its replacements do not come up."""
    top = IN_A_WORKER.format(
        parent=os.getpid(), path=str(tmp_path / "starts"), when="starts in (2, 3)"
    )
    job = config(
        tmp_path, module(tmp_path, monkeypatch, "fragile_module", top, "pass"), faults=KILL_BO
    )
    simulate.run(experiment(job), tmp_path / "serial")
    simulate.run(experiment(job | {"workers": 1}), tmp_path / "parallel")
    assert (tmp_path / "starts").stat().st_size == 4
    same_run(tmp_path / "serial", tmp_path / "parallel")


@pytest.mark.slow
def test_a_worker_that_never_starts_ends_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_processes: None
) -> None:
    top = IN_A_WORKER.format(parent=os.getpid(), path=str(tmp_path / "starts"), when="True")
    job = config(tmp_path, module(tmp_path, monkeypatch, "broken_module", top, "pass"), workers=1)
    with pytest.raises(
        RunError, match=r"ended 3 times while starting \(the last: exit code 7\); .*--workers 0"
    ):
        simulate.run(experiment(job), tmp_path / "run")
    assert (tmp_path / "starts").stat().st_size == 3


def test_a_worker_has_its_own_time_to_start_however_long_the_exchange_has_lasted(
    tmp_path: Path,
) -> None:
    class Late(processes.Pool):
        """A replacement comes long after the first one was ready."""

        passed = 0.0

        def start(self) -> processes.Process:
            self.passed += 1000.0 if self.jobs else 0.0
            return super().start()

    pool = Late(1)
    job = config(tmp_path, "fedavg", faults=KILL_BO, participation={"deadline": 1e6})
    simulate.run(
        experiment(job),
        tmp_path / "run",
        transport=lambda federation, wanted: Workers(
            pool, federation, lambda: time.monotonic() + pool.passed
        ),
    )
    assert pool.passed == 1000.0


def test_a_worker_that_is_not_ready_in_time_ends_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_processes: None
) -> None:
    monkeypatch.setattr(lanes, "START_DEADLINE", 0.0)
    with pytest.raises(RunError, match="was not ready within 0 s; run with --workers 0"):
        simulate.run(experiment(config(tmp_path, "fedavg", workers=1)), tmp_path / "run")


@pytest.mark.slow
def test_a_client_that_always_hangs_is_out_of_the_round_with_workers_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    method = module(
        tmp_path,
        monkeypatch,
        "hanging_module",
        "",
        "if client.id == 'bo' and client.round == 1: time.sleep(600)",
    )
    job = config(tmp_path, method, rounds=2, participation={"deadline": 3.0})
    simulate.run(experiment(job), tmp_path / "serial")
    simulate.run(experiment(job | {"workers": 2}), tmp_path / "parallel")
    same_run(tmp_path / "serial", tmp_path / "parallel")
    (row,) = Run(tmp_path / "parallel").rejected()
    assert (row["round"], row["client"], row["reason"]) == (1, "bo", "did not answer within 3 s")
    hung = caplog.text.count(
        "a worker process did not answer within 3 s; a new one takes its place"
    )
    assert hung == 1, "a step that hangs costs one deadline"


UNFIT = """
import torch
def unfit():
    values = [torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.uint16), torch.zeros(2, device="meta")]
    values += [PerClient(), {1: 2}, 1 << 2000, b"bytes", 1j, set()]
    for value in [*values, *(Tree({"w": value}) for value in values[:4])]:
        try:
            Up(x=value)
            yield "taken"
        except TypeError as error:
            yield str(error)
"""


@pytest.mark.thorough
def test_what_cannot_travel_is_refused_by_the_same_sentence_on_every_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = "from equipoise.records import PerClient\nfrom equipoise.tree import Tree\n" + UNFIT
    step = (
        "return Up(model=client.load(down.model), said=list(unfit()), "
        "threads=torch.get_num_threads())"
    )
    step += (
        "\n    def observe(self, server, state, ups):\n        return "
        "state.with_(said=ups.values('said'))\n    def unused(self):"
    )
    job = config(
        tmp_path,
        module(
            tmp_path,
            monkeypatch,
            "unfit_module",
            top,
            step.replace("return Up", "torch.set_num_threads(3); return Up"),
        ),
        rounds=1,
    )
    said = []
    for name, more, transport in (
        ("direct", {}, None),
        ("packed", {}, "loopback"),
        ("workers", {"workers": 2}, None),
    ):
        state = load_server(
            simulate.run(experiment(job | more), tmp_path / name, transport=transport).store
        )
        said.append(state.said)
    assert said[0] == said[1] == said[2] and len(said[0]) == 4
    assert (
        all(sentences == said[0][0] for sentences in said[0])
        and len(said[0][0]) == 14
        and "taken" not in said[0][0]
    )


@pytest.mark.parametrize("more", [{}, {"workers": 1}], ids=["in process", "workers"])
def test_settings_that_a_step_changes_are_as_before_in_the_next_one(
    more: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (
        "[torch.get_num_threads(), torch.is_grad_enabled(), str(torch.get_default_dtype()), "
        "torch.are_deterministic_algorithms_enabled(), "
    )
    found += "random.random(), float(numpy.random.rand()), float(torch.rand(1))]"
    step = (
        f"up = Up(model=client.load(down.model), found={found}); torch.set_num_threads(3); "
        "torch.set_grad_enabled(False); "
    )
    step += (
        "torch.set_default_dtype(torch.float64); torch.use_deterministic_algorithms(True); "
        "torch.manual_seed(5); random.seed(1); "
    )
    step += (
        "numpy.random.seed(1); return up\n    def observe(self, server, state, ups):\n        "
        "return state.with_(found=ups.values('found'))"
    )
    step += "\n    def unused(self):"
    method = module(tmp_path, monkeypatch, "meddling_module", "import numpy, random, torch", step)
    state = load_server(
        simulate.run(experiment(config(tmp_path, method, rounds=2) | more), tmp_path / "run").store
    )
    assert state.found[0][:4] == [1, True, "torch.float32", False]
    assert len(state.found) == 4 and all(found == state.found[0] for found in state.found)


def test_an_exception_in_a_worker_names_client_round_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clumsy_module.py").write_text(
        "from dataclasses import dataclass\nfrom equipoise import "
        "Method\n@dataclass(frozen=True)\nclass Clumsy(Method):\n    def client(self, client, "
        "down):\n        raise ArithmeticError('seven apples')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    job = config(tmp_path, "clumsy_module:Clumsy", workers=1)
    with pytest.raises(
        ClientError, match=r"client '\w+', round 1, step 'client'(?s:.*)seven apples"
    ):
        simulate.run(experiment(job), tmp_path / "run")


def test_a_method_of_a_notebook_runs_in_process_and_says_why_not_in_workers(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Mine(eq.Method):
        pass

    job = config(tmp_path, Mine())
    assert eq.run(eq.Experiment(**job), tmp_path / "run").status == "finished"
    with pytest.raises(
        ConfigurationError,
        match=r"workers: expected 0 .*Mine is defined in a notebook.*module that can be imported",
    ):
        eq.run(eq.Experiment(**job | {"workers": 2}), tmp_path / "other")


PROGRAM = (
    "import json, sys; from equipoise import simulate; from equipoise.experiment import "
    "experiment; simulate.run(experiment(json.loads(sys.argv[1])), sys.argv[2])"
)
PLAIN = "from equipoise.transports.workers import processes; processes.allow_fork(); "


def test_forked_workers_give_the_same_bits_and_are_replaced_when_they_die(tmp_path: Path) -> None:
    job = config(tmp_path, "scaffold", model="cnn", faults=FAULTS)
    simulate.run(experiment(job), tmp_path / "serial")
    counted = (
        "from equipoise.transports.workers.processes import Pool; fork = Pool._fork; Pool._fork = "
        "lambda *a: (print('forked', flush=True), fork(*a))[1]; "
    )
    program = [
        sys.executable,
        "-c",
        PLAIN + counted + PROGRAM,
        json.dumps(job | {"workers": 2}),
        str(tmp_path / "parallel"),
    ]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # two, and one in place of the one that the script kills
    assert done.stdout.split() == ["forked"] * 3
    assert "killed by signal 9 (SIGKILL)" in done.stderr
    same_run(tmp_path / "serial", tmp_path / "parallel")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(PROGRAM, id="started", marks=pytest.mark.slow),
        pytest.param(PLAIN + PROGRAM, id="forked"),
    ],
)
@pytest.mark.thorough
def test_no_worker_survives_its_parent(program: str, tmp_path: Path) -> None:
    job = config(tmp_path, "fedavg", rounds=10_000, workers=2)
    parent = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(job), str(tmp_path / "run")], env=environment()
    )
    try:
        children = _until(
            lambda: (
                found
                if len(found := _children(parent.pid)) == 2
                and (tmp_path / "run" / "run.db").exists()
                else None
            ),
            180,
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
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True
    ).stdout
    return [int(word) for word in listed.split()]


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.thorough
def test_a_client_that_hangs_once_is_out_of_one_round_and_works_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "slept"
    step = (
        f"if client.id == 'bo' and not os.path.exists({str(flag)!r}): open({str(flag)!r}, "
        "'w').close(); time.sleep(600)"
    )
    method = module(tmp_path, monkeypatch, "sleepy_module", "", step)
    job = config(tmp_path, method, rounds=2, participation={"deadline": 3.0})
    hung = simulate.run(experiment(job | {"workers": 1}), tmp_path / "hung")
    (row,) = hung.rejected()
    assert (row["round"], row["client"], row["reason"]) == (1, "bo", "did not answer within 3 s")
    dropped = job | {"faults": {"script": [{"round": 1, "client": "bo", "kind": "drop"}]}}
    assert flag.exists()
    assert_same(
        everything(hung), everything(simulate.run(experiment(dropped), tmp_path / "dropped"))
    )
