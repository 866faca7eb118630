"""Files from strangers: what they name is not imported, let alone called, unless the user allowed
its package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

import equipoise as eq
from equipoise.experiment import ConfigurationError, experiment, load
from equipoise.session import job_of
from equipoise.simulate import Simulation
from equipoise.storage.store import RunError
from equipoise.transports.base import Monitor
from equipoise.validation.imports import GROUPS, FromFile, Imports, permitted
from tests.helpers.callbacks import Calling
from tests.helpers.packages import write_package
from tests.helpers.runs import folder_of, sites
from tests.helpers.terminal import Terminal

# A package whose import leaves a trace, with a model, a method and things that a file must not
# reach through it.
PACKAGE = """
import subprocess
from os import system
from pathlib import Path
from torch import nn
import torch
from equipoise.methods.fedavg import FedAvg
Path(__file__).with_name("imported").touch()

class Net(nn.Sequential):
    def __init__(self, width: int = 4):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))

def made(task, width=4):
    return Net(width)

def traced(task):
    Path(__file__).with_name("called").touch()
    return 3

class Own(FedAvg):
    composable_weights = True

    def weights(self, server, state, ups):
        return super().weights(server, state, ups)

class NoModel:
    def __init__(self):
        Path(__file__).with_name("called").touch()
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds, and another that was stopped after the first."""
    folder = tmp_path_factory.mktemp("foreign")
    config = _config(folder_of(folder / "sites", sites()))
    eq.run(config, folder / "run")
    interrupted = KeyboardInterrupt()

    def stop(record: Any) -> None:
        if record.round == 1:
            raise interrupted

    with pytest.raises(KeyboardInterrupt):
        eq.run(config, folder / "stopped", Calling(on_round=stop))
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may change, next to a package that can be imported."""
    shutil.copytree(finished, tmp_path / "place")
    (tmp_path / "place" / "strange_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path / "place"))
    monkeypatch.delitem(sys.modules, "strange_package", raising=False)
    monkeypatch.chdir(tmp_path / "place")
    yield tmp_path / "place"
    sys.modules.pop("strange_package", None)


def _config(data: str, **more: Any) -> dict[str, Any]:
    return {
        "data": {"name": data, "split": [0.7, 0.15, 0.15]},
        "model": {"name": "mlp", "hidden": [6]},
        "method": {"name": "fedavg"},
        "rounds": 2,
        "workers": 0,
        **more,
    }


def _write(path: Path, **more: Any) -> Path:
    path.write_text(yaml.safe_dump(_config("sites", **more)))
    return path


def _doctor(run: Path, **more: Any) -> Path:
    config = yaml.safe_load((run / "experiment.yaml").read_text()) | more
    (run / "experiment.yaml").write_text(yaml.safe_dump(config))
    return run


def _untouched(place: Path) -> bool:
    return (
        not any((place / trace).exists() for trace in ("imported", "called", "pwned"))
        and "strange_package" not in sys.modules
    )


SYSTEM = {"name": "os:system", "command": "touch pwned"}
SPECIFICATIONS: list[dict[str, Any]] = [
    {"model": SYSTEM},
    {"model": "strange_package:Net"},
    {"model": {"name": "mlp", "clients": {"bo": SYSTEM}}},
    {"model": {"name": "mlp", "clients": {"bo": {"name": "mlp", "clients": {"bo": SYSTEM}}}}},
    {"models": {"model": "mlp", "private": SYSTEM}},
    {"method": "strange_package:Own"},
    {"method": {"name": "strange_package:Own"}},
    {"method": {"name": "fedavg", "weights": "strange_package:Own"}},
    {"method": {"name": "fedavg", "companion": {"name": "strange_package:Own"}}},
    {"method": "equipoise.cli:main"},
]


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "--dry-run"],
        ["compare", "--methods", "fedavg"],
        ["compare", "--methods", "fedavg", "--dry-run"],
    ],
)
@pytest.mark.parametrize("named", SPECIFICATIONS, ids=str)
def test_a_file_cannot_name_code(
    equipoise: Terminal, place: Path, named: dict[str, Any], words: list[str]
) -> None:
    answer = equipoise(words[0], _write(place / "e.yaml", **named), *words[1:])
    assert (
        answer.code == 2 and len(answer.err.splitlines()) == 1 and answer.err.startswith("error: ")
    )
    assert "is named by a file" in answer.err and "--allow-import" in answer.err
    assert _untouched(place)


