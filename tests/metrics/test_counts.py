"""Measures from histograms of scores against scikit-learn on the scores themselves, within what the
bins can resolve.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    roc_auc_score,
    roc_curve,
)

from equipoise.metrics import clinical, score_histograms
from tests.helpers.score_tables import rounded_table


def scores(
    samples: int, classes: int, seed: int = 0, sharp: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice(
        classes, samples, p=np.linspace(3, 1, classes) / np.linspace(3, 1, classes).sum()
    )
    z = rng.normal(size=(samples, classes)) + 1.2 * np.eye(classes)[y]
    p = np.exp(sharp * z)
    return p / p.sum(1, keepdims=True), y


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("samples", [60, 2000])
@pytest.mark.parametrize("sharp", [1.0, 12.0])
@pytest.mark.parametrize("count", [score_histograms.counted, rounded_table])
def test_measures_are_sklearns_within_the_resolution(
    classes: int, samples: int, sharp: float, count: Any
) -> None:
    p, y = scores(samples, classes, sharp=sharp)
    table = count(p, y)
    found, unsure = score_histograms.measures(table), score_histograms.resolution(table)
    chosen = [1] if classes == 2 else range(classes)
    exact = {
        "auroc": np.mean([roc_auc_score(y == c, p[:, c]) for c in chosen]),
        "auprc": np.mean([average_precision_score(y == c, p[:, c]) for c in chosen]),
        "balanced_accuracy": balanced_accuracy_score(y, p.argmax(1)),
        "sensitivity_at_specificity": np.mean(
            [clinical.sensitivity_at_specificity(p[:, c], (y == c).astype(int)) for c in chosen]
        ),
        "calibration_error": clinical.calibration_error(p, y),
    }
    assert set(found) == set(unsure) == set(exact)
    for name, value in exact.items():
        assert abs(found[name] - value) <= unsure[name] + 1e-12, name
    assert unsure["balanced_accuracy"] == 0


@pytest.mark.thorough
def test_the_resolution_of_few_samples_is_that_of_their_best_and_worst_order() -> None:
    """By trying every order of the samples within their bins."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        percent, y = rng.integers(40, 42, 5), rng.permutation([0, 0, 0, 1, 1])
        p = percent / 100 + 0.001
        table = score_histograms.counted(np.stack([1 - p, p], 1), y)
        found, unsure = score_histograms.measures(table), score_histograms.resolution(table)
        orders = [percent + np.array(order) / 10 for order in permutations(range(5))]
        for name, function in (
            ("auroc", roc_auc_score),
            ("auprc", average_precision_score),
            ("sensitivity_at_specificity", lambda y, s: clinical.sensitivity_at_specificity(s, y)),
        ):
            furthest = max(abs(function(y, order) - found[name]) for order in orders)
            assert unsure[name] == pytest.approx(furthest, abs=1e-9), name


@pytest.mark.parametrize("sharp", [1.0, 8.0, 25.0])
def test_confident_models_and_rare_classes_are_within_two_thousandths(sharp: float) -> None:
    """Pooled over ten sites: softmax outputs that crowd at 0 and 1, and 0.4 % positives."""
    rng = np.random.default_rng(3)
    for share, samples in ((0.4, 300), (0.004, 20_000)):
        tables, all_y, all_p = [], [], []
        for _ in range(10):
            y = (rng.random(samples) < share).astype(int)
            z = sharp * (rng.normal(size=samples) + 1.2 * y - (4 if share < 0.1 else 0.5))
            p = 1 / (1 + np.exp(-z))
            tables.append(score_histograms.counted(np.stack([1 - p, p], 1), y))
            all_y, all_p = [*all_y, y], [*all_p, p]
        y, p = np.concatenate(all_y), np.concatenate(all_p)
        found = score_histograms.measures(score_histograms.pooled(tables))
        assert found["auroc"] == pytest.approx(roc_auc_score(y, p), abs=0.002)
        # Ties lower an average precision, as in scikit-learn.
        assert found["auprc"] == pytest.approx(average_precision_score(y, p), abs=0.006)


def test_pooling_with_a_table_of_an_older_version_is_as_coarse_as_that() -> None:
    p, y = scores(200, 2, sharp=5.0)
    parts = [rounded_table(p[:100], y[:100]), score_histograms.counted(p[100:], y[100:])]
    whole = score_histograms.pooled(parts)
    assert whole.shape == (2, 4, 101) and score_histograms.fault(whole, 2, 200, bins=101) is None
    coarse = score_histograms.measures(rounded_table(p, y))["auroc"]
    assert score_histograms.measures(whole)["auroc"] == pytest.approx(coarse, abs=0.01)
    with pytest.raises(ValueError, match="bins, got 7"):
        score_histograms.calibration([0] * 7, [0] * 7)


