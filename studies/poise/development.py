"""What was tried on development seeds before the second form of Poise was frozen.

    python studies/poise/development.py run [--budget MINUTES]
    python studies/poise/development.py table

Results are in development.jsonl; what it holds already is not run again. DEVELOPMENT.md reads them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import variants
from equipoise.methods.poise import Poise
from study import Study, known, with_validation

RESULTS = Path(__file__).parent / "development.jsonl"
ALONE, BEST = "standalone", "cap 3R"
MEASURED = {"evaluation.metrics": ["accuracy", "loss"]}
# label -> method, or a rival of the comparison at equal cost
METHODS: dict[str, Any] = {
    "ftH27 + validation": {"name": "finetune", "tune_epochs": 27, "tune_average": "second_half"},
    "first form": Poise(variant="one"),
    "cap R": Poise(tune_cap=1),
    "cap 3R": Poise(tune_cap=3),
    "without G": variants.WithoutGlobal(),
    "several lengths": variants.SeveralLengths(),
    "variant X": variants.VariantX(),
    "finish, FedAvg": {"name": "fedavg", "finish": {"name": "poise"}},
    "finish, FedAvgM": {"name": "fedavgm", "beta": 0.5, "finish": {"name": "poise"}},
    "finish, FedDC (SGD)": {"name": "feddc", "finish": {"name": "poise"}},
    "finish, FedAvg (SGD)": {"name": "fedavg", "finish": {"name": "poise"}},
}
SGD = {"training.optimiser": "sgd", "training.lr": 0.1}
# Cells in the order in which they are run, first with these methods, then with the others.
FIRST = ("cap 3R", "ftH27 + validation", "cap R", "first form", "variant X", "finish, FedAvgM")
CELLS = [
    (model, setting, seed)
    for seed in range(100, 110)
    for model, setting in (
        ("mlp", "pow"),
        ("mlp", "dirichlet-0.5"),
        ("lenet", "dirichlet-0.5"),
        ("mlp", "ics-5"),
        ("lenet", "ics-5"),
    )
]


def run(budget: float) -> None:
    """Run what is missing, one run after another, until the budget in minutes is used."""
    study = Study(RESULTS)
    began = time.process_time()
    for model, setting, seed, label in _order():
        if time.process_time() - began > 60 * budget:
            print("the budget is used")
            return
        change = with_validation if label.endswith("+ validation") else None
        changes = SGD if label.endswith("(SGD)") else {}
        study.one(
            "development",
            setting,
            label,
            METHODS[label],
            seed,
            model=model,
            change=change,
            common=MEASURED,
            **changes,
        )


def _order() -> Iterator[tuple[str, str, int, str]]:
    """Yield network, setting, seed and method of every run, seed by seed."""
    others = [label for label in METHODS if label not in FIRST]
    for seed in range(100, 110):
        for labels in (FIRST, others):
            for model, setting, own_seed in CELLS:
                if own_seed == seed:
                    for label in labels:
                        yield model, setting, seed, label


def table() -> str:
    """Return the means of each method over the cells that it has, and those of "cap 3R" there."""
    done = known(RESULTS)
    lines = [
        "| network | method | cells | average | minus cap 3R | worst change | below alone | NLL |"
        " steps |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model in ("mlp", "lenet"):
        for label in METHODS:
            row = _row(done, model, label)
            if row:
                lines.append(row)
    return "\n".join(lines)


def _row(done: dict[tuple[Any, ...], dict[str, Any]], model: str, label: str) -> str:
    """Return the row of a method; empty if it has no result."""

    def record(setting: str, seed: int, name: str) -> dict[str, Any]:
        return done.get(("development", model, setting, name, seed), {})

    cells = []
    for _, setting, seed in (cell for cell in CELLS if cell[0] == model):
        three = tuple(record(setting, seed, name) for name in (label, ALONE, BEST))
        if all("accuracy" in one for one in three):
            cells.append(three)
    if not cells:
        return ""
    own, alone, best = zip(*cells, strict=True)
    average, reference = (
        100 * np.mean([np.mean(one["accuracy"]) for one in records]) for records in (own, best)
    )
    change = np.concatenate(
        [np.subtract(a["accuracy"], b["accuracy"]) for a, b in zip(own, alone, strict=True)]
    )
    steps = np.mean([a["steps"] / b["steps"] for a, b in zip(own, alone, strict=True)])
    return (
        f"| {model} | {label} | {len(cells)} | {average:.2f} | {average - reference:+.2f} | "
        f"{100 * change.min():+.1f} | {(change < 0).sum()} of {len(change)} | "
        f"{np.mean([np.mean(one['nll']) for one in own]):.3f} | {steps:.2f} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run", "table"])
    parser.add_argument("--budget", type=float, default=40.0, help="minutes of processor time")
    arguments = parser.parse_args()
    if arguments.command == "run":
        torch.set_num_threads(1)
        run(arguments.budget)
    else:
        print(table())
