"""A synthetic set of any size, and clients up to the number of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data import DataConfig, federate, load
from equipoise.experiment import ConfigurationError, experiment

MADE = {"samples": 3000, "features": 7, "classes": 4, "seed": 5}


def test_it_has_the_size_that_was_asked_for_and_says_that_it_is_synthetic() -> None:
    found = load(DataConfig(synthetic=MADE))
    assert (
        tuple(found.x.shape) == (3000, 7)
        and found.task.outputs == 4
        and set(found.y.tolist()) == {0, 1, 2, 3}
    )
    assert (
        found.name == "synthetic, 3,000 samples, 7 features, 4 classes, seed 5"
        and found.source.startswith("synthetic")
    )


def test_its_seed_makes_it_and_the_experiments_seed_does_not() -> None:
    first, again, other = (load(DataConfig(synthetic={**MADE, "seed": seed})) for seed in (5, 5, 6))
    assert torch.equal(first.x, again.x) and torch.equal(first.y, again.y)
    assert not torch.equal(first.x, other.x) and not torch.equal(first.y, other.y)
    data = DataConfig(synthetic=MADE, clients=3)
    one, two = federate(data, seed=1), federate(data, seed=2)
    assert torch.equal(one.x, two.x) and not np.array_equal(one.train[0], two.train[0])


def test_classes_are_clouds_that_overlap() -> None:
    """By plain numpy: unit spread around each centre, centres about three apart, and the nearest
    centre is neither always right nor seldom.
    """
    found = load(DataConfig(synthetic={"samples": 40_000, "features": 30, "classes": 6}))
    x, y = found.x.numpy().astype(np.float64), found.y.numpy()
    centres = np.stack([x[y == k].mean(0) for k in range(6)])
    assert np.allclose(
        np.concatenate([x[y == k] - centres[k] for k in range(6)]).std(0), 1, atol=0.03
    )
    pairs = [np.linalg.norm(centres[a] - centres[b]) for a in range(6) for b in range(a)]
    assert 2.2 < np.mean(pairs) < 3.8
    nearest = ((x[:, None] - centres) ** 2).sum(2).argmin(1)
    assert 0.6 < (nearest == y).mean() < 0.97


def test_the_blocks_in_which_it_is_made_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load(DataConfig(synthetic=MADE))
    monkeypatch.setattr("equipoise.data.sets.synthetic.AT_ONCE", 7)
    assert torch.equal(whole.x, load(DataConfig(synthetic=MADE)).x)


@pytest.mark.parametrize("given", [{"synthetic": MADE}, {"name": "synthetic", "synthetic": MADE}])
@pytest.mark.thorough
def test_a_run_keeps_what_it_was_made_from_and_shows_that_it_is_synthetic(
    given: dict[str, Any], tmp_path: Path
) -> None:
    run = eq.run(eq.Experiment(data={**given, "clients": 5}, rounds=1, workers=0), tmp_path / "run")
    assert run.config["data"]["synthetic"] == MADE and run.config["data"]["name"] == "synthetic"
    assert experiment(run.config).data == DataConfig(**given, clients=5)
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")]).output
    assert "synthetic, 3,000 samples" in " ".join(shown.split())
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    assert "synthetic, 3,000 samples" in (tmp_path / "run" / "report.html").read_text()


def test_by_name_alone_it_has_its_usual_size() -> None:
    assert len(load(DataConfig(name="synthetic")).x) == 10_000
    assert "synthetic" in CliRunner().invoke(app, ["data", "list"]).output


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"name": "digits", "synthetic": MADE},
            "expected no other data set, got name 'digits'",
        ),
        ({"synthetic": {"samples": 0}}, "samples"),
        ({"synthetic": {"rows": 10}}, "rows"),
    ],
)
def test_what_cannot_be_meant_is_refused(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        eq.Experiment(data=data)


@pytest.mark.parametrize("partition", ["iid", "pow", "dirichlet:0.5", "shards", "natural"])
def test_more_clients_than_samples_are_refused_by_a_sentence(partition: str) -> None:
    wanted = DataConfig(synthetic={"samples": 50}, clients=51, partition=partition)
    with pytest.raises(
        ValueError,
        match=r"data.clients: expected at most 50, .*got 51; ask",
    ):
        federate(wanted, seed=0)
    with pytest.raises(ValueError, match="data.clients: expected at most 20, .* got 21"):
        federate(DataConfig(synthetic={"samples": 50}, samples=20, clients=21), seed=0)


def test_as_many_clients_as_samples_get_one_each() -> None:
    assert (
        federate(DataConfig(synthetic={"samples": 50}, clients=50), seed=0).train.sizes.tolist()
        == [1] * 50
    )
