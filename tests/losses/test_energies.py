from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.losses import energy, trust
from equipoise.streams import torch_stream

P, Q = np.log([[0.9, 0.1]]), np.log([[0.1, 0.9]])
KINDS = ("kl", "sqerr", "entropy", "margin", "lse", "feat", "none", "constant_half")
spread_out = st.lists(
    st.integers(-1000, 1000).map(lambda one: one / 10), min_size=2, max_size=12
).filter(lambda values: len(set(values)) > 1)


def pair(dtype=torch.float64):
    return tuple(
        2 * torch.randn(6, 5, generator=torch_stream(0, name), dtype=dtype)
        for name in ("private", "proxy")
    )


def plain(private, proxy, kind):
    def chances(row):
        amounts = [math.exp(one) for one in row]
        return [one / sum(amounts) for one in amounts]

    p, q = chances(private), chances(proxy)
    if kind == "kl":
        forth, back = (
            sum(a * math.log(a / b) for a, b in zip(x, y, strict=True)) for x, y in ((p, q), (q, p))
        )
        return (forth + back) / 2 / (-sum(a * math.log(a) for a in p + q) + 1e-8)
    squares = sum((a - b) ** 2 for a, b in zip(private, proxy, strict=True))
    best = sorted(proxy)
    return {
        "sqerr": squares / 2,
        "feat": math.sqrt(squares),
        "entropy": -sum(a * math.log(a) for a in q),
        "margin": best[-2] - best[-1],
        "lse": -math.log(sum(math.exp(one) for one in proxy)),
    }.get(kind, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_energies_against_plain_loops(kind):
    private, proxy = pair()
    expected = [plain(a, b, kind) for a, b in zip(private.tolist(), proxy.tolist(), strict=True)]
    torch.testing.assert_close(
        energy(private, proxy, kind),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-10,
        atol=1e-12,
    )


def test_kl_energy_of_a_contradiction():
    assert energy(P, Q)[0] == pytest.approx(0.8 * math.log(9) / 0.650166, rel=1e-6)


def test_kl_energy_is_symmetric_and_zero_for_equals():
    private, proxy = pair()
    torch.testing.assert_close(energy(private, proxy), energy(proxy, private), rtol=1e-14, atol=0)
    assert not energy(private, private).any()


def test_confident_contradiction_is_huge_but_finite():
    value = energy(torch.tensor([[500.0, -500.0]]), torch.tensor([[-500.0, 500.0]]))
    assert value.item() == pytest.approx(1000 / 1e-8, rel=1e-6)


@pytest.mark.parametrize("kind", ["entropy", "margin", "lse"])
def test_one_model_energies_look_at_the_rated_model(kind):
    private, proxy = pair()
    assert torch.equal(energy(private, proxy, kind, rated="private"), energy(proxy, private, kind))
    assert not torch.equal(energy(private, proxy, kind), energy(proxy, private, kind))


def test_low_entropy_and_wide_margin_mean_low_energy():
    sure, unsure = np.array([[9.0, 0.0, 0.0]]), np.array([[1.0, 0.0, 0.0]])
    for kind in ("entropy", "margin", "lse"):
        assert energy(unsure, sure, kind) < energy(sure, unsure, kind)


def test_regression_outputs_of_either_shape():
    flat, column = np.array([1.0, 2.0]), np.array([[3.0], [2.0]])
    assert energy(flat, column, "sqerr").tolist() == [2.0, 0.0]


def test_kind_dtype_and_gradient():
    private, proxy = pair(torch.float32)
    value = energy(private.requires_grad_(), proxy)
    assert value.dtype == torch.float32 and not value.requires_grad
    assert isinstance(energy(P, Q), np.ndarray) and trust([1, 2]).dtype == np.float64
    assert trust(value).dtype == torch.float32 and not trust(value).requires_grad


@pytest.mark.parametrize(
    "private, proxy, kind",
    [
        ((2, 3), (2, 3), "kll"),
        ((2, 3), (3, 3), "kl"),
        ((2, 3), (2, 4), "feat"),
        ((2, 1), (2, 1), "kl"),
        ((2,), (2,), "margin"),
    ],
)
def test_energy_refuses(private, proxy, kind):
    with pytest.raises(ValueError):
        energy(torch.zeros(private), torch.zeros(proxy), kind)


def test_unknown_energy_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'entropy'"):
        energy(P, Q, "entrop")


@pytest.mark.parametrize("values", [[7.0], [0.1, 0.1, 0.1], [1e10, 1e10, 1e10]])
def test_nothing_to_compare_gives_one_half(values):
    assert trust(np.array(values)).tolist() == [0.5] * len(values)


@given(st.floats(-100, 100), st.floats(0.01, 50))
def test_two_samples_have_the_same_weights_whatever_their_energies(low, gap):
    np.testing.assert_allclose(trust(np.array([low, low + gap])), [0.731059, 0.268941], atol=1e-5)


@given(spread_out, st.floats(0.1, 8))
def test_gate_against_plain_loops_bounds_and_order(values, beta):
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((one - mean) ** 2 for one in values) / len(values))
    expected = [1 / (1 + math.exp(beta * (one - mean) / (spread + 1e-8))) for one in values]
    weights = trust(np.array(values), beta)
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    limit = 1 / (1 + math.exp(beta * math.sqrt(len(values) - 1)))
    assert (weights >= limit - 1e-9).all() and (weights <= 1 - limit + 1e-9).all()
    assert (np.diff(weights[np.argsort(values)]) <= 1e-12).all()


@given(spread_out, st.floats(0.5, 100), st.floats(-1000, 1000))
def test_gate_ignores_scale_and_offset(values, scale, offset):
    np.testing.assert_allclose(
        trust(scale * np.array(values) + offset), trust(np.array(values)), atol=1e-6
    )


def test_none_and_constant_half():
    private, proxy = pair()
    for kind, weight in (("none", 1.0), ("constant_half", 0.5)):
        assert trust(energy(private, proxy, kind), kind=kind).tolist() == [weight] * 6


def test_trust_refuses_an_empty_batch():
    with pytest.raises(ValueError, match="at least one"):
        trust(torch.zeros(0))


def test_what_is_no_model_and_no_row_of_energies_is_refused():
    with pytest.raises(ValueError, match="'proxy' or 'private'; got 'both'"):
        energy(P, Q, "entropy", rated="both")
    with pytest.raises(ValueError, match="one energy per sample"):
        trust(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="did you mean 'none'"):
        trust(torch.zeros(2), kind="non")
    with pytest.raises(ValueError, match="same samples and sizes"):
        energy(torch.zeros(2, 3), torch.zeros(3, 3), "sqerr")
    for kind in ("kl", "entropy", "margin", "lse"):
        with pytest.raises(ValueError, match="at least 2 classes"):
            energy(torch.zeros(2, 1), torch.zeros(2, 1), kind)


def test_single_outputs_have_energies_of_the_other_kinds():
    for kind, wanted in (("none", 0.0), ("constant_half", 0.0), ("feat", 2.0), ("sqerr", 2.0)):
        assert energy(torch.zeros(3, 1), 2 * torch.ones(3, 1), kind).tolist() == [wanted] * 3
