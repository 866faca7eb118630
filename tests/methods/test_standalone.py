"""Standalone: the reference that every gain is measured against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.plain import assert_equal
from tests.helpers.problems import RATE, client_states, scalar, server_state, trained
from tests.helpers.runs import sites


def test_a_client_does_not_depend_on_the_data_of_others(tmp_path: Path) -> None:
    data = sites()
    changed = {name: (x if name == "bo" else -x, y) for name, (x, y) in data.items()}
    first, second = (
        client_states(trained("standalone", tmp_path / name, "cnn", one))
        for name, one in (("a", data), ("b", changed))
    )
    assert_equal(first["bo"]["local"], second["bo"]["local"])
    assert not torch.equal(
        first["ada"]["local"]["head.weight"], second["ada"]["local"]["head.weight"]
    )


def test_it_is_fedavg_with_one_client(tmp_path: Path) -> None:
    alone, together = (
        trained(name, tmp_path / name, "cnn", sites({"ada": 20}))
        for name in ("standalone", "fedavg")
    )
    assert_equal(client_states(alone)["ada"]["local"], server_state(together).model)


def test_nothing_travels(tmp_path: Path) -> None:
    run = trained("standalone", tmp_path / "run", "mlp")
    assert [(row["bytes_up"], row["bytes_down"]) for row in run.rounds()] == [(0, 0)] * 3
    assert run.models() == ["personal"]
    assert run.weights() == []


def test_each_client_reaches_its_own_optimum_from_the_common_start(tmp_path: Path) -> None:
    h, a = (1.0, 3.0), (-2.0, 2.0)
    run = scalar("standalone", tmp_path / "run", h, a, start=0.5, rounds=3)
    left = (1 - RATE * np.array(h)) ** 30
    found = [float(state["local"]["features.weight"]) for state in client_states(run).values()]
    assert found == pytest.approx(list(np.array(a) + left * (0.5 - np.array(a))), abs=1e-5)


def test_the_optimiser_is_new_in_every_round_unless_it_is_kept(tmp_path: Path) -> None:
    """Three rounds of ten steps are thirty steps in a row only if momentum survives."""

    def end(name: str, steps: int, rounds: int, keep: bool) -> float:
        training = {"momentum": 0.9, "steps": steps, "keep_optimiser": keep}
        run = scalar(
            "standalone", tmp_path / name, (1.0,), (2.0,), rounds=rounds, training=training
        )
        return float(client_states(run)["site0"]["local"]["features.weight"])

    at_once = end("at once", 30, 1, False)
    assert end("kept", 10, 3, True) == at_once
    assert end("new", 10, 3, False) != pytest.approx(at_once, abs=1e-3)
