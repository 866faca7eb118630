"""A network of three small hospitals that runs for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from equipoise.transports.nvflare.jobs import Desk, open_desk
from equipoise.transports.nvflare.processes import PartyProcess
from tests.network.consortium import Consortium, copied
from tests.network.hospitals import give_data, small_tables

SITES = ("north", "south", "west")


@dataclass
class RunningNetwork:
    """Three small hospitals, their server, and a scientist who is connected to it."""

    consortium: Consortium
    processes: dict[str, PartyProcess]
    desk: Desk
    data: dict[str, Any]


@pytest.fixture(scope="module")
def network(
    enrolled: Consortium, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNetwork]:
    folder = tmp_path_factory.mktemp("network")
    data = small_tables(folder / "tables", SITES)
    consortium = copied(enrolled, folder / "parties")
    give_data(consortium, folder / "tables")
    with consortium.running() as processes, open_desk(consortium.lead) as desk:
        yield RunningNetwork(consortium, processes, desk, data)
