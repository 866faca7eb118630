"""Reports on data, as tests look at them."""

from __future__ import annotations

from equipoise.data.check import DataReport


def remarks_on(report: DataReport) -> list[str]:
    """Return the sentences of all warnings and findings."""
    return [*report.warnings, *(finding.message for finding in report.findings)]
