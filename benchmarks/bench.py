"""Runs all contenders side by side, in random order, several times, and writes variants.json and
VARIANTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from environments import PEERS, Unavailable, last_line, python_of
from measure import machine_seconds
from render import NOT_PEERS, render
from workloads import WORKLOADS

HERE = Path(__file__).parent
CORES = os.cpu_count() or 1
RUN_SECONDS = 1800
TRIES = 4
QUIET_WAIT_SECONDS = 60
# /proc counts CPU time in ticks of 10 ms per core; in a short round a few of them look like foreign
# load.
TICK_ALLOWANCE_SECONDS = 0.05
# Against the fastest of their kind in the first repetition: those behind are not run again.
SLOWEST_LOOP, SLOWEST_PEER = 1.15, 2.2

BOUND_VARIANTS = {
    "W1": ("channels_last", "channels_last_bare", "fused", "foreach", "bare"),
    "W2": ("fused", "foreach", "bare", "stacked_2", "stacked_5", "stacked_10"),
    "W3": (
        "channels_last",
        "channels_last_bare",
        "fused",
        "foreach",
        "bare",
        "stacked_5",
        "stacked_25",
    ),
    **dict.fromkeys(("W4", "W5", "W5p", "W6", "W6e"), ("fused", "foreach", "bare")),
}
FLOOR_VARIANTS = {
    **dict.fromkeys(("W1", "W3"), "channels_last_by_hand"),
    **dict.fromkeys(("W2", "W5", "W5p", "W6", "W6e"), "by_hand"),
}

Result = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A contender in one of its variants (an empty name where it has one only)."""

    contender: str
    variant: str = ""


def entries(workload: str, contenders: list[str]) -> list[Entry]:
    """Return the contenders in a workload; no peer has FedAKD."""
    all_entries = [
        Entry("ours"),
        *(Entry("bound", variant) for variant in BOUND_VARIANTS[workload]),
    ]
    if WORKLOADS[workload].method == "fedavg":
        all_entries += [Entry("floor", FLOOR_VARIANTS[workload])]
        all_entries += [
            Entry("pfl", "processes"),
            Entry("pfl", "threads"),
            Entry("flower"),
            Entry("fedlab"),
        ]
    return [entry for entry in all_entries if entry.contender in contenders]


def command(entry: Entry) -> list[str]:
    """The interpreter and script of a contender."""
    peer = PEERS / entry.contender / "run.py"
    if peer.is_file():
        return [python_of(entry.contender), str(peer)]
    script = HERE / f"{'bound' if entry.contender == 'floor' else entry.contender}.py"
    if not script.is_file():
        raise Unavailable(f"{script.name} does not exist")
    return [sys.executable, str(script)]


def run(entry: Entry, workload: str, rounds: int, seed: int) -> Result:
    """One run of a contender in processes of its own."""
    line = [*command(entry), workload, "--rounds", str(rounds), "--seed", str(seed)]
    line += ["--variant", entry.variant] if entry.variant else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]),
    }
    environment.pop("OMP_NUM_THREADS", None)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            line,
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"took more than {RUN_SECONDS} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    reports = [text for text in output.splitlines() if text.startswith('{"contender"')]
    if process.returncode or not reports:
        raise Unavailable(f"ended with code {process.returncode}: {last_line(errors)}")
    result: Result = json.loads(reports[-1]) | {"contender": entry.contender}
    return result


def quiet_rounds(result: Result, limit: float) -> list[int]:
    """The rounds that count: not the first, which warms up, and none in which others used the
    machine.

    >>> quiet_rounds({"seconds": [9.0, 1.0, 1.0], "foreign": [0.0, 0.0, 0.9]}, limit=0.05)
    [1]
    """
    shares = list(zip(result["seconds"], result["foreign"], strict=True))
    first = min(1, len(shares) - 1)
    return [
        i
        for i in range(first, len(shares))
        if shares[i][1] <= limit + TICK_ALLOWANCE_SECONDS / (shares[i][0] * CORES)
    ]


