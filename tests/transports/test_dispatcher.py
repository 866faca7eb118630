"""The dispatcher over lanes that a test scripts, as any transport may provide them: processes,
actors, or one lane per site.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.records import Down, Up
from equipoise.runtime.messages import Reply, Request
from equipoise.storage.store import RunError
from equipoise.transports.base import Interrupted, Monitor
from equipoise.transports.dispatcher import Dispatcher
from equipoise.transports.lanes import Answered, Batch, Event, Exchange, Failed, Lane, Lost
from equipoise.tree import Tree
from tests.helpers.callbacks import monitor_of

SIZES = {f"c{number}": 100 - number for number in range(40)}
DIES, HANGS, FAILS, UNLUCKY = "dies", "hangs", "fails", "unlucky"


@dataclass(eq=False)
class Scripted(Lane):
    """A lane in this process; `sent` holds the clients of each batch, with the trees that came
    along.
    """

    ready: bool = True
    sent: list[tuple[list[str], Any]] = field(default_factory=list)

    def send(self, batch: Batch, trees: Any) -> None:
        self.sent.append(([request.client for request in batch.requests], trees))


class Group:
    """Lanes that answer one batch each per poll, as `script` says of (lane, clients): None is an
    answer.
    """

    title = "a lane"
    patience: tuple[float, float] | None = None

    def __init__(self, *locations: str) -> None:
        self.lanes = [Scripted(location) for location in locations]
        self.now = 0.0
        self.script: Callable[[Scripted, list[Request]], str | None] = lambda lane, requests: None
        self.replaced: list[tuple[Scripted, str, bool]] = []
        self.bound: dict[str, str] = {}
        self.together = 1
        self.respawns = True
        self.happens: Callable[[], object] = lambda: None
        self.asked: list[Request] = []
        self.blames: Callable[[list[str]], list[str]] = lambda locations: locations

    def location_for(self, request: Request) -> str | None:
        return self.bound.get(request.client)

    def begin(self, exchange: Exchange) -> Any:
        return dict(exchange.trees)

    def take(self, waiting: deque[int], exchange: Exchange) -> list[int]:
        taken = [waiting.popleft()]
        while waiting and len(taken) < self.together and not exchange.alone:
            taken.append(waiting.popleft())
        return taken

    def poll(self, seconds: float) -> Iterator[Event]:
        self.happens()
        events = [event for lane in list(self.lanes) for event in self._one(lane)]
        self.now += 0.0 if events else seconds
        assert self.now < 1000, "nothing ends this wait"
        yield from events

    def _one(self, lane: Scripted) -> Sequence[Event]:
        if not lane.outstanding:
            return []
        requests = lane.outstanding[0].requests
        becomes = self.script(lane, requests)
        if becomes == HANGS:
            return []
        self.asked += requests
        if becomes == DIES:
            return [Lost(lane, "it died")]
        if becomes is not None:
            return [Failed(lane, "bad luck", becomes == FAILS)]
        return [Answered(lane, [request.client for request in requests])]

    def accept(self, lane: Lane, request: Request, answer: Any) -> Reply:
        return Reply(request.client, Up(word=answer, location=lane.location), seconds=1.0)

    def replace(self, lane: Lane, cause: str, hung: bool) -> None:
        assert isinstance(lane, Scripted)
        self.replaced.append((lane, cause, hung))
        self.lanes.remove(lane)
        self.lanes += [Scripted(lane.location)] if self.respawns else []

    def blamed(self, locations: list[str]) -> list[str]:
        return self.blames(locations)


def dispatcher(group: Group, tmp_path: Path, monitor: Monitor | None = None) -> Dispatcher:
    return Dispatcher(group, SIZES, tmp_path, monitor or Monitor(), lambda: group.now)


def requests(count: int, **more: Any) -> list[Request]:
    return [Request(f"c{number}", "client", Down(), 3, 9, **more) for number in range(count)]


def outcomes(replies: list[Reply]) -> list[str | None]:
    return [str(reply.up.word) if reply.up is not None else reply.failure for reply in replies]


def clients(lane: Scripted) -> list[str]:
    return [client for sent, _ in lane.sent for client in sent]


def test_replies_are_in_order_and_large_clients_first_on_lanes_in_turn(tmp_path: Path) -> None:
    group, seen = Group("x", "y"), list[Any]()
    monitor = monitor_of(lambda *told: seen.append(told))
    replies = dispatcher(group, tmp_path, monitor).exchange(requests(4)[::-1])
    assert outcomes(replies) == ["c3", "c2", "c1", "c0"]
    assert [clients(lane) for lane in group.lanes] == [["c0", "c2"], ["c1", "c3"]]
    assert seen == [("client", done, 4) for done in (1, 2, 3, 4)]


def test_a_lane_gets_shared_trees_once_per_exchange_and_again_after_a_failure(
    tmp_path: Path,
) -> None:
    group = Group("x")
    left = [UNLUCKY]
    group.script = lambda lane, asked: left.pop() if left and asked[0].client == "c1" else None
    tree = Tree({"w": torch.ones(2)})
    shared = [Request(f"c{number}", "client", Down(model=tree), 1, 9) for number in range(3)]
    one = dispatcher(group, tmp_path)
    assert outcomes(one.exchange(shared)) == ["c0", "c1", "c2"]
    sent = [(who, trees is not None) for who, trees in group.lanes[0].sent]
    assert sent == [(["c0"], True), (["c1"], False), (["c1"], True), (["c2"], False)]
    one.exchange(shared)
    assert [trees is not None for _, trees in group.lanes[0].sent[4:]] == [True, False, False]


def test_a_request_bound_to_a_place_is_executed_there_and_nowhere_else(tmp_path: Path) -> None:
    """As one lane per site: nobody else has its data."""
    group = Group("north", "south")
    group.bound = {"c0": "south", "c1": "south", "c2": "north"}
    replies = dispatcher(group, tmp_path).exchange(requests(6))
    assert [reply.up.location for reply in replies[:3] if reply.up] == ["south", "south", "north"]
    assert outcomes(replies) == [f"c{number}" for number in range(6)]


def test_a_site_that_comes_back_gets_what_was_lost_with_it(tmp_path: Path) -> None:
    group = Group("north", "south")
    group.bound = {"c0": "south", "c1": "north"}
    group.respawns = False
    deaths = ["south"]
    group.script = lambda lane, asked: DIES if lane.location in deaths else None

    def returns() -> None:
        if group.now > 5 and len(group.lanes) == 1:
            deaths.clear()
            group.lanes.append(Scripted("south"))

    group.happens = returns
    replies = dispatcher(group, tmp_path).exchange(requests(2), deadline=20.0)
    assert outcomes(replies) == ["c0", "c1"] and 5 < group.now < 10


def test_clients_of_a_site_that_stays_away_are_out_after_one_deadline(tmp_path: Path) -> None:
    group = Group("north")
    group.bound = {"c0": "south", "c1": "north", "c2": "south"}
    replies = dispatcher(group, tmp_path).exchange(requests(3), deadline=20.0)
    late = "did not answer within 20 s"
    assert outcomes(replies) == [late, "c1", late] and 20 < group.now < 22


def test_a_lane_that_joins_takes_work(tmp_path: Path) -> None:
    group = Group("x")
    group.happens = lambda: group.lanes.append(Scripted("y")) if len(group.lanes) < 2 else None
    dispatcher(group, tmp_path).exchange(requests(6))
    assert [clients(lane) for lane in group.lanes] == [["c0", "c1", "c3", "c5"], ["c2", "c4"]]


def test_what_a_lane_had_that_the_group_gave_up_is_asked_of_others_without_blame(
    tmp_path: Path,
) -> None:
    group = Group("x", "y")
    group.script = lambda lane, asked: HANGS if lane.location == "y" else None
    group.happens = lambda: group.lanes.pop(1) if len(group.lanes) > 1 and group.now else None
    assert outcomes(dispatcher(group, tmp_path).exchange(requests(2))) == ["c0", "c1"]
    assert not group.replaced and clients(group.lanes[0]) == ["c0", "c1"]


def test_a_hung_step_costs_one_deadline_and_is_not_repeated(tmp_path: Path) -> None:
    group = Group("x", "y")
    group.script = lambda lane, asked: HANGS if asked[0].client == "c1" else None
    one = dispatcher(group, tmp_path)
    replies = one.exchange(requests(4), deadline=20.0)
    assert outcomes(replies) == ["c0", "did not answer within 20 s", "c2", "c3"]
    assert 20 < group.now < 22
    assert [hung for _, _, hung in group.replaced] == [True]
    group.script = lambda lane, asked: None
    assert outcomes(one.exchange(requests(2), deadline=20.0)) == ["c0", "c1"]


def test_what_waited_behind_a_hung_step_has_a_deadline_of_its_own(tmp_path: Path) -> None:
    group = Group("x")
    group.script = lambda lane, asked: HANGS if asked[0].client == "c0" else None
    replies = dispatcher(group, tmp_path).exchange(requests(9), deadline=20.0)
    assert outcomes(replies)[1:] == [f"c{number}" for number in range(1, 9)]
    assert replies[0].failure and 20 < group.now < 22


def test_the_clock_of_a_request_begins_when_the_one_before_it_has_ended(tmp_path: Path) -> None:
    group, since = Group("x"), dict[str, float]()

    def takes_eight(lane: Scripted, asked: list[Request]) -> str | None:
        began = since.setdefault(asked[0].client, group.now)
        return HANGS if group.now - began < 8 else None

    group.script = takes_eight
    replies = dispatcher(group, tmp_path).exchange(requests(10), deadline=10.0)
    assert not any(reply.failure for reply in replies) and not group.replaced


@pytest.mark.parametrize("how", [DIES, FAILS])
def test_a_request_that_loses_its_lane_three_times_ends_the_run(how: str, tmp_path: Path) -> None:
    group, left = Group("x", "y"), [2]

    def script(lane: Scripted, asked: list[Request]) -> str | None:
        if asked[0].client != "c1" or not left[0]:
            return None
        left[0] -= 1
        return how

    group.script = script
    one = dispatcher(group, tmp_path)
    assert outcomes(one.exchange(requests(3, die=True))) == ["c0", "c1", "c2"]
    dies = [request.die for request in group.asked if request.client == "c1"]
    assert dies == [True, False, False], "a simulated fault happens once"
    left[0] = 3
    with pytest.raises(
        RunError, match=r"a lane ended 3 times with client 'c1' in round 3, step 'client' \(the la"
    ):
        one.exchange(requests(3))


def test_losses_that_are_nobodys_fault_do_not_end_the_run(tmp_path: Path) -> None:
    group, left = Group("x"), [9]

    def script(lane: Scripted, asked: list[Request]) -> str | None:
        left[0] -= 1
        return UNLUCKY if left[0] > 4 else DIES if left[0] >= 0 else None

    group.script, group.blames = script, lambda places: []
    assert outcomes(dispatcher(group, tmp_path).exchange(requests(1))) == ["c0"]


def test_only_what_a_lane_had_begun_with_is_blamed_for_its_death(tmp_path: Path) -> None:
    """Two are sent ahead; the first dies twice, then the second twice: none of them three times."""
    group, left = Group("x"), {"c0": 2, "c1": 2}

    def script(lane: Scripted, asked: list[Request]) -> str | None:
        client = asked[0].client
        left[client] = left.get(client, 0) - 1
        return DIES if left[client] >= 0 else None

    group.script = script
    replies = dispatcher(group, tmp_path).exchange(requests(9))
    assert outcomes(replies) == [f"c{number}" for number in range(9)]
    first_asked = list(dict.fromkeys(request.client for request in group.asked))
    assert first_asked == [f"c{number}" for number in range(9)], "what was lost is asked next"


@pytest.mark.parametrize("patience", [None, (2.0, 3.0)])
def test_what_takes_long_is_asked_of_a_free_lane_elsewhere_once(
    patience: tuple[float, float] | None, tmp_path: Path
) -> None:
    group = Group("x", "x", "y")
    group.patience = patience
    first = group.lanes[0]
    group.script = lambda lane, asked: HANGS if lane is first else None
    replies = dispatcher(group, tmp_path).exchange(requests(3), deadline=60.0)
    if patience is None:
        assert outcomes(replies)[0] == "did not answer within 60 s"
        return
    assert outcomes(replies) == ["c0", "c1", "c2"]
    assert replies[0].up is not None and replies[0].up.location == "y"
    assert 5 < group.now < 6, "two seconds and three times the slowest"


def test_a_request_that_hangs_everywhere_is_out_when_its_last_copy_is_overdue(
    tmp_path: Path,
) -> None:
    group = Group("x", "y", "z")
    group.patience = (2.0, 3.0)
    group.script = lambda lane, asked: HANGS if asked[0].client == "c0" else None
    replies = dispatcher(group, tmp_path).exchange(requests(3), deadline=60.0)
    assert outcomes(replies) == ["did not answer within 60 s", "c1", "c2"]
    assert 60 < group.now < 68, "the copy began a little later"
    assert len(group.replaced) == 2, "it is asked twice, and not again and again"


def test_the_members_of_a_hung_group_are_asked_one_by_one(tmp_path: Path) -> None:
    group = Group("x", "y")
    group.patience, group.together = (2.0, 3.0), 3
    group.script = lambda lane, asked: (
        HANGS if any(request.client == "c1" for request in asked) else None
    )
    replies = dispatcher(group, tmp_path).exchange(requests(6), deadline=60.0)
    assert outcomes(replies) == ["c0", "did not answer within 60 s", "c2", "c3", "c4", "c5"]
    assert 60 < group.now < 75


def test_a_late_answer_of_an_earlier_exchange_counts_for_nothing(tmp_path: Path) -> None:
    group = Group("x", "y")
    group.patience = (2.0, 3.0)
    slow, hanging = group.lanes[0], [True]
    group.script = lambda lane, asked: HANGS if lane is slow and hanging[0] else None
    one = dispatcher(group, tmp_path)
    assert outcomes(one.exchange(requests(2))) == ["c0", "c1"]
    hanging[0] = False
    later = [Request("c7", "client", Down(), 4, 9), Request("c8", "client", Down(), 4, 9)]
    assert outcomes(one.exchange(later)) == ["c7", "c8"] and not group.replaced


def test_it_stops_when_it_is_told_to_and_does_nothing_for_nobody(tmp_path: Path) -> None:
    group, monitor = Group("x"), Monitor()
    one = dispatcher(group, tmp_path, monitor)
    assert one.exchange([]) == []
    group.script = lambda lane, asked: HANGS
    monitor.interrupted = lambda: group.now > 3
    with pytest.raises(Interrupted):
        one.exchange(requests(1))
    with pytest.raises(Interrupted):
        one.wait_until(lambda: False)
