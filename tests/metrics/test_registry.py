"""The registry: what an entry says holds, one entry is all that a new metric takes, and what does
not fit is refused.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.comparison import formats
from equipoise.experiment import ConfigurationError, experiment
from equipoise.metrics.registry import (
    METRICS,
    Metric,
    check,
    find,
    main_of,
    measured,
    names,
    why_main,
)
from equipoise.metrics.survival import breslow_baseline
from equipoise.report import report
from equipoise.runs import read_result
from equipoise.runtime.client_evaluation import score
from equipoise.server import Server, ServerData
from equipoise.task import Task
from tests.helpers.runs import played, settings, sites

CLASSES, VALUES = Task("classification", (4,), 3), Task("regression", (4,), 1)
SURVIVAL = Task("survival", (4,), 1)


def outputs(metric: Metric) -> tuple[Any, Any, np.ndarray]:
    """Outputs that are right, outputs that are wrong, and the truth."""
    draw = np.random.default_rng(1)
    if metric.needs == "survival":
        times = np.arange(1.0, 31.0)
        risks = -times[:, None] / 5
        if metric.of_curves:
            baseline = breslow_baseline(risks, times)
            return baseline.curves(risks), baseline.curves(-risks), times
        return risks, -risks, times
    if metric.needs == "values":
        y = draw.normal(size=30)
        return y[:, None] + 0.1 * draw.normal(size=(30, 1)), y[:, None] + 2, y
    y = np.arange(30) % 3
    return 5 * np.eye(3)[y], 5 * np.eye(3)[(y + 1) % 3], y.astype(np.float64)


# A standard error is 0 if all pairs are in order, and also if none is.
DIRECTED = [metric for metric in METRICS if metric.name != "c_index_error"]


@pytest.mark.parametrize("metric", DIRECTED, ids=lambda metric: f"{metric.name}-{metric.needs}")
def test_the_direction_is_that_of_right_and_wrong_outputs_and_a_percentage_is_a_share(
    metric: Metric,
) -> None:
    right, wrong, y = outputs(metric)
    good, bad = metric.function(right, y), metric.function(wrong, y)
    assert good != bad and (good > bad) == metric.higher_is_better
    assert metric.unit in ("%", "") and (
        metric.unit == "" or 0 <= min(good, bad) <= max(good, bad) <= 1
    )
    fitting = {"values": VALUES, "survival": SURVIVAL}.get(metric.needs, CLASSES)
    for task in (VALUES, SURVIVAL, CLASSES):
        assert metric.fits(task) == (task is fitting)


def test_metrics_of_one_name_share_direction_and_unit() -> None:
    """What is printed of a run must not depend on which of them is looked up."""
    by_name: dict[str, set[tuple[bool, str]]] = {}
    for metric in METRICS:
        by_name.setdefault(metric.name, set()).add((metric.higher_is_better, metric.unit))
    assert all(len(kinds) == 1 for kinds in by_name.values())
    assert find("loss", CLASSES).needs == "classes" and find("loss", VALUES).needs == "values"
    with pytest.raises(ValueError, match="unknown metric 'aurok'; did you mean 'auroc'"):
        find("aurok")


@pytest.mark.parametrize(
    ("listed", "main", "expected"),
    [
        ((), None, ("accuracy", ("accuracy", "loss"))),
        ((), "auroc", ("auroc", ("accuracy", "loss", "auroc"))),
        (("auroc",), None, ("auroc", ("auroc",))),
        (("loss", "f1", "auroc"), None, ("f1", ("loss", "f1", "auroc"))),
        (("auroc", "accuracy"), None, ("accuracy", ("auroc", "accuracy"))),
        (("auroc",), "accuracy", ("accuracy", ("auroc", "accuracy"))),
        (("loss",), None, ("loss", ("loss",))),
    ],
)
def test_the_main_metric(
    listed: tuple[str, ...], main: str | None, expected: tuple[str, tuple[str, ...]]
) -> None:
    names = measured(CLASSES, listed, main)
    assert (main_of(names, main), names) == expected
    assert bool(why_main(names, main)) == (expected[0] not in ("accuracy", "rmse") and main is None)
    assert main_of(measured(VALUES)) == "rmse"


@pytest.mark.parametrize(
    ("evaluation", "sentence"),
    [
        (
            {"metrics": ["rmse"]},
            "^evaluation.metrics: rmse needs values, but the task is classification; choose among "
            "accuracy, loss, auroc",
        ),
        ({"main": "mae"}, "^evaluation.main: mae needs values, but the task is classification"),
        ({"main": "aurok"}, "evaluation.main: unknown metric 'aurok'; did you mean 'auroc'"),
        (
            {"metrics": ["acuracy"]},
            "evaluation.metrics: unknown metric 'acuracy'; did you mean 'accuracy'",
        ),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_before_anything_is_written(
    evaluation: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        played(settings("fedavg", evaluation=evaluation), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_classes_are_refused_in_regression(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    wanted = {
        "dataset": eq.from_arrays(x, x[:, 0] * 1.5),
        "data": {"clients": 2},
        "rounds": 1,
        "workers": 0,
    }
    with pytest.raises(
        ValueError,
        match=r"auroc needs two classes, but the task is regression; choose among loss, rmse, mae",
    ):
        eq.run({**wanted, "evaluation": {"metrics": ["auroc"]}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_main_metric_that_no_client_can_have_is_refused(tmp_path: Path) -> None:
    data = sites(labels={"ada": [0], "bo": [1], "cy": [2], "di": [1]})
    with pytest.raises(
        ValueError,
        match=(
            "evaluation.main: auroc needs samples of two classes, and no client's test data have "
            "them"
        ),
    ):
        played(settings("fedavg", evaluation={"metrics": ["auroc"]}), tmp_path / "run", data)
    assert not (tmp_path / "run").exists()
    assert played(
        settings("fedavg", rounds=1, evaluation={"metrics": ["auroc", "accuracy"]}),
        tmp_path / "run",
        data,
    ).final()


def test_adding_a_metric_is_one_object(tmp_path: Path) -> None:
    """The share of samples whose label is not the least likely class, here counted as something to
    keep low: a direction of its own.
    """

    def dull(logits: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(logits.argmin(1) != y))

    dullness = Metric("dullness", dull, False, "%", "classes")
    base = settings("fedavg", rounds=1, evaluation={"main": dullness}) | {
        "dataset": eq.from_sites(sites())
    }
    result = eq.compare(
        {key: value for key, value in base.items() if key != "method"},
        ["fedavg"],
        seeds=[7],
        out=tmp_path,
    )
    run = eq.Run(result.entries[1].run.folder)
    assert run.main_metric == "dullness" and set(run.final()) == {"ada", "bo", "cy", "di"}
    own = read_result(run)
    assert own.main.aggregates["worst"] == max(run.final().values())
    accuracy = own.metric("accuracy").aggregates
    assert accuracy["worst"] == min(run.final("accuracy").values())
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(result))))
    assert list(dict.fromkeys(row["metric"] for row in rows)) == ["dullness", "accuracy", "loss"]
    best = next(
        row
        for row in rows
        if row["metric"] == "dullness" and row["measure"] == "average" and row["position"] == "1"
    )
    assert float(best["value"]) == min(entry.aggregates["average"] for entry in result.entries)
    page = report([tmp_path], tmp_path / "r.html")[0].read_text()
    assert "average dullness" in page and "dullness in % on test data" in page


def test_a_diverged_model_counts_and_a_metric_that_does_not_exist_has_no_value() -> None:
    broken, y = (
        torch.tensor([[float("nan"), 1.0, 0.0], [3.0, 1.0, 0.0], [float("inf"), 0.0, 0.0]]),
        torch.tensor([1, 0, 0]),
    )
    names = ("accuracy", "loss", "auroc", "calibration_error")
    found = score(CLASSES, broken, y, names)
    assert found.keys() == set(names) and found["accuracy"] == pytest.approx(1 / 3)
    assert all(np.isnan(found[name]) for name in names[1:])
    one_class = score(CLASSES, torch.eye(3), torch.zeros(3, dtype=torch.int64), names)
    assert one_class.keys() == {"accuracy", "loss", "calibration_error"}
    assert score(CLASSES, torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), names) == {}
    masked = torch.tensor([[float("-inf"), 1.0, 0.0]])
    assert score(CLASSES, masked, torch.tensor([1]), ("accuracy",)) == {"accuracy": 1.0}


def test_scoring_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    every = [metric.name for metric in METRICS if metric.fits(CLASSES)]
    score(CLASSES, torch.eye(3), torch.zeros(3, dtype=torch.int64), every)
    score(CLASSES, torch.full((3, 3), float("nan")), torch.tensor([0, 1, 1]), every)
    score(VALUES, torch.full((3, 1), float("inf")), torch.zeros(3), ["rmse", "mae", "loss"])
    assert not recwarn.list


def test_the_server_counts_as_runs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """One definition of accuracy: a row that is not a number is wrong, a class masked by -inf is no
    harm.
    """
    logits, y = (
        torch.tensor([[float("nan"), 1.0], [float("-inf"), 1.0], [2.0, 1.0], [float("inf"), 1.0]]),
        torch.tensor([0, 1, 1, 0]),
    )
    server = Server(None, ids=[], sizes={}, rounds=1, data=ServerData(SimpleNamespace(y=y)))  # type: ignore[arg-type]
    monkeypatch.setattr(Server, "predict", lambda self, model: logits)
    assert (
        server.accuracy(None)
        == score(Task("classification", (4,), 2), logits, y, ["accuracy"])["accuracy"]
        == 0.25
    )  # type: ignore[arg-type]


def test_an_experiment_names_its_main_metric() -> None:
    assert experiment({"evaluation": {"main": "auroc"}}).evaluation.main == "auroc"
    with pytest.raises(
        ConfigurationError, match=r"evaluation.man: unknown key; did you mean evaluation.main\?"
    ):
        experiment({"evaluation": {"man": "auroc"}})


def test_what_a_metric_is_printed_as() -> None:
    share, error = find("accuracy"), find("rmse")
    assert (share.scale, share.title, share.of_changes, share.lower_is_better) == (
        100.0,
        "accuracy in %",
        "points",
        False,
    )
    assert (error.scale, error.title, error.of_changes, error.lower_is_better) == (
        1.0,
        "rmse",
        "rmse",
        True,
    )
    built_in = list(dict.fromkeys(metric.name for metric in METRICS))
    assert names()[: len(built_in)] == built_in and len(set(names())) == len(names())
    assert find("loss").needs == "classes"


def test_which_metric_fits_which_task() -> None:
    one = Task("classification", (4,), 1)
    fitting = {
        task: [metric.name for metric in METRICS if metric.fits(task)]
        for task in (one, Task("classification", (4,), 2), VALUES)
    }
    needs = {name: {m.needs for m in METRICS if m.name == name} for name in names()}
    assert all("classes" in needs[name] for name in fitting[one])
    assert all("values" in needs[name] for name in fitting[VALUES])
    assert {"accuracy", "loss", "f1"} <= set(fitting[one]) and "auroc" not in fitting[one]
    assert "auroc" in fitting[Task("classification", (4,), 2)]
    assert {"loss", "rmse", "mae"} <= set(fitting[VALUES])
    check(CLASSES, ["auroc", "f1"], "accuracy")
    for given, sentence in (
        (
            (one, ["auroc"]),
            "^evaluation.metrics: auroc needs two classes, but the task has one class; choose "
            "among accuracy, loss",
        ),
        (
            (one, ["f1"], "auroc"),
            "^evaluation.main: auroc needs two classes, but the task has one class",
        ),
        (
            (VALUES, ["f1"]),
            "^evaluation.metrics: f1 needs classes, but the task is regression; choose among "
            "loss, rmse, mae",
        ),
        ((one, ["rmse"]), "^evaluation.metrics: rmse needs values, but the task is classification"),
    ):
        with pytest.raises(ValueError, match=sentence):
            check(*given)  # type: ignore[arg-type]


def test_a_main_metric_that_nobody_expects_is_explained() -> None:
    assert (
        why_main([])
        == why_main(["loss"], "loss")
        == why_main(["rmse"])
        == why_main(["auroc", "accuracy"])
        == ""
    )
    assert why_main(["loss"]).startswith("the main metric is loss, the only one measured;")
    assert why_main(["loss", "f1"]).startswith(
        "the main metric is f1, the first measured that is not the loss;"
    )
    assert (
        main_of(["loss"]) == "loss"
        and main_of(["loss", "rmse"]) == "rmse"
        and measured(VALUES, (), "mae") == ("rmse", "loss", "mae")
    )
