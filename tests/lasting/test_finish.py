"""The exchanges after the last round: a record of their own, killed and repeated alone, and made up
for by clients that were away.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client, Inputs
from equipoise.composition import compose
from equipoise.experiment import experiment
from equipoise.method import Cohort
from equipoise.methods.corefed import CoReFed
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.finetune import Finetune
from equipoise.records import Down, State, Up, read
from equipoise.runs import Run
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.storage.store import RunError, Store
from equipoise.storage.tables import RoundRecord
from tests.helpers.callbacks import Calling
from tests.helpers.runs import (
    assert_same,
    config,
    everything,
    killed_at_random,
    played,
    same_run,
    settings,
    sites,
)

ROUNDS = 2


@dataclass(frozen=True)
class Farewell(FedAvg):
    """Two exchanges after the last round, which note all that they see."""

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        ups = everyone.run(self.first, Down(model=state.model))
        assert server.joined == [["ada", "bo", "cy", "di"]] * server.rounds
        everyone.run(self.second, Down(total=float(ups.numbers("number").sum())))
        return state.with_(
            asked=[*state.get("asked", []), list(everyone.ids)], rate=server.lr, at=server.round
        )

    def first(self, client: Client, down: Down) -> Up:
        client.state["at"], client.state["rate"] = client.round, client.lr
        client.state["_kept"], client.state["drawn"] = (
            True,
            float(torch.rand(1, generator=client.stream("noise"))),
        )
        return Up(number=len(client.train))

    def second(self, client: Client, down: Down) -> Up:
        client.state["within"], client.state["total"] = "_kept" in client.state, down.total
        return Up()


def test_in_a_composition_what_the_base_ends_with_is_kept_beside_the_guests(tmp_path: Path) -> None:
    run = played(settings(compose(Farewell(), weights=CoReFed()), rounds=ROUNDS), tmp_path / "run")
    state = load_server(run.store)
    assert (
        state.asked == [["ada", "bo", "cy", "di"]] and state.rate == 0.05 and state.at == ROUNDS + 1
    )
    assert "@corefed" in state


def states(run: Run) -> dict[str, Any]:
    return {
        client: read(path, lazy=False) for client, (path, *_) in run.store.current("client").items()
    }


def test_it_is_a_record_of_its_own_with_its_own_names_and_the_last_rounds_rate(
    tmp_path: Path,
) -> None:
    job = settings(
        Farewell(), rounds=ROUNDS, training={"lr": 0.05, "batch": 5, "epochs": 1, "lr_decay": 0.5}
    )
    seen: list[Any] = []
    wanted = eq.Experiment(**job, dataset=eq.from_sites(dict(sites())))
    run = simulate.run(wanted, tmp_path / "run", Calling(on_round=seen.append))
    assert [(record.round, record.finish) for record in seen] == [(1, False), (2, False), (3, True)]
    state = load_server(run.store)
    assert (state.asked, state.rate, state.at) == ([["ada", "bo", "cy", "di"]], 0.025, 3)
    for own in states(run).values():
        assert (own["at"], own["rate"], own["within"], own["total"]) == (
            3,
            0.025,
            True,
            sum(run.store.meta("sizes")["train"]),
        )
    assert {path.name.rpartition("-")[2] for path in run.store.files.rglob("client-*")} == {
        "r3a0x2.safetensors"
    }
    assert (
        [row["round"] for row in run.rounds()] == [1, 2]
        and run.last_round == 2
        and run.status == "finished"
    )
    (end,) = run.finish()
    assert (end["round"], end["cohort"], end["joined"]) == (3, run.clients, run.clients) and end[
        "bytes_up"
    ] == 4 * 8
    with pytest.raises(RunError, match="is finished: all 2 rounds are done"):
        simulate.resume(tmp_path / "run", experiment=wanted)


def test_setup_and_finish_are_records_before_and_after_the_rounds_each_at_its_first_attempt(
    tmp_path: Path,
) -> None:
    run = played(settings(Farewell(), rounds=ROUNDS), tmp_path / "run")
    rows = run.store.rows("select round, attempt from rounds order by round")
    assert [(row["round"], row["attempt"]) for row in rows] == [
        (number, 0) for number in range(ROUNDS + 2)
    ]


def test_final_values_are_measured_after_it_and_leave_the_rounds_alone(tmp_path: Path) -> None:
    plain = played(settings("fedavg", rounds=ROUNDS), tmp_path / "plain")
    run = played(settings(Finetune(tune_epochs=30), rounds=ROUNDS), tmp_path / "run")
    assert {row["round"] for row in run.table(phase="final")} == {3} and {
        row["round"] for row in run.table(phase="received")
    } == {1, 2}
    of_last = {
        (row["client"], row["split"]): row["value"]
        for row in run.table(round=2, model="personal", metric="loss")
    }
    final = {
        (row["client"], row["split"]): row["value"]
        for row in run.table(phase="final", model="personal", metric="loss")
    }
    assert of_last.keys() == final.keys() and all(of_last[place] != final[place] for place in final)
    assert (
        run.final("loss") == {client: final[client, "test"] for client in run.clients}
        and run.main_model == "personal"
    )
    assert run.final("loss", "global") == plain.final("loss", "global")
    assert [row for row in run.table(model="global") if row["phase"] == "received"] == plain.table(
        phase="received"
    )


def test_a_method_without_it_has_no_such_record(tmp_path: Path) -> None:
    for name, method in {
        "plain": FedAvg(),
        "composed": compose(FedAvg(), weights=eq.methods.make("fedequilibria")),
    }.items():
        run = played(settings(method, rounds=ROUNDS), tmp_path / name)
        assert (
            not run.finish()
            and run.store.last_round() == ROUNDS
            and {row["round"] for row in run.table(phase="final")} == {ROUNDS}
        )


# one exchange, and two
@pytest.mark.parametrize(
    ("method", "stride"), [("finetune", 9), pytest.param("poise", 17, marks=pytest.mark.slow)]
)
@pytest.mark.thorough
def test_a_kill_repeats_only_it(method: str, stride: int, play: Any, tmp_path: Path) -> None:
    job = config(tmp_path, method, rounds=1)
    whole = tmp_path / "whole"
    events = play(config=job, out=str(whole))["events"]
    repeated = 0
    for moment in range(15, events, stride):
        out = tmp_path / f"killed-{moment}"
        assert play(config=job, out=str(out), die_at=moment)["killed"]
        before = Store(out)
        done = before.rows("select * from seconds where round = 1")
        ended = before.missed(1) is not None
        assert before.meta("status") == ("finished" if ended else "running")
        before.close()
        if ended:  # nothing but the removal of old files was left to do
            break
        said = play(resume=True, out=str(out))
        assert not said.get("error"), said
        if done:
            repeated += 1
            assert Run(out).store.rows("select * from seconds where round = 1") == done, (
                "round 1 was computed again"
            )
        same_run(whole, out)
        assert untimed(Run(whole).finish()) == untimed(Run(out).finish())
    assert repeated > 3


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_killed_at_random_moments(workers: int, play: Any, tmp_path: Path) -> None:
    job = config(tmp_path, "finetune", rounds=3, workers=workers)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert not play(config=job | {"workers": 0}, out=str(whole)).get("error")
    draw = random.Random(f"finish {workers}")
    shortest, longest = (0.05, 0.4) if not workers else (2.0, 4.0)
    killed_at_random(
        play, job, out, lambda: draw.uniform(shortest, longest), 5 if not workers else 2
    )
    same_run(whole, out)


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_the_floor_does_not_give_it_up_and_who_missed_it_is_asked_again(tmp_path: Path) -> None:
    script = [
        {"round": ROUNDS + 1, "client": client, "kind": "drop"} for client in ("ada", "cy", "di")
    ]
    job = config(
        tmp_path, "finetune", rounds=ROUNDS, participation={"floor": 4}, faults={"script": script}
    )
    run = simulate.run(experiment(job), tmp_path / "run")
    whole = simulate.run(experiment(job | {"faults": {}}), tmp_path / "whole")
    assert (
        run.status == "finished"
        and run.finish()[0]["joined"] == ["bo"]
        and run.store.missed(ROUNDS) == ["ada", "cy", "di"]
    )
    before = run.table(phase="final")
    for client in ("ada", "cy", "di"):  # until it returns it serves the global model
        assert rows_of(before, client, "personal") == rows_of(before, client, "global")
    assert rows_of(before, "bo", "personal") == rows_of(
        whole.table(phase="final"), "bo", "personal"
    )
    records: list[RoundRecord] = []
    late = simulate.resume(tmp_path / "run", Calling(on_round=records.append))
    assert [(record.round, record.cohort) for record in records] == [
        (ROUNDS + 2, ["ada", "cy", "di"])
    ]
    assert late.status == "finished"
    after = late.table(phase="final")
    assert (
        len(after) == len(before) and late.last_round == ROUNDS and late.store.missed(ROUNDS) == []
    )
    assert rows_of(after, "bo", "personal") == rows_of(before, "bo", "personal")
    rounds = {
        client: {row["round"] for row in after if row["client"] == client}
        for client in late.clients
    }
    assert rounds == {
        "ada": {ROUNDS + 2},
        "bo": {ROUNDS + 1},
        "cy": {ROUNDS + 2},
        "di": {ROUNDS + 2},
    }, "who was there is not measured again"
    assert all(
        rows_of(after, client, "personal") != rows_of(before, client, "personal")
        for client in ("ada", "cy", "di")
    )
    assert set(late.final("loss")) == set(late.clients) and len(late.finish()) == 2
    assert_same(
        *(
            {name: value for name, value in everything(one).items() if name.startswith("server")}
            for one in (late, whole)
        )
    )
    with pytest.raises(RunError, match="is finished"):
        simulate.resume(tmp_path / "run")


def rows_of(rows: list[dict[str, Any]], client: str, model: str) -> list[tuple[Any, ...]]:
    return [
        (row["split"], row["metric"], row["value"])
        for row in rows
        if (row["client"], row["model"]) == (client, model)
    ]


def test_without_any_answer_the_run_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    script = [
        {"round": ROUNDS + 1, "client": client, "kind": "drop"}
        for client in ("ada", "bo", "cy", "di")
    ]
    job = config(tmp_path, "finetune", rounds=ROUNDS, faults={"script": script})
    with pytest.raises(
        RunError,
        match=(
            r"Finetune could not be finished after the last round: 0 of 4 replies counted; "
            r"`equipoise resume"
        ),
    ):
        simulate.run(experiment(job), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (
        run.status == "stopped"
        and run.last_round == ROUNDS
        and not run.table(phase="final")
        and run.final("loss")
    )


def test_a_client_lost_between_its_exchanges_has_missed_it(tmp_path: Path) -> None:
    script = [{"round": ROUNDS + 1, "exchange": 2, "client": "cy", "kind": "drop"}]
    wanted = eq.Experiment(
        **settings(Farewell(), rounds=ROUNDS, faults={"script": script}),
        dataset=eq.from_sites(dict(sites())),
    )
    run = simulate.run(wanted, tmp_path / "run")
    assert (
        run.store.missed(ROUNDS) == ["cy"]
        and "total" not in states(run)["cy"]
        and "drawn" in states(run)["cy"]
    )
    run = simulate.resume(tmp_path / "run", experiment=wanted)
    assert (
        load_server(run.store).asked == [run.clients, ["cy"]]
        and states(run)["cy"]["at"] == ROUNDS + 2
    )


@dataclass(frozen=True)
class Halved(FedAvg):
    """Changes inputs, by a number that it delivers."""

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(factor=0.5)

    def inputs(self, client: Client, down: Down) -> Inputs:
        return Inputs(
            train=lambda x, noise: x * down.factor, other=lambda x: x * down.factor, random=False
        )


def test_a_composition_hands_it_on_with_what_guests_deliver(tmp_path: Path) -> None:
    run = played(settings(compose(Finetune(), inputs=Halved()), rounds=ROUNDS), tmp_path / "run")
    plain = played(settings(Finetune(), rounds=ROUNDS), tmp_path / "plain")
    assert run.finish()[0]["joined"] == run.clients and run.final("loss") != plain.final("loss")
