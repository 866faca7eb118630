"""Comparisons that really run: small, on built-in digits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import equipoise as eq
from equipoise.comparison.executor import Progress
from equipoise.comparison.plan import Cell
from equipoise.comparison.run import compare
from equipoise.comparison.table import opened
from equipoise.data import federate, from_arrays
from equipoise.experiment import ConfigurationError
from equipoise.runs import Run
from equipoise.storage.store import RunError, Store
from equipoise.transports.workers import processes
from tests.helpers.stores import change, made_up_run

BASE = {
    "data": {"name": "digits", "clients": 3, "partition": "dirichlet:0.5"},
    "rounds": 2,
    "training": {"steps": 3, "lr": 0.1},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("comparison")
    return eq.compare(
        BASE, ["fedavg", "fedprox"], seeds=[1], grid={"method.mu": [0.0, 10.0]}, out=folder, jobs=2
    )


def watching(started: list[str]) -> Progress:
    return Progress(on_plan=lambda missing, finished: started.extend(cell.name for cell in missing))


def test_all_cells_share_data_and_the_numbers_are_those_of_the_runs(whole):
    assert not whole.failures and [entry.label for entry in whole.entries] == [
        "standalone",
        "fedavg",
        "fedprox",
    ]
    assert len({entry.run.fingerprint for entry in whole.entries}) == 1
    for entry in whole.entries:
        assert entry.run.main.values == Run(entry.run.folder).final()


def test_the_grid_point_is_chosen_on_validation_data(whole):
    candidates = [
        Run(path) for path in (whole.folder / "runs").iterdir() if path.name.startswith("fedprox")
    ]
    scores = {
        run.config["method"]["mu"]: np.mean(list(run.final(split="validation").values()))
        for run in candidates
    }
    assert len(scores) == 2
    assert dict(whole.entries[2].setting)["method.mu"] == max(
        sorted(scores), key=lambda mu: scores[mu]
    )


@pytest.mark.parametrize(
    "method", [{"name": "poise"}, {"name": "finetune", "validation": True, "tune_epochs": 1}]
)
def test_validation_data_that_a_method_trains_on_choose_nothing(method, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="grid: .* trains on validation data"):
        eq.compare(BASE, [method], seeds=[1], grid={"training.lr": [0.1, 0.2]}, out=tmp_path / "a")
    with pytest.raises(ConfigurationError, match="select: .* trains on validation data"):
        eq.compare(BASE, [{**method, "select": "validation"}], seeds=[1], out=tmp_path / "b")
    assert not list(tmp_path.glob("*/runs/*"))


@pytest.mark.thorough
def test_a_grid_over_a_method_that_holds_validation_data_out_runs(tmp_path: Path):
    method = {"name": "poise", "fold": False}
    grid = {"training.lr": [0.1, 0.2]}
    assert not eq.compare(BASE, [method], seeds=[1], grid=grid, out=tmp_path, jobs=1).failures


def test_a_grid_point_that_failed_for_a_seed_gives_way_to_one_that_did_not(tmp_path: Path):
    # The largest client differs between seeds, so this limit lets training fail for one seed only.
    largest = {}
    for seed in (1, 2):
        experiment = eq.Experiment(**BASE, seed=seed)
        largest[seed] = int(federate(experiment.data, seed).train.sizes.max())
    limit = min(largest.values())
    result = compare(
        BASE,
        [{"name": "tests.helpers.broken:Fragile", "limit": limit}],
        seeds=[1, 2],
        grid={"method.solid": [False, True]},
        out=tmp_path,
        jobs=1,
    )
    assert len(result.failures) == 1
    chosen = [dict(entry.setting)["method.solid"] for entry in result.entries if entry.setting]
    assert chosen == [True, True]


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory):
    """Return a comparison whose baseline fails."""
    methods = ["fedprox", {"name": "tests.helpers.broken:Fragile", "limit": 1}]
    return compare(
        BASE,
        methods,
        seeds=[1],
        grid={"method.solid": [False]},
        baseline="fragile",
        target="fragile.best",
        out=tmp_path_factory.mktemp("failing"),
        jobs=1,
    )


def test_a_target_is_none_where_the_run_that_sets_it_failed(failing):
    assert failing.methods == ["standalone", "fedprox"]
    row = failing.row("dirichlet:0.5", "fedprox", "rounds_to_target")
    assert np.isnan(row["value"])
    assert row["note"]
    assert opened([failing.folder]).methods == failing.methods


def test_a_failure_names_the_setting_of_the_grid(failing):
    (failure,) = failing.failures
    assert failure.reason.startswith("method.solid=False: ")


def test_a_grid_of_one_value_needs_no_validation_data(tmp_path: Path):
    base = {**BASE, "evaluation": {"splits": ["test"]}}
    grid = {"method.mu": [0.1]}
    result = compare(base, ["fedavg", "fedprox"], seeds=[1], grid=grid, out=tmp_path, jobs=1)
    assert result.settings() == {("fedprox", "dirichlet:0.5"): {"method.mu": 0.1}}


def test_a_diverged_grid_point_is_never_chosen(tmp_path: Path):
    result = compare(
        BASE, ["fedavg"], seeds=[1], grid={"training.lr": [1e30, 1e-6]}, out=tmp_path, jobs=1
    )
    settings = {entry.label: dict(entry.setting) for entry in result.entries}
    assert settings["fedavg"] == {"training.lr": 1e-6}


@pytest.mark.thorough
def test_forked_children_compute_what_new_processes_compute(whole, tmp_path: Path):
    processes.allow_fork(False)
    try:
        result = compare(BASE, ["fedavg"], seeds=[1], out=tmp_path, jobs=1)
    finally:
        processes.allow_fork()
    assert [entry.run.main.values for entry in result.entries] == [
        entry.run.main.values for entry in whole.entries[:2]
    ]


@pytest.mark.slow
def test_a_process_with_several_torch_threads_does_not_wait_forever(tmp_path: Path):
    # A forked child would wait for threads of OpenMP that exist in its parent only.
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 20).double()  # starts the threads
        assert not processes.may_fork()
        result = compare(BASE, ["fedavg"], seeds=[1], out=tmp_path, jobs=1)
    finally:
        torch.set_num_threads(before)
    assert len(result.entries) == 2


def test_mu_zero_is_fedavg_bit_for_bit_in_children_too(whole):
    zero = next(
        Run(p)
        for p in (whole.folder / "runs").iterdir()
        if p.name.startswith("fedprox") and Run(p).config["method"]["mu"] == 0
    )
    assert zero.final() == whole.entries[1].run.main.values


def test_a_rerun_does_nothing(whole):
    started: list[str] = []
    again = compare(BASE, ["fedavg"], seeds=[1], out=whole.folder, progress=watching(started))
    assert started == [] and again.entries[1].run.main.values == whole.entries[1].run.main.values


def test_what_is_missing_runs_and_what_was_killed_resumes_to_the_same_numbers(whole):
    cut = whole.entries[1].run
    before = Run(cut.folder).table()
    tables = ("rounds", "measurements", "weights", "seconds", "files")
    change(
        cut.folder,
        *(f"delete from {table} where round = 2" for table in tables),
        "update meta set value = '\"running\"' where key = 'status'",
    )
    started: list[str] = []
    completed = compare(
        BASE, ["fedavg", "fedavgm"], seeds=[1], out=whole.folder, jobs=1, progress=watching(started)
    )
    assert (
        sorted(started) == sorted([cut.folder.name, completed.entries[2].run.folder.name])
        and not completed.failures
    )
    assert Run(cut.folder).table() == before


def test_an_interrupted_comparison_leaves_no_process_and_is_completed_by_the_next_call(
    whole, tmp_path: Path
):
    def interrupt(cell: Cell, number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(
            BASE, ["fedavg"], seeds=[1], out=tmp_path, jobs=1, progress=Progress(on_round=interrupt)
        )
    for folder in (tmp_path / "runs").iterdir():
        Store(folder, writing=True).close()  # refuses while a process holds the run
    completed = compare(BASE, ["fedavg"], seeds=[1], out=tmp_path, jobs=1)
    assert [entry.run.main.values for entry in completed.entries] == [
        entry.run.main.values for entry in whole.entries[:2]
    ]


@pytest.mark.thorough
def test_failures_are_reported_with_their_reason_and_do_not_stop_the_others(tmp_path: Path):
    result = compare(
        BASE,
        ["tests.helpers.broken:Dying", "tests.helpers.broken:Raising", "fedavg"],
        seeds=[1],
        out=tmp_path,
        jobs=1,
    )
    assert [entry.label for entry in result.entries] == ["standalone", "fedavg"]
    reasons = {failure.method: failure.reason for failure in result.failures}
    assert "signal 9" in reasons["dying"]
    assert "round 1" in reasons["raising"] and "no patience left" in reasons["raising"]
    log = Path(reasons["raising"].split("details in ")[1].rstrip(")"))
    assert "Traceback" in log.read_text()
    assert {
        row["method"] for row in json.loads((tmp_path / "comparison.json").read_text())["failures"]
    } == {"dying", "raising"}


def test_what_a_method_prints_is_no_message_of_its_process(tmp_path: Path):
    result = compare(BASE, ["tests.helpers.broken:Talking"], seeds=[1], out=tmp_path, jobs=1)
    assert not result.failures and [entry.label for entry in result.entries] == [
        "standalone",
        "talking",
    ]


def test_python_objects_are_compared_in_this_process(tmp_path: Path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 4)).astype(np.float32)
    data = from_arrays(x, (x[:, 0] > 0).astype(np.int64))
    result = eq.compare(
        {"dataset": data, "rounds": 1, "data": {"clients": 3}, "model": torch.nn.Linear(4, 2)},
        ["fedavg"],
        seeds=[1],
        out=tmp_path,
    )
    assert not result.failures and len(result.entries) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"participation": {"fraction": 0.1}},
        {"faults": {"dropout": 0.5}},
        {"budget": {"seconds": 5}},
        {"training": {"lr": 0.5}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_training_alone_with_another_schedule_is_no_baseline(
    settings: dict[str, object], tmp_path: Path
):
    made_up_run(tmp_path / "alone", "standalone", **settings)
    run = made_up_run(tmp_path / "fedavg", "fedavg")
    assert opened([run]).entries[0].run.baseline is None
    same = made_up_run(tmp_path / "same", "fedavg", **settings)
    assert opened([same]).entries[0].run.baseline.folder == tmp_path / "alone"


def test_training_alone_that_a_callback_ended_is_no_baseline(tmp_path: Path):
    alone = made_up_run(tmp_path / "alone", "standalone")
    run = made_up_run(tmp_path / "fedavg", "fedavg")
    assert opened([run]).entries[0].run.baseline.folder == alone
    change(alone, "delete from rounds where round = 3")
    assert opened([run]).entries[0].run.baseline is None


def test_a_baseline_of_an_older_version_has_the_defaults_of_what_it_lacks(tmp_path: Path):
    alone = made_up_run(tmp_path / "alone", "standalone")
    config = yaml.safe_load((alone / "experiment.yaml").read_text())
    del config["budget"], config["faults"], config["participation"]["floor"]
    (alone / "experiment.yaml").write_text(yaml.safe_dump(config))
    run = made_up_run(tmp_path / "fedavg", "fedavg")
    assert opened([run]).entries[0].run.baseline.folder == alone


def test_changed_data_are_refused(whole):
    folder, key = whole.entries[0].run.folder, "where key = 'fingerprint'"
    change(folder, f"update meta set value = '\"other\"' {key}")
    try:
        with pytest.raises(RunError, match="same settings, other data"):
            compare(BASE, ["fedavg"], seeds=[1], out=whole.folder)
    finally:
        change(folder, f"update meta set value = '\"{whole.entries[0].run.fingerprint}\"' {key}")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"baseline": "fedavgg"}, "did you mean 'fedavg'"), ({"jobs": 0}, "at least 1 run at a time"),
     ({"base": {**BASE, "evaluation": {"splits": ["test"]}}, "grid": {"training.lr": [0.1, 0.2]}}, "chosen on validation data")],
)  # fmt: skip
def test_bad_comparisons_are_refused_before_anything_runs(
    settings: dict[str, object], sentence: str, tmp_path: Path
):
    with pytest.raises(ValueError, match=sentence):
        compare(**({"base": BASE, "methods": ["fedavg"], "seeds": [1], "out": tmp_path} | settings))
    assert not any(tmp_path.iterdir())
