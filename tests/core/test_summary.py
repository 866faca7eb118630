"""What is said of a run: extremes, gains, notes and reasons, of stores that are made up."""

from __future__ import annotations

import math
import sqlite3
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from equipoise.runs.reference import check_comparable, is_baseline_for, reference_of, runs_in

from equipoise.experiment import ConfigurationError, Experiment
from equipoise.metrics import accuracy_variance, between_client_variance, score_histograms
from equipoise.metrics.registry import find
from equipoise.runs import Run, clinical, summary
from equipoise.runs.convergence import Curve, best_of, in_words, mean_curve, rounds_to, still_rising
from equipoise.runs.export import _card, _evidence
from equipoise.runs.summary import (
    best_round,
    metrics_of,
    no_test,
    notes,
    of_main,
    over_clients,
    summarise,
    undefined,
    unmeasured,
)
from equipoise.runs.track import numbers
from equipoise.simulate import configuration, fresh_folder, on_cluster, print_description
from equipoise.storage.store import RoundRecord, RunError, Store
from equipoise.task import Task
from equipoise.validation import safe_yaml
from tests.helpers.stores import made_up_run


class Told:
    """A run that says what it is told to say."""

    main_model, main_metric, main_split, status = "global", "accuracy", "test", "finished"

    def __init__(self, **more: Any) -> None:
        self.clients = ["a", "b", "c"]
        self.config: dict[str, Any] = {
            "evaluation": {"splits": ["test"], "clients": "all", "metrics": []},
            "data": {},
            "rounds": 5,
        }
        self.task = Task("classification", (3,), 2)
        self.meta: dict[str, Any] = {"sizes": {"train": [7, 8, 9], "test": [50, 50, 50]}}
        self.values = {"a": 0.5, "b": 0.25, "c": 0.75}
        self.last: int | None = 4
        self.means: dict[int, list[float | None]] = {}
        for name, value in more.items():
            setattr(self, name, value)
        self.store = SimpleNamespace(meta=self.meta.get, rows=lambda *_: [{"last": self.last}])

    def final(self, *_: Any, **__: Any) -> dict[str, float]:
        return self.values

    def finish(self) -> list[Any]:
        return []

    def rounds(self) -> list[dict[str, Any]]:
        return [{"round": 3, "joined": ["a", "b", "c"]}, {"round": 4, "joined": ["a"]}]

    def columns(self, *names: str, **where: Any) -> list[tuple[Any, ...]]:
        assert names == ("round", "value") and where["phase"] == "received"
        return [(number, value) for number, values in self.means.items() for value in values]


def run(**more: Any) -> Run:
    return Told(**more)  # type: ignore[return-value]


# Numbers over clients and rounds.


def test_extremes_follow_the_direction_of_the_metric() -> None:
    values = {"a": 0.5, "b": 0.25, "c": 0.75}
    deviation = math.sqrt(2 * 0.0625 / 3)
    assert over_clients(values, "accuracy") == pytest.approx(
        {"average": 0.5, "worst": 0.25, "best": 0.75, "std": deviation}
    )
    assert over_clients(values, "loss") == pytest.approx(
        {"average": 0.5, "worst": 0.75, "best": 0.25, "std": deviation}
    )
    assert over_clients({}, "accuracy") == {}


def test_a_curve_is_the_mean_over_clients_by_round() -> None:
    found = mean_curve(run(means={2: [0.5, 1.0], 4: [0.25], 6: [0.5, None]}))
    assert (
        found.rounds == (2, 4, 6) and found.means[:2] == (0.75, 0.25) and math.isnan(found.means[2])
    )
    assert best_round(run(means={2: [0.5], 4: [0.75], 6: [0.25]}), "accuracy", "global") == {
        "best round": 4,
        "average then": 0.75,
    }
    assert best_round(run(means={2: [0.5], 4: [0.75], 6: [0.25]}), "loss", "global") == {
        "best round": 6,
        "average then": 0.25,
    }
    assert best_round(run(means={2: [None], 4: [None]}), "accuracy", "global") == {}


