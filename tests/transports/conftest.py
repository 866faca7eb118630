from __future__ import annotations

from collections.abc import Iterator

import pytest

from equipoise.transports.workers.processes import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Two worker processes for all tests: started once, kept over runs, replaced when a test kills
    one.
    """
    found = Pool(2)
    yield found
    found.close()
