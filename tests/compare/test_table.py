"""The table of a comparison, from runs whose numbers are made up."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.comparison import Comparison, formats, open_runs, opened
from equipoise.comparison.measures import COST, DISTANCES, OPTIONAL, measures
from equipoise.comparison.table import Failure
from equipoise.metrics import collaborative_fairness, over_seeds, paired_p
from equipoise.metrics.registry import find
from equipoise.runs.curves import Curve
from equipoise.storage.store import RunError
from tests.helpers.stores import entry, made_up_result, made_up_run


def made_up(seeds: int = 5, metric: str = "accuracy") -> Comparison:
    draw = np.random.default_rng(3)
    entries = []
    for seed in range(seeds):
        alone = made_up_result("standalone", seed, draw.uniform(0.5, 0.7, 4).tolist(), metric)
        entries.append(entry("standalone", alone))
        for method, lift in (("fedavg", 0.02), ("fedakd", 0.1)):
            values = [value + lift * draw.uniform(-0.5, 1) for value in alone.main.values.values()]
            entries.append(entry(method, made_up_result(method, seed, values, metric), alone))
    return Comparison(entries, "fedavg")


def test_rows_hold_means_intervals_and_holm_adjusted_tests():
    comparison = made_up()
    row = comparison.row("iid", "fedakd", "average")
    per_seed = comparison.per_seed("iid", "average")
    expected = over_seeds(per_seed["fedakd"])
    assert (row["value"], row["low"], row["high"]) == (expected.value, expected.low, expected.high)
    tests = {
        method: paired_p(per_seed[method], per_seed["fedavg"])[0]
        for method in ("standalone", "fedakd")
    }
    smaller = min(tests.values())
    assert min(comparison.row("iid", method, "average")["p"] for method in tests) == pytest.approx(
        2 * smaller
    )
    assert comparison.row("iid", "fedavg", "average")["p"] is None


def test_below_five_seeds_there_is_no_p_value_but_a_word():
    comparison = made_up(seeds=4)
    row = comparison.row("iid", "fedakd", "average")
    assert row["p"] is None and row["note"] == "too few seeds"
    assert any(
        "against fedavg: too few seeds (4; 5 are needed)" in line
        for line in formats.explanation(comparison)
    )


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
    assert comparison.row("iid", min(spreads, key=lambda m: spreads[m]), "std")["position"] == 1, (
        "even is better, whatever the metric"
    )
    errors = made_up(metric="rmse")
    assert {m: errors.row("iid", m, "average")["position"] for m in errors.methods} == {
        "standalone": 1,
        "fedavg": 2,
        "fedakd": None,
    }


def test_the_sign_of_a_gain_and_of_harm_for_accuracy_and_for_errors():
    alone = made_up_result("standalone", 1, [0.5, 0.6])
    right = entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.5]), alone)
    assert right.gains() == {"0": pytest.approx(0.1), "1": pytest.approx(-0.1)}
    assert right.aggregates["harmed"] == 0.5 and right.aggregates["worst"] == 0.5
    wrong = entry(
        "fedavg",
        made_up_result("fedavg", 1, [0.6, 0.5], "rmse"),
        made_up_result("standalone", 1, [0.5, 0.6], "rmse"),
    )
    assert wrong.gains() == {"0": pytest.approx(-0.1), "1": pytest.approx(0.1)}
    assert (
        wrong.aggregates["worst_change"] == pytest.approx(-0.1) and wrong.aggregates["worst"] == 0.6
    )


def test_an_undefined_measure_carries_its_reason():
    alone = made_up_result("standalone", 1, [0.5, 0.6])
    comparison = Comparison(
        [entry("fedavg", made_up_result("fedavg", 1, [0.7, 0.7]), alone)], "fedavg"
    )
    row = comparison.row("iid", "fedavg", "cf")
    assert math.isnan(row["value"]) and "same value 0.7" in row["note"]
    assert any("same value 0.7" in line for line in formats.explanation(comparison))


def test_a_missing_run_leaves_a_gap_and_the_failure_is_told():
    whole = made_up()
    broken = Comparison(
        [e for e in whole.entries if (e.label, e.run.condition[1]) != ("fedakd", 2)],
        "fedavg",
        [Failure("fedakd", "iid", 2, "it broke")],
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
    assert (
        shown.rstrip("†").replace("±", r"\pm") in latex
        and latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    )
    assert not any(
        sign in line for line in latex.splitlines() if not line.startswith("%") for sign in "±†–_"
    )
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(comparison))))
    found = next(row for row in rows if (row["method"], row["measure"]) == ("fedakd", "average"))
    assert float(found["value"]) == value and found["position"] == "1"
    plain = json.loads(formats.json_text(comparison))
    assert (
        next(
            row
            for row in plain["table"]
            if (row["method"], row["measure"]) == ("fedakd", "average")
        )["value"]
        == value
    )
    assert (
        next(
            row for row in plain["table"] if (row["method"], row["measure"]) == ("standalone", "cf")
        )["value"]
        is None
    )


def test_the_client_table_puts_the_most_harmed_first_and_counts_losers():
    alone = made_up_result("standalone", 1, [0.5, 0.6, 0.7])
    comparison = Comparison(
        [entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.5, 0.7]), alone)], "fedavg"
    )
    header, rows = formats.clients_grid(comparison, "iid", 1)
    assert header == ["client", "alone", "fedavg"]
    assert rows == [
        ["1", "60.0", "-10.0"],
        ["2", "70.0", "0.0"],
        ["0", "50.0", "+10.0"],
        ["clients that lose", "", "1 of 3"],
    ]


def test_cf_is_that_of_the_metrics():
    found = next(one for one in made_up().entries if one.label == "fedakd")
    assert found.aggregates["cf"] == collaborative_fairness(
        list(found.reference.values()), list(found.run.main.values.values())
    )


def test_no_runs_is_refused():
    with pytest.raises(RuntimeError, match="at least one run"):
        open_runs([])


def with_scores(comparison: Comparison, **scores: Any) -> Comparison:
    """Return the comparison with other attributes of the main metric (see `MetricResult`)."""
    entries = []
    for one in comparison.entries:
        metrics = {one.metric.name: replace(one.run.main, **scores)}
        entries.append(replace(one, run=one.run.with_metrics(metrics, one.metric.name)))
    return replace(comparison, entries=entries)


def said(comparison: Comparison, start: str) -> bool:
    return any(line.startswith(start) for line in formats.explanation(comparison))


def test_what_was_asked_is_named_and_the_level_is_095() -> None:
    found = Comparison([], "fedavg")
    assert (
        found.level,
        found.measure,
        found.optional,
        found.target,
        found.metric.name,
        found.metrics,
    ) == (
        0.95,
        "average",
        (),
        None,
        "accuracy",
        [],
    )
    assert formats.csv_text(found) == "" and json.loads(formats.json_text(found))["table"] == []
    with pytest.raises(TypeError):
        Comparison([], "fedavg", (), None, 0.9)  # type: ignore[misc]


def test_further_columns_are_shown_when_asked_for_and_the_majority_when_it_is_known() -> None:
    found = made_up(seeds=1)
    usual = [
        "average",
        "worst",
        "std",
        "change",
        "worst_change",
        "harmed",
        "cf",
        "steps",
        "megabytes",
        "seconds",
    ]
    assert list(found.columns) == usual and not said(found, "majority class")
    assert list(replace(found, optional=("best", "d_cos")).columns) == [
        *usual[:-3],
        "best",
        "d_cos",
        *usual[-3:],
    ]
    known = with_scores(found, majority={"0": 0.5, "1": 0.25, "gone": 0.9})
    assert list(known.columns)[:2] == ["average", "majority"] and said(
        known, "majority class: the accuracy of always predicting"
    )
    assert known.entries[1].aggregates["majority"] == pytest.approx(0.375), (
        "over clients of the table"
    )
    assert math.isnan(found.entries[1].aggregates["majority"])
    header, rows = formats.grid_of(known, "iid", lambda text, place: text)
    assert header[:4] == ["method", "rank", "average", "majority class"] and rows[1][3] == "37.5"
    without, _ = formats.grid_of(known, "iid", lambda text, place: text, with_cost=False)
    assert header == [*without, "steps", "MB", "seconds"]


ROUNDS = tuple(range(1, 21))
RISING = Curve(ROUNDS, tuple(0.02 * n for n in ROUNDS))


def with_curves(comparison: Comparison, curves: dict[str, Curve]) -> Comparison:
    entries = []
    for one in comparison.entries:
        alone = replace(comparison, entries=[one])
        curve = curves.get(one.label, Curve())
        entries += with_scores(alone, curve=curve).entries
    return replace(comparison, entries=entries)


def test_a_method_that_still_rises_is_marked_and_told() -> None:
    level = Curve(ROUNDS, (0.5,) * 20)
    comparison = with_curves(made_up(seeds=2), {"fedavg": level, "fedakd": RISING})
    assert list(comparison.not_converged("iid")) == ["fedakd"]
    _, rows = formats.grid_of(comparison, "iid", lambda text, position: text)
    assert [row[0] for row in rows] == ["standalone", "fedavg", "fedakd ‡"]
    (told,) = [line for line in formats.explanation(comparison) if line.startswith("‡")]
    assert "fedakd on iid" in told and "6.0 points in rounds 17 to 20" in told
    assert comparison.as_plain()["not converged"] == {"iid": ["fedakd"]}


def test_errors_that_fall_still_get_better() -> None:
    falling = Curve(ROUNDS, tuple(1 - 0.02 * n for n in ROUNDS))
    errors = with_curves(made_up(seeds=1, metric="rmse"), {"fedavg": falling})
    assert list(errors.not_converged("iid")) == ["fedavg"]


def test_the_best_round_and_the_rounds_to_a_target_are_those_of_the_curve() -> None:
    whole = made_up(seeds=1)
    (found,) = with_scores(
        replace(whole, entries=whole.entries[1:2]), curve=Curve((5, 10, 15), (0.3, 0.8, 0.6))
    ).entries
    assert found.aggregates["best_round"] == 10
    assert math.isnan(found.aggregates["rounds_to_target"])
    assert found.aggregates.reasons["rounds_to_target"].startswith("no target was named")
    for target, number in ((0.8, 10), (0.81, math.nan), (0.1, 5)):
        reached = replace(found, target=target).aggregates
        assert reached["rounds_to_target"] == pytest.approx(number, nan_ok=True)
        missed = "the target was not reached" if math.isnan(number) else None
        assert reached.reasons.get("rounds_to_target") == missed


def test_numbers_have_a_sign_only_where_they_are_changes() -> None:
    measure = measures(find("accuracy"))["change"]
    assert [formats.figure(value, measure, signed=True) for value in (0.1, -0.1, 0.0, None)] == [
        "+10.0",
        "-10.0",
        "0.0",
        "–",
    ]
    assert formats.figure(0.1, measure) == "10.0"
    comparison = made_up(seeds=1)
    found = comparison.entry("fedakd", "iid", 0)
    assert found is not None
    expected = f"{100 * found.aggregates['change']:+.1f}"
    assert formats.cell(comparison, "iid", "fedakd", "change") == expected


def test_a_method_that_did_not_run_on_a_partition_is_not_in_its_table() -> None:
    here = made_up(seeds=1).entries
    there = [
        replace(e, run=replace(e.run, config={**e.run.config, "data": {"partition": "sharded"}}))
        for e in here
        if e.label != "fedakd"
    ]
    both = Comparison([*here, *there], "fedavg")
    assert both.partitions == ["iid", "sharded"]
    for partition, methods in (
        ("iid", ["standalone", "fedavg", "fedakd"]),
        ("sharded", ["standalone", "fedavg"]),
    ):
        assert [
            row[0] for row in formats.grid_of(both, partition, lambda text, place: text)[1]
        ] == methods
        assert list(both.per_seed(partition, "average")) == methods
    assert both.row("sharded", "fedakd", "average") is None


def test_ranks_are_dashes_where_there_is_none() -> None:
    comparison = replace(made_up(seeds=1), measure="harmed")
    _, rows = formats.grid_of(comparison, "iid", lambda text, place: f"{text} {place}")
    ranks = {row[0]: row[1] for row in rows}
    assert ranks["standalone"] == "–" and sorted(ranks.values()) != ["–"] * 3
    averages = sorted(
        comparison.methods, key=lambda method: -comparison.per_seed("iid", "average")[method][0]
    )
    assert {row[0]: row[2].split()[-1] for row in rows} == dict(
        zip(averages, ("1", "2", "None"), strict=True)
    )


def with_data(comparison: Comparison, name: str) -> Comparison:
    entries = [replace(one, run=replace(one.run, data=name)) for one in comparison.entries]
    return replace(comparison, entries=entries)


@pytest.mark.parametrize(
    ("change", "line", "there"),
    [
        (lambda c: c, "the data, ", False),
        (lambda c: with_data(c, "synthetic(9)"), "the data, synthetic(9), are synthetic", True),
        (lambda c: c, "mean ± half of the 95% interval over 5 seeds", True),
        (lambda c: c, "†: differs from fedavg, p < 0.05", True),
        (lambda c: c, "no p-values", False),
        (
            lambda c: replace(c, baseline="gone"),
            "no p-values: no run of the baseline gone finished",
            True,
        ),
        (lambda c: replace(c, entries=[]), "no p-values against fedavg", True),
        (lambda c: replace(c, entries=c.entries[:3]), "one seed: no interval", True),
        (lambda c: c, "one seed", False),
        (lambda c: c, "also measured", False),
        (
            lambda c: with_scores(c, once=True),
            "measured at the end, at clients with at least 30 test samples: accuracy",
            True,
        ),
        (lambda c: c, "at least 30 test samples", False),
        (lambda c: with_scores(c, resolution=0.053), "not exact: ", True),
        (lambda c: with_scores(c, once=True), "not exact: ", False),
        (
            lambda c: with_scores(c, undefined=["9"]),
            "iid, seed 0: accuracy is undefined for client 9",
            True,
        ),
        (lambda c: c, "iid, seed 0", False),
        (lambda c: c, "standalone: ", False),
        (
            lambda c: replace(c, optional=("rounds_to_target",)),
            "standalone, fedavg, fedakd: no target was named",
            True,
        ),
        (lambda c: c, "standalone, fedavg, fedakd: no target was named", False),
    ],
)
def test_what_a_reader_has_to_know_is_said_and_nothing_else(
    change: Callable[[Comparison], Comparison], line: str, there: bool
) -> None:
    assert said(change(made_up()), line) == there


def test_settings_that_were_chosen_are_told() -> None:
    found = made_up(seeds=1)
    tuned = replace(
        found,
        entries=[
            *found.entries[:2],
            replace(found.entries[2], setting=(("method.mu", 0.1), ("training.lr", 0.2))),
        ],
    )
    assert tuned.settings() == {("fedakd", "iid"): {"method.mu": 0.1, "training.lr": 0.2}}
    assert said(tuned, "fedakd on iid: mu=0.1, training.lr=0.2, chosen on validation data")
    assert tuned.as_plain()["entries"][2]["setting"] == {"method.mu": 0.1, "training.lr": 0.2}


def test_tables_have_the_same_columns_in_every_line() -> None:
    comparison = made_up()
    header, _ = formats.grid_of(comparison, "iid", lambda text, place: text)
    lines = [line for line in formats.markdown(comparison).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3 and {line.count("|") for line in lines} == {len(header) + 1}
    assert lines[1] == "| --- | " + " | ".join(["---:"] * (len(header) - 1)) + " |"
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["standalone", "fedavg", "fedakd"]
    second = formats.cell(comparison, "iid", "fedavg", "average")
    assert f"<u>{second}</u>" in formats.markdown(
        comparison
    ) and "- **best**, <u>second best</u>" in formats.markdown(comparison)
    text = formats.latex(comparison)
    assert r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in body} == {len(header) - 1} and [
        line.split(" & ")[0] for line in body[1:]
    ] == comparison.methods
    assert (
        r"\underline{$" + second.rstrip("†").replace("±", r"\pm") in text
        and r"\textbf{\boldmath $" in text
    )
    assert all(f"% {line}" in text for line in formats.explanation(comparison)[:2])
    assert r"\text{--}" in text, "Standalone says nothing about itself"
    clear = [
        entry(method, made_up_result(method, seed, [level, level + 0.01 * seed]), None)
        for seed in range(5)
        for method, level in (("fedavg", 0.5), ("fedakd", 0.7 + 0.001 * seed))
    ]
    assert r"\textbf{\boldmath $71.2 \pm" in formats.latex(
        Comparison(clear, "fedavg")
    ) and r"^{\dagger}$" in formats.latex(Comparison(clear, "fedavg"))


def test_rows_of_other_metrics_have_no_cost_and_no_distances() -> None:
    other = {"loss": {"0": 1.0, "1": 2.0}}
    alone = made_up_result("standalone", 1, [0.5, 0.6], others=other)
    together = made_up_result("fedavg", 1, [0.7, 0.6], others=other)
    two = Comparison([entry("standalone", alone), entry("fedavg", together, alone)], "fedavg")
    assert two.metrics == ["accuracy", "loss"]
    assert two.with_metric("loss").metrics == ["loss", "accuracy"]
    by_metric = {
        name: {row["measure"] for row in two.rows if row["metric"] == name} for name in two.metrics
    }
    without = {*COST, *DISTANCES, "majority"}
    assert by_metric["accuracy"] - by_metric["loss"] == without
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(two))))
    assert len(rows) == len(two.rows)
    (cf,) = [
        row
        for row in rows
        if (row["method"], row["metric"], row["measure"]) == ("standalone", "accuracy", "cf")
    ]
    assert cf["value"] == "", "training alone has no gain over itself"
    assert said(two, "also measured, in table.csv and comparison.json: loss")


def test_a_gap_in_some_seeds_is_counted_and_cost_is_not_tested() -> None:
    alone = made_up_result("standalone", 0, [0.5, 0.6])
    entries = []
    for seed, values in enumerate(([0.7, 0.8], [0.7, 0.7], [0.8, 0.7])):
        entries += [
            entry("fedavg", made_up_result("fedavg", seed, values), alone),
            entry("fedakd", made_up_result("fedakd", seed, [0.7, 0.9]), alone),
        ]
    comparison = Comparison(entries, "fedavg")
    row = comparison.row("iid", "fedavg", "cf")
    assert (
        row is not None
        and (row["seeds"], row["undefined"]) == (2, 1)
        and "same value 0.7" in row["note"]
    )
    average, cost = (comparison.row("iid", "fedakd", name) for name in ("average", "seconds"))
    assert average is not None and cost is not None
    assert average["difference"] == pytest.approx(0.8 - 2.2 / 3) and average[
        "rank"
    ] == pytest.approx(1.0)
    assert (cost["difference"], cost["p"], cost["rank"], cost["position"], cost["note"]) == (
        None,
        None,
        None,
        None,
        "",
    )


def test_plain_data_have_null_for_what_is_no_number_and_paths_inside_the_folder(
    tmp_path: Path,
) -> None:
    run = replace(
        made_up_result("fedavg", 4, [0.5, math.nan], undefined=["x"]),
        folder=tmp_path / "runs" / "a",
    )
    alone = replace(made_up_result("standalone", 4, [0.5, 0.6]), folder=Path("/elsewhere/b"))
    entries = [entry("fedavg", run, alone), entry("fedprox", run)]
    plain = Comparison(entries, "fedavg", folder=tmp_path).as_plain()
    first, second = plain["entries"]
    assert (first["run"], first["alone"], second["alone"]) == ("runs/a", "/elsewhere/b", None)
    assert (first["partition"], first["seed"]) == ("iid", 4)
    assert first["clients"] == {"0": 0.5, "1": None} and first["undefined"] == {"accuracy": ["x"]}
    assert first["measures"]["average"] is None
    assert plain["seeds"] == [4] and plain["columns"] == [] and plain["level"] == 0.95


def test_the_client_table_of_several_methods() -> None:
    one, other = (
        made_up_result("standalone", 1, [0.5, 0.6, 0.7]),
        made_up_result("standalone", 1, [0.5, 0.6, 0.65]),
    )
    first = entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.6, 0.7]), one)
    second = entry("fedakd", made_up_result("fedakd", 1, [0.4, 0.45, 0.8]), one)
    header, rows = formats.clients_grid(
        Comparison([entry("standalone", one), first, second], "fedavg"), "iid", 1
    )
    assert header == ["client", "alone", "fedavg", "fedakd"]
    assert rows[:3] == [
        ["1", "60.0", "0.0", "-15.0"],
        ["0", "50.0", "+10.0", "-10.0"],
        ["2", "70.0", "0.0", "+10.0"],
    ]
    assert rows[3] == ["clients that lose", "", "0 of 3", "2 of 3"]
    _, rows = formats.clients_grid(
        Comparison([first, entry("fedakd", second.run, other)], "fedavg"), "iid", 1
    )
    assert [row[1] for row in rows] == ["–", "–", "–", ""], "two references are in no one column"
    without = entry("fedavg", first.run.without_baseline())
    assert formats.clients_grid(Comparison([without], "fedavg"), "iid", 1) == ([], [])
    assert formats.clients_grid(Comparison([first], "fedavg"), "iid", 2) == ([], [])
    gone = entry("fedakd", made_up_result("fedakd", 1, {"1": 0.5, "2": 0.8}), one)
    _, rows = formats.clients_grid(Comparison([first, gone], "fedavg"), "iid", 1)
    assert (
        [row[0] for row in rows[:3]] == ["1", "0", "2"]
        and rows[1] == ["0", "50.0", "+10.0", "–"]
        and rows[3][2:] == ["0 of 3", "1 of 2"]
    )


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"level": 0}, False),
        ({"level": 1}, False),
        ({"level": 0.999}, True),
        ({"level": "much"}, False),
        ({"measure": "wurst"}, False),
        ({"columns": list(OPTIONAL)}, True),
        ({"columns": ["average"]}, False),
        ({"columns": 3}, False),
        ({"failures": [{"method": "x"}]}, False),
        ({"failures": [{"method": "x", "partition": "iid", "seed": 1, "reason": "no"}]}, True),
        ({"target": "0.5"}, True),
        ({"target": "high"}, False),
    ],
)
def test_a_comparison_on_disk_is_read_as_it_was_saved_or_called_damaged(
    change: dict[str, Any], fits: bool, saved: tuple[Path, str]
) -> None:
    folder, text = saved
    (folder / "comparison.json").write_text(json.dumps({**json.loads(text), **change}))
    if not fits:
        with pytest.raises(RunError, match="comparison.json cannot be read: it is damaged"):
            opened([folder])
        return
    found = opened([folder])
    assert found.level == change.get("level", 0.9) and found.optional == tuple(
        change.get("columns", ("best",))
    )
    target = float(change.get("target", 0.7))
    assert [entry.target for entry in found.entries] == [target, target] and found.folder == folder
    assert [(failure.seed, failure.reason) for failure in found.failures] == [(1, "no")] * bool(
        change.get("failures")
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("saved")
    runs = [made_up_run(folder / "runs" / method, method) for method in ("standalone", "fedavg")]
    found = replace(opened(runs), folder=folder, level=0.9, optional=("best",), target=0.7)
    baseline = found.entries[1].run.baseline
    assert found.baseline == "fedavg" and baseline is not None and baseline.folder == runs[0]
    formats.save(found)
    assert {path.name for path in folder.iterdir()} == {
        "runs",
        "comparison.json",
        "table.md",
        "table.tex",
        "table.csv",
    }
    assert (folder / "table.md").read_text() == formats.markdown(found) and (
        folder / "table.tex"
    ).read_text() == formats.latex(found)
    assert (folder / "table.csv").read_text() == formats.csv_text(found)
    return folder, (folder / "comparison.json").read_text()


def test_the_client_table_marks_what_is_beyond_luck() -> None:
    sizes = {"0": 30, "1": 30, "2": 30}
    alone = made_up_result("standalone", 1, [0.8, 26 / 30, 1.0], test_sizes=sizes)
    together = made_up_result("fedavg", 1, [1.0, 1.0, 0.5], test_sizes=sizes)
    comparison = Comparison([entry("fedavg", together, alone)], "fedavg")
    _, rows = formats.clients_grid(comparison, "iid", 1)
    assert rows == [
        ["2", "100.0", "-50.0*"],
        ["1", "86.7", "+13.3"],
        ["0", "80.0", "+20.0*"],
        ["clients that lose", "", "1 of 3 (1*)"],
    ]
    assert "McNemar" in formats.about_changes(comparison)
    errors = made_up(metric="rmse")
    assert "rmse" in formats.about_changes(errors) and "no test" in formats.about_changes(errors)


def seeded(values: dict[int, list[float]], size: int | None) -> Comparison:
    entries = []
    for seed, accuracies in values.items():
        sizes = {} if size is None else {str(k): size for k in range(len(accuracies))}
        found = made_up_result("fedavg", seed, accuracies, test_sizes=sizes)
        entries.append(entry("fedavg", found, None))
    return Comparison(entries, "fedavg")


def test_the_worst_client_has_an_interval_from_three_seeds_on_wider_by_half_a_sample() -> None:
    two = {1: [0.5, 0.9], 2: [0.6, 0.9]}
    row = seeded(two, 10).row("iid", "fedavg", "worst")
    assert row["low"] is None and "three seeds" in row["note"]
    assert seeded(two, 10).row("iid", "fedavg", "average")["low"] is not None
    three = {**two, 3: [0.5, 0.9]}
    row, plain = seeded(three, 10).row("iid", "fedavg", "worst"), over_seeds([0.5, 0.6, 0.5])
    assert row["low"] == pytest.approx(plain.low - 0.05)
    assert row["high"] == pytest.approx(plain.high + 0.05)
    assert seeded(three, None).row("iid", "fedavg", "worst")["low"] == pytest.approx(plain.low)


def test_columns_of_a_latex_table_can_be_chosen() -> None:
    comparison = made_up()
    text = formats.latex(comparison, ["worst", "average", "worst"])
    assert r"method & rank & worst client & average \\" in text
    assert r"\begin{tabular}{lrrr}" in text
    assert "| method | rank | CF |" in formats.markdown(comparison, ["cf"])
    with pytest.raises(ValueError, match="worse.*worst"):
        formats.latex(comparison, ["worse"])
