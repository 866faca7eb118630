"""Equipoise itself, as a user runs it: worker processes, store and checkpoint on."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

import equipoise as eq
from equipoise.engine.rounds import Loop
from equipoise.methods.fedavg import FedAvg
from equipoise.simulate import run
from equipoise.storage.store import RoundRecord
from equipoise.task import Task
from hearing import Hearing
from measure import Meter, arguments
from networks import network
from workloads import Samples, Workload, cohorts, load, partition

NETWORKS = {
    "cnn": "bench_cnn",
    "mlp": "mlp",
    "lenet": "lenet",
    "mlp_30": "mlp",
    "mlp_13": {"name": "mlp", "hidden": [64]},
}


def dataset(samples: Samples, parts: list[np.ndarray]) -> eq.Dataset:
    """The clients' samples as sites, and the test samples as the official test part."""
    chosen = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    x = np.concatenate([samples.x[chosen], samples.x_test])
    if x.ndim == 4:  # pixels as they are stored
        x = (x * 255).round().astype(np.uint8)
    y = np.concatenate([samples.y[chosen], samples.y_test])
    marks = np.repeat([0, 2], [len(chosen), len(samples.x_test)])
    site = np.concatenate([owner, np.zeros(len(samples.x_test), dtype=np.int64)])
    names = tuple(f"{k:05d}" for k in range(len(parts)))
    task = Task("classification", x.shape[1:], int(y.max()) + 1)
    return eq.Dataset(
        "table" if x.ndim == 2 else "fashion_mnist",
        torch.from_numpy(x),
        torch.from_numpy(y),
        task,
        part=marks,
        site=site,
        site_names=names,
    )


def simulate(workload: Workload, options: argparse.Namespace) -> None:
    """Runs the workload and prints its line."""
    meter = Meter()
    samples = load(workload)
    parts = partition(workload, samples.y, options.seed)
    chosen = cohorts(workload, options.rounds, options.seed)
    experiment = eq.Experiment(
        data={
            "partition": "natural",
            "split": (1.0, 0.0, 0.0),
            "test": "global",
            "duplicates": "separate",
        },
        dataset=dataset(samples, parts),
        model=NETWORKS[workload.network],
        method=workload.method,
        training={"lr": workload.rate, "batch": workload.batch, "epochs": workload.epochs},
        participation={"number": workload.cohort},
        evaluation={
            "every": 1 if workload.evaluate_each_round else 0,
            "clients": "cohort",
            "splits": (),
            "metrics": ("accuracy",),
        },
        rounds=options.rounds,
        seed=options.seed,
        workers=0 if options.variant == "inprocess" else None,
    )
    start = FedAvg.start

    def same_start(self, server):
        """The same initial parameters and the same cohorts as every contender: theirs, in the order
        of our network's entries.
        """
        state = start(self, server)
        values = iter(network(workload.network, options.seed).parameters())
        return state.with_(
            model=eq.Tree(
                {name: next(values).detach().clone() for name in state.model}, state.model.model
            )
        )

    del samples

    FedAvg.start = same_start
    ids = [f"{k:05d}" for k in range(workload.clients)]
    Loop._choose = lambda self, number, attempt: [ids[k] for k in chosen[number - 1]]
    finished = []

    def lap(record) -> None:
        finished.append(record)
        meter.lap(workload.epochs * sum(len(parts[k]) for k in chosen[record.round - 1]))
        if record.round == options.rounds:
            accuracy = next(row[5] for row in record.measurements if row[1] == "global")
            meter.report(
                "ours",
                workload,
                options,
                accuracy,
                ("torch", "equipoise"),
                **profile(finished, meter.laps),
            )

    with tempfile.TemporaryDirectory() as folder:
        run(
            experiment,
            Path(folder) / "run",
            Hearing(on_start=lambda first, rounds: meter.start(), on_round=lap),
        )


def profile(records: list[RoundRecord], laps: list[dict[str, float]]) -> dict[str, float]:
    """Wall-clock milliseconds per client of a round, by phase; the last round, which evaluates, is
    left out where it can be.

    `clients` is the time the clients' own work takes when it is spread evenly over the workers; the
    others are what comes on top: asking, waiting for the last worker, replies; averaging; files;
    and `rest`, which holds the commit. `overhead` is their sum.
    """
    kept = list(zip(records, laps, strict=True))[1:-1] or list(zip(records, laps, strict=True))
    phases = ("clients", "transport", "aggregation", "store", "evaluation")
    rows = []
    for record, lap in kept:
        times = [record.seconds.get(phase, 0.0) for phase in phases]
        rows.append(
            [1000 * value / len(record.cohort) for value in (*times, lap["seconds"] - sum(times))]
        )
    found = dict(
        zip(
            (*phases, "rest"),
            (statistics.median(column) for column in zip(*rows, strict=True)),
            strict=True,
        )
    )
    overhead = statistics.median(sum(row) - row[0] - row[4] for row in rows)
    return {
        "overhead_ms_per_client": overhead,
        **{f"{phase}_ms_per_client": value for phase, value in found.items()},
    }


if __name__ == "__main__":
    simulate(*arguments(("workers", "inprocess")))