@pytest.mark.parametrize("command", ["resume", "export", "predict"])
@pytest.mark.parametrize("named", SPECIFICATIONS, ids=str)
def test_the_folder_of_a_run_cannot_name_code(
    equipoise: Terminal, place: Path, named: dict[str, Any], command: str
) -> None:
    run = _doctor(place / ("stopped" if command == "resume" else "run"), **named)
    answer = equipoise(
        command, run, *([place / "sites" / "bo.npz"] if command == "predict" else [])
    )
    whole = not isinstance(named.get("method"), str)  # the file of a run has a mapping there
    assert (
        answer.code == 2
        and ("is named by a file" if whole else "not a mapping") in answer.err
        and len(answer.err.splitlines()) == 1
    )
    assert _untouched(place)


@pytest.mark.parametrize("command", ["show", "report", "table"])
def test_reading_a_run_imports_nothing(equipoise: Terminal, place: Path, command: str) -> None:
    answer = equipoise(
        command, _doctor(place / "run", model=SYSTEM, method={"name": "strange_package:Own"})
    )
    assert answer.code == 0, answer.err
    assert _untouched(place)


@pytest.mark.parametrize(
    "lists",
    [{"methods": ["fedavg", "strange_package:Own"]}, {"methods": [{"name": "strange_package:Own"}]},
     {"methods": ["fedavg"], "grid": {"model": [SYSTEM]}}, {"methods": ["fedavg"], "grid": {"method.name": ["strange_package:Own"]}}],
    ids=str,
)  # fmt: skip
def test_the_lists_of_a_comparison_cannot_name_code(
    equipoise: Terminal, place: Path, lists: dict[str, Any]
) -> None:
    for more in ([], ["--dry-run"]):
        answer = equipoise("compare", _write(place / "e.yaml", **lists), *more)
        assert answer.code == 2 and len(answer.err.splitlines()) == 1, answer.err
    with pytest.raises(ValueError):
        eq.compare(place / "e.yaml")
    assert _untouched(place)


def test_no_key_of_a_file_gives_the_permission(equipoise: Terminal, place: Path) -> None:
    for key in ("allow_imports", "allow-import", "imports", "_imports", "typed"):
        answer = equipoise(
            "run",
            _write(place / "e.yaml", model="strange_package:Net", **{key: ["strange_package"]}),
        )
        assert (
            answer.code == 2
            and "is named by a file" in answer.err
            and f"{key}: unknown key" in answer.err
        )
    assert _untouched(place)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_allowed_runs_and_the_permission_travels_to_workers(
    equipoise: Terminal, place: Path, workers: int
) -> None:
    file = _write(
        place / "e.yaml",
        model={"name": "strange_package:made", "width": 5},
        method="strange_package:Own",
        workers=workers,
    )
    allowed = ("--allow-import", "strange_package")
    answer = equipoise(
        "run", file, *allowed, "--allow-import", "another", "--out", "mine", "--quiet"
    )
    assert answer.code == 0, answer.err
    assert (place / "imported").exists()
    for command in (["export", "mine"], ["predict", "mine", "sites/bo.npz"]):
        refused = equipoise(*command)
        assert refused.code == 2 and "add --allow-import strange_package" in refused.err
        assert equipoise(*command, *allowed).code == 0


@pytest.mark.parametrize("named", [{"model": SYSTEM}, {"model": "strange_package:Net"}, *({"method": {"name": "fedavg", slot: {"name": "strange_package:Own"}}} for slot in ("weights", "inputs", "companion")), {"method": {"name": "strange_package:Own"}}], ids=str)  # fmt: skip
def test_a_worker_refuses_by_itself_what_its_job_does_not_allow(
    place: Path, named: dict[str, Any]
) -> None:
    """As if the server had looked away: the job names code, and says nothing of a permission or one
    for another package.
    """
    wanted = experiment(FromFile(_config("sites", workers=1)), Imports(frozenset({"another"})))
    for allowed in ({}, wanted.imports.plain()):
        with (
            Simulation(wanted) as simulation,
            pytest.raises(ConfigurationError, match="is named by a file"),
        ):
            job = job_of(wanted, "run")
            simulation.transport.open(
                replace(job, experiment={**job.experiment, **named}, allowed=allowed),
                place / "files",
                Monitor(),
            )
    assert _untouched(place)


