"""The studies of published tables in experiments/papers."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.study.definition import load_study

FOLDER = Path(__file__).parents[2] / "experiments" / "papers"
FILES = sorted(FOLDER.rglob("*.yaml"))
NAMES = [str(path.relative_to(FOLDER)) for path in FILES]


def test_every_paper_has_studies():
    assert {path.parent.name for path in FILES} == {
        "corefed",
        "fedakd",
        "fedekd",
        "fedequilibria",
        "kdia",
    }


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_published_table_has_its_source_claims_and_scales(path):
    study = load_study(path)
    assert study.file.source is not None
    assert study.file.source.notes
    assert study.claims or study.file.source.table == "Figure 1"  # curves without a claim
    assert all(study.sayings.values())
    scales = list(study.file.scales)
    assert scales in (["paper", "half", "small"], ["paper", "small"])  # controls have no half
    costs = [scale.core_hours for scale in study.file.scales.values()]
    assert costs == sorted(costs, reverse=True)
