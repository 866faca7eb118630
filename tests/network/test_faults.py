"""Faults of a real network, one by one: each run continues and equals a run in process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import equipoise
from equipoise.runs import Run
from equipoise.transports.nvflare.entry import has_live_job, read_entry
from equipoise.transports.nvflare.jobs import open_desk
from equipoise.transports.nvflare.processes import PartyProcess
from equipoise.transports.nvflare.scientist import NetworkRun
from equipoise.transports.nvflare.supervisor import last_round
from tests.network.consortium import Consortium, copied
from tests.network.faulty import CHILD, JOB_PROCESS, SITES, Faulty, wait_until
from tests.network.hospitals import give_data, small_tables

pytestmark = pytest.mark.slow
FINISH = {"name": "fedavg", "finish": "poise"}
WIDE = {"name": "mlp", "hidden": [700, 700]}  # states of 2 MB, whose writing takes a moment


@pytest.fixture(scope="module")
def faulty(enrolled: Consortium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("faulty")
    data = small_tables(folder / "tables", SITES)
    consortium = copied(enrolled, folder / "parties")
    give_data(consortium, folder / "tables")
    network = Faulty(consortium, data)
    network.relay_to("south")
    with ExitStack() as stack:
        for folder in folders_to_fill(network).values():
            stack.enter_context(small_disk(folder))
        stack.callback(network.end)
        network.start()
        yield network


def folders_to_fill(faulty: Faulty) -> dict[str, Path]:
    return {"west": faulty.consortium.sites["west"].folder / "states", "server": faulty.runs}


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Put a folder on a small file system of its own, where that is permitted."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=200m,mode=700", "tmpfs", str(folder)]
    is_mounted = shutil.which("mount") and not subprocess.run(mount, capture_output=True).returncode
    try:
        yield
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def disks(faulty: Faulty) -> dict[str, Path]:
    folders = folders_to_fill(faulty)
    if not all(folder.is_mount() for folder in folders.values()):
        pytest.skip("mounting a small file system needs root")
    return folders


def begun(
    faulty: Faulty, folder: Path, rounds: int, method: object = "scaffold", **more: object
) -> NetworkRun:
    """Submit a run and wait for its second round."""
    with open_desk(faulty.consortium.lead) as desk:
        run = faulty.submit(desk, folder / "run", rounds, method, **more)
    faulty.wait_for_round(run, 2)
    return run


def kill_when(condition: Callable[[], bool], pid: int) -> None:
    """Kill a process at the moment at which something happens."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "the moment did not come"
    os.kill(pid, signal.SIGKILL)


def test_a_port_that_is_blocked_for_twenty_seconds_costs_no_bit(
    faulty: Faulty, tmp_path: Path
) -> None:
    run = begun(faulty, tmp_path, 40)  # the other sites go on meanwhile
    faulty.relays[0].block(20.0)
    faulty.wait_for_more(run)
    faulty.finished(run, tmp_path)


def test_a_site_and_the_job_of_the_server_die_at_once(faulty: Faulty, tmp_path: Path) -> None:
    run = begun(faulty, tmp_path, 12)
    faulty.kill_one("server", JOB_PROCESS["server"])
    faulty.kill("west")
    faulty.start_site("west")
    faulty.wait_for_more(run)
    faulty.finished(run, tmp_path)


def test_the_server_dies_between_a_reply_and_the_commit(faulty: Faulty, tmp_path: Path) -> None:
    run = begun(faulty, tmp_path, 8)
    states = faulty.states(run, "north")
    pid = faulty.process("server", JOB_PROCESS["server"])
    number = last_round(faulty.runs / run.order.run) + 1
    # The state of a round is at the site before its reply leaves.
    kill_when(lambda: any(states.rglob(f"*-r{number}a*.safetensors")), pid)
    assert last_round(faulty.runs / run.order.run) < number
    faulty.wait_for_more(run)
    faulty.finished(run, tmp_path)


