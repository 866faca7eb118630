"""Contenders that live at once and take turns, round by round: what a difference of a few percent
can rest on. Writes RESULTS.md.

    python benchmarks/paired.py            # W1, W2, W3 with all contenders
    python benchmarks/paired.py --quick    # W2 and W3 against the bound; prints, and writes nothing
    python benchmarks/paired.py --quick --before /tmp/before    # and against another tree

`git worktree add /tmp/before COMMIT` creates the other tree.

On virtual machines a fixed loop on an idle core varies by 1.7 times for seconds at a time, so that
runs that follow each other cannot be compared finely. Here every contender plays the same round,
one right after another in random order, each stopped with all its processes while another plays; a
ratio is of the same round of two contenders. An identical copy of ours takes part as a control:
what its ratio strays from 1 is noise, and no ratio within that is called a difference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np

from bench import FLOOR_VARIANTS, HERE, Entry, command, machine
from environments import Unavailable, last_line
from measure import TURNS, family
from workloads import WORKLOADS

CONTROL, BEFORE = "control", "before"
# The fastest of the bound's loops in the last whole benchmark (bench.py); all contenders at once
# leave no time for the others.
BOUND_VARIANTS = {
    "W1": "channels_last",
    "W2": "bare",
    "W3": "channels_last",
    "W5": "fused",
    "W5p": "fused",
    "W6": "fused",
    "W6e": "fused",
}
START_SECONDS, ROUND_SECONDS = 300.0, 120.0
WARM_UP = 2
RESAMPLED, SURE = 4000, 0.95

Lap = dict[str, float]


class Player:
    """A contender in processes of its own that executes a round on demand."""

    def __init__(
        self, name: str, line: list[str], environment: dict[str, str], folder: Path
    ) -> None:
        self.name = name
        turns, tell = os.pipe()
        hear, say = os.pipe()
        self.tell, self.hear, self.heard = tell, hear, b""
        self.errors = (folder / f"{name}.txt").open("w+")
        self.process = subprocess.Popen(
            line,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
            pass_fds=(turns, say),
            env={**environment, TURNS: f"{turns},{say}"},
        )
        os.close(turns)
        os.close(say)

    def wait(self, seconds: float) -> Lap:
        """Its message at the end of a round."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.heard:
            ready, _, _ = select.select([self.hear], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self.hear, 4096) if ready else b""
            if not more:
                why = (
                    f"did not end a round within {seconds:.0f} s"
                    if not ready
                    else f"ended: {self.last_words()}"
                )
                raise Unavailable(why)
            self.heard += more
        line, _, self.heard = self.heard.partition(b"\n")
        found: Lap = json.loads(line)
        return found

    def play(self, seconds: float) -> Lap:
        """Do one round within a time limit."""
        self.hold(signal.SIGCONT)
        os.write(self.tell, b".")
        found = self.wait(seconds)
        self.hold(signal.SIGSTOP)
        return found

    def hold(self, how: signal.Signals) -> None:
        """Stop all its processes, or let them continue: one that only waits at the end of a round
        may have others that begin with the next.
        """
        for pid in family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def last_words(self) -> str:
        """Return the last line of the player's errors."""
        self.errors.seek(0)
        return last_line(self.errors.read())

    def close(self) -> None:
        """End it with all its processes; its group first, and what it adopted by closing the pipes
        it waits on.
        """
        self.hold(signal.SIGCONT)
        os.close(self.tell)
        os.close(self.hear)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()


