"""Search for the default learning rate, epochs and rounds.

    python experiments/defaults.py          # runs what defaults.json lacks; minutes on one core
    python experiments/defaults.py --table  # writes defaults.md from defaults.json

The data sets come with the installation and are divided among unequal clients. The score is the
mean over clients on validation data: accuracy, or for regression the explained variance (R², below
0 if a constant would do better). The best setting has the highest mean over FedAvg and Standalone.
Test data are not used. The first rounds of a long run also give the scores of shorter ones.
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
FILE = HERE / "defaults.json"
RATES = (0.05, 0.1, 0.2, 0.4)
EPOCHS = (1, 2, 4)
ROUNDS = (20, 50)
SEEDS = (1, 2)
METHODS = ("fedavg", "standalone")
CLASSIFIED = ("digits", "breast cancer", "wine")  # the others are regressions
KEYS = ("set", "lr", "epochs", "method", "seed")  # of a run in defaults.json


def sets() -> dict[str, dict[str, Any]]:
    """Return the data sets, by name: images, two tables with classes and two regressions.

    Clients differ in classes and sizes. Those whose runs diverge come first: settings that diverge
    are left out of all others.
    """
    cancer = load_breast_cancer(return_X_y=True)
    wine = load_wine(return_X_y=True)
    sugar = load_diabetes()
    numbers = {"kind": "regression", "scaled": True}
    return {
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
    """Return ages and synthetic heart rates, whose variance can be explained to 90 % at best."""
    draw = np.random.default_rng(0)
    ages = draw.integers(20, 80, 360).astype(float)
    return ages[:, None], 60 + 0.6 * ages + draw.normal(0, 3, len(ages))


def measure(folder: Path, found: dict[str, Any]) -> None:
    """Run what is missing; write the scores to defaults.json after every run.

    Args:
        folder: The folder of the runs.
        found: The content of defaults.json; changed.
    """
    done = {tuple(row[key] for key in KEYS) for row in found["runs"]}
    for (name, data), lr, epochs, method, seed in itertools.product(
        sets().items(), RATES, EPOCHS, METHODS, SEEDS
    ):
        if (name, lr, epochs, method, seed) in done or (lr, epochs) in diverging(found["runs"]):
            continue
        experiment = eq.Experiment(
            data={**data, "split": [0.6, 0.2, 0.2]},
            method=method,
            training={"lr": lr, "epochs": epochs},
            rounds=max(ROUNDS),
            seed=seed,
            workers=0,
            evaluation={
                "every": 10,
                "splits": ["validation"],
                "metrics": ["accuracy" if name in CLASSIFIED else "loss"],
                "curves": False,
            },
        )
        began = time.time()
        scores = _scores(experiment, folder / f"{name}-{lr}-{epochs}-{method}-{seed}", name)
        values = dict(zip(KEYS, (name, lr, epochs, method, seed), strict=True))
        for rounds, score in zip(ROUNDS, scores, strict=True):
            found["runs"].append({**values, "rounds": rounds, "score": score})
        found["date"] = datetime.now(UTC).date().isoformat()
        found["machine"] = f"{platform.machine()}, one core"
        found["seconds"] += time.time() - began
        FILE.write_text(json.dumps(found, indent=0) + "\n")
        line = f"{name}, lr {lr}, {epochs} epochs, {method}, seed {seed}: {scores}"
        print(line, file=sys.stderr, flush=True)


def _scores(experiment: eq.Experiment, folder: Path, name: str) -> list[float | None]:
    """Return the score of a run after each number of rounds; None if it diverged."""
    try:
        run = eq.run(experiment, folder, quiet=True)
    except RunError as error:
        if "not finite" not in str(error):
            raise
        return [None] * len(ROUNDS)
    return [_score(run, rounds, name in CLASSIFIED) for rounds in ROUNDS]


def _score(run: eq.Run, rounds: int, is_classified: bool) -> float:
    rows = run.table(round=rounds, phase="received", split="validation", model=run.main_model)
    mean = float(np.mean([row["value"] for row in rows]))
    # The loss of a regression is its squared error by the variance of the target in training data.
    return mean if is_classified else 1 - mean


def diverging(runs: list[dict[str, Any]]) -> set[tuple[float, int]]:
    """Return rates and epochs of which a run diverged; they can be no default."""
    return {(row["lr"], row["epochs"]) for row in runs if row["score"] is None}


def mean_score(runs: list[dict[str, Any]], **where: Any) -> float:
    """Return the mean score in % over the runs that have these values."""
    scores = []
    for row in runs:
        if all(row[key] == value for key, value in where.items()):
            scores.append(row["score"])
    return 100 * float(np.mean(scores))


def ranking(runs: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    """Return the mean score of every setting with the setting, the best one first."""
    excluded = diverging(runs)
    ranked = []
    for lr, epochs, rounds in itertools.product(RATES, EPOCHS, ROUNDS):
        if (lr, epochs) not in excluded:
            setting = {"lr": lr, "epochs": epochs, "rounds": rounds}
            ranked.append((mean_score(runs, **setting), setting))
    return sorted(ranked, key=lambda entry: -entry[0])


def table(found: dict[str, Any]) -> str:
    """Return the page defaults.md.

    Args:
        found: The content of defaults.json.
    """
    runs = found["runs"]
    names = list(dict.fromkeys(row["set"] for row in runs))
    columns = ["rate", "epochs", "rounds", "both", "FedAvg", "Standalone", *names]
    lines = [
        "# Search for the defaults",
        "",
        f"`python experiments/defaults.py`, {found['date']}, {found['machine']}, "
        f"{found['seconds']:.0f} s. Data sets: {', '.join(names)}; seeds "
        f"{' and '.join(map(str, SEEDS))}. Numbers are means over clients on validation data, in %: "
        "accuracy, or explained variance (diabetes, heart rate). Settings are sorted by the mean of "
        "FedAvg and Standalone.",
        "",
        f"| {' | '.join(columns)} |",
        "|" + "---:|" * len(columns),
    ]
    ranked = ranking(runs)
    for score, setting in ranked:
        scores = [score]
        scores += [mean_score(runs, **setting, method=method) for method in METHODS]
        scores += [mean_score(runs, **setting, set=name) for name in names]
        cells = [str(value) for value in setting.values()] + [f"{value:.1f}" for value in scores]
        lines.append(f"| {' | '.join(cells)} |")
    _, best = ranked[0]
    fedavg, alone = (mean_score(runs, **best, method=method) for method in METHODS)
    names_by_rank = ("FedAvg", "training alone") if fedavg > alone else ("training alone", "FedAvg")
    lines += [
        "",
        f"Best: rate {best['lr']}, {best['epochs']} local epoch(s), {best['rounds']} rounds. There, "
        f"{names_by_rank[0]} is ahead of {names_by_rank[1]} by {abs(fedavg - alone):.1f} points.",
    ]
    excluded = [f"rate {lr} with {epochs} epochs" for lr, epochs in sorted(diverging(runs))]
    if excluded:
        lines += ["", f"Left out, since a run diverged: {', '.join(excluded)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {"seconds": 0.0, "runs": []}
    if "--table" not in sys.argv[1:]:
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as scratch:
            measure(Path(scratch), known)
    (HERE / "defaults.md").write_text(table(known))
