"""Comparisons about other metrics than accuracy, about several, and about metrics that some clients
do not have.
"""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.comparison import Comparison, formats, opened
from equipoise.comparison.entries import aligned
from equipoise.runs import Run
from equipoise.storage.store import RunError
from tests.helpers.plans import plan
from tests.helpers.runs import sites
from tests.helpers.stores import entry, made_up_result

SITES = {"ada": 40, "bo": 30, "cy": 40, "di": 30}
ONE_CLASS = {"bo": [1]}
BASE: dict[str, Any] = {
    "data": {"partition": "natural", "split": (0.6, 0.2, 0.2)},
    "model": {"name": "mlp", "hidden": [6]},
    "rounds": 2,
    "training": {"lr": 0.1, "batch": 8},
}


def compared(out: Path, methods: list[Any], **more: Any) -> Comparison:
    """On four sites, of which bo has one class; in this process."""
    wanted = {
        key: more.pop(key)
        for key in ("seeds", "grid", "baseline", "measure", "level")
        if key in more
    }
    data = eq.from_sites(sites(SITES, ONE_CLASS, seed=6))
    return eq.compare(
        {**BASE, **more, "dataset": data}, methods, **{"seeds": [1], **wanted}, out=out
    )


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """AUROC alone, and nothing else."""
    return compared(tmp_path_factory.mktemp("auroc"), ["fedavg"], evaluation={"metrics": ["auroc"]})


def test_auroc_alone_is_what_the_table_is_about(ranked: Comparison) -> None:
    assert not ranked.failures and ranked.metric.name == "auroc" and ranked.metrics == ["auroc"]
    for one in ranked.entries:
        values = Run(one.run.folder).final("auroc")
        assert one.run.main.values == values and values.keys() == {"ada", "cy", "di"}
        assert one.aggregates["average"] == pytest.approx(np.mean(list(values.values())))
    text = formats.markdown(ranked)
    assert "auroc in % on test data, higher is better" in text
    assert (
        "the main metric is auroc, the first measured that is not the loss" in text
        and "from counts" not in text
        and "also measured" not in text
    )


def test_the_clients_without_a_value_are_named_in_a_sentence_and_nothing_is_warned_of(
    ranked: Comparison, recwarn: pytest.WarningsRecorder
) -> None:
    again = opened([ranked.folder])
    sentence = (
        "natural, seed 1: auroc is undefined for client bo: its test data have one class; averages "
        "are over the other 3"
    )
    assert sentence in formats.explanation(ranked) and sentence in formats.explanation(again)
    assert again.entries[0].run.main.undefined == ["bo"]
    assert not recwarn.list