@dataclass
class Found:
    """The results of one workload."""

    workload: str
    # contender -> one lap per round that counts
    laps: dict[str, list[Lap]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def line_of(
    name: str, workload: str, rounds: int, before: Path | None
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of a contender."""
    rest = [workload, "--rounds", str(rounds), "--seed", "0"]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if name == BEFORE:  # its own code and its own way to run it, with the measuring of this tree
        path = os.pathsep.join([str(HERE), f"{before}/src"])
        return [sys.executable, "-P", f"{before}/benchmarks/ours.py", *rest], {
            **environment,
            "PYTHONPATH": path,
        }
    variants = {
        "bound": BOUND_VARIANTS[workload],
        "floor": FLOOR_VARIANTS[workload],
        "pfl": "processes",
    }
    entry = Entry("ours" if name == CONTROL else name, variants.get(name, ""))
    chosen = ["--variant", entry.variant] if entry.variant else []
    return [*command(entry), *rest, *chosen], {
        **environment,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]),
    }


def compete(
    workload: str, names: Sequence[str], counted: int, before: Path | None = None, seed: int = 0
) -> Found:
    """All rounds of one workload.

    The first warm up, and the last is left out: in it some evaluate.
    """
    found, rounds, order = Found(workload), WARM_UP + counted + 1, random.Random(seed)
    active: dict[str, Player] = {}

    def without(name: str, reason: Unavailable) -> None:
        found.skipped[name] = str(reason)
        found.laps.pop(name, None)
        active.pop(name, None)
        print(f"{workload} {name}: left out, {reason}", flush=True)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for name in (*names, *([BEFORE] if before is not None else [])):
            try:
                player = Player(name, *line_of(name, workload, rounds, before), Path(folder))
                stack.callback(player.close)
                player.wait(START_SECONDS)
                player.hold(signal.SIGSTOP)
                active[name], found.laps[name] = player, []
            except Unavailable as reason:
                without(name, reason)
        for number in range(rounds):
            for name in order.sample(sorted(active), len(active)):
                try:
                    lap = active[name].play(ROUND_SECONDS)
                except Unavailable as reason:
                    without(name, reason)
                    continue
                if WARM_UP <= number < rounds - 1:
                    found.laps[name].append(lap)
            print(
                f"{workload} round {number + 1} of {rounds}", end="\r", file=sys.stderr, flush=True
            )
    return found


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The median, and the bootstrap's interval for it.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0, 1.0)
    """
    numbers = np.array(values)
    drawn = np.random.default_rng(seed).choice(numbers, (RESAMPLED, len(numbers)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - SURE) / 2, (1 + SURE) / 2])
    return float(np.median(numbers)), float(low), float(high)


def ratios(found: Found, name: str, what: str, to: str = "ours") -> tuple[float, float, float]:
    """Of a contender to another, round by round."""
    return interval(
        [
            one[what] / other[what]
            for one, other in zip(found.laps[name], found.laps[to], strict=True)
        ]
    )


def noise(found: Found, what: str) -> float:
    """The factor that the control's interval reaches, one way or the other; infinite without a
    control.
    """
    if CONTROL not in found.laps:
        return float("inf")
    _, low, high = ratios(found, CONTROL, what)
    return max(high, 1 / low)


def verdict(found: tuple[float, float, float], floor: float) -> str:
    """Return whether a ratio with its interval is more, less, or no difference.

    >>> verdict((1.3, 1.2, 1.4), 1.05), verdict((1.04, 1.01, 1.07), 1.05), verdict((0.8, 0.7, 0.9), 1.05)
    ('more', 'no difference', 'less')
    """
    _, low, high = found
    return "more" if low > floor else "less" if high < 1 / floor else "no difference"


def table(found: Found, counted: int) -> list[str]:
    """Return the table of all pairs."""
    workload, floors = (
        WORKLOADS[found.workload],
        {what: noise(found, what) for what in ("cpu_seconds", "seconds")},
    )
    foreign = statistics.mean(lap["foreign"] for laps in found.laps.values() for lap in laps)
    lines = [
        f"## {found.workload} `{workload.title}`",
        "",
        f"{date.today().isoformat()}, {machine()}; {counted} rounds after {WARM_UP} that warm up; "
        f"others used {foreign:.0%} of the machine on average. Noise floor: "
        f"{floors['cpu_seconds']:.3f} of CPU time, {floors['seconds']:.3f} of wall time.",
        "",
        "| contender | CPU s a round | CPU, of ours | | wall s a round | wall, of ours | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, laps in sorted(
        found.laps.items(),
        key=lambda item: statistics.median(lap["cpu_seconds"] for lap in item[1]),
    ):
        cells = [name]
        for what in ("cpu_seconds", "seconds"):
            ratio = ratios(found, name, what)
            said = "" if name in ("ours", CONTROL) else verdict(ratio, floors[what])
            cells += [
                f"{statistics.median(lap[what] for lap in laps):.3f}",
                f"{ratio[0]:.3f} ({ratio[1]:.3f}-{ratio[2]:.3f})" if name != "ours" else "1",
                said,
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *(f"- left out, {name}: {why}" for name, why in found.skipped.items())]


def render(everything: list[tuple[Found, int]]) -> str:
    """RESULTS.md, but for what others write below."""
    lines = [
        "# Results of the benchmark",
        "",
        "Written by `python benchmarks/paired.py`; `benchmarks/README.md` says what is measured "
        "and how. All contenders live at once; in every round each plays it, one after another "
        "in random order, the others held still. A ratio is the median over rounds of a "
        f"contender's time over ours in the same round, with the bootstrap's {SURE:.0%} interval. "
        f"`{CONTROL}` is an identical copy of ours: how far its interval reaches from 1 is the "
        "noise floor, and a ratio whose interval reaches into it is no difference. CPU time is "
        "that of all a contender's processes, as the scheduler counts it.",
    ]
    for found, counted in everything:
        lines += ["", *table(found, counted)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Runs what the command line asks for."""
    contenders = ["ours", CONTROL, "bound", "floor", "pfl", "flower", "fedlab"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=list(BOUND_VARIANTS),
        help="default: all, or W2 and W3 with --quick",
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=contenders,
        help=f"beside ours and {CONTROL}; default: all, or bound with --quick",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds that count; default: 60 (W1: 3), or 40 with --quick"
    )
    parser.add_argument(
        "--before",
        type=Path,
        help="a tree of another version of Equipoise, which takes part as `before`",
    )
    parser.add_argument(
        "--quick", action="store_true", help="W2 and W3 beside the bound, printed and not written"
    )
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 2:
        parser.error(f"--rounds: expected at least 2, got {options.rounds}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    asked = options.contenders or (["bound"] if options.quick else contenders)
    names = ["ours", CONTROL, *(name for name in asked if name not in ("ours", CONTROL))]
    everything: list[tuple[Found, int]] = []
    for workload in options.workloads or (["W2", "W3"] if options.quick else list(BOUND_VARIANTS)):
        counted = options.rounds or (40 if options.quick else 3 if workload == "W1" else 60)
        found = compete(
            workload, names, counted, options.before.absolute() if options.before else None
        )
        if "ours" not in found.laps:
            raise SystemExit(f"ours did not run: {found.skipped['ours']}")
        everything.append((found, counted))
        print("\n".join(table(found, counted)), flush=True)
        if not options.quick:
            _, title, cluster = (
                options.output.read_text().partition("\n## Cluster\n")
                if options.output.is_file()
                else ("", "", "")
            )
            options.output.write_text(render(everything) + title + cluster)  # cluster.py wrote it


if __name__ == "__main__":
    main()
