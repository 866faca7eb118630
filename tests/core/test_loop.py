"""The loop over rounds without clients: where it begins, which attempts count, what is committed
and which callbacks are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equipoise.callbacks import Callback, CallbackList
from equipoise.engine import rounds as module
from equipoise.engine.commit import commit, restored
from equipoise.engine.rounds import Loop
from equipoise.experiment import Experiment
from equipoise.method import Cohort
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, Record, State, Up, write
from equipoise.runtime.messages import Reply, Request, StateRef, state_file, state_name
from equipoise.server import Server, ServerData
from equipoise.storage.files import digest, writable_path
from equipoise.storage.store import RoundRecord, RunError, Store
from equipoise.task import Task
from equipoise.transports.base import Monitor
from equipoise.tree import Tree
from tests.helpers.callbacks import Calling


class Counting(FedAvg):
    """Asks all once in every round, and counts the rounds."""

    strict, setting_up, nan = False, False, 0

    def start(self, server: Server) -> State:
        return State(count=0, x=float("nan") if self.nan < 0 else 0.0)

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        if self.setting_up:
            everyone.run(self.step)
        return state

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        cohort.run(self.step, strict=self.strict)
        return state.with_(
            count=state.count + 1, x=float("nan") if server.round == self.nan else 0.0
        )

    def step(self, client: Any, down: Down) -> Up:
        raise AssertionError("nobody is at work here")


class Ending(Counting):
    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        everyone.run(self.step)
        return state.with_(count=state.count + 100)


class Post:
    """A transport; `silent` says who does not answer: (round, attempt, client)."""

    lanes, keeps = 1, "server"

    def __init__(self) -> None:
        self.asked, self.silent = list[Request](), set[tuple[int, int, str]]()

    def present(self) -> list[str]:
        return list("abc")

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        self.asked += requests
        return [self.answer(request) for request in requests]

    def answer(self, request: Request) -> Reply:
        if (request.round, request.attempt, request.client) in self.silent:
            return Reply(request.client, failure="gone")
        kept = StateRef(
            state_name(request.client, request.round, request.attempt, request.exchange),
            1,
            "0" * 64,
        )
        return Reply(request.client, Up(value=1.0), kept)


class Held:
    """In place of a store: what was done to it."""

    folder = Path("run")

    def __init__(self, last: int, missed: list[str] | None) -> None:
        self.last, self.late, self.removed, self.sweeps = last, missed, set[str](), 0

    def resume_command(self) -> str:
        return f"`equipoise resume {self.folder}`"

    def last_round(self) -> int:
        return self.last

    def missed(self, rounds: int) -> list[str] | None:
        assert rounds == 3
        return self.late

    def unevaluated(self) -> list[str]:
        return []

    def remove(self, names: Any) -> None:
        self.removed |= set(names)

    def sweep(self) -> None:
        self.sweeps += 1


class Play:
    """A loop over three rounds with three clients, and what came of it."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        method: Any,
        last: int = -1,
        missed: list[str] | None = None,
        callbacks: Sequence[Callback] = (),
        **settings: Any,
    ) -> None:
        self.committed, self.measured, self.started, self.told = (
            list[Any](),
            list[Any](),
            list[Any](),
            list[int](),
        )
        self.transport, self.store = Post(), Held(last, missed)
        hearing = Calling(
            on_start=lambda start: self.started.append((start.first, start.rounds)),
            on_round=lambda record: self.told.append(record.round),
        )
        self.monitor = Monitor(CallbackList([hearing, *callbacks]))
        wanted = Experiment(method="fedavg", rounds=3, keep=5, **settings)
        bench = SimpleNamespace(lending=nullcontext, training=wanted.training)
        roster = SimpleNamespace(
            ids=list("abc"),
            sizes={"train": dict.fromkeys("abc", 10)},
            task=Task("classification", (2,), 2),
            shared=7,
        )
        data = ServerData("validation", "shared test set")  # type: ignore[arg-type]
        given: Any = (wanted, method, bench, roster, self.transport, self.store, data, self.monitor)
        self.loop = Loop(*given)
        patch.setattr(module, "commit", self.commit)
        patch.setattr(module, "restored", lambda store, clients: State(count=last))
        patch.setattr(module, "Evaluator", self.measuring)

    def commit(self, store: Any, state: State, cohort: Any, keep: int, last: bool) -> State:
        assert keep == 5
        self.committed.append(
            (cohort.record.round, cohort.record.attempt, cohort.record.finish, last, state.count)
        )
        self.record = cohort.record
        return state

    def measuring(
        self,
        method: Any,
        server: Any,
        metrics: Any,
        settings: Any,
        ask: Any,
        lending: Any,
        shared: int,
        own: Any,
        group_columns: Any,
    ) -> Any:
        assert (method, server, shared, own) == (
            self.loop.method,
            self.loop.server,
            7,
            "shared test set",
        )
        assert list(metrics) == ["accuracy", "loss"]
        assert settings is self.loop.experiment.evaluation and lending is nullcontext
        return SimpleNamespace(
            record=lambda state, cohort, finishes, late: self.measured.append(
                (cohort.record.round, state.count, finishes)
            )
        )