def test_several_metrics_stand_side_by_side(tmp_path: Path) -> None:
    result = compared(
        tmp_path, ["fedavg"], evaluation={"metrics": ["accuracy", "loss", "auroc"], "main": "loss"}
    )
    assert result.metric.name == "loss" and result.metrics == ["loss", "accuracy", "auroc"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    found = {(row["metric"], row["method"], row["measure"]): row for row in rows}
    for one in result.entries:
        for metric in result.metrics:
            values = list(Run(one.run.folder).final(metric).values())
            assert float(found[metric, one.label, "average"]["value"]) == pytest.approx(
                np.mean(values)
            )
            worst = max(values) if metric == "loss" else min(values)
            assert float(found[metric, one.label, "worst"]["value"]) == worst
    averages = {entry.label: entry.aggregates["average"] for entry in result.entries}
    assert (
        found["loss", min(averages, key=lambda name: averages[name]), "average"]["position"] == "1"
    ), "the lowest loss is best"
    alone, together = (Run(entry.run.folder).final("loss") for entry in result.entries)
    harmed = np.mean([together[client] > alone[client] for client in alone])
    assert float(found["loss", "fedavg", "harmed"]["value"]) == harmed
    assert ("loss", "fedavg", "megabytes") in found and (
        "auroc",
        "fedavg",
        "megabytes",
    ) not in found
    plain = json.loads((tmp_path / "comparison.json").read_text())
    assert (
        plain["metrics"]["auroc"] == {"unit": "%", "lower_is_better": False}
        and plain["metrics"]["loss"]["lower_is_better"]
    )
    assert plain["entries"][1]["clients by metric"]["auroc"] == Run(
        result.entries[1].run.folder
    ).final("auroc")
    assert (
        "also measured, in table.csv and comparison.json: accuracy, auroc"
        in formats.explanation(result)
    )


def test_a_setting_is_chosen_by_the_main_metric_in_its_direction(tmp_path: Path) -> None:
    """With clients whose validation data have one class, too; a rate of almost nothing learns
    nothing.
    """
    for metric, better in (("loss", min), ("auroc", max)):
        result = compared(
            tmp_path / metric,
            ["fedavg"],
            grid={"training.lr": [1e-4, 0.1]},
            evaluation={"main": metric},
        )
        candidates = [
            Run(path)
            for path in (tmp_path / metric / "runs").iterdir()
            if path.name.startswith("fedavg")
        ]
        scores = {
            run.config["training"]["lr"]: np.mean(
                list(run.final(metric, split="validation").values())
            )
            for run in candidates
        }
        assert len(set(scores.values())) == 2
        assert dict(result.entries[-1].setting)["training.lr"] == better(
            scores, key=lambda lr: scores[lr]
        )


@pytest.mark.parametrize("keep", [False, True])
def test_without_distillation_fedekd_changes_nothing_against_training_alone(
    keep: bool, tmp_path: Path
) -> None:
    training = {"optimiser": "adam", "lr": 0.01, "batch": 8, "keep_optimiser": keep}
    result = compared(tmp_path, [{"name": "fedekd", "lambda_kd": 0.0}], training=training)
    assert {entry.run.config["training"]["keep_optimiser"] for entry in result.entries} == {keep}
    assert result.entries[1].gains() == dict.fromkeys(SITES, 0.0)
    seen = result.entries[1].with_metric("loss")
    assert seen.gains() == dict.fromkeys(SITES, 0.0)


def test_all_runs_keep_their_optimiser_or_none_does() -> None:
    with pytest.raises(
        ValueError, match="training.keep_optimiser must be the same in all runs of a comparison"
    ):
        plan(BASE, ["fedavg", "fedekd"], grid={"training.keep_optimiser": [False, True]})
    same = plan(BASE, ["fedavg"], grid={"training.keep_optimiser": [True]})
    assert {cell.experiment.training.keep_optimiser for cell in same} == {True}
    with pytest.raises(ValueError, match="evaluation.main is not a setting to tune"):
        plan(BASE, ["fedavg"], grid={"evaluation.main": ["accuracy", "auroc"]})


def test_clients_that_have_no_value_in_some_run_are_left_out_of_all() -> None:
    """F1 may exist for a client under one method only: averages must be over the same clients."""
    alone = made_up_result(
        "standalone",
        1,
        {"a": 0.5, "b": 0.9, "c": 0.4},
        "f1",
        others={"loss": {"a": 1.0, "b": 2.0, "c": 3.0}},
    )
    together = made_up_result(
        "fedavg", 1, {"a": 0.6, "c": 0.2}, "f1", others={"loss": {"a": 1.0, "b": 1.0, "c": 1.0}}
    )
    entries = aligned([entry("standalone", alone), entry("fedavg", together, alone)])
    values = [one.run.main.values for one in entries]
    assert values == [{"a": 0.5, "c": 0.4}, {"a": 0.6, "c": 0.2}]
    assert entries[0].aggregates["average"] == pytest.approx(0.45)
    assert entries[1].aggregates["harmed"] == 0.5
    assert entries[1].run.main.undefined == ["b"]
    assert entries[1].with_metric("loss").run.main.values.keys() == {"a", "b", "c"}
    assert any(
        "f1 is undefined for client b" in line
        for line in formats.explanation(Comparison(entries, "fedavg"))
    )


def test_a_diverged_client_does_not_vanish_from_the_average() -> None:
    alone = made_up_result("standalone", 1, {"a": 1.0, "b": 2.0}, "loss")
    broken = made_up_result("fedavg", 1, {"a": 1.0, "b": math.nan}, "loss")
    entries = aligned([entry("standalone", alone), entry("fedavg", broken, alone)])
    comparison = Comparison(entries, "fedavg")
    row = comparison.row("iid", "fedavg", "average")
    assert row is not None and math.isnan(row["value"])
    assert row["note"].startswith("loss of client b is not a number")
    assert comparison.row("iid", "standalone", "average")["value"] == 1.5  # type: ignore[index]


def test_methods_are_ranked_by_the_measure_asked_for() -> None:
    alone = made_up_result("standalone", 1, [0.5, 0.5])
    even, uneven = made_up_result("fedavg", 1, [0.6, 0.6]), made_up_result("fedprox", 1, [0.4, 0.9])
    entries = [
        entry("standalone", alone),
        entry("fedavg", even, alone),
        entry("fedprox", uneven, alone),
    ]
    for measure, order in (
        ("average", ["fedprox", "fedavg", "standalone"]),
        ("worst", ["fedavg", "standalone", "fedprox"]),
    ):
        _, rows = formats.grid_of(
            Comparison(entries, "fedavg", measure=measure), "iid", lambda text, place: text
        )
        assert sorted((row[:2] for row in rows), key=lambda row: row[1]) == [
            [name, f"{k}.0"] for k, name in enumerate(order, 1)
        ]


def test_runs_about_different_metrics_are_shown_by_one_that_all_have() -> None:
    first = made_up_result("fedavg", 1, {"a": 0.5}, "auroc", others={"loss": {"a": 1.0}})
    second = made_up_result("fedprox", 1, {"a": 1.0}, "loss", others={"auroc": {"a": 0.7}})
    entries = aligned([entry("x", first), entry("y", second)])
    assert [one.run.main.values for one in entries] == [{"a": 0.5}, {"a": 0.7}]
    lacking = made_up_result("fedprox", 1, {"a": 1.0}, "loss")
    with pytest.raises(RunError, match="fedprox-1 did not measure auroc.*; it has loss"):
        aligned([entry("x", first), entry("y", lacking)])


def test_what_was_asked_is_kept(tmp_path: Path) -> None:
    asked = {"baseline": "fedprox", "level": 0.8, "measure": "worst", "seeds": [1, 2]}
    result = compared(tmp_path, ["fedavg", "fedprox", "tests.helpers.broken:Raising"], **asked)
    assert {failure.method for failure in result.failures} == {"raising"}
    again = opened([tmp_path])
    assert (again.baseline, again.level, again.measure) == ("fedprox", 0.8, "worst")
    assert list(again.failures) == list(result.failures)
    assert formats.markdown(again) == formats.markdown(result)
    assert "rank: by worst client" in formats.markdown(
        again
    ) and "80% interval" in formats.markdown(again)
    ranks = {method: again.row("natural", method, "worst")["rank"] for method in again.methods}  # type: ignore[index]
    _, rows = formats.grid_of(again, "natural", lambda text, place: text)
    assert {row[0]: row[1] for row in rows} == {
        method: f"{rank:.1f}" for method, rank in ranks.items()
    }
    saved = json.loads((tmp_path / "comparison.json").read_text())
    del saved["measure"]
    (tmp_path / "comparison.json").write_text(json.dumps(saved))
    assert opened([tmp_path]).measure == "average", "a comparison of version 0.1 has no such key"
    with pytest.raises(RunError, match="leave out --against"):
        opened([tmp_path], result.entries[0].run.folder)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"measure": "wurst"}, "unknown measure 'wurst'; did you mean 'worst'"),
        ({"level": 95}, "such as 0.95, got 95"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(
    asked: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        compared(tmp_path / "out", ["fedavg"], **asked)
    assert not (tmp_path / "out").exists()
