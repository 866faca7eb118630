"""docs/extending.md is true: its code, installed as a package outside the project, adds one thing
of every kind.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data import partitions, sets
from equipoise.data.federation import Parts
from equipoise.methods.scaffold import Scaffold
from equipoise.runs import read_result
from equipoise.runs.notes import notes
from equipoise.storage.store import RunError
from equipoise.testing import check_method
from tests.helpers.callbacks import Calling
from tests.helpers.packages import installed
from tests.helpers.runs import played, same_run, settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
MODULES = {name: text for name, text in BLOCKS.items() if name != "pyproject.toml"}
POINTS = tomllib.loads(BLOCKS["pyproject.toml"])["project"]["entry-points"]
DATA = {"name": "digits", "clients": 3, "samples": 150}


@pytest.fixture
def addons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with installed(monkeypatch, tmp_path / "site", "my_addons", MODULES, POINTS) as folder:
        yield folder


def module(name: str) -> Any:
    return importlib.import_module(f"my_addons.{name}")


def run_file(tmp_path: Path, name: str = "run", **config: Any) -> eq.Run:
    """A run of a file, without any permission but the package's entry points."""
    config = {"data": DATA, "rounds": 1, "workers": 0, "seed": 2, **config}
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    return eq.run(str(file), tmp_path / name)


