"""Trials on development seeds before the second form of Poise was frozen.

    python studies/poise/development.py run [--budget MINUTES]       # the first series
    python studies/poise/development.py second [--budget MINUTES]    # the second one
    python studies/poise/development.py bases [--budget MINUTES]     # of the second, bases first
    python studies/poise/development.py choice [--budget MINUTES]    # of the second, the last forms
    python studies/poise/development.py last --model lenet           # the last forms, fresh seeds
    python studies/poise/development.py wide --model lenet           # the same on other data
    python studies/poise/development.py table

Results are in development.jsonl; what it holds already is not run again. DEVELOPMENT.md reads them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
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
    "cap R": variants.Specified(tune_cap=1),
    "cap 3R": variants.Specified(tune_cap=3),
    "without G": variants.WithoutGlobal(),
    "several lengths": variants.SeveralLengths(),
    "variant X": variants.VariantX(),
    "finish, FedAvg": {"name": "fedavg", "finish": {"name": "poise"}},
    "finish, FedAvgM": {"name": "fedavgm", "beta": 0.5, "finish": {"name": "poise"}},
    "finish, FedDC (SGD)": {"name": "feddc", "finish": {"name": "poise"}},
    "finish, FedAvg (SGD)": {"name": "fedavg", "finish": {"name": "poise"}},
}
# The second series, with LeNet and digits: where the steps of L go, and what all data can judge.
SECOND: dict[str, Any] = {
    "cap 3R": variants.Specified(),
    "ftH27 + validation": METHODS["ftH27 + validation"],
    "spending": variants.Specified(spend=True),
    "spending, hold 1/2": variants.Specified(spend=True, hold=0.5),
    "spending, hold 1/3": variants.Specified(spend=True, hold=0.334),
    "spending, hold 1/5": variants.Specified(spend=True, hold=0.2),
    "spending, hold 1/3, FedAvgM": variants.KeepingL(),
    "spending, hold 1/5, FedAvgM": variants.KeepingL(hold=0.2),
    "and giving up L": Poise(),
    "giving up L, momentum 0.7": Poise(momentum=0.7),
    "giving up L, momentum 0.9": Poise(momentum=0.9),
    "hold 1/2": variants.Specified(hold=0.5),
    "without L, tuned twice as long": variants.Specified(
        alone=False, tune_epochs=10, tune_steps=200
    ),
    "variant X": variants.VariantX(),
    "ridge head": variants.RidgeHead(),
    "cross-fitted": variants.CrossFitted(),
    "finish, FedAvgM": METHODS["finish, FedAvgM"],
    "ftH27 of FedAvgM + validation": {
        "name": "fedavgm",
        "beta": 0.5,
        "finish": {"name": "finetune", "tune_epochs": 27, "tune_average": "second_half"},
    },
    "ftH27 of FedAvgM 0.7 + validation": {
        "name": "fedavgm",
        "beta": 0.7,
        "finish": {"name": "finetune", "tune_epochs": 27, "tune_average": "second_half"},
    },
    "finish, FedDyn": {"name": "feddyn", "finish": {"name": "poise"}},
    "ftH27 of FedDyn + validation": {
        "name": "feddyn",
        "finish": {"name": "finetune", "tune_epochs": 27, "tune_average": "second_half"},
    },
}
BASES = (
    "cap 3R",
    "ftH27 + validation",
    "finish, FedAvgM",
    "ftH27 of FedAvgM + validation",
    "finish, FedDyn",
    "ftH27 of FedDyn + validation",
)
CHOICE = (
    "cap 3R",
    "ftH27 + validation",
    "spending, hold 1/3",
    "spending, hold 1/5",
    "spending, hold 1/3, FedAvgM",
    "spending, hold 1/5, FedAvgM",
    "ftH27 of FedAvgM + validation",
)
LAST = (
    "ftH27 + validation",
    "spending, hold 1/3, FedAvgM",
    "and giving up L",
    "giving up L, momentum 0.7",
    "giving up L, momentum 0.9",
    "ftH27 of FedAvgM + validation",
    "ftH27 of FedAvgM 0.7 + validation",
)
SECOND_SEEDS = (100, 101, 102, 103)
SECOND_CELLS = (
    ("lenet", "dirichlet-0.5"),
    ("mlp", "dirichlet-0.5"),
    ("lenet", "ics-5"),
    ("mlp", "pow"),
    ("lenet", "digits"),
    ("mlp", "ics-5"),
)
CHOICE_CELLS = (
    ("lenet", "dirichlet-0.5"),
    ("mlp", "dirichlet-0.5"),
    ("lenet", "dirichlet-0.1"),
    ("mlp", "dirichlet-0.1"),
    ("lenet", "ics-5"),
    ("mlp", "pow"),
)
FINAL = (
    "ftH27 + validation",
    "and giving up L",
    "giving up L, momentum 0.7",
    "ftH27 of FedAvgM 0.7 + validation",
)
LAST_SEEDS = (101, 102)
WIDE_SEEDS = (100,)
# Network, setting and number of rounds; None for that of the setting.
WIDE_CELLS = (
    ("mlp", "dirichlet-0.5", 60),
    ("mlp", "ics-5", 60),
    ("mlp", "part", None),
    ("mlp", "digits", None),
    ("mlp", "hospitals", None),
    ("mlp", "breast", None),
    ("mlp", "retina-classes", None),
    ("mlp", "acs", None),
    ("lenet", "office", None),
    ("lenet", "digits", None),
    ("lenet", "dirichlet-0.5", 60),
)
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
    """Run what is missing of the first series until the budget in minutes is used."""
    cells = (("development", METHODS[label], *cell, label) for *cell, label in _order())
    _run(cells, budget)


def second(
    budget: float,
    labels: Iterable[str] = SECOND,
    settings: Iterable[tuple[str, str]] = SECOND_CELLS,
) -> None:
    """Run what is missing of the second series until the budget in minutes is used.

    Args:
        budget: Minutes of processor time.
        labels: The methods to run.
        settings: Networks and settings.
    """
    cells = (
        ("second series", SECOND[label], model, setting, seed, label)
        for seed in SECOND_SEEDS
        for model, setting in tuple(settings)
        for label in tuple(labels)
    )
    _run(cells, budget)


def bases(budget: float) -> None:
    """Run of the second series the bases other than FedAvg, and what they are compared with."""
    second(budget, BASES)


def choice(budget: float) -> None:
    """Run of the second series the forms between which to choose, also where few labels overlap."""
    second(budget, CHOICE, CHOICE_CELLS)


def wide(budget: float, labels: Iterable[str], network: str) -> None:
    """Run forms with one network on other data, and for more rounds.

    Args:
        budget: Minutes of processor time.
        labels: The forms.
        network: The network.
    """
    for model, setting, rounds in WIDE_CELLS:
        if model != network:
            continue
        part = "second series" if rounds is None else f"second series, {rounds} rounds"
        cells = (
            (part, SECOND[label], model, setting, seed, label)
            for seed in WIDE_SEEDS
            for label in tuple(labels)
        )
        began = time.process_time()
        _run(cells, budget, {} if rounds is None else {"rounds": rounds})
        budget -= (time.process_time() - began) / 60


def last(budget: float, model: str) -> None:
    """Run the last forms with one network on fresh seeds."""
    _run(
        (
            ("second series", SECOND[label], network, setting, seed, label)
            for seed in LAST_SEEDS
            for network, setting in CHOICE_CELLS
            for label in LAST
            if network == model
        ),
        budget,
    )


def _run(
    cells: Iterable[tuple[Any, ...]], budget: float, changes: dict[str, Any] | None = None
) -> None:
    """Run one cell after another until the budget in minutes of processor time is used."""
    study = Study(RESULTS)
    began = time.process_time()
    for part, method, model, setting, seed, label in cells:
        if time.process_time() - began > 60 * budget:
            print("the budget is used")
            return
        study.one(
            part,
            setting,
            label,
            method,
            seed,
            model=model,
            change=with_validation if label.endswith("+ validation") else None,
            common=MEASURED | (changes or {}),
            **(SGD if label.endswith("(SGD)") else {}),
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
    lines = [
        "| series | network | method | cells | average | minus cap 3R | worst change | below alone |"
        " NLL | steps |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for part, labels in (("development", METHODS), ("second series", SECOND)):
        for model in ("mlp", "lenet"):
            rows = (_row(part, model, label) for label in labels)
            lines += [row for row in rows if row]
    return "\n".join(lines)


def _row(part: str, model: str, label: str) -> str:
    """Return the row of a method; empty if it has no result."""
    records: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for key, record in known(RESULTS).items():
        if key[:2] == (part, model) and "accuracy" in record:
            records.setdefault(key[3], {})[key[2], key[4]] = record
    rows = [records.get(name, {}) for name in (label, ALONE, BEST)]
    cells = sorted(set(rows[0]) & set(rows[1]) & set(rows[2]))
    if not cells:
        return ""
    own, alone, best = ([row[cell] for cell in cells] for row in rows)
    average, reference = (
        100 * np.array([np.mean(one["accuracy"]) for one in records]) for records in (own, best)
    )
    gap = average - reference
    error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else float("nan")
    change = np.concatenate(
        [np.subtract(a["accuracy"], b["accuracy"]) for a, b in zip(own, alone, strict=True)]
    )
    steps = np.mean([a["steps"] / b["steps"] for a, b in zip(own, alone, strict=True)])
    return (
        f"| {part} | {model} | {label} | {len(cells)} | {average.mean():.2f} | "
        f"{gap.mean():+.2f} ± {error:.2f} | "
        f"{100 * change.min():+.1f} | {(change < 0).sum()} of {len(change)} | "
        f"{np.mean([np.mean(one['nll']) for one in own]):.3f} | {steps:.2f} |"
    )


def main() -> None:
    """Run one of the series, or print their table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "command", choices=["run", "second", "bases", "choice", "last", "wide", "table"]
    )
    parser.add_argument("--budget", type=float, default=40.0, help="minutes of processor time")
    parser.add_argument(
        "--model", choices=["mlp", "lenet"], default="mlp", help="for `last`, `wide`"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "table":
        print(table())
    elif arguments.command == "last":
        last(arguments.budget, arguments.model)
    elif arguments.command == "wide":
        wide(arguments.budget, FINAL, arguments.model)
    else:
        commands = {"run": run, "second": second, "bases": bases, "choice": choice}
        commands[arguments.command](arguments.budget)


if __name__ == "__main__":
    main()
