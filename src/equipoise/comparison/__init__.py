"""Comparisons: several methods, seeds and partitions on identical data, and one table of them."""

from equipoise.comparison.entries import open_runs
from equipoise.comparison.run import compare
from equipoise.comparison.table import Comparison, opened

__all__ = ["Comparison", "compare", "open_runs", "opened"]
