"""Which runs belong in one table, what each is judged against, how a grid point is chosen, and the sentences for what cannot be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import equipoise.comparison.run as choosing
from equipoise.comparison import compare, executor, open_runs
from equipoise.comparison.entries import (
    Entry,
    aligned,
    check_distinct,
    check_same_data,
    open_comparison,
    open_run,
    read_result,
)
from equipoise.comparison.measures import (
    cost_of,
    distances_of,
    for_each,
    in_unit_of,
    measure_run,
    measures,
    pairs,
)
from equipoise.comparison.plan import Cell
from equipoise.metrics.registry import find
from equipoise.report import pictures
from equipoise.runs import Run
from equipoise.storage.store import RunError, Store
from equipoise.task import Task
from equipoise.watch.gallery import Gallery
from equipoise.watch.progress import progress_of
from tests.helpers.stores import change, made_up_result, made_up_run

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
        ({"fingerprint": "x"}, "same settings, other data; the data changed in between"),
        ({"old": True}, "fedprox-1 was written by an older version"),
    ],
)
def test_runs_of_other_data_are_refused(other: dict[str, Any], sentence: str) -> None:
    second = replace(made_up_result("fedprox", 1, [0.5, 0.6]), **other)
    with pytest.raises(RunError, match=sentence):
        check_same_data([ONE, second])


def test_runs_of_other_seeds_and_partitions_have_other_data_by_right() -> None:
    other = made_up_result("fedavg", 2, [0.5, 0.6])
    third = made_up_result("fedavg", 1, [0.5, 0.6], partition="sharded")
    check_same_data(
        [
            ONE,
            replace(ONE, folder=Path("twin")),
            other,
            replace(third, fingerprint="z"),
            replace(other, old=False),
        ]
    )
    with pytest.raises(RunError, match="fedavg-2 and again cannot be compared: same settings"):
        check_same_data([ONE, other, replace(other, folder=Path("again"), fingerprint="x")])
    old = replace(other, old=True)
    check_same_data([ONE, old, replace(old, folder=Path("too"))])


def test_one_experiment_is_named_once() -> None:
    twin = Entry("fedavg", replace(ONE, folder=Path("twin")), None)
    with pytest.raises(
        RunError, match="fedavg-1 and twin are the same experiment; name one of them"
    ):
        check_distinct([Entry("fedavg", ONE, None), twin])
    check_distinct(
        [
            Entry("fedavg", ONE, None),
            replace(twin, label="other"),
            Entry("fedavg", made_up_result("fedavg", 2, [0.5]), None),
        ]
    )


def test_clients_are_aligned_within_a_partition_and_seed_only() -> None:
    short = replace(
        made_up_result("fedprox", 1, [0.7]), by_metric={"accuracy": {"1": 0.7}, "f1": {"1": 0.1}}
    )
    long = replace(ONE, by_metric={"accuracy": {"0": 0.5, "1": 0.6}, "loss": {"0": 1.0}})
    elsewhere = made_up_result("fedavg", 2, [0.1, 0.2, 0.3])
    first, second, third = aligned(
        [Entry("a", long, None), Entry("b", short, long), Entry("c", elsewhere, None)]
    )
    assert (
        first.run.values == {"1": 0.6}
        and second.run.values == {"1": 0.7}
        and second.alone is not None
        and second.alone.values == {"1": 0.6}
    )
    assert (
        third.run.values == elsewhere.values
        and third.alone is None
        and list(first.run.by_metric) == ["accuracy"]
    )
    assert first.run.undefined == {"accuracy": ["0"]} and third.run.undefined == {"accuracy": []}


def test_gains_and_references() -> None:
    alone = made_up_result("standalone", 1, [0.4, 0.7])
    assert (
        Entry("x", ONE, alone).reference == alone.values and Entry("x", ONE, None).reference is None
    )
    assert Entry("x", alone, alone).reference is None, "alone says nothing about itself"
    assert Entry("x", ONE, None).gains() == {} and not Entry("x", ONE, alone).lower
    extra = replace(ONE, by_metric={"accuracy": {"0": 0.5, "new": 0.9}})
    assert Entry("x", extra, alone).gains() == {"0": pytest.approx(0.1)}
    assert ONE.condition == ("iid", 1) and not ONE.is_alone and alone.is_alone


def test_a_run_is_judged_against_one_beside_it_among_the_others_or_the_one_that_was_named(
    tmp_path: Path,
) -> None:
    alone, run = made_up_run(tmp_path / "a", "standalone"), made_up_run(tmp_path / "b")
    (beside,) = open_runs([run])
    assert beside.alone is not None and beside.alone.folder == alone and beside.label == "fedavg"
    both = open_runs([run, alone, run])
    assert [(entry.label, entry.alone and entry.alone.folder) for entry in both] == [
        ("fedavg", alone),
        ("standalone", alone),
    ]
    far = made_up_run(tmp_path / "far" / "c", "standalone", level=0.3)
    (named,) = open_runs([run], against=far)
    assert named.alone is not None and named.alone.folder == far
    with pytest.raises(RunError, match="b is not a run of standalone; gains are counted"):
        open_runs([run], against=run)
    later = made_up_run(tmp_path / "far" / "later", "standalone", seed=3)
    with pytest.raises(
        RunError,
        match="cannot be judged against .*later: their data, seed, rounds, training or model differ",
    ):
        open_runs([run], against=later)
    change(later, "insert or replace into meta values ('fingerprint of', '\"x\"')")
    with pytest.raises(RunError, match="b was written by an older version"):
        open_runs([run], against=later)
    (lonely,) = open_runs([made_up_run(tmp_path / "other" / "d")])
    assert lonely.alone is None


def test_what_lies_in_a_folder_is_told(tmp_path: Path) -> None:
    for k in range(6):
        (tmp_path / "many" / f"r{k}").mkdir(parents=True)
        (tmp_path / "many" / f"r{k}" / "run.db").touch()
    for folder, sentence in (
        (tmp_path / "mani", "no folder .*mani; did you mean .*many\\?"),
        (tmp_path / "xyz", "no folder .*xyz; `equipoise run` names the folder"),
        (tmp_path / "no" / "where", "no folder .*where; `equipoise run` names the folder"),
        (
            tmp_path / "many",
            "is not a run but holds 6: r0, r1, r2, r3, r4; name those you want, such as .*many/r0$",
        ),
        (tmp_path / "many" / "r0" / "run.db", "run.db is not a run: it has no run.db"),
    ):
        with pytest.raises(RunError, match=sentence):
            open_run(folder)


def test_a_run_without_a_result_says_why(tmp_path: Path) -> None:
    going = made_up_run(tmp_path / "going", finished=False)
    assert read_result(going, whole=False).metric == "accuracy"
    with pytest.raises(
        RunError, match="was stopped after round 2 of 3; complete it with `equipoise resume"
    ):
        read_result(going)
    writing = Store(going, writing=True)
    try:
        with pytest.raises(RunError, match=r"is still going \(round 2 of 3\); wait for it to end"):
            read_result(going)
    finally:
        writing.close()
    empty = made_up_run(
        tmp_path / "empty", evaluation={"main": "auroc", "metrics": ["accuracy", "auroc"]}
    )
    with pytest.raises(RunError, match="has no result: auroc is undefined for "):
        read_result(empty)
    unasked = made_up_run(tmp_path / "unasked", evaluation={"splits": ["validation"]})
    change(unasked, "delete from measurements where split = 'test'")
    with pytest.raises(
        RunError, match="has no accuracy on test data; measure it: evaluation.splits must name test"
    ):
        read_result(unasked)


def test_a_result_holds_what_the_store_holds(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    found = read_result(run)
    assert found.cost["megabytes"] == pytest.approx(3 * 1500 / 1e6) and found.cost[
        "seconds"
    ] == pytest.approx(3 * 0.7)
    assert math.isnan(found.cost["d_cos"]) and math.isnan(found.cost["d_man"])
    means = [
        sum(r["value"] for r in Run(run).table(phase="received", split="test", round=n)) / 4
        for n in (1, 2, 3)
    ]
    assert found.curves["accuracy"].rounds == (1, 2, 3) and found.curves[
        "accuracy"
    ].means == pytest.approx(means)
    assert found.old and found.undefined == {"accuracy": []} and found.counted == {}
    rows = [(n, c, "angle", v) for n, c, v in ((1, "0", 9.0), (3, "0", 0.2), (3, "1", 0.4))] + [
        (3, "0", "manhattan", 5.0)
    ]
    change(
        run,
        *(
            f"insert into measurements values ({n}, '{c}', 'global', 'after_local', 'embedding', '{m}', {v})"
            for n, c, m, v in rows
        ),
    )
    change(run, "insert into seconds select round, 'evaluation', 50.0 from rounds where round = 1")
    assert distances_of(Run(run)) == {"d_cos": pytest.approx(0.3), "d_man": 5.0}
    assert cost_of(Run(run))["seconds"] == pytest.approx(3 * 0.7), "measuring is not counted"


def test_a_damaged_or_newer_comparison_is_refused_and_a_whole_one_is_read(tmp_path: Path) -> None:
    for method in ("standalone", "fedavg"):
        made_up_run(tmp_path / "runs" / method, method)
    row = {
        "method": "mine",
        "run": "runs/fedavg",
        "alone": "runs/standalone",
        "setting": {"method.mu": 0.1},
    }
    for entries, number in (([row], 1), ([row, {**row, "alone": None, "method": "other"}], 0)):
        (tmp_path / "comparison.json").write_text(
            json.dumps({"format": number, "entries": entries})
        )
        found, saved = open_comparison(tmp_path)
        assert [entry.label for entry in found] == [one["method"] for one in entries] and saved[
            "format"
        ] == number
        assert (
            found[0].setting == (("method.mu", 0.1),)
            and found[0].alone is not None
            and found[-1].alone is (None if number == 0 else found[0].alone)
        )
    for content, sentence in (
        ({"format": 2, "entries": 3}, r"newer version \(format 2, this one reads up to 1\)"),
        ({"format": 1, "entries": []}, "holds no finished run"),
        ({"format": 1, "entries": [{**row, "setting": 3}]}, "it is damaged"),
        ({"format": 1, "entries": [{"method": "x"}]}, "it is damaged"),
        ({"format": "x", "entries": [row]}, "it is damaged"),
    ):
        (tmp_path / "comparison.json").write_text(json.dumps(content))
        with pytest.raises(RunError, match=sentence):
            open_comparison(tmp_path)


@pytest.mark.parametrize(
    ("metric", "worst", "best", "digits"), [("accuracy", 0.2, 0.8, 1), ("rmse", 0.8, 0.2, 4)]
)
def test_measures_of_a_run_follow_the_direction_of_its_metric(
    metric: str, worst: float, best: float, digits: int
) -> None:
    found, why = measure_run({"a": 0.2, "b": 0.8}, None, find(metric))
    assert (found["worst"], found["best"], found["average"], found["std"]) == (
        worst,
        best,
        0.5,
        pytest.approx(0.3),
    )
    assert (
        all(
            math.isnan(found[name])
            for name in ("change", "worst_change", "harmed", "cf", "p10_change", "p90_change")
        )
        and why == {}
    )
    assert in_unit_of(find(metric)).digits == digits and in_unit_of(find(metric)).title == "value"
    columns = measures(find(metric))
    assert ("majority" in columns) == (metric == "accuracy") and columns["average"].lower == (
        metric == "rmse"
    )
    assert {name for name, one in columns.items() if one.lower is None} == {
        "best_round",
        "megabytes",
        "seconds",
    } | ({"majority"} & set(columns))
    assert {name for name, one in columns.items() if one.lower} >= {
        "std",
        "harmed",
        "rounds_to_target",
        "d_cos",
        "d_man",
    }
    assert {name for name, one in columns.items() if one.against_alone} == {
        "change",
        "worst_change",
        "harmed",
        "cf",
        "p10_change",
        "p90_change",
    }
    assert {name for name, one in columns.items() if one.signed} == {
        "change",
        "worst_change",
        "p10_change",
        "p90_change",
    }
    assert (
        columns["d_cos"].digits,
        columns["d_man"].digits,
        columns["harmed"].scale,
        columns["cf"].scale,
    ) == (4, 2, 100, 1)


def test_clients_are_paired_in_the_order_of_the_first() -> None:
    a, t = pairs({"x": 1.0, "y": 2.0, "z": 3.0}, {"z": 30.0, "x": 10.0, "w": 0.0})
    assert (a.tolist(), t.tolist()) == ([1.0, 3.0], [10.0, 30.0])
    run: Any = SimpleNamespace(clients=["a", "b"])
    assert (
        for_each(run, {"all": 0.5}) == {"a": 0.5, "b": 0.5}
        and for_each(run, {"a": 0.5}) == {"a": 0.5}
        and for_each(run, {}) == {}
    )
    found, why = measure_run({"a": math.nan, "b": 0.5}, {"a": 0.4, "b": 0.5}, find("accuracy"))
    assert math.isnan(found["average"]) and why["average"].startswith(
        "accuracy of client a is not a number"
    )


def cell(
    name: str, setting: str, seed: int = 1, partition: str = "iid", label: str = "fedavg"
) -> Cell:
    return Cell(label, partition, seed, None, name, "alone", (("training.lr", setting),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "values", "chosen"),
    [
        (
            "accuracy",
            {"a1": [0.5, 0.5], "b1": [0.6, 0.6], "a2": [0.5, 0.5], "b2": [0.45, 0.5]},
            "b",
        ),
        ("rmse", {"a1": [0.5, 0.5], "b1": [0.6, 0.6], "a2": [0.5, 0.5], "b2": [0.45, 0.5]}, "a"),
        (
            "accuracy",
            {"a1": [0.5, 0.5], "b1": [0.9, 0.9], "a2": [0.5, 0.5]},
            "a",
        ),  # b failed in one seed
        (
            "accuracy",
            {"a1": [0.5, 0.5], "b1": [0.9, math.nan], "a2": [0.5, 0.5], "b2": [0.9, 0.9]},
            "a",
        ),  # b diverged
        (
            "rmse",
            {"a1": [math.nan, 0.5], "b1": [9.0, 9.0], "a2": [0.5, 0.5], "b2": [9.0, 9.0]},
            "b",
        ),
        (
            "accuracy",
            {"a1": [0.5, 0.5], "b1": [0.5, 0.5], "a2": [0.5, 0.5], "b2": [0.5, 0.5]},
            "a",
        ),  # the first of equals
        ("accuracy", {}, "a"),  # nothing ran
    ],
)
def test_the_setting_that_is_best_on_validation_data_over_all_seeds_is_chosen(
    metric: str, values: dict[str, list[float]], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {
        name: replace(made_up_result(name, 1, found, metric), folder=Path(name))
        for name, found in values.items()
    }
    monkeypatch.setattr(choosing, "_validation", lambda result: results[result.folder.name].values)
    cells = [cell(f"{setting}{seed}", setting, seed) for seed in (1, 2) for setting in "ab"]
    assert [one.name for one in choosing._chosen(cells, results)] == [f"{chosen}1", f"{chosen}2"]


def test_every_method_and_partition_has_a_setting_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = [
        cell(f"{label}{partition}{setting}", setting, 1, partition, label)
        for label in "xy"
        for partition in "pq"
        for setting in "ab"
    ]
    level = {"xpa": 0.9, "xqb": 0.9, "ypb": 0.9, "yqa": 0.9}
    results = {
        one.name: replace(
            made_up_result(one.name, 1, [level.get(one.name, 0.1)]), folder=Path(one.name)
        )
        for one in cells
    }
    monkeypatch.setattr(choosing, "_validation", lambda result: result.values)
    lonely = cell("only", "a", label="z")
    assert [one.name for one in choosing._chosen([*cells, lonely], results)] == [
        "xpa",
        "xqb",
        "ypb",
        "yqa",
        "only",
    ], "without results, too"


def test_validation_data_must_exist(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    found = choosing._validation(read_result(run))
    assert found == Run(run).final(split="validation")
    change(run, "delete from measurements where split = 'validation'")
    with pytest.raises(RunError, match="has no accuracy on validation data to choose a setting by"):
        choosing._validation(read_result(run))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"measures": ["bst"]}, "unknown further measure 'bst'; did you mean 'best'"),
        ({"cluster": "auto", "jobs": 2}, "jobs: expected 1 run at a time on a cluster, got 2"),
        ({"jobs": 0}, "jobs: expected at least 1 run at a time, got 0"),
        ({"level": 0.0}, "level: expected a share between 0 and 1"),
        ({"level": 1.0}, "level: expected a share between 0 and 1"),
        ({"measure": "majority"}, "unknown measure 'majority'"),
        ({"baseline": "x"}, "unknown baseline 'x'"),
    ],
)
def test_what_makes_no_comparison_is_refused(
    asked: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        compare(
            {"data": {"name": "digits", "clients": 2}}, ["fedavg"], out=tmp_path / "out", **asked
        )
    assert not (tmp_path / "out").exists()


def test_a_comparison_is_made_of_what_ran_and_of_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def execute(cells: Any, folder: Path, jobs: int, progress: Any, where: Any) -> dict[str, str]:
        asked.update(cells=cells, folder=folder, jobs=jobs, where=where)
        for one in cells:
            if one.label != "fedprox":
                made_up_run(folder / one.name, one.label, seed=one.seed, rounds=1)
        return {one.name: "it broke" for one in cells if one.label == "fedprox"}

    monkeypatch.setattr(choosing, "execute", execute)
    base = {"data": {"name": "digits", "clients": 2}, "rounds": 1}
    found = compare(
        base,
        ["fedavg", "fedprox"],
        seeds=[3],
        out=tmp_path / "o",
        jobs=5,
        measures=["d_cos", "best"],
        target=0.4,
    )
    assert [entry.label for entry in found.entries] == ["standalone", "fedavg"] and found.entries[
        1
    ].alone is not None
    assert [(one.method, one.seed, one.reason) for one in found.failures] == [
        ("fedprox", 3, "it broke")
    ]
    assert (found.level, found.measure, found.baseline, found.asked, found.target) == (
        0.95,
        "average",
        "fedavg",
        ("d_cos", "best"),
        0.4,
    )
    assert (
        asked["jobs"] == 5
        and asked["folder"] == tmp_path / "o" / "runs"
        and asked["where"] == {"cluster": None, "trust_network": False}
    )
    assert all(one.experiment.evaluation.distances for one in asked["cells"]) and [
        entry.target for entry in found.entries
    ] == [0.4, 0.4]
    assert (tmp_path / "o" / "comparison.json").exists()
    compare(base, ["fedavg"], seeds=[4], out=tmp_path / "p", cluster="auto", trust_network=True)
    assert asked["jobs"] == 1 and asked["where"] == {"cluster": "auto", "trust_network": True}
    assert not any(one.experiment.evaluation.distances for one in asked["cells"])
    broken = compare(
        base,
        ["fedprox"],
        seeds=[5],
        out=tmp_path / "q",
        baseline="fedprox",
        level=0.5,
        measure="worst",
        jobs=1,
    )
    assert [entry.label for entry in broken.entries] == ["standalone"] and (
        broken.level,
        broken.measure,
    ) == (0.5, "worst")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write a comparison to .*file"):
        compare(base, ["fedavg"], out=tmp_path / "file")


@pytest.mark.parametrize(
    "read",
    [
        read_result,
        executor.finished,
        progress_of,
        lambda folder: choosing._validation(replace(ONE, folder=folder)),
        lambda folder: Gallery(folder.parent)._of_run(folder),
        lambda folder: pictures.of_method(Entry("x", replace(ONE, folder=folder), None)),
        lambda folder: pictures._curves_of(Entry("x", replace(ONE, folder=folder), None)),
    ],
)
def test_hundreds_of_runs_need_not_be_open_at_a_time(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_up_run(tmp_path / "run")
    opened: list[Store] = []
    closed: list[Store] = []
    begin, end = Store.__init__, Store.close
    monkeypatch.setattr(
        Store,
        "__init__",
        lambda self, *given, **more: [opened.append(self), begin(self, *given, **more)][1],
    )
    monkeypatch.setattr(Store, "close", lambda self: [closed.append(self), end(self)][1])
    read(run)
    assert opened and [id(store) for store in closed] == [id(store) for store in opened]
