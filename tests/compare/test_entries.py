"""Runs that belong in one table, their baselines, the choice of a grid point, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.comparison import compare, open_runs, opened
from equipoise.comparison.entries import aligned, check_distinct, check_same_data, read_folder
from equipoise.report import report
from equipoise.runs import Run
from equipoise.storage.store import RunError, Store
from equipoise.task import Task
from tests.helpers.stores import change, entry, made_up_result, made_up_run

ONE = made_up_result("fedavg", 1, [0.5, 0.6])


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"data": "mnist"}, "their data sets differ"),
        ({"task": Task("classification", (3,), 4)}, "their data sets differ"),
        (
            {"config": {**ONE.config, "data": {"name": "mnist", "partition": "iid"}}},
            "data.name is 'digits' in one and 'mnist' in the other",
        ),
        ({"fingerprint": "x"}, "same settings, other data"),
        ({"old_fingerprint": True}, "fedprox-1 was written by an older version"),
    ],
)
def test_runs_of_other_data_are_refused(other: dict[str, Any], sentence: str) -> None:
    second = replace(made_up_result("fedprox", 1, [0.5, 0.6]), **other)
    with pytest.raises(RunError, match=sentence):
        check_same_data([ONE, second])


def test_runs_of_other_seeds_and_partitions_may_have_other_data() -> None:
    other = made_up_result("fedavg", 2, [0.5, 0.6])
    third = made_up_result("fedavg", 1, [0.5, 0.6], partition="sharded")
    check_same_data(
        [ONE, replace(ONE, folder=Path("twin")), other, replace(third, fingerprint="z")]
    )
    with pytest.raises(RunError, match="fedavg-2 and again cannot be compared: same settings"):
        check_same_data([ONE, other, replace(other, folder=Path("again"), fingerprint="x")])


def test_two_runs_of_one_experiment_are_refused() -> None:
    twin = entry("fedavg", replace(ONE, folder=Path("twin")))
    with pytest.raises(RunError, match="fedavg-1 and twin are the same experiment"):
        check_distinct([entry("fedavg", ONE), twin])
    other_seed = entry("fedavg", made_up_result("fedavg", 2, [0.5]))
    check_distinct([entry("fedavg", ONE), replace(twin, label="other"), other_seed])


def test_clients_are_aligned_within_a_partition_and_seed_only() -> None:
    alone = made_up_result(
        "standalone", 1, {"0": 0.5, "1": 0.6}, others={"loss": {"0": 1.0, "1": 1.0}}
    )
    short = made_up_result("fedprox", 1, {"1": 0.7}, others={"f1": {"1": 0.1}})
    elsewhere = made_up_result("fedavg", 2, [0.1, 0.2, 0.3])
    first, second, third = aligned(
        [entry("a", alone), entry("b", short, alone), entry("c", elsewhere)]
    )
    assert first.run.main.values == {"1": 0.6} and list(first.run.metrics) == ["accuracy"]
    assert second.run.main.values == {"1": 0.7} and second.reference == {"1": 0.6}
    assert third.run.main.values == elsewhere.main.values and third.reference is None
    assert first.run.main.undefined == ["0"] and third.run.main.undefined == []


def test_training_alone_has_no_gain_over_itself() -> None:
    alone = made_up_result("standalone", 1, [0.4, 0.7])
    assert entry("x", ONE, alone).reference == alone.main.values
    assert entry("x", alone, alone).reference is None and entry("x", ONE).gains() == {}


def test_the_baseline_is_next_to_a_run_among_the_runs_or_named(tmp_path: Path) -> None:
    alone = made_up_run(tmp_path / "a", "standalone")
    run = made_up_run(tmp_path / "b")
    far = made_up_run(tmp_path / "far" / "c", "standalone", level=0.3)

    def baseline(paths: list[Path], **more: Any) -> Path | None:
        found = open_runs(paths, **more)[0].run.baseline
        return None if found is None else found.folder

    assert baseline([run]) == baseline([run, alone, run]) == alone
    assert baseline([run], against=far) == far
    assert baseline([made_up_run(tmp_path / "other" / "d")]) is None


def test_a_baseline_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "b")
    with pytest.raises(RunError, match="b is not a run of standalone"):
        open_runs([run], against=run)
    later = made_up_run(tmp_path / "later", "standalone", seed=3)
    with pytest.raises(RunError, match="later: their data, seed, rounds, training or model differ"):
        open_runs([run], against=later)
    change(later, "insert or replace into meta values ('fingerprint of', '\"x\"')")
    with pytest.raises(RunError, match="b was written by an older version"):
        open_runs([run], against=later)


def test_a_folder_without_a_run_is_refused_with_a_hint(tmp_path: Path) -> None:
    for k in range(6):
        (tmp_path / "many" / f"r{k}").mkdir(parents=True)
        (tmp_path / "many" / f"r{k}" / "run.db").touch()
    for folder, sentence in (
        (tmp_path / "mani", "did you mean .*many\\?"),
        (tmp_path / "xyz", "no folder .*xyz; `equipoise run`"),
        (tmp_path / "no" / "where", "no folder .*where"),
        (tmp_path / "many", "holds 6: r0, r1, r2, r3, r4; .*such as .*many/r0$"),
        (tmp_path / "many" / "r0" / "run.db", "run.db is not a run"),
    ):
        with pytest.raises(RunError, match=sentence):
            open_runs([folder])


def test_a_run_in_progress_is_read_alone_and_refused_among_others(tmp_path: Path) -> None:
    going = made_up_run(tmp_path / "going", finished=False)
    done = made_up_run(tmp_path / "done", "fedprox")
    assert open_runs([going])[0].run.status == "stopped"
    with pytest.raises(RunError, match="stopped after round 2 of 3; .*`equipoise resume"):
        open_runs([going, done])
    writing = Store(going, writing=True)
    try:
        with pytest.raises(RunError, match=r"in progress \(round 2 of 3\)"):
            open_runs([going, done])
    finally:
        writing.close()


def test_a_run_without_a_value_on_test_data_is_refused_with_the_reason(tmp_path: Path) -> None:
    one_class = made_up_run(
        tmp_path / "empty", evaluation={"main": "auroc", "metrics": ["accuracy", "auroc"]}
    )
    change(
        one_class,
        "insert into measurements select round, client, model, phase, 'validation', 'auroc', 0.5 "
        "from measurements where split = 'test'",
    )
    with pytest.raises(RunError, match="has no result: auroc is undefined for "):
        read_folder(one_class)
    unmeasured = made_up_run(tmp_path / "unmeasured", evaluation={"splits": ["validation"]})
    change(unmeasured, "delete from measurements where split = 'test'")
    with pytest.raises(RunError, match="has no result: .*evaluation.splits names validation"):
        read_folder(unmeasured)


def test_a_saved_comparison_is_read_and_a_damaged_or_newer_one_refused(tmp_path: Path) -> None:
    for method in ("standalone", "fedavg"):
        made_up_run(tmp_path / "runs" / method, method)
    row = {
        "method": "mine",
        "run": "runs/fedavg",
        "alone": "runs/standalone",
        "setting": {"method.mu": 0.1},
    }
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps({"format": 1, "entries": [row, {**row, "alone": None}]}))
    first, second = open_runs([tmp_path])
    assert first.label == "mine" and first.setting == (("method.mu", 0.1),)
    assert first.run.baseline is not None and second.run.baseline is None
    for content, sentence in (
        ({"format": 2, "entries": 3}, r"newer version \(format 2, this one reads up to 1\)"),
        ({"format": 1, "entries": []}, "holds no finished run"),
        ({"format": 1, "entries": [{**row, "setting": 3}]}, "it is damaged"),
        ({"format": 1, "entries": [{"method": "x"}]}, "it is damaged"),
        ({"format": "x", "entries": [row]}, "it is damaged"),
        ([], "it is damaged"),
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(RunError, match=sentence):
            open_runs([tmp_path])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"measures": ["bst"]}, "'bst'; did you mean 'best'"),
        ({"cluster": "auto", "jobs": 2}, "jobs: expected 1 run at a time on a cluster, got 2"),
        ({"jobs": 0}, "jobs: expected at least 1"),
        ({"level": 0.0}, "level: expected a share between 0 and 1"),
        ({"level": 1.0}, "level: expected a share between 0 and 1"),
        ({"measure": "majority"}, "unknown measure 'majority'"),
        ({"baseline": "x"}, "unknown baseline 'x'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    base = {"data": {"name": "digits", "clients": 2}}
    with pytest.raises(ValueError, match=sentence):
        compare(base, ["fedavg"], out=tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write a comparison to .*file"):
        compare({"data": {"name": "digits", "clients": 2}}, ["fedavg"], out=tmp_path / "file")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    alone = made_up_run(folder / "alone", "standalone")
    return alone, made_up_run(folder / "fedavg")


@pytest.mark.parametrize(
    "read",
    [
        lambda folders: read_folder(folders[1]),
        lambda folders: opened(folders),
        lambda folders: opened(folders, details=True),
        lambda folders: report(folders, folders[0].parent / "report.html"),
    ],
)
def test_hundreds_of_runs_need_not_be_open_at_a_time(
    read: Callable[[tuple[Path, Path]], object],
    runs: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened_stores: list[Store] = []
    begin = Store.__init__

    def recorded(self: Store, *arguments: Any, **more: Any) -> None:
        opened_stores.append(self)
        begin(self, *arguments, **more)

    monkeypatch.setattr(Store, "__init__", recorded)
    read(runs)
    assert opened_stores
    for store in opened_stores:
        with pytest.raises(Exception, match="closed"):
            store.db.execute("select 1")


def test_a_single_run_is_opened_once_for_its_report(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    begin = Run.__init__

    def recorded(self: Run, folder: Path, *arguments: Any, **more: Any) -> None:
        folders.append(Path(folder))
        begin(self, folder, *arguments, **more)

    monkeypatch.setattr(Run, "__init__", recorded)
    report([runs[1]], runs[1] / "report.html")
    assert folders.count(runs[1]) == 1
