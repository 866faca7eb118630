"""The registry of metrics, with direction and unit of each.

Adding a metric is one entry here: tables, reports and trackers read direction and unit from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from equipoise.metrics import clinical, performance, statistics, survival
from equipoise.metrics.statistics import Statistic
from equipoise.task import Task
from equipoise.validation.arrays import Array
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import UnknownName, quoted
from equipoise.validation.registry import Registry

Function = Callable[[Any, Array], float]
Needs = Literal["classes", "two classes", "values", "survival"]
HOW = (
    "make it one with @eq.register('metric', higher_is_better=..., unit=..., needs=...) "
    "or equipoise.metrics.Metric(...)"
)


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is on some samples."""

    name: str
    # of the network's outputs (logits, or values) and the truth, in float64; NaN where it does not
    # exist; in survival analysis the truth are times, negative where censored
    function: Function
    higher_is_better: bool
    unit: str = ""  # "%": a share from 0 to 1, printed in percent; "": printed as it is
    # two classes: among the samples, too; with fewer it does not exist
    needs: Needs = "classes"
    # the same number from statistics of batches, where there are any
    statistic: type[Statistic] | None = None
    # its function takes curves of survival (`metrics.survival.SurvivalCurves`) in place of outputs
    of_curves: bool = False

    def __post_init__(self) -> None:
        wrong = None
        if not isinstance(self.name, str) or not self.name.isidentifier() or len(self.name) > 64:
            wrong = f"name: expected at most 64 letters, digits and _, got {quoted(self.name)}"
        elif not callable(self.function):
            wrong = f"function: expected a function, got {quoted(self.function)}"
        elif not isinstance(self.higher_is_better, bool):
            wrong = f"higher_is_better: expected true or false, got {quoted(self.higher_is_better)}"
        elif self.unit not in ("", "%"):
            wrong = f"unit: expected '%' or '', got {quoted(self.unit)}"
        elif self.needs not in get_args(Needs):
            wrong = f"needs: expected one of {', '.join(get_args(Needs))}, got {quoted(self.needs)}"
        if wrong:
            raise ValueError(f"metric {wrong}")

    def __call__(self, outputs: Any, y: Array) -> float:
        """Return the value over some samples."""
        return self.function(outputs, y)

    @property
    def facts(self) -> dict[str, Any]:
        """Direction, unit and needs as plain data, for readers of results."""
        return {key: getattr(self, key) for key in ("higher_is_better", "unit", "needs")}

    @property
    def lower_is_better(self) -> bool:
        """True for errors and losses."""
        return not self.higher_is_better

    @property
    def scale(self) -> float:
        """The factor from the value to the printed number."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name} in {self.unit}" if self.unit else self.name

    @property
    def of_changes(self) -> str:
        """The unit of a difference of two values."""
        return "points" if self.unit == "%" else self.name

    def fits(self, task: Task) -> bool:
        """Return True if it has a value in a task."""
        if self.needs in ("values", "survival"):
            return task.kind == ("regression" if self.needs == "values" else "survival")
        return task.classifies and (self.needs == "classes" or task.outputs >= 2)


def _of_probabilities(function: Function) -> Function:
    return lambda logits, y: function(performance.softmax(logits), y)


def _of_ranks(function: Callable[..., float]) -> Function:
    return lambda logits, y: function(logits, y, logits=True)


METRICS = (
    Metric("accuracy", performance.accuracy, True, "%", "classes", statistics.Hits),
    Metric("loss", performance.log_loss, False, "", "classes", statistics.LogLoss),
    Metric("loss", performance.squared_error, False, "", "values", statistics.SquaredError),
    Metric("loss", survival.negative_log_likelihood, False, "", "survival"),
    Metric("rmse", performance.rmse, False, "", "values", statistics.RootSquaredError),
    Metric("mae", performance.mae, False, "", "values", statistics.AbsoluteError),
    Metric("auroc", _of_ranks(clinical.auroc), True, "%", "two classes"),
    Metric("auprc", _of_ranks(clinical.auprc), True, "%", "two classes"),
    Metric(
        "balanced_accuracy",
        _of_probabilities(clinical.balanced_accuracy),
        True,
        "%",
        "classes",
        statistics.HitsByClass,
    ),
    Metric("f1", _of_probabilities(clinical.f1), True, "%", "classes"),
    Metric(
        "sensitivity_at_specificity",
        _of_ranks(clinical.sensitivity_at_specificity),
        True,
        "%",
        "two classes",
    ),
    Metric(
        "calibration_error", _of_probabilities(clinical.calibration_error), False, "%", "classes"
    ),
    Metric("c_index", survival.c_index, True, "%", "survival"),
    Metric("c_index_ipcw", survival.c_index_ipcw, True, "%", "survival"),
    Metric("c_index_error", survival.c_index_error, False, "%", "survival"),
    Metric("integrated_brier", survival.integrated_brier, False, "%", "survival", of_curves=True),
)
# The main metrics by default, by kind of task.
USUAL_OF = {"classification": "accuracy", "regression": "rmse", "survival": "c_index"}
USUAL = tuple(USUAL_OF.values())


def _load(name: str, path: str, imports: Imports) -> Metric:
    metric = imports.load(path, "metric", Metric, instance=True)
    return _called(metric, name, path)


def _called(metric: Metric, name: str, path: str) -> Metric:
    """Require that a metric has the name under which it is found; it is recorded under its own."""
    if metric.name != name:
        raise UnknownName(
            f"metric {path!r} calls itself {metric.name!r}; give the variable and the metric one "
            "name"
        )
    return metric


def _first_by_name(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """Return the metrics by name, and the first of those that share a name."""
    by_name: dict[str, Metric] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, metric)
    return by_name


REGISTRY: Registry[Metric] = Registry("metric", "equipoise.metrics", _first_by_name(METRICS), _load)
# For readers of results, who know a name alone: metrics that experiments of this process hold, and
# those that runs on disk tell of.
_held: dict[str, Metric] = {}
_recorded: dict[str, Metric] = {}


def names() -> list[str]:
    """Return the names of all metrics: built in, registered, or of installed packages."""
    return REGISTRY.names()


def is_known(name: str) -> bool:
    """Return True if direction and unit of a metric are known."""
    return name in _held or name in _recorded or name in names()


def name_of(spec: str | Metric) -> str:
    """Return the name under which a metric is recorded; nothing is imported.

    >>> name_of("rmse"), name_of("my_addons.metrics:top_two")
    ('rmse', 'top_two')
    """
    return spec.name if isinstance(spec, Metric) else str(spec).rpartition(":")[2]


def find(name: str, task: Task | None = None) -> Metric:
    """Return the metric of a name.

    Args:
        name: The name.
        task: The task, where two kinds of task have a metric of one name; both share direction and
            unit.

    Raises:
        UnknownName: If there is no such metric.

    >>> find("auroc").higher_is_better, find("rmse").unit
    (True, '')
    """
    candidates = [metric for metric in METRICS if metric.name == name]
    if not candidates and name in _held:
        return _held[name]
    if not candidates:
        try:
            return REGISTRY.find(name)
        except UnknownName:
            if name not in _recorded:
                raise
            return _recorded[name]
    return next(
        (metric for metric in candidates if task is not None and metric.fits(task)), candidates[0]
    )


def resolve(spec: str | Metric, task: Task | None = None, imports: Imports = OWN) -> Metric:
    """Return the metric that an experiment names or holds.

    Args:
        spec: A name, "package.module:name", or a Metric.
        task: The task, where two kinds of task have a metric of one name.
        imports: The packages that may be imported.

    Raises:
        UnknownName: If there is no such metric.
        NotAllowed: If a file names code of a package that is not allowed.
        ValueError: If a built-in metric has this name already.
    """
    if isinstance(spec, str) and spec in REGISTRY.built_in:
        return find(spec, task)
    if not isinstance(spec, (str, Metric)):
        description = quoted(spec)
        if inspect.isroutine(spec):
            description = f"the function {spec.__name__!r}"
        raise UnknownName(f"unknown metric: expected a name or a Metric, got {description}; {HOW}")
    metric = spec if isinstance(spec, Metric) else REGISTRY.find(spec, imports)
    is_ours = any(metric is ours for ours in METRICS)
    if metric.name in REGISTRY.built_in and not is_ours:
        raise ValueError(f"metric {metric.name!r} is built in; choose another name")
    _held[metric.name] = metric
    return metric


def remember(name: str, facts: Mapping[str, Any]) -> None:
    """Register direction and unit of a metric that a run recorded.

    A metric that is known here has precedence.

    Raises:
        ValueError: If the facts are not those of a metric.
    """
    if not isinstance(facts, Mapping) or set(facts) != {"higher_is_better", "unit", "needs"}:
        raise ValueError(
            f"metric {quoted(name)}: expected direction, unit and needs, got {quoted(facts)}"
        )
    _recorded[name] = Metric(name, _not_here, **facts)


def _not_here(outputs: Array, y: Array) -> float:
    raise UnknownName("the package that defines this metric is not installed here")


def measured(
    task: Task, listed: Sequence[str | Metric] = (), main: str | Metric | None = None
) -> tuple[str, ...]:
    """Return the metrics of an experiment and the main one.

    These are the listed ones, or else the usual one and the loss.

    >>> measured(Task("classification", (4,), 2), main="auroc")
    ('accuracy', 'loss', 'auroc')
    """
    metrics = tuple(listed) or (USUAL_OF[task.kind], "loss")
    return tuple(dict.fromkeys(map(name_of, (*metrics, main) if main else metrics)))


def check(
    task: Task, listed: Sequence[str | Metric] = (), main: str | Metric | None = None
) -> dict[str, Metric]:
    """Return the names of an experiment's metrics, and refuse one that does not fit the task."""
    # The main metric comes first: it may be named by the short name of a listed one.
    specs = {}
    if main:
        specs[name_of(main)] = main
    for spec in listed:
        specs[name_of(spec)] = spec
    metrics = {}
    for name in measured(task, listed, main):
        metric = metrics[name] = resolve(specs.get(name, name), task)
        if not metric.fits(task):
            key = "evaluation.main" if main and name == name_of(main) else "evaluation.metrics"
            kind = (
                f"is {task.kind}"
                if not task.classifies or metric.needs in ("values", "survival")
                else "has one class"
            )
            fitting = ", ".join(other.name for other in METRICS if other.fits(task))
            raise ValueError(
                f"{key}: {name} needs {metric.needs}, but the task {kind}; choose among {fitting}"
            )
    return metrics


def main_of(names: Sequence[str], main: str | Metric | None = None) -> str:
    """Return the main metric of results.

    It is the one named, else accuracy, RMSE or c-index if measured, else the first that is not the
    loss.

    >>> main_of(["loss", "auroc", "f1"]), main_of(["auroc", "accuracy"])
    ('auroc', 'accuracy')
    >>> main_of(["auroc", "accuracy"], "auroc")
    'auroc'
    """
    usual, others = (
        [name for name in names if name in USUAL],
        [name for name in names if name != "loss"],
    )
    return name_of(main) if main else (usual or others or list(names))[0]


def why_main(names: Sequence[str], main: str | Metric | None = None) -> str:
    """Return a sentence about a main metric that nobody named and nobody expects, or "".

    >>> why_main(["loss", "auroc"]).partition(";")[0]
    'the main metric is auroc, the first measured that is not the loss'
    """
    if main or not names or set(names) & set(USUAL):
        return ""
    which = (
        "the only one measured"
        if main_of(names) == "loss"
        else "the first measured that is not the loss"
    )
    return f"the main metric is {main_of(names)}, {which}; evaluation.main names another"
