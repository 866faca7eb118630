"""A Ray cluster against worker processes: the same runs, alternating, in one process.

    python benchmarks/cluster.py                          # starts two nodes of one core each on 127.0.0.1, against --workers 2
    python benchmarks/cluster.py --address 10.0.0.5:6379  # a cluster that runs, against one worker per core of this machine

Prints a section for RESULTS.md. Linux only: CPU time and memory are read from /proc. CPU of other machines is not counted.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import equipoise as eq
from equipoise.simulate import run
from equipoise.transports.ray import nodes
from hearing import Hearing
from measure import cpu_seconds, family, memory_mb
from ours import NETWORKS, dataset
from workloads import WORKLOADS, Workload, load, partition

SMALL = {"name": "mlp", "hidden": [64]}  # 0.2 MB
# 100 clients, all of them asked, one step each: what a client costs beside its training.
STEP = Workload("step", "one step of 100 clients", "mlp", 100, 100, 2_000, 20, 1, 0.1, rounds=8)
PORT = 26399
RESULTS = Path(__file__).with_name("RESULTS.md")


def experiment(
    workload: Workload, images, rounds: int, workers: int | None, model=None
) -> eq.Experiment:
    return eq.Experiment(
        data={"partition": "natural", "split": (1.0, 0.0, 0.0), "test": "global", "duplicates": "separate"},
        dataset=dataset(images, partition(workload, images.y, 0)),
        model=model or NETWORKS[workload.network], method=workload.method,
        training={"lr": workload.rate, "batch": workload.batch, "epochs": workload.epochs}, participation={"number": workload.cohort},
        evaluation={"every": 0, "clients": "cohort", "splits": (), "metrics": ("accuracy",)}, rounds=rounds, seed=0, workers=workers,
    )  # fmt: skip


def measured(
    wanted: eq.Experiment, address: str | None, here: list[nodes.Node]
) -> dict[str, float]:
    """Medians of the rounds of a run but the first and the last, which measures: seconds and CPU seconds; and how long it took to begin."""
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
        run(wanted, Path(folder) / "run", Hearing(on_start=mark, on_round=mark), cluster=address)
    rounds = range(2, len(ends) - 1)
    return {
        "start": ends[0] - began, "seconds": statistics.median(ends[number] - begins[number - 1] for number in rounds),
        "cpu": statistics.mean(cpu[number] - cpu_begins[number - 1] for number in rounds), "driver": memory[0], "performing": memory[1],
    }  # fmt: skip


def session(node: nodes.Node) -> list[int]:
    """All processes of a node."""
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
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--address",
        help="of a cluster that runs; default: two nodes of one core each, started here",
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md, too")
    parser.add_argument("--workloads", nargs="*", default=["W2", "W3", "step", "state", "W4"])
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    images = load()
    lines: list[str] = []
    with ExitStack() as stack:
        here: list[nodes.Node] = []
        if options.address is None:
            os.environ["XDG_STATE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
            began = time.perf_counter()
            here.append(nodes.start(port=PORT, cores=0, store=600))
            stack.callback(nodes.stop)
            options.address = here[0].cluster
            here += [
                nodes.start(options.address, token=Path(here[0].token), cores=1, store=600)
                for _ in range(2)
            ]
            started = (
                f"a cluster of a head and two nodes ready in {time.perf_counter() - began:.1f} s"
            )
            where, workers = "2 nodes of 1 core each on this machine", 2
        else:
            started, where, workers = "", f"the cluster at {options.address}", None
        load_before = os.getloadavg()[0]
        rows, starts, memory = [], [], []
        for name in options.workloads:
            workload = {
                **WORKLOADS,
                "step": STEP,
                "state": replace(STEP, name="state", method="scaffold"),
            }[name]
            rounds = {"W2": 12, "W3": 8, "W4": 6}.get(name, workload.rounds)
            if name == "W4":
                found = measured(experiment(workload, images, rounds, None), options.address, here)
                memory.append(
                    f"W4, 10,000 clients that keep a model: {found['driver']:.0f} MB of the driver (PSS), {found['seconds']:.2f} s a round"
                )
                continue
            kinds: dict[str, list[dict[str, float]]] = {"workers": [], "cluster": []}
            for _ in range(options.repetitions):
                for kind, several in kinds.items():
                    wanted = experiment(
                        workload,
                        images,
                        rounds,
                        workers,
                        SMALL if name in ("step", "state") else None,
                    )
                    several.append(
                        measured(wanted, options.address if kind == "cluster" else None, here)
                    )
            rows.append((name, workload.cohort, kinds))
            starts += [one["start"] for one in kinds["cluster"]]
        lines.append(f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after; {where} against "
              f"worker processes{f' ({workers})' if workers else ''}, alternating, medians of {options.repetitions}.\n")  # fmt: skip
        lines.append(
            "| workload | workers s/round | cluster s/round | ratio | more wall ms per client | more CPU ms per client | driver MB more | each actor MB more |"
        )
        lines.append("|---|---|---|---|---|---|---|---|")
        for name, cohort, kinds in rows:
            pairs = list(zip(kinds["workers"], kinds["cluster"], strict=True))

            def median(key: str, kind: str, kinds=kinds) -> float:
                return statistics.median(one[key] for one in kinds[kind])

            def more(key: str, pairs=pairs) -> float:
                return statistics.median(theirs[key] - own[key] for own, theirs in pairs)

            ratio = statistics.median(theirs["seconds"] / own["seconds"] for own, theirs in pairs)
            lines.append(f"| {name} | {median('seconds', 'workers'):.3f} | {median('seconds', 'cluster'):.3f} | {ratio:.2f} | {1000 * more('seconds') / cohort:.2f} | "
                  f"{1000 * more('cpu') / cohort:.2f} | {more('driver'):.0f} | {more('performing'):.0f} |")  # fmt: skip
        lines.append("")
        for line in [
            started,
            f"from the call of `run` to its first round, data prepared and actors ready: {statistics.median(starts):.1f} s"
            if starts
            else "",
            *memory,
        ]:
            if line:
                lines.append(f"- {line}")
    print("\n".join(["## Cluster", "", *lines]))
    if options.write:
        before = RESULTS.read_text().partition("\n## Cluster\n")[0]
        RESULTS.write_text("\n".join([before.rstrip("\n"), "", "## Cluster", "", *lines, ""]))


if __name__ == "__main__":
    main()
