"""The contract, over every registered method and both networks: a new method gets it for free."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import methods
from equipoise.testing import CHECKS, NETWORKS
from equipoise.testing.checks import Case
from tests.helpers.runs import LOOSE, QUICK


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", methods.names())
def test_contract(method: str, network: str, check: str, tmp_path: Path) -> None:
    CHECKS[check](
        Case(
            methods.make(method, QUICK.get(method)),
            network,
            tmp_path,
            LOOSE.get(method, Case.tolerance),
        )
    )
