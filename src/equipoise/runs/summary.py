"""How a run ended, in numbers: average, worst, best, and gains against training alone where that is known."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.metrics import accuracy_variance, between_client_variance
from equipoise.runs.run import Run
from equipoise.runs.store import DATABASE, RunError


def facts(run: Run, alone: Run | None = None, model: str | None = None) -> dict[str, Any]:
    """What `equipoise show` prints."""
    name, metric = model or run.main_model, run.main_metric
    values = run.final(metric, name)
    sizes = dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))
    lower = metric == "rmse"
    found: dict[str, Any] = {
        "run": str(run.folder),
        "status": run.status,
        "round": run.last_round,
        "rounds": run.config["rounds"],
        "data": run.store.meta("data"),
        "partition": run.config["data"]["partition"],
        "method": run.config["method"],
        "seed": run.config["seed"],
        "created": run.store.meta("created"),
        "clients": len(run.clients),
        "model": name,
        "models": run.models(),
        "metric": metric,
        "split": run.main_split,
        "rejected replies": len(run.rejected()),
    }
    if values:
        numbers = np.array(list(values.values()))
        best, worst = (min, max) if lower else (max, min)
        found |= {
            "average": float(numbers.mean()),
            "worst": float(worst(numbers)),
            "best": float(best(numbers)),
            "std": float(numbers.std()),
        }
        found |= _without_noise(run, metric, values)
    rows: dict[str, dict[str, Any]] = {client: {"samples": sizes.get(client), "value": value} for client, value in values.items()}
    if alone is not None:
        _comparable(run, alone)
        reference = alone.final(metric)
        for client, row in rows.items():
            if client in reference:
                row |= {"alone": reference[client], "gain": (reference[client] - row["value"]) * (1 if lower else -1) + 0.0}
        gains = [row["gain"] for row in rows.values() if "gain" in row]
        if gains:
            found |= {
                "against": str(alone.folder),
                "gained": sum(g > 0 for g in gains),
                "lost": sum(g < 0 for g in gains),
                "average gain": float(np.mean(gains)),
            }
    return found | {"per client": rows}


def _without_noise(run: Run, metric: str, values: dict[str, float]) -> dict[str, float]:
    """The spread of accuracy over clients that finite test sets do not explain; nothing where it cannot be said."""
    totals = dict(zip(run.clients, run.store.meta("sizes")["test"], strict=True))
    if metric != "accuracy" or run.main_split != "test" or any(totals.get(client, 0) < 2 for client in values):
        return {}
    numbers = list(values.values())
    noise = accuracy_variance(numbers, [totals[client] for client in values])
    return {"std without test noise": float(np.sqrt(between_client_variance(numbers, noise)["debiased"]))}


def _comparable(run: Run, alone: Run) -> None:
    if run.store.meta("fingerprint") != alone.store.meta("fingerprint"):
        raise RunError(
            f"{run.folder} and {alone.folder} cannot be compared: their data or partition differ; use runs of the same data, partition and seed"
        )


def baseline_of(run: Run) -> Run | None:
    """A finished Standalone run beside this one, of the same data and schedule; None if there is none."""
    if run.config["method"]["name"] == "standalone":
        return None
    for folder in runs_in(run.folder.parent):
        if folder == run.folder:
            continue
        try:
            other = Run(folder)
            same = all(
                other.config[key] == run.config[key] for key in ("rounds", "seed", "training", "model", "models")
            ) and other.store.meta("fingerprint") == run.store.meta("fingerprint")
            if same and other.config["method"]["name"] == "standalone" and other.status == "finished":
                return other
        except (RunError, OSError, KeyError, TypeError, ValueError, sqlite3.Error):  # another's folder, in whatever state it is
            continue
    return None


def runs_in(folder: Path) -> list[Path]:
    """The folders inside that hold a run; what may not be read is passed over."""
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in found if os.path.exists(path / DATABASE)]  # unlike Path.exists it takes no permission for an answer
