"""A Ray cluster against worker processes: the same runs, alternating, in one process.

    python benchmarks/cluster.py                            # two nodes of one core each
    python benchmarks/cluster.py --address 10.0.0.5:6379    # a cluster that runs

The first starts its nodes on 127.0.0.1 and compares with --workers 2, the second compares with one
worker per core of this machine.

Prints a section for RESULTS.md. Linux only: CPU time and memory are read from /proc. CPU of other
machines is not counted.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.simulate import run
from equipoise.transports.ray import nodes
from hearing import Hearing
from measure import cpu_seconds, family, memory_mb
from ours import NETWORKS, dataset
from workloads import WORKLOADS, Workload, load, partition

SMALL = {"name": "mlp", "hidden": [64]}  # 0.2 MB
# 100 clients in every round, one step each: the cost of a client in addition to its training.
STEP = Workload("step", "one step of 100 clients", "mlp", 100, 100, 2_000, 20, 1, 0.1, rounds=8)
PORT = 26399
RESULTS = Path(__file__).with_name("RESULTS.md")


def experiment(
    workload: Workload, images, rounds: int, workers: int | None, model=None
) -> eq.Experiment:
    """Return the experiment of a workload."""
    return eq.Experiment(
        data={
            "partition": "natural",
            "split": (1.0, 0.0, 0.0),
            "test": "global",
            "duplicates": "separate",
        },
        dataset=dataset(images, partition(workload, images.y, 0)),
        model=model or NETWORKS[workload.network],
        method=workload.method,
        training={"lr": workload.rate, "batch": workload.batch, "epochs": workload.epochs},
        participation={"number": workload.cohort},
        evaluation={"every": 0, "clients": "cohort", "splits": (), "metrics": ("accuracy",)},
        rounds=rounds,
        seed=0,
        workers=workers,
    )


def measured(job: eq.Experiment, address: str | None, here: list[nodes.Node]) -> dict[str, float]:
    """Return the medians of a run's rounds: seconds, CPU seconds, and the time to the first round.

    The first round, and the last, which evaluates, are left out.
    """
    ends: list[float] = []  # of a round, and when the next began: looking takes time, too
    begins: list[float] = []
    cpu: list[float] = []  # at the end of a round, and when the next began
    cpu_begins: list[float] = []
    memory: list[float] = []

    def mark(*_: object) -> None:
        ends.append(time.perf_counter())
        # Nodes that this process started are its family, too: each counts once.
        pids = list(
            dict.fromkeys(
                family(os.getpid()) + [pid for node in here if address for pid in session(node)]
            )
        )
        cpu.append(cpu_seconds(pids))
        if len(ends) == 4:
            performing = (
                [pid for pid in pids if "ray::Actor" in command(pid)] if address else pids[1:]
            )
            memory.extend(
                [
                    memory_mb(pids[:1]),
                    statistics.median([memory_mb([pid]) for pid in performing] or [0.0]),
                ]
            )
        cpu_begins.append(cpu_seconds(pids))
        begins.append(time.perf_counter())

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run(job, Path(folder) / "run", Hearing(on_start=mark, on_round=mark), cluster=address)
    rounds = range(2, len(ends) - 1)
    return {
        "start": ends[0] - began,
        "seconds": statistics.median(ends[number] - begins[number - 1] for number in rounds),
        "cpu": statistics.mean(cpu[number] - cpu_begins[number - 1] for number in rounds),
        "driver": memory[0],
        "performing": memory[1],
    }


def session(node: nodes.Node) -> list[int]:
    """Return the ids of all processes of a node."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == node.pid
            ):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def command(pid: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@dataclass
class Cluster:
    """The cluster under test.

    Attributes:
        address: Its address.
        description: A phrase for the report.
        workers: The number of worker processes to compare with; None takes the default.
        nodes: The nodes that were started here.
        started: A sentence about the start of these nodes.
    """

    address: str
    description: str
    workers: int | None = None
    nodes: list[nodes.Node] = field(default_factory=list)
    started: str = ""


@dataclass
class Comparison:
    """Measurements of one workload with worker processes and on the cluster."""

    name: str
    cohort: int
    workers: list[dict[str, float]] = field(default_factory=list)
    cluster: list[dict[str, float]] = field(default_factory=list)

    def more(self, key: str) -> float:
        """Return the median difference between cluster and worker processes."""
        pairs = zip(self.workers, self.cluster, strict=True)
        return statistics.median(theirs[key] - own[key] for own, theirs in pairs)

    def row(self) -> str:
        """Return the row of the table."""
        pairs = zip(self.workers, self.cluster, strict=True)
        ratio = statistics.median(theirs["seconds"] / own["seconds"] for own, theirs in pairs)
        cells = [
            self.name,
            f"{statistics.median(one['seconds'] for one in self.workers):.3f}",
            f"{statistics.median(one['seconds'] for one in self.cluster):.3f}",
            f"{ratio:.2f}",
            f"{1000 * self.more('seconds') / self.cohort:.2f}",
            f"{1000 * self.more('cpu') / self.cohort:.2f}",
            f"{self.more('driver'):.0f}",
            f"{self.more('performing'):.0f}",
        ]
        return "| " + " | ".join(cells) + " |"


def parsed_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--address",
        help="of a running cluster; default: two nodes of one core each, started here",
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="also write the section to RESULTS.md")
    parser.add_argument("--workloads", nargs="*", default=["W2", "W3", "step", "state", "W4"])
    return parser.parse_args()


