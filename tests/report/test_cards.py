"""Report cards of single clients: verdicts, intervals, order, positions on the common scale, and
the tables of a page.
"""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from equipoise.comparison.entries import open_runs
from equipoise.comparison.table import Comparison
from equipoise.metrics.gains import Gain
from equipoise.metrics.registry import find
from equipoise.report.cards import Card, cards, headline, significance_sentence
from equipoise.report.parts import (
    environment,
    marked,
    metadata_of_one,
    metadata_of_several,
    metrics_of_one,
)
from equipoise.report.tracks import Track, scale_of, span_of
from equipoise.runs import Run, read_result
from tests.helpers.stores import change, made_up_result, made_up_run

ACCURACY, RMSE = find("accuracy"), find("rmse")


@pytest.mark.parametrize(
    ("gain", "p", "verdict", "clear"),
    [
        (None, None, "", False),
        (0.1, None, "gains", False),
        (0.1, 0.05, "gains", False),
        (0.1, 0.049, "gains", True),
        (-0.1, 0.2, "loses", False),
        (-0.1, 0.01, "loses", True),
        (0.0, 1.0, "equal", False),
    ],
)
def test_a_change_is_clear_where_its_test_says_so(
    gain: Any, p: Any, verdict: str, clear: bool
) -> None:
    # an interval of another kind that leaves out zero makes nothing clear
    card = Card("a", 1, 0.5, None, gain, 0.01, 0.2, p=p)
    assert (card.verdict, card.clear) == (verdict, clear)


def card(client: str, gain: float, p: float | None = None) -> Card:
    return Card(client, 10, 0.5 + gain, 0.5, gain, p=p)


@pytest.mark.parametrize(
    ("found", "end"),
    [
        ([card("a", 0.0, 1.0)], "0 of 1 client gain; nobody loses."),
        ([card("a", 0.0, 1.0), card("b", 0.2, 0.01)], "1 of 2 clients gains; nobody loses."),
        ([card("a", 0.1, 0.3), card("b", 0.2, 0.01)], "all 2 clients gain."),
        ([card("a", 0.1, 0.3), card("b", 0.2, 0.1)], "all 2 clients gain; none of these changes is significant, given finite test sets."),
        ([card("a", -0.1, 0.01), card("b", -0.2, 0.01)], "0 of 2 clients gain; 2 lose, client b most: 20.0 points."),
        ([card("a", -0.1, 0.01), card("b", -0.2, 0.2)], "0 of 2 clients gain; 2 lose, client b most: 20.0 points, which is not significant, given its finite test set."),
        ([card("a", -0.1), card("b", 0.2, 0.01)], "1 of 2 clients gains; client a loses 10.0 points."),
        ([Card("x", 1, 0.3), card("a", 0.1)], "1 of 1 client gains."),
    ],
)  # fmt: skip
def test_a_headline_says_no_more_than_the_tests(found: list[Card], end: str) -> None:
    assert headline(found, ACCURACY) == f"In this one run {end}"


def test_without_a_reference_the_headline_names_the_worst() -> None:
    assert headline([Card("a", 1, 0.9), Card("b", 1, 0.1)], RMSE).endswith(
        "in this one run the highest RMSE is 0.9000, at client a."
    )


def test_the_sentence_on_significance_counts_clear_gains_and_losses() -> None:
    def said(*cards: Card) -> str:
        return significance_sentence(cards, ACCURACY)

    assert ": 1 of 2 gains." in said(card("a", 0.1, 0.01), card("b", 0.1, 0.3))
    assert ": 0 of 1 loss." in said(card("a", -0.1, 0.4))
    both = said(card("a", 0.1, 0.01), card("b", -0.1, 0.3), card("c", -0.1, 0.001))
    assert ": 1 of 1 gain and 1 of 2 losses." in both
    assert said(card("a", 0.0, 1.0)) == "" == said(Card("a", 1, 0.5))


def test_the_sentence_on_significance_says_why_errors_have_no_test() -> None:
    said = significance_sentence([card("a", 0.1), card("b", -0.1)], RMSE)
    assert "rmse" in said and "no test" in said and "accuracy" in said


