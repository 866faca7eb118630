"""The metrics of a model on some samples. Adding one is one entry here: tables, reports and trackers read direction and unit from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from equipoise.metrics import clinical, performance
from equipoise.task import Task
from equipoise.validation.arrays import Array
from equipoise.validation.names import nearest

Function = Callable[[Array, Array], float]


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is on some samples."""

    name: str
    function: Function  # of the network's outputs (logits, or values) and the truth, in float64; NaN where it does not exist
    higher_is_better: bool
    unit: str  # "%": a share from 0 to 1, printed in percent; "": printed as it is
    # two classes: among the samples, too; with fewer it does not exist
    needs: Literal["classes", "two classes", "values"]

    @property
    def lower_is_better(self) -> bool:
        return not self.higher_is_better

    @property
    def scale(self) -> float:
        """From the number to what is printed."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        return f"{self.name} in {self.unit}" if self.unit else self.name

    @property
    def of_changes(self) -> str:
        """What a difference of two values is counted in."""
        return "points" if self.unit == "%" else self.name

    def fits(self, task: Task) -> bool:
        if self.needs == "values":
            return not task.classifies
        return task.classifies and (self.needs == "classes" or task.outputs >= 2)


def _of_probabilities(function: Function) -> Function:
    return lambda logits, y: function(performance.softmax(logits), y)


METRICS = (
    Metric("accuracy", performance.accuracy, True, "%", "classes"),
    Metric("loss", performance.log_loss, False, "", "classes"),
    Metric("loss", performance.squared_error, False, "", "values"),
    Metric("rmse", performance.rmse, False, "", "values"),
    Metric("mae", performance.mae, False, "", "values"),
    Metric("auroc", _of_probabilities(clinical.auroc), True, "%", "two classes"),
    Metric("auprc", _of_probabilities(clinical.auprc), True, "%", "two classes"),
    Metric(
        "balanced_accuracy", _of_probabilities(clinical.balanced_accuracy), True, "%", "classes"
    ),
    Metric("f1", _of_probabilities(clinical.f1), True, "%", "classes"),
    Metric(
        "sensitivity_at_specificity",
        _of_probabilities(clinical.sensitivity_at_specificity),
        True,
        "%",
        "two classes",
    ),
    Metric(
        "calibration_error", _of_probabilities(clinical.calibration_error), False, "%", "classes"
    ),
)
USUAL = ("accuracy", "rmse")  # what results are about unless something else is asked for


def names() -> list[str]:
    return list(dict.fromkeys(metric.name for metric in METRICS))


def find(name: str, task: Task | None = None) -> Metric:
    """The metric of this name, for this task where two kinds of task have one each; both then share direction and unit.

    >>> find("auroc").higher_is_better, find("rmse").unit
    (True, '')
    """
    found = [metric for metric in METRICS if metric.name == name]
    if not found:
        raise nearest("metric", name, names())
    return next((metric for metric in found if task is not None and metric.fits(task)), found[0])


def measured(task: Task, listed: Sequence[str] = (), main: str | None = None) -> tuple[str, ...]:
    """The metrics that an experiment measures: those listed, or the usual one and the loss; and the main one.

    >>> measured(Task("classification", (4,), 2), main="auroc")
    ('accuracy', 'loss', 'auroc')
    """
    found = tuple(listed) or (USUAL[0] if task.classifies else USUAL[1], "loss")
    return tuple(dict.fromkeys((*found, main) if main else found))


def check(task: Task, listed: Sequence[str] = (), main: str | None = None) -> None:
    """Refuse a metric that has no value for this task, whatever the model."""
    for name in measured(task, listed, main):
        metric = find(name, task)
        if not metric.fits(task):
            key = "evaluation.main" if name == main else "evaluation.metrics"
            kind = (
                f"is {task.kind}"
                if task.classifies == (metric.needs == "values")
                else "has one class"
            )
            fitting = ", ".join(other.name for other in METRICS if other.fits(task))
            raise ValueError(
                f"{key}: {name} needs {metric.needs}, but the task {kind}; choose among {fitting}"
            )


def main_of(names: Sequence[str], main: str | None = None) -> str:
    """The metric that results are about: the one asked for, else accuracy or RMSE if measured, else the first that is not the loss.

    >>> main_of(["loss", "auroc", "f1"]), main_of(["auroc", "accuracy"]), main_of(["auroc", "accuracy"], "auroc")
    ('auroc', 'accuracy', 'auroc')
    """
    usual, others = (
        [name for name in names if name in USUAL],
        [name for name in names if name != "loss"],
    )
    return main or (usual or others or list(names))[0]


def why_main(names: Sequence[str], main: str | None = None) -> str:
    """A sentence about a main metric that nobody named and nobody expects; empty otherwise.

    >>> why_main(["loss", "auroc"])
    'the main metric is auroc, the first measured that is not the loss; evaluation.main names another'
    """
    if main or not names or set(names) & set(USUAL):
        return ""
    which = (
        "the only one measured"
        if main_of(names) == "loss"
        else "the first measured that is not the loss"
    )
    return f"the main metric is {main_of(names)}, {which}; evaluation.main names another"
