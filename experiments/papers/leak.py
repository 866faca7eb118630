"""FedAKD with test samples in its distillation set: the share of its lead that this leak explains.

The released code of FedAKD trains and distils on data that contain the client's test samples. No
data set and no setting of Equipoise does that. This script builds such data in memory, for this
question only, and every output says LEAK.

    python experiments/papers/leak.py OUT                      # about ten minutes on one core
    python experiments/papers/leak.py OUT --samples 1500 --rounds 2     # a minute

Four runs on the same clients and the same test samples: training alone, FedAvg and FedAKD without
the leak, and FedAKD with it. OUT/leak.json has the numbers; docs/papers shows it if it is copied
to experiments/papers/fedakd/results/leak.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import equipoise as eq
from equipoise.data import DataConfig, Dataset, federate
from equipoise.data.dataset import TEST, TRAIN, VALIDATION
from equipoise.data.pipeline import load
from equipoise.runs.aggregates import aggregate
from equipoise.runs.result import read_result

CONDITION = "POW"
PARTITION = "pow:1"
FEDAKD = {"name": "fedakd", "alpha": 1.0, "beta": 1.0, "temperature": 1.0}
ROWS: dict[str, tuple[Any, bool]] = {  # row -> method, and whether its data leak
    "standalone": ("standalone", False),
    "fedavg": ("fedavg", False),
    "fedakd": (FEDAKD, False),
    "fedakd LEAK": (FEDAKD, True),
}


def clients_of(name: str, samples: int, seed: int, leak: bool) -> Dataset:
    """Return the clients of Table 1 as sites with an official split.

    Args:
        name: The data set.
        samples: The number of its samples.
        seed: The seed of partition and split.
        leak: True to add each client's test samples to its training samples.
    """
    config = DataConfig(
        name=name, partition=PARTITION, clients=10, split=(0.7, 0.1, 0.2), samples=samples
    )
    dataset = load(config)
    federation = federate(config, seed, dataset)
    rows: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    sites: list[np.ndarray] = []

    def add(positions: np.ndarray, part: int, client: int) -> None:
        rows.append(federation.source[positions])
        parts.append(np.full(len(positions), part))
        sites.append(np.full(len(positions), client))

    for client in range(len(federation.ids)):
        add(federation.train[client], TRAIN, client)
        add(federation.validation[client], VALIDATION, client)
        add(federation.test[client], TEST, client)
        if leak:
            add(federation.test[client], TRAIN, client)
    index = np.concatenate(rows)
    title = f"{name} (LEAK, test samples in training)" if leak else name
    return replace(
        dataset,
        name=title,
        x=dataset.x[index],
        y=dataset.y[index],
        part=np.concatenate(parts),
        site=np.concatenate(sites),
        site_names=federation.ids,
        keeps_parts=True,
        notes=("LEAK: every test sample is a training sample, too",) if leak else dataset.notes,
    )


def final_values(
    dataset: Dataset, method: Any, arguments: argparse.Namespace, out: Path
) -> dict[str, float]:
    """Train one row; return client -> accuracy on its test samples."""
    run = eq.run(
        {
            "dataset": dataset,
            # Copies of test samples in training would otherwise be refused or moved together.
            "data": {"partition": "natural", "test": "site", "duplicates": "separate"},
            "model": arguments.model,
            "training": {"optimiser": "adam", "lr": 0.001, "batch": 32, "epochs": 1},
            "evaluation": {"every": 0, "splits": ["test"]},
            "method": method,
            "rounds": arguments.rounds,
            "seed": arguments.seed,
            "workers": 0,
        },
        out,
        quiet=True,
    )
    values = dict(read_result(run).main.values)
    run.store.close()
    return values


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all rows, write OUT/leak.json, print a table, and return its content."""
    parser = argparse.ArgumentParser(description="FedAKD with a LEAK of test samples")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    if arguments.out.exists() and any(arguments.out.iterdir()):
        parser.error(f"expected a new or empty folder, but {arguments.out} has files")
    values = {}
    for row, (method, leak) in ROWS.items():
        dataset = clients_of(arguments.data, arguments.samples, arguments.seed, leak)
        folder = arguments.out / row.replace(" ", "-")
        values[row] = final_values(dataset, method, arguments, folder)
    metric = eq.metrics.registry.find("accuracy")
    rows = {}
    for row, own in values.items():
        numbers = aggregate(own, values["standalone"], metric)
        rows[row] = {name: _number(numbers[name]) for name in ("best", "average", "cf")}
    content = {
        "warning": "LEAK: the row 'fedakd LEAK' was trained on its test samples",
        "data": arguments.data,
        "condition": CONDITION,
        "samples": arguments.samples,
        "rounds": arguments.rounds,
        "seed": arguments.seed,
        "version": eq.__version__,
        "rows": rows,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "leak.json").write_text(json.dumps(content, indent=1) + "\n")
    print(content["warning"])
    for row, numbers in rows.items():
        print(row, numbers)
    return content


def _number(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


if __name__ == "__main__":
    main()
