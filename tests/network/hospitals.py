"""Hospitals for tests of a real network: their tables, the agreed schema, and runs to compare."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import simulate
from equipoise.data import DataConfig
from equipoise.data.check import check_data
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.transports.nvflare.jobs import Desk
from equipoise.transports.nvflare.scientist import submit, watch_until_end
from tests.helpers.runs import same_run
from tests.network.consortium import Consortium

HEART = Path(os.environ.get("EQUIPOISE_DATA", "")) / "uci_heart_disease.npz"
HOSPITALS = ("cleveland", "hungary", "switzerland", "va")


def small_tables(folder: Path, sites: tuple[str, ...]) -> dict[str, Any]:
    """Write a small table for each site, and return the data section of an experiment."""
    folder.mkdir(parents=True)
    for number, site in enumerate(sites):
        rows = [
            f"{40 + 5 * number + i % 20},{'yes' if (i * 7 + number) % 20 > 9 else 'no'}"
            for i in range(60)
        ]
        (folder / f"{site}.csv").write_text("\n".join(["age,sick", *rows]) + "\n")
    schema = {
        "label": "sick",
        "classes": ["no", "yes"],
        "columns": [
            {"name": "age", "kind": "number", "gaps": False, "centre": 55.0, "scale": 10.0}
        ],
    }
    return {"name": str(folder), "apart": True, "schema": schema}


def heart_tables(folder: Path) -> dict[str, Any]:
    """Write the UCI table of each hospital, and return the data section of an experiment."""
    folder.mkdir(parents=True)
    arrays = np.load(HEART)
    for site in HOSPITALS:
        np.savez(
            folder / f"{site}.npz",
            x=arrays[f"x_{site}"],
            feature_names=arrays["feature_names"],
            disease=(arrays[f"y_{site}"] > 0).astype(int),
        )
    config = DataConfig(name=str(folder), label="disease", categorical=("cp", "thal"))
    schema = check_data(config).schema
    assert schema is not None
    return {"name": str(folder), "apart": True, "schema": schema.plain()}


def give_data(consortium: Consortium, folder: Path) -> None:
    """Let each site use its own table."""
    for name, kit in consortium.sites.items():
        (table,) = folder.glob(f"{name}.*")
        own = kit.folder / "data" / table.name
        own.parent.mkdir()
        own.write_bytes(table.read_bytes())
        settings = kit.folder / "local" / "equipoise.yaml"
        text = settings.read_text().replace("data: null", f"data: data/{own.name}")
        settings.write_text(text)


def states_of(consortium: Consortium, run: Run, target: Path) -> Path:
    """Return a folder with the states of all sites of a run."""
    for kit in consortium.sites.values():
        states = kit.folder / "states" / str(run.store.meta("run")) / "states"
        if states.exists():
            shutil.copytree(states, target, dirs_exist_ok=True)
    target.mkdir(exist_ok=True)
    return target


def assert_same_bits(
    consortium: Consortium, desk: Desk, config: Mapping[str, Any], folder: Path
) -> Run:
    """Run an experiment over the network and in process, and compare everything."""
    run = submit(desk, experiment(config), folder / "network", tuple(consortium.sites))
    outcome = watch_until_end(desk, run, lambda progress: None)
    assert outcome.status == "finished", outcome
    there = Run(folder / "network")
    here = simulate.run(experiment(config), folder / "here", quiet=True)
    same_run(here, there, states_of(consortium, there, folder / "states"))
    assert str(here.counts()) == str(there.counts())
    return there
