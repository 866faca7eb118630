"""Runs over a stand-in for Ray: what becomes of them when actors, nodes, objects and time are lost.

Real clusters are in test_cluster_*.py, slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import session, simulate
from equipoise.callbacks import ClientProgress
from equipoise.data import federate
from equipoise.data.roster import roster_of
from equipoise.experiment import ConfigurationError, Experiment, experiment
from equipoise.records import Down, Record, Up
from equipoise.runs import Run
from equipoise.runtime.messages import Reply, Request, StateRef, reply_file, state_file, state_name
from equipoise.session import job_of
from equipoise.storage.store import RunError
from equipoise.transports.base import Interrupted, Monitor
from equipoise.transports.ray import actor, references
from equipoise.transports.ray import cluster as transport
from equipoise.transports.ray.actor_pool import HeadLost
from equipoise.transports.ray.cluster import Cluster
from equipoise.tree import Tree
from tests.helpers.callbacks import Calling, monitor_of
from tests.helpers.runs import config, same_run, settings, sites
from tests.helpers.standin_ray import (
    ADDRESS,
    MB,
    TICK,
    ActorUnschedulableError,
    Call,
    Died,
    Hangs,
    ObjectLostError,
    RayError,
    StandIn,
    stood_in,
)  # fmt: skip
from tests.helpers.transports import sites_given

FAULTS = [
    {"round": 1, "client": "bo", "kind": "drop"},
    {"round": 2, "client": "ada", "kind": "nan"},
    {"round": 2, "client": "di", "kind": "kill"},
]


@pytest.fixture
def ray() -> Iterator[StandIn]:
    with stood_in(1, 1) as found:
        yield found


# Whole runs, which equal those in process.


def whole(ray: StandIn, tmp_path: Path, wanted: Any, watcher: Calling | None = None) -> Run:
    there = simulate.run(wanted, tmp_path / "there", watcher, cluster=ADDRESS)
    same_run(simulate.run(wanted, tmp_path / "here"), there)
    assert not ray.living and ray.shutdowns == 1
    return there


def told(run: Run, kind: str) -> Counter[str]:
    """What the records of the rounds say of each node."""
    found: Counter[str] = Counter()
    for row in run.rounds():
        found.update(
            {
                name.partition("@")[2]: value
                for name, value in row["seconds"].items()
                if name.startswith(f"{kind}@")
            }
        )
    return found


def in_round(number: int, happens: Callable[[], object], after: int = 2) -> Calling:
    """Something happens once, when so many clients of a round have answered."""
    past = [0]

    def clients(progress: ClientProgress) -> None:
        if progress.step == "client" and progress.done == after and past[0] == number - 1:
            happens()

    def ended(record: Any) -> None:
        past[0] = record.round

    return Calling(on_client=clients, on_round=ended)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_with_faults_is_the_same_and_says_who_did_what(
    method: str, ray: StandIn, tmp_path: Path
) -> None:
    run = whole(ray, tmp_path, sites_given(settings(method, faults={"script": FAULTS})))
    answered = [
        call for call in ray.calls if call.method == "execute" and call.left[0].error is None
    ]
    done = Counter(call.process.machine.name for call in answered for _ in call.clients)
    assert told(run, "clients") == done and len(done) == 2
    assert told(run, "seconds") == {name: TICK * count for name, count in done.items()}
    assert sum(told(run, "bytes").values()) > 0
    assert not told(run, "lost") and not told(run, "joined") and not told(run, "left out")
    assert len(ray.processes) == 3  # the one that was killed was replaced


def test_an_actor_is_lost_in_mid_exchange(
    ray: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def strike() -> None:
        ray.processes[1].dead = True

    run = whole(ray, tmp_path, sites_given(settings("scaffold")), in_round(2, strike))
    assert "an actor on node 10.0.0.1:2 is lost: The actor died\n" in caplog.text + "\n"
    assert len(ray.processes) == 3 and ray.processes[2].machine is ray.machines[2]
    assert not told(run, "lost")


def test_a_node_is_lost_in_mid_exchange_and_its_states_with_it(
    ray: StandIn, tmp_path: Path
) -> None:
    run = whole(
        ray,
        tmp_path,
        sites_given(settings("scaffold")),
        in_round(2, lambda: ray.lose(ray.machines[1])),
    )
    assert told(run, "lost") == {"10.0.0.1:1": 1} and not told(run, "joined")
    assert run.rounds()[2]["seconds"].keys() & {"clients@10.0.0.1:1"} == set()


def test_a_node_that_joins_gets_actors_and_is_an_event(ray: StandIn, tmp_path: Path) -> None:
    def joins() -> None:
        ray.add(cores=2)
        ray.clock.sleep(5.1)

    run = whole(ray, tmp_path, sites_given(settings("scaffold")), in_round(2, joins))
    assert told(run, "joined") == {"10.0.0.1:3": 1}
    assert [process.machine.id for process in ray.processes] == ["1", "2", "3", "3"]
    assert told(run, "clients")["10.0.0.1:3"] > 0


def test_a_run_that_is_interrupted_can_be_resumed_elsewhere(
    ray: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(session, "interruptible", lambda: nullcontext(lambda: bool(asked)))
    with pytest.raises(
        KeyboardInterrupt, match="stopped after round 1; continue with `equipoise resume"
    ):
        simulate.run(
            sites_given(settings("scaffold")),
            tmp_path / "there",
            in_round(2, lambda: asked.append(1)),
            cluster=ADDRESS,
        )
    assert not ray.living
    asked.clear()
    resumed = simulate.resume(
        tmp_path / "there", experiment=sites_given(settings("scaffold")), cluster=ADDRESS
    )
    same_run(simulate.run(sites_given(settings("scaffold")), tmp_path / "here"), resumed)


# Which nodes may work.


def test_a_node_that_differs_is_left_out_and_named(
    ray: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ray.machines[1].cores = 2
    ray.machines[1].changes = {"kind": lambda: {**actor_kind(), "torch": "0.1"}}
    run = whole(ray, tmp_path, sites_given(settings("fedavg")))
    sentence = f"it has torch 0.1 instead of {torch.__version__}"
    assert f"node 10.0.0.1:1 is left out: {sentence}" in caplog.text
    assert told(run, "left out") == {"10.0.0.1:1": 1} and not told(run, "lost")
    assert told(run, "clients").keys() == {"10.0.0.1:2"}
    ray.machines[2].changes = {"kind": lambda: {**actor_kind(), "equipoise": "0.0.0"}}
    with pytest.raises(ConfigurationError) as refused:
        simulate.run(sites_given(settings("fedavg")), tmp_path / "none", cluster=ADDRESS)
    assert str(refused.value) == (
        f"no node of the cluster at 127.0.0.1:1 can do this work: node 10.0.0.1:1: {sentence}; "
        f"node 10.0.0.1:2: it has equipoise 0.0.0 instead of {eq.__version__}"
    )
    assert not ray.living and not (tmp_path / "none").exists()


actor_kind = actor.kind


def test_a_cluster_without_cores_is_refused(tmp_path: Path) -> None:
    with stood_in() as ray:
        with pytest.raises(
            ConfigurationError,
            match=(
                r"at 127\.0\.0\.1:1 offers no CPUs; start nodes with `equipoise cluster start "
                r"--join"
            ),
        ):
            simulate.run(sites_given(settings("fedavg")), tmp_path / "run", cluster=ADDRESS)
        assert ray.shutdowns == 1


def test_nodes_with_small_stores_make_the_data_themselves(
    ray: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second has room for the data.

    Of those without, the third has other data and the fourth none.
    """
    wanted = experiment(config(tmp_path, "scaffold"))
    other = federate(wanted.data, wanted.seed + 1)

    def missing(*arguments: Any) -> Any:
        raise FileNotFoundError("there is no folder")

    ray.machines[1].store = 20_000
    ray.add(store=20_000, changes={"federate": lambda *arguments: other})
    ray.add(store=20_000, changes={"federate": missing})
    run = whole(ray, tmp_path, wanted)
    begun = {
        call.process.machine.id: call.arguments[1] for call in ray.calls if call.method == "begin"
    }
    assert [begun[name] is None for name in "1234"] == [True, False, True, True]
    assert told(run, "clients").keys() == {"10.0.0.1:1", "10.0.0.1:2"}
    assert (
        "node 10.0.0.1:3 is left out: what is in its data folder differs from the data here"
        in caplog.text
    )
    assert "node 10.0.0.1:4 is left out: it cannot make the data: there is no folder" in caplog.text


