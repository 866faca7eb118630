"""Which learning rate, epochs and rounds are the defaults: the setting with the best mean score on validation data over FedAvg and Standalone together.

    python experiments/defaults.py          # trains what defaults.json lacks, writes it and defaults.md beside this file; minutes on one core
    python experiments/defaults.py --table  # defaults.md anew from defaults.json

Over the sets that come with the installation, divided among unequal clients. The score of a set with classes is accuracy, that of numbers to predict the share of
their variance that is explained (R², below 0 where a constant would do better). Test data are not looked at. A run of the most rounds also gives the
numbers of fewer, since its first rounds are the same.
"""

from __future__ import annotations

import itertools
import json
import platform
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import equipoise as eq
from equipoise.storage.store import RunError

HERE = Path(__file__).parent
RATES, EPOCHS, ROUNDS, SEEDS, METHODS = (
    (0.05, 0.1, 0.2, 0.4),
    (1, 2, 4),
    (20, 50),
    (1, 2),
    ("fedavg", "standalone"),
)

FILE = HERE / "defaults.json"
CLASSES = ("digits", "breast cancer", "wine")


def sets() -> dict[str, dict[str, Any]]:
    """Images, two tables with classes and two with numbers to predict, each with clients of different classes and sizes."""
    cancer, wine, sugar = (
        load_breast_cancer(return_X_y=True),
        load_wine(return_X_y=True),
        load_diabetes(),
    )
    numbers = {"kind": "regression", "scaled": True}
    return {  # those that diverge first
        "heart rate": {
            "name": eq.from_arrays(*heart_rates(), name="heart-rate", **numbers),
            "partition": "quantity:1",
            "clients": 4,
        },
        "diabetes": {
            "name": eq.from_arrays(sugar.data, sugar.target, name="diabetes", **numbers),
            "partition": "dirichlet_bins:0.5",
            "clients": 4,
        },
        "digits": {"name": "digits", "partition": "dirichlet:0.3", "clients": 10},
        "breast cancer": {
            "name": eq.from_arrays(*cancer, name="breast-cancer", scaled=True),
            "partition": "dirichlet:0.5",
            "clients": 5,
        },
        "wine": {
            "name": eq.from_arrays(*wine, name="wine", scaled=True),
            "partition": "quantity:1",
            "clients": 4,
        },
    }


def heart_rates() -> tuple[np.ndarray, np.ndarray]:
    """Drawn, not measured: a rate that grows with age, and noise of 3 beats; at best 90 % of its variance can be explained."""
    draw = np.random.default_rng(0)
    ages = draw.integers(20, 80, 360).astype(float)
    return ages[:, None], 60 + 0.6 * ages + draw.normal(0, 3, len(ages))


def measure(folder: Path, found: dict[str, Any]) -> None:
    """One record per run and number of rounds: the mean over clients on validation data, kept as soon as it is known."""
    done = {
        tuple(row[key] for key in ("set", "lr", "epochs", "method", "seed")): row["score"]
        for row in found["runs"]
    }
    for (name, data), lr, epochs, method, seed in itertools.product(
        sets().items(), RATES, EPOCHS, METHODS, SEEDS
    ):
        if (name, lr, epochs, method, seed) in done or (lr, epochs) in diverging(found["runs"]):
            continue
        classes = name in CLASSES
        experiment = eq.Experiment(
            data={**data, "split": [0.6, 0.2, 0.2]}, method=method, training={"lr": lr, "epochs": epochs}, rounds=max(ROUNDS), seed=seed, workers=0,
            evaluation={"every": 10, "splits": ["validation"], "metrics": ["accuracy" if classes else "loss"], "curves": False},
        )  # fmt: skip
        began = time.time()
        try:
            run = eq.run(experiment, folder / f"{name}-{lr}-{epochs}-{method}-{seed}", quiet=True)
            scores = [_score(run, rounds, classes) for rounds in ROUNDS]
        except RunError as error:
            if "not finite" not in str(error):
                raise
            scores = [None] * len(ROUNDS)
        for rounds, score in zip(ROUNDS, scores, strict=True):
            found["runs"].append(
                {
                    "set": name,
                    "lr": lr,
                    "epochs": epochs,
                    "rounds": rounds,
                    "method": method,
                    "seed": seed,
                    "score": score,
                }
            )
        found |= {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{platform.machine()}, one core",
            "seconds": found["seconds"] + time.time() - began,
        }
        FILE.write_text(json.dumps(found, indent=0) + "\n")
        print(
            f"{name}, lr {lr}, {epochs} epochs, {method}, seed {seed}: {scores}",
            file=sys.stderr,
            flush=True,
        )


