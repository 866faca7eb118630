"""Runs made up without training: the store of a run with numbers that a test chooses."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from equipoise.comparison.entries import Entry
from equipoise.experiment import Experiment
from equipoise.metrics.registry import find
from equipoise.runs import MetricResult, ModelResult, RunResult
from equipoise.storage.store import RoundRecord, Store
from equipoise.task import Task


def made_up_run(
    folder: Path,
    method: str = "fedavg",
    clients: int | list[str] = 4,
    rounds: int = 3,
    finished: bool = True,
    level: float = 0.6,
    regression: bool = False,
    shared_test: int = 0,
    fingerprint: str = "data",
    **settings: Any,
) -> Path:
    """A run whose numbers follow from its arguments: client k has level + k/100, rising by round;
    50 test samples each.
    """
    ids = [str(k) for k in range(clients)] if isinstance(clients, int) else clients
    config = Experiment(method=method, rounds=rounds, **settings)
    draw = np.random.default_rng([config.seed, len(method), len(ids)])
    count = len(ids)
    store = Store.create(
        folder,
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
        {
            "created": "2026-01-01T00:00:00+00:00",
            "version": "0.1.0",
            "environment": {"python": "3.11", "torch": "2", "cpu": "AVX2"},
            "task": {
                "kind": "regression" if regression else "classification",
                "shape": [3],
                "outputs": 1 if regression else 2,
                "class_names": [],
            },
            "data": config.data.name,
            "clients": ids,
            "sizes": {
                "train": [100 + k for k in range(count)],
                "validation": [10] * count,
                "test": [50] * count,
            },
            "shared test": shared_test,
            "facts": {},
            "recipe": {},
            "fingerprint": f"{fingerprint}-{config.seed}-{config.data.partition}",
            "method": config.model_dump(mode="json")["method"],
            "not portable": None,
        },
    )
    model, metric = (
        "personal" if method == "standalone" else "global",
        "rmse" if regression else "accuracy",
    )
    split = "shared" if shared_test else "test"
    store.commit(RoundRecord(0, 0, [], []), 2)
    for number in range(1, rounds + 1 if finished else rounds):
        record = RoundRecord(number, 0, list(ids), list(ids), bytes_down=1000, bytes_up=500)
        values = (
            np.round(50 * np.clip(level + 0.3 * draw.random(count) - 0.1 * (rounds - number), 0, 1))
            / 50
        )
        named = (
            {"all": float(values[0])}
            if shared_test and model == "global"
            else dict(zip(ids, values.tolist(), strict=True))
        )
        record.measurements = [
            (client, model, "received", part, metric, value)
            for client, value in named.items()
            for part in ("validation", split)
        ]
        if method != "standalone":
            record.weights = dict.fromkeys(ids, 1 / count)
        record.seconds = {"clients": 0.5, "transport": 0.1, "aggregation": 0.1}
        store.commit(record, 2, "finished" if number == rounds else "running")
    store.close()
    return folder


def made_up_result(
    method: str,
    seed: int,
    values: list[float] | dict[str, float],
    metric: str = "accuracy",
    partition: str = "iid",
    others: dict[str, dict[str, float]] | None = None,
    **scores: Any,
) -> RunResult:
    """Return a result with one value for each client.

    Args:
        method: The name of the method.
        seed: The seed.
        values: Values of the main metric, by client or of clients 0, 1, ...
        metric: The main metric.
        partition: The partition.
        others: Further metrics by client.
        scores: Further attributes of the main metric, as in `MetricResult`.
    """
    config = {
        "method": {"name": method},
        "seed": seed,
        "data": {"name": "digits", "partition": partition},
        "rounds": 5,
        "evaluation": {"splits": ["test"], "clients": "all", "metrics": []},
    }
    if isinstance(values, list):
        values = {str(k): value for k, value in enumerate(values)}
    metrics = {metric: MetricResult(find(metric), values, **scores)}
    for name, by_client in (others or {}).items():
        metrics[name] = MetricResult(find(name), by_client)
    return RunResult(
        folder=Path(f"{method}-{seed}"),
        config=config,
        data="digits",
        task=Task("classification", (3,), 2),
        fingerprint=f"print-{seed}",
        main_model="global",
        main_metric=metric,
        models={"global": ModelResult("global", metrics)},
        clients=list(values),
        sizes={"train": [100] * len(values)},
        cost={"steps": 30.0, "megabytes": 1.0, "seconds": 2.0},
    )


def entry(label: str, run: RunResult, alone: RunResult | None = None, **more: Any) -> Entry:
    """Return a run in a table, with gains over a run of training alone."""
    return Entry(label, run.against(alone), **more)


def change(folder: Path, *statements: str) -> None:
    """Alter the store of a run behind its back."""
    db = sqlite3.connect(folder / "run.db")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()
