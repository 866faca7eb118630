"""Metrics as pure functions: arrays in, numbers out.

They cover performance, fairness, transfer, representation, participation and convergence.
Where a number does not exist the result is NaN with an `UndefinedMetric` warning that says why;
wrong input is refused.
"""

from equipoise.metrics.clinical import (
    auprc,
    auroc,
    balanced_accuracy,
    calibration_error,
    f1,
    sensitivity_at_specificity,
)
from equipoise.metrics.comparison import PairedTest, against_baseline, average_ranks, holm, paired_p
from equipoise.metrics.convergence import best_and_last, rounds_to, speed_up
from equipoise.metrics.fairness import (
    angle,
    collaborative_fairness,
    effective_clients,
    gini,
    jain,
    spread,
)
from equipoise.metrics.gains import (
    SIGNIFICANT,
    Gain,
    gain_from_counts,
    gain_from_samples,
    mcnemar,
)
from equipoise.metrics.intervals import (
    Interval,
    accuracy_variance,
    between_client_variance,
    bootstrap,
    bootstrap_counts,
    each_over_seeds,
    over_seeds,
)
from equipoise.metrics.participation import participation, weights_received
from equipoise.metrics.performance import accuracy, log_loss, mae, rmse, softmax, squared_error
from equipoise.metrics.registry import METRICS, Metric
from equipoise.metrics.representation import (
    angle_between,
    divergence,
    feature_similarity,
    manhattan,
    parameter_distances,
)
from equipoise.metrics.statistics import Statistic
from equipoise.metrics.transfer import negative_transfer
from equipoise.metrics.undefined import PartialMetric, UndefinedMetric

__all__ = [
    "METRICS",
    "SIGNIFICANT",
    "Gain",
    "Interval",
    "Metric",
    "PairedTest",
    "PartialMetric",
    "Statistic",
    "UndefinedMetric",
    "accuracy",
    "accuracy_variance",
    "against_baseline",
    "angle",
    "angle_between",
    "auprc",
    "auroc",
    "average_ranks",
    "balanced_accuracy",
    "best_and_last",
    "between_client_variance",
    "bootstrap",
    "bootstrap_counts",
    "calibration_error",
    "collaborative_fairness",
    "divergence",
    "each_over_seeds",
    "effective_clients",
    "f1",
    "feature_similarity",
    "gain_from_counts",
    "gain_from_samples",
    "gini",
    "holm",
    "jain",
    "log_loss",
    "mae",
    "manhattan",
    "mcnemar",
    "negative_transfer",
    "over_seeds",
    "paired_p",
    "parameter_distances",
    "participation",
    "rmse",
    "rounds_to",
    "sensitivity_at_specificity",
    "softmax",
    "speed_up",
    "spread",
    "squared_error",
    "weights_received",
]
