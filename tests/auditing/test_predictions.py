"""Correct and wrong samples of a run, compared between clients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.decomposition import PCA
from sklearn.neighbors import KernelDensity
from typer.testing import CliRunner

import equipoise as eq
from equipoise.auditing import PredictionFindings, audit_predictions
from equipoise.auditing.predictions import compare_densities
from equipoise.cli import app
from equipoise.data import DataConfig, federate
from equipoise.runs import Run
from equipoise.storage.store import RunError

DATA = {"name": "digits", "clients": 3, "samples": 600, "partition": "dirichlet:0.5"}
BASE = {
    "data": {**DATA, "split": [0.5, 0.0, 0.5]},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.1, "batch": 16},
    "rounds": 2,
    "seed": 3,
    "workers": 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return eq.run(BASE, tmp_path_factory.mktemp("predictions") / "run", quiet=True)


def reference(features: dict, correct: dict, right: bool) -> dict:
    """Divergences by scikit-learn's components and kernel densities, and adaptive integration."""
    pca = PCA(1, svd_solver="full").fit(np.concatenate(list(features.values())))
    values = {
        client: pca.transform(own[correct[client] == right])[:, 0]
        for client, own in features.items()
    }
    whole = np.concatenate(list(values.values()))

    def density(numbers: np.ndarray) -> KernelDensity:
        bandwidth = len(numbers) ** -0.2 * numbers.std(ddof=1)
        return KernelDensity(bandwidth=bandwidth).fit(numbers[:, None])

    q = density(whole)
    low, high = whole.min() - 8 * whole.std(), whole.max() + 8 * whole.std()
    found = {}
    for client, numbers in values.items():
        p = density(numbers)

        def integrand(x: float, p: KernelDensity = p) -> float:
            own = p.score_samples([[x]])[0]
            return float(np.exp(own) * (own - q.score_samples([[x]])[0]))

        found[client] = quad(integrand, low, high, limit=200, epsabs=1e-4)[0]
    return found


@pytest.mark.thorough
def test_divergences_are_those_of_an_independent_computation(run: Run) -> None:
    found = audit_predictions(run)
    federation = federate(DataConfig(**BASE["data"]), BASE["seed"])
    net = run.model("global").eval()
    features, correct = {}, {}
    for client, rows in zip(federation.ids, federation.test, strict=True):
        with torch.no_grad():
            own = net.features(federation.x[rows])
            features[client] = own.double().numpy()
            correct[client] = (net(federation.x[rows]).argmax(1) == federation.y[rows]).numpy()
    for name in ("right", "wrong"):
        expected = reference(features, correct, name == "right")
        for row in found.clients:
            assert getattr(row, f"kl_{name}") == pytest.approx(expected[row.client], abs=2e-3)
    assert [(row.right, row.right + row.wrong) for row in found.clients] == [
        (int(own.sum()), len(own)) for own in correct.values()
    ]


def test_clients_that_differ_in_wrong_samples_only_are_told_from_those_that_do_not() -> None:
    rng = np.random.default_rng(0)
    features, correct = {}, {}
    for number, client in enumerate("abc"):
        right = rng.normal(0, 1, (200, 3))
        wrong = rng.normal(4 * number, 1, (200, 3))
        features[client] = np.concatenate([right, wrong])
        correct[client] = np.arange(400) < 200
    found = compare_densities("x", "global", features, correct)
    for row in found.clients:
        assert row.kl_right is not None and row.kl_right < 0.05
        assert row.kl_wrong is not None and row.kl_wrong > 0.3
    assert "3 of 3" in found.text


def test_a_client_with_few_wrong_samples_has_no_divergence() -> None:
    rng = np.random.default_rng(1)
    features = {client: rng.normal(size=(20, 2)) for client in "ab"}
    correct = {"a": np.arange(20) < 17, "b": np.arange(20) < 10}
    rows = compare_densities("x", "global", features, correct).clients
    assert rows[0].kl_wrong is None and rows[0].kl_right is not None
    assert rows[1].kl_wrong is not None


@pytest.mark.thorough
def test_the_command_prints_numbers_and_the_report_shows_the_picture(
    run: Run, tmp_path: Path
) -> None:
    folder = str(run.folder)
    shown = CliRunner().invoke(app, ["audit", folder, "--out", str(tmp_path / "audit")])
    assert shown.exit_code == 0, shown.output
    assert "KL wrong" in shown.output
    assert (tmp_path / "audit" / "predictions.png").stat().st_size > 1000
    saved = PredictionFindings.read(run.folder / "predictions.json")
    assert saved.clients == audit_predictions(run).clients
    page = tmp_path / "page.html"
    CliRunner().invoke(app, ["report", folder, "--out", str(page)])
    assert "figure-audit-predictions" in page.read_text()
    as_json = CliRunner().invoke(app, ["audit", folder, "--json"])
    assert json.loads(as_json.stdout)["predictions"]["model"] == "global"


def test_numbers_and_shared_test_sets_are_refused_with_a_reason(tmp_path: Path) -> None:
    shared = {**BASE, "data": {**BASE["data"], "test": "global"}, "rounds": 1}
    run = eq.run(shared, tmp_path / "shared", quiet=True)
    with pytest.raises(RunError, match="no test data of their own"):
        audit_predictions(run)
    data = {**BASE["data"], "task": "regression", "partition": "iid"}
    number = {**BASE, "data": data, "rounds": 1}
    with pytest.raises(RunError, match="predicts a number"):
        audit_predictions(eq.run(number, tmp_path / "number", quiet=True))
