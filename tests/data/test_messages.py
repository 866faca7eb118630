"""The wording of `data check`: every warning names its column or site, and a remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.data import DataConfig
from equipoise.data.check import check_data
from tests.helpers.clean_sites import HEADER, Rows, clean, with_first_column, write
from tests.helpers.reports import remarks_on


def _cell(row: int, column: int, value: str) -> Callable[[dict[str, Rows]], None]:
    def change(sites: dict[str, Rows]) -> None:
        sites["north"][row][column] = value

    return change


def _only(**kept: object) -> Callable[[dict[str, Rows]], None]:
    def change(sites: dict[str, Rows]) -> None:
        if "site" in kept:
            del sites["south"]
        if "label" in kept:
            for rows in sites.values():
                for row in rows:
                    row[3] = "well"
        if "north" in kept:
            sites["north"] = [row for row in sites["north"] if row[3] == "well"] * 2
        if "rows" in kept:
            del sites["north"][149:]

    return change


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (with_first_column(lambda site, i: f"{site[0]}{i}"), "column 'more' looks like an identifier .* is left out; to use it, give it the kind number or category in a schema"),
        (with_first_column(lambda site, i: f"the patient of {site} came on day {i}"), "column 'more' looks like free text .* is left out; to use it, give it the kind"),
        (with_first_column(lambda site, i: f"2024-02-{1 + i % 28:02}"), "column 'more' holds dates, which become numbers .*; leave the column out of the schema"),
        (with_first_column(lambda site, i: f"0{1 + i % 9}/02/2024"), "with the month first: 01/02/2024 is read as day 1 of month 2"),
        (with_first_column(lambda site, i: ""), "column 'more' has no value at all; remove it"),
        (_cell(1, 3, "Well "), "label column .label.: the classes 'Well' .1 row. and 'well' .211 rows. are nearly equal .* write them alike"),
        (_cell(1, 1, "A"), "column 'ward': the categories 'A' .1 row. and 'a' .107 rows. are nearly equal"),
        (_cell(1, 2, "inf"), "column 'pressure': 1 cell is infinite .* read as missing; correct the file"),
        (_cell(1, 2, "1e300"), "column 'pressure': 1 cell is infinite"),
        (_cell(1, 2, "n.d."), "column 'pressure' is not read as numbers because of 1 cell, 'n.d.' .*.csv, line [0-9]+.; leave such cells empty"),
        (_only(label=1), "all rows have the label 'well', so there is nothing to learn; is another column the label"),
        (_only(north=1), "site 'north' has no row of the class 'sick'"),
        (_only(site=1), "there is only one site, 'north', .*; provide one file per site"),
        (_only(rows=149), "fewer than 30 test rows in north .29.: .*; collect more rows"),
    ],
)  # fmt: skip
def test_each_warning_says_what_to_do(
    tmp_path: Path, change: Callable[[dict[str, Rows]], None], warning: str
) -> None:
    sites = {"north": clean("north"), "south": clean("south")}
    change(sites)
    header = HEADER if len(sites["north"][0]) == len(HEADER) else ["more", *HEADER]
    folder = write(tmp_path / "sites", sites, header)
    remarks = remarks_on(check_data(DataConfig(name=str(folder))))
    assert any(re.search(warning, remark) for remark in remarks), remarks
