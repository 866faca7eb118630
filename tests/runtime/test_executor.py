"""The client's side by itself: what becomes of a request, whose state it works on, what it writes, and what travels."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.client import Client
from equipoise.composition import compose
from equipoise.data import Federation, federate
from equipoise.experiment import experiment
from equipoise.methods.fedavg import FedAvg
from equipoise.records import CannotSave, Down, Record, Up, read, size
from equipoise.runtime import wire
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.isolation import Late
from equipoise.runtime.messages import (
    Job,
    Reply,
    Request,
    StateRef,
    reply_file,
    round_of,
    state_file,
    state_name,
    state_of,
)
from equipoise.runtime.states import CarriedStates, FileStates
from equipoise.session import job_of
from equipoise.transports import inprocess
from equipoise.transports.base import (
    ClientError,
    Interrupted,
    Monitor,
    put_to_file,
    timed_out_reply,
    with_file,
)
from equipoise.transports.inprocess import InProcess, Loopback, Separated
from equipoise.tree import Tree
from tests.helpers.callbacks import monitor_of
from tests.helpers.runs import settings, sites

# What becomes of a request.


@dataclass(frozen=True)
class Remembering(FedAvg):
    """Does what it is told by name."""

    def client(self, client: Client, down: Down) -> Up:
        if down.get("remember"):
            client.state["rounds"] = client.state.get("rounds", 0) + 1
            client.state["_within"] = True
        if down.get("forget"):
            client.state["bad"] = float("nan")
        if down.get("fail"):
            raise ArithmeticError("seven apples")
        model = client.load(None)
        client.fit(model)
        return Up(
            model=model, seen=sorted(client.state), at=[client.round, client.rounds, client.attempt]
        )

    def count(self, client: Client, down: Down) -> Up:
        return Up(n=len(client.train))


@pytest.fixture(scope="module")
def federation() -> Federation:
    wanted = eq.Experiment(**settings("fedavg"), dataset=eq.from_sites(sites()))
    return federate(wanted.data, wanted.seed, wanted.dataset)


WANTED = experiment(settings(Remembering()))


@pytest.fixture
def executor(federation: Federation) -> ClientExecutor:
    return ClientExecutor(Job("run", {}), federation, CarriedStates(), WANTED)


def ask(
    client: str = "ada",
    step: str = "client",
    round: int = 1,
    exchange: int = 1,
    more: Any = None,
    **told: Any,
) -> Request:
    return Request(client, step, Down(told), round, 3, exchange=exchange, **(more or {}))


def test_a_reply_says_what_was_done(executor: ClientExecutor) -> None:
    reply = executor.execute(ask(round=2, more={"attempt": 1}))
    assert reply.client == "ada" and reply.up is not None and reply.up.at == [2, 3, 1]
    trained = len(executor.federation.train[executor.federation.ids.index("ada")])
    assert (
        reply.steps == -(-trained // 5) > 1
        and reply.skipped == 0
        and reply.bytes == size(reply.up) > 100
    )  # batches of 5, one epoch
    assert (
        0 < reply.seconds < 60
        and reply.state is None
        and reply.file is None
        and reply.measured == []
    )
    (other,) = {executor.execute(ask(step="count")).up["n"]}  # type: ignore[index]
    assert other == trained


def test_a_state_is_kept_under_its_name_and_read_by_it(executor: ClientExecutor) -> None:
    first = executor.execute(ask(remember=True))
    assert (
        first.state is not None
        and first.state.name == state_name("ada", 1, 0, 1)
        and first.state.bytes > 0
    )
    told = {"state": (first.state.name, first.state.digest)}
    again = executor.execute(ask(remember=True, exchange=2, more=told))
    assert again.up.seen == ["_within", "rounds"] and again.state.name == state_name("ada", 1, 0, 2)  # type: ignore[union-attr]
    later = executor.execute(ask(round=2, more=told))
    assert later.up.seen == ["rounds"] and later.state is None  # type: ignore[union-attr]  # what begins with _ ends with its round
    # to measure changes nothing
    assert executor.execute(ask(remember=True, exchange=0, more=told)).state is None
    gone = executor.execute_catching(ask(more={"state": (state_name("ada", 1, 0, 9), "0" * 64)}))
    assert gone.up is None and gone.failure == f"state {state_name('ada', 1, 0, 9)} is not here"


def test_states_that_are_not_finite_are_a_failure(executor: ClientExecutor) -> None:
    reply = executor.execute(ask(forget=True))
    assert (
        reply.failure == "its own state bad holds values that are not finite"
        and reply.up is None
        and reply.state is None
    )


def test_a_side_keeps_the_two_states_that_a_request_names(executor: ClientExecutor) -> None:
    kept: list[Any] = []
    executor.states.keep = lambda client, names: kept.append((client, set(names)))  # type: ignore[method-assign]
    state = executor.states.write("aa-r1a0x1", Record(x=1))
    for more in (
        {},
        {"committed": "aa-r0a0x1"},
        {"committed": "aa-r0a0x1", "state": ("aa-r1a0x1", state.digest)},
    ):
        executor.execute(ask(step="count", more=more))
    assert kept == [("ada", set()), ("ada", {"aa-r0a0x1"}), ("ada", {"aa-r0a0x1", "aa-r1a0x1"})]


@pytest.mark.parametrize(("large", "disk"), [(True, True), (True, False), (False, True)])
def test_large_replies_go_to_the_disk_of_the_run_where_there_is_one(
    large: bool, disk: bool, executor: ClientExecutor, tmp_path: Path
) -> None:
    executor.disk = tmp_path if disk else None
    request = ask(step="count", more={"large": large})
    reply = executor.execute(request)
    if large and disk:
        assert (
            reply.up is None
            and reply.file == reply_file(request)
            and read(tmp_path / reply.file).n > 0
            and reply.bytes == 8
        )
    else:
        assert reply.up is not None and reply.file is None and not list(tmp_path.iterdir())


def test_the_uploaded_model_is_measured_where_that_is_asked(executor: ClientExecutor) -> None:
    after = {"after": {"splits": ["test"], "metrics": ["loss"]}}
    (row,) = executor.execute(ask(more=after)).measured
    assert (row["model"], row["split"], row["metric"]) == ("global", "test", "loss") and row[
        "value"
    ] > 0
    assert executor.execute(ask(step="count", more=after)).measured == []  # it brings no model
    assert executor.execute(Request("ada", "@present", Record(), 1, 3)).up == Up()


def test_what_goes_wrong_is_a_reply(
    executor: ClientExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "seven apples" in str(executor.execute_catching(ask(fail=True)).error)
    with pytest.raises(ArithmeticError):
        executor.execute(ask(fail=True))

    def full(*given: Any) -> Any:
        raise CannotSave("cannot write")

    monkeypatch.setattr(executor.states, "write", full)
    stopped = executor.execute_catching(ask(remember=True))
    assert (stopped.stop, stopped.error, stopped.client) == ("cannot write", None, "ada")
    assert executor.execute_catching(ask()).up is not None


def test_a_job_names_the_experiment_where_none_is_given(federation: Federation) -> None:
    wanted = experiment(settings("scaffold", seed=11))
    found = ClientExecutor(Job.of(job_of(wanted, "run").text()), federation, CarriedStates())
    assert (
        found.experiment.seed == 11
        and type(found.method).__name__ == "Scaffold"
        and found.disk is None
    )
    assert found.roster().ids == federation.ids


# Steps.


@dataclass(frozen=True)
class Ordered(FedAvg):
    """Says which of its functions were called, in their order."""

    def before(self, client: Client, received: Tree | None) -> Up:
        return Up(before=received is not None)

    def client(self, client: Client, down: Down) -> Any:
        if down.get("as_dict"):
            return {"x": 1}
        return Up(trained=True) if down.get("no_model") else Up(model=client.load(None))

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        return Up(after=uploaded is not None)


@dataclass(frozen=True)
class WithoutModel(Ordered):
    uploads_model = False


@dataclass(frozen=True)
class Guest(FedAvg):
    """Has client state of its own, and a step of its own."""

    composable_weights = True

    def weights(self, server: Any, state: Any, ups: Any) -> Any:
        return super().weights(server, state, ups)

    def before(self, client: Client, received: Tree | None) -> Up:
        seen = sorted(client.state)
        client.state["n"] = 1
        client.state["_within"] = True
        return Up(seen=seen)

    def statistics(self, client: Client, down: Down) -> Up:
        client.state["n"] = 7
        return Up(seen=sorted(client.state))


def executor_of(method: FedAvg, federation: Federation) -> ClientExecutor:
    states = CarriedStates()
    return ClientExecutor(Job("run", {}), federation, states, experiment(settings(method)))


def test_a_clients_step_has_a_before_and_an_after(federation: Federation) -> None:
    up = executor_of(Ordered(), federation).execute(ask()).up
    assert up is not None and list(up) == ["before", "model", "after"]
    assert (up.before, up.after) == (False, True)
    up = executor_of(WithoutModel(), federation).execute(ask(no_model=True)).up
    assert dict(up or {}) == {"before": False, "trained": True, "after": False}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"no_model": True}, r"Ordered\.client sent \['before', 'trained'\], but no `model`"),
        ({"as_dict": True}, "client: expected an Up, got dict"),
    ],
)
def test_a_step_that_returns_something_else_is_an_error(
    told: dict[str, bool], message: str, federation: Federation
) -> None:
    with pytest.raises(TypeError, match=message):
        executor_of(Ordered(), federation).execute(ask(**told))


def test_a_composed_method_keeps_state_of_its_own_without_what_ends_with_a_round(
    federation: Federation,
) -> None:
    executor = executor_of(compose(Remembering(), weights=Guest()), federation)  # type: ignore[arg-type]
    first = executor.execute(ask(remember=True))
    assert first.up is not None and first.up["@guest"] == {"seen": []}
    assert first.state is not None
    told = {"state": (first.state.name, first.state.digest)}
    same_round = executor.execute(ask(exchange=2, more=told))
    later = executor.execute(ask(round=2, more=told))
    assert same_round.up["@guest"] == {"seen": ["_within", "n"]}  # type: ignore[index]
    assert later.up["@guest"] == {"seen": ["n"]} and later.up.seen == ["@guest", "rounds"]  # type: ignore[index, union-attr]


def test_a_step_of_a_composed_method_works_on_its_own_state(federation: Federation) -> None:
    executor = executor_of(compose(Remembering(), weights=Guest()), federation)  # type: ignore[arg-type]
    reply = executor.execute(ask(step="@guest.statistics"))
    assert reply.up is not None and reply.up.seen == ["n"] and reply.state is not None
    assert dict(executor.states.read(*reply.state[::2])) == {"@guest": {"n": 7}}


# Names and files.


def test_names_of_states_say_whose_they_are_and_when() -> None:
    name = state_name("ada", 3, 1, 2)
    assert (
        name.endswith("-r3a1x2")
        and len(name.partition("-")[0]) == 16
        and state_name("bo", 3, 1, 2) != name
    )
    assert round_of(name) == 3 and state_file(name) == f"{name[:2]}/client-{name}.safetensors"
    assert state_of(f"client-{name}.safetensors") == name
    assert (
        reply_file(Request("ada", "client", Down(), 3, 9, attempt=1, exchange=2))
        == f"{name[:2]}/reply-{name}.safetensors"
    )


@pytest.mark.parametrize(
    ("large", "up", "file"),
    [(False, Up(x=1), None), (True, None, None), (True, Up(x=1), "there already")],
)
def test_replies_that_are_small_empty_or_written_stay_as_they_are(
    large: bool, up: Any, file: Any, tmp_path: Path
) -> None:
    reply = Reply("ada", up, file=file)
    assert put_to_file(reply, ask(more={"large": large}), tmp_path) is reply and not list(
        tmp_path.iterdir()
    )


def test_a_large_reply_from_another_disk_is_put_to_a_file_and_read_from_there(
    tmp_path: Path,
) -> None:
    found = put_to_file(Reply("ada", Up(x=1), steps=5), ask(more={"large": True}), tmp_path)
    assert (
        found.file == reply_file(ask())
        and (tmp_path / found.file).exists()
        and (found.up.x, found.steps) == (1, 5)
    )  # type: ignore[union-attr]
    assert with_file(Reply("ada", file=found.file), tmp_path).up.x == 1  # type: ignore[union-attr]
    plain = Reply("ada")
    assert with_file(plain, tmp_path) is plain


def test_what_a_late_client_wrote_is_removed(tmp_path: Path) -> None:
    request = ask()
    for name in (state_file(state_name("ada", 1, 0, 1)), reply_file(request)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for _ in range(2):
        assert timed_out_reply(request, 2.5, tmp_path) == Reply(
            "ada", failure="did not answer within 2.5 s"
        )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_job_travels_as_text_and_another_protocol_is_refused() -> None:
    job = Job("run", {"rounds": 3}, {"modules": ["a"]}, version="0.3")
    assert Job.of(job.text()) == job
    with pytest.raises(
        ValueError,
        match=r"^expected protocol 1, got 2 from equipoise 0\.3; install the same version on both sides$",
    ):
        Job.of(json.dumps({**json.loads(job.text()), "protocol": 2}))


def test_a_monitor_that_nobody_listens_to_says_nothing_and_stops_nothing() -> None:
    monitor = Monitor()
    assert monitor.interrupted() is False and not monitor.by_place
    monitor.on_clients("client", 1, 2)
    assert Monitor().by_place is not monitor.by_place


# What is shared on the wire.


def test_trees_that_two_requests_hold_are_shared() -> None:
    first, second, own = (Tree({"w": torch.full((2,), value)}, "net") for value in (1.0, 2.0, 3.0))
    downs = [Down(model=first, all={"x": [second]}), Down(model=first, own=own), Down(model=second)]
    keys, trees = wire.shared_trees(
        [Request(str(place), "client", down, 1, 3) for place, down in enumerate(downs)]
    )
    assert (
        trees["0"] is first
        and trees["1"] is second
        and len(trees) == 2
        and keys == {id(first): "0", id(second): "1"}
    )
    sent = wire.referring(downs[1], keys)
    assert isinstance(sent, Down) and len(sent.model) == 0 and sent.own is own
    assert wire.resolved(wire.referring(downs[0], keys), trees).all["x"][0] is second
    assert [len(wire.trees_in(down)) for down in downs] == [2, 2, 1] and wire.trees_in(7) == []


def test_only_what_differs_from_its_default_is_told() -> None:
    assert wire.to_wire(Request("ada", "client", Down(), 1, 3)) == {
        "client": "ada",
        "step": "client",
        "round": 1,
        "rounds": 3,
    }
    told = wire.to_wire(
        Request("ada", "client", Down(), 1, 3, 1, 2, ("s", "d"), "c", True, {"splits": []}, True)
    )
    assert told == {
        "client": "ada", "step": "client", "round": 1, "rounds": 3, "attempt": 1, "exchange": 2, "state": ["s", "d"], "committed": "c", "large": True,
        "after": {"splits": []}, "die": True,
    }  # fmt: skip
    assert wire.request_of(told, Down()).state == ("s", "d")
    reply = wire.to_wire(
        Reply("ada", Up(), StateRef("n", 1, "d"), "f", "e", "s", 0.5, 1, 2, 3, [{"x": 1}], "file")
    )
    assert reply == {
        "client": "ada", "state": ["n", 1, "d"], "failure": "f", "error": "e", "stop": "s", "seconds": 0.5, "steps": 1, "skipped": 2, "bytes": 3,
        "measured": [{"x": 1}], "file": "file",
    }  # fmt: skip
    assert wire.reply_of(reply, None).state == StateRef("n", 1, "d")


# In process.


class Performing:
    """In place of an executor: does what a test says."""

    def __init__(self, does: Any) -> None:
        self.does, self.asked, self.disk = does, list[Any](), Path("somewhere")

    def execute(self, request: Request, deadline: float | None, deferral: Any = None) -> Reply:
        self.asked.append((request, deadline))
        found = self.does(request)
        if isinstance(found, Exception):
            raise found
        return found

    def roster(self) -> Any:
        return "the roster"


def here(
    does: Any, files: Path, kind: Any = InProcess, monitor: Monitor | None = None, *more: Any
) -> Any:
    transport = kind(None, *more)
    transport.executor, transport.files, transport.monitor = (
        Performing(does),
        files,
        monitor or Monitor(),
    )
    return transport


def test_in_process_clients_are_asked_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monitor = monitor_of(lambda *told: seen.append(told))
    transport = here(lambda request: Reply(request.client, Up(x=1)), tmp_path, InProcess, monitor)
    requests = [ask(client) for client in ("bo", "ada")]
    assert [reply.client for reply in transport.exchange(requests, 3.0)] == [
        "bo",
        "ada",
    ] and seen == [("client", 1, 2), ("client", 2, 2)]
    assert [deadline for _, deadline in transport.executor.asked] == [3.0, 3.0]
    monitor.interrupted = lambda: len(transport.executor.asked) == 3
    with pytest.raises(Interrupted):
        transport.exchange(requests)
    assert len(transport.executor.asked) == 3
    transport.close()
    assert transport.executor is None and (
        InProcess.lanes,
        InProcess.keeps,
        Loopback.keeps,
        Separated.keeps,
    ) == (
        1,
        "server",
        "server",
        "client",
    )


def test_in_process_a_deadline_that_cannot_be_kept_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    transport = here(lambda request: Reply(request.client, Up()), tmp_path)
    transport.exchange([ask()], 3.0)
    monkeypatch.setattr(inprocess, "can_interrupt", lambda: False)
    transport.exchange([ask()])
    assert "take as long as they take" not in caplog.text
    for _ in range(2):
        transport.exchange([ask()], 3.0)
    assert caplog.text.count("take as long as they take") == 1


@pytest.mark.parametrize("kind", [InProcess, Loopback])
def test_in_process_failures_are_told_where_they_happened(kind: Any, tmp_path: Path) -> None:
    assert (
        here(lambda request: Late(), tmp_path, kind).exchange([ask()], 2.5)[0].failure
        == "did not answer within 2.5 s"
    )
    with pytest.raises(CannotSave, match="full"):
        here(lambda request: CannotSave("full"), tmp_path, kind).exchange([ask()])
    with pytest.raises(
        ClientError, match="^client 'ada', round 1, step 'client': ValueError: seven$"
    ):
        here(lambda request: ValueError("seven"), tmp_path, kind).exchange([ask()])


def test_between_organisations_everything_is_rebuilt_from_bytes(tmp_path: Path) -> None:
    kept = StateRef("aa-r1a0x1", 9, "d")
    transport = here(
        lambda request: Reply(request.client, Up(x=request.down.x), kept, steps=4),
        tmp_path,
        Separated,
        None,
        tmp_path / "disk",
    )
    request = ask(
        x=5,
        more={"state": ("aa-r0a0x1", "e"), "committed": "aa-r0a0x1", "large": True, "attempt": 2},
    )
    (reply,) = transport.exchange(
        [
            request,
        ]
    )
    ((seen, _),) = transport.executor.asked
    assert (
        seen == replace(request, down=seen.down)
        and seen.down is not request.down
        and dict(seen.down) == {"x": 5}
    )
    assert (
        reply.state == kept
        and isinstance(reply.state, StateRef)
        and reply.steps == 4
        and reply.up.x == 5
        and (tmp_path / reply.file).exists()
    )
    silent = here(
        lambda request: Reply(request.client, failure="gone"),
        tmp_path,
        Separated,
        None,
        tmp_path / "disk",
    )
    (reply,) = silent.exchange([ask()])
    assert (reply.failure, reply.state, reply.up) == (
        "gone",
        None,
        None,
    ) and silent.executor.asked[0][0].state is None
    assert (
        isinstance(transport.states(tmp_path), FileStates)
        and transport.states(tmp_path).folder == tmp_path / "disk"
    )
