"""Measures of a single client, and official test parts, in studies of natural federations."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.study.definition import load_study
from equipoise.study.records import Record
from equipoise.study.table import measure

STUDY = Path(__file__).parents[2] / "studies" / "flamby" / "heart.yaml"


def record(name: str, **values: float) -> Record:
    return Record(
        run=name,
        method=name,
        condition="heart",
        seed=0,
        model="global",
        main=True,
        metric="accuracy",
        values=dict(values),
        test_sizes=dict.fromkeys(values, 50),
        groups={"berlin": "north", "bern": "south", "basel": "south"},
    )


def test_brackets_name_a_group_or_a_single_client() -> None:
    together = record("fedavg", berlin=0.9, bern=0.6, basel=0.8)
    alone = record("standalone", berlin=0.8, bern=0.7, basel=0.8)
    assert measure(together, alone, "average[south]") == pytest.approx(0.7)
    assert measure(together, alone, "average[bern]") == pytest.approx(0.6)
    assert measure(together, alone, "change[bern]") == pytest.approx(-0.1)


def test_the_official_test_part_of_every_site_is_the_same_in_all_seeds() -> None:
    assert load_study(STUDY).test("heart") == "site"
