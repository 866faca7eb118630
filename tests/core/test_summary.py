"""The result of a run, read from stores that are made up: averages, gains, curves and notes."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.metrics import accuracy_variance, between_client_variance, score_histograms
from equipoise.metrics.registry import find
from equipoise.runs import Run, RunResult, clinical, read_result
from equipoise.runs.aggregates import list_clients
from equipoise.runs.baseline import find_baseline, is_baseline_for, runs_in
from equipoise.runs.curves import Curve
from equipoise.runs.notes import notes, nothing_measured, one_class, without_samples
from equipoise.runs.result import MetricResult
from equipoise.runs.round_summary import summarise_round
from equipoise.runs.summary import summarise
from equipoise.runs.track import numbers
from equipoise.storage.store import RoundRecord, RunError, Store
from equipoise.task import Task
from tests.helpers.stores import change, made_up_run


def measured(folder: Path, values: dict[str, float | None], **more: Any) -> Path:
    """Make up a run of one round with these values."""
    path = made_up_run(folder, clients=list(values), **{"rounds": 1, **more})
    with sqlite3.connect(path / "run.db") as db:
        for client, value in values.items():
            db.execute("update measurements set value = ? where client = ?", (value, client))
    return path


def result_of(folder: Path, baseline: Path | None = None, **more: Any) -> RunResult:
    return read_result(Run(folder), None if baseline is None else Run(baseline), **more)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    measured(folder / "alone", {"a": 0.5, "b": 0.5, "c": 0.5}, method="standalone")
    measured(folder / "fedavg", {"a": 0.25, "b": 0.75, "c": 0.5})
    measured(
        folder / "other", {"a": 0.5, "b": 0.5, "c": 0.5}, method="standalone", fingerprint="other"
    )
    measured(folder / "rmse" / "alone", {"a": 5.0, "b": 5.0}, method="standalone", regression=True)
    measured(folder / "rmse" / "fedavg", {"a": 4.0, "b": 7.0}, regression=True)
    return folder


# Averages and gains.


def test_extremes_follow_the_direction_of_the_metric(stores: Path) -> None:
    deviation = math.sqrt(2 * 0.0625 / 3)
    accuracy = result_of(stores / "fedavg").main.aggregates
    assert {name: accuracy[name] for name in ("average", "worst", "best", "std")} == pytest.approx(
        {"average": 0.5, "worst": 0.25, "best": 0.75, "std": deviation}
    )
    rmse = result_of(stores / "rmse" / "fedavg").main.aggregates
    assert (rmse["average"], rmse["worst"], rmse["best"]) == (5.5, 7.0, 4.0)


def test_a_positive_change_is_an_improvement_for_accuracy_and_for_errors(stores: Path) -> None:
    accuracy = result_of(stores / "fedavg", stores / "alone").main
    assert accuracy.gains == {"a": -0.25, "b": 0.25, "c": 0.0}
    assert (accuracy.aggregates["worst_change"], accuracy.aggregates["change"]) == (-0.25, 0.0)
    rmse = result_of(stores / "rmse" / "fedavg", stores / "rmse" / "alone").main
    assert rmse.gains == {"a": 1.0, "b": -2.0}
    changes = rmse.aggregates
    assert (changes["worst_change"], changes["change"], changes["harmed"]) == (-2.0, -0.5, 0.5)
    assert changes["p10_change"] == pytest.approx(-1.7), "P10 is the tail of the harmed"
    assert changes["p90_change"] == pytest.approx(0.7)


def test_a_summary_counts_gains_and_losses(stores: Path) -> None:
    found = summarise(result_of(stores / "fedavg", stores / "alone"))
    assert found["per client"]["b"] == {"samples": 101, "value": 0.75, "alone": 0.5, "gain": 0.25}
    assert (found["gained"], found["lost"], found["average gain"]) == (1, 1, 0.0)
    assert found["against"] == str(stores / "alone")
    assert (found["round"], found["rounds"], found["clients"]) == (1, 1, 3)
    assert (found["model"], found["models"]) == ("global", ["global"])
    assert (found["average"], found["worst"], found["best round"]) == (0.5, 0.25, 1)
    no_gain = found["per client"]["c"]["gain"]
    assert math.copysign(1, no_gain) == 1, "no gain is no loss"


def test_without_a_baseline_there_are_no_gains(stores: Path) -> None:
    found = summarise(result_of(stores / "fedavg"))
    assert "against" not in found and "gain" not in found["per client"]["a"]


def test_an_unknown_metric_or_model_is_refused(stores: Path) -> None:
    result = result_of(stores / "fedavg")
    with pytest.raises(RunError, match="did not measure 'f1'; it has accuracy"):
        summarise(result, metric="f1")
    with pytest.raises(ValueError, match="personl.*global"):
        summarise(result, model="personl")


def test_a_client_without_a_baseline_has_no_gain(tmp_path: Path) -> None:
    measured(tmp_path / "alone", {"a": 0.5}, method="standalone")
    measured(tmp_path / "run", {"a": 0.25, "z": 0.75})
    found = summarise(result_of(tmp_path / "run", tmp_path / "alone"))
    assert found["per client"]["a"]["gain"] == -0.25 and "gain" not in found["per client"]["z"]


def test_a_shared_test_set_gives_every_client_the_same_value_and_a_gain(tmp_path: Path) -> None:
    alone = made_up_run(tmp_path / "alone", "standalone", shared_test=50)
    run = made_up_run(tmp_path / "run", shared_test=50)
    scores = result_of(run, alone).main
    assert scores.values.keys() == scores.gains.keys() == {"0", "1", "2", "3"}
    assert len(set(scores.values.values())) == 1


@pytest.mark.parametrize(("totals", "known"), [([50, 40], True), ([50, 2], True), ([50, 1], False)])
def test_the_spread_that_test_noise_does_not_explain(
    totals: list[int], known: bool, tmp_path: Path
) -> None:
    run = measured(tmp_path / "run", {"a": 0.2, "b": 0.8})
    sizes = f'{{"train": [9, 9], "validation": [9, 9], "test": {totals}}}'
    change(run, f"update meta set value = '{sizes}' where key = 'sizes'")
    found = summarise(result_of(run))
    assert ("std without test noise" in found) == known
    if known:
        noise = accuracy_variance([0.2, 0.8], totals)
        variance = between_client_variance([0.2, 0.8], noise)["debiased"]
        assert found["std without test noise"] == pytest.approx(math.sqrt(variance))


def test_a_diverged_client_is_named_and_makes_the_average_undefined(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = measured(tmp_path / "run", {"a": None, "b": 0.5})
    assert math.isnan(Run(path).final()["a"]) and Run(path).final()["b"] == 0.5
    found = summarise(result_of(path))
    assert math.isnan(found["average"])
    assert "accuracy of client a is not a number" in found["notes"][0]
    assert "std without test noise" not in found and not recwarn.list


def test_every_served_model_is_in_the_result_and_the_main_one_is_marked(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", {"a": 0.25, "b": 0.75})
    change(
        run,
        "insert into measurements select round, client, 'teacher', phase, split, metric, 1 - value "
        "from measurements",
    )
    result = result_of(run)
    assert list(result.models) == ["global", "teacher"] and result.main_model == "global"
    assert result.metric(model="teacher").values == {"a": 0.75, "b": 0.25}


def test_domains_of_clients_are_in_the_result(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", {"a": 0.25, "b": 0.75})
    facts = '{"domains": ["usps", "mnist"]}'
    change(run, f"update meta set value = '{facts}' where key = 'facts'")
    assert result_of(run).groups == {"a": "usps", "b": "mnist"}


def test_cost_excludes_evaluation_and_includes_distances_of_the_last_round(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", evaluation={"distances": True})
    rows = ((1, "0", "angle", 9.0), (3, "0", "angle", 0.2), (3, "1", "angle", 0.4))
    for number, client, metric, value in (*rows, (3, "0", "manhattan", 5.0)):
        change(
            run,
            f"insert into measurements values ({number}, '{client}', 'global', 'after_local', "
            f"'parameters', '{metric}', {value})",
        )
    change(run, "insert into seconds select round, 'evaluation', 50.0 from rounds where round = 1")
    cost = result_of(run).cost
    assert cost["seconds"] == pytest.approx(3 * 0.7)
    assert cost["megabytes"] == pytest.approx(3 * 1500 / 1e6)
    assert (cost["d_cos"], cost["d_man"]) == (pytest.approx(0.3), 5.0)


# Curves.


def rounds_of(folder: Path, means: dict[int, list[float | None]]) -> Path:
    """Make up a run with these values of clients a, b, ... in some of its rounds."""
    clients = [chr(ord("a") + k) for k in range(max(map(len, means.values())))]
    run = made_up_run(folder, clients=clients, rounds=max(means))
    change(run, "delete from measurements")
    for number, values in means.items():
        for client, value in zip(clients, values, strict=False):
            stored = "null" if value is None else value
            change(
                run,
                f"insert into measurements values ({number}, '{client}', 'global', 'received', "
                f"'test', 'accuracy', {stored})",
            )
    return run


def test_a_curve_is_the_mean_over_clients_by_round(tmp_path: Path) -> None:
    run = rounds_of(tmp_path / "run", {2: [0.5, 1.0], 4: [0.25], 6: [0.5, None]})
    curve = result_of(run).main.curve
    assert curve.rounds == (2, 4, 6) and curve.means[:2] == (0.75, 0.25)
    assert math.isnan(curve.means[2])


def test_the_best_round_passes_over_diverged_ones() -> None:
    curve = Curve((1, 2, 3), (0.5, math.nan, 0.75))
    assert curve.best(find("accuracy")) == (3, 0.75) and curve.best(find("loss")) == (1, 0.5)
    assert Curve((1, 2), (math.nan, math.nan)).best(find("accuracy")) is None


def with_final_phase(run: Path, values: dict[str, float]) -> Path:
    """Add a final phase in which all clients trained on."""
    store = Store(run, writing=True)
    record = RoundRecord(store.last_round() + 1, 0, list(values), list(values), finish=True)
    record.measurements = [
        (client, "global", "final", "test", "accuracy", value) for client, value in values.items()
    ]
    store.commit(record, 2, "finished")
    store.close()
    return run


def test_curve_history_and_best_round_end_with_the_final_phase(tmp_path: Path) -> None:
    run = rounds_of(tmp_path / "run", {1: [0.1, 0.3], 2: [0.1, 0.2]})
    with_final_phase(run, {"a": 0.6, "b": 0.8})
    result = result_of(run, details=True)
    assert result.main.values == {"a": 0.6, "b": 0.8}
    deviations = (pytest.approx(0.1), pytest.approx(0.05), pytest.approx(0.1))
    assert result.main.curve == Curve((1, 2, 3), (0.2, pytest.approx(0.15), 0.7), True, deviations)
    assert result.main.curve.training().deviations == deviations[:-1]
    assert result.details is not None and result.details.history.values[:, -1].tolist() == [
        0.6,
        0.8,
    ]
    found = summarise(result)
    assert (found["best round"], found["average then"]) == (3, 0.7)
    assert found["average"] == found["average then"], "the curve ends at the number of the table"


def test_a_run_that_was_stopped_early_has_no_final_phase(tmp_path: Path) -> None:
    experiment = eq.Experiment(
        data={"name": "digits", "clients": 2}, rounds=5, training={"steps": 1}, workers=0
    )

    class StopAfterTwo(eq.Callback):
        def on_round(self, record: RoundRecord) -> bool:
            return record.round == 2

    eq.run(experiment, tmp_path / "run", StopAfterTwo())
    curve = result_of(tmp_path / "run").main.curve
    assert curve.rounds == (1, 2) and not curve.final_phase


def test_convergence_is_about_training_and_not_the_final_phase(tmp_path: Path) -> None:
    run = rounds_of(tmp_path / "run", {n: [0.5] for n in range(1, 21)})
    with_final_phase(run, {"a": 0.9})
    assert not any("not converged" in note for note in notes(result_of(run)))


# Clients without a value, and why.


@pytest.mark.parametrize(
    ("evaluation", "statements", "missing"),
    [
        ({}, [], ["b"]),
        ({}, ["delete from measurements"], []),
        ({"splits": ["validation"]}, [], []),
        ({"clients": "cohort"}, [], ["b"]),
        ({"clients": "cohort"}, ["""update rounds set joined = '["a"]'"""], []),
        ({}, ["""update meta set value = replace(value, '[50, 50, 50]', '[50, 0, 50]')"""], []),
    ],
)
def test_a_client_that_was_measured_without_a_value_has_none(
    evaluation: dict[str, Any], statements: list[str], missing: list[str], tmp_path: Path
) -> None:
    run = made_up_run(tmp_path / "run", clients=["a", "b", "c"], rounds=1, evaluation=evaluation)
    change(run, "delete from measurements where client = 'b'", *statements)
    assert list(result_of(run).main.undefined) == missing


@pytest.mark.parametrize(
    ("splits", "sizes", "split", "reason"),
    [
        (["train"], [5, 5], [0.7, 0.1, 0.2], "evaluation.splits names train; put test into it"),
        ([], [5, 5], [0.7, 0.1, 0.2], "evaluation.splits names nothing"),
        (["test"], [0, 0], [0.8, 0.2, 0.0], "data.split gives tests no share"),
        (["test"], [0, 0], [0.7, 0.2, 0.1], "the largest has 9 and 10% of that is less than one"),
        (["test"], [0, 1], [0.7, 0.2, 0.1], "no client of the last measurement"),
    ],
)
def test_the_reason_why_nothing_was_measured(
    splits: list[str], sizes: list[int], split: list[float], reason: str, stores: Path
) -> None:
    config = {"evaluation": {"splits": splits}, "data": {"split": split}}
    result = replace(
        result_of(stores / "fedavg"), config=config, sizes={"train": [8, 9], "test": sizes}
    )
    assert reason in nothing_measured(result)


@pytest.mark.parametrize(
    ("train", "test", "note"),
    [
        ([0, 9], [0, 5], "client {} has no samples; averages are over the others"),
        ([3, 9], [0, 5], "client {} has no test samples; averages are over the others"),
        ([8, 9], [5, 5], ""),
        ([0, 0], [0, 0], ""),  # then nothing was measured, which has a note of its own
    ],
)
def test_a_client_without_test_samples_is_named(
    train: list[int], test: list[int], note: str, stores: Path
) -> None:
    result = result_of(stores / "fedavg")
    first, second = result.clients[:2]
    sizes = {"train": train, "test": test}
    assert without_samples(replace(result, clients=[first, second], sizes=sizes)) == note.format(
        first
    )


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("auroc", "auroc is undefined for client a: its test data have one class; "),
        ("c_index", "c_index is undefined for client a on its test data; "),
    ],
)
def test_one_class_is_the_reason_only_of_metrics_that_need_two(metric: str, reason: str) -> None:
    scores = MetricResult(find(metric), {"b": 0.5}, ["a"])
    assert one_class(scores).startswith(reason)


def test_notes_stand_in_order_and_only_where_they_apply(tmp_path: Path) -> None:
    evaluation = {"metrics": ["auroc", "loss"]}
    run = made_up_run(tmp_path / "run", clients=["a", "b", "c"], rounds=10, evaluation=evaluation)
    change(run, "update measurements set metric = 'auroc', value = 0.05 * round")
    change(
        run,
        "delete from measurements where client = 'c'",
        """update meta set value = '{"notes": ["of the data"]}' where key = 'facts'""",
    )
    found = notes(result_of(run))
    starts = ["of the data", "the main metric is auroc", "not converged", "auroc is undefined"]
    assert [note[: len(start)] for note, start in zip(found, starts, strict=True)] == starts
    store = Store(run, writing=True)
    store.set_meta("status", "running")
    try:
        assert not any("converged" in note for note in notes(result_of(run)))
    finally:
        store.close()


@pytest.mark.parametrize(
    ("count", "words"), [(12, "k10 and k11"), (13, "k11 and 1 more"), (1500, "k11 and 1,488 more")]
)
def test_a_sentence_names_twelve_clients(count: int, words: str) -> None:
    assert list_clients([f"k{k}" for k in range(count)]).endswith(words)


# The baseline.


def test_the_baseline_of_a_run_is_training_alone_next_to_it_on_the_same_data(stores: Path) -> None:
    baseline = find_baseline(Run(stores / "fedavg"))
    assert baseline is not None and baseline.folder == stores / "alone"
    assert find_baseline(Run(stores / "alone")) is None
    assert [path.name for path in runs_in(stores)] == ["alone", "fedavg", "other"]
    assert runs_in(stores / "nothing") == []


def test_a_baseline_of_other_data_is_refused(stores: Path) -> None:
    with pytest.raises(RunError, match="cannot be compared: their data or partition differ"):
        result_of(stores / "fedavg", stores / "other")


def test_runs_of_older_versions_cannot_be_matched_with_new_ones(
    stores: Path, tmp_path: Path
) -> None:
    new = measured(tmp_path / "new", {"a": 0.5})
    store = Store(new, writing=True)
    store.set_meta("fingerprint of", "clients")
    store.close()
    for run, alone in ((new, stores / "alone"), (stores / "alone", new)):
        with pytest.raises(RunError, match=f"{stores / 'alone'} was written by an older version"):
            result_of(run, alone)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 3),
        ("seed", 1),
        ("training", {"lr": 2}),
        ("model", "cnn"),
        ("models", {"m": "mlp"}),
    ],
)
def test_a_baseline_shares_data_and_schedule(key: str, value: Any) -> None:
    alone = {
        "method": {"name": "standalone"},
        "rounds": 2,
        "seed": 0,
        "training": {},
        "model": "mlp",
        "models": {},
    }
    own = {**alone, "method": {"name": "fedavg"}}
    assert is_baseline_for(alone, "d", own, "d")
    assert not is_baseline_for(alone, "d", {**own, key: value}, "d")
    assert not is_baseline_for(alone, "d", own, "e") and not is_baseline_for(own, "d", own, "d")


# One moment.


def test_a_result_shows_one_moment_of_a_run_in_progress(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", rounds=4, finished=False)
    reader = Run(run)
    with reader.one_moment():
        assert reader.last_round == 3
        store = Store(run, writing=True)
        record = RoundRecord(4, 0, ["0"], ["0"])
        record.measurements = [("0", "global", "received", "test", "accuracy", 0.125)]
        store.commit(record, 2, "finished")
        store.close()
        result = read_result(reader, details=True)
    assert result.details is not None
    assert result.last_round == 3 and result.details.history.rounds[-1] == 3
    assert result.main.curve.rounds[-1] == 3 and len(result.main.values) == 4
    assert read_result(Run(run)).last_round == 4


# A single round.


def rows(
    *triples: tuple[str, str, float], model: str = "global", phase: str = "received"
) -> list[Any]:
    return [
        (f"c{k}", model, phase, split, metric, value)
        for k, (split, metric, value) in enumerate(triples)
    ]


def test_the_main_metric_of_a_round_is_that_of_the_main_model_on_test_data() -> None:
    some = rows(
        ("test", "loss", 3.0), ("test", "accuracy", 0.5), ("validation", "accuracy", 0.9)
    ) + rows(("test", "accuracy", 0.1), model="personal")
    some += rows(("test", "accuracy", 0.7), phase="final")

    def average(measurements: list[Any], main: str | None = None, **more: Any) -> float | None:
        record = RoundRecord(1, 0, [], [], measurements=measurements, **{"main": "global", **more})
        summary = summarise_round(record, main)
        return None if summary is None else summary.average

    assert average(some) == 0.5 and average(some, "loss") == 3.0
    assert average(some, finish=True) == 0.7
    assert average([*some, *rows(("shared", "accuracy", 0.3))]) == 0.3
    assert summarise_round(RoundRecord(1, 0, [], [], measurements=some, main="other")) is None


def test_a_tracker_gets_every_finite_number_of_a_round_by_name() -> None:
    some = [
        ("a", "global", "received", "test", "loss", 1.0),
        ("b", "global", "received", "test", "loss", math.inf),
        ("a", "global", "after_local", "test", "loss", 2.0),
        ("a", "global", "final", "test", "loss", 9.0),
    ]
    record = RoundRecord(1, 0, [], [], measurements=some, weights={"a": 0.25})
    record.seconds = {"clients": 1.5}
    record.bytes_down = 3
    record.bytes_up = 4
    assert numbers(record) == {
        "global/test/loss/a": 1.0,
        "global/after_local/test/loss/a": 2.0,
        "global/after_local/test/loss/mean": 2.0,
        "weight/a": 0.25,
        "seconds/clients": 1.5,
        "bytes/down": 3.0,
        "bytes/up": 4.0,
    }
    end = RoundRecord(2, 0, [], [], measurements=some[3:], finish=True, main="global")
    assert numbers(end)["main/mean"] == numbers(end)["main/worst"] == 9.0


# The tables of a run.


def test_the_table_of_a_run_is_read_by_columns_and_conditions(stores: Path) -> None:
    run = Run(stores / "fedavg")
    assert run.columns("client", "value", split="test") == [("a", 0.25), ("b", 0.75), ("c", 0.5)]
    (row,) = run.table(split="test", client="b")
    assert (row["round"], row["phase"], row["value"]) == (1, "received", 0.75)
    with pytest.raises(TypeError, match="unknown column 'clinet'; expected one of round, client"):
        run.table(clinet="b")
    (record,) = run.rounds()
    assert record["joined"] == ["a", "b", "c"] and record["seconds"]["clients"] == 0.5
    with pytest.raises(RunError, match="no client 'x' in .*; it has a, b, c"):
        run.model("global", "x")


def test_a_run_that_nobody_works_on_is_stopped(tmp_path: Path) -> None:
    path = measured(tmp_path / "run", {"a": 0.5})
    store = Store(path, writing=True)
    store.set_meta("status", "running")
    assert Run(path).status == "running"
    store.close()
    assert Run(path).status == "stopped"


# Clinical measures.


def histogram(positives: int, negatives: int) -> np.ndarray:
    """Return a histogram of two classes, all samples with the score 50."""
    table = np.zeros((2, 4, score_histograms.ROUNDED), np.int64)
    table[1, 0, 50] = table[0, 1, 50] = positives
    table[1, 1, 50] = table[0, 0, 50] = negatives
    return table


@pytest.mark.parametrize(
    ("tables", "unequal"),
    [
        ([], False),
        ([(50, 50)], False),
        ([(60, 40)], False),
        ([(61, 39)], True),
        ([(61, 39), (39, 61)], True),
        ([(60, 40), (40, 60)], False),
    ],
)
def test_classes_are_unequal_above_six_of_ten(tables: list[tuple[int, int]], unequal: bool) -> None:
    by_client = {str(k): histogram(*counts) for k, counts in enumerate(tables)}
    assert clinical.unequal(by_client) == unequal


def test_of_two_classes_the_second_has_a_curve_and_of_more_all() -> None:
    two = Task("classification", (3,), 2, ("no", "yes"))
    three = Task("classification", (3,), 3)
    assert clinical.classes_with_curves(two) == [(1, "yes")]
    assert clinical.classes_with_curves(three) == [(0, "0"), (1, "1"), (2, "2")]


def test_sensitivity_falls_with_the_threshold() -> None:
    found = clinical.thresholds(histogram(30, 20), 1)
    assert [row["sensitivity"] for row in found if row["threshold"] in (50, 70)] == [1, 0]
