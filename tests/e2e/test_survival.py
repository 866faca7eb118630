"""Survival analysis from tables to predictions: every method, both kinds of models, report and
export.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import methods
from equipoise.experiment import ConfigurationError
from equipoise.metrics import life_tables
from equipoise.report import report
from equipoise.runs import Run
from tests.helpers.browser import Browser
from tests.helpers.runs import OF_EACH_KIND, QUICK
from tests.helpers.terminal import Terminal

PATIENTS = 160


def hospital(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return patients whose hazard rises with the first input; about half are censored."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(PATIENTS, 3)).astype(np.float32)
    death = rng.exponential(np.exp(-2 * x[:, 0]))
    censoring = rng.exponential(1.0, PATIENTS)
    return x, np.stack([np.minimum(death, censoring), death <= censoring], axis=1)


SITES = {f"site{seed}": hospital(seed) for seed in range(3)}


def settings(method: Any, **changes: Any) -> dict[str, Any]:
    return {
        "data": {"split": (0.6, 0.1, 0.3), "partition": "natural", **changes.pop("data", {})},
        "model": {"name": "mlp", "hidden": [4]},
        "method": method,
        "training": {"lr": 0.05, "batch": 32},
        "rounds": 1,
        "seed": 3,
        "workers": 0,
        **changes,
    }


def trained(folder: Path, method: Any = "fedavg", **changes: Any) -> Run:
    dataset = eq.from_sites(dict(SITES), kind="survival", name="hospitals")
    return eq.run(eq.Experiment(**settings(method, **changes), dataset=dataset), folder)


@pytest.mark.parametrize("name", [n for n in methods.names() if n not in ("fedrdn",)])
@pytest.mark.quick_cases(*OF_EACH_KIND)
def test_every_method_runs_or_says_that_it_needs_labels(name: str, tmp_path: Path) -> None:
    method = {"name": name, **QUICK.get(name, {})}
    needs = methods.make(name, QUICK.get(name, {})).needs
    if "classes" in needs or "labels" in needs:
        with pytest.raises((ConfigurationError, ValueError), match="survival|classes|classified"):
            trained(tmp_path / "run", method)
        return
    run = trained(tmp_path / "run", method)
    assert all(np.isfinite(value) for value in run.final("loss").values())
    assert set(run.final("c_index")) == set(SITES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of a Cox model and of a model with hazards, trained on files."""
    scratch = tmp_path_factory.mktemp("survival")
    (scratch / "sites").mkdir()
    for site, (x, y) in SITES.items():
        with (scratch / "sites" / f"{site}.csv").open("w", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(["a", "b", "c", "time", "event"])
            for row, (time, event) in zip(x.tolist(), y.tolist(), strict=True):
                writer.writerow([*row, time, int(event)])
    every = {"metrics": ["c_index", "loss", "c_index_ipcw", "integrated_brier"]}
    for name, data in (("cox", {}), ("hazards", {"intervals": 10})):
        config = settings(
            "fedavg",
            data={"name": str(scratch / "sites"), "task": "survival", **data},
            training={"optimiser": "adam", "lr": 0.02, "batch": 32},
            rounds=6,
            evaluation=every,
        )
        eq.run(eq.Experiment(**config), scratch / name)
    return {name: scratch / name for name in ("cox", "hazards", "sites")}


@pytest.mark.parametrize("kind", ["cox", "hazards"])
def test_both_models_learn_who_dies_first(folders: dict[str, Path], kind: str) -> None:
    run = Run(folders[kind])
    assert run.main_metric == "c_index"
    for metric in ("c_index", "c_index_ipcw"):
        assert min(run.final(metric).values()) > 0.7
    # A model that knows nothing predicts 0.5 for everyone, which scores 0.25.
    assert max(run.final("integrated_brier").values()) < 0.25


def test_the_cox_loss_must_fit_the_outputs(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cox needs log risks, but the task is survival"):
        trained(tmp_path / "run", data={"intervals": 5}, training={"loss": "cox"})


@pytest.mark.thorough
def test_every_panel_of_the_survival_figure_is_visible(
    folders: dict[str, Path], browser: Browser, tmp_path: Path
) -> None:
    browser.open(report([folders["cox"]], tmp_path / "r.html")[0])
    lowest, end = browser.run(
        """(() => {
            const chart = document.querySelector("#figure-survival .chart");
            const texts = [...chart.querySelectorAll("text")];
            const shown = texts.filter(text => !text.closest(".static-legend"));
            const ends = shown.map(text => text.getBoundingClientRect().bottom);
            return [Math.max(...ends), chart.getBoundingClientRect().bottom];
        })()"""
    )
    assert lowest <= end


def test_clients_send_life_tables_and_the_report_draws_them(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    tables = Run(folders["cox"]).life_tables()
    assert set(tables) == set(SITES)
    assert [life_tables.total(table) for table in tables.values()] == [48] * 3
    assert Run(folders["cox"]).counts() == {}
    page, figure = report([folders["cox"]], tmp_path / "r.html", kinds=["png"], names=["survival"])
    text = page.read_text()
    assert "Survival by risk group" in text and "above the median of their site" in text
    assert figure.stat().st_size > 1000


def test_a_site_with_few_patients_sends_no_life_table(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data={"split": (0.8, 0.1, 0.1)})
    assert run.life_tables() == {}


def test_predict_writes_risks_that_order_patients(
    folders: dict[str, Path], tmp_path: Path, equipoise: Terminal
) -> None:
    rows = tmp_path / "new.csv"
    rows.write_text("a,b,c\n-2,0,0\n0,0,0\n2,0,0\n")
    for kind, title in (("cox", "log risk"), ("hazards", "risk")):
        out = tmp_path / f"{kind}.csv"
        answer = equipoise("predict", folders[kind], rows, "--client", "site0", "--out", out)
        assert answer.code == 0, answer.err
        predicted = list(csv.DictReader(out.open()))
        risks = [float(row[title]) for row in predicted]
        assert risks == sorted(risks)
    survival = [float(row[name]) for row in predicted[-1:] for name in row if "survival(" in name]
    assert len(survival) == 10 and survival == sorted(survival, reverse=True)


def test_export_says_what_the_outputs_are(
    folders: dict[str, Path], tmp_path: Path, equipoise: Terminal
) -> None:
    for kind, words in (("cox", "log risk of a Cox model"), ("hazards", "hazard in 10 intervals")):
        file = tmp_path / f"{kind}.safetensors"
        answer = equipoise("export", folders[kind], "--out", file)
        assert answer.code == 0, answer.err
        assert words in file.with_suffix(".md").read_text()


def test_a_site_without_events_takes_part(tmp_path: Path) -> None:
    x, y = SITES["site0"]
    censored = np.stack([y[:, 0], np.zeros(len(y))], axis=1)
    dataset = eq.from_sites({**SITES, "site0": (x, censored)}, kind="survival")
    run = eq.run(eq.Experiment(**settings("fedavg"), dataset=dataset), tmp_path / "run")
    assert set(run.final("c_index")) == {"site1", "site2"}
    assert torch.isfinite(run.model().head.weight).all()
