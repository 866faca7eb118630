from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import equipoise as eq
from equipoise import methods
from equipoise.auditing.divergence import imbalance
from equipoise.auditing.verdict import MADE_FOR, Measured, judge


def measured(
    k: int = 10,
    labels: float = 0.0,
    beyond: float = 0.0,
    features: float = 0.0,
    sizes: np.ndarray | None = None,
) -> Measured:
    sizes = np.full(k, 100) if sizes is None else sizes
    return Measured(
        sizes, np.full(k, labels), np.full(k, features), np.full(k, beyond), imbalance(sizes)
    )


@pytest.mark.parametrize(
    ("found", "dominant", "kinds"),
    [
        (measured(), "none", ()),
        (measured(sizes=(1000 / np.arange(1, 11)).astype(int)), "size", ("size",)),
        (measured(labels=0.3, features=1.0, beyond=0.01), "labels", ("labels",)),
        (measured(labels=0.3, features=2.0, beyond=1.2), "features", ("features", "labels")),
        (measured(labels=0.6, features=2.0, beyond=0.3), "labels", ("labels", "features")),
        (
            measured(features=2.0, beyond=2.0, sizes=(1000 / np.arange(1, 11)).astype(int)),
            "features",
            ("features", "size"),
        ),
        (measured(labels=-0.02, features=-0.1, beyond=-0.1), "none", ()),
    ],
)
def test_which_kind_dominates(found: Measured, dominant: str, kinds: tuple[str, ...]) -> None:
    verdict = judge(found)
    assert (verdict.dominant, verdict.kinds) == (dominant, kinds)
    assert verdict.methods == MADE_FOR[dominant]
    assert all(name in verdict.text for name in verdict.methods)


def test_methods_named_in_a_verdict_exist() -> None:
    assert {name for made in MADE_FOR.values() for name in made} <= set(methods.names())


def test_a_verdict_that_hangs_on_one_client_is_not_clear() -> None:
    odd = measured(labels=0.0)
    labels = odd.labels.copy()
    labels[0] = 0.9  # a mean of 0.09, just above what counts
    verdict = judge(Measured(odd.sizes, labels, odd.features, odd.beyond, 0.0))
    assert verdict.dominant == "labels" and verdict.agreement < 0.8 and verdict.sure == "unsure"
    assert (
        verdict.agreement * 400 == pytest.approx(round(verdict.agreement * 400), abs=1e-9)
        and "of 400 resamples of the clients" in verdict.text
    )
    assert judge(measured(labels=0.5)).sure == "clear"


def test_features_of_thin_clients_are_never_sure() -> None:
    found = replace(measured(features=2.0, beyond=2.0), dimensions=10)
    assert judge(found).sure == "clear"  # 100 samples each
    thin = replace(found, dimensions=11)
    assert (
        judge(thin).dominant == "features"
        and judge(thin).sure == "unsure"
        and "heavy tails" in judge(thin).text
    )
    assert (
        judge(
            replace(
                thin, features=0 * thin.features, beyond=0 * thin.beyond, labels=thin.labels + 0.5
            )
        ).sure
        == "clear"
    )  # labels need no dimensions


def test_clients_that_cannot_be_told_are_left_out_and_lower_the_certainty() -> None:
    found = measured(labels=0.5)
    unknown = np.where(np.arange(10) < 6, np.nan, 0.0)
    verdict = judge(Measured(found.sizes, found.labels, unknown, unknown, 0.0))
    assert verdict.dominant == "labels" and verdict.sure == "unsure"
    assert "6 of 10 clients have too few samples" in verdict.text


@pytest.mark.parametrize(
    ("rows", "value"), [(1, None), (20, 1.0)], ids=["one sample each", "no feature varies"]
)
def test_features_of_which_nothing_is_known_are_not_called_alike(
    rows: int, value: float | None
) -> None:
    draw = np.random.default_rng(0)
    x = [
        draw.normal(size=(rows, 3)) if value is None else np.full((rows, 3), value)
        for _ in range(4)
    ]
    data = eq.from_sites({f"s{k}": (one, np.arange(rows) % 2) for k, one in enumerate(x)})
    found = eq.audit(
        {
            "dataset": data,
            "data": {"split": [1.0, 0.0, 0.0], "duplicates": "separate"},
            "workers": 0,
        }
    )
    assert "differ little in size and labels; their features cannot be compared" in found.text
    assert "explain unknown." in found.text and found.verdict.sure == "unsure"
    assert (
        ("too few samples" in found.text)
        == (value is None)
        == any("too few samples" in one for one in found.warnings)
    )


def test_one_client_is_nothing_to_compare() -> None:
    found = eq.audit({"data": {"name": "digits", "partition": "iid", "clients": 1}, "workers": 0})
    assert (
        found.verdict.dominant == "none"
        and found.text == "There is one client, so there is nothing to compare."
    )


@pytest.mark.parametrize(
    ("partition", "dominant"),
    [
        ("iid", "none"),
        ("pow", "size"),
        ("dirichlet:0.3", "labels"),
        ("shards:2", "labels"),
        ("ics:5", "features"),
    ],
)
def test_verdicts_on_real_digits(partition: str, dominant: str) -> None:
    found = eq.audit(
        {"data": {"name": "digits", "partition": partition, "clients": 8}, "workers": 0, "seed": 11}
    )
    assert found.verdict.dominant == dominant, found.text


def test_scaling_by_client_hides_shifts_and_is_said() -> None:
    draw = np.random.default_rng(0)
    data = {
        name: (draw.normal(size=(200, 3)) * scale + shift, draw.integers(0, 2, 200))
        for name, scale, shift in (("a", 1, 0), ("b", 1, 5), ("c", 3, 0), ("d", 1, -5))
    }
    dataset = eq.from_sites(data, columns=["p", "q", "r"])
    plain = eq.audit({"dataset": dataset, "workers": 0})
    hidden = eq.audit({"dataset": dataset, "data": {"normalise": "client"}, "workers": 0})
    assert plain.verdict.dominant == "features" and not plain.warnings
    assert hidden.verdict.dominant == "none" and "normalise: client" in hidden.warnings[0]
