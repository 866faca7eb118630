"""Clients without a value: on the page and in `show` they are neither hidden nor counted as safe."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.metrics.diagnostic_intervals import limits_of
from equipoise.metrics.registry import find
from equipoise.metrics.score_histograms import counted
from equipoise.report import report
from equipoise.report.cards import Card, headline
from equipoise.runs import Run, read_result
from equipoise.runs.curves import Curve
from equipoise.runs.notes import notes
from equipoise.runs.summary import summarise
from equipoise.storage.store import RunError
from tests.helpers.stores import change, made_up_run

ACCURACY = find("accuracy")
DIVERGED = "update measurements set value = null where client = '3' and round = 3"


def runs(folder: Path, **settings: object) -> tuple[Path, Path]:
    """Return a run of training alone, and one of FedAvg that is better at every client."""
    alone = made_up_run(folder / "alone", "standalone", level=0.5, **settings)
    return alone, made_up_run(folder / "fedavg", level=0.6, **settings)


def page_of(run: Path) -> str:
    text = report([run], run / "r.html")[0].read_text()
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_a_client_whose_model_diverged_is_in_the_headline() -> None:
    gaining = [Card(str(k), 50, 0.8, 0.7, 0.1) for k in range(3)]
    broken = Card("x", 50, math.nan, 0.72)
    assert headline([broken, *gaining], ACCURACY) == (
        "In this one run 3 of 4 clients gain; the model of client x has diverged."
    )
    alone = headline([broken, Card("a", 50, 0.6)], ACCURACY)
    assert "the lowest accuracy is 60.0 %, at client a; the model of client x" in alone


def test_the_page_of_a_run_with_a_diverged_client_says_so_and_prints_no_nan(tmp_path: Path) -> None:
    _, run = runs(tmp_path)
    change(run, DIVERGED)
    page = page_of(run)
    assert "of 4 clients gain" in page
    assert "; the model of client 3 has diverged." in page
    assert "nan %" not in page
    assert "Not shown, since the gain is not known: 1 client." in page


def test_a_baseline_that_diverged_at_a_client_is_named(tmp_path: Path) -> None:
    alone, run = runs(tmp_path)
    change(alone, DIVERGED)
    result = read_result(Run(run), Run(alone))
    assert any(
        "training alone: accuracy of client 3 is not a number" in note for note in notes(result)
    )
    assert "Training alone: accuracy of client 3" in page_of(run)


def test_clients_that_the_baseline_did_not_evaluate_are_named(tmp_path: Path) -> None:
    alone, run = runs(tmp_path)
    change(
        alone,
        "delete from measurements where client in ('0', '1') and round = 3",
        "insert into rejected values (3, 0, 0, '0', 'late'), (3, 0, 0, '1', 'late')",
    )
    page = page_of(run)
    assert "raining alone was not evaluated at clients 0 and 1" in page
    assert "is undefined for" not in page


def test_a_baseline_is_a_run_of_training_alone_with_the_same_settings(tmp_path: Path) -> None:
    _, run = runs(tmp_path)
    prox = made_up_run(tmp_path / "fedprox", "fedprox")
    with pytest.raises(RunError, match="is not a run of standalone"):
        read_result(Run(run), Run(prox))
    early = made_up_run(tmp_path / "early", "standalone", rounds=1, finished=False)
    said = notes(read_result(Run(run), Run(early)))
    assert any("training alone is not finished" in note for note in said)
    longer = made_up_run(tmp_path / "longer", "standalone", rounds=9)
    said = notes(read_result(Run(run), Run(longer)))
    assert any("training alone differs in rounds" in note for note in said)


def test_values_of_the_last_cohort_are_not_called_those_of_all_clients(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", evaluation={"clients": "cohort"})
    change(
        run,
        "delete from measurements where round = 3 and client != '2'",
        "update rounds set joined = '[\"2\"]' where round = 3",
    )
    result = read_result(Run(run))
    assert any("only the 1 client of the last cohort, of 4" in note for note in notes(result))
    assert "best round" not in summarise(result)
    assert Curve((1, 2), (0.9, 0.5), same_clients=False).best(ACCURACY) is None


def test_a_run_that_was_not_measured_in_its_last_rounds_names_the_round(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", rounds=5, finished=False)
    change(run, "delete from measurements where round > 2")
    assert any("those of round 2" in note for note in notes(read_result(Run(run))))


def test_other_metrics_say_over_how_many_clients_they_are(tmp_path: Path) -> None:
    both = runs(tmp_path)
    run = both[1]
    for folder in both:
        change(
            folder,
            "insert into measurements select round, client, model, phase, split, 'auroc', value "
            "from measurements where metric = 'accuracy' and client != '1'",
        )
    assert "AUROC in % (3 of 4 clients)" in page_of(run)


def test_the_page_of_an_outdated_run_says_so(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", regression=True)
    assert read_result(Run(run)).outdated
    assert "This run is outdated" in page_of(run)


def test_the_rate_of_one_class_has_no_interval_of_balanced_accuracy() -> None:
    scores = [[0.1, 0.9]] * 38 + [[0.8, 0.2]] * 2
    limits = limits_of("balanced_accuracy", counted(np.array(scores), np.ones(40, int)), 0.95)
    assert limits.low is None
    assert "fewer than 10 test samples of a class" in limits.reason


def test_clients_with_too_few_samples_for_a_histogram_are_not_called_undefined(
    tmp_path: Path,
) -> None:
    """They sent no counts: whether AUROC exists for them is not known."""
    config = {
        "data": {"name": "digits", "clients": 5, "samples": 700, "partition": "dirichlet:0.3"},
        "rounds": 1,
        "seed": 1,
        "workers": 0,
    }
    run = eq.run(config, tmp_path / "run", quiet=True)
    result = read_result(run)
    sizes = dict(zip(result.clients, result.sizes["test"], strict=True))
    small = {client for client, size in sizes.items() if size < 30}
    assert small and len(small) < 5
    area = result.metrics["auroc"]
    assert not small & set(area.undefined)
    assert not small & set(area.values)
