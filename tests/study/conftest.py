from __future__ import annotations

import pytest

from equipoise.transports.workers import processes


@pytest.fixture(autouse=True, scope="package")
def children_are_forked() -> None:
    """Spare every child process the import of torch, as the command line does."""
    processes.allow_fork()