def test_the_server_dies_between_the_commit_and_the_next_request(
    faulty: Faulty, tmp_path: Path
) -> None:
    run = begun(faulty, tmp_path, 8)
    pid = faulty.process("server", JOB_PROCESS["server"])
    number = last_round(faulty.runs / run.order.run)
    kill_when(lambda: last_round(faulty.runs / run.order.run) > number, pid)
    faulty.wait_for_more(run)
    faulty.finished(run, tmp_path)


def test_a_site_dies_while_it_writes_a_state(faulty: Faulty, tmp_path: Path) -> None:
    run = begun(faulty, tmp_path, 10, model=WIDE)
    states = faulty.states(run, "west")
    kill_when(lambda: any(states.rglob("*.part")), faulty.process("west", CHILD))
    faulty.wait_for_more(run)
    faulty.finished(run, tmp_path)


def test_a_reply_after_the_deadline_does_not_count(faulty: Faulty, tmp_path: Path) -> None:
    run = begun(faulty, tmp_path, 10, participation={"deadline": 3.0})
    child = faulty.process("north", CHILD)
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: bool(Run(faulty.runs / run.order.run).rejected()), "late reply")
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGCONT)
    faulty.wait_for_more(run)
    there = faulty.finished(run, tmp_path)
    late = [row for row in there.rejected() if row["client"] == "north"]
    assert late and len(late) < 10


def test_a_site_that_loses_power_during_a_step_is_away_soon(faulty: Faulty, tmp_path: Path) -> None:
    run = begun(faulty, tmp_path, 10)
    os.kill(faulty.process("west", CHILD), signal.SIGSTOP)  # so that a step is in progress
    time.sleep(3.0)
    faulty.kill("west")
    began = time.monotonic()
    faulty.wait_for_more(run)
    assert time.monotonic() - began < 90  # FLARE itself notices after minutes
    faulty.start_site("west")
    faulty.finished(run, tmp_path)


def test_a_run_waits_for_a_site_that_is_away_at_its_beginning(
    faulty: Faulty, tmp_path: Path
) -> None:
    with open_desk(faulty.consortium.lead) as desk:
        run = faulty.submit(desk, tmp_path / "run", rounds=5)
    faulty.kill("west")

    def has_stopped() -> bool:
        entry = read_entry(faulty.runs, run.order.run)
        return entry is not None and entry.outcome == "stopped"

    wait_until(has_stopped, "end of the job without the site")
    faulty.start_site("west")
    faulty.wait_for_round(run, 2)
    there = faulty.finished(run, tmp_path)
    assert set(there.rounds()[0]["joined"]) == set(SITES)


def test_a_site_that_is_away_at_the_end_misses_only_the_end(faulty: Faulty, tmp_path: Path) -> None:
    run = begun(faulty, tmp_path, 12, FINISH)
    faulty.kill("west")
    there = faulty.finished(run, tmp_path)
    faulty.start_site("west")
    assert set(there.finish()[-1]["joined"]) == {"north", "south"}


def test_two_runs_at_once_do_not_disturb_each_other(faulty: Faulty, tmp_path: Path) -> None:
    with open_desk(faulty.consortium.lead) as desk:
        first = faulty.submit(desk, tmp_path / "first" / "run", rounds=8)
        second = faulty.submit(desk, tmp_path / "second" / "run", rounds=8, method="fedakd")
    faulty.wait_for_round(first, 1)
    faulty.wait_for_round(second, 1)
    faulty.kill_one("south", JOB_PROCESS["site"])
    faulty.finished(first, tmp_path / "first")
    faulty.finished(second, tmp_path / "second")


