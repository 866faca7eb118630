"""Two versions of Equipoise side by side: what a round costs in this tree, against another tree of
it.

    git worktree add /tmp/before 96475bd
    python benchmarks/engine.py /tmp/before --workloads W2 W3 --repetitions 7

Each version runs its own `ours.py` in processes of its own; which of the two goes first alternates.
Printed are medians over the repetitions of the mean CPU and the median wall seconds of a round (the
first, which warms up, apart), and the median of the ratios within repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import last_line
from workloads import WORKLOADS

HERE = Path(__file__).parent.parent
RUN_SECONDS = 600


def costs(tree: Path, workload: str, rounds: int, seed: int) -> dict[str, float]:
    """CPU and wall seconds of the median round, and the peak of memory, of one run."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree / "benchmarks"), str(tree / "src")]),
    }
    environment.pop("OMP_NUM_THREADS", None)
    line = [
        sys.executable,
        str(tree / "benchmarks" / "ours.py"),
        workload,
        "--rounds",
        str(rounds),
        "--seed",
        str(seed),
    ]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            line, env=environment, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS
        )
    reports = [text for text in done.stdout.splitlines() if text.startswith('{"contender"')]
    if done.returncode or not reports:
        raise SystemExit(f"{tree} ended with code {done.returncode}: {last_line(done.stderr)}")
    found = json.loads(reports[-1])
    return {
        # counted in ticks of 10 ms: a median would be as coarse
        "CPU s per round": statistics.mean(found["cpu_seconds"][1:]),
        "wall s per round": statistics.median(found["seconds"][1:]),
        "peak MB": found["peak_mb"],
    }


def main() -> None:
    """Measure the engine and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="a tree of the version to compare with")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["W2", "W3"])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--rounds", type=int, help="default: those of the workload")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trees = {"before": options.before.absolute(), "now": HERE}
    for workload in options.workloads:
        rounds = options.rounds or WORKLOADS[workload].rounds
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for repetition in range(options.repetitions):
            for name in sorted(trees, reverse=bool(repetition % 2)):
                found[name].append(costs(trees[name], workload, rounds, options.seed))
        for what in found["now"][0]:
            values = {name: [one[what] for one in runs] for name, runs in found.items()}
            ratio = statistics.median(
                now / before for now, before in zip(values["now"], values["before"], strict=True)
            )
            before, now = (statistics.median(values[name]) for name in ("before", "now"))
            print(
                f"{workload} {what}: before {before:.4g}, now {now:.4g}, median of ratios "
                f"{ratio:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
