"""Every registered method passes every check of `equipoise.testing`, on both networks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from equipoise import methods
from equipoise.testing import CHECKS, NETWORKS
from equipoise.testing.checks import Case
from tests.helpers.runs import LOOSE, QUICK


@pytest.fixture(scope="module")
def learnt() -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """Results of undisturbed runs, shared by the checks of one method and network."""
    return defaultdict(dict)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", methods.names())
def test_contract(
    method: str,
    network: str,
    check: str,
    tmp_path: Path,
    learnt: dict[tuple[str, str], dict[int, dict[str, Any]]],
) -> None:
    made = methods.make(method, QUICK.get(method))
    tolerance = LOOSE.get(method, Case.tolerance)
    CHECKS[check](Case(made, network, tmp_path, tolerance, learnt[method, network]))
