"""What the transport over a cluster holds and hands out, piece by piece: references to states,
shares of work, messages to actors.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import Federation, federate
from equipoise.data.roster import roster_of
from equipoise.experiment import experiment
from equipoise.records import Down, Record, Up, unpack
from equipoise.runtime import wire
from equipoise.runtime.messages import Reply, Request, StateRef, state_file, state_name
from equipoise.session import job_of
from equipoise.storage.files import digest_of, writable_path
from equipoise.transports.lanes import share
from equipoise.transports.ray import actor, references
from equipoise.transports.ray.job_spec import JobSpec, job_spec_of
from equipoise.transports.ray.references import References
from tests.helpers.runs import settings, sites
from tests.helpers.standin_ray import StandIn, stood_in

# References.


class Store:
    """In place of Ray: what was put."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def put(self, value: np.ndarray) -> str:
        self.values.append(value.tobytes())
        return f"reference {len(self.values)}"


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> References:
    monkeypatch.setattr(references, "INLINE", 10)
    found = References(Store(), tmp_path)
    found.limit = 40.0
    return found


def saved(held: References, name: str, bytes: int) -> str:
    writable_path(held.files, state_file(name)).write_bytes(name.encode()[:1] * bytes)
    return name


def test_small_states_are_read_and_large_ones_put_once(held: References) -> None:
    small, large = saved(held, "aa-r1a0x1", 10), saved(held, "bb-r1a0x1", 11)
    assert held.of(small).tobytes() == b"a" * 10 and not held.held
    assert (
        held.of(large) == held.of(large) == "reference 1"
        and held.ray.values == [b"b" * 11]
        and held.bytes == 11
    )
    held.forget(large)
    held.forget("never seen")
    assert held.bytes == 0 and held.of(large) == "reference 2"


def test_the_least_recently_used_goes_beyond_the_limit_and_not_at_it(held: References) -> None:
    names = [saved(held, f"{letter * 2}-r1a0x1", 20) for letter in "abc"]
    for name in (names[0], names[1], names[0]):
        held.of(name)
    assert list(held.held) == [names[1], names[0]] and held.bytes == 40
    held.of(names[2])
    assert list(held.held) == [names[0], names[2]] and held.bytes == 40
    held.of(saved(held, "dd-r1a0x1", 99))
    assert list(held.held) == ["dd-r1a0x1"] and held.bytes == 99  # one is held however large it is
    held._hold("dd-r1a0x1", "another", 30)
    assert held.held == {"dd-r1a0x1": ("another", 30)} and held.bytes == 30


def reply(data: bytes, name: str = "aa-r1a0x1") -> Reply:
    return Reply("ada", Up(x=1), StateRef(name, len(data), digest_of(data)))


@pytest.mark.parametrize(("size", "kept"), [(10, 0), (11, 1)])
def test_a_state_is_in_the_files_before_its_reply_counts(
    size: int, kept: int, held: References
) -> None:
    data = b"s" * size
    given = reply(data)
    assert held.save_state(given, np.frombuffer(data, np.uint8), "left by the actor") is given
    assert (held.files / state_file("aa-r1a0x1")).read_bytes() == data and len(held.held) == kept
    assert (
        held.of("aa-r1a0x1") == "left by the actor"
        if kept
        else held.of("aa-r1a0x1").tobytes() == data
    )


def test_a_state_that_was_damaged_or_cannot_be_written_does_not_count(held: References) -> None:
    plain = Reply("ada", Up())
    assert held.save_state(plain, None, None) is plain
    wrong = held.save_state(
        reply(b"another state"), np.frombuffer(b"damaged state", np.uint8), None
    )
    assert wrong == Reply("ada", failure="state aa-r1a0x1 was damaged on its way") and not held.held
    (held.files / "ff").write_text("a file in place of the folder")
    stopped = held.save_state(reply(b"x", "ff-r1a0x1"), np.frombuffer(b"x", np.uint8), None)
    assert (
        stopped.stop is not None
        and "make room or permit writing" in stopped.stop
        and stopped.up is None
    )


