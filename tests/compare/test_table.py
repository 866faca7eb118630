"""The table of a comparison, from runs whose numbers are made up."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

from equipoise.comparison import Comparison, formats, open_runs
from equipoise.comparison.entries import Entry
from equipoise.comparison.table import Failure
from equipoise.metrics import collaborative_fairness, over_seeds, paired_p
from tests.helpers.stores import made_up_result


def made_up(seeds: int = 5, metric: str = "accuracy") -> Comparison:
    draw = np.random.default_rng(3)
    entries = []
    for seed in range(seeds):
        alone = made_up_result("standalone", seed, draw.uniform(0.5, 0.7, 4).tolist(), metric)
        entries.append(Entry("standalone", alone, alone))
        for method, lift in (("fedavg", 0.02), ("fedakd", 0.1)):
            values = [value + lift * draw.uniform(-0.5, 1) for value in alone.values.values()]
            entries.append(Entry(method, made_up_result(method, seed, values, metric), alone))
    return Comparison(entries, "fedavg")


def test_rows_hold_means_intervals_and_holm_adjusted_tests():
    comparison = made_up()
    row = comparison.row("iid", "fedakd", "average")
    per_seed = comparison.per_seed("iid", "average")
    expected = over_seeds(per_seed["fedakd"])
    assert (row["value"], row["low"], row["high"]) == (expected.value, expected.low, expected.high)
    tests = {method: paired_p(per_seed[method], per_seed["fedavg"])[0] for method in ("standalone", "fedakd")}
    smaller = min(tests.values())
    assert min(comparison.row("iid", method, "average")["p"] for method in tests) == pytest.approx(2 * smaller)
    assert comparison.row("iid", "fedavg", "average")["p"] is None


def test_below_five_seeds_there_is_no_p_value_but_a_word():
    comparison = made_up(seeds=4)
    row = comparison.row("iid", "fedakd", "average")
    assert row["p"] is None and row["note"] == "too few seeds"
    assert any("against fedavg: too few seeds (4; 5 are needed)" in line for line in formats.explanation(comparison))


def test_standalone_says_nothing_about_itself():
    comparison = made_up()
    assert math.isnan(comparison.row("iid", "standalone", "harmed")["value"])
    assert comparison.row("iid", "standalone", "harmed")["position"] is None


def test_best_and_second_best_follow_the_direction_of_the_measure():
    comparison = made_up()
    assert {m: comparison.row("iid", m, "average")["position"] for m in comparison.methods} == {
        "standalone": None,
        "fedavg": 2,
        "fedakd": 1,
    }
    spreads = {m: comparison.row("iid", m, "std")["value"] for m in comparison.methods}
    assert comparison.row("iid", min(spreads, key=lambda m: spreads[m]), "std")["position"] == 1, "even is better, whatever the metric"
    errors = made_up(metric="rmse")
    assert {m: errors.row("iid", m, "average")["position"] for m in errors.methods} == {"standalone": 1, "fedavg": 2, "fedakd": None}


def test_the_sign_of_a_gain_and_of_harm_for_accuracy_and_for_errors():
    alone = made_up_result("standalone", 1, [0.5, 0.6])
    entry = Entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.5]), alone)
    assert entry.gains() == {"0": pytest.approx(0.1), "1": pytest.approx(-0.1)}
    assert entry.measured[0]["harmed"] == 0.5 and entry.measured[0]["worst"] == 0.5
    wrong = Entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.5], "rmse"), made_up_result("standalone", 1, [0.5, 0.6], "rmse"))
    assert wrong.gains() == {"0": pytest.approx(-0.1), "1": pytest.approx(0.1)}
    assert wrong.measured[0]["worst_change"] == pytest.approx(0.1) and wrong.measured[0]["worst"] == 0.6


def test_an_undefined_measure_carries_its_reason():
    alone = made_up_result("standalone", 1, [0.5, 0.6])
    comparison = Comparison([Entry("fedavg", made_up_result("fedavg", 1, [0.7, 0.7]), alone)], "fedavg")
    row = comparison.row("iid", "fedavg", "cf")
    assert math.isnan(row["value"]) and "same value 0.7" in row["note"]
    assert any("same value 0.7" in line for line in formats.explanation(comparison))


def test_a_missing_run_leaves_a_gap_and_the_failure_is_told():
    whole = made_up()
    broken = Comparison(
        [e for e in whole.entries if (e.label, e.run.condition[1]) != ("fedakd", 2)], "fedavg", [Failure("fedakd", "iid", 2, "it broke")]
    )
    assert broken.row("iid", "fedakd", "average")["seeds"] == 4
    assert broken.row("iid", "fedakd", "average")["note"] == "too few seeds"
    assert "failed: fedakd, partition iid, seed 2: it broke" in formats.explanation(broken)


def test_every_format_says_the_same():
    comparison = made_up()
    shown = formats.cell(comparison, "iid", "fedakd", "average")
    value = comparison.row("iid", "fedakd", "average")["value"]
    assert shown.startswith(f"{100 * value:.1f} ± ")
    assert f"**{shown}**" in formats.markdown(comparison)
    latex = formats.latex(comparison)
    assert shown.rstrip("†").replace("±", r"\pm") in latex and latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    assert not any(sign in line for line in latex.splitlines() if not line.startswith("%") for sign in "±†–_")
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(comparison))))
    found = next(row for row in rows if (row["method"], row["measure"]) == ("fedakd", "average"))
    assert float(found["value"]) == value and found["position"] == "1"
    plain = json.loads(formats.json_text(comparison))
    assert next(row for row in plain["table"] if (row["method"], row["measure"]) == ("fedakd", "average"))["value"] == value
    assert next(row for row in plain["table"] if (row["method"], row["measure"]) == ("standalone", "cf"))["value"] is None


def test_the_client_table_puts_the_most_harmed_first_and_counts_losers():
    alone = made_up_result("standalone", 1, [0.5, 0.6, 0.7])
    comparison = Comparison([Entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.5, 0.7]), alone)], "fedavg")
    header, rows = formats.clients_grid(comparison, "iid", 1)
    assert header == ["client", "alone", "fedavg"]
    assert rows == [["1", "60.0", "-10.0"], ["2", "70.0", "0.0"], ["0", "50.0", "+10.0"], ["clients that lose", "", "1 of 3"]]


def test_cf_is_that_of_the_metrics():
    entry = next(entry for entry in made_up().entries if entry.label == "fedakd")
    assert entry.measured[0]["cf"] == collaborative_fairness(list(entry.reference.values()), list(entry.run.values.values()))


def test_no_runs_is_refused():
    with pytest.raises(RuntimeError, match="at least one run"):
        open_runs([])
