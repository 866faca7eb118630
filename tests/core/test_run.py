"""Runs as a whole: threads, errors, state that lasts, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.method import Cohort, Method, Ups, Weights
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.transports.base import ClientError
from tests.helpers.callbacks import Calling
from tests.helpers.plain import assert_equal
from tests.helpers.problems import server_state, trained
from tests.helpers.runs import assert_same, everything, played, settings, sites


@dataclass(frozen=True)
class Failing(Method):
    """Notes how many threads it had, then fails at one client in round 2."""

    def client(self, client: Client, down: Down) -> Up | None:
        if client.round == 2 and client.id == "cy":
            raise ZeroDivisionError("no such luck")
        return Up(model=client.load(down.model), threads=torch.get_num_threads())

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        return state.with_(threads=[*ups.values("threads"), torch.get_num_threads()])


def test_an_exception_names_client_round_and_step_and_keeps_its_cause(tmp_path: Path) -> None:
    with pytest.raises(
        ClientError, match="client 'cy', round 2, step 'client': ZeroDivisionError: no such luck"
    ) as caught:
        played(settings(Failing()), tmp_path / "run")
    assert isinstance(caught.value.__cause__, ZeroDivisionError), (
        "a debugger must reach the line that failed"
    )
    assert eq.Run(tmp_path / "run").last_round == 1, "what was finished before stands"


def test_all_computation_is_on_one_thread_and_the_users_setting_comes_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run = played(settings(Failing(), rounds=1), tmp_path / "run")
        assert server_state(run).threads == [1] * 5
        assert torch.get_num_threads() == 3
        with pytest.raises(ClientError):
            played(settings(Failing()), tmp_path / "failed")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Remembering(Method):
    """Keeps every client's last model by client, at the top of its state and nested in it."""

    def start(self, server: Server) -> State:
        return super().start(server).with_(last=PerClient(), inner={"counts": PerClient()})

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        counts = state.inner["counts"]
        return state.with_(
            last=state.last.put(ups.table("model")),
            inner={"counts": counts.put({client: counts.get(client, 0) + 1 for client in ups.ids})},
        )


def stopped_after(number: int) -> Calling:
    def stop(record: Any) -> None:
        if record.round == number:
            raise KeyboardInterrupt

    return Calling(on_round=stop)


