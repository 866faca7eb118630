"""Runs on disk: one folder each, with the configuration, every measurement and the checkpoints."""

from equipoise.runs.run import Run

__all__ = ["Run"]