def test_the_best_round_passes_over_diverged_ones() -> None:
    accuracy, loss = find("accuracy"), find("loss")
    assert (
        best_of(Curve((1, 2, 3), (0.5, math.nan, 0.75)), accuracy) == 3
        and best_of(Curve((1, 2, 3), (0.5, math.nan, 0.75)), loss) == 1
    )
    assert math.isnan(best_of(Curve((1, 2), (math.nan, math.nan)), accuracy))
    assert (
        rounds_to(Curve((2, 4), (0.5, 0.75)), 0.5, accuracy) == 2
        and rounds_to(Curve((2, 4), (0.5, 0.25)), 0.25, loss) == 4
    )
    assert math.isnan(rounds_to(Curve((2, 4), (0.5, 0.75)), 0.49, loss))


def straight(count: int, slope: float, level: float = 0.0, bend: float = 0.0) -> Curve:
    """A line, with points that lie above and below it in turn."""
    return Curve(
        tuple(range(1, count + 1)),
        tuple(level + slope * k + bend * (-1) ** k for k in range(count)),
    )


@pytest.mark.parametrize(
    ("count", "first"),
    [(7, None), (8, 5), (20, 17), (21, 17), (25, 21), (26, 21), (30, 25)],
    ids=lambda value: str(value),
)
def test_the_last_fifth_is_looked_at_and_four_rounds_at_least(
    count: int, first: int | None
) -> None:
    found = still_rising(straight(count, 0.01))
    assert (found and found[0]) == first
    if found and first:
        assert found[1] == pytest.approx(0.01 * (count - first))


@pytest.mark.parametrize(
    ("level", "rising"), [(6.1, False), (5.9, True), (-6.1, False), (-5.9, True)]
)
def test_a_rise_below_half_a_percent_of_the_level_is_none(level: float, rising: bool) -> None:
    """A rise by 0.03 over the last four rounds, to about the level."""
    assert (still_rising(straight(10, 0.01, level - 0.09)) is not None) == rising


def test_a_rise_is_told_in_points_or_in_the_unit() -> None:
    assert in_words((5, 0.0123), 8, find("accuracy")).startswith(
        "not converged: mean accuracy still got better by 1.2 points in rounds 5 to 8"
    )
    assert "mean loss still got better by 0.01235 in rounds" in in_words(
        (5, 0.012346), 8, find("loss")
    )


@pytest.mark.parametrize(("values", "totals", "metric", "split", "said"), [
    ((0.2, 0.8), [50, 40], "accuracy", "test", True), ((0.2, 0.8), [50, 2], "accuracy", "test", True), ((0.2, 0.8), [50, 1], "accuracy", "test", False),
    ((0.2, 0.8), [50, 40], "loss", "test", False), ((0.2, 0.8), [50, 40], "accuracy", "shared", False),
])  # fmt: skip
def test_the_spread_that_test_noise_does_not_explain(
    values: tuple[float, ...], totals: list[int], metric: str, split: str, said: bool
) -> None:
    given = run(clients=["a", "b"], meta={"sizes": {"test": totals}}, main_split=split)
    found = summary._without_noise(given, metric, dict(zip("ab", values, strict=True)))
    noise = accuracy_variance(list(values), totals) if said else 0
    assert found == (
        {
            "std without test noise": pytest.approx(
                math.sqrt(between_client_variance(list(values), noise)["debiased"])
            )
        }
        if said
        else {}
    )


# Who is missing, and why.


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ({}, ["b"]),
        ({"values": {"a": 1.0, "b": 1.0, "c": 1.0}}, []),
        ({"last": None}, []),
        ({"values": {"all": 1.0}}, []),
        ({"meta": {"sizes": {"test": [5, 0, 5]}}}, []),
        ({"meta": {"sizes": {}}}, ["b"]),
        ({"evaluation": {"splits": ["validation"], "clients": "all"}}, []),
        ({"evaluation": {"splits": [], "clients": "all"}, "main_split": "shared"}, ["b"]),
        ({"evaluation": {"splits": ["test"], "clients": "cohort"}}, []),
        ({"evaluation": {"splits": ["test"], "clients": "cohort"}, "last": 3}, ["b"]),
    ],
)
def test_a_client_that_was_measured_without_a_value_has_none(
    more: dict[str, Any], missing: list[str]
) -> None:
    evaluation = more.pop("evaluation", {"splits": ["test"], "clients": "all"})
    told = run(**{"values": {"a": 0.5, "c": 0.75}, "config": {"evaluation": evaluation}, **more})
    assert (
        undefined(told, "auroc", "global")
        == missing
        == undefined(told, "auroc", "global", told.final())
    )


