"""Runs of very many clients: extremes and quantiles in place of a row for each, and work that grows
with their number.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.comparison.entries import aligned
from equipoise.metrics.registry import find
from equipoise.report.cards import AT_EACH_END, MOST_LISTED, Card, extremes, quantile_sentence
from equipoise.runs import Run, read_result
from tests.helpers.stores import entry, made_up_result

CLIENTS = 3000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five clients whose store was rewritten for thousands, client k with the accuracy k /
    3000.
    """
    folder = tmp_path_factory.mktemp("many") / "run"
    data = {"synthetic": {"samples": 100, "features": 4, "classes": 2}, "clients": 5}
    eq.run(
        eq.Experiment(data=data, rounds=1, workers=0, model={"name": "mlp", "hidden": [4]}), folder
    )
    ids = [str(k) for k in range(CLIENTS)]
    with sqlite3.connect(folder / "run.db") as db:
        sizes = {part: [2] * CLIENTS for part in ("train", "validation", "test")}
        db.executemany(
            "insert or replace into meta values (?, ?)",
            [("clients", json.dumps(ids)), ("sizes", json.dumps(sizes))],
        )
        seen = db.execute(
            "select distinct round, model, phase, split, metric from measurements"
        ).fetchall()
        db.execute("delete from measurements")
        for number, model, phase, split, metric in seen:
            rows = [
                (number, client, model, phase, split, metric, int(client) / CLIENTS)
                for client in ids
            ]
            db.executemany("insert into measurements values (?, ?, ?, ?, ?, ?, ?)", rows)
    db.close()
    return folder


def test_show_prints_the_extreme_clients_and_quantiles(crowd: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(crowd)]).output
    listed = [int(number) for number in re.findall(r"^ *(\d+) +2 ", shown, re.MULTILINE)]
    assert listed == [*range(10), *range(CLIENTS - 10, CLIENTS)]
    wanted = ", ".join(
        f"{share} % {share * (CLIENTS - 1) / CLIENTS:.1f}" for share in (1, 10, 25, 50, 75, 90, 99)
    )
    assert (
        f"quantiles over clients: {wanted}" in shown
        and "of 3,000 clients; all: equipoise show" in shown
    )
    assert (
        len(
            json.loads(CliRunner().invoke(app, ["show", str(crowd), "--json"]).output)["per client"]
        )
        == CLIENTS
    )


def test_show_puts_the_largest_errors_first(crowd: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(crowd), "--metric", "loss"]).output
    assert int(re.findall(r"^ *(\d+) +2 ", shown, re.MULTILINE)[0]) == CLIENTS - 1


def test_a_report_lists_the_extreme_clients_and_says_how_the_others_are(crowd: Path) -> None:
    assert CliRunner().invoke(app, ["report", str(crowd)]).exit_code == 0
    page = (crowd / "report.html").read_text()
    listed = [int(client) for client in re.findall(r'<tr[^>]*data-client="(\d+)"', page)]
    assert listed == [*range(AT_EACH_END), *range(CLIENTS - AT_EACH_END, CLIENTS)]
    assert page.count("<tr") < 600  # the table of all metrics, too
    assert (
        "Of 3,000 clients the first and the last 100 are listed. accuracy: 1 % have at most 1.0 %"
        in " ".join(page.split())
    )


def test_few_clients_are_all_listed() -> None:
    found = [Card(str(k), 1, k / MOST_LISTED) for k in range(MOST_LISTED)]
    assert extremes(found) == found and quantile_sentence(found, find("accuracy")) == ""
    more = [*found, Card("x", 1, 1.0)]
    assert [card.client for card in extremes(more)] == [
        *map(str, range(AT_EACH_END)),
        *(card.client for card in more[-AT_EACH_END:]),
    ]
    middle = np.quantile([card.value for card in more], 0.5)
    assert f"50 % have at most {100 * middle:.1f} %" in quantile_sentence(more, find("accuracy"))
    assert quantile_sentence([*more, Card("y", 1, float("nan"))], find("accuracy")) == ""


def test_clients_without_a_value_are_named_in_the_order_of_clients(crowd: Path) -> None:
    result = read_result(Run(crowd))
    values = result.main.values
    odd = {client: value for client, value in values.items() if int(client) % 2}
    alone = made_up_result("standalone", result.condition[1], odd, partition=result.condition[0])
    (found,) = aligned([entry("x", result, alone)])
    assert list(found.run.main.values) == [str(k) for k in range(1, CLIENTS, 2)]
    assert list(found.run.main.undefined) == [str(k) for k in range(0, CLIENTS, 2)]