def test_all_nodes_make_the_data_if_this_one_has_no_room(ray: StandIn, tmp_path: Path) -> None:
    ray.head.store = 20_000
    whole(ray, tmp_path, experiment(config(tmp_path, "fedavg")))
    assert [call.arguments[1] for call in ray.calls if call.method == "begin"] == [None, None]


def test_data_that_cannot_be_made_at_a_small_node_leave_it_out(
    ray: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 64 samples of 256 bytes, 60 times
    large = {name: (x.repeat(60, 0), y.repeat(60, 0)) for name, (x, y) in sites().items()}
    wanted = Experiment(**settings("fedavg", rounds=1), dataset=eq.from_sites(large))
    ray.machines[1].store = MB
    run = simulate.run(wanted, tmp_path / "run", cluster=ADDRESS)
    assert (
        "node 10.0.0.1:1 is left out: the data (1 MB) exceed half of its object store (1 MB) and "
        "cannot be made there" in caplog.text
    )
    assert told(run, "clients").keys() == {"10.0.0.1:2"}


def test_what_every_node_refuses_is_said_as_in_process(ray: StandIn, tmp_path: Path) -> None:
    def refuse(*arguments: Any) -> Any:
        raise ValueError("expected this, got that")

    ray.machines[1].changes = {"ClientExecutor": refuse}
    with pytest.raises(ConfigurationError, match=r"^expected this, got that$"):
        simulate.run(sites_given(settings("fedavg")), tmp_path / "run", cluster=ADDRESS)
    assert not ray.living and ray.shutdowns == 1


# Single exchanges, with clients that answer at once with what they were sent.


class Echo:
    """In place of the executor: how often a client was asked is its state."""

    def __init__(self, job: Any, federation: Any, states: Any, experiment: Any) -> None:
        assert torch.get_num_threads() == 1
        self.states = states

    def execute_group(self, requests: Sequence[Request]) -> list[Reply]:
        return [self.execute_catching(request) for request in requests]

    def execute_catching(self, request: Request) -> Reply:
        count = self.states.read(*request.state).count + 1 if request.state else 1
        down = request.down
        total = float(down.model["w"].sum()) if "model" in down else 0.0
        reply = Reply(
            request.client,
            Up(word=down.word, total=total, count=count),
            seconds=0.5,
            bytes=down.get("bytes", 10),
        )
        if request.exchange:
            name = state_name(request.client, request.round, request.attempt, request.exchange)
            reply.state = self.states.write(
                name, Record(count=count, own=torch.zeros(down.get("numbers", 1)))
            )
        return reply


@pytest.fixture
def opened(
    ray: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Cluster]]:
    monkeypatch.setattr(actor, "ClientExecutor", Echo)
    found: list[Cluster] = []

    def open_(monitor: Monitor | None = None, count: int = 4) -> Cluster:
        wanted = Experiment(
            **settings("fedavg"),
            dataset=eq.from_sites(
                sites(
                    {
                        f"c{place:02d}": 10 * (5 - place) if count == 4 else 12
                        for place in range(count)
                    }
                )
            ),
        )
        found.append(Cluster(federate(wanted.data, wanted.seed, wanted.dataset), wanted, ADDRESS))
        found[0].open(job_of(wanted, "run"), tmp_path / "run" / "files", monitor or Monitor())
        return found[0]

    yield open_
    for one in found:
        one.close()