def test_cards_without_a_reference_begin_with_the_worst_and_count_what_the_store_counts(
    tmp_path: Path,
) -> None:
    run = made_up_run(tmp_path / "run", clients=4)
    with sqlite3.connect(run / "run.db") as db:
        db.execute("insert into rejected values (2, 0, 1, '1', 'late'), (3, 0, 1, '1', 'late')")
        db.execute("""update rounds set joined = '["0", "2"]' where round = 2""")
        db.execute("delete from weights where round = 2 and client in ('1', '3')")
        db.execute("update measurements set value = 0.1 where client = '2'")
    db.close()
    result = read_result(Run(run), details=True)
    found = cards(result)
    assert [one.value for one in found] == sorted(result.main.values.values())
    assert found[0].client == "2"
    by_client = {one.client: one for one in found}
    assert {client: one.rejected for client, one in by_client.items()} == {
        "0": 0,
        "1": 2,
        "2": 0,
        "3": 0,
    }
    assert {client: one.rounds for client, one in by_client.items()} == {
        "0": 3,
        "1": 2,
        "2": 3,
        "3": 2,
    }
    assert by_client["0"].weight == pytest.approx((0.25 + 0.5 + 0.25) / 3) and by_client[
        "1"
    ].weight == pytest.approx(0.5 / 3)
    assert [by_client[str(k)].samples for k in range(4)] == [100, 101, 102, 103] and all(
        one.low is None for one in found
    )
    assert result.details is not None
    assert result.details.weights.values[[0, 1], 1].tolist() == [0.25, 0.0], (
        "no weight in a round without it"
    )
    errors = made_up_run(tmp_path / "errors", regression=True)
    values = [one.value for one in cards(read_result(Run(errors), details=True))]
    assert values == sorted(values, reverse=True)


