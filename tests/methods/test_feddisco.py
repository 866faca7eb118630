"""FedDisco: its weights against plain loops, what it reduces to, and its edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import equipoise as eq
from equipoise.composition import compose
from equipoise.data import federate
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.feddisco import FedDisco, discrepancy
from equipoise.methods.fedprox import FedProx
from equipoise.records import State
from tests.helpers.counting import counted
from tests.helpers.digits import (
    NETWORKS,
    client_of,
    experiment,
    flat,
    model_of,
    refused,
    replies,
    samples,
    server,
    updates,
)
from tests.helpers.plain import same


def weights(method: FedDisco, sizes: list[float], discrepancy: list[float]) -> np.ndarray:
    found = method.weights(server(sizes), State(), replies(discrepancy=discrepancy)).shares
    return found / found.sum()


def plain_discrepancy(labels: list[int], classes: int, metric: str) -> float:
    share = [labels.count(c) / len(labels) for c in range(classes)]
    uniform = [1 / classes] * classes
    if metric == "kl":
        return float(scipy.stats.entropy(share, uniform))
    if metric == "cosine":
        return (
            1
            - sum(d * t for d, t in zip(share, uniform, strict=True))
            / (sum(d * d for d in share) * sum(t * t for t in uniform)) ** 0.5
        )
    power = 1 if metric == "l1" else 2
    return sum(abs(d - t) ** power for d, t in zip(share, uniform, strict=True)) ** (1 / power)


def balanced_sites() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients of different sizes, in each of which all ten classes are equally frequent."""
    draw = np.random.default_rng(0)
    sites = {}
    for name, each in (("a", 1), ("b", 3), ("c", 7)):
        y = np.repeat(np.arange(10), each)
        sites[name] = (
            draw.normal(size=(len(y), 1, 8, 8)).astype(np.float32) + y[:, None, None, None] / 5,
            y,
        )
    return sites


@pytest.mark.parametrize("network", NETWORKS)
def test_without_a_and_b_it_is_fedavg(tmp_path: Path, network: str) -> None:
    plain, none, own = (
        model_of(eq.run(experiment(method, network), out=tmp_path / str(k)))
        for k, method in enumerate((FedAvg(), FedDisco(a=0, b=0), FedDisco()))
    )
    assert same(plain, none) and not same(plain, own)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("metric", ["kl", "l1", "l2"])
def test_with_uniform_labels_and_no_b_it_is_fedavg(
    tmp_path: Path, network: str, metric: Any
) -> None:
    settings = {
        "data": {"split": (1.0, 0.0, 0.0), "partition": "natural"},
        "dataset": eq.from_sites(balanced_sites()),
        "rounds": 2,
    }
    plain, own, lifted = (
        model_of(eq.run(experiment(method, network, **settings), out=tmp_path / str(k)))
        for k, method in enumerate(
            (FedAvg(), FedDisco(b=0, metric=metric), FedDisco(b=0.1, metric=metric))
        )
    )
    assert same(plain, own) and not same(plain, lifted)


@pytest.mark.parametrize("classes", [2, 7, 49, 100])
def test_uniform_labels_are_at_exactly_no_distance(classes: int) -> None:
    """1 / 49 * 49 is not 1 in floating point, and a cohort's sum of such errors would turn them
    into whole shares.
    """
    assert all(discrepancy(np.full(classes, each), "kl") == 0 for each in (1.0, 3.0, 7.0))


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("metric", ["kl", "l1", "l2", "cosine"])
def test_weights_and_model_are_those_of_a_plain_loop(
    tmp_path: Path, network: str, metric: Any
) -> None:
    a, b = 0.5, 0.1
    wanted = experiment(FedDisco(metric=metric), network, participation={"number": 4}, rounds=2)
    federation = federate(wanted.data, wanted.seed)
    labels = {
        name: federation.y[np.array(part)].tolist()
        for name, part in zip(federation.ids, federation.train, strict=True)
    }
    with updates(FedDisco) as seen:
        eq.run(wanted, out=tmp_path / "run")
    assert len(seen) == 2 and any(
        0 in np.bincount(labels[c], minlength=10) for c in seen[0].ups.ids
    ), "a class that a client lacks"
    for one in seen:
        ids = one.ups.ids
        total = sum(len(labels[c]) for c in ids)
        d = [plain_discrepancy(labels[c], 10, metric) for c in ids]
        if metric == "kl":
            d = [value / sum(d) for value in d]
        raw = [
            max(0.0, len(labels[c]) / total - a * value + b)
            for c, value in zip(ids, d, strict=True)
        ]
        expected = np.array(raw) / sum(raw)
        np.testing.assert_allclose(
            one.weights.shares / one.weights.shares.sum(), expected, rtol=0, atol=1e-12
        )
        mean = sum(w * flat(up.model) for w, up in zip(expected, one.ups, strict=True))
        np.testing.assert_allclose(flat(one.new.model), mean, rtol=0, atol=1e-6)


