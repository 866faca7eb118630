"""The table of a comparison, from runs whose numbers are made up."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.comparison import Comparison, formats, open_runs, opened
from equipoise.comparison.entries import Entry
from equipoise.comparison.measures import ASKED, measures
from equipoise.comparison.table import Failure, _number, _positions
from equipoise.metrics import collaborative_fairness, over_seeds, paired_p
from equipoise.metrics.registry import find
from equipoise.runs.convergence import Curve
from equipoise.storage.store import RunError
from tests.helpers.stores import made_up_result, made_up_run


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
    entry = Entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.5]), alone)
    assert entry.gains() == {"0": pytest.approx(0.1), "1": pytest.approx(-0.1)}
    assert entry.measured[0]["harmed"] == 0.5 and entry.measured[0]["worst"] == 0.5
    wrong = Entry(
        "fedavg",
        made_up_result("fedavg", 1, [0.6, 0.5], "rmse"),
        made_up_result("standalone", 1, [0.5, 0.6], "rmse"),
    )
    assert wrong.gains() == {"0": pytest.approx(-0.1), "1": pytest.approx(0.1)}
    assert (
        wrong.measured[0]["worst_change"] == pytest.approx(0.1)
        and wrong.measured[0]["worst"] == 0.6
    )


def test_an_undefined_measure_carries_its_reason():
    alone = made_up_result("standalone", 1, [0.5, 0.6])
    comparison = Comparison(
        [Entry("fedavg", made_up_result("fedavg", 1, [0.7, 0.7]), alone)], "fedavg"
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
        [Entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.5, 0.7]), alone)], "fedavg"
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
    entry = next(entry for entry in made_up().entries if entry.label == "fedakd")
    assert entry.measured[0]["cf"] == collaborative_fairness(
        list(entry.reference.values()), list(entry.run.values.values())
    )


def test_no_runs_is_refused():
    with pytest.raises(RuntimeError, match="at least one run"):
        open_runs([])


def changed(comparison: Comparison, **of_run: Any) -> Comparison:
    """With runs of which this is known as well."""
    return replace(
        comparison,
        entries=[replace(entry, run=replace(entry.run, **of_run)) for entry in comparison.entries],
    )


def said(comparison: Comparison, start: str) -> bool:
    return any(line.startswith(start) for line in formats.explanation(comparison))


def test_what_was_asked_is_named_and_the_level_is_095() -> None:
    found = Comparison([], "fedavg")
    assert (
        found.level,
        found.measure,
        found.asked,
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
        "megabytes",
        "seconds",
    ]
    assert list(found.columns) == usual and not said(found, "majority class")
    assert list(replace(found, asked=("best", "d_cos")).columns) == [
        *usual[:-2],
        "best",
        "d_cos",
        *usual[-2:],
    ]
    known = changed(found, majority={"0": 0.5, "1": 0.25, "gone": 0.9})
    assert list(known.columns)[:2] == ["average", "majority"] and said(
        known, "majority class: the accuracy of always naming"
    )
    assert known.entries[1].measured[0]["majority"] == pytest.approx(0.375), (
        "over clients of the table"
    )
    assert math.isnan(found.entries[1].measured[0]["majority"])
    header, rows = formats.grid_of(known, "iid", lambda text, place: text)
    assert header[:4] == ["method", "rank", "average", "majority class"] and rows[1][3] == "37.5"
    without, _ = formats.grid_of(known, "iid", lambda text, place: text, with_cost=False)
    assert header == [*without, "MB", "seconds"]


def test_a_method_that_still_rises_is_marked_and_told() -> None:
    rounds = tuple(range(1, 21))
    rising, level = Curve(rounds, tuple(0.02 * n for n in rounds)), Curve(rounds, (0.5,) * 20)
    curves = {"standalone": {}, "fedavg": {"accuracy": level}, "fedakd": {"accuracy": rising}}
    found = made_up(seeds=2)
    entries = [
        replace(entry, run=replace(entry.run, curves=curves[entry.label]))
        for entry in found.entries
    ]
    comparison = replace(
        found,
        entries=[
            entry for entry in entries if (entry.label, entry.run.condition[1]) != ("fedakd", 1)
        ],
    )
    assert comparison.rising("iid") == {"fedakd": (17, pytest.approx(0.06))}
    _, rows = formats.grid_of(comparison, "iid", lambda text, place: text)
    assert [row[0] for row in rows] == ["standalone", "fedavg", "fedakd ‡"]
    told = [line for line in formats.explanation(comparison) if line.startswith("‡")]
    assert (
        len(told) == 1 and "fedakd on iid" in told[0] and "6.0 points in rounds 17 to 20" in told[0]
    )
    assert comparison.as_plain()["not converged"] == {"iid": ["fedakd"]}
    falling = {"fedavg": {"rmse": Curve(rounds, tuple(1 - 0.02 * n for n in rounds))}}
    errors = made_up(seeds=1, metric="rmse")
    errors = replace(
        errors,
        entries=[
            replace(e, run=replace(e.run, curves=falling.get(e.label, {}))) for e in errors.entries
        ],
    )
    assert list(errors.rising("iid")) == ["fedavg"], "errors that fall get better"


def test_the_best_round_and_the_rounds_to_a_target_are_those_of_the_curve() -> None:
    curve = {"accuracy": Curve((5, 10, 15), (0.3, 0.8, 0.6))}
    (entry,) = changed(Comparison([made_up(seeds=1).entries[1]], "fedavg"), curves=curve).entries
    assert entry.measured[0]["best_round"] == 10 and math.isnan(
        entry.measured[0]["rounds_to_target"]
    )
    assert entry.measured[1]["rounds_to_target"].startswith("no target was named")
    for target, wanted in ((0.8, 10), (0.81, math.nan), (0.1, 5)):
        found = replace(entry, target=target)
        assert found.measured[0]["rounds_to_target"] == pytest.approx(wanted, nan_ok=True)
        assert "rounds_to_target" not in found.measured[1]


def one_row(**row: Any) -> Any:
    """A comparison that knows one row."""
    usual = {"value": 0.5, "low": 0.4, "high": 0.7, "p": None}
    return SimpleNamespace(
        row=lambda *key: usual | row if key == ("iid", "fedavg", "average") else None,
        measures=measures(find("accuracy")),
    )


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({}, "50.0 ± 15.0"),
        ({"p": 0.0499}, "50.0 ± 15.0†"),
        ({"p": 0.05}, "50.0 ± 15.0"),
        ({"low": None}, "50.0"),
        ({"low": None, "p": 0.01}, "50.0†"),
        ({"value": math.nan}, "–"),
    ],
)
def test_a_cell_is_the_mean_with_half_its_interval_and_a_mark_where_it_differs(
    row: dict[str, Any], text: str
) -> None:
    assert formats.cell(one_row(**row), "iid", "fedavg", "average") == text
    assert formats.cell(one_row(**row), "iid", "fedprox", "average") == "–"


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
    entry = comparison.entry("fedakd", "iid", 0)
    assert entry is not None
    assert (
        formats.cell(comparison, "iid", "fedakd", "change")
        == f"{100 * entry.measured[0]['change']:+.1f}"
    )


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


@pytest.mark.parametrize(
    ("change", "line", "there"),
    [
        (lambda c: c, "the data, ", False),
        (lambda c: changed(c, data="synthetic(9)"), "the data, synthetic(9), are synthetic", True),
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
            lambda c: changed(c, counted={"auroc": 0.0}),
            "measured at the end, at clients with at least 30 test samples: auroc",
            True,
        ),
        (lambda c: c, "at least 30 test samples", False),
        (lambda c: changed(c, counted={"auroc": 0.053, "auprc": 0.0}), "not exact: ", True),
        (lambda c: changed(c, counted={"auroc": 0.0}), "not exact: ", False),
        (
            lambda c: changed(c, undefined={"accuracy": ["9"]}),
            "iid, seed 0: accuracy is undefined for client 9",
            True,
        ),
        (lambda c: c, "iid, seed 0", False),
        (lambda c: c, "standalone: ", False),
        (lambda c: replace(c, asked=("rounds_to_target",)), "fedakd: no target was named", True),
        (lambda c: c, "fedakd: no target was named", False),
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
        Entry(method, made_up_result(method, seed, [level, level + 0.01 * seed]), None)
        for seed in range(5)
        for method, level in (("fedavg", 0.5), ("fedakd", 0.7 + 0.001 * seed))
    ]
    assert r"\textbf{\boldmath $71.2 \pm" in formats.latex(
        Comparison(clear, "fedavg")
    ) and r"^{\dagger}$" in formats.latex(Comparison(clear, "fedavg"))


def test_rows_of_other_metrics_have_no_cost_and_no_distances() -> None:
    found = made_up(seeds=1)
    two = changed(found)
    two = replace(
        two,
        entries=[
            replace(
                e, run=replace(e.run, by_metric={"accuracy": e.run.values, "loss": e.run.values})
            )
            for e in found.entries
        ],
    )
    alone = {e.run.condition: e.run for e in two.entries if e.label == "standalone"}
    two = replace(two, entries=[replace(e, alone=alone[e.run.condition]) for e in two.entries])
    assert (
        two.metrics == ["accuracy", "loss"]
        and two.seen_by("loss").metrics == ["loss", "accuracy"]
        and two.seen_by("accuracy") is two
    )
    by_metric = {
        name: {row["measure"] for row in two.rows if row["metric"] == name} for name in two.metrics
    }
    assert by_metric["accuracy"] - by_metric["loss"] == {
        "megabytes",
        "seconds",
        "d_cos",
        "d_man",
        "majority",
    }
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(two))))
    assert len(rows) == len(two.rows)
    alone_rows = {
        row["measure"]: row
        for row in rows
        if row["method"] == "standalone" and row["metric"] == "accuracy"
    }
    assert (
        alone_rows["cf"]["value"] == ""
        and alone_rows["megabytes"]["value"] == "1.0"
        and alone_rows["megabytes"]["rank"] == ""
    )
    assert said(two, "also measured, in table.csv and comparison.json: loss")


def test_a_gap_in_some_seeds_is_counted_and_cost_is_not_tested() -> None:
    alone = made_up_result("standalone", 0, [0.5, 0.6])
    entries = []
    for seed, values in enumerate(([0.7, 0.8], [0.7, 0.7], [0.8, 0.7])):
        entries += [
            Entry("fedavg", made_up_result("fedavg", seed, values), alone),
            Entry("fedakd", made_up_result("fedakd", seed, [0.7, 0.9]), alone),
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


@pytest.mark.parametrize(
    ("values", "lower", "places"),
    [
        ({"a": 1.0}, False, {}),
        ({"a": 1.0, "b": 2.0}, False, {"b": 1, "a": 2}),
        ({"a": 1.0, "b": 2.0}, True, {"a": 1, "b": 2}),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, True, {"a": 1, "b": 2}),
        ({"a": 1.0, "b": 2.0}, None, {}),
        ({"a": 1.0, "b": 1.0}, True, {"a": 1, "b": 1}),
    ],
)
def test_positions(values: dict[str, float], lower: bool | None, places: dict[str, int]) -> None:
    assert _positions(values, lower) == places


def test_plain_data_have_null_for_what_is_no_number_and_paths_inside_the_folder(
    tmp_path: Path,
) -> None:
    assert [_number(value) for value in (1.5, math.nan, math.inf, 3, "nan", None)] == [
        1.5,
        None,
        None,
        3,
        "nan",
        None,
    ]
    run = replace(
        made_up_result("fedavg", 4, [0.5, math.nan]),
        folder=tmp_path / "runs" / "a",
        undefined={"accuracy": ["x"], "loss": []},
    )
    alone = replace(made_up_result("standalone", 4, [0.5, 0.6]), folder=Path("/elsewhere/b"))
    entries = [Entry("fedavg", run, alone), Entry("standalone", alone, None)]
    plain = Comparison(entries, "fedavg", folder=tmp_path).as_plain()
    first, second = plain["entries"]
    assert (first["run"], first["alone"], second["alone"]) == ("runs/a", "/elsewhere/b", None)
    assert (first["partition"], first["seed"], first["clients"]) == (
        "iid",
        4,
        {"0": 0.5, "1": None},
    )
    assert (
        first["undefined"] == {"accuracy": ["x"]}
        and first["measures"]["average"] is None
        and second["measures"]["average"] == 0.55
    )
    assert plain["seeds"] == [4] and plain["columns"] == [] and plain["level"] == 0.95


def test_the_client_table_of_several_methods() -> None:
    one, other = (
        made_up_result("standalone", 1, [0.5, 0.6, 0.7]),
        made_up_result("standalone", 1, [0.5, 0.6, 0.65]),
    )
    first = Entry("fedavg", made_up_result("fedavg", 1, [0.6, 0.6, 0.7]), one)
    second = Entry("fedakd", made_up_result("fedakd", 1, [0.4, 0.45, 0.8]), one)
    header, rows = formats.clients_grid(
        Comparison([Entry("standalone", one, one), first, second], "fedavg"), "iid", 1
    )
    assert header == ["client", "alone", "fedavg", "fedakd"]
    assert rows[:3] == [
        ["1", "60.0", "0.0", "-15.0"],
        ["0", "50.0", "+10.0", "-10.0"],
        ["2", "70.0", "0.0", "+10.0"],
    ]
    assert rows[3] == ["clients that lose", "", "0 of 3", "2 of 3"]
    _, rows = formats.clients_grid(
        Comparison([first, replace(second, alone=other)], "fedavg"), "iid", 1
    )
    assert [row[1] for row in rows] == ["–", "–", "–", ""], "two references are in no one column"
    assert formats.clients_grid(
        Comparison([Entry("fedavg", first.run, None)], "fedavg"), "iid", 1
    ) == ([], [])
    assert formats.clients_grid(Comparison([first], "fedavg"), "iid", 2) == ([], [])
    gone = replace(second, run=replace(second.run, by_metric={"accuracy": {"1": 0.5, "2": 0.8}}))
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
        ({"columns": list(ASKED)}, True),
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
    assert found.level == change.get("level", 0.9) and found.asked == tuple(
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
    found = replace(opened(runs), folder=folder, level=0.9, asked=("best",), target=0.7)
    assert (found.baseline, found.entries[1].alone and found.entries[1].alone.folder) == (
        "fedavg",
        runs[0],
    )
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
    alone = replace(made_up_result("standalone", 1, [0.8, 26 / 30, 1.0]), test_sizes=sizes)
    together = replace(made_up_result("fedavg", 1, [1.0, 1.0, 0.5]), test_sizes=sizes)
    comparison = Comparison([Entry("fedavg", together, alone)], "fedavg")
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
        found = replace(made_up_result("fedavg", seed, accuracies), test_sizes=sizes)
        entries.append(Entry("fedavg", found, None))
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
