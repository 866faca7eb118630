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
ALONE = "standalone"
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
SETTINGS = {"mlp": ("pow", "dirichlet-0.5", "ics-5"), "lenet": ("dirichlet-0.5", "ics-5")}
CELLS = [
    (model, setting, seed)
    for seed in range(100, 110)
    for model, names in SETTINGS.items()
    for setting in names
]


def run(budget: float) -> None:
    """Run what is missing, one run after another, until the budget in minutes is used."""
    study = Study(RESULTS)
    began = time.process_time()
    for model, setting, seed in CELLS:
        for label, method in METHODS.items():
            if time.process_time() - began > 60 * budget:
                print("the budget is used")
                return
            change = with_validation if label.endswith("+ validation") else None
            changes = SGD if label.endswith("(SGD)") else {}
            study.one(
                "development",
                setting,
                label,
                method,
                seed,
                model=model,
                change=change,
                common=MEASURED,
                **changes,
            )


def table() -> str:
    """Return the means over the cells that all methods of a network have."""
    done = known(RESULTS)
    lines = [
        "| network | method | average | minus cap 3R | worst change | below alone | NLL | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in ("mlp", "lenet"):
        lines += _rows(done, model)
    return "\n".join(lines)


def _rows(done: dict[tuple[Any, ...], dict[str, Any]], model: str) -> Iterator[str]:
    cells = [cell for cell in CELLS if cell[0] == model and _is_complete(done, cell)]
    for label in METHODS:
        records = [_record(done, cell, label) for cell in cells]
        alone = [_record(done, cell, ALONE) for cell in cells]
        best = [_record(done, cell, "cap 3R") for cell in cells]
        if not records:
            continue
        change = np.concatenate(
            [np.subtract(a["accuracy"], b["accuracy"]) for a, b in zip(records, alone, strict=True)]
        )
        average = 100 * np.mean([np.mean(one["accuracy"]) for one in records])
        gap = average - 100 * np.mean([np.mean(one["accuracy"]) for one in best])
        loss = np.mean([np.mean(one["nll"]) for one in records])
        steps = np.mean(
            [one["steps"] / other["steps"] for one, other in zip(records, alone, strict=True)]
        )
        yield (
            f"| {model}, {len(cells)} cells | {label} | {average:.2f} | {gap:+.2f} | "
            f"{100 * change.min():+.1f} | {(change < 0).sum()} of {len(change)} | {loss:.3f} | "
            f"{steps:.2f} |"
        )


def _is_complete(done: dict[tuple[Any, ...], dict[str, Any]], cell: tuple[str, str, int]) -> bool:
    for label in (ALONE, *METHODS):
        record = _record(done, cell, label)
        if not record or "diverged" in record:
            return False
    return True


def _record(
    done: dict[tuple[Any, ...], dict[str, Any]], cell: tuple[str, str, int], label: str
) -> dict[str, Any]:
    model, setting, seed = cell
    return done.get(("development", model, setting, label, seed), {})


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
