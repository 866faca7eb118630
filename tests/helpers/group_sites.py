"""Hospitals whose patients have a sex and an age, as tables and as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import equipoise as eq
from equipoise.runs import Run

SIZES = {"east": 300, "north": 220, "west": 200}
SCHEMA = {
    "label": "disease",
    "classes": ["no", "yes"],
    "columns": [
        {"name": "a", "kind": "number", "gaps": False},
        {"name": "b", "kind": "number", "gaps": False},
        {"name": "c", "kind": "number", "gaps": False},
    ],
}
GROUPS = ["sex", {"age": [0, 50, 65, 120]}]


def columns(site: str, rows: int, women: float = 0.5) -> dict[str, np.ndarray]:
    """Return the columns of a hospital; the disease of women depends on b in place of a."""
    rng = np.random.default_rng(len(site) * 1000 + rows)
    x = rng.normal(size=(rows, 3))
    is_woman = rng.random(rows) < women
    risk = np.where(is_woman, 0.4 * x[:, 0] + 1.2 * x[:, 1], 1.6 * x[:, 0])
    sick = risk + 0.6 * rng.normal(size=rows) > 0.4
    return {
        "a": x[:, 0],
        "b": x[:, 1],
        "c": x[:, 2],
        "sex": np.where(is_woman, "f", "m"),
        "age": rng.integers(20, 90, rows).astype(float),
        "disease": np.where(sick, "yes", "no"),
    }


def write_sites(folder: Path, sites: Mapping[str, Mapping[str, np.ndarray]]) -> Path:
    """Write one CSV file per hospital."""
    folder.mkdir(parents=True, exist_ok=True)
    for site, table in sites.items():
        lines = [",".join(table)]
        for row in zip(*table.values(), strict=True):
            lines.append(",".join(map(str, row)))
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


def hospitals() -> dict[str, dict[str, np.ndarray]]:
    """Return the tables of three hospitals."""
    return {site: columns(site, rows) for site, rows in SIZES.items()}


def experiment(folder: Path, **more: Any) -> dict[str, Any]:
    """Return an experiment over a folder of hospitals in which sex and age are no inputs."""
    data = {"name": str(folder), "schema": SCHEMA, "groups": GROUPS, **more.pop("data", {})}
    settings: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [6]},
        "training": {"lr": 0.2, "batch": 32},
        "rounds": 2,
        "workers": 0,
        "method": "fedavg",
        "evaluation": {"every": 0, **more.pop("evaluation", {})},
    }
    return {**settings, **more, "data": data}


def finished(folder: Path, files: Path, **more: Any) -> Run:
    """Run an experiment over a folder of hospitals."""
    return eq.run(eq.Experiment(**experiment(files, **more)), folder)
