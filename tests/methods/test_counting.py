"""The counter of passes counts what a plain loop would."""

from __future__ import annotations

from pathlib import Path

import equipoise as eq
from tests.helpers.counting import counted


def test_fedavg_passes_every_training_sample_once_per_epoch(tmp_path: Path) -> None:
    data = {"name": "digits", "partition": "iid", "clients": 3}
    with counted() as passes:
        run = eq.run(
            eq.Experiment(data=data, method="fedavg", training={"epochs": 2}, rounds=2, workers=0),
            tmp_path / "run",
        )
    samples = sum(run.store.meta("sizes")["train"])
    assert passes == {("client", "gradient"): 2 * 2 * samples}


def test_passes_without_gradient_are_counted_apart(tmp_path: Path) -> None:
    data = {"name": "digits", "partition": "iid", "clients": 3}
    with counted() as passes:
        run = eq.run(
            eq.Experiment(
                data=data, method={"name": "fedakd", "teach_on": "all"}, rounds=1, workers=0
            ),
            tmp_path / "run",
        )
    samples = sum(run.store.meta("sizes")["train"])
    assert passes == {("client", "gradient"): 2 * samples, ("client", "forward"): 2 * samples}
