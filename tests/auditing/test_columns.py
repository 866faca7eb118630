"""The columns that differ most between clients, against scipy's analysis of variance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import equipoise as eq
from equipoise.auditing import Findings
from equipoise.auditing.columns import differing_columns
from equipoise.auditing.pictures import shown


def state(groups: list[np.ndarray]) -> dict[str, object]:
    return {
        "clients": [f"c{k}" for k in range(len(groups))],
        "sizes": np.array([len(group) for group in groups]),
        "totals": np.array([group.sum(0) for group in groups]),
        "squares": np.array([(group**2).sum(0) for group in groups]),
    }


def test_shares_are_those_of_an_analysis_of_variance() -> None:
    draw = np.random.default_rng(0)
    groups = [draw.normal([0.0, 5.0 + k, 1.0], [1.0, 1.0, 2.0], (60 + 10 * k, 3)) for k in range(4)]
    (found,) = differing_columns(state(groups), [(name, name) for name in "abc"])
    f = stats.f_oneway(*(group[:, 1] for group in groups)).statistic
    between, within = 3, sum(map(len, groups)) - 4
    epsilon = between * (f - 1) / (between * f + within)
    assert (found.name, found.client) == ("b", "c0")
    assert found.share == pytest.approx(epsilon)
    every = np.concatenate(groups)[:, 1]
    assert found.shift == pytest.approx((groups[0][:, 1].mean() - every.mean()) / every.std())


def test_nothing_is_named_where_clients_are_alike() -> None:
    draw = np.random.default_rng(1)
    groups = [draw.normal(size=(50, 20)) for _ in range(6)]
    assert differing_columns(state(groups), [(f"x{j}", f"x{j}") for j in range(20)]) == ()
    assert differing_columns(state(groups[:1]), [(f"x{j}", f"x{j}") for j in range(20)]) == ()


def test_constant_columns_and_clients_without_samples_do_no_harm() -> None:
    draw = np.random.default_rng(2)
    groups = [np.c_[np.full(40, 7.0), draw.normal(3.0 * k, 1, 40)] for k in range(2)]
    found = differing_columns(state([*groups, np.zeros((0, 2))]), [("one", "one"), ("x", "x")])
    assert [column.name for column in found] == ["x"]


def test_an_audit_of_a_table_names_columns_in_text_file_and_page(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    for place, site in enumerate(("north", "south", "west")):
        rows = [
            f"{draw.normal(50, 9):.1f},{draw.normal(200 + 80 * place, 30):.0f},"
            f"{'ab'[int(draw.random() < 0.2 + 0.3 * place)]},{draw.integers(0, 2)}\n"
            for _ in range(120)
        ]
        (tmp_path / f"{site}.csv").write_text("age,chol,ward,label\n" + "".join(rows))
    found = eq.audit({"data": {"name": str(tmp_path), "label": "label"}, "workers": 0})
    assert [column.name.partition("=")[0] for column in found.columns] == ["chol", "ward"]
    assert "chol" in found.text and "% of its variance" in found.text
    assert any("chol" in picture.text for picture in shown(found).values())
    found.save(tmp_path / "audit.json")
    assert Findings.read(tmp_path / "audit.json").columns == found.columns


def test_audits_of_earlier_versions_are_read(tmp_path: Path) -> None:
    config = {"data": {"name": "digits", "partition": "iid", "clients": 3}, "workers": 0}
    found = eq.audit(config)
    assert found.columns == () and "Columns" not in found.text  # pixels have no names
    file = tmp_path / "audit.json"
    found.save(file)
    file.write_text(file.read_text().replace(',\n "columns": []', ""))
    assert '"columns"' not in file.read_text()
    assert Findings.read(file).plain() == found.plain()