@pytest.mark.parametrize("classes", [2, 3])
def test_measures_of_rounded_scores_are_exact(classes: int) -> None:
    """Tables of older versions, against scikit-learn on scores in the middle of the bins."""
    p, y = scores(300, classes, seed=5)
    p = np.rint(100 * p) / 100
    p[np.arange(300), p.argmax(1)] += 1 - p.sum(1)  # rows that sum to one again, in whole per cent
    table, chosen = rounded_table(p, y), [1] if classes == 2 else range(classes)
    found = score_histograms.measures(table)
    whole = [(np.rint(100 * p[:, c]), y == c) for c in chosen]
    areas = [roc_auc_score(own, percent) for percent, own in whole]
    precisions = [average_precision_score(own, percent) for percent, own in whole]
    rates = [
        clinical.sensitivity_at_specificity(percent, own.astype(int)) for percent, own in whole
    ]
    assert found["auroc"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert found["auprc"] == pytest.approx(np.mean(precisions), abs=1e-12)
    assert found["sensitivity_at_specificity"] == pytest.approx(np.mean(rates), abs=1e-12)
    gaps = []
    confidence = np.rint(100 * p.max(1)).astype(int)
    for low, high in ((100 * b / 15, 100 * (b + 1) / 15) for b in range(15)):
        here = (confidence > low) & (confidence <= high)
        gaps.append(abs(((p.argmax(1) == y)[here] - confidence[here] / 100).sum()))
    assert found["calibration_error"] == pytest.approx(sum(gaps) / 300, abs=1e-9)


@pytest.mark.parametrize("sharp", [1.0, 10.0])
def test_curves_and_thresholds_are_sklearns(sharp: float) -> None:
    p, y = scores(500, 2, seed=3, sharp=sharp)
    p[:3] = [[0.5, 0.5], [0.71, 0.29], [0.1, 0.9]]  # on a threshold
    score = p[:, 1]
    positives, negatives = score_histograms.counted(p, y)[1, :2]
    x, height = score_histograms.roc(positives, negatives)
    assert np.all(np.diff(x) >= 0) and (x[0], height[0], x[-1], height[-1]) == (0, 0, 1, 1)
    false, true, cuts = roc_curve(
        y, np.searchsorted(np.arange(1, 100) / 100, score, side="right"), drop_intermediate=False
    )
    for one, other in zip(false[cuts > 12], true[cuts > 12], strict=True):
        assert (np.isclose(x, one) & np.isclose(height, other)).any()
    share, mean = calibration_curve(y, score, n_bins=10)
    ours = score_histograms.calibration(positives, negatives)
    assert sum(one[2] for one in ours) == 500
    if sharp == 1:  # scikit-learn counts scores on an edge elsewhere
        assert [one[0] for one in ours] == pytest.approx(mean.tolist(), abs=0.005)
        assert [one[1] for one in ours] == pytest.approx(share.tolist(), abs=0.06)
    for percent in (1, 10, 29, 50, 90, 99):
        cleared, false, missed, true = confusion_matrix(y, score >= percent / 100).ravel()
        wanted = {
            "sensitivity": true / (true + missed),
            "specificity": cleared / (cleared + false),
            "ppv": true / (true + false),
            "npv": cleared / (cleared + missed),
        }
        assert score_histograms.at_threshold(positives, negatives, percent) == pytest.approx(wanted)
    assert np.isnan(score_histograms.at_threshold([0] * 101, [1] * 101, 50)["sensitivity"])


def test_what_does_not_exist_is_nan_and_strangers_tables_are_refused() -> None:
    p, y = scores(50, 2)
    only = score_histograms.measures(score_histograms.counted(p, np.ones(50, int)))
    assert (
        np.isnan(only["auroc"])
        and np.isnan(only["auprc"])
        and not np.isnan(only["balanced_accuracy"])
    )
    assert score_histograms.majority(score_histograms.counted(p, np.ones(50, int))) == 1.0
    good = score_histograms.counted(p, y)
    assert score_histograms.fault(good, 2, 50) is None and score_histograms.total(good) == 50

    def changed(change: Any) -> Any:
        table = good.copy()
        change(table)
        return table

    def off(table: Any) -> None:
        table[1, score_histograms.POSITIVES, 3] += 1

    def negative(table: Any) -> None:
        table[0, score_histograms.FOUND, 0] = -1

    def more(table: Any) -> None:
        table[0, score_histograms.FOUND] = table[0, score_histograms.POSITIVES] + 1

    for wrong in (
        changed(off),
        changed(negative),
        changed(more),
        good[:1],
        good.astype(float),
        "x",
        None,
    ):
        assert score_histograms.fault(wrong, 2) is not None
    assert score_histograms.fault(good, 2, 51) is not None
    with pytest.raises(ValueError, match="softmax"):
        score_histograms.counted([[3.0, -1.0]], [0])


def table_of(**rows: dict[int, int]) -> np.ndarray:
    """A row of counts by score in per cent, of each kind."""
    return np.array(
        [
            [rows.get(kind, {}).get(percent, 0) for percent in range(101)]
            for kind in ("positives", "negatives")
        ]
    )


def test_a_table_may_not_contradict_itself() -> None:
    good = score_histograms.counted([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])
    at_80, at_60 = (
        score_histograms.first_bin(percent, score_histograms.BINS) for percent in (80, 60)
    )
    assert (
        score_histograms.fault(good, 2, 3) is None
        and score_histograms.fault(good, 2) is None
        and score_histograms.fault(good.astype(np.uint8), 2) is None
    )

    def moved(row: int, percent: int, other: int, place: int = 1) -> np.ndarray:
        found = good.copy()
        found[place, row, percent] -= 1
        found[place, row, other] += 1
        return found

    contradiction = "its counts contradict each other, or the"
    # The same sums, but a sample that was found where no positive is, and one that was mistaken
    # where no negative is.
    assert contradiction in (
        score_histograms.fault(moved(score_histograms.FOUND, at_80, at_80 + 1), 2) or ""
    )
    assert contradiction in (
        score_histograms.fault(moved(score_histograms.MISTAKEN, at_60, at_60 + 1), 2) or ""
    )
    assert contradiction in (score_histograms.fault(good, 2, 4) or "") and contradiction in (
        score_histograms.fault(good, 2, 2) or ""
    )
    unnamed = good.copy()
    unnamed[1, score_histograms.MISTAKEN] = 0  # three samples, of which two were called anything
    assert contradiction in (score_histograms.fault(unnamed, 2) or "")
    less = good.copy()
    less[0, score_histograms.NEGATIVES] = 0  # class 0 sees fewer samples than class 1
    assert contradiction in (score_histograms.fault(less, 2) or "")
    for wrong in (good[:, :3], good[..., :100], -good, good.astype(float)):
        assert f"expected counts of shape (2, 4, {score_histograms.BINS}), got" in (
            score_histograms.fault(wrong, 2) or ""
        )
    assert f"shape (3, 4, {score_histograms.BINS})" in (score_histograms.fault(good, 3) or "")


def test_scores_at_both_ends_are_counted() -> None:
    table = score_histograms.counted([[1.0, 0.0], [0.0, 1.0]], [1, 1])
    assert (
        table[1, score_histograms.POSITIVES, 0],
        table[1, score_histograms.POSITIVES, -1],
        table[1, score_histograms.FOUND, -1],
        table[0, score_histograms.MISTAKEN, -1],
    ) == (1, 1, 1, 1)
    assert table.sum() == 6 and score_histograms.total(table) == 2
    for wrong in ([[1.01, 0.0]], [[-0.01, 1.0]], [[np.nan, 1.0]], [[np.inf, 0.0]]):
        with pytest.raises(ValueError, match="expected numbers from 0 to 1"):
            score_histograms.counted(wrong, [0])
    empty = score_histograms.counted(np.empty((0, 3)), [])
    assert (
        score_histograms.total(empty) == 0
        and np.isnan(score_histograms.majority(empty))
        and all(np.isnan(value) for value in score_histograms.measures(empty).values())
    )


def test_scores_of_zero_count_in_every_measure() -> None:
    second, y = np.array([0.0, 1.0, 0.0, 0.6, 0.6, 0.0]), np.array([0, 1, 1, 0, 1, 0])
    found = score_histograms.measures(
        score_histograms.counted(np.stack([1 - second, second], 1), y)
    )
    assert float(found["auroc"]) == pytest.approx(roc_auc_score(y, second))
    assert float(found["auprc"]) == pytest.approx(average_precision_score(y, second))
    assert float(found["sensitivity_at_specificity"]) == pytest.approx(1 / 3)


def test_one_false_alarm_in_ten_is_allowed_and_two_are_not() -> None:
    positives = {50: 1, 95: 1}
    for alarms, sensitivity in ((1, 1.0), (2, 0.5)):
        pair = table_of(positives=positives, negatives={60: alarms, 10: 10 - alarms})
        table = np.concatenate([pair, 0 * pair])[None].repeat(2, 0)
        assert float(score_histograms.measures(table)["sensitivity_at_specificity"]) == sensitivity


def test_where_every_threshold_has_too_many_false_alarms_nobody_is_found() -> None:
    p = np.array([0.9] * 4 + [0.2] * 4)  # those who score highest are well
    table = score_histograms.counted(np.stack([1 - p, p], 1), [0] * 4 + [1] * 4)[1:]
    assert float(score_histograms.measures(table)["sensitivity_at_specificity"]) == 0


def test_confidences_at_the_edges_of_the_fifteen_bins() -> None:
    """Bins end at multiples of 100/15 per cent: 60 is the last of the ninth, 61 the first of the
    tenth, 100 is in the last.
    """
    for first, second, together in (
        (60, 61, False),
        (61, 66, True),
        (66, 67, False),
        (93, 94, False),
        (94, 100, True),
        (53, 54, False),
        (54, 60, True),
    ):
        p = [[first / 100, 1 - first / 100], [second / 100, 1 - second / 100]]
        right, wrong = 1 - first / 100, -second / 100
        wanted = abs(right + wrong) if together else abs(right) + abs(wrong)
        found = float(score_histograms.measures(rounded_table(p, [0, 1]))["calibration_error"])
        assert found == pytest.approx(wanted / 2), (first, second)


def test_pairs_in_one_bin_are_half_of_the_resolution() -> None:
    p = [[0.5, 0.3, 0.2], [0.5, 0.2, 0.3], [0.2, 0.5, 0.3]]
    # Class 0 shares a bin for 1 of 2 pairs, class 1 for none, and class 2 does not occur.
    found = score_histograms.resolution(score_histograms.counted(p, [0, 1, 1]))["auroc"]
    assert found == pytest.approx((1 / 2 / 2 + 0) / 2)
    assert np.isnan(score_histograms.resolution(score_histograms.counted(p[:1], [0]))["auroc"])
    assert score_histograms.resolution(
        score_histograms.counted([[0.2, 0.8], [0.2, 0.8], [0.2, 0.8], [0.7, 0.3]], [1, 0, 0, 0])
    )["auroc"] == pytest.approx(2 / 3 / 2)


def test_calibration_by_tenths() -> None:
    pair = table_of(positives={0: 1, 9: 1, 10: 2, 100: 3, 90: 1}, negatives={9: 2, 19: 2, 89: 5})
    assert score_histograms.calibration(*pair) == [
        (pytest.approx(0.27 / 4), 0.5, 4),
        (pytest.approx((0.2 + 0.38) / 4), 0.5, 4),
        (pytest.approx(0.89), 0.0, 5),
        (pytest.approx(3.9 / 4), 1.0, 4),
    ]
    assert [row[2] for row in score_histograms.calibration(*pair, groups=2)] == [8, 9]


def test_a_threshold_belongs_to_the_positives_and_what_does_not_exist_is_nan() -> None:
    pair = table_of(positives={50: 3, 49: 1}, negatives={50: 1, 49: 4, 51: 1})
    assert score_histograms.at_threshold(*pair, 50) == pytest.approx(
        {"sensitivity": 3 / 4, "specificity": 4 / 6, "ppv": 3 / 5, "npv": 4 / 5}
    )
    nobody, all_of_them = (
        score_histograms.at_threshold(*pair, 100),
        score_histograms.at_threshold(*pair, 0),
    )
    assert (
        nobody["sensitivity"] == 0
        and nobody["specificity"] == 1
        and np.isnan(nobody["ppv"])
        and nobody["npv"] == 6 / 10
    )
    assert (
        all_of_them["sensitivity"] == 1
        and np.isnan(all_of_them["npv"])
        and all_of_them["ppv"] == 4 / 10
    )


def test_curves_without_samples_of_one_kind_stay_at_zero() -> None:
    x, height = score_histograms.roc(*table_of(positives={80: 2}))
    assert not x.any() and height.tolist() == [0.0] * 21 + [1.0] * 81 and len(x) == 102


def test_classes_that_do_not_occur_are_left_out_of_the_mean() -> None:
    p = [[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.5, 0.4, 0.1], [0.7, 0.2, 0.1]]
    found = score_histograms.measures(score_histograms.counted(p, [0, 1, 1, 0]))
    assert (
        float(found["balanced_accuracy"]) == 0.75
        and float(found["auroc"]) == 1.0
        and float(found["auprc"]) == 1.0
    )
    assert float(found["sensitivity_at_specificity"]) == 1.0


def test_majority_and_pooled() -> None:
    first, second = (
        score_histograms.counted([[0.9, 0.1]] * 3, [0, 0, 1]),
        score_histograms.counted([[0.2, 0.8]] * 2, [1, 1]),
    )
    assert (
        score_histograms.majority(first) == 2 / 3
        and score_histograms.majority(score_histograms.pooled([first, second])) == 3 / 5
        and score_histograms.total(score_histograms.pooled([first, second])) == 5
    )
