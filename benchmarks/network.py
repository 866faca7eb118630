"""Measure a real network of NVIDIA FLARE on this machine: three sites, a server, a scientist.

    python benchmarks/network.py                # about five minutes on two idle cores
    python benchmarks/network.py --minutes 10   # also the number of threads after ten minutes

Prints a section for RESULTS.md. Linux only: memory and threads are read from /proc.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.transports.nvflare.jobs import Desk, open_desk
from equipoise.transports.nvflare.processes import MARK
from equipoise.transports.nvflare.scientist import submit, watch_until_end
from tests.network.consortium import build
from tests.network.hospitals import give_data, small_tables

SITES = ("north", "south", "west")
LARGE = [5_000, 5_000]  # widths of a network of 100 MB
# Parts of the command lines of FLARE's job processes and of a site's child.
ROLES = {
    "server job": "nvflare.private.fed.app.server.runner_process",
    "site job": "nvflare.private.fed.app.client.worker_process",
    "child": "equipoise.site.child",
}


@dataclass
class Peaks:
    """Memory in MB and threads of the processes of a network, the largest per role."""

    peak: dict[str, float] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Read /proc."""
        for role, values in processes():
            memory = float(values["VmHWM"].split()[0]) / 1024
            self.peak[role] = max(self.peak.get(role, 0.0), memory)
            self.threads[role] = max(self.threads.get(role, 0), int(values["Threads"]))


def processes() -> list[tuple[str, dict[str, str]]]:
    """Return role and status of each process of a network on this machine."""
    result = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            role = next((role for role, part in ROLES.items() if part in command), None)
            if role is None or f"{MARK}=".encode() not in (folder / "environ").read_bytes():
                continue
            lines = (folder / "status").read_text().splitlines()
            result.append((role, dict(line.split(":", 1) for line in lines if ":" in line)))
        except (OSError, ValueError):  # it has just ended
            continue
    return result


def measured(
    desk: Desk, config: Mapping[str, Any], folder: Path, sites: tuple[str, ...]
) -> tuple[Run, float, Peaks]:
    """Run an experiment; return it with the seconds to its first exchange, and its peaks."""
    peaks = Peaks()
    began = time.monotonic()
    first: list[float] = []

    def show(progress: Mapping[str, Any]) -> None:
        peaks.look()
        if progress.get("status") == "running" and not first:
            first.append(time.monotonic() - began)

    run = submit(desk, experiment(config), folder, sites)
    outcome = watch_until_end(desk, run, show)
    assert outcome.status == "finished", outcome
    return Run(folder), first[0] if first else float("nan"), peaks


def wall_seconds(run: Run, skip: int = 1) -> list[float]:
    """Return the seconds of each round but the first ones."""
    return [sum(record["seconds"].values()) for record in run.rounds()[skip:]]


def tiny(data: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return an experiment with two exchanges per round: training and evaluation."""
    return {"data": dict(data), "method": "fedavg", "rounds": rounds}


def large(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment in which a model of 100 MB travels there and back."""
    return {
        "data": dict(data),
        "method": "fedavg",
        "model": {"name": "mlp", "hidden": LARGE},
        "training": {"batch": 64},
        "evaluation": {"every": 0, "splits": []},
        "rounds": 3,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0.0, help="length of the run for threads")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="equipoise-network-") as temporary:
        folder = Path(temporary)
        data = small_tables(folder / "tables", SITES)
        began = time.monotonic()
        consortium = build(folder / "parties", SITES)
        built = time.monotonic() - began
        give_data(consortium, folder / "tables")
        with consortium.running(), open_desk(consortium.lead) as desk:
            figures(desk, data, folder, arguments.minutes, built, time.monotonic() - began)


def figures(
    desk: Desk, data: Mapping[str, Any], folder: Path, minutes: float, built: float, up: float
) -> None:
    """Run the workloads and print the section."""
    now = datetime.now(UTC).date()
    print(
        f"### A network of three sites ({now}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f})\n"
    )
    print(f"- keys and kits of six parties: {built:.0f} s; all of them running: {up:.0f} s")
    run, first, idle = measured(desk, tiny(data, 20), folder / "tiny", SITES)
    seconds = wall_seconds(run)
    print(f"- first exchange after submission: {first:.0f} s")
    print(
        f"- round of two exchanges of a tiny model: median {statistics.median(seconds):.2f} s, "
        f"{min(seconds):.2f} to {max(seconds):.2f}"
    )
    for sites in (SITES[:1], SITES):
        run, _, peaks = measured(desk, large(data), folder / f"large{len(sites)}", sites)
        exchange = [
            record["seconds"]["clients"] + record["seconds"]["transport"]
            for record in run.rounds()[1:]
        ]
        training = [max(row["seconds"] for row in run.client_seconds())]
        print(
            f"- 100 MB there and back, {len(sites)} site(s): {statistics.median(exchange):.1f} s, "
            f"of which training {training[0]:.1f} s"
        )
        payload = 4 * (sum(LARGE) + LARGE[0] * LARGE[1]) / 2**20
        for role, peak in peaks.peak.items():
            above = (peak - idle.peak[role]) / payload
            print(f"  - peak of {role}: {above:.1f} payloads above {idle.peak[role]:.0f} MB")
    if minutes:
        rounds = int(minutes * 60 / statistics.median(seconds))
        _, _, peaks = measured(desk, tiny(data, rounds), folder / "long", SITES)
        print(f"- most threads in {minutes:g} minutes: {peaks.threads}")


if __name__ == "__main__":
    main()
