"""A network that tests of enrolment share: its kits are copied by tests that change them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.helpers.terminal import equipoise as equipoise
from tests.network import consortium
from tests.network.consortium import Consortium
from tests.network.running import SITES
from tests.network.running import network as network


@pytest.fixture(scope="session")
def enrolled(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """A network with three sites, which is built once for all processes of the tests."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "enrolled"
    with FileLock(base / "enrolled.lock", timeout=600):
        if not (folder / "whole").exists():
            consortium.build(folder, SITES)
            (folder / "whole").touch()
    return consortium.opened(folder, SITES)


@pytest.fixture
def copied(enrolled: Consortium, tmp_path: Path) -> Consortium:
    """The same network in a folder that the test may change."""
    return consortium.copied(enrolled, tmp_path / "copied")
