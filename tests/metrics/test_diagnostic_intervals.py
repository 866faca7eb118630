"""Intervals of clinical measures against plain references: pairs of samples, finite differences and
scipy.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binomtest, t
from sklearn.metrics import average_precision_score, roc_auc_score

from equipoise.metrics import (
    diagnostic_intervals,
    score_histograms,
    sensitivity_at_specificity,
)
from equipoise.metrics.diagnostic_intervals import limits_of, mean_of_rates, wilson


def tied_scores(positives: int, negatives: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores in tenths, with many ties, and labels."""
    rng = np.random.default_rng(positives)
    y = np.repeat([1, 0], [positives, negatives])
    percent = np.clip(np.rint(10 * (0.4 + 0.2 * y + 0.2 * rng.normal(size=len(y)))), 1, 9)
    return percent / 10 + 0.005, y


def table_of(score: np.ndarray, y: np.ndarray) -> np.ndarray:
    return score_histograms.counted(np.stack([1 - score, score], 1), y)


def assert_limits(found: diagnostic_intervals.Limits, value: float, half: float) -> None:
    wanted = expit(logit(value) + np.array([-half, half]) / (value * (1 - value)))
    assert [found.low, found.high] == pytest.approx(wanted.tolist(), abs=1e-9)


def test_the_auroc_interval_is_delongs_on_the_log_odds_scale() -> None:
    score, y = tied_scores(25, 40)
    above = score[y == 1][:, None] - score[y == 0][None, :]
    right = (above > 0) + 0.5 * (np.abs(above) < 1e-9)
    value = roc_auc_score(y, score)
    prior = 0.1 * (value - 0.5) ** 2
    first, second = (
        (((right.mean(axis) - value) ** 2).sum() + prior) / (n - 1) / n
        for axis, n in ((1, 25), (0, 40))
    )
    freedom = (first + second) ** 2 / (first**2 / 24 + second**2 / 39)
    half = t.ppf(0.975, freedom) * np.sqrt(first + second)
    assert_limits(limits_of("auroc", table_of(score, y), value), value, half)


def test_the_auprc_interval_has_the_variance_of_finite_differences() -> None:
    score, y = tied_scores(25, 40)
    value = average_precision_score(y, score)

    def moved(place: int) -> float:
        weights = np.ones(len(y))
        weights[place] += 1e-6
        return float(average_precision_score(y, score, sample_weight=weights) - value) / 1e-6

    influence = np.array([moved(place) for place in range(len(y))])
    variance = sum(n * influence[y == c].var(ddof=1) for c, n in ((1, 25), (0, 40)))
    half = t.ppf(0.975, 24) * np.sqrt(variance)
    found = limits_of("auprc", table_of(score, y), value)
    wanted = expit(logit(value) + np.array([-half, half]) / (value * (1 - value)))
    assert [found.low, found.high] == pytest.approx(wanted.tolist(), abs=1e-4)


def test_rates_have_wilsons_interval() -> None:
    for found, total in ((0, 12), (8, 10), (40, 40)):
        ends = binomtest(found, total).proportion_ci(method="wilson")
        assert np.allclose(wilson(found / total, total), [ends.low, ends.high])
        alone = mean_of_rates([found], [total])
        assert [alone.low, alone.high] == pytest.approx([ends.low, ends.high], abs=1e-9)


def test_where_there_is_no_interval_the_reason_is_said() -> None:
    score, y = tied_scores(19, 100)
    for name, said in (
        ("auroc", "fewer than 20"),
        ("auprc", "fewer than 20"),
        ("sensitivity_at_specificity", "fewer than 20"),
        ("calibration_error", "calibrated model"),
        ("balanced_accuracy", ""),
    ):
        found = limits_of(name, table_of(score, y), 0.7)
        assert said in found.reason and bool(said) == bool(found.reason) == (found.low is None)
    few = limits_of("balanced_accuracy", table_of(*tied_scores(9, 100)), 0.7)
    assert "fewer than 10" in few.reason
    cleared = limits_of("sensitivity_at_specificity", table_of(*tied_scores(30, 49)), 0.5)
    assert "fewer than 50 negative" in cleared.reason
    perfect = limits_of("auroc", table_of(*tied_scores(30, 30)), 1.0)
    assert "ranked" in perfect.reason
    assert limits_of("auroc", table_of(score, y), float("nan")).reason == "undefined"
    p = np.full((90, 3), 1 / 3)
    many = score_histograms.counted(p, np.arange(90) % 3)
    assert "two classes" in limits_of("auroc", many, 0.5).reason
    assert limits_of("balanced_accuracy", many, 1 / 3).low is not None


def test_the_sensitivity_of_scores_with_few_values_is_covered() -> None:
    # As of a model of a few yes-or-no findings. Of the negatives 9.7 % score above 0, 1.1 % above
    # 1.
    draw = np.random.default_rng(5)
    y = np.repeat([1, 0], 200)
    covered = []
    for _ in range(200):
        score = 1 / (1 + np.exp(-np.round(draw.normal(np.where(y == 1, 0.8, -0.8)))))
        value = sensitivity_at_specificity(score, y)
        limits = limits_of("sensitivity_at_specificity", table_of(score, y), value)
        assert limits.low is not None and limits.high is not None
        covered.append(limits.low <= 0.618 <= limits.high)
    assert np.mean(covered) >= 0.92