def test_clients_of_equal_size_and_labels_count_alike() -> None:
    np.testing.assert_allclose(
        weights(FedDisco(), [30, 30, 30], [0.4, 0.4, 0.4]), 1 / 3, atol=1e-12
    )


@pytest.mark.parametrize("metric", ["kl", "l1"])
def test_more_discrepancy_never_raises_a_weight(metric: Any) -> None:
    draw = np.random.default_rng(1)
    for _ in range(300):
        count = int(draw.integers(2, 8))
        sizes, d = draw.integers(1, 200, count).tolist(), draw.exponential(0.5, count)
        method = FedDisco(
            a=float(draw.exponential(0.5)), b=float(draw.exponential(0.1)), metric=metric
        )
        found = weights(method, sizes, d.tolist())
        assert (found >= 0).all() and abs(found.sum() - 1) <= 1e-12
        if (
            np.array(sizes) / sum(sizes)
            - method.a * (d / d.sum() if metric == "kl" else d)
            + method.b
            <= 0
        ).all():
            continue  # weights by size: d does not enter
        more = d.copy()
        more[0] *= 1 + float(draw.exponential(2))
        if (
            np.array(sizes) / sum(sizes)
            - method.a * (more / more.sum() if metric == "kl" else more)
            + method.b
            <= 0
        ).all():
            continue
        assert weights(method, sizes, more.tolist())[0] <= found[0] + 1e-12


def test_if_nobody_is_near_enough_sizes_decide() -> None:
    np.testing.assert_array_equal(weights(FedDisco(a=100, b=0), [10, 30], [0.5, 0.5]), [0.25, 0.75])


def test_a_client_far_off_counts_nothing_and_others_share() -> None:
    np.testing.assert_allclose(
        weights(FedDisco(a=1, b=0), [10, 10, 20], [3.0, 0.0, 0.0]), [0, 1 / 3, 2 / 3], atol=1e-12
    )


def test_one_client_has_all_weight() -> None:
    assert weights(FedDisco(), [7], [1.3]).tolist() == [1.0]


@pytest.mark.parametrize("metric", ["kl", "l1", "l2", "cosine"])
def test_a_client_without_data_counts_nothing(metric: Any) -> None:
    assert (
        FedDisco(metric=metric)
        .before(client_of(experiment("feddisco"), empty=True), None)
        .discrepancy
        == 0
    )
    assert weights(FedDisco(), [0, 10], [0.0, 0.2]).tolist() == [0.0, 1.0]


def test_the_histogram_stays_with_the_client(tmp_path: Path) -> None:
    with updates(FedDisco) as seen:
        eq.run(experiment("feddisco", rounds=1), out=tmp_path / "run")
    assert set(seen[0].ups[0]) == {"model", "discrepancy"} and isinstance(
        seen[0].ups[0].discrepancy, float
    )


def test_it_costs_what_fedavg_costs(tmp_path: Path) -> None:
    with counted() as passes:
        run = eq.run(experiment("feddisco", training={"epochs": 2}), out=tmp_path / "run")
    assert passes == {("client", "gradient"): 3 * 2 * samples(run)}


def test_regression_and_bad_parameters_are_refused_before_round_1(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    data = eq.from_arrays(x, x.sum(1), kind="regression")
    wanted = experiment("feddisco", data={"partition": "iid", "clients": 2}, dataset=data)
    assert "FedDisco works on classes, but the task is regression" in refused(
        wanted, tmp_path / "run"
    )
    assert "method.a" in refused(
        lambda: experiment({"name": "feddisco", "a": -1}), tmp_path / "run"
    )


def test_as_the_weight_rule_of_another_method(tmp_path: Path) -> None:
    own = eq.run(experiment("feddisco"), out=tmp_path / "own")
    guest = eq.run(experiment(compose(FedProx(mu=0), weights=FedDisco())), out=tmp_path / "guest")
    assert own.weights() == guest.weights() and same(model_of(own), model_of(guest))
    assert abs(sum(row["share"] for row in own.weights() if row["round"] == 1) - 1) <= 1e-12
