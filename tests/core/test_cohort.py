"""A round as the server sees it: who is asked, what of the replies counts, which files go, where
the time went.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.engine import cohort as module
from equipoise.engine.cohort import Clients, RoundAborted, RoundCohort
from equipoise.engine.commit import check_finite, round_failed
from equipoise.engine.faults import FaultPlan, corrupted
from equipoise.engine.reply_validation import not_finite, validate_upload
from equipoise.engine.sampling import choose
from equipoise.engine.signals import interruptible
from equipoise.experiment import Experiment, Faults, Participation
from equipoise.method import Weights
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, PerClient, State, Up
from equipoise.runtime.evaluation_messages import CheckState, SendModel
from equipoise.runtime.messages import Reply, Request, StateRef, reply_file, state_file, state_name
from equipoise.storage.store import RoundRecord, RunError
from equipoise.streams import stream
from equipoise.training import Training
from equipoise.transports.base import ClientError
from equipoise.tree import Tree

# Who is asked.

EIGHT = [f"c{place}" for place in range(8)]


def test_a_cohort_is_drawn_from_the_seed_the_round_and_the_attempt_in_the_order_of_all() -> None:
    half = Participation(fraction=0.5)
    for attempt, names in ((0, ()), (1, (1,)), (2, (2,))):
        expected = [
            EIGHT[place]
            for place in sorted(stream(5, "cohort", 3, *names).choice(8, size=4, replace=False))
        ]
        assert choose(half, EIGHT, 5, 3, attempt) == expected
    assert (
        choose(Participation(), EIGHT, 5, 3, 0)
        == choose(Participation(number=20), EIGHT, 5, 3, 1)
        == EIGHT
    )
    assert choose(Participation(number=2, script={3: ["c7", "c1"], 4: []}), EIGHT, 5, 3, 0) == [
        "c1",
        "c7",
    ]


@pytest.mark.parametrize("number", [2, 6, 8])
def test_of_those_who_are_available_no_more_than_there_are(number: int) -> None:
    settings, draw = Participation(number=number, availability=0.5), stream(5, "cohort", 1)
    available = [
        client for client, chance in zip(EIGHT, draw.random(8), strict=True) if chance < 0.5
    ]
    assert 2 < len(available) < 8
    chosen = draw.choice(len(available), size=min(number, len(available)), replace=False)
    assert choose(settings, EIGHT, 5, 1, 0) == [available[place] for place in sorted(chosen)]


def test_a_cohort_is_drawn_among_those_present() -> None:
    present = ["c6", "c1", "c4"]
    assert choose(Participation(), EIGHT, 5, 3, 0, present) == ["c1", "c4", "c6"]
    two = choose(Participation(number=2), EIGHT, 5, 3, 0, present)
    assert len(two) == 2 and set(two) < set(present)
    assert choose(Participation(), EIGHT, 5, 3, 0, []) == []
    scripted = Participation(script={3: ["c7", "c1"]})
    assert choose(scripted, EIGHT, 5, 3, 0, present) == ["c1", "c7"]
    drawn = choose(Participation(number=4, availability=0.7), EIGHT, 5, 3, 0)
    assert choose(Participation(number=4, availability=0.7), EIGHT, 5, 3, 0, EIGHT) == drawn


def test_a_client_whose_draw_is_the_chance_itself_is_not_available() -> None:
    chances = stream(5, "cohort", 1).random(8)
    expected = [
        client for client, chance in zip(EIGHT, chances, strict=True) if chance < chances[3]
    ]
    assert choose(Participation(availability=float(chances[3])), EIGHT, 5, 1, 0) == expected != []


# Faults.

TRAINED = Training(lr=0.1, batch=10, epochs=2)
MODEL = Tree({"n": torch.tensor(3), "w": torch.ones(2, 3), "b": torch.zeros(2)}, "net", ["n"])


def test_a_script_strikes_one_exchange_of_one_attempt_at_one_round() -> None:
    script = [
        {"round": 2, "client": "a", "kind": "kill", "exchange": 2, "attempt": 1},
        {"round": 1, "client": "a", "kind": "drop"},
    ]
    plan = FaultPlan(Faults(script=script), TRAINED, 0)
    assert plan.kills(2, 1, 2, "a") and not any(
        plan.kills(*at) for at in [(1, 1, 2, "a"), (2, 0, 2, "a"), (2, 1, 1, "a"), (2, 1, 2, "b")]
    )
    assert plan.missing(1, 0, 1, "a", 100) == ("dropped out", 0.0)
    assert plan.missing(1, 1, 1, "a", 100)[0] is None and plan.missing(1, 0, 1, "b", 100)[0] is None


def virtual(
    client: str, samples: int, slow: float = 1.0, steps: int | None = None, seed: int = 3
) -> float:
    """A thousand samples take a second, give or take a tenth."""
    visits = 10 * steps if steps else 2 * samples
    return (
        visits
        / 1000
        * slow
        * float(np.exp(0.1 * stream(seed, "faults", "noise", 4, 1, client).standard_normal()))
    )


@pytest.mark.parametrize("steps", [None, 7])
def test_the_virtual_clock_counts_visits_noise_and_slowness(steps: int | None) -> None:
    plan = FaultPlan(
        Faults(stragglers=0.4, slowdown=5.0, deadline=1e6),
        TRAINED.model_copy(update={"steps": steps}),
        3,
    )
    slow = {client: stream(3, "faults", "speed", client).random() < 0.4 for client in EIGHT}
    assert len(set(slow.values())) == 2
    for client in EIGHT:
        reason, seconds = plan.missing(4, 1, 1, client, 150)
        assert reason is None and seconds == pytest.approx(
            virtual(client, 150, 5.0 if slow[client] else 1.0, steps), rel=1e-12
        )
        assert plan.missing(4, 1, 2, client, 150) == (None, 0.0)  # drawn once for a round


def test_a_client_is_late_behind_the_deadline_and_not_at_it() -> None:
    at = virtual("a", 150)
    assert FaultPlan(Faults(deadline=at), TRAINED, 3).missing(4, 1, 1, "a", 150) == (None, at)
    before = float(np.nextafter(at, 0))
    reason, waited = FaultPlan(Faults(deadline=before), TRAINED, 3).missing(4, 1, 1, "a", 150)
    assert (
        waited == before
        and reason == f"missed the deadline: {at:.3g} of {before:.3g} virtual seconds"
    )


def test_dropouts_and_damages_are_drawn_for_each_client_round_and_attempt() -> None:
    plan = FaultPlan(Faults(dropout=0.5, corrupt=0.5, corruption="names"), TRAINED, 3)
    for what, struck in (
        (
            "dropout",
            [
                client
                for client in EIGHT
                if plan.missing(4, 1, 1, client, 10) == ("dropped out", 0.0)
            ],
        ),
        ("corrupt", [client for client in EIGHT if "w" not in damaged(plan, 4, 1, 1, client)]),
    ):
        assert (
            struck
            == [
                client for client in EIGHT if stream(3, "faults", what, 4, 1, client).random() < 0.5
            ]
            and 0 < len(struck) < 8
        )
    assert all(
        "w" in damaged(plan, round, 1, exchange, client)
        for client in EIGHT
        for round, exchange in ((0, 1), (4, 2))
    )


def damaged(plan: FaultPlan, round: int, attempt: int, exchange: int, client: str) -> Tree:
    found = plan.damaged(round, attempt, exchange, Reply(client, Up(model=MODEL), steps=7))
    assert (found.client, found.steps) == (client, 7) and found.up is not None
    tree: Tree = found.up.model
    return tree


def test_a_reply_that_nothing_strikes_is_the_one_that_came() -> None:
    reply, silent = Reply("a", Up(model=MODEL)), Reply("a", failure="gone")
    script = Faults(script=[{"round": 1, "client": "a", "kind": "nan"}])
    assert FaultPlan(Faults(), TRAINED, 0).damaged(1, 0, 1, reply) is reply
    assert FaultPlan(script, TRAINED, 0).damaged(1, 0, 1, silent) is silent
    assert damaged(FaultPlan(script, TRAINED, 0), 1, 0, 1, "a")["w"].isnan().all()


def test_damage_strikes_the_first_trained_entry_of_the_first_tree() -> None:
    buffers = Tree({"n": torch.tensor(3)}, "net", ["n"])
    up = Up(value=1.0, buffers=buffers, model=MODEL, more=MODEL)
    assert corrupted(up, "nan").model["w"].isnan().all() and corrupted(up, "nan").model[
        "b"
    ].tolist() == [0, 0]
    assert corrupted(up, "shape").model["w"].shape == (5,)
    names = corrupted(up, "names")
    assert list(names.model) == ["n", "b"] and (names.model.model, names.model.untrained) == (
        "net",
        {"n"},
    )
    assert names.more is MODEL and names.buffers is buffers
    assert np.isnan(corrupted(Up(value=1.0, buffers=buffers), "nan").damaged)


# What counts.


class Asking(FedAvg):
    """Asks for more than models."""

    def count(self, client: Any, down: Down) -> Up:
        raise AssertionError("nobody is at work here")


def server(**more: Any) -> Any:
    found = {
        "round": 1,
        "rounds": 3,
        "attempt": 0,
        "ids": list("abc"),
        "sizes": dict.fromkeys("abc", 100),
        "joined": [],
        **more,
    }
    return SimpleNamespace(initial=lambda name: {"net": MODEL}[name], **found)


HALF = MODEL.model, MODEL.untrained


@pytest.mark.parametrize(
    ("up", "sentence"),
    [
        (None, "no reply"),
        (Up(model=MODEL), "expected the entries ['loss', 'model'], got ['model']"),
        (Up(model=1.0, loss=1.0), "expected an uploaded `model`, got ['loss', 'model']"),
        (Up(model=Tree(MODEL, "other", ["n"]), loss=1.0), "model: a tree of an unknown model 'other'"),
        (Up(model=Tree({**MODEL, "b": torch.zeros(3)}, *HALF), loss=1.0), "model: "),
        (Up(model=Tree({**MODEL, "b": torch.tensor([0, np.inf])}, *HALF), loss=1.0), "model: b holds values that are not finite"),
        (Up(model=MODEL, loss=torch.tensor([1, np.nan])), "loss holds values that are not finite"),
        (Up(model=MODEL, loss={"a": [1.0, -np.inf]}), "loss.a[1] is -inf: not finite"),
        (Up(model=MODEL, loss=1.0), None),
    ],
)  # fmt: skip
def test_a_reply_counts_unless_something_is_wrong_with_it(
    up: Up | None, sentence: str | None
) -> None:
    found = validate_upload(up, frozenset({"model", "loss"}), server(), FedAvg(), "client")
    assert found is None if sentence is None else found is not None and found.startswith(sentence)


def test_only_the_step_of_a_method_that_uploads_models_has_to() -> None:
    class Silent(FedAvg):
        uploads_model = False

    alone = Up(loss=1.0)
    assert validate_upload(alone, frozenset({"loss"}), server(), FedAvg(), "other") is None
    assert validate_upload(alone, frozenset({"loss"}), server(), Silent(), "client") is None
    assert (
        validate_upload(alone, frozenset({"loss"}), server(), FedAvg(), "client")
        == "expected an uploaded `model`, got ['loss']"
    )


def test_a_servers_state_that_is_not_finite_ends_the_run_by_the_name_of_the_entry() -> None:
    state = State(a=1.0, model=MODEL, own=PerClient({"x": float("nan")}, {"y": 1.0}))
    assert not_finite(state) is None
    check_finite(state, TRAINED, 3)
    with pytest.raises(
        RunError,
        match=(
            r"^round 3: own\.y in the server's state holds .*lower training\.lr \(now 0\.1\) or "
            r"set training\.clip=1"
        ),
    ):
        check_finite(state.with_(own=PerClient({}, {"y": float("inf")})), TRAINED, 3)


# The clients.


class Post:
    """A transport that answers as a test says."""

    lanes, keeps = 2, "server"

    def __init__(self, answers: Callable[[Request], Reply]) -> None:
        self.answers, self.asked, self.clock, self.deadlines = (
            answers,
            list[list[Request]](),
            0.0,
            set[float | None](),
        )

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        self.asked.append(list(requests))
        self.deadlines.add(deadline)
        self.clock += 4.0
        return [self.answers(request) for request in requests]

    def perf_counter(self) -> float:
        return self.clock


def value(request: Request) -> Reply:
    return Reply(request.client, Up(value=1.0), seconds=1.0, steps=2, skipped=1, bytes=8)


def clients(
    answers: Callable[[Request], Reply] = value, shared: int = 0, now: Any = None, **settings: Any
) -> Any:
    """Without a workbench or data: the engine asks nothing of them."""
    wanted = Experiment(method="fedavg", rounds=3, **settings)
    found: Any = (
        wanted,
        Asking(),
        now or server(),
        SimpleNamespace(shared=shared),
        Post(answers),
        ["loss"],
    )
    return Clients(*found)


def cohort(of: Clients, ids: str = "abc") -> RoundCohort:
    return RoundCohort(of, ids, RoundRecord(of.server.round, of.server.attempt, list(ids), []))


def missing(*who: str, reason: str = "gone") -> Callable[[Request], Reply]:
    return lambda request: (
        Reply(request.client, failure=reason) if request.client in who else value(request)
    )


def test_a_client_works_on_its_last_accepted_state_and_keeps_the_committed_one() -> None:
    all_of_them = clients(now=server(round=2, attempt=1))
    old, new = StateRef("aa-r1a0x1", 1, "0"), StateRef("aa-r2a1x1", 1, "1")
    all_of_them.committed = {"a": old}
    down = Down(x=1)
    first, second, third = (
        all_of_them.request(*one, exchange=2, large=True)
        for one in (
            ("a", "client", down, {}),
            ("a", "client", down, {"a": new}),
            ("b", "client", down, {"a": new}),
        )
    )
    assert (first.state, first.committed) == (("aa-r1a0x1", "0"), "aa-r1a0x1")
    assert (second.state, second.committed) == (("aa-r2a1x1", "1"), "aa-r1a0x1")
    assert (third.state, third.committed) == (None, None)
    assert (
        third.client,
        third.step,
        third.round,
        third.rounds,
        third.attempt,
        third.exchange,
        third.large,
    ) == (
        "b",
        "client",
        2,
        3,
        1,
        2,
        True,
    )
    plain = all_of_them.request("b", "client", down, {})
    assert (plain.exchange, plain.large, plain.after, plain.die) == (0, False, None, False)


@pytest.mark.parametrize(("shared", "splits"), [(0, ["validation", "test"]), (5, ["shared"])])
def test_models_are_measured_after_local_training_where_that_is_asked(
    shared: int, splits: list[str]
) -> None:
    asking = clients(shared=shared, evaluation={"after_local": True})
    assert asking.request("a", "client", Down(), {}).after == {
        "splits": splits,
        "metrics": ["loss"],
    }
    assert asking.request("a", "other", Down(), {}).after is None


def test_replies_go_through_files_above_the_memory_for_them_and_not_at_it() -> None:
    of, half = clients(memory=1), Down(model=Tree({"w": torch.zeros(2**17)}, "net"))
    assert (of.large(half, 2), of.large(half, 3), of.large(Down(), 10**6)) == (False, True, False)


def test_what_a_reply_says_ends_the_run_or_is_a_failure_of_its_client() -> None:
    request = Request("a", "client", Down(), 1, 3)
    with pytest.raises(RunError, match="^the disk is full$"):
        clients(lambda one: Reply("a", stop="the disk is full")).ask([request])
    with pytest.raises(
        ClientError, match=r"^client 'a', round 1, step 'client' raised:\nTraceback$"
    ):
        clients(lambda one: Reply("a", error="Traceback")).ask([request])
    (odd,) = clients(lambda one: Reply("a", steps=-1, error="Traceback")).ask([request])
    assert odd.failure is not None and "steps" in odd.failure and odd.error is None
    of = clients(participation={"deadline": 7.0})
    assert [reply.client for reply in of.ask([request, Request("b", "client", Down(), 1, 3)])] == [
        "a",
        "b",
    ]
    assert of.transport.deadlines == {7.0}


def test_models_are_evaluated_on_the_states_that_the_round_left() -> None:
    of = clients(
        lambda request: Reply(request.client, Up(x=1), measured=[] if request.exchange else [ROW])
    )
    round = cohort(of)
    round.provisional = {"b": StateRef("bb-r1a0x1", 1, "0")}
    orders = [("b", SendModel(Down(), "b's")), ("a", SendModel(Down(), "a's"))]
    found = of.measure(orders, round)
    assert [(reply.client, reply.up.x, reply.measured) for reply in found] == [
        ("b", 1, [ROW]),
        ("a", 1, [ROW]),
    ]
    (asked,) = of.transport.asked
    assert [(one.client, one.step, one.down.model, one.exchange, one.state) for one in asked] == [
        ("b", SendModel.step, "b's", 0, ("bb-r1a0x1", "0")), ("a", SendModel.step, "a's", 0, None),
    ]  # fmt: skip


def test_a_script_keeps_clients_from_evaluating() -> None:
    fault = {"round": 1, "exchange": 0, "client": "a", "kind": "drop"}
    of = clients(faults={"script": [fault]})
    found = of.measure([("b", CheckState()), ("a", CheckState())], cohort(of))
    assert [(reply.client, reply.failure) for reply in found] == [("b", None), ("a", "dropped out")]
    assert [one.client for asked in of.transport.asked for one in asked] == ["b"]


ROW = {"model": "global", "split": "test", "metric": "loss", "value": 0.5}


# A cohort.


def test_an_exchange_counts_what_came_and_what_was_sent() -> None:
    of = clients(
        lambda request: Reply(
            request.client, Up(value=1.0), seconds=1.0, steps=2, skipped=1, bytes=8
        )
    )
    round = cohort(of)
    ups = round.run(of.method.count, Down(x=torch.zeros(3)))
    round.run(of.method.count, each=lambda client: Down(x=torch.zeros(5 if client == "b" else 1)))
    round.run(of.method.count)
    assert ups.ids == list("abc") and [up.value for up in ups] == [1.0] * 3
    record = round.record
    assert (record.bytes_down, record.bytes_up, record.steps, record.skipped) == (
        3 * 12 + 4 + 20 + 4,
        9 * 8,
        9 * 2,
        9,
    )
    asked = of.transport.asked
    assert [[one.exchange for one in one_exchange] for one_exchange in asked] == [
        [1] * 3,
        [2] * 3,
        [3] * 3,
    ]
    assert (
        {one.step for one in asked[0]} == {"count"}
        and not round.discarded
        and not round.local_models
    )
    assert record.rejected == [] and not round.banned


@pytest.mark.parametrize("after_local", [False, True])
def test_values_after_local_training_count_if_they_were_requested(after_local: bool) -> None:
    of = clients(
        lambda request: Reply(request.client, Up(value=1.0), measured=[ROW]),
        evaluation={"after_local": after_local},
    )
    round = cohort(of)
    requests = [of.request(client, "client", Down(), {}, exchange=1) for client in "abc"]
    replies = of.ask(requests)
    assert all((reply.failure is None) == after_local for reply in replies)
    for reply in replies:
        round._accept(reply)
    rows = [(client, "local", "after_local", "test", "loss", 0.5) for client in "abc"]
    assert round.record.measurements == (rows if after_local else [])


def test_who_fails_is_out_of_the_round_and_its_place_stays_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    of = clients(missing("b"), now=server(attempt=2))
    round = cohort(of)
    ups = round.run(of.method.count)
    assert (
        ups.positions[1] == ("b", None)
        and ups.ids == ["a", "c"]
        and round.joined == ["a", "c"]
        and round.ids == list("abc")
    )
    assert round.record.rejected == [(2, 1, "b", "gone")] and round.record.steps == 4
    assert "round 1: the reply of client 'b' does not count: gone" in caplog.text
    assert round.run(of.method.count).positions[1] == ("b", None)  # nor is it asked again
    assert [one.client for one in of.transport.asked[1]] == ["a", "c"]


def test_the_entries_that_most_replies_have_are_those_that_count() -> None:
    of = clients(
        lambda request: Reply(
            request.client, Up(other=1.0) if request.client == "a" else Up(value=1.0)
        )
    )
    round = cohort(of)
    assert round.run(of.method.count).ids == ["b", "c"]
    assert round.record.rejected == [(0, 1, "a", "expected the entries ['value'], got ['other']")]


def kept(client: str, exchange: int, round: int = 1) -> StateRef:
    return StateRef(state_name(client, round, 0, exchange), 10, "0" * 64)


def test_states_of_replies_that_count_stand_and_the_files_of_others_go() -> None:
    def answer(request: Request) -> Reply:
        up = Up(value=float("nan") if (request.client, request.exchange) == ("b", 2) else 1.0)
        return Reply(
            request.client,
            up,
            kept(request.client, request.exchange) if request.client != "c" else None,
        )

    of = clients(answer)
    round = cohort(of)
    round.run(of.method.count)
    assert round.provisional == {"a": kept("a", 1), "b": kept("b", 1)} and not round.discarded
    round.run(of.method.count)
    assert [one.state for one in of.transport.asked[1]] == [
        (kept(c, 1).name, "0" * 64) if c != "c" else None for c in "abc"
    ]
    assert round.provisional == {"a": kept("a", 2), "b": kept("b", 1)}
    gone = {state_file(kept("a", 1).name), state_file(kept("b", 2).name)}
    assert round.discarded == gone
    assert round.left_over() == gone | {
        state_file(kept("a", 2).name),
        state_file(kept("b", 1).name),
    }


def test_files_of_large_replies_go_with_the_round() -> None:
    of = clients(memory=1)
    round = cohort(of)
    round.run(of.method.count, Down(model=Tree({"w": torch.zeros(2**18)}, "net")))
    (asked,) = of.transport.asked
    assert all(one.large for one in asked) and round.discarded == {reply_file(one) for one in asked}


@pytest.mark.parametrize("measured", [True, False])
def test_uploaded_models_are_kept_if_distances_are_measured(measured: bool) -> None:
    def reply(request: Any) -> Reply:
        return Reply(request.client, Up(model=MODEL) if request.exchange == 1 else Up(value=1.0))

    of = clients(reply, evaluation={"distances": measured})
    round = cohort(of)
    round.run(of.method.client)
    round.run(of.method.count)
    assert round.local_models == (dict.fromkeys("abc", MODEL) if measured else {})


@pytest.mark.parametrize(("number", "floor", "lost", "enough"), [
    (1, 2, "b", True), (1, 2, "bc", False), (3, 2, "bc", False), (3, 3, "", True), (4, 3, "bc", True), (4, 1, "abc", False), (1, 1, "abc", False),
])  # fmt: skip
def test_a_round_needs_its_floor_and_after_the_last_anybody_will_do(
    number: int, floor: int, lost: str, enough: bool
) -> None:
    of = clients(missing(*lost), now=server(round=number), participation={"floor": floor})
    if enough:
        assert len(cohort(of).run(of.method.count)) == 3 - len(lost)
    else:
        with pytest.raises(RoundAborted, match=f"^{3 - len(lost)} of 3 replies counted$"):
            cohort(of).run(of.method.count)


def test_before_round_1_those_who_did_not_answer_are_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = {"b": 2, "c": 1}

    def answer(request: Request) -> Reply:
        left[request.client] = left.get(request.client, 0) - 1
        return value(request) if left[request.client] < 0 else Reply(request.client, failure="gone")

    of = clients(
        answer,
        now=server(round=0),
        faults={"script": [{"round": 1, "client": "a", "kind": "drop"}]},
    )
    assert cohort(of).run(of.method.count).ids == list("abc")
    assert [[one.client for one in asked] for asked in of.transport.asked] == [
        list("abc"),
        ["b", "c"],
        ["b"],
    ]
    assert (
        "waiting for 2 of 3: 'b', 'c'" in caplog.text and "waiting for 1 of 3: 'b'" in caplog.text
    )
    left.update(b=3)
    round = cohort(of)
    with pytest.raises(
        RoundAborted,
        match=r"^every client has to answer, and 1 of 3 did not; the first, 'b': gone$",
    ):
        round.run(of.method.count)
    assert len(of.transport.asked) == 6 and round.record.virtual_seconds is None


def test_a_strict_exchange_bans_who_failed() -> None:
    of = clients(missing("c", "b"))
    round = cohort(of)
    with pytest.raises(RoundAborted, match="^client 'b' left in a step that needs all$"):
        round.run(of.method.count, strict=True)
    assert round.banned == {"b", "c"}
    whole = clients()
    assert len(cohort(whole).run(whole.method.count, strict=True)) == 3


def test_faults_of_a_round_strike_its_requests_and_tell_the_virtual_time() -> None:
    script = [
        {"round": 1, "client": "a", "kind": "drop"},
        {"round": 1, "client": "b", "kind": "kill"},
        {"round": 1, "client": "c", "kind": "nan"},
    ]
    of = clients(
        lambda request: Reply(request.client, Up(model=MODEL)),
        faults={"script": script},
        now=server(sizes={"a": 10**6, "b": 200, "c": 100}),
        training={"epochs": 1},
    )
    round = cohort(of)
    assert round.run(of.method.count).ids == ["b"]
    (asked,) = of.transport.asked
    assert [(one.client, one.die) for one in asked] == [("b", True), ("c", False)]
    assert (
        round.record.rejected[0] == (0, 1, "a", "dropped out")
        and "not finite" in round.record.rejected[1][3]
    )
    spent = max(
        of.faults.missing(1, 0, 1, client, size)[1] for client, size in (("b", 200), ("c", 100))
    )
    assert round.record.virtual_seconds == spent > 0.1
    round.run(of.method.count)
    assert round.record.virtual_seconds == spent


def test_shares_are_told_as_parts_of_one() -> None:
    round = cohort(clients())
    door = round.restricted_view()
    assert door.ids == list("abc") and not {"clients", "server", "record"} & set(dir(door))
    door.weighed(["a", "c"], Weights(np.array([1.0, 2.0]), absent={"b": 1.0}))
    assert round.record.weights == {"a": 0.25, "c": 0.5, "b": 0.25}
    door.weighed(["a", "c"], Weights(np.zeros(2)))
    assert round.record.weights == {}
    assert door.run(round.clients.method.count, Down(), strict=True).ids == list("abc")


@pytest.mark.parametrize(("lanes", "busy"), [(2, 1.5), (0, 3.0)])
def test_the_time_of_a_round_is_divided(
    lanes: int, busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = clients()
    monkeypatch.setattr(module, "time", of.transport)
    of.transport.lanes, of.transport.clock = lanes, 100.0
    round = cohort(of)
    round.run(of.method.count)
    of.transport.clock += 3.0
    round.record.seconds["other"] = 9.0
    round.close()
    assert round.record.seconds == {
        "other": 9.0,
        "clients": busy,
        "transport": 4.0 - busy,
        "aggregation": 3.0,
    }
    assert round.record.joined == list("abc") and round.record.joined is not round.joined


# The end of a round that failed.


@pytest.mark.parametrize(
    ("rejected", "advice"),
    [
        ([], "lower participation.floor, raise participation.tries, or ask more clients; then `equipoise resume run`"),
        ([(0, 1, "a", "gone")], "lower participation.floor, raise"),
        ([(0, 1, "a", "x"), (1, 1, "b", "gone"), (1, 1, "c", "y")], "in its last attempt, of client 'b': gone; then `equipoise resume run`"),
        ([(1, 1, "b", "w is not finite")], "of client 'b': w is not finite; the training seems to have diverged: lower training.lr"),
    ],
)  # fmt: skip
def test_a_round_that_is_given_up_says_what_helps(
    rejected: list[tuple[int, int, str, str]], advice: str
) -> None:
    store: Any = SimpleNamespace(resume_command=lambda: "`equipoise resume run`")
    said = str(
        round_failed(
            store, Participation(floor=4, tries=2), 7, 1, rejected, "1 of 3 replies counted"
        )
    )
    assert (
        said.startswith("round 7 was given up 2 times: 1 of 3 replies counted, 4 needed; ")
        and advice in said
    )


# Ctrl-C.


def test_the_first_interrupt_asks_and_the_second_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    found: list[Any] = []

    def elsewhere() -> None:
        with interruptible() as asked:
            found.extend([asked(), signal.getsignal(signal.SIGINT) is before])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert found == [False, True]
