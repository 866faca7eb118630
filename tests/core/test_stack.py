"""Clients that are trained in a stack get the bits that they get alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import methods, mkl
from equipoise.data.pipeline import federate_loaded
from equipoise.records import Down
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.messages import Reply, Request
from equipoise.runtime.states import CarriedStates
from equipoise.session import job_of
from tests.helpers.plain import assert_equal
from tests.helpers.runs import assert_same, config, everything, same_run, settings

pytestmark = pytest.mark.skipif(mkl.mode() == mkl.OFF, reason="products are not reproducible")


def executor_of(
    sizes: list[int], columns: int, hidden: list[int], classes: int, **training: Any
) -> ClientExecutor:
    """Return a client runtime with clients of several sizes."""
    draw = np.random.default_rng(columns)
    sites = {}
    for position, size in enumerate(sizes):
        x = draw.normal(size=(size, columns)).astype(np.float32)
        y = draw.integers(0, classes, size)
        y[: min(size, classes)] = np.arange(classes)[:size]
        sites[f"c{position}"] = (x, y)
    experiment = eq.Experiment(
        **settings(
            "fedavg",
            data={"split": (1.0, 0.0, 0.0), "partition": "natural", "duplicates": "separate"},
            models={"model": {"name": "mlp", "hidden": hidden}},
            training=training,
        ),
        dataset=eq.from_sites(sites, kind="classification"),
    )
    federation = federate_loaded(experiment.data, experiment.seed, experiment.dataset)
    return ClientExecutor(job_of(experiment, "run"), federation, CarriedStates(), experiment)


def requests_of(executor: ClientExecutor) -> list[Request]:
    model = executor.bench.initial("model")
    return [
        Request(client, "client", Down(model=model), 1, 3, exchange=1)
        for client in executor.federation.ids
    ]


def assert_same_replies(alone: list[Reply], together: list[Reply]) -> None:
    for one, other in zip(alone, together, strict=True):
        assert one.error is None and other.error is None
        assert one.up is not None and other.up is not None
        assert_equal(one.up.model, other.up.model)
        assert (one.client, one.steps, one.bytes) == (other.client, other.steps, other.bytes)
        assert other.seconds > 0


@pytest.mark.parametrize(
    "training",
    [
        {"lr": 0.1},
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        {"lr": 0.01, "optimiser": "adam"},
        {"lr": 0.1, "clip": 0.5},
        {"lr": 0.1, "steps": 3},
    ],
)
@pytest.mark.parametrize("batch", [1, 7, 13, 32])
@pytest.mark.parametrize(
    ("columns", "hidden", "classes"),
    [(13, [64], 2), (31, [27, 33], 5), (30, [200, 200], 2), (5, [3, 9], 4)],
)
def test_a_group_has_the_bits_of_its_clients_alone(
    columns: int, hidden: list[int], classes: int, batch: int, training: dict[str, Any]
) -> None:
    sizes = [60, 5, 33, 60, 64, 34]
    executor = executor_of(sizes, columns, hidden, classes, batch=batch, epochs=2, **training)
    alone = [executor.execute_catching(request) for request in requests_of(executor)]
    assert_same_replies(alone, executor.execute_group(requests_of(executor)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_size_of_a_group_does_not_matter(size: int) -> None:
    executor = executor_of([40, 40, 31, 50, 64], 13, [64], 2, batch=16, epochs=2)
    requests = requests_of(executor)
    together = []
    for start in range(0, len(requests), size):
        together += executor.execute_group(requests[start : start + size])
    alone = [executor.execute_catching(request) for request in requests_of(executor)]
    assert_same_replies(alone, together)


def test_a_client_that_fails_does_not_disturb_the_others() -> None:
    executor = executor_of([40, 40, 40], 13, [64], 2, batch=16)
    requests = requests_of(executor)
    expected = [executor.execute_catching(request) for request in requests_of(executor)]
    broken = Down(model=eq.Tree({"w": torch.zeros(1)}, "model"))
    requests[1] = Request(requests[1].client, "client", broken, 1, 3, exchange=1)
    replies = executor.execute_group(requests)
    assert replies[1].error is not None and "does not fit the model" in replies[1].error
    assert_same_replies(expected[::2], replies[::2])


NETWORK = {"name": "mlp", "hidden": [24]}  # large enough for a stack


def run_of(folder: Path, method: str, workers: int, name: str, **more: Any) -> eq.Run:
    options = {"models": {"model": NETWORK}, "training": {"batch": 7}, "rounds": 2, **more}
    return eq.run(config(folder, method, workers=workers, **options), folder / name)


# Those that train alone, with hooks of the gradient, with hooks of layers, and with states.
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedmpr", "ditto"])
def test_workers_that_train_groups_have_the_bits_of_a_run_in_process(
    method: str, tmp_path: Path
) -> None:
    same_run(run_of(tmp_path, method, 0, "alone"), run_of(tmp_path, method, 1, "together"))


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_every_method_has_these_bits(method: str, tmp_path: Path) -> None:
    same_run(run_of(tmp_path, method, 0, "alone"), run_of(tmp_path, method, 2, "together"))


def test_a_worker_that_dies_with_a_group_changes_no_bit(tmp_path: Path) -> None:
    """The client at which it dies is not the first of its group."""
    script = [{"round": 1, "client": "cy", "kind": "kill"}]
    killed = run_of(tmp_path, "fedavg", 1, "killed", faults={"script": script})
    assert_same(everything(run_of(tmp_path, "fedavg", 0, "alone")), everything(killed))
