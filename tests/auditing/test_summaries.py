"""What clients send, and the directions that are found from it, against numpy on the data
themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.auditing import Audit, Findings, summaries
from equipoise.auditing.summaries import (
    BINS,
    MOST_CLASSES,
    WIDEST,
    Projection,
    groups_of,
    history_features,
    labels_of,
    leading,
)
from equipoise.data import federate
from equipoise.data.shift import gaussian_kl
from equipoise.task import Task


def sites(
    features: int = 6, sizes: tuple[int, ...] = (80, 150, 40), classes: int = 3, seed: int = 0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(seed)
    turned = np.linalg.qr(draw.normal(size=(features, features)))[0]
    # variances fall as those of images do
    mixing = 3 / np.arange(1, features + 1)[:, None] * turned
    found = {}
    for k, n in enumerate(sizes):
        y = draw.integers(0, classes, n)
        found[f"site {k}"] = (
            (draw.normal(size=(n, features)) @ mixing + k + y[:, None]).astype(np.float32),
            y,
        )
    return found


def audited(data: dict[str, tuple[np.ndarray, np.ndarray]], **more: object) -> Findings:
    config = {"data": {"split": (1.0, 0.0, 0.0)}, "dataset": eq.from_sites(data), "workers": 0}
    return eq.audit(config, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("features", [6, 200])
def test_every_clients_kl_is_that_of_its_samples_in_the_principal_components(features: int) -> None:
    data = sites(features)
    found = audited(data, dimensions=5)
    x = np.concatenate([one.astype(np.float64) for one, _ in data.values()])
    mean = x.mean(0)
    values, vectors = np.linalg.eigh(np.cov(x.T, ddof=0))
    top = vectors[:, ::-1][:, :5]
    z = (x - mean) @ top
    for row, (own, y) in zip(found.clients, data.values(), strict=True):
        mine = (own - mean) @ top
        exact = gaussian_kl(mine.mean(0), np.cov(mine.T, ddof=0), z.mean(0), np.cov(z.T, ddof=0))
        assert row.kl == pytest.approx(exact, rel=1e-6 if features <= 128 else 1e-3)
        assert row.samples == len(y)
    assert found.dimensions == 5 and found.features == features
    assert found.variance == pytest.approx(
        values[::-1][:5].sum() / values.sum(), rel=1e-6 if features <= 128 else 1e-3
    )
    assert found.counts.tolist() == [np.bincount(y, minlength=3).tolist() for _, y in data.values()]


@pytest.mark.parametrize("most", [3, 2])
def test_moments_are_kept_by_class_up_to_a_number_of_classes_and_kl_is_the_same(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = audited(sites(6), dimensions=5)
    monkeypatch.setattr(summaries, "MOST_CLASSES", most)
    found = audited(sites(6), dimensions=5)
    assert [row.kl for row in found.clients] == pytest.approx(
        [row.kl for row in usual.clients], rel=1e-6
    )


def test_a_random_projection_comes_before_many_features_and_keeps_distances() -> None:
    shape = (3, 24, 24)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, *shape, generator=draw)
    projected = Projection(shape, seed=7)
    z = projected(x)
    assert z.shape == (400, WIDEST) and projected.width == WIDEST
    ratio = (z**2).sum(1) / x.flatten(1).double().numpy().__pow__(2).sum(1)
    assert ratio.mean() == pytest.approx(1, abs=0.02)
    assert (Projection(shape, seed=7)(x) == z).all() and not (
        Projection(shape, seed=8)(x) == z
    ).all()
    assert (
        Projection((30, 30), seed=7)(x.flatten(1)[:, :900].reshape(400, 30, 30))
        == x.flatten(1)[:, :900].double().numpy()
    ).all()


def test_wide_samples_are_audited_through_the_projection() -> None:
    draw = np.random.default_rng(0)
    direction = draw.normal(size=1200)
    data = {}
    for name, shift in (("near", 0.0), ("mid", 0.0), ("far", 4.0)):
        x = draw.normal(size=(300, 1200)) * 0.1 + np.outer(
            draw.normal(size=300) + shift, direction / np.linalg.norm(direction)
        )
        data[name] = (x.astype(np.float32), draw.integers(0, 2, 300))
    found = audited(data, dimensions=2)
    assert found.features == WIDEST
    near, mid, far = (row.kl for row in found.clients)
    assert far is not None and near is not None and mid is not None and far > 1.5 * max(near, mid)
    assert found.verdict.dominant == "features"


def test_no_sum_is_of_fewer_samples_than_least() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        counts = draw.integers(0, 12, size=6)
        groups = groups_of(counts, 5)
        for group in range(7):
            total = counts[groups == group].sum()
            assert total == 0 or total >= 5
        assert counts[groups == -1].sum() < 5


def test_as_many_samples_as_least_are_enough_for_a_group() -> None:
    assert groups_of(np.array([5, 4, 1]), 5).tolist() == [0, 3, 3]
    assert groups_of(np.array([4, 4, 6]), 9).tolist() == [3, 3, 3]
    many = np.zeros(MOST_CLASSES + 1, int)
    many[3] = 5
    assert set(groups_of(many, 5)) == {0} and set(groups_of(many, 6)) == {-1}, (
        "so many classes are one group"
    )
    assert groups_of(many[:-1], 5)[3] == 3


def test_summaries_of_a_client_are_sums_over_its_groups(tmp_path: object) -> None:
    data = sites(4, sizes=(30, 3, 60))
    found = audited(data)
    assert [row.samples for row in found.clients] == [30, 3, 60]
    assert found.clients[1].kl is None and found.clients[1].note == "too few samples"
    assert "1 of 3 clients have too few samples" in " ".join(found.warnings)


def test_targets_of_regression_are_compared_in_ten_bins() -> None:
    task = Task("regression", (2,), 1)
    y = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    bins = labels_of(y, task)
    assert np.bincount(bins, minlength=BINS) / len(y) == pytest.approx(np.full(BINS, 0.1), abs=0.01)
    assert labels_of(torch.tensor([-9.0, 9.0]), task).tolist() == [0, BINS - 1]
    draw = np.random.default_rng(0)
    x = draw.normal(size=(600, 3)).astype(np.float32)
    target = draw.normal(size=600)
    halves = {
        "low": (x[target < 0], target[target < 0]),
        "high": (x[target >= 0], target[target >= 0]),
    }
    found = eq.audit(
        {
            "data": {"split": (1.0, 0.0, 0.0)},
            "dataset": eq.from_sites(halves, kind="regression"),
            "workers": 0,
        }
    )
    assert found.verdict.dominant == "labels" and found.counts.shape == (2, BINS)
    assert [row.label_distance for row in found.clients] == pytest.approx([0.5, 0.5], abs=0.05)


def test_leading_directions_leave_out_what_does_not_vary() -> None:
    cov = np.diag([4.0, 1.0, 0.0])
    assert np.abs(leading(cov @ np.eye(3), np.eye(3), 5)) == pytest.approx(np.eye(3)[:, :2])


def test_features_that_do_not_vary_at_all() -> None:
    data = {
        "a": (np.ones((30, 3), np.float32), np.arange(30) % 2),
        "b": (np.ones((30, 3), np.float32), np.arange(30) % 2),
    }
    config = {
        "data": {"split": (1.0, 0.0, 0.0), "duplicates": "separate"},
        "dataset": eq.from_sites(data),
        "workers": 0,
    }
    found = eq.audit(config)
    assert (
        found.dimensions == 0
        and all(row.kl is None for row in found.clients)
        and found.verdict.dominant == "none"
    )
    assert "no feature varies, so features cannot be compared" in found.warnings


def test_histories_are_seen_as_shares_of_their_codes() -> None:
    x = torch.zeros(2, 5, 4)
    x[0, 0] = torch.tensor([1.0, 7.0, 3.0, 0.0])
    x[0, 1:4] = torch.tensor([[5.0, 0.5, 0.4, 0.0], [5.0, 1.5, 0.5, 0.0], [9.0, 0.0, 0.6, 1.0]])
    x[0, 4] = 99.0  # past the end: ignored
    z = history_features(x)
    assert (
        z[0, 5] == pytest.approx(2 / 3)
        and z[0, 9] == pytest.approx(1 / 3)
        and z[0, :256].sum() == pytest.approx(1)
    )
    assert z[0, 256:].tolist() == pytest.approx([2 / 3, 0.5, 1 / 3, np.log(4), 1.0])
    assert z[1].tolist() == [0.0] * 261


def test_only_training_samples_are_looked_at() -> None:
    config = {"data": {"name": "digits", "partition": "iid", "clients": 4}, "workers": 0, "seed": 3}
    found = eq.audit(config)
    assert found.counts.sum() == len(federate(eq.Experiment(**config).data, 3).train.index)


def test_the_method_is_outside_the_registry() -> None:
    from equipoise import methods

    assert "audit" not in methods.names() and Audit.weighs is False and Audit.uploads_model is False