@pytest.mark.parametrize(
    ("sizes", "more", "said"),
    [
        ([0, 0, 0], {"status": "running"}, ""),
        ([5, 5, 5], {"splits": ["train"]}, "evaluation.splits names train; put test into it"),
        ([5, 5, 5], {"splits": []}, "evaluation.splits names nothing; put test into it"),
        (
            [0, 0, 0],
            {"split": [0.8, 0.2, 0.0]},
            "data.split gives tests no share; set data.split=[0.7, 0.1, 0.2], say",
        ),
        (
            [0, 0, 0],
            {"split": [0.7, 0.2, 0.1]},
            "no client has a test sample, since the largest has 9 and 10% of that is less than one",
        ),
        ([0, 0, 0], {}, "the largest has 9 and 20% of that"),
        (
            [0, 1, 0],
            {},
            "no client that was asked at the last measurement has test data and answered",
        ),
        (
            [0, 0, 0],
            {"main_split": "shared", "splits": []},
            "no client that was asked at the last measurement has test data and answered",
        ),
    ],
)
def test_why_nothing_was_measured(sizes: list[int], more: dict[str, Any], said: str) -> None:
    config = {
        "evaluation": {"splits": more.pop("splits", ["test"])},
        "data": {"split": more.pop("split")} if "split" in more else {},
    }
    found = unmeasured(
        run(config=config, meta={"sizes": {"train": [7, 8, 9], "test": sizes}}, **more)
    )
    assert said in found and bool(found) == bool(said)


def test_notes_stand_in_order_and_only_where_they_apply() -> None:
    rising = {n: [0.1 * n] for n in range(1, 11)}
    told = {
        "values": {"a": 0.5, "b": math.nan},
        "means": rising,
        "meta": {"facts": {"notes": ["of the data"]}, "sizes": {"test": [5, 5, 5]}},
    }
    told["config"] = {
        "evaluation": {"splits": ["test"], "clients": "all", "metrics": ["auroc", "loss"]}
    }
    found = notes(run(**told, main_metric="auroc"), "auroc", "global")
    assert (
        found[0] == "of the data"
        and found[1].startswith("the main metric is auroc")
        and "in rounds 7 to 10" in found[2]
    )
    assert (
        found[3].startswith("auroc is undefined for client c")
        and found[4].startswith("auroc of client b is not a number")
        and len(found) == 5
    )
    other = notes(run(**told, main_metric="auroc"), "auroc", "personal", chosen=False)
    assert [one[:9] for one in other] == ["of the da", "auroc is ", "auroc of "], (
        "another model, and a metric that was asked for"
    )
    assert not any(
        "converged" in one for one in notes(run(**told, status="running"), "auroc", "global")
    )
    assert notes(run(), "accuracy", "global") == []
    (why,) = notes(
        run(values={}, meta={"sizes": {"train": [5, 5, 5], "test": [0, 0, 0]}}),
        "accuracy",
        "global",
    )
    assert why.startswith("nothing was measured: no client has a test sample")


@pytest.mark.parametrize(
    ("count", "words"), [(12, "k10 and k11"), (13, "k11 and 1 more"), (1500, "k11 and 1,488 more")]
)
def test_a_sentence_names_twelve_clients(count: int, words: str) -> None:
    assert summary.clients_in_words([f"k{k}" for k in range(count)]).endswith(words)


def test_whose_test_data_have_one_class() -> None:
    assert "its test data have one class; choose another metric" in summary.one_class(
        "auroc", ["a"], 0
    )
    assert (
        "the shared test data have one class" in summary.one_class("auroc", ["a"], 1, "shared")
        and summary.one_class("auroc", [], 3) == ""
    )


# The main metric of a round.


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
    metric, values = of_main(RoundRecord(1, 0, [], [], measurements=some, main="global"))
    assert metric is not None and (metric.name, values) == ("accuracy", [0.5])
    assert of_main(RoundRecord(1, 0, [], [], measurements=some, main="global"), "loss")[1] == [3.0]
    assert of_main(RoundRecord(1, 0, [], [], measurements=some, main="global", finish=True))[1] == [
        0.7
    ]
    assert of_main(RoundRecord(1, 0, [], [], measurements=some, main="else")) == (None, [])
    both = [*some, *rows(("shared", "accuracy", 0.3))]
    assert of_main(RoundRecord(1, 0, [], [], measurements=both, main="global"))[1] == [0.3]


