"""Costs of a run besides its rounds; writes COSTS.md.

These are memory by number of clients, time until the first client trains, and time of `--help`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

from bench import machine
from workloads import WORKLOADS

HERE = Path(__file__).parent
REPETITIONS = 5
ROUNDS = 4
EXPERIMENT = """
data: {name: fashion_mnist, partition: "dirichlet:0.5", clients: 10}
model: lenet
method: fedavg
rounds: 1
"""


def first_client() -> None:
    """`equipoise run` on Fashion-MNIST in this process.

    Prints the seconds from its start to the first client's training.
    """
    from equipoise.cli import main
    from equipoise.runtime import wire

    decode, began = wire.reply_of, float(os.environ["BEGAN"])

    def reply_of(message):
        reply = decode(message)
        if reply.steps:
            print(json.dumps(time.time() - reply.seconds - began), flush=True)
            os._exit(0)
        return reply

    wire.reply_of = reply_of
    Path("experiment.yaml").write_text(EXPERIMENT)
    sys.argv = ["equipoise", "run", "experiment.yaml"]
    main()


def memory(clients: int) -> None:
    """FedAvg on 60,000 images split among so many clients, 50 of them in a round."""
    from ours import simulate

    workload = replace(WORKLOADS["W3"], clients=clients)
    simulate(workload, argparse.Namespace(rounds=ROUNDS, seed=0, variant="workers"))


def child(*words: str) -> str:
    """Runs this script for one measurement, in a folder of its own.

    Returns the last line it prints.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]),
            "BEGAN": str(time.time()),
        }
        done = subprocess.run(
            [sys.executable, str(HERE / "costs.py"), *words],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
    if done.returncode or not done.stdout.strip():
        raise SystemExit(
            f"costs.py {' '.join(words)} ended with code {done.returncode}:\n{done.stderr}"
        )
    return done.stdout.strip().splitlines()[-1]


def help_seconds() -> float:
    """From the start of `equipoise --help` to its end."""
    began = time.perf_counter()
    subprocess.run(
        [str(Path(sys.executable).parent / "equipoise"), "--help"], capture_output=True, check=True
    )
    return time.perf_counter() - began


def main() -> None:
    """All measurements, and the file."""
    starts = [float(child("first_client")) for _ in range(REPETITIONS)]
    helps = [help_seconds() for _ in range(REPETITIONS)]
    peaks = {
        clients: json.loads(child("memory", str(clients)))["peak_mb"] for clients in (100, 10_000)
    }
    lines = [
        "# What a run costs besides its rounds",
        "",
        f"Measured by `python benchmarks/costs.py`, {date.today().isoformat()}, {machine()}. "
        "Start-up on Fashion-MNIST from its downloaded file.",
        "",
        "| | median | slowest | asked |",
        "|---|---|---|---|",
        f"| `equipoise run` until the first client trains, s ({REPETITIONS} times) | "
        f"{statistics.median(starts):.2f} | {max(starts):.2f} | under 4 |",
        f"| `equipoise --help`, s ({REPETITIONS} times) | {statistics.median(helps):.2f} | "
        f"{max(helps):.2f} | under 0.5 |",
        "",
        f"Peak memory of FedAvg on 60,000 images (W3's network, 50 clients in a round, {ROUNDS} "
        f"rounds), all processes: {peaks[100]:,.0f} MB with 100 clients, {peaks[10_000]:,.0f} MB "
        f"with 10,000: {peaks[10_000] / peaks[100]:.2f} times (asked: at most 1.3).",
    ]
    (HERE / "COSTS.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["first_client"]:
        first_client()
    elif sys.argv[1:2] == ["memory"]:
        memory(int(sys.argv[2]))
    else:
        argparse.ArgumentParser(description=__doc__).parse_args()
        main()
