"""Audits of clients that prepare their data alone: columns, classes and codes of the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.auditing.running import auditing_of

SCHEMA: dict[str, Any] = {
    "label": "sick",
    "classes": ["no", "yes"],
    "columns": [
        {"name": "age", "kind": "number", "gaps": False, "centre": 50.0, "scale": 10.0},
        {"name": "chol", "kind": "number", "gaps": True, "centre": 200.0, "scale": 40.0},
        {"name": "ward", "kind": "category", "categories": ["a", "b"], "gaps": False},
    ],
}


def without_scales() -> dict[str, Any]:
    columns = []
    for column in SCHEMA["columns"]:
        columns.append({key: column[key] for key in column if key not in ("centre", "scale")})
    return {**SCHEMA, "columns": columns}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for index, site in enumerate(("north", "south", "west")):
        lines = ["age,chol,ward,sick"]
        for row in range(80):
            chol = "" if row % 19 == 0 else f"{random.normal(200 + 60 * index, 30):.0f}"
            ward = "ab"[row % 2]
            sick = "yes" if random.random() < 0.5 else "no"
            lines.append(f"{random.normal(50, 9):.1f},{chol},{ward},{sick}")
        (tmp_path / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_columns_and_classes_of_an_audit_apart_are_those_of_the_schema(folder: Path) -> None:
    data = {"name": str(folder), "schema": SCHEMA, "apart": True}
    findings = eq.audit({"data": data, "workers": 0})
    assert [column.name for column in findings.columns] == ["chol"]
    assert findings.classes == ("no", "yes")
    assert findings.features == 6  # age, chol, its gaps, three of ward
    assert [row.client for row in findings.clients] == ["north", "south", "west"]


def test_the_audit_is_prepared_without_any_row() -> None:
    experiment = eq.Experiment(data={"name": "elsewhere", "schema": SCHEMA, "apart": True})
    auditing = auditing_of(experiment, None, 3)
    assert auditing.data.normalise == "agreed"
    assert auditing.build_method().samples == "plain"


def test_codes_of_the_schema_make_an_audit_of_histories() -> None:
    codes = [{"name": "LOINC:1", "centre": 1.0, "scale": 2.0}]
    schema = {"classes": ["no", "yes"], "codes": codes, "events": 20}
    experiment = eq.Experiment(data={"name": "elsewhere", "schema": schema, "apart": True})
    assert auditing_of(experiment, None).build_method().samples == "histories"


def test_an_audit_apart_without_a_common_scale_is_refused(folder: Path) -> None:
    data = {"name": str(folder), "schema": without_scales(), "apart": True}
    with pytest.raises(ValueError, match="'age', 'chol'"):
        eq.audit({"data": data, "workers": 0})
    findings = eq.audit({"data": {**data, "normalise": "client"}, "workers": 0})
    assert any("agreed" in warning for warning in findings.warnings)