def test_a_tracker_gets_every_finite_number_of_a_round_by_name() -> None:
    some = [("a", "global", "received", "test", "loss", 1.0), ("b", "global", "received", "test", "loss", math.inf), ("a", "global", "after_local", "test", "loss", 2.0),
            ("a", "global", "final", "test", "loss", 9.0)]  # fmt: skip
    record = RoundRecord(
        1,
        0,
        [],
        [],
        measurements=some,
        weights={"a": 0.25},
        seconds={"clients": 1.5},
        bytes_down=3,
        bytes_up=4,
    )
    assert numbers(record) == {
        "global/test/loss/a": 1.0, "global/after_local/test/loss/a": 2.0, "global/after_local/test/loss/mean": 2.0, "weight/a": 0.25, "seconds/clients": 1.5,
        "bytes/down": 3.0, "bytes/up": 4.0,
    }  # fmt: skip
    end = RoundRecord(2, 0, [], [], measurements=some[3:], finish=True, main="global")
    assert numbers(end) == {
        "global/test/loss/a": 9.0,
        "global/test/loss/mean": 9.0,
        "main/mean": 9.0,
        "main/worst": 9.0,
        "bytes/down": 0.0,
        "bytes/up": 0.0,
    }


# Stores.


def measured(folder: Path, values: dict[str, float | None], **more: Any) -> Path:
    """A run of one round with these values."""
    path = made_up_run(folder, clients=list(values), rounds=1, **more)
    with sqlite3.connect(path / "run.db") as db:
        for client, value in values.items():
            db.execute("update measurements set value = ? where client = ?", (value, client))
    return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    measured(folder / "alone", {"a": 0.5, "b": 0.5, "c": 0.5}, method="standalone")
    measured(folder / "fedavg", {"a": 0.25, "b": 0.75, "c": 0.5})
    measured(
        folder / "other", {"a": 0.5, "b": 0.5, "c": 0.5}, method="standalone", fingerprint="other"
    )
    measured(folder / "rmse" / "alone", {"a": 0.5, "b": 0.5}, method="standalone", regression=True)
    measured(folder / "rmse" / "fedavg", {"a": 0.25, "z": 0.75}, regression=True)
    return folder


def test_gains_are_against_training_alone_and_counted(stores: Path) -> None:
    found = summarise(Run(stores / "fedavg"), Run(stores / "alone"))
    assert {client: row["gain"] for client, row in found["per client"].items()} == {
        "a": -0.25,
        "b": 0.25,
        "c": 0.0,
    }
    assert found["per client"]["b"] == {"samples": 101, "value": 0.75, "alone": 0.5, "gain": 0.25}
    assert (found["gained"], found["lost"], found["average gain"], found["against"]) == (
        1,
        1,
        0.0,
        str(stores / "alone"),
    )
    assert (
        found["run"],
        found["round"],
        found["rounds"],
        found["clients"],
        found["model"],
        found["models"],
    ) == (
        str(stores / "fedavg"),
        1,
        1,
        3,
        "global",
        ["global"],
    )
    assert (found["average"], found["worst"], found["best"], found["best round"]) == (
        0.5,
        0.25,
        0.75,
        1,
    ) and found["rejected replies"] == 0
    assert math.copysign(1, found["per client"]["c"]["gain"]) == 1, "no gain is no loss"
    assert (
        "against" not in summarise(Run(stores / "fedavg"))
        and summarise(Run(stores / "fedavg"))["clinical"] == {}
    )
    with pytest.raises(RunError, match="did not measure 'f1'; it has accuracy"):
        summarise(Run(stores / "fedavg"), metric="f1")


def test_gains_of_an_error_are_where_it_falls_and_clients_without_a_reference_have_none(
    stores: Path,
) -> None:
    found = summarise(Run(stores / "rmse" / "fedavg"), Run(stores / "rmse" / "alone"))
    assert found["per client"]["a"]["gain"] == 0.25 and "gain" not in found["per client"]["z"]
    assert (found["gained"], found["lost"], found["worst"], found["metric"]) == (1, 0, 0.75, "rmse")


def test_the_reference_of_a_run_is_training_alone_beside_it_on_the_same_data(stores: Path) -> None:
    reference = reference_of(Run(stores / "fedavg"))
    assert reference is not None and reference.folder == stores / "alone"
    assert (
        reference_of(Run(stores / "alone")) is None and reference_of(Run(stores / "other")) is None
    )
    assert [path.name for path in runs_in(stores)] == ["alone", "fedavg", "other"] and runs_in(
        stores / "nothing"
    ) == []
    check_comparable(Run(stores / "fedavg"), Run(stores / "alone"))
    with pytest.raises(RunError, match="cannot be compared: their data or partition differ"):
        check_comparable(Run(stores / "fedavg"), Run(stores / "other"))


