"""Extensions by users and other packages: one decorator per kind, and the registry of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from equipoise.data import partitions, sets
from equipoise.data.sets import RegisteredSet
from equipoise.losses import registry as losses
from equipoise.losses.registry import SupervisedLoss
from equipoise.method import Method
from equipoise.methods import REGISTRY as METHODS
from equipoise.metrics import registry as metrics
from equipoise.metrics.registry import Metric
from equipoise.models import registry as models
from equipoise.validation.names import nearest, quoted
from equipoise.validation.registry import Registry

REGISTRIES: dict[str, Registry[Any]] = {
    "method": METHODS,
    "model": models.REGISTRY,
    "metric": metrics.REGISTRY,
    "dataset": sets.REGISTRY,
    "partition": partitions.REGISTRY,
    "loss": losses.REGISTRY,
}


def register(extension: Any, **facts: Any) -> Any:
    """Register a method, model, metric, data set, partition or loss in this process.

    A package also announces it by an entry point, so that other processes and the command line
    find it.

    Args:
        extension: A Method, a torch module's class, a Metric, a SupervisedLoss or a RegisteredSet;
            or, for a decorator, the kind of the decorated thing: "method", "model", "metric",
            "dataset", "partition" or "loss".
        facts: For a metric `higher_is_better`, `unit`, `needs` and `statistic`, as in
            `equipoise.metrics.Metric`; for a loss `needs`.

    Returns:
        The thing itself; for a function that is a metric or a loss, a Metric or a SupervisedLoss,
        which can be called like the function.

    Raises:
        ValueError: If the name is built in, or the thing is not of the kind.

    Example:
        >>> @register("metric", higher_is_better=False, needs="values")
        ... def worst_error(outputs, y):
        ...     return float(abs(outputs[:, 0] - y).max())
        >>> worst_error.title
        'worst_error'
        >>> del REGISTRIES["metric"].registered["worst_error"]
    """
    if isinstance(extension, str):
        if extension not in REGISTRIES:
            raise nearest("kind", extension, list(REGISTRIES))
        kind = extension
        return lambda thing: _add(kind, thing, facts)
    return _add(_kind_of(extension), extension, facts)


def _kind_of(thing: Any) -> str:
    kinds = {"metric": Metric, "loss": SupervisedLoss, "dataset": RegisteredSet}
    classes = {"method": Method, "model": nn.Module}
    for kind, base in kinds.items():
        if isinstance(thing, base):
            return kind
    for kind, base in classes.items():
        if inspect.isclass(thing) and issubclass(thing, base):
            return kind
    raise ValueError(
        "expected a Method, a model, a Metric, a SupervisedLoss or a RegisteredSet, "
        f"got {quoted(thing)}; name the kind of a function, such as @eq.register('partition'): "
        f"one of {', '.join(REGISTRIES)}"
    )


def _add(kind: str, thing: Any, facts: dict[str, Any]) -> Any:
    entry = _MAKERS[kind](thing, facts) if kind in _MAKERS else _plain(kind, thing, facts)
    name = getattr(entry, "name", None) or entry.__name__
    REGISTRIES[kind].add(name.lower() if kind == "method" else name, entry)
    return entry


def _plain(kind: str, thing: Any, facts: dict[str, Any]) -> Any:
    """Return a thing that is registered as it is, after checking its kind."""
    if facts:
        raise ValueError(f"{kind}: expected nothing but its kind, got {', '.join(facts)}")
    fits = {
        "method": inspect.isclass(thing) and issubclass(thing, Method),
        "model": inspect.isroutine(thing)
        or (inspect.isclass(thing) and issubclass(thing, nn.Module)),
        "dataset": inspect.isroutine(thing) or isinstance(thing, RegisteredSet),
    }
    if not fits[kind]:
        raise ValueError(f"expected a {kind}, got {quoted(thing)}")
    return thing


def _metric(thing: Any, facts: dict[str, Any]) -> Any:
    if isinstance(thing, Metric):
        return thing
    if not inspect.isroutine(thing) or "higher_is_better" not in facts:
        raise ValueError(
            "metric: expected a function and higher_is_better=True or False, "
            f"got {quoted(thing)} and {', '.join(facts) or 'nothing'}"
        )
    return _with_facts(Metric, thing, facts)


def _loss(thing: Any, facts: dict[str, Any]) -> Any:
    if isinstance(thing, SupervisedLoss):
        return thing
    return _with_facts(SupervisedLoss, thing, facts)


def _with_facts(kind: Callable[..., Any], thing: Any, facts: dict[str, Any]) -> Any:
    known = [
        name for name in inspect.signature(kind).parameters if name not in ("name", "function")
    ]
    for fact in facts:
        if fact not in known:
            raise nearest(f"fact of a {kind.__name__}", fact, known)
    return kind(thing.__name__, thing, **facts)


def _partition(thing: Any, facts: dict[str, Any]) -> Any:
    if facts:
        raise ValueError(f"partition: expected nothing but its kind, got {', '.join(facts)}")
    return partitions.check_function(getattr(thing, "__name__", quoted(thing)), thing)


_MAKERS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "metric": _metric,
    "loss": _loss,
    "partition": _partition,
}
