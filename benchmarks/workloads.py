"""The workloads: which samples each client holds, who takes part in a round, how a client trains.

NumPy only, so that every contender, in whatever environment, works on the same index lists.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOST_DRAWS = 1000


@dataclass(frozen=True)
class Workload:
    """One benchmark problem; plain SGD without momentum, the last short batch is kept, replies are
    weighted by samples.
    """

    name: str
    title: str
    network: str
    clients: int
    cohort: int
    samples: int
    batch: int
    epochs: int
    rate: float
    rounds: int
    concentration: float | None = None
    method: str = "fedavg"
    evaluate_each_round: bool = False
    columns: int = 0  # of a synthetic table with two classes; 0: Fashion-MNIST
    power_law: bool = False  # the sizes of clients fall as 1, 1/2, 1/3, ...


TABLE_CLASSES = 2
TABLE_TEST_ROWS = 2_000

WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "W1",
            "cnn-10",
            "cnn",
            10,
            10,
            35_000,
            32,
            1,
            0.01,
            rounds=4,
            concentration=0.5,
            evaluate_each_round=True,
        ),
        Workload("W2", "mlp-100", "mlp", 100, 20, 60_000, 50, 1, 0.1, rounds=20),
        Workload("W3", "many-1000", "lenet", 1_000, 50, 60_000, 16, 2, 0.1, rounds=10),
        Workload(
            "W4", "scale", "lenet", 10_000, 100, 60_000, 16, 2, 0.1, rounds=20, method="fedakd"
        ),
        Workload("W5", "table-25", "mlp_30", 25, 25, 12_500, 32, 1, 0.1, rounds=20, columns=30),
        Workload(
            "W5p",
            "table-25-power",
            "mlp_30",
            25,
            25,
            12_500,
            32,
            1,
            0.1,
            rounds=20,
            columns=30,
            power_law=True,
        ),
        Workload(
            "W6", "tiny-1000", "mlp_13", 1_000, 100, 60_000, 32, 1, 0.1, rounds=20, columns=13
        ),
        Workload(
            "W6e", "tiny-1000-5", "mlp_13", 1_000, 100, 60_000, 32, 5, 0.1, rounds=20, columns=13
        ),
    )
}


@dataclass(frozen=True)
class Samples:
    """The samples of a workload as float32, and int64 labels.

    Fashion-MNIST has images (N, 1, 28, 28) in [0, 1], a table has rows (N, columns).
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(workload: Workload) -> Samples:
    """The samples of a workload."""
    return _table(workload) if workload.columns else _fashion_mnist()


def _table(workload: Workload) -> Samples:
    """A synthetic table whose classes a linear rule separates but for noise."""
    generator = np.random.default_rng([workload.columns, 3])
    rows = workload.samples + TABLE_TEST_ROWS
    x = generator.normal(size=(rows, workload.columns)).astype(np.float32)
    scores = x @ generator.normal(size=workload.columns) + generator.normal(size=rows)
    y = (scores > 0).astype(np.int64)
    return Samples(
        x[:-TABLE_TEST_ROWS], y[:-TABLE_TEST_ROWS], x[-TABLE_TEST_ROWS:], y[-TABLE_TEST_ROWS:]
    )


def _fashion_mnist() -> Samples:
    """Reads fashion_mnist.npz from the folder that EQUIPOISE_DATA names."""
    folder = os.environ.get("EQUIPOISE_DATA")
    if not folder:
        raise SystemExit(
            "EQUIPOISE_DATA is not set: expected the folder that holds fashion_mnist.npz."
        )
    path = Path(folder) / "fashion_mnist.npz"
    if not path.is_file():
        raise SystemExit(
            f"Expected {path}, found no such file: set EQUIPOISE_DATA to the folder that holds it."
        )
    with np.load(path, allow_pickle=False) as file:
        images = {
            name: (file[name].astype(np.float32) / 255).reshape(-1, 1, 28, 28)
            for name in ("x_train", "x_test")
        }
        return Samples(
            images["x_train"],
            file["y_train"].astype(np.int64),
            images["x_test"],
            file["y_test"].astype(np.int64),
        )


def partition(workload: Workload, labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """The sample indices of every client: equal shares, sizes by a power law, or by label from
    Dirichlet(concentration).

    >>> parts = partition(WORKLOADS["W3"], np.zeros(60_000, dtype=np.int64), seed=0)
    >>> len(parts), {len(part) for part in parts}, len(np.unique(np.concatenate(parts)))
    (1000, {60}, 60000)
    """
    generator = np.random.default_rng([seed, 1])
    chosen = generator.permutation(len(labels))[: workload.samples]
    if workload.power_law:
        shares = 1 / np.arange(1, workload.clients + 1)
        cuts = (np.cumsum(shares / shares.sum())[:-1] * len(chosen)).round().astype(int)
        return np.split(chosen, cuts)
    if workload.concentration is None:
        return list(np.array_split(chosen, workload.clients))
    for _ in range(MOST_DRAWS):
        positions: list[list[np.ndarray]] = [[] for _ in range(workload.clients)]
        for label in np.unique(labels):
            of_label = chosen[labels[chosen] == label]
            shares = generator.dirichlet(np.full(workload.clients, workload.concentration))
            cuts = (np.cumsum(shares)[:-1] * len(of_label)).round().astype(int)
            for parts, part in zip(positions, np.split(of_label, cuts), strict=True):
                parts.append(part)
        clients = [generator.permutation(np.concatenate(parts)) for parts in positions]
        if min(map(len, clients)) >= workload.batch:
            return clients
    raise ValueError(
        f"No draw of {MOST_DRAWS} gave every client {workload.batch} samples: raise the "
        "concentration."
    )


def cohorts(workload: Workload, rounds: int, seed: int) -> list[list[int]]:
    """The clients of every round, drawn without replacement.

    >>> [len(set(cohort)) for cohort in cohorts(WORKLOADS["W2"], 2, seed=0)]
    [20, 20]
    """
    generator = np.random.default_rng([seed, 2])
    return [
        sorted(generator.choice(workload.clients, workload.cohort, replace=False).tolist())
        for _ in range(rounds)
    ]