def test_a_comparison_hands_the_permission_to_its_processes(
    equipoise: Terminal, place: Path
) -> None:
    file = _write(
        place / "e.yaml", model="strange_package:Net", methods=["strange_package:Own"], rounds=1
    )
    answer = equipoise(
        "compare", file, "--allow-import", "strange_package", "--out", "table", "--quiet"
    )
    assert answer.code == 0, answer.err + answer.out
    assert eq.compare(file, out="table", allow_imports=["strange_package"]).methods == [
        "standalone",
        "own",
    ]


def test_a_comparison_names_every_permission_that_it_needs_with_its_line(
    equipoise: Terminal, place: Path
) -> None:
    file = _write(
        place / "e.yaml",
        model="strange_package:Net",
        methods=["other_package:Own", "strange_package:Own"],
        rounds=0,
    )
    lines = {
        line.partition(":")[0]: number
        for number, line in enumerate(file.read_text().splitlines(), start=1)
    }
    answer = equipoise("compare", file, "--dry-run")
    assert answer.code == 2 and _untouched(place)
    for key, reason in (
        ("methods", "add --allow-import other_package"),
        ("methods", "add --allow-import strange_package"),
        ("model", "add --allow-import strange_package"),
        ("rounds", "expected"),
    ):
        start = f"{file}, line {lines[key]}: {key}: "
        assert any(start in line and reason in line for line in answer.err.splitlines())


def test_resume_asks_again(equipoise: Terminal, place: Path) -> None:
    run = _doctor(place / "stopped", method={"name": "strange_package:Own"})
    with pytest.raises(ConfigurationError, match=r"allow_imports=\['strange_package'\]"):
        eq.resume(run)
    assert _untouched(place)
    assert equipoise("resume", run, "--allow-import", "strange_package", "--quiet").code == 0


@pytest.mark.parametrize(
    "words",
    [["--method", "strange_package:Own"], ["--model", "strange_package:Net"], ["--set", "model={name: 'strange_package:made', width: 3}"],
     ["--model", "mlp", "--set", "model.clients={bo: 'strange_package:Net'}"], ["--weights", "strange_package:Own", "--method", "fedavg"]],
    ids=str,
)  # fmt: skip
def test_what_the_user_types_is_the_users_own(
    equipoise: Terminal, place: Path, words: list[str]
) -> None:
    for given in ([], [_write(place / "e.yaml")]):
        answer = equipoise(
            "run", *given, "--data", "sites", "--rounds", "1", "--workers", "0", *words, "--dry-run"
        )
        assert answer.code == 0, answer.err
        assert (place / "imported").exists() or "clients" in words[-1], (
            "a client's own model is made when the client is asked"
        )


def test_what_is_typed_allows_that_name_only(equipoise: Terminal, place: Path) -> None:
    file = _write(place / "e.yaml", model={"name": "strange_package:made"})
    answer = equipoise("run", file, "--method", "strange_package:Own", "--dry-run")
    assert answer.code == 2 and "'strange_package:made' is named by a file" in answer.err


def test_what_the_user_replaced_is_not_imported(equipoise: Terminal, place: Path) -> None:
    file = _write(place / "e.yaml", model={"name": "strange_package:made"})
    assert equipoise("run", file, "--model", "mlp", "--dry-run").code == 0
    assert _untouched(place)


def test_what_is_given_in_python_is_the_users_own_and_a_file_is_not(place: Path) -> None:
    own = eq.run(_config("sites", model="strange_package:Net", rounds=1), "mine")
    assert isinstance(own.model("global"), nn.Module), "the run that this process made"
    again = eq.Run("mine")
    with pytest.raises(ConfigurationError, match="is named by a file"):
        again.model("global")
    assert isinstance(again.model("global", allow_imports=["strange_package"]), nn.Module)
    for config in (again.config, load("mine/experiment.yaml")):
        with pytest.raises(ConfigurationError, match="is named by a file"):
            eq.run(config, "other")
    with pytest.raises(ConfigurationError, match="is named by a file"):
        eq.run("mine/experiment.yaml", "other")
    assert (
        eq.run("mine/experiment.yaml", "other", allow_imports="strange_package").status
        == "finished"
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("strange_package:system", "is a function of 'posix', which was not allowed"),
        ("strange_package:subprocess.run", "leads through the module 'subprocess'"),
        ("strange_package:torch.hub.load", "leads through the module 'torch'"),
        ("strange_package:NoModel", "expected a class or a function that makes a torch.nn.Module"),
        ("strange_package:traced", "made a int, not a torch.nn.Module"),
        ("strange_package:Net.forward", "is a function of 'torch"),
        ("strange_package:nothing", "unknown name in strange_package 'nothing'"),
        ("strange_package:__loader__.get_data", "was not allowed"),
        ("strange_package.os:system", "cannot import"),
        ("../strange_package:Net", "expected a name of ours"),
        (":Net", "expected a name of ours"),
        ("strange_package:", "expected a name of ours"),
        (".strange_package:Net", "expected a name of ours"),
        ("strange_package :Net", "expected a name of ours"),
    ],
)
def test_an_allowed_package_opens_no_other_door(
    equipoise: Terminal, place: Path, name: str, sentence: str
) -> None:
    answer = equipoise(
        "run",
        _write(place / "e.yaml", model={"name": name}),
        "--dry-run",
        "--allow-import",
        "strange_package",
    )
    assert answer.code == 2 and sentence in answer.err and len(answer.err.splitlines()) == 1
    assert (place / "called").exists() == (name == "strange_package:traced"), (
        "only a function of the package itself is called"
    )