def test_runs_of_older_versions_cannot_be_matched_with_new_ones(
    stores: Path, tmp_path: Path
) -> None:
    new = measured(tmp_path / "new", {"a": 0.5})
    store = Store(new, writing=True)
    store.set_meta("fingerprint of", "clients")
    store.close()
    for run_, alone in ((new, stores / "alone"), (stores / "alone", new)):
        with pytest.raises(RunError, match=f"{stores / 'alone'} was written by an older version"):
            check_comparable(Run(run_), Run(alone))


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
def test_a_reference_shares_data_and_schedule(key: str, value: Any) -> None:
    config = {
        "method": {"name": "standalone"},
        "rounds": 2,
        "seed": 0,
        "training": {},
        "model": "mlp",
        "models": {},
    }
    own = {**config, "method": {"name": "fedavg"}}
    assert is_baseline_for(config, "d", own, "d") and not is_baseline_for(
        config, "d", {**own, key: value}, "d"
    )
    assert not is_baseline_for(config, "d", own, "e") and not is_baseline_for(own, "d", own, "d")


def test_the_table_of_a_run_is_read_by_columns_and_conditions(stores: Path) -> None:
    opened = Run(stores / "fedavg")
    assert (
        opened.columns("client", "value", split="test") == [("a", 0.25), ("b", 0.75), ("c", 0.5)]
        and len(opened.table()) == 6
    )
    assert opened.table(split="test", client="b") == [
        {
            "round": 1,
            "client": "b",
            "model": "global",
            "phase": "received",
            "split": "test",
            "metric": "accuracy",
            "value": 0.75,
        }
    ]
    with pytest.raises(
        TypeError, match="table: unknown column 'clinet'; expected one of round, client"
    ):
        opened.table(clinet="b")
    assert (
        repr(opened) == f"Run('{stores / 'fedavg'}', finished, round 1 of 1)"
        and opened.finish() == []
        and opened.rejected() == []
    )
    (record,) = opened.rounds()
    assert (record["cohort"], record["joined"], record["seconds"]) == (
        ["a", "b", "c"],
        ["a", "b", "c"],
        {"clients": 0.5, "transport": 0.1, "aggregation": 0.1},
    )
    assert (
        opened.weights()[0]["share"] == pytest.approx(1 / 3)
        and opened.majority() == {}
        and metrics_of(opened) == ["accuracy"]
    )
    assert (
        Run(stores / "alone").main_model == "personal"
        and opened.main_model == "global"
        and opened.main_split == "test"
    )
    with pytest.raises(RunError, match="no client 'x' in .*; it has a, b, c"):
        opened.model("global", "x")


def test_a_diverged_value_is_nan_and_a_run_that_nobody_works_on_is_stopped(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = measured(tmp_path / "run", {"a": None, "b": 0.5})
    assert math.isnan(Run(path).final()["a"]) and Run(path).final()["b"] == 0.5
    found = summarise(Run(path))
    assert "accuracy of client a is not a number" in found["notes"][0]
    assert "std without test noise" not in found and not recwarn.list, (
        "of what is not a number nothing more can be said"
    )
    store = Store(path, writing=True)
    store.set_meta("status", "running")
    assert Run(path).status == "running"
    store.close()
    assert Run(path).status == "stopped"


# Measures beside accuracy.


def table(positives: int, negatives: int) -> np.ndarray:
    """Counts of two classes: so many samples of the second and of the first, all with the score 50."""
    found = np.zeros((2, 4, score_histograms.ROUNDED), np.int64)
    found[1, 0, 50], found[1, 1, 50], found[0, 0, 50], found[0, 1, 50] = (
        positives,
        negatives,
        negatives,
        positives,
    )
    return found


@pytest.mark.parametrize(
    ("tables", "said"), [([], False), ([(50, 50)], False), ([(60, 40)], False), ([(61, 39)], True), ([(61, 39), (39, 61)], True), ([(60, 40), (40, 60)], False)]
)  # fmt: skip
def test_classes_are_unequal_from_six_of_ten_on(tables: list[tuple[int, int]], said: bool) -> None:
    assert clinical.unequal({str(k): table(*one) for k, one in enumerate(tables)}) == said


def test_who_sent_no_counts() -> None:
    assert (
        clinical.silent(["a", "b", "c"], ["b"])
        == "2 of 3 clients sent no counts: fewer than 30 test samples, or they may not"
    )
    assert clinical.silent(["a"], ["a"]) == ""


def test_of_two_classes_the_second_has_a_curve_and_of_more_all() -> None:
    assert clinical.classes_of(run(task=Task("classification", (3,), 2, ("no", "yes")))) == [
        (1, "yes")
    ]
    assert clinical.classes_of(run(task=Task("classification", (3,), 3))) == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
    ]
    told = clinical.thresholds(table(30, 20), 1)
    assert [one["threshold"] for one in told] == [10, 20, 30, 50, 70, 80, 90]
    assert [one["sensitivity"] for one in told] == [1, 1, 1, 1, 0, 0, 0]