def test_rounds_in_which_nobody_had_weight_do_not_count(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", clients=["a", "b"])
    change(run, "delete from weights")
    for number, client, share in ((1, "a", 0.75), (1, "b", 0.25), (2, "a", 0.0), (3, "b", 1.0)):
        change(run, f"insert into weights values ({number}, '{client}', {share})")
    found = {one.client: one.weight for one in cards(read_result(Run(run), details=True))}
    assert found == {"a": 0.375, "b": 0.625}


def gains_of(
    counts: dict[str, tuple[int, int]], totals: dict[str, int], metric: str = "accuracy"
) -> dict[str, Gain]:
    """Return the tested gains of clients with so many correct samples alone and together."""
    before = {client: right[0] / totals[client] for client, right in counts.items()}
    after = {client: right[1] / totals[client] for client, right in counts.items()}
    alone = made_up_result("standalone", 1, before, metric)
    together = made_up_result("fedavg", 1, after, metric, test_sizes=totals)
    return together.against(alone).main.gain_tests


def test_a_gain_is_told_from_luck_by_the_exact_test_of_the_least_favourable_pairs() -> None:
    found = gains_of(
        {"a": (26, 30), "b": (24, 30), "c": (320, 200), "d": (320, 320)},
        {"a": 30, "b": 30, "c": 400, "d": 400},
    )
    assert found["a"].p == pytest.approx(0.125) and not found["a"].clear
    assert found["b"].p == pytest.approx(0.03125) and found["b"].clear
    assert found["c"].clear and found["c"].value == pytest.approx(-0.3)
    assert found["d"].p == 1.0
    for gain in found.values():
        assert gain.low <= gain.value <= gain.high
        assert gain.clear == (not gain.low < 0 < gain.high and gain.value != 0)


def test_other_metrics_and_unknown_sizes_have_no_test() -> None:
    counts = {"a": (20, 30)}
    assert gains_of(counts, {"a": 40}, metric="auroc") == {}
    assert gains_of(counts, {"a": 40}, metric="rmse") == {}
    assert set(gains_of(counts, {"a": 40})) == {"a"}


@pytest.mark.parametrize(
    ("one", "metric", "span"),
    [
        (Card("a", 1, 0.6, 0.5, 0.1, -0.1, 0.2), ACCURACY, (0.4, 0.7)),
        (Card("a", 1, 0.6, 0.5, 0.1, -0.7, 0.9), ACCURACY, (0.0, 1.0)),
        (Card("a", 1, 0.6, 0.5, 0.1, -0.7, 0.9), RMSE, (-0.4, 1.2)),
        (Card("a", 1, 0.6, None, 0.1, -0.7, 0.9), ACCURACY, None),
        (Card("a", 1, 0.6, 0.5, 0.1, None, 0.9), ACCURACY, None),
        (Card("a", 1, 0.6, 0.5, 0.1, -0.7, None), ACCURACY, None),
    ],
)
def test_where_a_value_could_lie(one: Card, metric: Any, span: tuple[float, float] | None) -> None:
    assert span_of(one, metric) == span


def test_all_clients_are_on_one_scale_from_the_lowest_to_the_highest() -> None:
    found = [
        Card("a", 1, 0.6, 0.5, 0.1, -0.1, 0.2),
        Card("b", 1, 0.3, 0.8, -0.5),
        Card("c", 1, 0.99),
        Card("d", 1, 0.01, 0.02, math.nan),
        Card("e", 1, 0.5, None, 0.1),
    ]
    scale = scale_of(found, ACCURACY)
    assert (
        scale is not None
        and (scale.low, scale.high) == (0.3, 0.8)
        and scale.tracks.keys() == {"a", "b"}
    )
    a, b = scale.tracks["a"], scale.tracks["b"]
    assert (a.alone, a.together, a.span) == (
        pytest.approx(40),
        pytest.approx(60),
        pytest.approx((20, 80)),
    )
    assert (b.alone, b.together, b.span) == (100, 0, None) and scale.spans
    assert b.way == (0, 100) and Track(20, 50, None).way == (20, 30)
    same = scale_of([Card("a", 1, 0.5, 0.5, 0.0)], ACCURACY)
    assert same is not None and same.tracks["a"] == Track(50.0, 50.0, None) and not same.spans
    assert scale_of([Card("c", 1, 0.99)], ACCURACY) is None
    wide = scale_of([Card("a", 1, 0.6, 0.5, 0.1, -0.5, 0.5)], ACCURACY)
    assert wide is not None and (wide.low, wide.high, wide.tracks["a"].span) == (
        0.0,
        1.0,
        (0.0, 100.0),
    )


def test_the_best_is_strong_and_names_are_escaped() -> None:
    assert marked("<1>", 1) == "<strong>&lt;1&gt;</strong>"
    assert marked("<1>", 2) == marked("<1>", None) == "&lt;1&gt;"


def test_all_metrics_of_a_run_stand_side_by_side(tmp_path: Path) -> None:
    made_up_run(tmp_path / "standalone", "standalone", level=0.5)
    run = made_up_run(tmp_path / "fedavg")
    (entry,), (alone,) = open_runs([run]), open_runs([tmp_path / "standalone"])
    found = metrics_of_one(entry.run, [])
    assert found["header"] == [
        "metric",
        "average",
        "worst client",
        "std",
        "change",
        "worst change",
        "harmed %",
        "CF",
    ]
    measured = entry.aggregates
    cells = [f"{100 * measured[name]:.1f}" for name in ("average", "worst", "std")] + [
        f"{100 * measured[name]:+.1f}" for name in ("change", "worst_change")
    ]
    assert found["rows"][0][:6] == ["accuracy in %", *cells]
    assert found["clients"] == [
        [client, f"{100 * value:.1f}"] for client, value in entry.run.main.values.items()
    ]
    assert (
        found["clients_header"] == ["client", "accuracy in %"]
        and metrics_of_one(alone.run, [])["header"] == found["header"][:4]
    )


def test_the_page_says_what_was_run_and_where(tmp_path: Path) -> None:
    method: Any = {"name": "fedprox", "mu": 0.3}
    run = made_up_run(tmp_path / "run", method, finished=False, seed=3)
    result = read_result(Run(run))
    found = dict(metadata_of_one(result))
    assert (found["method"], found["seed"], found["rounds"]) == ("fedprox (mu=0.3)", "3", "2 of 3")
    assert found["clients"] == "4, with 100 to 103 training samples"
    assert found["test data"] == "each client's own part"
    shared = made_up_run(tmp_path / "shared", clients=1, shared_test=9)
    found = dict(metadata_of_one(read_result(Run(shared))))
    assert found["clients"] == "1, with 100 training samples"
    assert found["test data"] == "one set for all" and found["method"] == "fedavg"
    assert environment(result)[0] == ("equipoise", "0.1.0")
    assert ("torch", "2") in environment(result)
    assert environment(result)[-1][1] == result.fingerprint


def test_the_page_of_several_runs_says_what_was_compared(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", seed=3)
    found = dict(metadata_of_several(Comparison(open_runs([run]), "fedavg", measure="worst")))
    assert found["methods"] == found["baseline of the tests"] == "fedavg"
    assert found["ranked by"] == "worst client accuracy" and found["seeds"] == "3"
    assert "method" not in found
