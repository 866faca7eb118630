"""Reports: a self-contained HTML page for a run or a comparison, and its figures as files."""

from equipoise.report.page import report

__all__ = ["report"]