def _score(run: eq.Run, rounds: int, classes: bool) -> float:
    values = [
        row["value"]
        for row in run.table(
            round=rounds, phase="received", split="validation", model=run.main_model
        )
    ]
    # The loss of a regression is its squared error by the variance of the target in training data.
    return float(np.mean(values)) if classes else 1 - float(np.mean(values))


def diverging(runs: list[dict[str, Any]]) -> set[tuple[float, int]]:
    """Rate and epochs of which a run diverged: no default, so the other sets are not asked."""
    return {(row["lr"], row["epochs"]) for row in runs if row["score"] is None}


def table(found: dict[str, Any]) -> str:
    """Return the table of results."""
    rows, out = found["runs"], diverging(found["runs"])

    def mean(**where: Any) -> float:
        return 100 * float(
            np.mean(
                [
                    row["score"]
                    for row in rows
                    if all(row[key] == value for key, value in where.items())
                ]
            )
        )

    settings = sorted(
        (
            (mean(lr=lr, epochs=e, rounds=r), lr, e, r)
            for lr, e, r in itertools.product(RATES, EPOCHS, ROUNDS)
            if (lr, e) not in out
        ),
        key=lambda one: -one[0],
    )
    names = list(dict.fromkeys(row["set"] for row in rows))
    lines = [
        "# Where the defaults come from", "",
        f"`python experiments/defaults.py`, {found['date']}, {found['machine']}, {found['seconds']:.0f} s. Mean over clients of accuracy (classes) or explained variance (diabetes, "
        f"heart rate: numbers), in % on validation data, seeds "
        f"{' and '.join(map(str, SEEDS))} and the sets that come with the installation ({', '.join(names)}); sorted by the mean of FedAvg and Standalone.", "",
        f"| rate | epochs | rounds | both | FedAvg | Standalone | {' | '.join(names)} |", f"|---:|---:|---:|---:|---:|---:|{'---:|' * len(names)}",
    ]  # fmt: skip
    for value, lr, epochs, rounds in settings:
        here = {"lr": lr, "epochs": epochs, "rounds": rounds}
        each = [mean(**here, method=method) for method in METHODS] + [
            mean(**here, set=name) for name in names
        ]
        lines.append(
            f"| {lr} | {epochs} | {rounds} | {value:.1f} | "
            + " | ".join(f"{one:.1f}" for one in each)
            + " |"
        )
    best = settings[0]
    fedavg, alone = (
        mean(lr=best[1], epochs=best[2], rounds=best[3], method=method) for method in METHODS
    )
    ahead, behind = ("FedAvg", "training alone") if fedavg > alone else ("Training alone", "FedAvg")
    lines += [
        "",
        f"Best: rate {best[1]}, {best[2]} epochs, {best[3]} rounds. {ahead} is ahead of {behind} there, by {abs(fedavg - alone):.1f} points.",
    ]
    if out:
        lines += [
            "",
            f"Left out, since a run diverged: {', '.join(f'rate {lr} with {e} epochs' for lr, e in sorted(out))}.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {"seconds": 0.0, "runs": []}
    if "--table" not in sys.argv[1:]:
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as scratch:
            measure(Path(scratch), known)
    (HERE / "defaults.md").write_text(table(known))
