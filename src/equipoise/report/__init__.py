"""Reports: a self-contained HTML page for a run, a comparison or a study, and its figures."""

from equipoise.report.page import report
from equipoise.report.study import report_study

__all__ = ["report", "report_study"]