def asked(
    count: int = 4,
    round: int = 1,
    tree: Tree | None = None,
    states: dict[str, StateRef] | None = None,
    **more: Any,
) -> list[Request]:
    """Of clients c00, c01, ...; the first has the most data."""
    found = []
    for place in range(count):
        client = f"c{place:02d}"
        down = Down(
            word=client,
            **{key: more[key] for key in ("bytes", "numbers") if key in more},
            **({"model": tree} if tree else {}),
        )
        kept = (states or {}).get(client)
        plain = {key: value for key, value in more.items() if key not in ("bytes", "numbers")}
        found.append(
            Request(
                client, "client", down, round, 3, state=kept and (kept.name, kept.digest), **plain
            )
        )
    return found


def words(replies: list[Reply]) -> list[Any]:
    return [reply.up.word if reply.up else reply.failure for reply in replies]


ALL = ["c00", "c01", "c02", "c03"]


def performed(ray: StandIn) -> list[Call]:
    return [call for call in ray.calls if call.method == "execute"]


def travelled(ray: StandIn) -> list[list[str]]:
    return [call.clients for call in performed(ray)]


def failing(ray: StandIn, client: str, *becomes: BaseException | None) -> None:
    """What becomes of the calls with a client, one after another; the rest are done."""
    left = list(becomes)

    def script(call: Call) -> None:
        if client in call.clients and left and (error := left.pop(0)):
            raise error

    ray.script = script


