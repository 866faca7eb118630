"""Performance and clinical measures against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn import metrics as reference

from equipoise.metrics import (
    PartialMetric,
    UndefinedMetric,
    accuracy,
    auprc,
    auroc,
    average_ranks,
    balanced_accuracy,
    calibration_error,
    f1,
    log_loss,
    mae,
    rmse,
    sensitivity_at_specificity,
    softmax,
)
from equipoise.metrics.performance import hits, log_odds, squared_error
from equipoise.metrics.registry import find
from equipoise.streams import stream

CLINICAL = [auroc, auprc, sensitivity_at_specificity, balanced_accuracy, f1, calibration_error]


def sample(classes: int, size: int = 60, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities rounded so that ties occur, with labels they say something about."""
    generator = stream(seed, "sample", classes)
    labels = generator.integers(0, classes, size)
    logits = np.round(generator.normal(size=(size, classes)) + 0.8 * np.eye(classes)[labels], 0)
    return softmax(logits), labels


@pytest.mark.parametrize("seed", range(5))
def test_binary_measures_equal_scikit_learn(seed: int) -> None:
    p, y = sample(2, seed=seed)
    for scores in (p, p[:, 1], torch.tensor(p)):
        assert auroc(scores, y) == pytest.approx(reference.roc_auc_score(y, p[:, 1]))
        assert auprc(scores, y) == pytest.approx(reference.average_precision_score(y, p[:, 1]))
        assert f1(scores, y) == pytest.approx(reference.f1_score(y, p.argmax(1)))
        assert balanced_accuracy(scores, y) == pytest.approx(
            reference.balanced_accuracy_score(y, p.argmax(1))
        )
        false, true, _ = reference.roc_curve(y, p[:, 1], drop_intermediate=False)
        assert sensitivity_at_specificity(scores, y, 0.8) == pytest.approx(
            true[false <= 0.2 + 1e-9].max()
        )


@pytest.mark.parametrize("seed", range(5))
def test_macro_measures_equal_scikit_learn(seed: int) -> None:
    p, y = sample(4, seed=seed)
    assert auroc(p, y) == pytest.approx(reference.roc_auc_score(y, p, multi_class="ovr"))
    assert auprc(p, y) == pytest.approx(reference.average_precision_score(np.eye(4)[y], p))
    assert f1(p, y) == pytest.approx(reference.f1_score(y, p.argmax(1), average="macro"))
    assert balanced_accuracy(p, y) == pytest.approx(
        reference.balanced_accuracy_score(y, p.argmax(1))
    )
    logits = np.log(p) + 5.0
    assert accuracy(logits, y) == reference.accuracy_score(y, p.argmax(1))
    assert log_loss(logits, y) == pytest.approx(reference.log_loss(y, p, labels=range(4)))


def test_ranking_measures_take_any_score() -> None:
    p, y = sample(2)
    with np.errstate(divide="ignore"):
        margin = np.log(p[:, 1] / p[:, 0])
    for measure in (auroc, auprc, sensitivity_at_specificity):
        assert measure(margin, y) == pytest.approx(measure(p, y))


@pytest.mark.parametrize("classes", [2, 4])
def test_samples_whose_probability_rounds_to_1_are_still_ranked(classes: int) -> None:
    draw = np.random.default_rng(3)
    y = draw.integers(0, classes, 400)
    z = 300 * (draw.normal(size=(400, classes)) + 0.7 * np.eye(classes)[y])
    assert (softmax(z).max(1) == 1).mean() > 0.5
    chosen = [1] if classes == 2 else range(classes)
    odds = {c: z[:, c] - logsumexp(np.delete(z, c, 1), axis=1) for c in chosen}
    for name, measure in (
        ("auroc", reference.roc_auc_score),
        ("auprc", reference.average_precision_score),
    ):
        expected = np.mean([measure(y == c, odds[c]) for c in chosen])
        assert find(name)(z, y) == pytest.approx(expected)


