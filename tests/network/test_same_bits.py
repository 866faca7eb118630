"""Four hospitals over a real network: the bits of a simulation, for each of the papers' methods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from equipoise.auditing.running import audit, auditing_of, findings_of
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.transports.nvflare.jobs import open_desk
from equipoise.transports.nvflare.scientist import submit, watch_until_end
from tests.network.consortium import build
from tests.network.hospitals import HEART, HOSPITALS, assert_same_bits, give_data, heart_tables
from tests.network.running import RunningNetwork

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not HEART.is_file(), reason="uci_heart_disease.npz is not in EQUIPOISE_DATA"
    ),
]
METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "scaffold": "scaffold",
    "fedakd": "fedakd",
    "fedekd": "fedekd",
    "kdia": "kdia",
    "corefed": "corefed",
    "fedequilibria": "fedequilibria",
    "poise": "poise",
    "finish": {"name": "fedavg", "finish": "poise"},
    "composition": {"name": "fedprox", "weights": "feddisco", "finish": "finetune"},
}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    folder = tmp_path_factory.mktemp("hospitals")
    data = heart_tables(folder / "tables")
    consortium = build(folder / "parties", HOSPITALS)
    give_data(consortium, folder / "tables")
    with consortium.running() as processes, open_desk(consortium.lead) as desk:
        yield RunningNetwork(consortium, processes, desk, data)


@pytest.mark.parametrize("name", METHODS)
def test_five_rounds_have_the_bits_of_a_simulation(
    hospitals: RunningNetwork, tmp_path: Path, name: str
) -> None:
    config = {"data": hospitals.data, "method": METHODS[name], "rounds": 5}
    run = assert_same_bits(hospitals.consortium, hospitals.desk, config, tmp_path)
    assert sorted(run.final()) == list(HOSPITALS)


def test_an_audit_has_the_findings_of_a_simulation(
    hospitals: RunningNetwork, tmp_path: Path
) -> None:
    config = experiment({"data": {**hospitals.data, "normalise": "client"}})
    auditing = auditing_of(config, None)
    run = submit(hospitals.desk, auditing, tmp_path / "audit")
    assert watch_until_end(hospitals.desk, run, lambda progress: None).status == "finished"
    there = findings_of(Run(tmp_path / "audit"), auditing)
    here = audit(config)
    assert [vars(row) for row in there.clients] == [vars(row) for row in here.clients]
    assert there.text == here.text
