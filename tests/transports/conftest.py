from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.transports.workers.processes import Pool

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "contract"), str(Path(__file__).parent.parent / "lasting")]


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Two worker processes for all tests: started once, kept over runs, replaced when a test kills one."""
    found = Pool(2)
    yield found
    found.close()
