"""The commands ``equipoise metrics`` and ``equipoise losses``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from equipoise.validation.registry import Registry

Name = Annotated[str | None, typer.Argument(help="entry to show in detail; default: list all")]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]


def metrics(name: Name = None, as_json: Json = False) -> None:
    """List the metrics for evaluation.metrics with direction, unit and tasks.

    Example:
      equipoise metrics auroc
    """
    from equipoise.metrics.registry import METRICS, REGISTRY

    entries, broken = _entries(REGISTRY, name)
    # Two kinds of task have a loss each; both are listed.
    built_in = [metric for metric in METRICS if metric.name in entries]
    others = [metric for key, metric in entries.items() if key not in REGISTRY.built_in]
    rows = [
        {
            "name": metric.name,
            "better": "higher" if metric.higher_is_better else "lower",
            "unit": metric.unit,
            "needs": metric.needs,
            "merges": _merges(metric.statistic),
            "source": REGISTRY.source(metric.name),
            "what": _first_line(metric.function) if metric not in built_in else "",
        }
        for metric in (*built_in, *others)
    ]
    _show(rows, broken, as_json, ["name", "better", "unit", "needs", "merges", "source"])
    if not as_json:
        from equipoise.cli import output

        output.say(
            "merges: whether values of parts merge into that of all; exact: clients evaluate "
            "batch by batch. "
            "A metric of yours: evaluation.metrics=[package.module:name]"
        )


def losses(name: Name = None, as_json: Json = False) -> None:
    """List the losses for training.loss with their options.

    Example:
      equipoise losses focal
    """
    from equipoise.losses.registry import REGISTRY

    entries, broken = _entries(REGISTRY, name)
    rows = [
        {
            "name": key,
            "needs": loss.needs,
            "options": ", ".join(f"{option}={value}" for option, value in loss.options.items()),
            "source": REGISTRY.source(key),
            "what": _first_line(loss.function),
        }
        for key, loss in entries.items()
    ]
    _show(rows, broken, as_json, ["name", "needs", "options", "source", "what"])
    if not as_json:
        from equipoise.cli import output

        output.say("--set training.loss=NAME chooses one; one of yours: package.module:name")


def _entries(registry: Registry[Any], name: str | None) -> tuple[Mapping[str, Any], dict[str, str]]:
    return registry.listed() if name is None else ({name: registry.find(name)}, {})


def _merges(statistic: Any) -> str:
    if statistic is None:
        return "no"
    return "exact" if statistic.exact else "yes"


def _first_line(function: Any) -> str:
    return (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]


def _show(
    rows: list[dict[str, Any]], broken: Mapping[str, str], as_json: bool, columns: list[str]
) -> None:
    from equipoise.cli import output

    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        output.table(columns, [[str(row[column]) for column in columns] for row in rows])
    tell_broken(broken)


def tell_broken(broken: Mapping[str, str]) -> None:
    """Print the extensions of installed packages that cannot be loaded, on standard error."""
    import sys

    from equipoise.validation.text import shown

    for reason in broken.values():
        print(f"left out: {shown(' '.join(reason.split()))}", file=sys.stderr)