def test_replies_come_in_the_order_of_the_requests_and_large_clients_are_asked_first(
    ray: StandIn, opened: Any
) -> None:
    seen: list[Any] = []
    monitor = monitor_of(lambda *counts: seen.append(counts))
    cluster = opened(monitor)
    requests = asked()[::-1]
    replies = cluster.exchange(requests)
    assert words(replies) == ALL[::-1] and [reply.client for reply in replies] == ALL[::-1]
    assert travelled(ray) == [["c00"], ["c01"], ["c02"], ["c03"]]
    assert [call.process.machine.id for call in performed(ray)] == ["1", "2", "1", "2"]
    assert seen == [("client", number, 4) for number in (1, 2, 3, 4)]
    assert monitor.by_location == {
        "clients@10.0.0.1:1": 2, "seconds@10.0.0.1:1": 1.0, "bytes@10.0.0.1:1": 20,
        "clients@10.0.0.1:2": 2, "seconds@10.0.0.1:2": 1.0, "bytes@10.0.0.1:2": 20,
    }  # fmt: skip
    assert cluster.lanes == 2 and cluster.exchange([]) == [] and len(performed(ray)) == 4


def test_small_requests_travel_together_in_shares_of_what_is_left(
    ray: StandIn, opened: Any
) -> None:
    cluster = opened(count=90)
    assert words(cluster.exchange(asked(90))) == [f"c{place:02d}" for place in range(90)]
    sizes = {
        f"c{place:02d}": size + 1
        for place, size in enumerate(roster_of(cluster.federation).sizes["train"].values())
    }
    left, expected = sorted(sizes, key=lambda name: -sizes[name]), []
    while left:  # a quarter of the weight that is left, for two lanes; sixteen at most
        share, taken = sum(sizes[name] for name in left) / 4, [left.pop(0)]
        while left and len(taken) < 16 and sum(sizes[name] for name in [*taken, left[0]]) <= share:
            taken.append(left.pop(0))
        expected.append(taken)
    assert travelled(ray) == expected and len(expected[0]) == 16


@pytest.mark.parametrize(("count", "ahead"), [(16, 1), (17, 2)])
def test_many_requests_are_sent_ahead(count: int, ahead: int, ray: StandIn, opened: Any) -> None:
    outstanding: list[int] = []
    ray.script = lambda call: outstanding.append(sum(not one.done for one in performed(ray)))
    opened(count=count).exchange(asked(count))
    assert max(outstanding) == 2 * ahead