def test_log_odds_of_masked_and_diverged_rows() -> None:
    found = log_odds([[0.0, -np.inf], [np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
    assert found[0, 0] > 1e300
    assert found[0, 1] < -1e300
    assert np.isnan(found[1:]).all()


def test_constant_scores_are_a_coin() -> None:
    y = [0, 0, 0, 1]
    assert auroc([0.5] * 4, y) == 0.5
    assert auprc([0.5] * 4, y) == 0.25
    assert sensitivity_at_specificity([0.5] * 4, y) == 0


def test_one_false_alarm_in_ten_is_a_specificity_of_nine_tenths() -> None:
    negatives, positives = [0.9] + [0.1] * 9, [0.8, 0.05]
    scores, labels = negatives + positives, [0] * 10 + [1] * 2
    assert sensitivity_at_specificity(scores, labels) == 0.5
    assert sensitivity_at_specificity(scores, labels, specificity=0.91) == 0
    assert sensitivity_at_specificity(scores, labels, specificity=0.0) == 1
    with pytest.raises(ValueError, match="got 90"):
        sensitivity_at_specificity(scores, labels, specificity=90)


def test_absent_classes_are_left_out_and_named() -> None:
    p, y = sample(4)
    keep = y != 2
    p, y = p[keep], y[keep]
    with pytest.warns(
        PartialMetric, match=r"classes \[2\] do not occur, so the mean is over the other 3"
    ):
        value = auroc(p, y)
    assert value == pytest.approx(
        np.mean([reference.roc_auc_score(y == c, p[:, c]) for c in (0, 1, 3)])
    )
    with pytest.warns(PartialMetric, match=r"classes \[2\]"):
        assert balanced_accuracy(p, y) == pytest.approx(
            np.mean([(p.argmax(1) == y)[y == c].mean() for c in (0, 1, 3)])
        )
    assert (p.argmax(1) == 2).any()
    assert f1(p, y) == pytest.approx(
        reference.f1_score(y, p.argmax(1), average="macro", zero_division=0)
    )


def test_f1_leaves_out_a_class_neither_labelled_nor_predicted() -> None:
    p = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]]
    with pytest.warns(PartialMetric, match=r"classes \[2\]"):
        assert f1(p, [0, 1, 1]) == pytest.approx(2 / 3)


def test_one_class_alone_has_no_ranking() -> None:
    for measure in (auroc, auprc, sensitivity_at_specificity):
        with pytest.warns(UndefinedMetric, match=r"two classes, the 2 labels have \[1\]"):
            assert np.isnan(measure([0.2, 0.4], [1, 1]))
    with pytest.warns(UndefinedMetric, match="none is called so"):
        assert np.isnan(f1([0.2, 0.4], [0, 0]))
    assert f1([0.2, 0.6], [0, 0]) == 0


@pytest.mark.parametrize("measure", CLINICAL)
def test_no_samples_are_undefined_and_logits_are_refused(measure: object) -> None:
    with pytest.warns(UndefinedMetric):
        assert np.isnan(measure(np.empty((0, 3)), []))  # type: ignore[operator]
    with pytest.raises(ValueError, match="softmax"):
        measure([[2.0, -1.0], [0.5, 0.5]], [0, 1])  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"from 0 to 1, got \[2.0\]"):
        measure([[0.5, 0.5], [0.5, 0.5]], [0, 2])  # type: ignore[operator]


@pytest.mark.parametrize("measure", [auroc, auprc, sensitivity_at_specificity, calibration_error])
def test_a_diverged_model_has_no_ranking_and_no_calibration(measure: object) -> None:
    with pytest.warns(UndefinedMetric, match="diverged"):
        assert np.isnan(measure([[np.nan, np.nan], [0.5, 0.5]], [0, 1]))  # type: ignore[operator]


def test_a_diverged_model_predicts_nothing() -> None:
    broken = [[np.nan, np.nan], [0.2, 0.8]]
    assert accuracy(broken, [0, 1]) == 0.5
    assert balanced_accuracy(broken, [0, 1]) == 0.5
    assert f1(broken, [1, 1]) == pytest.approx(2 / 3)
    with pytest.warns(UndefinedMetric, match="diverged"):
        assert np.isnan(log_loss(broken, [0, 1]))