def equipoise(addons: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, which finds the package by itself."""
    path = os.pathsep.join([str(addons), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "equipoise", *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )


def in_one_process(addons: Path, *commands: list[str]) -> list[str]:
    """What several commands print, in one process that finds the package by itself."""
    program = (
        "import json, sys\n"
        "from typer.testing import CliRunner\n"
        "from equipoise.cli import app\n"
        "print(json.dumps([CliRunner().invoke(app, c).stdout for c in json.loads(sys.argv[1])]))"
    )
    path = os.pathsep.join([str(addons), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    printed: list[str] = json.loads(done.stdout)
    return printed


def test_the_page_has_one_of_every_kind() -> None:
    assert {group.removeprefix("equipoise.") for group in POINTS} == {
        "methods", "models", "metrics", "partitions", "datasets", "losses", "commands",
    }  # fmt: skip
    for points in POINTS.values():
        for value in points.values():
            assert f"{value.partition(':')[0].replace('.', '/')}.py" in MODULES


@pytest.mark.thorough
def test_a_method_remembers_at_the_server_and_at_clients(addons: Path, tmp_path: Path) -> None:
    run = run_file(tmp_path, method={"name": "damped", "damping": 0.9}, rounds=2)
    assert set(run.final(model="personal")) == set(run.clients)
    plain = run_file(tmp_path, "plain", method={"name": "damped", "damping": 0.0}, rounds=2)
    assert run.final("loss", "global") != plain.final("loss", "global")
    # without damping it is FedAvg but for the rounding of one sum
    fedavg = run_file(tmp_path, "fedavg", rounds=2)
    assert plain.final("loss", "global") == pytest.approx(fedavg.final("loss"), rel=1e-4)
    checks = check_method(
        module("methods").Damped, checks=["state_round_trips", "payload_travels", "repeats"]
    )
    assert {result.outcome for result in checks} == {"passed"}


def test_a_model(addons: Path, tmp_path: Path) -> None:
    run = run_file(tmp_path, model={"name": "wide", "width": 8})
    assert run.model("global")(np_to_torch((2, 1, 8, 8))).shape == (2, 10)
    with pytest.raises(ValueError, match="wide.*depth"):
        run_file(tmp_path, "wrong", model={"name": "wide", "depth": 8})
    with pytest.raises(ValueError, match="unknown model 'wied'; did you mean 'wide'"):
        run_file(tmp_path, "typo", model="wied")


def np_to_torch(shape: tuple[int, ...]) -> Any:
    import torch

    return torch.zeros(shape)


def test_a_metric(addons: Path, tmp_path: Path) -> None:
    evaluation = {"metrics": ["accuracy", "top_two", "within"], "main": "top_two"}
    run = run_file(tmp_path, evaluation=evaluation)
    assert run.main_metric == "top_two" and set(run.final()) == set(run.clients)
    for client, value in run.final().items():
        assert 0 <= run.final("accuracy")[client] <= value <= 1
        assert run.final("accuracy")[client] <= run.final("within")[client] <= 1


def test_a_partition(addons: Path, tmp_path: Path) -> None:
    parts = partitions.partition_pool("alternate:2", partitions.Pool(np.zeros(10), 1), 3, 0)
    assert [part.tolist() for part in parts.parts] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]
    short = run_file(tmp_path, data={**DATA, "partition": "alternate:block=5"})
    long = run_file(
        tmp_path, "long", data={**DATA, "partition": "my_addons.partitions:alternate:5"}
    )
    assert short.final("loss") == long.final("loss")
    given = eq.Experiment(
        data={**DATA, "partition": module("partitions").alternate}, rounds=1, workers=0
    )
    assert given.to_spec()["data"]["partition"] == "my_addons.partitions:alternate"
    assert len(eq.run(given, tmp_path / "given").clients) == 3
    with pytest.raises(ValueError, match="no parameter 'blok'; did you mean 'block'"):
        run_file(tmp_path, "typo", data={**DATA, "partition": "alternate:blok=5"})


def test_a_data_set(addons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"model": {"name": "mlp", "hidden": [16]}, "rounds": 3, "training": {"epochs": 4}}
    made = run_file(tmp_path, data={"name": "stripes"}, **wanted)
    assert made.clients == ["north", "south"] and min(made.final().values()) > 0.9
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"stripe_files.npz"):
        run_file(tmp_path, "missing", data={"name": "stripe_files", "clients": 2}, **wanted)
    x = (module("sets").stripes().x.numpy() * 255).clip(0, 255).astype(np.uint8)
    y = np.arange(120) % 2
    np.savez(
        tmp_path / "stripe_files.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:]
    )
    stored = run_file(tmp_path, "stored", data={"name": "stripe_files", "clients": 2}, **wanted)
    assert stored.task.class_names == ("lying", "standing")
    with pytest.raises(ValueError, match="nothing to fetch"):
        sets.entry("stripes")


def test_a_loss(addons: Path, tmp_path: Path) -> None:
    losses = ["default", "confident", {"name": "confident", "weight": 0.5}]
    runs = [run_file(tmp_path, f"run{k}", training={"loss": loss}) for k, loss in enumerate(losses)]
    values = [tuple(run.final("loss").values()) for run in runs]
    assert len(set(values)) == 3
    zero = run_file(tmp_path, "zero", training={"loss": {"name": "confident", "weight": 0.0}})
    assert tuple(zero.final("loss").values()) == pytest.approx(values[0], rel=1e-4)
    with pytest.raises(ValueError, match="weigth.*did you mean 'weight'"):
        run_file(tmp_path, "typo", training={"loss": {"name": "confident", "weigth": 1}})


def test_a_transport(addons: Path, tmp_path: Path) -> None:
    """The same run as in process, bit for bit, though clients are asked in another order."""
    asked: list[str] = []

    class Recording(Scaffold):
        def client(self, client: Any, down: Any) -> Any:
            asked.append(client.id)
            return super().client(client, down)

    backwards = module("transports").Backwards
    recorded = settings(Recording(), rounds=2)
    other = played(recorded, tmp_path / "other", transport=backwards)
    assert asked[:4] == ["di", "cy", "bo", "ada"]
    config = settings("scaffold", rounds=2)
    same_run(played(config, tmp_path / "here"), other)


def test_worker_processes_find_all_of_it_and_compute_the_same(addons: Path, tmp_path: Path) -> None:
    config = {
        "method": "damped",
        "model": "wide",
        "data": {**DATA, "partition": "alternate:2"},
        "training": {"loss": "confident"},
        "evaluation": {"metrics": ["within", "top_two", "loss"]},
    }
    here = run_file(tmp_path, "here", **config)
    there = run_file(tmp_path, "there", workers=2, **config)
    for metric in ("within", "top_two", "loss"):
        assert here.final(metric) == there.final(metric)


def test_a_callback_logs_and_stops_and_the_run_says_so(addons: Path, tmp_path: Path) -> None:
    log = tmp_path / "rounds.txt"
    stop = module("callbacks").StopAt(0.0, log)
    run = eq.run({"data": DATA, "rounds": 3, "workers": 0}, tmp_path / "run", callbacks=stop)
    assert run.stopped_early and run.last_round == 1
    assert [line.split()[:2] for line in log.read_text().splitlines()] == [["1", "3"]]
    with pytest.raises(RunError, match="a callback stopped it after round 1 of 3"):
        eq.resume(tmp_path / "run")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")]).output
    assert "stopped early, round 1 of 3" in " ".join(shown.split())


def test_a_callback_that_is_passed_again_counts_the_rounds_before_a_kill(
    addons: Path, tmp_path: Path
) -> None:
    config = {"data": DATA, "rounds": 5, "workers": 0}
    stop_at = module("callbacks").StopAt

    def killed(folder: str, after: int) -> Path:
        def fail(record: Any) -> None:
            if record.round == after:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            eq.run(config, tmp_path / folder, callbacks=Calling(on_round=fail))
        return tmp_path / folder

    log = tmp_path / "rounds.txt"
    for after in (1, 3):
        resumed = eq.resume(killed(f"killed-{after}", after), callbacks=stop_at(0.0, log, times=3))
        assert resumed.stopped_early and resumed.last_round == 3
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["2", "3"]
    assert eq.resume(killed("without", 2)).last_round == 5


def test_an_overlap_and_an_empty_part_are_as_the_page_says(addons: Path, tmp_path: Path) -> None:
    def overlapping(pool: Any, clients: int, seed: int) -> Any:
        half = np.arange(len(pool) // 2)
        return partitions.Partition(Parts.of([half, half, np.empty(0, int)]))

    experiment = eq.Experiment(data={**DATA, "partition": overlapping}, rounds=1, workers=0)
    result = read_result(eq.run(experiment, tmp_path / "run"))
    assert sum(result.sizes["train"]) + sum(result.sizes["validation"]) < 150
    assert set(result.main.values) == {"0", "1"}
    assert any(note.startswith("client 2 has no samples") for note in notes(result))


def test_the_pool_of_a_partition_has_what_the_page_says(addons: Path) -> None:
    pool = partitions.Pool(
        y=np.array([0, 1]), classes=2, site=np.array([0, 1]), site_names=("a", "b"),
        features=lambda: np.zeros((2, 5)),
    )  # fmt: skip
    section = PAGE.partition("| `pool` has |")[2].partition("\n\n")[0]
    for expression in re.findall(r"`(pool\.\w+)", section):
        assert hasattr(pool, expression.removeprefix("pool."))


@pytest.mark.thorough
def test_the_command_line_lists_all_of_it_and_runs_the_command(
    addons: Path, tmp_path: Path
) -> None:
    run_file(tmp_path, data={"name": "stripes"})
    said = equipoise(addons, "hello", str(tmp_path / "run"))
    assert said.stdout.strip() == "hello north, south", said.stderr
    listings = {
        ("metrics",): ["top_two", "within"],
        ("losses",): ["confident"],
        ("data", "partitions"): ["alternate"],
    }
    listed = in_one_process(
        addons, *([*words, "--json"] for words in listings), ["methods"], ["models", "wide"]
    )
    for names, text in zip(listings.values(), listed, strict=False):
        sources = {row["name"]: row["source"] for row in json.loads(text)}
        assert {sources[name] for name in names} == {"my_addons 1.0"}
    assert "damped" in listed[-2]
    assert "One wide hidden layer" in listed[-1]


@pytest.mark.thorough
def test_a_run_is_read_without_the_package(addons: Path, tmp_path: Path) -> None:
    """Direction and unit of a metric are stored with the run."""
    run_file(tmp_path, evaluation={"main": "top_two"})
    alone = subprocess.run(
        [sys.executable, "-m", "equipoise", "show", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert alone.returncode == 0 and "top_two" in alone.stdout, alone.stderr
