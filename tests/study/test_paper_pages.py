"""The pages of docs/papers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

from equipoise.study.definition import load_study
from tests.helpers.constructed import write_constructed

ROOT = Path(__file__).parents[2]


def _script(name):
    path = ROOT / "experiments" / "papers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"paper_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


pages = _script("pages")


@pytest.fixture
def papers(tmp_path):
    """Copies of three studies without results."""
    folder = tmp_path / "papers"
    for name in ("corefed/fig4", "fedekd/cifar10-beta", "fedequilibria/office"):
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "experiments" / "papers" / f"{name}.yaml", path)
    return folder


def test_the_committed_pages_are_those_that_the_command_makes():
    assert pages.outdated(pages.make()) == [], f"run `{pages.COMMAND}`"


def test_the_runner_of_all_tables_knows_what_is_missing(capsys, monkeypatch):
    runner = _script("run")
    monkeypatch.setattr(sys, "argv", ["run.py", "--list"])
    runner.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(runner.ORDER)
    assert "fedekd/retina (paper): 0 of 150 runs to do" in lines


def test_without_results_pages_show_claims_printed_numbers_costs_and_commands(papers):
    files = pages.make(papers)
    assert set(files) == {"README.md", "corefed.md", "fedekd.md", "fedequilibria.md"}
    page = files["fedequilibria.md"]
    assert "61.23" in page
    assert "216 core-hours: `equipoise study experiments/papers/fedequilibria/office.yaml`" in page
    assert "| not run |" in page
    assert "None of" in files["README.md"]


def test_with_some_results_the_missing_runs_are_counted(papers):
    study = load_study(papers / "fedequilibria" / "office.yaml")
    write_constructed(study, "small", methods=["fedavg", "fedequilibria"])
    files = pages.make(papers)
    page = files["fedequilibria.md"]
    assert "At scale `small`" in page
    assert "6 of 24 runs" in page
    assert "18 of 24 runs at scale `small`" in page
    assert "| 6 of 24 |" in files["README.md"]


def test_with_all_results_claims_are_decided_and_figures_are_drawn(papers, tmp_path):
    for path in papers.rglob("*.yaml"):
        write_constructed(load_study(path))
    files = pages.make(papers)
    assert re.search(r"\d+ (hold|holds|do not hold|does not hold)", files["README.md"])
    assert "Holds:" in files["README.md"] or "Does not hold:" in files["README.md"]
    assert "(95 %)" in files["corefed.md"]
    figures = [name for name in files if name.endswith(".svg")]
    for kind in ("clients-1", "sweep-change", "groups-1", "bars-average", "curves-1"):
        assert any(kind in name for name in figures), kind
    linked = re.findall(r"\]\((figures/[^)]+)\)", "".join(map(str, files.values())))
    assert set(linked) == set(figures)
    drawn = {name: files[name] for name in figures if "sweep" in name}
    pages.write(
        {**{n: c for n, c in files.items() if n.endswith(".md")}, **drawn}, tmp_path / "out"
    )
    assert all((tmp_path / "out" / name).read_text().startswith("<?xml") for name in drawn)


def test_a_decision_before_all_runs_are_done_is_called_preliminary(papers):
    path = papers / "fedekd" / "retina.yaml"
    shutil.copy(ROOT / "experiments" / "papers" / "fedekd" / "retina.yaml", path)
    write_constructed(load_study(path), methods=["feddyn"])
    files = pages.make(papers)
    overview = files["README.md"]
    assert re.search(r"(holds|does not hold) \(preliminary\)", files["fedekd.md"])
    assert "`feddyn.change < 0`" in overview
    assert "preliminary: 30 of 120 runs" in overview


def test_a_verdict_on_a_part_of_the_conditions_says_so(papers):
    path = papers / "fedekd" / "fashion.yaml"
    shutil.copy(ROOT / "experiments" / "papers" / "fedekd" / "fashion.yaml", path)
    write_constructed(load_study(path), "half")
    assert "(at alpha 0.3 only)" in pages.make(papers)["fedekd.md"]


def test_a_changed_result_makes_pages_and_figures_out_of_date(papers, tmp_path):
    study = load_study(papers / "fedekd" / "cifar10-beta.yaml")
    write_constructed(study, "small", methods=["b025"])
    before = pages.make(papers)
    pages.write(before, tmp_path / "out")
    assert pages.outdated(before, tmp_path / "out") == []
    write_constructed(study, "small", methods=["b05"])
    after = pages.make(papers)
    stale = pages.outdated(after, tmp_path / "out")
    assert "fedekd.md" in stale
    assert any(name.endswith(".svg") for name in stale)
    pages.write(after, tmp_path / "out")
    assert pages.outdated(after, tmp_path / "out") == []


def test_a_leak_is_built_by_its_script_only_and_every_output_says_so(papers, tmp_path, capsys):
    leak = _script("leak")
    clean, leaking = (leak.clients_of("digits", 300, 0, leak=wrong) for wrong in (False, True))

    def tested_in_training(dataset):
        rows = {part: set() for part in (0, 1, 2)}
        for x, part in zip(dataset.x.flatten(1).tolist(), dataset.part, strict=True):
            rows[int(part)].add(tuple(x))
        return len(rows[2] & rows[0]) / len(rows[2])

    assert tested_in_training(clean) == 0
    assert tested_in_training(leaking) == 1
    assert "LEAK" in leaking.name
    small = ["--data", "digits", "--model", "mlp", "--samples", "300", "--rounds", "1"]
    content = leak.main([str(tmp_path / "out"), *small])
    assert "LEAK" in capsys.readouterr().out
    assert "LEAK" in content["warning"]
    (papers / "fedakd" / "results").mkdir(parents=True)
    shutil.copy(tmp_path / "out" / "leak.json", papers / "fedakd" / "results" / "leak.json")
    assert "| fedakd LEAK |" in pages.make(papers)["fedakd.md"]