def test_calibration_by_hand() -> None:
    p = [[0.95, 0.05], [0.95, 0.05], [0.3, 0.7], [0.6, 0.4]]
    assert calibration_error(p, [0, 0, 1, 1], bins=10) == pytest.approx((2 * 0.05 + 0.3 + 0.6) / 4)
    assert calibration_error(p, [0, 0, 1, 1], bins=1) == pytest.approx(
        abs(3 / 4 - (0.95 * 2 + 0.7 + 0.6) / 4)
    )
    assert calibration_error([[1.0, 0.0], [0.0, 1.0]], [0, 1]) == 0
    on_the_edge = [[0.5, 0.5], [0.3, 0.7]]  # 0.5 belongs to the lower of two bins
    assert calibration_error(on_the_edge, [1, 1], bins=2) == pytest.approx((0.5 + 0.3) / 2)
    with pytest.raises(ValueError, match="got 0"):
        calibration_error(p, [0, 0, 1, 1], bins=0)


def test_large_and_masked_logits_keep_the_log_loss_finite() -> None:
    assert log_loss([[1000.0, 0.0], [0.0, -np.inf]], [0, 0]) == 0
    assert log_loss([[1000.0, 0.0]], [1]) == 1000


def test_regression_pairs_columns_with_flat_targets() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 3.0, 1.0])
    assert rmse(outputs, targets) == pytest.approx(np.sqrt(10 / 3))
    assert mae(outputs, targets) == pytest.approx(4 / 3)
    for measure in (rmse, mae):
        with pytest.warns(UndefinedMetric, match="no samples"):
            assert np.isnan(measure([], []))
        with pytest.raises(ValueError, match="got 1 and 2"):
            measure([1], [1, 2])


def test_wrong_shapes_and_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="with 3 rows"):
        accuracy([[1, 2], [2, 1]], [0, 1, 1])
    with pytest.raises(ValueError, match=r"got \[0.5\]"):
        accuracy([[1, 2], [2, 1]], [0, 0.5])
    with pytest.raises(ValueError, match=r"got \[-1.0\]"):
        log_loss([[1, 2], [2, 1]], [0, -1])
    with pytest.warns(UndefinedMetric, match="no samples"):
        assert np.isnan(accuracy(np.empty((0, 2)), []))


def test_bounds_of_what_is_asked() -> None:
    scores, labels = [0.9, 0.2, 0.8, 0.1], [1, 0, 0, 1]
    for specificity, found in ((0.0, 1.0), (0.5, 0.5), (1.0, 0.5)):
        assert sensitivity_at_specificity(scores, labels, specificity) == found
    for wrong in (-0.01, 1.01):
        with pytest.raises(ValueError, match="specificity: expected a share from 0 to 1"):
            sensitivity_at_specificity(scores, labels, wrong)
    assert calibration_error([0.8, 0.6], [1, 1], bins=1) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="bins: expected at least 1, got 0"):
        calibration_error([0.8], [1], bins=0)


def test_nine_tenths_and_fifteen_bins_unless_said_otherwise() -> None:
    p, y = sample(2, size=200)
    assert (
        sensitivity_at_specificity(p, y)
        == sensitivity_at_specificity(p, y, 0.9)
        != sensitivity_at_specificity(p, y, 0.6)
    )
    rng = np.random.default_rng(0)
    scores, labels = rng.random(400), rng.integers(0, 2, 400)
    assert (
        calibration_error(scores, labels)
        == calibration_error(scores, labels, 15)
        != calibration_error(scores, labels, 16)
    )