def test_options_that_do_not_fit_are_a_sentence(equipoise: Terminal, place: Path) -> None:
    file = _write(place / "e.yaml", model={"name": "strange_package:Net", "depth": 3})
    answer = equipoise("run", file, "--dry-run", "--allow-import", "strange_package")
    assert answer.code == 2 and "got an unexpected keyword argument 'depth'" in answer.err


@pytest.mark.parametrize("group", GROUPS)
def test_a_package_with_an_entry_point_is_allowed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    write_package(tmp_path / "site", "strange", {}, {group: {"net": "strange_package:Net"}})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert experiment(load(_write(place / "e.yaml", method="strange_package:Own"))).build_method()
    with pytest.raises(ConfigurationError, match="is named by a file"):
        experiment(load(_write(place / "e.yaml", model="os:system")))


def test_an_allowance_is_the_name_of_a_package(equipoise: Terminal, place: Path) -> None:
    for wrong in ("strange_package.sub", "strange_package:Net", "", "*"):
        answer = equipoise("run", _write(place / "e.yaml"), "--dry-run", "--allow-import", wrong)
        assert answer.code == 2 and "expected the name of a package" in answer.err


def test_the_permission_is_not_lost_on_its_way() -> None:
    given = Imports(frozenset({"a"}), frozenset({"b:C"}))
    assert Imports.of_job(given.plain()) == given
    assert permitted(FromFile(), ["a"]) == Imports(frozenset({"a"})) and permitted({}).everything


def test_a_configuration_that_is_none_is_a_sentence(equipoise: Terminal, place: Path) -> None:
    for text in ("", "[1]", "rounds: 2", "a: &a [*a]"):
        (place / "run" / "experiment.yaml").write_text(text)
        for command in ("show", "export", "report"):
            answer = equipoise(command, "run")
            assert (
                answer.code == 2
                and len(answer.err.splitlines()) == 1
                and "experiment.yaml" in answer.err
            )
    with pytest.raises(RunError):
        eq.Run("run").config  # noqa: B018


@pytest.mark.thorough
def test_a_file_full_of_mistakes_is_told_shortly(equipoise: Terminal, place: Path) -> None:
    (place / "e.yaml").write_text("\n".join(f"k{n}: 1" for n in range(60_000)))
    answer = equipoise("run", "e.yaml", "--dry-run")
    assert (
        answer.code == 2
        and len(answer.err.splitlines()) == 21
        and "and 59980 more mistakes" in answer.err
    )


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--data", "sites", "--workers", "1", "--rounds", "1"],
        ["compare", "--data", "sites", "--methods", "fedavg", "--rounds", "1"],
    ],
)
@pytest.mark.thorough
def test_the_current_folder_does_not_stand_in_for_a_library(
    place: Path, tmp_path: Path, words: list[str]
) -> None:
    for library in ("json", "numpy", "equipoise", "yaml", "torch"):
        (place / f"{library}.py").write_text(
            "import pathlib; pathlib.Path('pwned').touch(); raise SystemExit(9)"
        )
    # as the installed command, which does not look there either
    program = "from equipoise.cli import main; main()"
    source = str(Path(eq.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words, "--quiet", "--out", str(tmp_path / "out")],
        cwd=place,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not (place / "pwned").exists()
