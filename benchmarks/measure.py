"""Time, CPU and memory of a contender and all its processes, and how much the rest of the machine
was busy meanwhile.

Standard library only; reads Linux's /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import threading
import time
from importlib.metadata import version
from pathlib import Path

from workloads import WORKLOADS, Workload

SAMPLING_SECONDS = 0.5
# Reading the memory maps of all processes takes some 70 ms of a core: in rounds that count it is
# done seldom.
SELDOM_SECONDS = 5.0
TICKS = os.sysconf("SC_CLK_TCK")
BECOME_SUBREAPER = 36
# two pipes, "read,write", to whoever says when a round may begin (paired.py)
TURNS = "EQUIPOISE_BENCH_TURNS"


def arguments(variants: tuple[str, ...]) -> tuple[Workload, argparse.Namespace]:
    """The command line every contender understands; the first variant is the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    options.rounds = options.rounds or workload.rounds
    return workload, options


def family(root: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if fields := _status(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes and of their children that have ended."""
    return sum(int(ticks) for pid in pids for ticks in _status(pid)[11:15]) / TICKS


def fine_cpu_seconds(pids: list[int]) -> float:
    """CPU time of these processes with all their threads, ended ones too, as the scheduler counts
    it: in nanoseconds, where `cpu_seconds` has ticks of 10 ms.

    Children that have ended are not in it.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            # the clock that clock_getcpuclockid(3) gives
            total += time.clock_gettime((~pid << 3) | 2)
    return total


def _status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def memory_mb(pids: list[int]) -> float:
    """Sum of the proportional set sizes: a page shared by n processes counts once."""
    kilobytes = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def machine_seconds() -> float:
    """CPU time the whole machine has spent on anything but idling, time stolen by its host
    included.
    """
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


class Turns:
    """Contenders that take turns: each reports the end of a round, and waits for its next turn."""

    def __init__(self) -> None:
        given = os.environ.pop(TURNS, "")  # not for the contender's own processes
        self.pipes = [int(pipe) for pipe in given.split(",")] if given else []
        for pipe in self.pipes:
            os.set_inheritable(pipe, False)

    def over(self, **facts: float) -> None:
        """Report the end of a round and wait for the next turn."""
        if self.pipes:
            os.write(self.pipes[1], json.dumps(facts).encode() + b"\n")
            if not os.read(self.pipes[0], 1):
                os._exit(1)  # whoever said when is gone


class Meter:
    """Laps of a contender: call start before the first round, lap after each, report at the end."""

    def __init__(self) -> None:
        # Daemons a framework starts would otherwise be adopted by init and escape the count.
        ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)
        self.turns = Turns()
        self.born = time.perf_counter()
        self.laps: list[dict[str, float]] = []
        self.peak = 0.0
        self.sampled = 0.0
        if not self.turns.pipes:  # else it would work while others are timed
            threading.Thread(target=self._watch_memory, daemon=True).start()

    def start(self) -> None:
        """The first round begins now, or when it is this contender's turn."""
        self.started = time.perf_counter()
        self.turns.over()
        self._begin()

    def _begin(self) -> None:
        self.cpu_before = self._cpu()
        self.began = time.perf_counter()

    def lap(self, samples: int) -> None:
        """A round over so many training samples ends now, and the next begins."""
        seconds = time.perf_counter() - self.began
        cpu = self._cpu()
        own, machine = cpu[0] - self.cpu_before[0], cpu[1] - self.cpu_before[1]
        foreign = max(0.0, machine - own) / (seconds * (os.cpu_count() or 1))
        self.laps.append(
            {"seconds": seconds, "samples": samples, "cpu_seconds": own, "foreign": foreign}
        )
        if not self.turns.pipes and time.perf_counter() - self.sampled > SAMPLING_SECONDS:
            self._sample_memory()
        self.turns.over(**self.laps[-1])
        self._begin()

    def report(
        self,
        contender: str,
        workload: Workload,
        options: argparse.Namespace,
        accuracy: float,
        packages: tuple[str, ...],
        **extra: float,
    ) -> None:
        """Prints the one line of JSON the runner reads."""
        self._sample_memory()
        print(
            json.dumps(
                {
                    "contender": contender,
                    "variant": options.variant,
                    "workload": workload.name,
                    **{
                        key: [lap[key] for lap in self.laps]
                        for key in ("seconds", "samples", "cpu_seconds", "foreign")
                    },
                    "start_seconds": self.started - self.born,
                    "peak_mb": self.peak,
                    "accuracy": accuracy,
                    "versions": {
                        "python": platform.python_version(),
                        **{name: version(name) for name in packages},
                    },
                    **extra,
                }
            ),
            flush=True,
        )

    def _cpu(self) -> tuple[float, float]:
        own = family(os.getpid())
        return fine_cpu_seconds(own) if self.turns.pipes else cpu_seconds(own), machine_seconds()

    def _sample_memory(self) -> None:
        self.peak = max(self.peak, memory_mb(family(os.getpid())))
        self.sampled = time.perf_counter()

    def _watch_memory(self) -> None:
        while True:
            if not self.laps or time.perf_counter() - self.sampled > SELDOM_SECONDS:
                self._sample_memory()
            time.sleep(SAMPLING_SECONDS)
