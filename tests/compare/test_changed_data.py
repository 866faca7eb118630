"""Comparisons that are called again after data or Python objects have changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comparison.executor import Progress
from equipoise.data import Column, Dataset, from_arrays
from equipoise.storage.store import RunError
from equipoise.task import Task
from tests.helpers.plans import plan
from tests.helpers.stores import change

SETTINGS = {"rounds": 1, "model": {"name": "mlp", "hidden": [4]}, "training": {"steps": 2}}


def write_table(path: Path, shift: float = 0.0) -> Path:
    """Write a table of three sites whose classes are this far apart."""
    draw = np.random.default_rng(0)
    lines = ["age,dose,site,label"]
    for row in range(90):
        age = draw.normal() + shift * (row % 2)
        lines.append(f"{age:.3f},{draw.normal():.3f},{'abc'[row % 3]},{row % 2}")
    path.write_text("\n".join(lines) + "\n")
    return path


def compared(folder: Path, seeds: list[int], **more: Any) -> eq.Comparison:
    data = {"name": str(folder / "patients.csv"), "label": "label", "site": "site"}
    base = {**SETTINGS, "data": data}
    return eq.compare(base, ["fedavg"], seeds=seeds, out=folder / "out", jobs=1, **more)


@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["the same command", "more seeds"])
def test_finished_runs_of_a_file_that_has_changed_are_refused(
    seeds: list[int], tmp_path: Path
) -> None:
    write_table(tmp_path / "patients.csv")
    first = compared(tmp_path, [1])
    write_table(tmp_path / "patients.csv", shift=8.0)
    started: list[object] = []
    progress = Progress(on_plan=lambda missing, finished: started.append(missing))
    with pytest.raises(RunError, match=r"standalone-s1-\w+ and 1 more: .*changed.*--out"):
        compared(tmp_path, seeds, progress=progress)
    assert started == []
    assert len(list((tmp_path / "out" / "runs").iterdir())) == len(first.entries)


def test_a_file_that_is_written_again_with_the_same_rows_has_not_changed(tmp_path: Path) -> None:
    write_table(tmp_path / "patients.csv")
    first = compared(tmp_path, [1])
    write_table(tmp_path / "patients.csv")
    again = compared(tmp_path, [1, 2])
    assert again.seeds == [1, 2]
    assert not again.failures
    means = [result.per_seed("natural", "average")["fedavg"][0] for result in (first, again)]
    assert means[0] == means[1]


def test_finished_runs_stay_where_their_file_is_gone(tmp_path: Path) -> None:
    write_table(tmp_path / "patients.csv")
    first = compared(tmp_path, [1])
    (tmp_path / "patients.csv").unlink()
    again = compared(tmp_path, [1])
    assert again.per_seed("natural", "average") == first.per_seed("natural", "average")


def test_runs_whose_fingerprint_an_older_version_wrote_are_accepted(tmp_path: Path) -> None:
    write_table(tmp_path / "patients.csv")
    for entry in compared(tmp_path, [1]).entries:
        change(
            entry.run.folder,
            "delete from meta where key = 'fingerprint of'",
            "update meta set value = '\"old\"' where key = 'fingerprint'",
        )
    assert len(compared(tmp_path, [1]).entries) == 2


def dataset(**facts: Any) -> Dataset:
    x = torch.arange(24.0).reshape(12, 2)
    task = facts.pop("task", Task("classification", (2,), 2))
    return Dataset("mine", x, torch.arange(12) % 2, task, **facts)


def name_of(**settings: Any) -> str:
    return plan({**SETTINGS, **settings}, ["fedavg"])[-1].name


SITES = {"site": np.arange(12) % 2, "site_names": ("a", "b")}


@pytest.mark.parametrize(
    "facts",
    [
        SITES,
        {**SITES, "site": np.arange(12) // 6},
        {**SITES, "site_names": ("a", "c")},
        {"part": np.arange(12) % 3},
        {"columns": (Column("age"), Column("sex", ("f", "m")))},
        {"part": np.arange(12) % 3, "keeps_parts": True},
        {"attributes": {"sex": np.array(["f", "m"] * 6)}},
        {"attributes": {"sex": np.array(["f", "m"] * 6, dtype=object)}},
        {"task": Task("classification", (2,), 3)},
    ],
)
def test_facts_about_samples_are_part_of_a_name(facts: dict[str, Any]) -> None:
    others = [{}, {**SITES, "site": np.arange(12) // 4 % 2}, {"part": np.arange(12) // 4}]
    names = {name_of(dataset=dataset(**other)) for other in others}
    assert name_of(dataset=dataset(**facts)) not in names
    assert name_of(dataset=dataset(**facts)) == name_of(dataset=dataset(**facts))


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (np.arange(12) % 2, "fedavg-s0-55043ddae3"),
        (np.linspace(0, 1, 12), "fedavg-s0-1f8e7d25ca"),
    ],
)
def test_a_data_set_without_such_facts_keeps_its_name(labels: np.ndarray, name: str) -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(12, 2)
    assert name_of(dataset=from_arrays(x, labels)) == name


def network(hidden: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 2))


def test_functions_that_make_different_models_have_different_names() -> None:
    models: list[Any] = [
        lambda: nn.Linear(2, 2),
        lambda: nn.Sequential(nn.Linear(2, 2)),
        lambda: nn.Linear(2, 2, bias=False),
        network(3),
        network(4),
        {"name": "mlp", "clients": {"0": network(3)}},
        {"name": "mlp", "clients": {"0": network(4)}},
    ]
    names = [name_of(dataset=dataset(), model=model) for model in models]
    assert len(set(names)) == len(models)
    assert name_of(dataset=dataset(), model=network(3)) == names[3]


def test_two_lambdas_are_not_taken_for_one_run(tmp_path: Path) -> None:
    parameters = []
    for hidden in (2, 50):
        base = {"dataset": dataset(**SITES), "rounds": 1, "model": network(hidden)}
        result = eq.compare(base, ["fedavg"], out=tmp_path, jobs=1)
        parameters.append(result.entries[-1].run.cost["megabytes"])
    assert parameters[0] < parameters[1]


def test_the_name_of_a_model_is_the_same_in_every_process() -> None:
    """Sets have another order in every process."""
    program = (
        "from equipoise.comparison.objects import model_identities\n"
        "KINDS = {'alpha', 'beta', 'gamma', 'delta'}\n"
        "def make(names=frozenset({'one', 'two', 'three'}), more={'x': {'p', 'q', 'r'}}):\n"
        "    return KINDS if 'one' in {'one', 'two', 'three'} else names\n"
        "print(model_identities({'model': make}))\n"
    )
    printed = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout)
    assert len(printed) == 1