def undisturbed_run(entry: Entry, workload: str, rounds: int, seed: int, limit: float) -> Result:
    """Repeats a run while at least half of its rounds were disturbed.

    Keeps the quietest if none was quiet enough.
    """
    tried = []
    for attempt in range(TRIES):
        wait_for_quiet(limit)
        result = run(entry, workload, rounds, seed)
        quiet = quiet_rounds(result, limit)
        timed = list(range(min(1, rounds - 1), rounds))
        result["disturbed"] = 2 * len(quiet) <= len(timed)
        kept = timed if result["disturbed"] else quiet
        result |= {
            key: [result[key][i] for i in kept]
            for key in ("seconds", "samples", "cpu_seconds", "foreign")
        }
        result["median_seconds"] = statistics.median(result["seconds"])
        result["attempts"] = attempt + 1
        tried.append(result)
        if not result["disturbed"]:
            return result
    return min(tried, key=lambda result: statistics.mean(result["foreign"]))


def wait_for_quiet(limit: float) -> None:
    """Waits, for a bounded time, until a second passes in which the machine has little to do."""
    for _ in range(QUIET_WAIT_SECONDS):
        before = machine_seconds()
        time.sleep(1)
        if (machine_seconds() - before) / CORES <= limit + TICK_ALLOWANCE_SECONDS / CORES:
            return


def compete(workload: str, options: argparse.Namespace) -> Result:
    """All repetitions of one workload."""
    rounds = options.rounds or WORKLOADS[workload].rounds
    active = entries(workload, options.contenders)
    results: dict[Entry, list[Result]] = {entry: [] for entry in active}
    skipped: dict[str, str] = {}
    shuffler = random.Random(options.seed)
    for repetition in range(options.repetitions):
        shuffler.shuffle(active)
        for entry in list(active):
            try:
                result = undisturbed_run(entry, workload, rounds, options.seed, options.limit)
            except Unavailable as reason:
                skipped[f"{entry.contender} {entry.variant}".strip()] = str(reason)
                active.remove(entry)
                results.pop(entry)
                print(
                    f"{workload} {entry.contender} {entry.variant}: skipped, {reason}", flush=True
                )
                continue
            results[entry].append(result)
            state = (
                f"{result['median_seconds']:.3f} s, {result['peak_mb']:.0f} MB, accuracy "
                f"{result['accuracy']:.3f}"
            )
            mark = " (disturbed)" if result["disturbed"] else ""
            print(
                f"{workload} {repetition + 1}/{options.repetitions} {entry.contender} "
                f"{entry.variant}: {state}{mark}",
                flush=True,
            )
        if repetition == 0:
            active = [entry for entry in active if worth_repeating(entry, results)]
    return {
        "date": date.today().isoformat(),
        "machine": machine(),
        "repetitions": options.repetitions,
        "rounds": rounds,
        "skipped": skipped,
        "runs": [
            result
            for repeated in results.values()
            if len(repeated) == options.repetitions
            for result in repeated
        ],
        "dropped": [
            repeated[0] for repeated in results.values() if 0 < len(repeated) < options.repetitions
        ],
    }


def worth_repeating(entry: Entry, results: dict[Entry, list[Result]]) -> bool:
    """Return True if the first repetition was near the fastest of its kind, or disturbed."""
    first, kind = results[entry][0], kind_of(entry)
    fastest = min(
        repeated[0]["median_seconds"]
        for other, repeated in results.items()
        if kind_of(other) == kind
    )
    limit = SLOWEST_LOOP if kind == "bound" else SLOWEST_PEER
    return bool(first["disturbed"] or first["median_seconds"] <= limit * fastest)


def kind_of(entry: Entry) -> str:
    """Return the kind of a result."""
    return entry.contender if entry.contender in NOT_PEERS else "peer"


def machine() -> str:
    """Processor, cores and memory in one line."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{models[0] if models else 'unknown processor'}, {CORES} cores, {gigabytes:.0f} GiB, "
        f"{os.uname().sysname} {os.uname().release}"
    )


def main() -> None:
    """Runs what the command line asks for; workloads not run keep their earlier results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=[
            "ours",
            "bound",
            "floor",
            *sorted(path.parent.name for path in PEERS.glob("*/run.py")),
        ],
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--rounds", type=int, help="rounds of every run; by default each workload's own number"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit",
        type=float,
        default=0.05,
        help="share of the machine that others may use in a round that counts",
    )
    parser.add_argument(
        "--output", type=Path, default=HERE, help="folder of variants.json and VARIANTS.md"
    )
    options = parser.parse_args()
    # A runner that receives a signal to end also ends its contender.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    file = options.output / "variants.json"
    everything = json.loads(file.read_text()) if file.is_file() else {}
    for workload in options.workloads:
        everything[workload] = compete(workload, options)
        file.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")
        (options.output / "VARIANTS.md").write_text(render(everything))


if __name__ == "__main__":
    main()