def test_large_requests_and_replies_do_not_travel_together(ray: StandIn, opened: Any) -> None:
    """Two megabytes travel with an answer."""
    cluster = opened(count=60)
    tree = Tree({"w": torch.ones(2**17 - 100)})  # half a megabyte
    cluster.exchange(asked(60, tree=tree))
    assert max(map(len, travelled(ray))) == 4
    cluster.exchange(asked(60, bytes=2 * MB // 3 + 1))
    before = len(performed(ray))
    cluster.exchange(asked(60))
    assert max(map(len, travelled(ray)[before:])) == 2


# Two megabytes may travel with calls: the copies for both actors together.
@pytest.mark.parametrize(("numbers", "small"), [(3, True), (2**17, True), (2**18 + 1, False)])
def test_trees_that_many_share_are_sent_once_to_each_actor_in_an_exchange(
    numbers: int, small: bool, ray: StandIn, opened: Any
) -> None:
    cluster = opened()
    before = len(ray.put_values)
    for exchange in (1, 2):
        tree = Tree({"w": torch.full((numbers,), float(exchange))})
        replies = cluster.exchange(asked(tree=tree))
        assert [reply.up.total for reply in replies] == [float(numbers) * exchange] * 4
        assert len(ray.put_values) == before + (0 if small else exchange), (
            "small ones travel with the call"
        )
        sent = [call.arguments[1] is not None for call in performed(ray)[-4:]]
        assert sent == [True, True, False, False]
    cluster.exchange(asked(1, tree=Tree({"w": torch.ones(numbers)})))  # of one alone
    assert len(ray.put_values) == before + (0 if small else 2)


def test_the_requests_of_a_failed_call_are_asked_again_one_by_one_with_their_trees(
    ray: StandIn, opened: Any
) -> None:
    cluster = opened(count=20)
    failing(ray, "c01", RayError("\n\n  out of luck\nand more"))
    replies = cluster.exchange(asked(20, tree=Tree({"w": torch.ones(3)})))
    assert words(replies) == [f"c{place:02d}" for place in range(20)]
    first, *others = travelled(ray)
    assert len(first) > 2 and [one for one in others if set(one) & {"c00", "c01", "c02"}] == [
        ["c00"],
        ["c01"],
        ["c02"],
    ]
    assert len(ray.processes) == 2  # it lives
    to_first = [call for call in performed(ray) if call.process is ray.processes[0]]
    assert [call.arguments[1] is not None for call in to_first[:3]] == [
        True,
        False,
        True,
    ]  # the second was on its way already


@pytest.mark.parametrize(
    "error", [Died(), RayError("The actor died"), ActorUnschedulableError("The actor died")]
)
def test_a_client_that_ends_its_actor_three_times_ends_the_run(
    error: BaseException, ray: StandIn, opened: Any
) -> None:
    cluster = opened()
    failing(ray, "c01", error, error)
    assert words(cluster.exchange(asked())) == ALL
    failing(ray, "c01", error, error, error)
    with pytest.raises(RunError) as ended:
        cluster.exchange(asked(round=2))
    assert (
        str(ended.value)
        == "an actor ended 3 times with client 'c01' in round 2, step 'client' (the last: The actor died)"
    )


def test_nodes_that_die_and_objects_that_are_lost_do_not_count_against_a_client(
    ray: StandIn, opened: Any
) -> None:
    for _ in range(3):
        ray.add()
    cluster, killed = opened(), []

    def script(call: Call) -> None:
        if "c00" in call.clients and len(killed) < 4:
            killed.append(call.process.machine)
            ray.lose(call.process.machine, known_after=4.9)
            raise Died

    ray.script = script
    assert words(cluster.exchange(asked())) == ALL and len(set(killed)) == 4
    failing(ray, "c00", *[ObjectLostError("gone")] * 5)
    assert words(cluster.exchange(asked())) == ALL


def test_a_state_that_was_lost_is_put_again_from_its_file(
    ray: StandIn, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "INLINE", 0)
    cluster = opened()
    states = {
        reply.client: reply.state for reply in cluster.exchange(asked(exchange=1)) if reply.state
    }
    before = len(ray.put_values)
    failing(ray, "c01", ObjectLostError("gone"))
    assert [
        reply.up.count for reply in cluster.exchange(asked(round=2, states=states, exchange=1))
    ] == [2] * 4
    assert len(ray.put_values) == before + 1  # of the one that was lost, and of no other


def test_what_is_larger_than_an_answer_travels_alone(ray: StandIn, opened: Any) -> None:
    cluster = opened(count=60)
    cluster.exchange(asked(60, bytes=3 * MB))
    before = len(performed(ray))
    cluster.exchange(asked(60))
    assert max(map(len, travelled(ray)[before:])) == 1


def test_a_cluster_is_that_of_this_machine_with_a_token_unless_one_says_otherwise(
    ray: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, seen = sites_given(settings("fedavg")), []
    monkeypatch.setattr(
        transport, "connected", lambda *given: seen.append(given) or (ray, ADDRESS, True)
    )
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    for cluster in (Cluster(federation, wanted), Cluster(federation, wanted, "1.2.3.4:5", True)):
        cluster.open(job_of(wanted, "run"), tmp_path / "files", Monitor())
        cluster.close()
    assert seen == [("auto", False), ("1.2.3.4:5", True)]


# Time.


def test_a_client_that_hangs_among_others_costs_one_deadline_and_nobody_else(
    ray: StandIn, opened: Any, tmp_path: Path
) -> None:
    """Its group is asked again one by one long before: after 2 s and three times what such a group
    takes.
    """
    cluster = opened(count=20)

    def script(call: Call) -> None:
        if "c01" in call.clients:
            raise Hangs

    ray.script = script
    left = tmp_path / "run" / "files" / state_file(state_name("c01", 1, 0, 1))
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    began = ray.clock.now
    replies = cluster.exchange(asked(20, exchange=1), deadline=100.0)
    assert words(replies) == [
        "c00",
        "did not answer within 100 s",
        *(f"c{place:02d}" for place in range(2, 20)),
    ]
    assert len(travelled(ray)[0]) > 1 and travelled(ray).count(["c01"]) == 1
    assert not left.exists()
    assert 100.0 < ray.clock.now - began < 115.0
    ray.script = lambda call: None
    assert words(cluster.exchange(asked(20, round=2), deadline=100.0))[1] == "c01"
    assert cluster.lanes == 2 and len(ray.living) == 2


def test_a_group_that_is_slow_is_asked_again_one_by_one(ray: StandIn, opened: Any) -> None:
    """For it may be one of them that hangs; the group itself may still answer first."""
    cluster, slow = opened(count=20), [True]

    def script(call: Call) -> None:
        if len(call.clients) > 4 and slow[0]:
            raise Hangs

    ray.script = script
    assert words(cluster.exchange(asked(20))) == [f"c{place:02d}" for place in range(20)]
    first = travelled(ray)[0]
    assert [one for one in travelled(ray)[1:] if set(one) & set(first)] == [
        [client] for client in first
    ]
    slow[0] = False
    assert words(cluster.exchange(asked(20, round=2))) == [f"c{place:02d}" for place in range(20)]


def test_what_takes_long_is_done_by_a_free_actor_of_another_node_too(
    ray: StandIn, opened: Any
) -> None:
    ray.machines[1].cores = 2
    cluster, hanging = opened(), [True]

    def script(call: Call) -> None:
        if "c00" in call.clients and call.process is ray.processes[0] and hanging[0]:
            raise Hangs

    ray.script = script
    began = ray.clock.now
    assert words(cluster.exchange(asked())) == ALL
    assert 3.5 < ray.clock.now - began <= 4.0  # two seconds and three times the slowest
    repeated = [call.process.machine.id for call in performed(ray) if call.clients == ["c00"]]
    assert repeated == ["1", "2"]
    before = len(performed(ray))
    assert words(cluster.exchange(asked(round=2))) == ALL  # by the other two
    assert ray.processes[0] not in [call.process for call in performed(ray)[before:]]
    hanging[0] = False
    assert words(cluster.exchange(asked(round=3))) == ALL
    # its old answer was taken in and is no answer to this
    assert words(cluster.exchange(asked(round=4))) == ALL
    assert (
        ray.processes[0] in [call.process for call in performed(ray)[before:]]
        and len(ray.processes) == 3
    )


def test_slow_nodes_are_not_waited_for_long_and_work_when_they_are_ready(
    ray: StandIn, opened: Any
) -> None:
    slow = [True]

    def script(call: Call) -> None:
        if call.method == "begin" and call.process.machine.id == "2" and slow[0]:
            raise Hangs

    ray.script = script
    began = ray.clock.now
    cluster = opened()
    assert 30.0 < ray.clock.now - began <= 31.0 and cluster.lanes == 1
    cluster.exchange(asked())
    assert {call.process.machine.id for call in performed(ray)} == {"1"}
    slow[0] = False
    cluster.exchange(asked())
    assert {call.process.machine.id for call in performed(ray)} == {"1", "2"} and cluster.lanes == 2


def test_actors_that_never_get_ready_leave_their_node_out(
    ray: StandIn, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def script(call: Call) -> None:
        raise Hangs if call.process.machine.id == "1" else Died

    ray.script = script
    began = ray.clock.now
    with pytest.raises(ConfigurationError) as refused:
        opened()
    assert str(refused.value) == (
        "no node of the cluster at 127.0.0.1:1 can do this work: node 10.0.0.1:2: its actors ended "
        "3 times while starting; node 10.0.0.1:1: its actors ended 3 times while starting"
    )
    assert (
        360 < ray.clock.now - began < 365
        and caplog.text.count("10.0.0.1:1 is lost: it was not ready within 120 s") == 3
    )
    assert len(ray.processes) == 6 and not ray.living


def test_it_stops_when_it_is_told_to(ray: StandIn, opened: Any) -> None:
    monitor = Monitor()
    cluster = opened(monitor)
    monitor.interrupted = lambda: True
    with pytest.raises(Interrupted):
        cluster.exchange(asked())
    cluster.close()
    with pytest.raises(Interrupted):
        opened(monitor)


# No node, no head, no room.


def lost_for(
    ray: StandIn, cluster: Cluster, monitor: Monitor, seconds: float, then: Callable[[], Any]
) -> list[Reply]:
    """An exchange in which all nodes are lost, and something happens so many seconds later."""
    began = ray.clock.now

    def script(call: Call) -> None:
        for machine in ray.machines[1:3]:
            ray.lose(machine)
        raise Died

    ray.script = script
    monitor.interrupted = lambda: bool(ray.clock.now - began > seconds and then())
    return cluster.exchange(asked())


def test_without_any_node_it_waits_for_one(
    ray: StandIn, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = Monitor()
    cluster = opened(monitor)

    def joins() -> None:
        ray.script = lambda call: None
        if len(ray.machines) == 3:
            ray.add()

    assert words(lost_for(ray, cluster, monitor, 59.0, joins)) == ALL
    assert (
        monitor.by_location["lost@10.0.0.1:1"]
        == monitor.by_location["lost@10.0.0.1:2"]
        == monitor.by_location["joined@10.0.0.1:3"]
        == 1
    )
    assert "no node is left; waiting 60 s for one" in caplog.text


def test_without_any_node_it_stops_in_the_end_or_when_it_is_told_to(
    ray: StandIn, opened: Any, tmp_path: Path
) -> None:
    monitor = Monitor()
    cluster = opened(monitor)
    with pytest.raises(Interrupted):
        lost_for(ray, cluster, monitor, 30.0, lambda: True)
    began = ray.clock.now
    with pytest.raises(RunError) as ended:
        lost_for(ray, cluster, monitor, 99.0, lambda: True)
    assert 60 < ray.clock.now - began < 62
    assert "127.0.0.1:1 has had no node for this work for 60 s" in str(ended.value)
    assert f"`equipoise resume {tmp_path / 'run'} --cluster ADDRESS`" in str(ended.value)


def test_a_head_that_does_not_answer_three_times_ends_the_run(ray: StandIn, opened: Any) -> None:
    ray.unreachable = 2
    cluster = opened()
    assert ("127.0.0.1", 1) in ray.said
    ray.unreachable = 3
    cluster.exchange(asked())  # nobody looked
    ray.clock.sleep(5.1)
    with pytest.raises(
        HeadLost,
        match=r"the head of the cluster at 127\.0\.0\.1:1 is lost; .*`equipoise resume",
    ):
        cluster.exchange(asked())


def test_trees_without_room_are_said(ray: StandIn, opened: Any) -> None:
    cluster = opened()
    ray.head.store = 2 * MB
    with pytest.raises(RunError) as ended:
        cluster.exchange(asked(tree=Tree({"w": torch.ones(3 * MB // 4)})))
    assert str(ended.value).startswith(
        "the object store of this node (100 MB) cannot hold 3 MB more; start its node with a "
        "larger --store, then `equipoise resume"
    )


def test_it_leaves_nothing_and_ends_only_its_own_connection(
    ray: StandIn, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise ConnectionError

    monkeypatch.setattr(ray, "shutdown", gone)
    cluster = opened()
    cluster.close()
    cluster.close()
    assert len(ray.processes) == 2 and not ray.living
    monkeypatch.undo()
    monkeypatch.setattr(actor, "ClientExecutor", Echo)
    with stood_in(1) as other:
        monkeypatch.setattr(transport, "connected", lambda address, trust: (other, address, False))
        opened().close()
        assert not other.living and not other.shutdowns
    wanted = sites_given(settings("fedavg"))
    Cluster(federate(wanted.data, wanted.seed, wanted.dataset), wanted).close()


# States.


def test_small_states_travel_with_the_call(ray: StandIn, opened: Any, tmp_path: Path) -> None:
    cluster, states = opened(), {}
    before = len(ray.put_values)
    for round in (1, 2):
        replies = cluster.exchange(asked(round=round, states=states, exchange=1))
        assert [reply.up.count for reply in replies] == [round] * 4
        states = {reply.client: reply.state for reply in replies if reply.state}
    assert len(states) == 4 and len(ray.put_values) == before


def test_large_states_stay_where_they_are_and_come_from_their_files_once_their_node_is_lost(
    ray: StandIn, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "INLINE", 0)
    cluster = opened()
    files = tmp_path / "run" / "files"
    states: dict[str, StateRef] = {}
    before = len(ray.put_values)
    for round in (1, 2, 3):
        if round == 3:
            ray.lose(ray.machines[1])
        replies = cluster.exchange(asked(round=round, states=states, exchange=1))
        assert [reply.up.count for reply in replies] == [round] * 4
        states = {reply.client: reply.state for reply in replies if reply.state}
        assert len(states) == 4 and all(
            (files / state_file(kept.name)).stat().st_size == kept.bytes for kept in states.values()
        )
        # those that were at the lost node
        assert len(ray.put_values) - before == (2 if round == 3 else 0)


@pytest.mark.parametrize(("store", "puts"), [(200_000, 4), (10 * MB, 0)])
def test_states_are_held_up_to_a_fifth_of_the_smallest_store(
    store: int, puts: int, ray: StandIn, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of 16 kB: beyond 40 kB the first had to go before they were asked for again."""
    monkeypatch.setattr(references, "INLINE", 15_000)
    ray.machines[2].store = store
    cluster = opened()
    replies = cluster.exchange(asked(exchange=1, numbers=4000))
    states = {reply.client: reply.state for reply in replies}
    before = len(ray.put_values)
    cluster.exchange(asked(round=2, states=states, exchange=1, numbers=4000))
    assert len(ray.put_values) - before == puts


def test_large_replies_go_to_files(ray: StandIn, opened: Any, tmp_path: Path) -> None:
    cluster = opened()
    (tmp_path / "run" / "files").mkdir(parents=True)
    requests = asked(exchange=1, large=True)
    replies = cluster.exchange(requests)
    assert words(replies) == ALL and [reply.file for reply in replies] == [
        reply_file(request) for request in requests
    ]
    assert all(
        (tmp_path / "run" / "files" / reply.file).exists() for reply in replies if reply.file
    )
