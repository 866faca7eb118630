"""Which learning rate, epochs and rounds are the defaults: the setting with the best mean validation accuracy over FedAvg and Standalone together.

    python experiments/defaults.py          # trains, writes defaults.json and defaults.md beside this file; minutes on one core
    python experiments/defaults.py --table  # defaults.md anew from defaults.json

Over the sets that come with the installation, dealt to unequal clients. Test data are not looked at. A run of the most rounds also gives the numbers of
fewer, since its first rounds are the same.
"""

from __future__ import annotations

import itertools
import json
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine

import equipoise as eq
from equipoise.transports.base import Watcher

HERE = Path(__file__).parent
RATES, EPOCHS, ROUNDS, SEEDS, METHODS = (0.05, 0.1, 0.2), (1, 2, 4), (20, 50), (1, 2), ("fedavg", "standalone")


def sets() -> dict[str, dict[str, Any]]:
    """Images and two tables, each with clients of different classes and sizes."""
    cancer, wine = load_breast_cancer(return_X_y=True), load_wine(return_X_y=True)
    return {
        "digits": {"name": "digits", "partition": "dirichlet:0.3", "clients": 10},
        "breast cancer": {"name": eq.from_arrays(*cancer, name="breast-cancer", scaled=True), "partition": "dirichlet:0.5", "clients": 5},
        "wine": {"name": eq.from_arrays(*wine, name="wine", scaled=True), "partition": "quantity:1", "clients": 4},
    }


def measured(folder: Path) -> Iterator[dict[str, Any]]:
    """One record per run and number of rounds: the mean over clients on validation data."""
    for (name, data), lr, epochs, method, seed in itertools.product(sets().items(), RATES, EPOCHS, METHODS, SEEDS):
        wanted = eq.Experiment(
            data={**data, "split": [0.6, 0.2, 0.2]}, method=method, training={"lr": lr, "epochs": epochs}, rounds=max(ROUNDS), seed=seed, workers=0,
            evaluation={"every": 10, "splits": ["validation"], "metrics": ["accuracy"], "curves": False},
        )  # fmt: skip
        run = eq.run(wanted, folder / f"{name}-{lr}-{epochs}-{method}-{seed}", Watcher())
        for rounds in ROUNDS:
            values = [row["value"] for row in run.table(round=rounds, phase="received", split="validation", model=run.main_model)]
            yield {
                "set": name,
                "lr": lr,
                "epochs": epochs,
                "rounds": rounds,
                "method": method,
                "seed": seed,
                "accuracy": float(np.mean(values)),
            }
        print(f"{name}, lr {lr}, {epochs} epochs, {method}, seed {seed}", file=sys.stderr)


def table(found: dict[str, Any]) -> str:
    rows = found["runs"]

    def mean(**where: Any) -> float:
        return 100 * float(np.mean([row["accuracy"] for row in rows if all(row[key] == value for key, value in where.items())]))

    settings = sorted(
        ((mean(lr=lr, epochs=e, rounds=r), lr, e, r) for lr, e, r in itertools.product(RATES, EPOCHS, ROUNDS)), key=lambda one: -one[0]
    )
    names = list(dict.fromkeys(row["set"] for row in rows))
    lines = [
        "# Where the defaults come from", "",
        f"`python experiments/defaults.py`, {found['date']}, {found['machine']}, {found['seconds']:.0f} s. Mean validation accuracy in % over clients, seeds "
        f"{' and '.join(map(str, SEEDS))} and the sets that come with the installation ({', '.join(names)}); sorted by the mean of FedAvg and Standalone.", "",
        f"| rate | epochs | rounds | both | FedAvg | Standalone | {' | '.join(names)} |", f"|---:|---:|---:|---:|---:|---:|{'---:|' * len(names)}",
    ]  # fmt: skip
    for value, lr, epochs, rounds in settings:
        here = {"lr": lr, "epochs": epochs, "rounds": rounds}
        each = [mean(**here, method=method) for method in METHODS] + [mean(**here, set=name) for name in names]
        lines.append(f"| {lr} | {epochs} | {rounds} | {value:.1f} | " + " | ".join(f"{one:.1f}" for one in each) + " |")
    best = settings[0]
    fedavg, alone = (mean(lr=best[1], epochs=best[2], rounds=best[3], method=method) for method in METHODS)
    ahead, behind = ("FedAvg", "training alone") if fedavg > alone else ("Training alone", "FedAvg")
    lines += [
        "",
        f"Best: rate {best[1]}, {best[2]} epochs, {best[3]} rounds. {ahead} is ahead of {behind} there, by {abs(fedavg - alone):.1f} points.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    file = HERE / "defaults.json"
    if "--table" not in sys.argv[1:]:
        warnings.simplefilter("ignore")
        began = time.time()
        with tempfile.TemporaryDirectory() as scratch:
            runs = list(measured(Path(scratch)))
        facts = {"date": datetime.now(UTC).date().isoformat(), "machine": f"{platform.machine()}, one core", "seconds": time.time() - began}
        file.write_text(json.dumps({**facts, "runs": runs}, indent=0) + "\n")
    (HERE / "defaults.md").write_text(table(json.loads(file.read_text())))
