"""Counts of scores at the last measurement: what is sent, by whom, when and how it is kept.

The exact scores are computed here from the models themselves.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

import equipoise as eq
from equipoise import simulate
from equipoise.data import federate
from equipoise.metrics import score_histograms
from equipoise.runs import Run, read_result
from equipoise.runs.clinical import ClinicalValue, interval_notes, unequal
from equipoise.runs.summary import summarise
from equipoise.runtime import client_histograms
from equipoise.storage.store import RunError, Store
from equipoise.storage.tables import FORMAT
from tests.helpers import half_finished
from tests.helpers.runs import played, settings
from tests.helpers.score_tables import rounded_table


def hospitals(classes: int = 2, sizes: tuple[int, ...] = (300, 220, 90)) -> eq.Dataset:
    """Unequal classes; the last hospital has too few test rows."""
    rng = np.random.default_rng(0)
    found = {}
    for name, size in zip("abc", sizes, strict=True):
        x = rng.normal(size=(size, 4))
        found[name] = (
            x,
            np.digitize(x[:, 0] + 0.7 * rng.normal(size=size), [0.9, 1.5, 2.0][: classes - 1]),
        )
    return eq.from_sites(found)


def finished(folder: Path, data: eq.Dataset, transport: Any = None, **more: Any) -> Run:
    settings: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [6]},
        "training": {"lr": 0.2},
        "rounds": 3,
        "workers": 0,
        "method": "fedakd",
    }
    return eq.run(eq.Experiment(data=data, **{**settings, **more}), folder, None, transport)


def scores(run: Run, data: eq.Dataset, client: str, model: str) -> tuple[np.ndarray, np.ndarray]:
    federation = federate(eq.DataConfig(), run.config["seed"], data)
    places = federation.test[federation.ids.index(client)]
    with torch.no_grad():
        outputs = run.model(model, client)(federation.x[places])
    return torch.softmax(outputs.double(), 1).numpy(), federation.y[places].numpy()


def clinical(run: Run) -> Mapping[str, Mapping[str, ClinicalValue]]:
    """Return the clinical measures of the main model by client."""
    result = read_result(run)
    return result.models[result.main_model].clinical


def counted(store: Store) -> list[dict[str, Any]]:
    """Return the bins of all histograms of scores in a store."""
    return store.rows("select * from curves order by rowid")


def histogram_rounds(run: Run) -> set[int]:
    """Return the rounds of which the store has histograms of scores."""
    return {row["round"] for row in counted(run.store)}


@pytest.mark.parametrize("classes", [2, 3])
def test_counts_are_those_of_every_served_model(classes: int, tmp_path: Path) -> None:
    data = hospitals(classes)
    run = finished(tmp_path / "run", data)
    for model in ("personal", "global"):
        tables = run.counts(model)
        assert list(tables) == ["a", "b"], "the third has 18 test rows"
        for client, table in tables.items():
            p, y = scores(run, data, client, model)
            assert score_histograms.fault(table, classes, len(y)) is None
            for c in range(classes):
                for percent in range(1, 100):
                    called = score_histograms.at_threshold(*table[c, :2], percent)
                    high = p[:, c] >= percent / 100
                    assert called["sensitivity"] == pytest.approx(high[y == c].mean())
                    assert called["specificity"] == pytest.approx((~high)[y != c].mean())
    assert histogram_rounds(run) == {3}, "the last measurement only"
    for client in run.counts():
        p, y = scores(run, data, client, "personal")
        chosen = [1] if classes == 2 else range(classes)
        exact = {
            "auroc": np.mean([roc_auc_score(y == c, p[:, c]) for c in chosen]),
            "auprc": np.mean([average_precision_score(y == c, p[:, c]) for c in chosen]),
            "balanced_accuracy": balanced_accuracy_score(y, p.argmax(1)),
        }
        for name, value in exact.items():
            assert clinical(run)[client][name].value == pytest.approx(value, abs=1e-9)
            assert clinical(run)[client][name].resolution == 0
        inside = clinical(run)[client]["balanced_accuracy"]
        if not inside.reason:
            assert inside.low is not None and inside.high is not None
            assert inside.low <= inside.value <= inside.high


def test_the_majority_class_stands_beside_every_accuracy(tmp_path: Path) -> None:
    data = hospitals()
    run = finished(tmp_path / "run", data)
    federation = federate(eq.DataConfig(), 0, data)
    wanted = {}
    for place, client in enumerate(federation.ids):
        y = federation.y[federation.test[place]].tolist()
        wanted[client] = max(y.count(c) for c in set(y)) / len(y)
    assert run.majority() == wanted and len(wanted) == 3, "also of the small one"
    assert "majority" not in run.models() and set(run.final()) == {"a", "b", "c"}


def test_the_same_counts_come_over_a_wire_and_after_a_finish(tmp_path: Path) -> None:
    here = finished(tmp_path / "here", hospitals(), method="finetune")
    there = finished(tmp_path / "there", hospitals(), "loopback", method="finetune")
    for model in here.models():
        assert here.counts(model)
        for client, table in here.counts(model).items():
            assert np.array_equal(table, there.counts(model)[client])
    assert histogram_rounds(here) == {4}, "after the exchanges that follow the last round only"
    assert len(here.majority()) == 3 and here.majority() == there.majority()


@pytest.mark.parametrize("how", ["setting", "list", "environment"])
def test_a_site_may_forbid_it(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv(client_histograms.FORBIDDEN, "no")
    evaluation: dict[str, Any] = {
        "setting": {"curves": False},
        "list": {"no_curves": ["a"]},
        "environment": {},
    }[how]
    run = finished(tmp_path / "run", hospitals(), evaluation=evaluation)
    assert list(run.counts()) == (["b"] if how == "list" else [])
    assert set(run.final()) == {"a", "b", "c"}
    with pytest.raises(ValueError, match="unknown client under evaluation.no_curves 'd'"):
        finished(tmp_path / "other", hospitals(), evaluation={"no_curves": ["d"]})


def test_a_shared_test_set_is_counted_once(tmp_path: Path) -> None:
    wanted = eq.Experiment(
        data={"name": hospitals(), "test": "global"},
        model={"name": "mlp", "hidden": [6]},
        rounds=2,
        workers=0,
    )
    run = eq.run(wanted, tmp_path / "run")
    assert list(run.counts()) == ["all"] and list(run.majority()) == ["all"]
    assert score_histograms.total(run.counts()["all"]) == run.store.meta("shared test")


def test_equal_classes_regression_and_many_classes_say_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    even = finished(
        tmp_path / "even", eq.from_sites({"a": (x, np.arange(400) % 2)}), method="fedavg"
    )
    assert even.counts() and not unequal(even.counts()) and clinical(even) == {}
    numbers = finished(tmp_path / "numbers", eq.from_sites({"a": (x, x[:, 0])}), method="fedavg")
    assert numbers.counts() == {} and numbers.majority() == {}
    many = finished(
        tmp_path / "many", eq.from_sites({"a": (x, np.arange(400) % 25)}), method="fedavg"
    )
    assert many.counts() == {} and many.majority()


def test_sites_that_are_unequal_in_opposite_ways_are_unequal(tmp_path: Path) -> None:
    """Together as many ill as well, and each site full of one of them: accuracy would shine at
    both.
    """
    x = np.random.default_rng(0).normal(size=(400, 3))
    ill = (np.arange(400) % 10 > 0).astype(int)
    run = finished(
        tmp_path / "run", eq.from_sites({"a": (x, ill), "b": (x + 1, 1 - ill)}), method="fedavg"
    )
    assert score_histograms.majority(score_histograms.pooled(list(run.counts().values()))) < 0.6
    assert unequal(run.counts()) and set(clinical(run)) == {"a", "b"}


def test_counts_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"global": torch.ones(2, 4, score_histograms.BINS, dtype=torch.int32)}
    monkeypatch.setattr(
        "equipoise.runtime.client_evaluation.client_histograms.of", lambda *given: wrong
    )
    run = finished(tmp_path / "run", hospitals())
    (reason,) = {row["reason"] for row in run.rejected()}
    assert reason.startswith("counts of scores: its counts contradict") and not run.counts()
    monkeypatch.undo()
    run = finished(tmp_path / "good", hospitals())
    run.store.close()
    with sqlite3.connect(tmp_path / "good" / "run.db") as db:
        db.execute("update curves set positives = positives + 1 where rowid = 1")
    with pytest.raises(RunError, match="counts of scores of client"):
        Run(tmp_path / "good").counts()
    with sqlite3.connect(tmp_path / "good" / "run.db") as db:
        db.execute("update curves set score = 2000 where rowid = 1")
    with pytest.raises(RunError, match="name class . and score 2000"):
        Run(tmp_path / "good").counts()
    for bins, said in ((7, "have 7 bins"), (101, "two kinds of bins")):
        with sqlite3.connect(tmp_path / "good" / "run.db") as db:
            db.execute("update curves set bins = ?, score = 3 where rowid = 1", (bins,))
        with pytest.raises(RunError, match=said):
            Run(tmp_path / "good").counts()


@pytest.mark.parametrize("transport", [None, "loopback"])
@pytest.mark.thorough
def test_a_confident_model_has_one_exact_value_everywhere(
    transport: str | None, tmp_path: Path
) -> None:
    """The measured metric, the clinical measures and scikit-learn agree where scores crowd at 0 and
    1.
    """
    rng = np.random.default_rng(5)
    x = rng.normal(size=(600, 4))
    y = (x[:, 0] + rng.normal(size=600) > 0.9).astype(int)
    data = eq.from_sites({"a": (x[:300], y[:300]), "b": (x[300:], y[300:])})
    overfitted = {"optimiser": "adam", "lr": 0.03, "epochs": 60}
    more: dict[str, Any] = {
        "training": overfitted,
        "model": {"name": "mlp", "hidden": [64]},
        "method": "fedavg",
    }
    asked = {"metrics": ["accuracy", "auroc", "auprc", "sensitivity_at_specificity"]}
    named = finished(tmp_path / "named", data, transport, evaluation=asked, **more)
    unnamed = finished(tmp_path / "unnamed", data, transport, **more)
    for client in ("a", "b"):
        p, truth = scores(named, data, client, "global")
        assert ((p[:, 1] < 0.01) | (p[:, 1] > 0.99)).mean() > 0.5, "a confident model"
        exact = {
            "auroc": roc_auc_score(truth, p[:, 1]),
            "auprc": average_precision_score(truth, p[:, 1]),
        }
        for name, value in exact.items():
            measured = named.final(name)[client]
            assert measured == pytest.approx(value, abs=1e-9)
            for run in (named, unnamed):
                assert clinical(run)[client][name].value == measured


def test_a_run_of_format_5_shows_its_coarse_values_and_their_resolution(tmp_path: Path) -> None:
    data = hospitals()
    run = finished(tmp_path / "run", data)
    exact = {client: own["auroc"].value for client, own in clinical(run).items()}
    tables = {client: rounded_table(*scores(run, data, client, "personal")) for client in exact}
    run.store.close()
    with sqlite3.connect(tmp_path / "run" / "run.db") as db:
        db.execute("delete from curves")
        db.execute("delete from measurements where phase = 'clinical'")
        db.execute("alter table curves drop column bins")
        db.execute("drop table group_curves")
        db.execute("update meta set value = '5' where key = 'format'")
        for client, table in tables.items():
            for c, score in np.argwhere(table[:, :2].any(1)):
                row = (3, client, "personal", "test", int(c), int(score))
                counts = table[c, :, score].tolist()
                db.execute("insert into curves values (?,?,?,?,?,?,?,?,?,?)", (*row, *counts))
    old = Run(tmp_path / "run")
    for client, own in clinical(old).items():
        one = own["auroc"]
        assert one.value == score_histograms.measures(tables[client])["auroc"]
        assert 0 < one.resolution >= abs(one.value - exact[client])
        assert one.low is None and "whole per cent" in one.reason
        assert own["balanced_accuracy"].resolution == 0
    assert any("older version" in note for note in interval_notes(clinical(old)))
    before = clinical(old)
    old.store.close()
    Store(tmp_path / "run", writing=True).close()
    assert clinical(Run(tmp_path / "run")) == before, "after the move to this format"


def test_runs_of_older_formats_have_none_and_get_the_table_when_they_go_on(tmp_path: Path) -> None:
    shutil.copytree(half_finished.FOLDER / "fedavg", tmp_path / "old")
    before = Run(tmp_path / "old")
    assert before.counts("global") == {} and before.majority() == {}
    before.store.close()
    store = Store(tmp_path / "old", writing=True)
    assert counted(store) == [] and store.meta("format") == FORMAT
    store.close()


def test_a_run_of_format_3_goes_on_and_going_back_takes_counts_along(tmp_path: Path) -> None:
    data = hospitals()
    run = finished(tmp_path / "run", data, keep=5)
    whole = counted(run.store)
    run.store.close()
    store = Store(tmp_path / "run", writing=True)
    store.go_back(2)
    assert counted(store) == []
    store.close()
    with sqlite3.connect(tmp_path / "run" / "run.db") as db:
        db.execute("drop table curves")
        db.execute("drop table group_curves")
        db.execute("delete from measurements where phase = 'clinical'")
        db.execute("update meta set value = '3' where key = 'format'")
    assert Run(tmp_path / "run").counts() == {}
    wanted = eq.Experiment(
        data=data,
        model={"name": "mlp", "hidden": [6]},
        training={"lr": 0.2},
        rounds=3,
        workers=0,
        method="fedakd",
        keep=5,
    )
    assert counted(simulate.resume(tmp_path / "run", experiment=wanted).store) == whole


def test_the_best_round_is_that_of_the_model_asked_for(tmp_path: Path) -> None:
    run = played(settings("fedakd", rounds=4), tmp_path / "run")
    for model in ("personal", "global"):
        rows = run.table(phase="received", metric="accuracy", model=model, split="test")
        means = {
            number: np.mean([row["value"] for row in rows if row["round"] == number])
            for number in range(1, 5)
        }
        found = summarise(read_result(run), model=model)
        assert found["average then"] == pytest.approx(max(means.values())) and means[
            found["best round"]
        ] == max(means.values())
    assert (
        summarise(read_result(run), model="global")["average then"]
        != summarise(read_result(run), model="personal")["average then"]
    )