@pytest.mark.parametrize(
    ("cores", "asked", "processes"), [(3, None, 3), (None, None, 1), (3, 2, 2), (3, 0, None)]
)
def test_there_is_a_worker_for_every_core_unless_a_number_is_given(
    cores: int | None, asked: int | None, processes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(simulate, "Pool", lambda count: count)
    assert simulate._pool(eq.Experiment(data={"name": "digits"}, workers=asked)) == processes


def test_values_by_client_survive_a_resume_and_only_changed_ones_are_written(
    tmp_path: Path,
) -> None:
    config = settings(Remembering(), rounds=5, participation={"number": 2}, keep=100)
    whole = played(config, tmp_path / "whole")
    wanted = eq.Experiment(**config, dataset=eq.from_sites(sites()))
    with pytest.raises(KeyboardInterrupt):
        simulate.run(wanted, tmp_path / "cut", stopped_after(2))
    assert eq.Run(tmp_path / "cut").last_round == 2
    resumed = eq.resume(tmp_path / "cut", experiment=wanted)
    assert_same(everything(whole), everything(resumed))
    state, rounds = load_server(resumed.store), resumed.rounds()
    joined = [client for row in rounds for client in row["joined"]]
    assert dict(state.inner["counts"]) == {client: joined.count(client) for client in joined}
    assert isinstance(state.last, PerClient) and set(state.last) == set(joined)
    written = resumed.store.rows(
        "select round, key from files where kind = 'perclient' and key like 'last%' order by rowid"
    )
    assert [(row["round"], row["key"].partition("\x1f")[2]) for row in written] == [
        (row["round"], c) for row in rounds for c in row["joined"]
    ]


@dataclass(frozen=True)
class KeepsReplies(Method):
    """Puts what clients sent in round 1 into its state as it is, for good."""

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        state = super().update(server, state, ups, weights)
        return (
            state
            if server.round > 1
            else state.with_(first=ups[0].model, all={"of": ups.values("model")}, record=ups[0])
        )


def test_replies_that_go_through_files_give_the_same_bits(tmp_path: Path) -> None:
    """Also when a method keeps them: their files end with the round."""
    wide = {"models": {"model": {"name": "mlp", "hidden": [1500]}}, "rounds": 4}
    spooled, held = (
        played(settings(KeepsReplies(), memory=megabytes, **wide), tmp_path / str(megabytes))
        for megabytes in (1, 512)
    )
    assert_same(everything(held), everything(spooled))
    assert not list((tmp_path / "1" / "files").rglob("reply-*"))


@dataclass(frozen=True)
class TwoStages(Method):
    """Hands something from one exchange of a round to the next."""

    def client(self, client: Client, down: Down) -> Up:
        client.state["kept"] = client.state.get("kept", 0) + 1
        found = client.state.get("_note", "nothing")
        client.state["_note"] = f"round {client.round}"
        return Up(model=client.load(down.model), found=found)

    def second(self, client: Client, down: Down) -> Up:
        return Up(found=client.state.get("_note", "nothing"), kept=client.state["kept"])

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        first = cohort.run(self.client, Down(model=state.model))
        second = cohort.run(self.second)
        return state.with_(
            found=[*first.values("found"), *second.values("found")], kept=second.values("kept")
        )


def test_a_note_with_a_leading_underscore_ends_with_its_round(tmp_path: Path) -> None:
    state = server_state(played(settings(TwoStages(), rounds=3), tmp_path / "run"))
    assert state.found == ["nothing"] * 4 + ["round 3"] * 4
    assert state.kept == [3] * 4


@dataclass(frozen=True)
class Nameless(Method):
    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        cohort.run(lambda client, down: Up())
        return state


def test_a_step_is_a_method_of_the_class(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError,
        match=r"expected a method of Nameless such as self.client, got .*; steps travel by name",
    ):
        played(settings(Nameless()), tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "holds values that are not finite"),
        ("shape", "expected shape"),
        ("names", "missing ['features.1.weight']"),
        ("drop", "dropped out"),
    ],
)
def test_a_damaged_reply_does_not_count_and_the_reason_is_kept(
    tmp_path: Path, kind: str, reason: str
) -> None:
    run = trained(
        "fedavg",
        tmp_path / "run",
        "mlp",
        rounds=1,
        faults={"script": [{"round": 1, "client": "cy", "kind": kind}]},
    )
    (row,) = run.rejected()
    assert (row["round"], row["client"]) == (1, "cy") and reason in row["reason"]
    assert run.rounds()[0]["joined"] == ["ada", "bo", "di"]


def test_every_number_says_what_it_is(tmp_path: Path) -> None:
    run = played(
        settings(
            "fedavg",
            rounds=2,
            evaluation={"after_local": True, "distances": True, "metrics": ["accuracy"]},
        ),
        tmp_path / "run",
    )
    rows = run.table()
    assert list(rows[0]) == ["round", "client", "model", "phase", "split", "metric", "value"]
    said = {
        ("global", "received"),
        ("global", "final"),
        ("local", "after_local"),
        ("majority", "reference"),
    }
    assert {(row["model"], row["phase"]) for row in rows} == said
    assert {row["metric"] for row in rows if row["split"] == "test"} == {"accuracy"}
    last = [{**row, "phase": "final"} for row in run.table(round=2, phase="received")]
    assert run.table(phase="final") == last and not run.table(round=1, phase="final")
    assert {row["split"] for row in run.table(phase="after_local")} >= {
        "validation",
        "test",
        "parameters",
    }
    assert run.final() == {
        row["client"]: row["value"]
        for row in run.table(phase="final", split="test", metric="accuracy")
    }
    with pytest.raises(TypeError, match="unknown column 'klient'; expected one of round, client"):
        run.table(klient="ada")


def test_a_run_is_not_overwritten_and_folders_may_have_any_name(tmp_path: Path) -> None:
    odd = tmp_path / "50% #1?"
    first = played(settings("fedavg", rounds=1), odd)
    assert eq.Run(odd).table() == first.table()
    with pytest.raises(RuntimeError, match="holds a run already"):
        played(settings("fedavg", rounds=1), odd)
    with pytest.raises(RuntimeError, match="is not a run"):
        eq.Run(tmp_path)


def test_a_run_repeats_from_its_own_file(tmp_path: Path) -> None:
    first = eq.run(
        {
            "data": {"name": "digits", "clients": 3},
            "rounds": 1,
            "workers": 0,
            "model": {"name": "mlp", "hidden": [4]},
        },
        tmp_path / "a",
    )
    second = eq.run(first.config, tmp_path / "b")
    assert first.config == second.config and first.table() == second.table()
    assert_equal(server_state(first).model, server_state(second).model)
