"""What the tables of methods and of growth rest on: runs stepped from outside are the same runs,
and sizes are compared round by round.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import equipoise as eq
import growth
from equipoise import simulate
from equipoise.storage.checkpoint import load_server
from equipoise.testing.small import flat
from methods import NOTES, OPTIONS, experiment
from stepping import stepped
from tests.helpers.runs import assert_same, settings


# and one with exchanges before round 1 and validation data at the server
@pytest.mark.parametrize("method", ["fedavg", "fedsac"])
@pytest.mark.thorough
def test_a_run_that_is_stepped_is_the_run_that_goes_by_itself(method: str, tmp_path: Path) -> None:
    config = settings(method, data={"name": "digits", "clients": 4})
    whole = simulate.run(eq.Experiment(**config), tmp_path / "whole")
    steps = list(stepped(eq.Experiment(**config), tmp_path / "stepped"))
    assert [record.round for _, record in steps] == [0, 1, 2, 3]
    assert_same(flat(load_server(whole.store)), flat(steps[-1][0]))
    assert [(row["bytes_up"], row["bytes_down"]) for row in whole.rounds()] == [
        (r.bytes_up, r.bytes_down) for _, r in steps[1:]
    ]


def test_options_of_the_table_of_methods_are_theirs_and_told() -> None:
    for name in OPTIONS:
        assert experiment(name, 3).build_method() and name in NOTES


def test_a_power_is_found_from_the_last_three_sizes() -> None:
    rows = [
        {"size": 10**k, "cpu": 5.0 if k == 1 else 10.0 ** (k / 2), "files": 0, "show": "it failed"}
        for k in range(1, 5)
    ]
    assert growth.exponent(rows, "cpu") == "0.50"
    assert (
        growth.exponent(rows, "files")
        == growth.exponent(rows, "show")
        == growth.exponent(rows[:1], "cpu")
        == ""
    )


def laps(*cpu: float) -> list[dict[str, float]]:
    return [{"cpu_seconds": one, "seconds": 2 * one} for one in cpu]


def test_rounds_are_compared_with_the_same_round_of_the_second_size() -> None:
    found = {
        100: laps(9, 1, 2, 4),
        1000: laps(9, 2, 4, 8),
        10000: laps(9, 3, 6, 12),
    }  # the first warms up, or fills
    assert growth.of_rounds(found, 10000, [100, 1000, 10000], "clients")["ratio"] == (1.5, 1.5, 1.5)
    assert growth.of_rounds(found, 100, [100, 1000, 10000], "clients") == {
        "cpu": 2,
        "wall": 4,
        "ratio": (0.5, 0.5, 0.5),
    }


def test_the_last_rounds_of_a_run_are_compared_with_its_first() -> None:
    found = {30: laps(9, *[1.0] * 10, *[7.0] * 16, *[2.0] * 3)}
    assert growth.of_rounds(found, 30, [30], "rounds")["ratio"] == (2.0, 2.0, 2.0)


def test_a_table_says_what_failed_and_what_was_not_measured() -> None:
    row = dict.fromkeys(growth.COLUMNS, 1) | {
        "size": 100,
        "ratio": (1.0, 0.9, 1.1),
        "report": "no room",
    }
    text = growth.render(
        {"cohort": {"rows": [row], "date": "today", "machine": "this", "load": "0.1"}}
    )
    assert "| 100 | 1.00 (0.90-1.10) | 1.000 |" in text and "| no room |" in text
    assert "| rounds | 10,000 | show | 10 | not measured |" in text
    few = {
        "clients-scaffold": {
            "rows": [row | {"size": 1000, "in one folder": 10_001}],
            "date": "today",
            "machine": "this",
            "load": "0.1",
        }
    }
    assert (
        "| clients-scaffold | 100,000 | most in a folder | 10,000 | 10,001, missed (at 1,000) |"
        in growth.render(few)
    )
    assert "Not measured yet: `clients-fedavg`" in text and "`cohort` (" not in text


@pytest.mark.slow
def test_a_small_series_is_measured_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = growth.Series(
        "few", (4, 8), lambda n: growth.experiment(n, "scaffold", cohort=2), fill=True, laps=3
    )
    monkeypatch.setitem(growth.SERIES, "cohort", series)
    monkeypatch.setattr(sys, "argv", ["growth.py", "--series", "cohort", "--output", str(tmp_path)])
    growth.main()
    rows = json.loads((tmp_path / "growth.json").read_text())["cohort"]["rows"]
    assert [row["size"] for row in rows] == [4, 8]
    assert rows[1]["files"] - rows[0]["files"] >= 4  # every client has a state
    assert max(row["in one folder"] for row in rows) < 8  # in sub-folders
    assert all(
        isinstance(row[what], float) and row[what] > 0
        for row in rows
        for what in ("startup", "resume", "show", "report")
    )
    assert "## few" in (tmp_path / "GROWTH.md").read_text()
