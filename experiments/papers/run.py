"""Run the tables that docs/papers shows, one after another, until the time is used.

    python experiments/papers/run.py --hours 5       # the same command continues
    python experiments/papers/run.py --list          # what is left

Finished runs are written to `results` next to each study. All studies share one folder of runs, so
that a run which stands in two tables is computed once. The data sets must be available
(EQUIPOISE_DATA). Afterwards `python experiments/papers/pages.py` writes the pages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from equipoise.study.definition import PAPER, load_study
from equipoise.study.plan import plan_study
from equipoise.study.records import read_records
from equipoise.study.run import known_results, missing_runs, results_path

FOLDER = Path(__file__).parent
ORDER = (
    ("fedekd/retina", PAPER),
    ("fedekd/retina-proxy", PAPER),
    ("fedakd/table4", "small"),
    ("corefed/table1", PAPER),
    ("corefed/ablation", PAPER),
    ("corefed/equations", PAPER),
    ("kdia/table3-7-quick", "small"),
    ("fedequilibria/office-ablation", "small"),
    ("fedequilibria/office-t", "small"),
    ("fedequilibria/office", "small"),
    ("fedequilibria/office-controls", "small"),
    ("fedekd/fashion", "half"),
    ("fedekd/fashion-gating", "half"),
    ("fedakd/table1-fashion", "half"),
    ("corefed/fig4", PAPER),
)
PATIENCE = 60  # seconds in which a study that is told to stop ends


def missing(name: str, scale: str) -> tuple[int, int]:
    """Return how many runs of a study are missing, and how many it has."""
    study = load_study(FOLDER / f"{name}.yaml")
    plan = plan_study(study, study.scale(scale))
    results = results_path(study, scale)
    records = [*read_records(results), *known_results(plan, results)]
    return len(missing_runs(plan, records)), len(plan.runs)


def run(name: str, scale: str, runs: Path, jobs: int, seconds: float) -> None:
    """Run what is missing of a study, for so many seconds at most.

    Args:
        name: The file of the study without its ending.
        scale: The scale.
        runs: The folder of the runs.
        jobs: Runs at a time.
        seconds: The time limit. A run that it cuts continues from its last round.
    """
    command = [sys.executable, "-m", "equipoise", "study", str(FOLDER / f"{name}.yaml")]
    command += ["--scale", scale, "--out", str(runs), "--jobs", str(jobs)]
    process = subprocess.Popen(command)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        # Not SIGINT: a process that a script starts in the background ignores it.
        process.terminate()
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Run the studies, or list them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="time limit")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument(
        "--runs", type=Path, default=Path("comparisons/papers"), help="folder of the runs"
    )
    parser.add_argument("--list", action="store_true", help="print what is left")
    arguments = parser.parse_args()
    end = time.monotonic() + 3600 * arguments.hours
    for name, scale in ORDER:
        left, runs = missing(name, scale)
        print(f"{name} ({scale}): {left} of {runs} runs to do", flush=True)
        seconds = end - time.monotonic()
        if left and seconds > 0 and not arguments.list:
            run(name, scale, arguments.runs / f"{name.partition('/')[0]}", arguments.jobs, seconds)


if __name__ == "__main__":
    main()
