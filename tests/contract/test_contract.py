"""Every registered method passes every check of `equipoise.testing`, on both networks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from equipoise import methods
from equipoise.testing import CHECKS, NETWORKS
from equipoise.testing.checks import Case
from tests.helpers.runs import LOOSE, OF_EACH_KIND, QUICK

# Batch norm has buffers that travel, are averaged and may become NaN; methods of each kind are
# checked with them. Elsewhere the kind of network matters little, and the slow tests check it.
CHECKED_ON_CNN = {"state_round_trips", "payload_travels", "order_of_clients", "nan_reply"}
# Quick for every method: what it may learn from, and what it may send.
QUICK_CHECKS = {"payload_travels", "unseen_test_data"}


def _cases() -> list[Any]:
    cases = []
    for method in methods.names():
        for network in NETWORKS:
            for check in CHECKS:
                marks = _marks(method, network, check)
                cases.append(pytest.param(method, network, check, marks=marks))
    return cases


def _marks(method: str, network: str, check: str) -> Any:
    represents = method in OF_EACH_KIND
    if network == "mlp":
        return () if represents or check in QUICK_CHECKS else pytest.mark.thorough
    return pytest.mark.thorough if represents and check in CHECKED_ON_CNN else pytest.mark.slow


@pytest.fixture(scope="module")
def learnt() -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """Results of undisturbed runs, shared by the checks of one method and network."""
    return defaultdict(dict)


@pytest.mark.parametrize(("method", "network", "check"), _cases())
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