def test_a_copy_of_a_kit_does_not_take_the_place_of_its_site(
    faulty: Faulty, tmp_path: Path
) -> None:
    run = begun(faulty, tmp_path, 12)
    original = faulty.consortium.sites["west"]
    shutil.copytree(original.folder, tmp_path / "copy")
    (tmp_path / "copy" / "running.json").unlink()  # which names the process of the original
    copy = PartyProcess(replace(original, folder=tmp_path / "copy"))
    try:
        faulty.wait_for_more(run, 5)
    finally:
        copy.end()
    faulty.finished(run, tmp_path)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill the file system of a folder for the duration of a block."""
    file = folder / "filler"
    try:
        with file.open("wb", buffering=0) as target, suppress(OSError):
            while target.write(bytes(2**12)):
                pass
        yield
    finally:
        file.unlink()


def test_a_site_with_a_full_disk_takes_part_again_when_there_is_room(
    faulty: Faulty, tmp_path: Path, disks: dict[str, Path]
) -> None:
    run = begun(faulty, tmp_path, 12)
    with filled(disks["west"]):
        wait_until(lambda: bool(Run(faulty.runs / run.order.run).rejected()), "missing reply")
    there = faulty.finished(run, tmp_path)
    assert {row["client"] for row in there.rejected()} == {"west"}
    assert set(there.rounds()[-1]["joined"]) == set(SITES)


def test_a_server_with_a_full_disk_continues_when_there_is_room(
    faulty: Faulty, tmp_path: Path, disks: dict[str, Path]
) -> None:
    run = begun(faulty, tmp_path, 12)
    with filled(disks["server"]):
        wait_until(lambda: not has_live_job(faulty.runs, run.order.run), "end of the job")
    faulty.finished(run, tmp_path)


LIES = """


def lie(count, answer):
    from equipoise.site.messages import packed, unpacked

    if count == 5:
        return answer[:-5]
    if count == 7:
        return bytes(range(256)) * 9
    if count == 9:
        return answer + bytes(2**24)
    if count == 11:
        return _FIRST[0]
    if count == 3:
        _FIRST.append(answer)
    if count == 13:
        content = {**unpacked(answer)}
        content["up"] = content["up"].with_(model=float("nan") * content["up"].model)
        return packed(content)
    return answer


_FIRST = []
"""


def test_replies_that_are_no_replies_do_not_count(
    enrolled: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site with a changed installation sends one truncated, random, long, old and NaN reply."""
    data = small_tables(tmp_path / "tables", SITES)
    consortium = copied(enrolled, tmp_path / "parties")
    give_data(consortium, tmp_path / "tables")
    changed = tmp_path / "changed"
    package = Path(equipoise.__file__).parent
    shutil.copytree(package, changed / "equipoise", ignore=shutil.ignore_patterns("*.pyc"))
    executor = changed / "equipoise" / "transports" / "nvflare" / "executor.py"
    text = executor.read_text()
    true = "array_of(answer.data)"
    assert true in text
    lie = "array_of(lie(_COUNT.__next__(), answer.data))"
    counter = "import itertools\n\n_COUNT = itertools.count(1)\n"
    executor.write_text(text.replace(true, lie) + LIES + counter)
    others = {**consortium.sites}
    liar = others.pop("west")
    network = Faulty(consortium, data)
    with replace(consortium, sites=others).running():
        monkeypatch.setattr(sys, "path", [str(changed), *sys.path])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        with replace(consortium, sites={"west": liar}).running_sites():
            monkeypatch.undo()
            with open_desk(consortium.lead) as desk:
                run = network.submit(desk, tmp_path / "run", rounds=8, method="fedavg")
            there = network.finished(run, tmp_path)
    rejected = there.rejected()
    assert {row["client"] for row in rejected} == {"west"}
    assert [row["round"] for row in rejected] == [2, 3, 4, 5, 6]
    assert "a reply to another request" in {row["reason"] for row in rejected}


def test_twenty_random_kills_cost_no_bit(faulty: Faulty, tmp_path: Path) -> None:
    run = begun(faulty, tmp_path, 60)
    moments = random.Random(1)
    for _ in range(20):
        time.sleep(moments.uniform(0.0, 2.0))
        with suppress(AssertionError):  # the process may be dead from the last kill
            faulty.strike(moments)
        faulty.wait_for_more(run, 1)
    faulty.finished(run, tmp_path)
