"""The examples in docs/fairness.md are true."""

from __future__ import annotations

import doctest
from pathlib import Path

from equipoise import metrics

GUIDE = Path(__file__).parents[2] / "docs" / "fairness.md"


def test_guide() -> None:
    result = doctest.testfile(str(GUIDE), module_relative=False)
    assert result.attempted > 10 and not result.failed


def test_everything_exported_exists() -> None:
    assert all(hasattr(metrics, name) for name in metrics.__all__)
