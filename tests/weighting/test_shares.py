from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.weighting import drift_shares, hybrid, trifreqs

KINDS = ("geometric", "arithmetic", "interval", "count", "size")


def trifreqs_by_the_book(gaps, counts, sizes, kind):
    """The paper's five lines, with their normalisers."""
    recent = [math.exp(-gap) for gap in gaps]
    parts = {"interval": recent, "count": counts, "size": sizes}
    parts = {name: [one / sum(values) for one in values] for name, values in parts.items()}
    if kind in parts:
        return parts[kind]
    triples = list(zip(*parts.values(), strict=True))
    joined = [
        sum(one) / 3 if kind == "arithmetic" else math.prod(one) ** (1 / 3) for one in triples
    ]
    return [one / sum(joined) for one in joined]


clients = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(1, 5000)), min_size=1, max_size=12
).filter(lambda rows: any(count > 0 for _, count, _ in rows))


@given(clients, st.sampled_from(KINDS))
def test_trifreqs_equals_the_paper(rows, kind):
    gaps, counts, sizes = map(list, zip(*rows, strict=True))
    weights = trifreqs(gaps, counts, sizes, kind)
    np.testing.assert_allclose(weights, trifreqs_by_the_book(gaps, counts, sizes, kind), rtol=1e-9)
    assert (weights >= 0).all() and abs(weights.sum() - 1) <= 1e-12
    if kind == "geometric":
        assert ((weights == 0) == (np.array(counts) == 0)).all()


def test_trifreqs_ignores_the_gap_of_a_client_never_seen():
    first = trifreqs([0, 4, 2], [3, 1, 0], [10, 20, 30])
    assert (first == trifreqs([0, 4, -900], [3, 1, 0], [10, 20, 30])).all()
    assert (first == trifreqs([0, 4, math.inf], [3, 1, 0], [10, 20, 30])).all()


def test_trifreqs_full_participation_and_recency():
    sizes = np.array([1.0, 8.0, 27.0])
    np.testing.assert_allclose(
        trifreqs(np.zeros(3), np.full(3, 7.0), sizes), np.array([1, 2, 3]) / 6, rtol=1e-14
    )
    near, far = trifreqs([1, 5], [2, 2], [30, 30])
    assert near / far == pytest.approx(math.exp(4 / 3), rel=1e-13)


def test_trifreqs_survives_very_long_gaps():
    weights = trifreqs([5000, 5003], [1, 1], [10, 10])
    assert weights[0] / weights[1] == pytest.approx(math.e, rel=1e-12)


def test_trifreqs_kind_in_kind_out():
    weights = trifreqs(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([5, 5]))
    assert isinstance(weights, torch.Tensor) and weights.dtype == torch.float64


@pytest.mark.parametrize(
    "gaps, counts, sizes",
    [
        ([0, 1], [0, 0], [5, 5]),
        ([0], [1, 1], [5, 5]),
        ([0, 1], [1, -1], [5, 5]),
        ([math.nan, 1], [1, 1], [5, 5]),
        ([0, 1], [1, 0], [0, 5]),
        ([], [], []),
    ],
)
def test_trifreqs_refuses(gaps, counts, sizes):
    with pytest.raises(ValueError):
        trifreqs(gaps, counts, sizes)


def test_trifreqs_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="geometric"):
        trifreqs([0], [1], [1], kind="harmonic")


def test_drift_shares():
    np.testing.assert_allclose(drift_shares([2.0, 6.0, 0.0]), [0.25, 0.75, 0.0], rtol=1e-15)
    assert drift_shares([0.0, 0.0]).tolist() == [0.5, 0.5]
    assert drift_shares([7.0]).tolist() == [1.0]
    assert drift_shares([1.0, math.nan, 3.0]).tolist() == [0.25, 0.0, 0.75]
    assert drift_shares([0.0, math.inf, 0.0]).tolist() == [0.5, 0.0, 0.5]
    assert drift_shares([1e308, 1e308]).tolist() == [0.5, 0.5]
    for wrong in ([math.nan], [-1.0, 2.0], []):
        with pytest.raises(ValueError, match="update norms"):
            drift_shares(wrong)


def test_hybrid_ends_and_middle():
    conflict, drift = np.array([0.7, 0.3]), np.array([0.1, 0.9])
    np.testing.assert_allclose(hybrid(conflict, drift, 1), conflict, rtol=1e-15)
    np.testing.assert_allclose(hybrid(conflict, drift, 0), drift, rtol=1e-15)
    np.testing.assert_allclose(hybrid(conflict, drift, 0.5), [0.4, 0.6], rtol=1e-15)
    np.testing.assert_allclose(hybrid(10 * conflict, drift, 0.5), [0.4, 0.6], rtol=1e-15)


@pytest.mark.parametrize("t", [-0.1, 1.1, math.nan])
def test_hybrid_refuses_t_outside_the_unit_interval(t):
    with pytest.raises(ValueError, match="between 0"):
        hybrid([1.0], [1.0], t)


def test_hybrid_refuses_weights_of_different_clients():
    with pytest.raises(ValueError, match="per client"):
        hybrid([0.5, 0.5], [1.0], 0.5)


def test_trifreqs_a_client_without_data_has_no_weight_and_its_gap_no_say():
    assert trifreqs([0, math.inf], [1, 1], [5, 0]).tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="gaps have to be finite"):
        trifreqs([0, math.inf], [1, 0], [5, 5], "count")  # the other kinds look at every gap


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: trifreqs([[0, 1]], [[1, 1]], [[5, 5]]), "one number per client"),
        (lambda: trifreqs([0, 1], [1, 1], [5]), "one number per client"),
        (lambda: trifreqs([0, 1], [0, 0], [5, 5]), "counts have to be finite, none negative"),
        (lambda: trifreqs([0, 1], [1, 1], [5, -5]), "sizes have to be"),
        (lambda: trifreqs([0, 1], [1, 0], [0, 5]), "some client has to have been seen"),
        (lambda: hybrid([0.0, 0.0], [0.5, 0.5], 0.5), "conflict have to be"),
        (lambda: hybrid([0.5, 0.5], [math.inf, 0.5], 0.5), "drift have to be"),
    ],
)
def test_sentences_say_which_numbers_are_wrong(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