def test_a_new_run_goes_from_before_round_1_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch, Counting())
    play.loop.run()
    assert play.committed == [
        (0, 0, False, False, 0),
        (1, 0, False, False, 1),
        (2, 0, False, False, 2),
        (3, 0, False, True, 3),
    ]
    assert play.started == [(1, 3)] and play.told == [1, 2, 3] and play.store.sweeps == 1
    assert play.measured == [
        (1, 1, False),
        (2, 2, False),
        (3, 3, False),
    ] and play.record.joined == list("abc")
    assert play.loop.server.data == ServerData("validation")  # type: ignore[arg-type]  # and no test data
    assert [(one.round, one.client) for one in play.transport.asked] == [
        (number, client) for number in (1, 2, 3) for client in "abc"
    ]


@pytest.mark.parametrize(
    ("last", "started", "rounds"), [(0, 1, [1, 2, 3]), (1, 2, [2, 3]), (2, 3, [3]), (3, 4, [])]
)
def test_a_run_goes_on_behind_the_last_committed_round(
    last: int, started: int, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(monkeypatch, Counting(), last)
    play.loop.run()
    assert [row[0] for row in play.committed] == rounds and play.started == [(started, 3)]
    assert [row[4] for row in play.committed] == rounds  # from the state that was restored


@pytest.mark.parametrize(("last", "missed", "number", "asked"), [
    (-1, None, 4, "abc"), (2, None, 4, "abc"), (3, None, 4, "abc"), (4, ["b"], 5, "b"), (5, ["c"], 6, "c"),
])  # fmt: skip
def test_what_comes_after_the_last_round_is_a_record_of_its_own(
    last: int, missed: Any, number: int, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(monkeypatch, Ending(), last, missed)
    play.loop.run()
    assert play.committed[-1] == (number, 0, True, True, max(last, 3) + 100)
    assert all(not row[3] for row in play.committed[:-1]) and play.measured[-1] == (
        number,
        max(last, 3) + 100,
        True,
    )
    assert "".join(
        one.client for one in play.transport.asked if one.round == number
    ) == asked and play.record.cohort == list(asked)
    assert play.started == [(min(max(last, 0) + 1, 4), 3)]


def test_an_end_that_nobody_answers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch, Ending(), 3)
    play.transport.silent = {(4, 0, client) for client in "abc"}
    with pytest.raises(
        RunError,
        match=(
            r"^Ending could not be finished after the last round: 0 of 3 replies counted; "
            r"`equipoise resume run` asks again$"
        ),
    ):
        play.loop.run()
    assert not play.committed and not play.store.sweeps


def test_a_setup_that_not_all_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Counting()
    object.__setattr__(method, "setting_up", True)
    play = Play(monkeypatch, method, participation={"tries": 1})
    play.transport.silent = {(0, 0, "b")}
    with pytest.raises(
        RunError,
        match=(
            r"^Counting could not be set up before round 1: every client has to answer, .*; when "
            r"all are there, `equip"
        ),
    ):
        play.loop.run()
    assert not play.committed


def test_an_attempt_without_enough_replies_leaves_no_files_and_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play(monkeypatch, Counting(), 0, participation={"floor": 2, "tries": 2})
    play.transport.silent = {(1, 0, "a"), (1, 0, "b"), (2, 0, "c")}
    play.loop.run()
    assert [row[:2] for row in play.committed] == [(1, 1), (2, 0), (3, 0)]
    assert play.store.removed == {state_file(state_name("c", 1, 0, 1))}
    assert [
        one.client for one in play.transport.asked if (one.round, one.attempt) == (1, 1)
    ] == list("abc")
    play = Play(monkeypatch, Counting(), 0, participation={"floor": 3, "tries": 2})
    play.transport.silent = {(1, 0, "a"), (1, 1, "b")}
    with pytest.raises(
        RunError,
        match=(
            r"^round 1 was given up 2 times: 2 of 3 replies counted, 3 needed; .* of client 'b': "
            r"gone; then"
        ),
    ):
        play.loop.run()


def test_who_breaks_a_strict_exchange_is_not_asked_in_the_next_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = Counting()
    object.__setattr__(method, "strict", True)
    play = Play(monkeypatch, method, 0)
    play.transport.silent = {(1, 0, "a"), (1, 1, "b")}
    play.loop.run()
    asked = [
        "".join(one.client for one in play.transport.asked if (one.round, one.attempt) == at)
        for at in ((1, 0), (1, 1), (1, 2), (2, 0))
    ]
    assert asked == ["abc", "bc", "c", "abc"] and play.committed[0][:2] == (1, 2)


def test_a_round_without_any_client_and_one_that_loses_too_many_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play(monkeypatch, Counting(), 0, participation={"script": {1: []}, "tries": 1})
    with pytest.raises(
        RunError, match="^round 1 was given up 1 times: no client was available, 1 needed; lower"
    ):
        play.loop.run()

    class Twice(Counting):
        def round(self, server: Server, state: State, cohort: Cohort) -> State:
            for _ in range(2):
                try:
                    state = super().round(server, state, cohort)
                except Exception:  # a method that continues with what it has
                    return state
            return state

    play = Play(monkeypatch, Twice(), 0, participation={"floor": 3, "tries": 1})
    play.transport.silent = {(1, 0, "a")}
    with pytest.raises(
        RunError, match="^round 1 was given up 1 times: 2 replies counted, 3 needed"
    ):
        play.loop.run()


@pytest.mark.parametrize(("broken", "number"), [(-1, 0), (2, 2)])
def test_a_state_that_is_not_finite_is_not_committed(
    broken: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Counting()
    object.__setattr__(method, "nan", broken)
    play = Play(monkeypatch, method)
    with pytest.raises(
        RunError, match=f"^round {number}: x in the server's state holds values that are not finite"
    ):
        play.loop.run()
    assert [row[0] for row in play.committed] == list(range(number)) and len(play.measured) == max(
        0, number - 1
    )


def test_what_happened_where_belongs_to_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def seen(record: Any) -> None:
        found.append((record.round, record.seconds.get("joined@node")))

    play = Play(monkeypatch, Counting(), callbacks=[Calling(on_round=seen)])
    play.monitor.by_location["joined@node"] = 2
    play.loop.run()
    assert found == [(1, 2), (2, None), (3, None)] and not play.monitor.by_location


# What is kept.


@pytest.mark.parametrize("keeps", ["server", "client"])
def test_a_commit_keeps_the_round_and_a_restart_finds_it(keeps: str, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "run", "", {})
    names = {client: state_name(client, 1, 0, 1) for client in "ab"}
    for name in names.values():
        write(Record(x=1), writable_path(store.files, state_file(name)))
    kept = {
        client: StateRef(
            name,
            (store.files / state_file(name)).stat().st_size,
            digest(store.files / state_file(name)),
        )
        for client, name in names.items()
    }
    (store.files / "aa").mkdir(exist_ok=True)
    (store.files / "aa" / "reply-aa-r1a0x1.safetensors").touch()
    old = StateRef("cc-r0a0x1", 1, "0" * 64)
    clients: Any = SimpleNamespace(
        committed={"c": old},
        server=SimpleNamespace(joined=[], rounds=2),
        transport=SimpleNamespace(keeps=keeps),
    )
    for number, last, finish in (
        (0, False, False),
        (1, False, False),
        (2, False, False),
        (3, True, True),
    ):
        record = RoundRecord(number, 0, ["a", "b"], ["b"] if number else [], finish=finish)
        cohort: Any = SimpleNamespace(
            record=record,
            clients=clients,
            provisional=kept if number == 1 else {},
            discarded={"aa/reply-aa-r1a0x1.safetensors"},
        )
        state = commit(
            store, State(model=Tree({"w": torch.ones(1)}, "net"), n=number), cohort, 5, last
        )
        assert state.n == number and store.meta("status") == ("finished" if last else "running")
        assert (
            0 < record.seconds["store"] < 60
            and not (store.files / "aa" / "reply-aa-r1a0x1.safetensors").exists()
        )
    assert clients.committed == {"c": old, **kept} and clients.server.joined == [["b"], ["b"]]
    assert {
        row["kept_at"] for row in store.rows("select kept_at from files where kind = 'client'")
    } == {keeps}
    assert len(store.checkpoints()) == 4
    fresh: Any = SimpleNamespace(
        committed={},
        server=SimpleNamespace(joined=None, rounds=2),
        faults=SimpleNamespace(restarts=lambda number: ()),
        transport=SimpleNamespace(keeps=keeps),
    )
    assert (
        restored(store, fresh).n == 3
        and fresh.committed == kept
        and fresh.server.joined == [["b"], ["b"]]
    )
    other = "client" if keeps == "server" else "server"
    fresh.transport.keeps = other
    with pytest.raises(
        RunError,
        match=(
            f"lie at the {keeps}, and this transport keeps them at the {other}; resume the run over"
        ),
    ):
        restored(store, fresh)
    store.close()
