"""Poise with clients that lie, with tiny and odd clients, and with a global model that diverges.

    python studies/poise/robustness.py run      # about two minutes of one core
    python studies/poise/robustness.py table

Digits of 8 x 8 pixels, ten clients by Dirichlet(0.5) with about 72 training, 18 validation and 90
test samples each, 15 rounds, mlp (`SMALL` in settings.py). Clients are compared with training alone
on the same data and seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import variants
from equipoise.data import Federation, Parts
from equipoise.methods.poise import Poise
from frozen import LEVEL, mcnemar
from study import ALONE, Study, known, with_validation

RESULTS = Path(__file__).parent / "robustness.jsonl"
SEEDS = (200, 201, 202)
SETTING = "small"
HELD_OUT = 5  # of 15 rounds
ODD = 0  # the position of the client whose data are changed


def tiny(federation: Federation) -> Federation:
    """Leave the first client four training samples and one validation sample."""
    return _with_first(federation, federation.train[ODD][:4], federation.validation[ODD][:1])


def one_class(federation: Federation) -> Federation:
    """Leave the first client its most frequent class, also in its test data."""
    labels = federation.y.numpy()
    most = np.bincount(labels[np.array(federation.train[ODD])]).argmax()

    def of_class(part: np.ndarray) -> np.ndarray:
        positions = np.array(part)
        return positions[labels[positions] == most]

    changed = _with_first(
        federation, of_class(federation.train[ODD]), of_class(federation.validation[ODD])
    )
    tests = [np.array(part) for part in federation.test]
    tests[ODD] = of_class(federation.test[ODD])
    return replace(changed, test=Parts.of(tests))


def without_validation(federation: Federation) -> Federation:
    """Leave nobody any validation data."""
    return replace(
        federation, validation=Parts.of([np.array(part)[:0] for part in federation.validation])
    )


def _with_first(federation: Federation, train: Any, validation: Any) -> Federation:
    trains = [np.array(part) for part in federation.train]
    validations = [np.array(part) for part in federation.validation]
    trains[ODD], validations[ODD] = np.array(train), np.array(validation)
    return replace(federation, train=Parts.of(trains), validation=Parts.of(validations))


@dataclass(frozen=True)
class Case:
    """A situation.

    Attributes:
        name: Its name.
        methods: The methods by label.
        change: Changes the data.
        counted: The positions of the clients that are counted.
    """

    name: str
    methods: dict[str, Any]
    change: Callable[[Federation], Federation] | None = None
    counted: tuple[int, ...] = tuple(range(10))


HONEST = tuple(range(2, 10))
LIARS = {
    "poise": variants.Lying(variant="two"),
    "poise, first form": variants.Lying(),
    "ftH27 + validation": variants.LyingFinetune(tune_epochs=27, tune_average="second_half"),
}
CASES = (
    Case("nobody lies", {"poise": Poise()}),
    Case("two flip and lie", LIARS, counted=HONEST),
    Case(
        "two flip after judging",
        {"poise": variants.Lying(variant="two", flip_after=HELD_OUT)},
        counted=HONEST,
    ),
    Case(
        "a client with 4 + 1 samples",
        {
            "poise, cap R": Poise(tune_cap=1),
            "poise": Poise(),
            "poise, first form": Poise(variant="one"),
        },
        tiny,
        (ODD,),
    ),
    Case("no validation data", {"poise": Poise()}, without_validation),
    Case("a client with one class", {"poise": Poise()}, one_class, (ODD,)),
    Case("the global model diverges", {"poise": variants.Diverging()}),
    Case(
        "it diverges, without the guard (judged at the end)",
        {"poise": variants.Diverging(hold=1.0)},
    ),
)


def run() -> None:
    """Run the cases that are not complete."""
    study = Study(RESULTS)
    for case in CASES:
        for seed in SEEDS:
            part = f"robustness, {case.name}"
            keys = [(part, "mlp", SETTING, label, seed) for label in (ALONE, *case.methods)]
            if all(key in study.done for key in keys):
                continue
            # Later runs need the samples that training alone gets right.
            study.train_alone(part, SETTING, seed, change=case.change)
            for label, method in case.methods.items():
                change = with_validation if label.endswith("+ validation") else case.change
                study.one(part, SETTING, label, method, seed, change=change)


def table() -> str:
    """Return the table of all cases."""
    done = known(RESULTS)
    lines = [
        "| case | method | seeds | average | alone | worst change | below alone | significantly |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for label in case.methods:
            row = _row(done, case, label)
            if row:
                lines.append(row)
    return "\n".join(lines)


def _row(done: dict[tuple[Any, ...], dict[str, Any]], case: Case, label: str) -> str:
    """Return the row of a method over the seeds that it has; empty without any."""
    part, counted = f"robustness, {case.name}", list(case.counted)
    own, alone, significant = [], [], 0
    for seed in SEEDS:
        record = done.get((part, "mlp", SETTING, label, seed))
        if record is None:
            continue
        own.append(np.array(record["accuracy"])[counted])
        alone.append(np.array(done[part, "mlp", SETTING, ALONE, seed]["accuracy"])[counted])
        for position in counted:
            significant += mcnemar(record["lost"][position], record["won"][position]) < LEVEL
    if not own:
        return ""
    accuracy, reference = np.concatenate(own), np.concatenate(alone)
    change = accuracy - reference
    return (
        f"| {case.name} | {label} | {len(own)} | {100 * accuracy.mean():.1f} | {100 * reference.mean():.1f} | "
        f"{100 * change.min():+.1f} | {(change < 0).sum()} of {len(change)} | {significant} |"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["run"]:
        run()
    elif sys.argv[1:] == ["table"]:
        print(table())
    else:
        sys.exit("expected run or table")
