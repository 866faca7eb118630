"""Measure what faults of a real network cost: seconds lost, and memory over many of them.

    python benchmarks/network_faults.py           # seconds lost per kind of fault
    python benchmarks/network_faults.py --soak    # 200 rounds, four sites, a fault every ten rounds

Prints a section for RESULTS.md. Linux only: memory and threads are read from /proc.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from equipoise.transports.nvflare.jobs import open_desk
from equipoise.transports.nvflare.processes import marked_processes
from equipoise.transports.nvflare.scientist import NetworkRun
from equipoise.transports.nvflare.supervisor import last_round
from tests.network.consortium import build
from tests.network.faulty import CHILD, JOB_PROCESS, Faulty
from tests.network.hospitals import give_data, small_tables

SITES = ("north", "south", "west")
SOAK_SITES = (*SITES, "east")
MANY = 100_000  # rounds; the run is ended with its network
EVERY = 10  # rounds between two faults
SETTLED = 50  # round from which memory and threads must not grow


@contextmanager
def network(sites: tuple[str, ...]) -> Iterator[Faulty]:
    """Run a network with small hospitals."""
    with tempfile.TemporaryDirectory(prefix="equipoise-faults-") as temporary:
        folder = Path(temporary)
        data = small_tables(folder / "tables", sites)
        consortium = build(folder / "parties", sites)
        give_data(consortium, folder / "tables")
        faulty = Faulty(consortium, data)
        try:
            faulty.start()
            yield faulty
        finally:
            faulty.end()


class Watch:
    """Seconds between the commits of a run."""

    def __init__(self, faulty: Faulty, run: NetworkRun) -> None:
        self.folder = faulty.runs / run.order.run

    def seconds_to_next(self, rounds: int = 1) -> float:
        """Return the seconds until some more rounds are committed."""
        began = time.monotonic()
        number = last_round(self.folder) + rounds
        while last_round(self.folder) < number:
            if time.monotonic() - began > 300:
                raise TimeoutError(f"no round {number} within 300 s")
            time.sleep(0.05)
        return time.monotonic() - began


def begun(faulty: Faulty, folder: Path, rounds: int) -> NetworkRun:
    with open_desk(faulty.consortium.lead) as desk:
        run = faulty.submit(desk, folder / "run", rounds, sites=tuple(faulty.consortium.sites))
    faulty.wait_for_round(run, 3)
    return run


def print_seconds_lost() -> None:
    """Print the seconds that each kind of fault costs."""
    with network(SITES) as faulty, tempfile.TemporaryDirectory() as folder:
        run = begun(faulty, Path(folder), MANY)
        watch = Watch(faulty, run)
        usual = watch.seconds_to_next(10) / 10
        print(f"- a round without faults: {usual:.2f} s")
        faulty.kill_one("north", CHILD)
        print(f"- a child dies: {watch.seconds_to_next() - usual:.1f} s lost")
        watch.seconds_to_next(5)
        faulty.kill("west")
        print(f"- a site leaves: {watch.seconds_to_next() - usual:.1f} s lost once,")
        later = watch.seconds_to_next(5) / 5
        print(f"  then {later:.2f} s a round")
        job = faulty.entry(run).job
        began = time.monotonic()
        faulty.start_site("west")
        while faulty.entry(run).job == job or faulty.entry(run).away:
            time.sleep(0.05)
        watch.seconds_to_next()
        print(
            f"- a site returns: in a round again {time.monotonic() - began:.1f} s after its start"
        )
        watch.seconds_to_next(5)
        faulty.kill_one("south", JOB_PROCESS["site"])
        print(f"- a site's job process dies: {watch.seconds_to_next(2) - 2 * usual:.1f} s lost")
        watch.seconds_to_next(5)
        faulty.kill("server")
        faulty.start_server()
        print(f"- the server dies: next round {watch.seconds_to_next():.1f} s after its restart")


def memory_and_threads(faulty: Faulty) -> dict[str, tuple[float, int]]:
    """Return MB and threads of the largest process of each kind."""
    kinds = {"runner_process": "server job", "worker_process": "site job", CHILD: "child"}
    kinds |= {"server_train": "server", "client_train": "site"}
    largest: dict[str, tuple[float, int]] = {}
    for process in faulty.processes.values():
        for pid in marked_processes(process.mark):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it has just ended
            lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            for word, kind in kinds.items():
                if word in command and "VmRSS" in lines:
                    memory = float(lines["VmRSS"].split()[0]) / 1024
                    old = largest.get(kind, (0.0, 0))
                    largest[kind] = (max(old[0], memory), max(old[1], int(lines["Threads"])))
    return largest


def print_soak(rounds: int) -> None:
    """Print memory and threads over many rounds with faults."""
    moments = random.Random(0)
    with network(SOAK_SITES) as faulty, tempfile.TemporaryDirectory() as folder:
        run = begun(faulty, Path(folder), rounds)
        watch = Watch(faulty, run)
        early: dict[str, tuple[float, int]] = {}
        late: dict[str, tuple[float, int]] = {}
        faults: dict[str, int] = {}
        while last_round(watch.folder) < rounds - EVERY:
            watch.seconds_to_next(EVERY - 1)
            target = early if last_round(watch.folder) <= SETTLED else late
            for kind, (memory, threads) in memory_and_threads(faulty).items():
                old = target.get(kind, (0.0, 0))
                target[kind] = (max(old[0], memory), max(old[1], threads))
            try:
                fault = faulty.strike(moments, SOAK_SITES)
            except AssertionError:  # the victim is being replaced
                continue
            faults[fault] = faults.get(fault, 0) + 1
            watch.seconds_to_next()
        there = faulty.finished(run, Path(folder))
        print(
            f"- {there.last_round} rounds, equal to their repetition in process; faults: {faults}"
        )
        for kind, (memory, threads) in late.items():
            before = early.get(kind, (float("nan"), 0))
            print(
                f"- {kind}: at most {before[0]:.0f} MB and {before[1]} threads until round "
                f"{SETTLED}, {memory:.0f} MB and {threads} threads later"
            )
        states = [len(list(faulty.states(run, site).rglob("*.safetensors"))) for site in SOAK_SITES]
        jobs = [
            path for kit in faulty.consortium.sites.values() for path in job_folders(kit.folder)
        ]
        print(f"- states per site at the end: {states}; job folders at sites: {len(jobs)}")
        marks = [process.mark for process in faulty.processes.values()]
    stray = [pid for mark in marks for pid in marked_processes(mark)]
    print(f"- processes left after the end: {len(stray)}")


def job_folders(folder: Path) -> list[Path]:
    """Return the folders of FLARE's jobs in a kit, whose names are identifiers."""
    return [path for path in (folder / "flare").iterdir() if path.is_dir() and len(path.name) == 36]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--soak", action="store_true", help="many rounds with a fault every ten")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of the soak")
    arguments = parser.parse_args()
    now = datetime.now(UTC).date()
    load = os.getloadavg()[0]
    print(f"### Faults of a network ({now}, {os.cpu_count()} cores, load {load:.1f})\n", flush=True)
    if arguments.soak:
        print_soak(arguments.rounds)
    else:
        print_seconds_lost()


if __name__ == "__main__":
    main()