# Shares.


@pytest.mark.parametrize(
    ("weights", "together", "alone", "lanes", "shares"),
    [
        ([4, 2, 1, 1], 16, (), 1, [[0], [1], [2], [3]]),
        ([2, 2, 2, 2], 16, (), 1, [[0, 1], [2], [3]]),  # a share may be full
        ([1] * 8, 2, (), 1, [[0, 1], [2, 3], [4, 5], [6], [7]]),
        ([1] * 8, 16, (1,), 1, [[0], [1], [2, 3, 4], [5], [6], [7]]),
        ([1] * 8, 16, (), 2, [[0, 1], [2], [3], [4], [5], [6], [7]]),
    ],
)
def test_what_travels_together(
    weights: list[int], together: int, alone: tuple[int, ...], lanes: int, shares: list[list[int]]
) -> None:
    waiting = deque(range(len(weights)))
    found = []
    while waiting:
        found.append(share(waiting, weights, together, lanes, alone))
    assert found == shares


# Messages to actors.


@pytest.fixture(scope="module")
def federation() -> Federation:
    wanted = eq.Experiment(**settings("fedavg"), dataset=eq.from_sites(sites()))
    return federate(wanted.data, wanted.seed, wanted.dataset)


@pytest.fixture
def ray() -> Iterator[StandIn]:
    with stood_in(1) as found:
        yield found


def test_a_node_makes_the_data_itself_where_they_exceed_half_of_its_store() -> None:
    assert [JobSpec(b"", "data", 50, True, "").made_at(store) for store in (99, 100, 101)] == [
        True,
        False,
        False,
    ]
    assert JobSpec(b"", None, 0, True, "").made_at(10**9)


def test_the_data_go_into_the_store_if_there_is_room(ray: StandIn, federation: Federation) -> None:
    wanted, roster = experiment(settings("fedavg")), roster_of(federation)
    job = job_of(wanted, "run")
    bytes = job_spec_of(ray, wanted, job, federation, roster, 0.0)[0].bytes
    assert bytes > federation.x.numpy().nbytes and not ray.put_values
    work, shared = job_spec_of(ray, wanted, job, federation, roster, float(bytes))
    assert (
        work.data is not None
        and shared is not federation
        and torch.equal(shared.x, federation.x)
        and torch.equal(shared.y, federation.y)
    )
    message = json.loads(work.message)
    assert message["kind"] == actor.kind() and message["job"] == job.text()
    assert message["path"] == [path or os.getcwd() for path in sys.path]
    assert work.can_be_made and work.fingerprint == roster.fingerprint
    none, same = job_spec_of(ray, wanted, job, federation, roster, bytes - 1.0)
    assert none.data is None and same is federation
    assert not job_spec_of(ray, SimpleNamespace(dataset="given"), job, federation, roster, 0.0)[
        0
    ].can_be_made  # type: ignore[arg-type]


def told(federation: Federation, **changes: Any) -> tuple[bytes, dict[str, np.ndarray]]:
    from equipoise.transports.workers.memory import to_arrays

    words, arrays = to_arrays(federation)
    job = job_of(experiment(settings("fedavg")), "run").text()
    return json.dumps(
        {"kind": actor.kind(), "job": job, "path": [], "data": words, **changes}
    ).encode(), arrays


def test_an_actor_has_one_thread_and_leaves_ctrl_c_to_the_driver(ray: StandIn) -> None:
    torch.set_num_threads(2)
    actor.Actor()
    assert (
        torch.get_num_threads() == 1
        and "heap" in ray.said
        and (signal.SIGINT, signal.SIG_IGN) in ray.said
    )


