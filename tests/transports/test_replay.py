"""A run with real faults is written down as a script and repeated in process, bit for bit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise.client import Client
from equipoise.experiment import experiment
from equipoise.methods.fedekd import FedeKD
from equipoise.records import Down, Up
from equipoise.runs import Run
from equipoise.runtime.messages import Reply
from equipoise.transports.inprocess import InProcess
from tests.helpers.runs import assert_same, everything, played, settings, sites
from tests.helpers.transports import separated

EIGHT = sites({f"c{k}": 12 + k for k in range(8)})


def repeated(run: Run, out: Path, data: Any = None) -> Run:
    script = run.replay()
    assert experiment(yaml.safe_load(yaml.safe_dump(script))).workers == 0, (
        "it is a configuration that a file can hold"
    )
    again = played(script, out, data)
    assert_same(everything(run), everything(again))
    for rows in (Run.table, Run.weights):
        assert rows(run) == rows(again)
    kept = ("round", "attempt", "cohort", "joined", "bytes_down", "bytes_up", "steps", "skipped")
    assert [[row[key] for key in kept] for row in run.rounds()] == [
        [row[key] for key in kept] for row in again.rounds()
    ]
    last = {row["round"]: row["attempt"] for row in run.rounds()}
    assert all(fault["attempt"] == last[fault["round"]] for fault in script["faults"]["script"]), (
        "earlier attempts do not happen again"
    )
    places = ("round", "attempt", "exchange", "client")
    counted = [
        [row[key] for key in places]
        for row in run.rejected()
        if row["attempt"] == last[row["round"]]
    ]
    assert counted == [[row[key] for key in places] for row in again.rejected()]
    return again


@dataclass(frozen=True)
class Hanging(FedeKD):
    """FedeKD at whose second exchange one client hangs in round 2."""

    def backward(self, client: Client, down: Down) -> None:
        super().backward(client, down)
        if HANGS and (client.id, client.round) == ("bo", 2):
            time.sleep(60)


HANGS: list[bool] = []


@pytest.mark.thorough
def test_a_run_whose_client_hangs_in_the_second_exchange_repeats_bit_for_bit(
    tmp_path: Path,
) -> None:
    HANGS.append(True)
    try:
        # What a client keeps after its first exchange stands, though the second one did not end.
        run = played(
            settings(Hanging(warmup_epochs=1, proxy_start="own"), participation={"deadline": 2.0}),
            tmp_path / "run",
        )
    finally:
        HANGS.clear()
    assert [
        (row["round"], row["exchange"], row["client"], row["reason"]) for row in run.rejected()
    ] == [(2, 2, "bo", "did not answer within 2 s")]
    assert run.store.current("client", "bo", at=2)["bo"].path.name.endswith("-r2a0x1.safetensors")
    script = run.replay()
    assert script["faults"]["script"] == [
        {"round": 2, "attempt": 0, "exchange": 2, "client": "bo", "kind": "drop"}
    ]
    assert script["participation"]["script"][2] == {
        "clients": ["ada", "bo", "cy", "di"],
        "attempt": 0,
    }
    # of this file, so that no name in the run leads to it
    script["method"] = Hanging(warmup_epochs=1, proxy_start="own")
    again = played(script, tmp_path / "again")
    assert_same(everything(run), everything(again))
    assert run.table() == again.table() and run.table()
    without = played({**script, "faults": {}}, tmp_path / "without")
    assert everything(without).keys() == everything(run).keys()
    with pytest.raises(AssertionError):
        assert_same(everything(without), everything(run))


class Unlucky(InProcess):
    """A site is lost in round 2 and another one sends nonsense in round 3.

    In round 1 the first cohort fails, so that it is tried again.
    """

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        found = super().exchange(requests, deadline)
        for place, request in enumerate(requests):
            if not request.exchange:
                continue
            if (request.round, request.attempt) == (1, 0) or (request.round, request.client) == (
                2,
                requests[-1].client,
            ):
                found[place] = Reply(request.client, failure="the connection was lost")
            elif request.round == 3 and place == 0:
                found[place].up = Up(model=found[place].up["model"], nonsense=1)  # type: ignore[index]
        return found


@pytest.mark.parametrize(
    "faults",
    [{}, {"dropout": 0.2, "stragglers": 0.3, "slowdown": 50.0, "deadline": 0.05}],
    ids=["real", "and drawn"],
)
def test_lost_sites_refused_replies_and_rounds_that_were_given_up_repeat_bit_for_bit(
    faults: dict[str, Any], tmp_path: Path
) -> None:
    config = settings("scaffold", rounds=4, participation={"number": 7, "tries": 5}, faults=faults)
    run = played(config, tmp_path / "run", EIGHT, Unlucky)
    assert run.rounds()[0]["attempt"] >= 1
    reasons = " ".join(row["reason"] for row in run.rejected())
    assert "the connection was lost" in reasons and "expected the entries" in reasons
    assert not faults or ("missed the deadline" in reasons and "dropped out" in reasons)
    again = repeated(run, tmp_path / "again", EIGHT)
    assert not faults or "missed the deadline" in " ".join(
        row["reason"] for row in again.rejected()
    ), "drawn faults are drawn again"
    repeated(again, tmp_path / "and again", EIGHT)


def test_a_run_without_faults_repeats_and_its_drawn_cohorts_are_written_down(
    tmp_path: Path,
) -> None:
    run = played(settings("kdia", participation={"number": 2}), tmp_path / "run")
    again = repeated(run, tmp_path / "again")
    assert {
        n: list(one["clients"]) for n, one in run.replay()["participation"]["script"].items()
    } == {row["round"]: row["cohort"] for row in again.rounds()}
    assert len({tuple(row["cohort"]) for row in run.rounds()}) > 1


def test_a_run_whose_states_lie_at_clients_repeats_in_process(tmp_path: Path) -> None:
    config = settings("scaffold", faults={"script": [{"round": 2, "client": "ada", "kind": "nan"}]})
    run = played(config, tmp_path / "run", transport=separated(tmp_path / "disk"))
    again = played(run.replay(), tmp_path / "again")
    assert_same(everything(run, tmp_path / "disk"), everything(again))
    assert run.table() == again.table()


class LostAtTheEnd(InProcess):
    """A site is lost between the two exchanges after the last round."""

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        found = super().exchange(requests, deadline)
        for place, request in enumerate(requests):
            if (request.round, request.exchange, request.client) == (request.rounds + 1, 2, "cy"):
                found[place] = Reply(request.client, failure="the connection was lost")
        return found


def test_a_run_whose_client_missed_the_end_repeats_bit_for_bit(tmp_path: Path) -> None:
    run = played(settings("poise"), tmp_path / "run", transport=LostAtTheEnd)
    assert run.store.missed(3) == ["cy"]
    again = played(run.replay(), tmp_path / "again")
    assert_same(everything(run), everything(again))
    assert run.table() == again.table() and [row["joined"] for row in run.finish()] == [
        row["joined"] for row in again.finish()
    ]
