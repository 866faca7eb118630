"""What is measured: distances, phases, the shared test set, precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.experiment import ConfigurationError, experiment
from tests.helpers.runs import played, settings, sites


def test_distances_between_client_and_global_models_in_both_spaces(tmp_path: Path) -> None:
    """After one round a client's uploaded model is its Standalone model: the distances can be taken
    from outside.
    """
    together = played(
        settings("fedavg", rounds=1, evaluation={"distances": True}), tmp_path / "together"
    )
    alone = played(settings("standalone", rounds=1), tmp_path / "alone")
    new = together.model("global")
    rows = {
        (r["client"], r["split"], r["metric"]): r["value"]
        for r in together.table(phase="after_local")
    }
    assert len(rows) == 4 * 2 * 2
    for client in together.clients:
        local = alone.model("personal", client=client)
        a, b = (
            np.concatenate([p.detach().numpy().ravel() for p in net.parameters()]).astype(
                np.float64
            )
            for net in (local, new)
        )
        assert rows[client, "parameters", "manhattan"] == pytest.approx(
            np.abs(a - b).sum(), rel=1e-9
        )
        assert rows[client, "parameters", "angle"] == pytest.approx(
            np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), rel=1e-6
        )
        assert (
            rows[client, "embedding", "manhattan"] > 0
            and 0 < rows[client, "embedding", "angle"] < np.pi
        )


def test_one_client_is_at_no_distance_from_itself(tmp_path: Path) -> None:
    run = played(
        settings("fedavg", rounds=1, evaluation={"distances": True}),
        tmp_path / "run",
        sites({"ada": 20}),
    )
    rows = {
        (row["client"], row["split"], row["metric"]): row["value"]
        for row in run.table(phase="after_local")
    }
    wanted = {
        ("ada", space, metric): 0
        for space in ("parameters", "embedding")
        for metric in ("angle", "manhattan")
    }
    assert rows == pytest.approx(wanted, abs=1e-6)


def test_the_model_right_after_local_training_is_measured_on_request(tmp_path: Path) -> None:
    run = played(settings("fedavg", rounds=1, evaluation={"after_local": True}), tmp_path / "run")
    alone = played(settings("standalone", rounds=1), tmp_path / "alone")
    after = {
        row["client"]: row["value"]
        for row in run.table(phase="after_local", split="test", metric="loss")
    }
    assert after == pytest.approx(
        {
            row["client"]: row["value"]
            for row in alone.table(phase="final", split="test", metric="loss")
        }
    )


@pytest.mark.thorough
def test_bfloat16_is_tried_before_it_is_used(tmp_path: Path) -> None:
    """Where the machine can do it, training runs and differs a little from float32.

    Elsewhere it is refused with a sentence.
    """
    try:
        half = played(
            settings("fedavg", training={"lr": 0.05, "batch": 5, "precision": "bfloat16"}),
            tmp_path / "half",
        )
    except ConfigurationError as error:
        assert "bfloat16 does not work on this machine" in str(error)
        return
    full = played(settings("fedavg"), tmp_path / "full")
    a, b = (
        np.concatenate([p.detach().numpy().ravel() for p in run.model("global").parameters()])
        for run in (half, full)
    )
    assert (a != b).any() and np.abs(a - b).max() < 0.05


def test_an_absent_device_is_refused(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(
        ConfigurationError, match="device: expected one that is present, got 'cuda'"
    ):
        played(settings("fedavg", device="cuda"), tmp_path / "run")
    assert experiment({"device": "cpu"}).device == "cpu"
