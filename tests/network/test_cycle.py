"""One cycle of a real network with mutual TLS: enrol, run two methods, and fetch the results."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.network.hospitals import assert_same_bits
from tests.network.running import SITES, RunningNetwork


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", {"name": "fedavg", "finish": "poise"}])
def test_a_run_over_the_network_has_the_bits_of_a_simulation(
    network: RunningNetwork, tmp_path: Path, method: object
) -> None:
    assert network.desk.connected_sites() == list(SITES)
    config = {"data": network.data, "method": method, "rounds": 2}
    run = assert_same_bits(network.consortium, network.desk, config, tmp_path)
    assert sorted(run.final()) == list(SITES)