def test_an_actor_says_what_it_is_and_prepares_if_it_is_the_same(
    ray: StandIn, federation: Federation, tmp_path: Path
) -> None:
    one = actor.Actor()
    words, arrays = told(federation, path=[str(tmp_path), str(tmp_path / "none"), sys.path[-1]])
    before = list(sys.path)
    assert (
        json.loads(one.begin(words, arrays)) == {"kind": actor.kind()} and one.executor is not None
    )
    assert one.executor.federation.ids == federation.ids and one.executor.states is one.states
    assert sys.path == [str(tmp_path), *before]  # folders that are there, and new
    other = actor.Actor()
    differs, _ = told(federation, kind={**actor.kind(), "torch": "0.1"})
    assert (
        json.loads(other.begin(differs, arrays)) == {"kind": actor.kind()}
        and other.executor is None
    )
    assert (
        set(actor.kind()) == {"Python", "torch", "equipoise", "CPU", "MKL_CBWR"}
        and actor.kind()["Python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    )
    refused, _ = told(
        federation, job=json.loads(words)["job"].replace('"protocol": 1', '"protocol": 2')
    )
    assert json.loads(other.begin(refused, arrays))["refused"].startswith(
        "expected protocol 1, got 2"
    )


class Echo:
    """Answers with the tree it was sent; counts in its state."""

    def __init__(self, states: Any) -> None:
        self.states = states

    def execute_group(self, requests: Sequence[Request]) -> list[Reply]:
        return [self.execute_catching(request) for request in requests]

    def execute_catching(self, request: Request) -> Reply:
        before = self.states.read(*request.state).count if request.state else 0
        state = (
            self.states.write(state_name(request.client, 1, 0, 1), Record(count=before + 1))
            if request.exchange
            else None
        )
        return Reply(
            request.client,
            Up(
                w=float(request.down.model["w"][0]) if "model" in request.down else 0.0,
                before=before,
            ),
            state,
        )


def test_an_actor_answers_with_replies_and_states_and_knows_the_trees_of_one_exchange(
    ray: StandIn,
) -> None:
    one = actor.Actor()
    one.executor = Echo(one.states)  # type: ignore[assignment]
    tree = {"0": wire.Tree({"w": torch.tensor([5.0])}, "net")}
    trees = actor.packed(Record._trusted({"trees": tree}))
    sent = wire.referring(Down(model=tree["0"]), {id(tree["0"]): "0"})

    def message(
        *clients: str, exchange: int = 1, down: Down = sent, states: Any = (), keeps: bool = True
    ) -> np.ndarray:
        requests = [
            Request(
                client,
                "client",
                down,
                1,
                3,
                exchange=exchange,
                state=states[0][:2] if states else None,
            )
            for client in clients
        ]
        tasks = [{"request": wire.to_wire(request), "down": request.down} for request in requests]
        return actor.packed(
            Record._trusted(
                {"tasks": tasks, "states": [state[0] for state in states], "keeps": keeps}
            )
        )

    answer, *new = one.execute(1, trees, message("a", "b"))
    replies = unpack(bytearray(answer))["replies"]
    assert [(told["reply"]["client"], told["up"].w) for told in replies] == [
        ("a", 5.0),
        ("b", 5.0),
    ] and len(new) == 2
    assert not one.states.carried  # they went with the answer
    kept = replies[0]["reply"]["state"]
    again, state = one.execute(1, None, message("a", states=[(kept[0], kept[2])]), new[0])
    assert (
        unpack(bytearray(again))["replies"][0]["up"].before == 1
        and digest_of(state.tobytes()) != kept[2]
    )
    alone = one.execute(1, None, message("a", exchange=0, keeps=False))
    # the same exchange: it knows the tree
    assert unpack(bytearray(alone))["replies"][0]["up"].w == 5.0
    nothing = one.execute(1, None, message("a", exchange=0))
    assert nothing[1] is None
    with pytest.raises(ValueError):
        one.execute(1, None, message("a"), new[0])  # a state that no request names
    with pytest.raises(KeyError):
        one.execute(2, None, message("a"))  # of another exchange it knows none
    assert one.exchange == 2 and one.trees == {}
