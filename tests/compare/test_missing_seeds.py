"""Means over some of the seeds: models that diverged, missed targets, and groups without values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from equipoise.comparison import Comparison, formats
from equipoise.comparison.entries import Entry, aligned
from equipoise.metrics import paired_p
from equipoise.report.verdict import best_methods
from equipoise.runs.curves import Curve
from tests.helpers.stores import entry, made_up_result

NAN = math.nan


def made_up(
    averages: dict[str, list[float]], clients: int = 2, partition: str = "iid", apart: float = 0.01
):
    """Return entries of methods with these averages by seed; NaN for a model that diverged."""
    entries = []
    for seed in range(max(map(len, averages.values()))):
        alone = made_up_result("standalone", seed, [0.5] * clients, partition=partition)
        entries.append(entry("standalone", alone))
        for method, by_seed in averages.items():
            values = [by_seed[seed] + apart * client for client in range(clients)]
            result = made_up_result(method, seed, values, partition=partition)
            entries.append(entry(method, result, alone))
    return entries


def with_curves(entries: list[Entry], means: dict[str, list[tuple[float, ...]]]) -> list[Entry]:
    changed = []
    for one in entries:
        if one.label in means:
            seed = one.run.condition[1]
            points = means[one.label][seed]
            curve = Curve(tuple(range(1, len(points) + 1)), points)
            metric = one.run.main
            run = one.run.with_metrics(
                {metric.metric.name: replace(metric, curve=curve)}, metric.metric.name
            )
            one = replace(one, run=run)
        changed.append(one)
    return changed


DIVERGED = made_up(
    {"fedavg": [0.7, 0.71, 0.72, 0.7, 0.73, 0.7], "fedprox": [0.8, 0.8, NAN, 0.81, 0.8, 0.8]}
)


def test_a_method_that_diverged_in_a_seed_has_no_rank_and_says_over_how_many_seeds_it_is():
    comparison = Comparison(DIVERGED, "fedavg")
    row = comparison.row("iid", "fedprox", "average")
    assert (row["seeds"], row["position"], row["rank"]) == (5, None, None)
    assert comparison.row("iid", "fedavg", "average")["position"] == 1
    assert formats.cell(comparison, "iid", "fedprox", "average").startswith("80.7 ± 0.6 (5/6)")
    lines = formats.explanation(comparison)
    assert any(
        line.startswith("fedprox on iid: average, ") and "5 of 6 seeds" in line for line in lines
    )
    assert any("has no rank" in line for line in lines)


def test_the_headline_leaves_a_method_out_that_diverged_and_says_so():
    sentence = best_methods(Comparison(DIVERGED, "fedavg"))
    assert "fedprox (5 of 6 seeds) is left out" in sentence
    assert "fedavg and fedprox" not in sentence
    whole = best_methods(
        Comparison(made_up({"fedavg": [0.7, 0.71], "fedprox": [0.8, 0.8]}), "fedavg")
    )
    assert "left out" not in whole


def test_training_alone_is_not_missing_where_a_measure_compares_with_it():
    entries = made_up({"fedavg": [0.7, 0.72], "fedprox": [0.8, 0.83]})
    assert "left out" not in best_methods(Comparison(entries, "fedavg", measure="change"))


def test_a_method_that_reaches_its_target_in_one_seed_only_is_not_the_fastest():
    entries = made_up({"fedavg": [0.9, 0.9], "fedprox": [0.9, 0.9]})
    slow = [(0.1, 0.2, 0.3, 0.85)] * 2
    lucky = [(0.1, 0.85, 0.85, 0.85), (0.1, 0.2, 0.3, 0.4)]
    entries = with_curves(entries, {"fedavg": slow, "fedprox": lucky})
    entries = [replace(one, target=0.8) for one in entries]
    comparison = Comparison(entries, "fedavg", optional=("rounds_to_target",))
    assert comparison.row("iid", "fedprox", "rounds_to_target")["position"] is None
    assert formats.cell(comparison, "iid", "fedprox", "rounds_to_target") == "2.0 (1/2)"


def test_the_final_phase_is_no_round_in_which_a_target_is_reached():
    accuracy = made_up({"fedavg": [0.9]})[1].metric
    tuned = Curve((1, 2, 3), (0.5, 0.6, 0.9), final_phase=True)
    assert math.isnan(tuned.first_round_at(0.8, accuracy))
    assert tuned.first_round_at(0.6, accuracy) == 2


def test_a_number_as_target_is_not_taken_for_one_of_another_metric():
    comparison = Comparison(
        [replace(one, target=0.8) for one in made_up({"fedavg": [0.9]})], "fedavg"
    )
    assert comparison.with_metric("accuracy").entries[1].target == 0.8
    both = [replace(one, run=_with_loss(one.run)) for one in comparison.entries]
    other = Comparison(both, "fedavg").with_metric("loss")
    assert {one.target for one in other.entries} == {None}


def _with_loss(run):
    loss = made_up_result("x", 0, list(run.main.values.values()), "loss").main
    return run.with_metrics({"accuracy": run.main, "loss": loss}, "accuracy")


def test_a_group_without_values_in_some_run_is_a_gap_and_no_error():
    entries = made_up({"fedavg": [0.7], "fedprox": [0.8]})
    groups = {"0": "mnist", "1": "usps"}
    changed = []
    for one in entries:
        one = replace(one, run=replace(one.run, groups=groups))
        if one.label == "fedprox":
            scores = one.run.main.only(["1"], ["0"])
            one = replace(one, run=one.run.with_metrics({"accuracy": scores}, "accuracy"))
        changed.append(one)
    comparison = Comparison(changed, "fedavg")
    assert math.isnan(comparison.row("iid", "fedprox", "average[mnist]")["value"])
    assert comparison.row("iid", "fedavg", "average[mnist]")["value"] == pytest.approx(0.7)


def test_a_curve_over_other_clients_is_not_compared():
    """AUROC, say, may exist for a client under one method and not under another."""
    entries = with_curves(
        made_up({"fedavg": [0.7], "fedprox": [0.8]}), {"fedavg": [(0.6, 0.7)], "fedprox": [(0.8,)]}
    )
    few = entries[2].run.main.only(["1"], [])
    entries[2] = replace(entries[2], run=entries[2].run.with_metrics({"accuracy": few}, "accuracy"))
    comparison = Comparison(aligned(entries), "fedavg", optional=("best_average",))
    assert list(comparison.entries[1].run.main.values) == ["1"]
    assert math.isnan(comparison.row("iid", "fedavg", "best_average")["value"])
    assert any("no round is the best" in line for line in formats.explanation(comparison))


def test_clients_whose_model_diverged_do_not_count_as_unharmed():
    comparison = Comparison(made_up({"fedavg": [0.4], "fedprox": [NAN]}, clients=3), "fedavg")
    header, rows = formats.clients_grid(comparison, "iid", 0)
    losers = dict(zip(header, rows[-1], strict=True))
    assert losers["fedavg"].startswith("3 of 3")
    assert losers["fedprox"].startswith("0 of 0, 3 diverged")


def test_intervals_of_extremes_have_the_step_of_their_own_partition():
    few = made_up({"fedavg": [0.4, 0.6, 0.4]}, clients=2, partition="few", apart=0)
    many = made_up({"fedavg": [0.4, 0.6, 0.4]}, clients=100, partition="many", apart=0)
    for entries in (few + many, many + few):
        comparison = Comparison(entries, "fedavg")
        widths = {}
        for partition in ("few", "many"):
            row = comparison.row(partition, "fedavg", "harmed")
            widths[partition] = row["high"] - row["low"]
        assert widths["few"] - widths["many"] == pytest.approx(1 / 2 - 1 / 100)


def test_methods_that_differ_by_rounding_share_their_position():
    comparison = Comparison(made_up({"a": [0.6], "b": [0.6 * (1 + 3e-16)], "c": [0.55]}), "a")
    positions = [comparison.row("iid", name, "average")["position"] for name in "ab"]
    assert positions == [1, 1]


def test_a_model_that_stands_in_two_rows_is_tested_once():
    draw = np.random.default_rng(0)
    averages = {
        "fedavg": (0.7 + draw.normal(0, 0.01, 5)).tolist(),
        "kdia": (0.72 + draw.normal(0, 0.01, 5)).tolist(),
    }
    entries = [one for one in made_up(averages) if one.label != "standalone"]
    selected = [replace(one, label="kdia · selected") for one in entries if one.label == "kdia"]
    comparison = Comparison([*entries, *selected], "fedavg")
    p, _ = paired_p(*(comparison.per_seed("iid", "average")[name] for name in ("kdia", "fedavg")))
    for name in ("kdia", "kdia · selected"):
        assert comparison.row("iid", name, "average")["p"] == pytest.approx(p)


def test_an_interval_names_its_level_exactly():
    comparison = Comparison(made_up({"fedavg": [0.7, 0.8]}), "fedavg", level=0.999)
    assert any("99.9% interval" in line for line in formats.explanation(comparison))


def test_runs_of_different_length_are_judged_by_all_their_seeds():
    """Whether training has converged is not decided by the seed with the most rounds alone."""
    rising = tuple(0.02 * number for number in range(1, 25))
    flat = (0.5,) * 30
    entries = with_curves(
        made_up({"fedavg": [0.5] * 5}), {"fedavg": [flat, rising, rising, rising, rising]}
    )
    assert "fedavg" in Comparison(entries, "fedavg").not_converged("iid")
