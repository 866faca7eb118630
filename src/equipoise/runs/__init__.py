"""Runs on disk, read: their tables and models, and their results."""

from equipoise.runs.result import MetricResult, ModelResult, RunResult, read_main, read_result
from equipoise.runs.run import Run

__all__ = ["MetricResult", "ModelResult", "Run", "RunResult", "read_main", "read_result"]
