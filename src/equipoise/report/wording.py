"""The words of a page for metrics: their names as readers know them."""

from __future__ import annotations

from equipoise.metrics import Metric

NAMES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "f1": "F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "sensitivity_at_specificity": "sensitivity at 90 % specificity",
    "c_index": "C-index",
    "c_index_ipcw": "C-index (IPCW)",
    "c_index_error": "C-index error",
    "integrated_brier": "integrated Brier score",
}


def name_of(metric: Metric) -> str:
    """Return the name of a metric.

    >>> from equipoise.metrics.registry import find
    >>> name_of(find("rmse")), name_of(find("balanced_accuracy"))
    ('RMSE', 'balanced accuracy')
    """
    return NAMES.get(metric.name, metric.name.replace("_", " "))


def title_of(metric: Metric) -> str:
    """Return the name of a metric with its unit."""
    return f"{name_of(metric)} in {metric.unit}" if metric.unit else name_of(metric)


def unit_of_changes(metric: Metric) -> str:
    """Return the unit of a difference of two values."""
    return "points" if metric.unit == "%" else name_of(metric)
