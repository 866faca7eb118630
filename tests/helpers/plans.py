"""Plans of comparisons in which no method may refuse its settings."""

from __future__ import annotations

from typing import Any

from equipoise.comparison.plan import Cell, plan_comparison
from equipoise.experiment import ConfigurationError


def plan(base: Any, methods: Any, seeds: Any = (), **settings: Any) -> list[Cell]:
    """Return the runs of a comparison; a refusal is an error."""
    planned = plan_comparison(base, methods, seeds, **settings)
    for refusal in planned.refusals:
        raise ConfigurationError(f"{refusal.method}: {refusal.reason}")
    return planned.cells