@pytest.mark.filterwarnings("ignore::equipoise.metrics.PartialMetric")
@pytest.mark.parametrize(
    ("probabilities", "fine"),
    [
        ([[0.4999, 0.5001]], True),
        ([[0.5, 0.5009]], True),
        ([[0.5, 0.5011]], False),
        ([[0.5, 0.4989]], False),
        ([[0.0, 1.0]], True),
        ([[-0.1, 1.1]], False),
        ([[1.0]], True),  # one column is the probability of class 1
        ([1.0], True),
        ([[np.nan, np.nan]], True),
    ],
)
def test_rows_have_to_be_probabilities(probabilities: list[object], fine: bool) -> None:
    if fine:
        assert balanced_accuracy(probabilities, [1]) == (0 if np.isnan(probabilities).any() else 1)
    else:
        with pytest.raises(ValueError, match=r"take softmax\(logits\)"):
            f1(probabilities, [1])


def test_one_column_is_the_probability_of_class_1() -> None:
    column = [[0.2], [0.9], [0.6]]
    for measure in CLINICAL:
        assert measure(column, [0, 1, 0]) == pytest.approx(
            measure([[0.8, 0.2], [0.1, 0.9], [0.4, 0.6]], [0, 1, 0])
        )


def test_f1_of_rows_that_are_no_prediction_and_of_classes_called_in_vain() -> None:
    p = [[0.8, 0.1, 0.1], [np.nan, 0.5, 0.5], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]]
    assert f1(p, [0, 0, 1, 1]) == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    with pytest.warns(
        PartialMetric, match=r"F1: classes \[2, 3\] do not occur, so the mean is over the other 2"
    ):
        assert f1([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1]], [0, 1]) == 1


def test_hits_of_rows_without_a_finite_largest() -> None:
    scores = np.array(
        [[1.0, 2.0], [np.nan, 0.0], [np.inf, 0.0], [-np.inf, 0.0], [-np.inf, -np.inf]]
    )
    assert hits(scores, np.array([1, 0, 0, 1, 0])).tolist() == [True, False, False, True, False]
    with pytest.warns(UndefinedMetric, match="log loss is undefined: there are no samples"):
        assert np.isnan(log_loss(np.empty((0, 2)), []))
    with pytest.warns(UndefinedMetric, match="the squared error is undefined"):
        assert np.isnan(squared_error([], []))
    assert squared_error([1, 5], [3, 4]) == 2.5


def test_labels_at_their_bounds() -> None:
    assert accuracy([[1, 2], [2, 1]], [1, 0]) == 1
    for labels, wrong in (([0, 2], "2.0"), ([0, -1], "-1.0"), ([0.5, 1], "0.5")):
        with pytest.raises(
            ValueError, match=rf"labels: expected whole numbers from 0 to 1, got \[{wrong}\]"
        ):
            accuracy([[1, 2], [2, 1]], labels)
    with pytest.raises(
        ValueError,
        match=r"logits: expected shape \(samples, classes\) with 2 rows, one per label, got \(2,\)",
    ):
        accuracy([1, 2], [0, 1])
    with pytest.raises(
        ValueError, match=r"got \[2.0, 3.0, 4.0, 5.0, 6.0\]; give one column per class"
    ):
        accuracy(np.zeros((7, 2)), [0, 2, 3, 4, 5, 6, 7])


def test_softmax_over_the_last_axis() -> None:
    z = np.array([[[0.0, np.log(3)], [5.0, 5 + np.log(4)]]])
    np.testing.assert_allclose(softmax(z), [[[0.25, 0.75], [0.2, 0.8]]])


def test_a_warning_points_at_whoever_asked(recwarn: pytest.WarningsRecorder) -> None:
    two_of_three = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]]
    for ask in (
        lambda: accuracy(np.empty((0, 2)), []),
        lambda: calibration_error([[np.nan, np.nan]], [0]),
        lambda: balanced_accuracy(two_of_three, [0, 1]),
        lambda: f1(two_of_three, [0, 1]),
        lambda: average_ranks({"a": [1, np.nan], "b": [2, 3]}),
        lambda: average_ranks({"a": [np.nan]}),
    ):
        recwarn.clear()
        ask()
        assert [one.filename for one in recwarn.list] == [__file__]