def opened(address: str | None, stack: ExitStack) -> Cluster:
    """Return the cluster at an address, or start a head and two nodes here."""
    if address is not None:
        return Cluster(address, f"the cluster at {address}")
    os.environ["XDG_STATE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
    began = time.perf_counter()
    head = nodes.start(port=PORT, cores=0, store=600)
    stack.callback(nodes.stop)
    token = Path(head.token)
    others = [nodes.start(head.cluster, token=token, cores=1, store=600) for _ in range(2)]
    seconds = time.perf_counter() - began
    return Cluster(
        head.cluster,
        "2 nodes of 1 core each on this machine",
        2,
        [head, *others],
        f"a cluster of a head and two nodes ready in {seconds:.1f} s",
    )


def named_workload(name: str) -> tuple[Workload, int]:
    """Return a workload and its number of rounds."""
    known = {**WORKLOADS, "step": STEP, "state": replace(STEP, name="state", method="scaffold")}
    workload = known[name]
    return workload, {"W2": 12, "W3": 8, "W4": 6}.get(name, workload.rounds)


def compared(name: str, images: Any, cluster: Cluster, repetitions: int) -> Comparison:
    """Measure a workload with worker processes and on the cluster, in turns."""
    workload, rounds = named_workload(name)
    model = SMALL if name in ("step", "state") else None
    comparison = Comparison(name, workload.cohort)
    for _ in range(repetitions):
        for address, results in (
            (None, comparison.workers),
            (cluster.address, comparison.cluster),
        ):
            job = experiment(workload, images, rounds, cluster.workers, model)
            results.append(measured(job, address, cluster.nodes))
    return comparison


def memory_of_many_clients(images: Any, cluster: Cluster) -> str:
    """Measure W4, whose 10,000 clients keep a model each."""
    workload, rounds = named_workload("W4")
    result = measured(experiment(workload, images, rounds, None), cluster.address, cluster.nodes)
    return (
        f"W4, 10,000 clients that keep a model: {result['driver']:.0f} MB of the driver (PSS), "
        f"{result['seconds']:.2f} s a round"
    )


def section(
    cluster: Cluster,
    comparisons: list[Comparison],
    notes: list[str],
    load_before: float,
    count: int,
) -> list[str]:
    """Return the lines of the report."""
    beside = f" ({cluster.workers})" if cluster.workers else ""
    lines = [
        f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, load {load_before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after; {cluster.description} against worker processes{beside}, "
        f"alternating, medians of {count}.\n",
        "| workload | workers s/round | cluster s/round | ratio | more wall ms per client "
        "| more CPU ms per client | driver MB more | each actor MB more |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [comparison.row() for comparison in comparisons]
    starts = [one["start"] for comparison in comparisons for one in comparison.cluster]
    remarks = [cluster.started]
    if starts:
        remarks.append(
            "from the call of `run` to its first round, data prepared and actors ready: "
            f"{statistics.median(starts):.1f} s"
        )
    remarks += notes
    return [*lines, "", *(f"- {remark}" for remark in remarks if remark)]


def main() -> None:
    """Measure the workloads, print the section, and write it on request."""
    options = parsed_options()
    logging.disable(logging.WARNING)
    images = load(WORKLOADS["W2"])
    with ExitStack() as stack:
        cluster = opened(options.address, stack)
        load_before = os.getloadavg()[0]
        comparisons: list[Comparison] = []
        notes: list[str] = []
        for name in options.workloads:
            if name == "W4":
                notes.append(memory_of_many_clients(images, cluster))
            else:
                comparisons.append(compared(name, images, cluster, options.repetitions))
        lines = section(cluster, comparisons, notes, load_before, options.repetitions)
    print("\n".join(["## Cluster", "", *lines]))
    if options.write:
        before = RESULTS.read_text().partition("\n## Cluster\n")[0]
        RESULTS.write_text("\n".join([before.rstrip("\n"), "", "## Cluster", "", *lines, ""]))


if __name__ == "__main__":
    main()
