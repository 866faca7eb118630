"""Runs on disk: one folder each, with the configuration, every measurement and the checkpoints."""

from equipoise.runs.run import Run, open_run

__all__ = ["Run", "open_run"]
