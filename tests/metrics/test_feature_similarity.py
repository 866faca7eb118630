from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import DataConfig, load
from equipoise.metrics import feature_similarity
from equipoise.models import Generator, build, shape_after
from equipoise.storage.checkpoint import load_server
from equipoise.task import Task


def test_feature_similarity_is_the_mean_cosine_over_all_pairs() -> None:
    draw = np.random.default_rng(0)
    real, made = draw.normal(size=(12, 4, 5, 5)), draw.normal(size=(9, 4, 5, 5)) + 0.5
    y, labels = np.arange(12) % 3, np.arange(9) % 2
    found = feature_similarity(real, y, made, labels, classes=3)
    for c in range(2):
        cosines = []
        for a in real[y == c]:
            for b in made[labels == c]:
                p, q = a.mean((1, 2)), b.mean((1, 2))
                cosines.append(p @ q / np.linalg.norm(p) / np.linalg.norm(q))
        assert found[c] == pytest.approx(np.mean(cosines), rel=1e-12)
    assert np.isnan(found[2])


@pytest.mark.parametrize("name", ["resnet10", "resnet12"])
def test_a_bottleneck_of_400_lies_between_pooling_and_head(name: str) -> None:
    task = Task("classification", (3, 32, 32), 7)
    plain, narrow = (
        build({"name": name, "width": 4}, task),
        build({"name": name, "width": 4, "bottleneck": 400}, task),
    )
    x = torch.randn(2, 3, 32, 32)
    assert (
        plain.features(x).shape == (2, 32)
        and narrow.features(x).shape == (2, 400)
        and narrow.head.in_features == 400
    )
    assert float(narrow.features(x).min()) >= 0
    with pytest.raises(ValueError, match="bottleneck"):
        build({"name": name, "bottleneck": -1}, task)


def test_generated_features_of_a_run_of_kdia(tmp_path: Path) -> None:
    config = {
        "data": {"name": "digits", "clients": 3},
        "model": {"name": "cnn", "width": 4, "hidden": 8},
        "workers": 0,
        "rounds": 1,
    }
    run = eq.run({**config, "method": {"name": "kdia", "gen_steps": 3}}, tmp_path / "run")
    central = run.model("global").eval()
    data = load(DataConfig(name="digits"))
    generator = Generator(
        shape_after(central.features, data.x.shape[1:]), classes=10, noise=100
    ).eval()
    generator.load_state_dict(dict(load_server(run.store).generator))
    labels = torch.arange(40) % 10
    with torch.no_grad():
        real, made = central.features(data.x[:200]), generator(torch.randn(40, 100), labels)
    found = feature_similarity(real, data.y[:200], made, labels, classes=10)
    assert found.shape == (10,) and np.isfinite(found).all() and (np.abs(found) <= 1 + 1e-9).all()
