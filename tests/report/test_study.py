"""The page of a study."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.report.study import pictures_of
from equipoise.study.definition import load_study
from equipoise.study.run import read_table
from tests.helpers.constructed import write_constructed

PAPERS = Path(__file__).parents[2] / "experiments" / "papers"


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "office-t.yaml"
    shutil.copy(PAPERS / "fedequilibria" / "office-t.yaml", path)
    return path


def test_the_page_has_claims_tables_figures_and_differences(study):
    write_constructed(load_study(study), "small")
    result = CliRunner().invoke(app, ["report", str(study), "--png"])
    assert result.exit_code == 0, result.output
    page = study.with_suffix(".html").read_text()
    assert "<title>FedEquilibria on Office-Caltech" in page
    assert "t03.average" in page
    assert page.count("<figure") == 2
    assert "Differences from the paper" in page
    assert "--scale small" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert len(list(study.parent.glob("office-t-*.png"))) == 2


def test_curves_and_spread_are_two_figures(study):
    text = study.read_text()
    start, end = text.index("figures:"), text.index("scales:")
    entries = "figures:\n  - {kind: curves}\n  - {kind: spread, title: Figure 6(b)}\n"
    study.write_text(text[:start] + entries + text[end:])
    write_constructed(load_study(study), "small")
    result = CliRunner().invoke(app, ["report", str(study)])
    assert result.exit_code == 0, result.output
    page = study.with_suffix(".html").read_text()
    assert page.count("<figure") == 2
    assert "Figure 6(b): spread over clients at" in page
    assert "Standard deviation of accuracy" in page
    pictures = pictures_of(read_table(study, "small"))
    heights = [pictures[name].draw().axes[0].lines[0].get_ydata()[:2] for name in pictures]
    means = read_table(study, "small").records[1].means
    assert heights[0] == pytest.approx([100 * mean for mean in means[:2]])
    assert heights[1] == pytest.approx([1.0, 2.0])


def test_without_results_the_page_says_so_and_names_the_command(study):
    result = CliRunner().invoke(app, ["report", str(study), "--out", str(study.parent / "p.html")])
    assert result.exit_code == 0, result.output
    page = (study.parent / "p.html").read_text()
    assert "Nothing has been run" in page
    assert "equipoise study" in page


def test_an_unknown_scale_is_refused_with_those_that_exist(study):
    result = CliRunner().invoke(app, ["report", str(study), "--scale", "tiny"])
    assert result.exit_code != 0
    assert "paper, half, small" in str(result.exception)