# Before a run begins.


def test_a_new_folder_is_named_by_what_is_run_and_never_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Then:
        @staticmethod
        def now() -> Any:
            return SimpleNamespace(strftime=lambda form: "now")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.simulate.datetime", Then)
    wanted = Experiment(data={"name": "some/where/mine"}, method="fedprox", seed=3)
    names = []
    for _ in range(3):
        folder = fresh_folder(wanted)
        folder.mkdir(parents=True)
        names.append(folder)
    assert names == [Path("runs") / f"now-fedprox-mine-s3{more}" for more in ("", "-2", "-3")]


def test_an_experiment_that_is_too_long_to_be_read_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = configuration(Experiment())
    assert "rounds: 50" in text and text.index("data:") < text.index("model:") < text.index(
        "rounds:"
    )
    for most, fits in ((len(text.encode()), True), (len(text.encode()) - 1, False)):
        monkeypatch.setattr("equipoise.validation.safe_yaml.MOST_BYTES", most)
        with (
            nullcontext()
            if fits
            else pytest.raises(
                ConfigurationError, match=r"at most 1 MB, got one of 0.0 MB; shorten its lists"
            )
        ):
            configuration(Experiment())


def test_an_experiment_that_is_no_plain_yaml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(text: str, where: str) -> None:
        raise safe_yaml.Unreadable(f"{where} is odd")

    monkeypatch.setattr("equipoise.validation.safe_yaml.parsed", refused)
    with pytest.raises(ConfigurationError, match="this experiment, written to a file, is odd"):
        configuration(Experiment())


@pytest.mark.parametrize(
    ("wanted", "shape", "said"),
    [
        ({"model": "auto"}, (1, 28, 28), "model: cnn, the default for images of 1x28x28"),
        ({"model": "cnn"}, (1, 28, 28), ""),
        ({"model": "auto"}, (13,), ""),
        ({"models": {"model": "mlp"}}, (1, 28, 28), ""),
    ],
)  # fmt: skip
def test_a_chosen_model_is_told_where_nobody_watches(
    wanted: dict[str, Any],
    shape: tuple[int, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_description(Experiment(**wanted), None, shape)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(said) and bool(err) == bool(said)


def test_a_cluster_is_named_or_there_is_none() -> None:
    assert on_cluster(None, True) is None
    made = on_cluster("h:1", True)
    assert made is not None and made.keywords == {"address": "h:1", "trust_network": True}  # type: ignore[attr-defined]


# A model's card.


def test_a_card_says_what_a_model_is_and_what_was_measured(stores: Path) -> None:
    opened, net = Run(stores / "fedavg"), torch.nn.Linear(3, 2)
    card = _card(opened, "global", None, net)
    assert (
        card.startswith("# global\n")
        and "- accuracy on test data, by client: a: 0.2500, b: 0.7500, c: 0.5000\n" in card
    )
    assert (
        "8 parameters" in card
        and "3 clients, seed 0\n" in card
        and "- rounds: 1 of 1" in card
        and "2 outputs\n" in card
        and "majority" not in card
    )
    own = _card(opened, "global", "b", net)
    assert own.startswith("# global of client b\n") and "by client: b: 0.7500\n" in own
    assert (
        "by client: not measured" in _card(opened, "personal", None, net)
        and _evidence(opened, "b", net) == ""
    )


def test_gains_of_accuracy_are_tested_and_those_of_errors_say_why_not() -> None:
    assert "auroc" in no_test("auroc") and "accuracy" in no_test("rmse")
    assert "test sets" in no_test("accuracy")
