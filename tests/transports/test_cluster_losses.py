"""Actors, nodes, the head and the driver are killed at any moment: the run continues, or stops so
that it can be resumed, with the same bits.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import equipoise as eq
from equipoise import simulate
from equipoise.callbacks import Callback, ClientProgress
from equipoise.engine.cohort import Clients
from equipoise.runs import Run
from equipoise.storage.store import RunError
from equipoise.transports.ray import dispatch
from tests.helpers.callbacks import Calling
from tests.helpers.clusters import Local, actors, gone, listens, local, processes
from tests.helpers.clusters import command as command_of
from tests.helpers.runs import folder_of, same_run, settings, sites

pytestmark = pytest.mark.slow
SIZES = {f"c{place:02d}": 30 + place for place in range(16)}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with local(tmp_path_factory.mktemp("state"), 1, 1, 1) as found:
        yield found


@pytest.fixture
def cluster(three: Local) -> Local:
    """Three nodes, whatever the test before has killed."""
    three.nodes = [node for node in three.nodes if node.alive]
    while len(three.nodes) < 3:
        three.join()
    return three


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder_of(tmp_path_factory.mktemp("data") / "sites", sites(SIZES))


def config(
    data: str, method: Any = "scaffold", rounds: int = 6, epochs: int = 8, **more: Any
) -> dict[str, Any]:
    found = settings(
        method, rounds=rounds, training={"lr": 0.02, "batch": 5, "epochs": epochs}, **more
    )
    return found | {"data": found["data"] | {"name": data}}


class Watching(Callback):
    """Does something at a reply in the middle of a round, and remembers how long the run stood
    still then.
    """

    def __init__(
        self, happens: Callable[[], object], rounds: tuple[int, ...] = (2,), after: int = 4
    ) -> None:
        self.happens, self.at, self.after, self.round, self.training = happens, rounds, after, 1, 0
        self.last: float | None = None
        self.gaps: list[float] = []  # the longest wait for a reply after each strike, in its round

    def on_client(self, progress: ClientProgress) -> None:
        now = time.monotonic()
        if self.last is not None:
            self.gaps[-1] = max(self.gaps[-1], now - self.last)
            self.last = now
        if progress.step == "client" and progress.done == self.after and self.round in self.at:
            self.happens()
            self.gaps.append(0.0)
            self.last = time.monotonic()

    def on_round(self, record: Any) -> None:
        self.round, self.last = record.round + 1, None


def whole(cluster: Local, data: str, tmp_path: Path, watcher: Callback, **more: Any) -> Run:
    """The run on the cluster, which equals the one in process."""
    there = simulate.run(config(data, **more), tmp_path / "there", watcher, cluster=cluster.address)
    same_run(simulate.run(config(data, **more), tmp_path / "here"), there)
    assert gone(cluster.nodes)
    return there


def events(run: Run, kind: str) -> int:
    return int(
        sum(
            value
            for row in run.rounds()
            for name, value in row["seconds"].items()
            if name.startswith(f"{kind}@")
        )
    )


def test_an_actor_is_killed_in_the_middle_of_an_exchange(
    cluster: Local, data: str, tmp_path: Path
) -> None:
    watcher = Watching(lambda: os.kill(actors(cluster.nodes)[0], signal.SIGKILL), rounds=(2, 4))
    run = whole(cluster, data, tmp_path, watcher)
    print("stood still for", watcher.gaps)
    assert len(watcher.gaps) == 2 and events(run, "lost") == 0


@pytest.mark.parametrize("count", [1, 2])
def test_nodes_are_killed_in_the_middle_of_an_exchange(
    count: int, cluster: Local, data: str, tmp_path: Path
) -> None:
    """Of three, one (that of the first actor, which has worked and holds states) or two at once:
    all but one.
    """

    def strike() -> None:
        for node in cluster.nodes[:count]:
            cluster.kill(node)

    watcher = Watching(strike)
    run = whole(cluster, data, tmp_path, watcher, rounds=8)
    print("stood still for", watcher.gaps)
    assert events(run, "lost") == count


def test_the_node_that_holds_most_states_is_killed_between_two_rounds(
    cluster: Local, data: str, tmp_path: Path
) -> None:
    done: Counter[str] = Counter()

    def after(record: Any) -> None:
        done.update(
            {name: value for name, value in record.seconds.items() if name.startswith("clients@")}
        )
        if record.round == 3:
            port = int(done.most_common(1)[0][0].rpartition(":")[2])
            (most,) = [node for node in cluster.nodes if listens(node, port)]
            cluster.kill(most)

    watcher = Calling(on_round=after)
    run = whole(cluster, data, tmp_path, watcher, method="fedakd")
    assert events(run, "lost") == 1


def test_a_node_that_joins_in_the_middle_of_a_run_takes_work(
    cluster: Local, data: str, tmp_path: Path
) -> None:
    for node in cluster.nodes[1:]:
        cluster.kill(node)
    joined: list[float] = []
    first: list[float] = []

    def after(record: Any) -> None:
        if record.round == 2:
            cluster.join()
            joined.append(time.monotonic())
        if joined and not first and sum(name.startswith("clients@") for name in record.seconds) > 1:
            first.append(time.monotonic())

    watcher = Calling(on_round=after)
    run = whole(cluster, data, tmp_path, watcher, rounds=120, epochs=4, evaluation={"every": 0})
    print("took work", first[0] - joined[0], "s after it was there")
    assert events(run, "joined") == 1


def test_twenty_random_kills_in_sixty_rounds(cluster: Local, data: str, tmp_path: Path) -> None:
    draw, kills = random.Random(7), []

    def strike() -> None:
        there = [node for node in cluster.nodes if node.alive]
        if draw.random() < 0.3 and len(there) > 1:
            node = draw.choice(there)
            cluster.kill(node)
            cluster.nodes.remove(node)
            kills.append("node")
            cluster.join()
        else:
            found = actors(there)
            if found:
                os.kill(draw.choice(found), signal.SIGKILL)
            kills.append("actor")

    rounds = tuple(sorted(draw.sample(range(2, 60), 20)))
    watcher = Watching(strike, rounds=rounds, after=6)
    whole(cluster, data, tmp_path, watcher, rounds=60, epochs=2, evaluation={"every": 0})
    print(Counter(kills), "stood still for at most", max(watcher.gaps))
    assert len(kills) == 20 and len(set(kills)) == 2


def test_a_client_that_ends_its_actor_three_times_ends_the_run(
    cluster: Local, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_module.py").write_text(
        "import os\nfrom dataclasses import dataclass\nfrom equipoise.methods.scaffold import "
        "Scaffold\n@dataclass(frozen=True)\nclass Leaving(Scaffold):\n    flag: str = ''\n    def "
        "client(self, client, down):\n        if client.round == 2 and client.id == 'c03' and "
        "os.path.exists(self.flag):\n            os._exit(5)\n        return "
        "super().client(client, down)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    flag = tmp_path / "leaves"
    flag.touch()
    wanted = config(data, {"name": "leaving_module:Leaving", "flag": str(flag)})
    with pytest.raises(
        RunError,
        match=(
            r"an actor ended 3 times with client 'c03' in round 2, step 'client' \(the last: The "
            r"actor died"
        ),
    ):
        simulate.run(wanted, tmp_path / "there", cluster=cluster.address)
    assert gone(cluster.nodes)
    flag.unlink()
    resumed = simulate.resume(tmp_path / "there", experiment=eq.Experiment(**wanted))
    same_run(simulate.run(wanted, tmp_path / "here"), resumed)


def test_a_run_goes_from_process_to_cluster_and_back(
    cluster: Local, data: str, tmp_path: Path
) -> None:
    ask = Clients.ask

    def until(rounds: int, go: Callable[[], object]) -> None:
        def limited(self: Clients, requests: Any) -> Any:
            if requests and requests[0].round > rounds:
                raise RunError("stopped")
            return ask(self, requests)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="stopped"):
            patch.setattr(Clients, "ask", limited)
            go()

    until(2, lambda: simulate.run(config(data), tmp_path / "run"))
    until(4, lambda: simulate.resume(tmp_path / "run", cluster=cluster.address))
    same_run(simulate.run(config(data), tmp_path / "here"), simulate.resume(tmp_path / "run"))


def test_without_any_node_the_run_waits_and_then_stops_with_a_sentence(
    cluster: Local, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "LOST_DEADLINE", 6.0)
    watcher = Watching(lambda: [cluster.kill(node) for node in cluster.nodes])
    with pytest.raises(
        RunError,
        match=(
            r"has had no node for this work for 6 s; committed rounds are kept: with nodes again, "
            r"`equipoise resume .*there --cluster"
        ),
    ):
        simulate.run(config(data), tmp_path / "there", watcher, cluster=cluster.address)
    assert Run(tmp_path / "there").last_round == 1
    same_run(simulate.run(config(data), tmp_path / "here"), simulate.resume(tmp_path / "there"))


def test_a_node_comes_while_there_is_none(cluster: Local, data: str, tmp_path: Path) -> None:
    def strike() -> None:
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.join()

    assert events(whole(cluster, data, tmp_path, Watching(strike)), "joined") == 1


COMMAND = [sys.executable, "-c", "from equipoise.cli import main; main()"]


def command(*words: str) -> list[str]:
    return [*COMMAND, *words]


def begun(data: str, tmp_path: Path, address: str) -> subprocess.Popen[str]:
    """A run of the command line that has finished two rounds."""
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(_plain(config(data, rounds=40))))
    words = [
        "run",
        str(tmp_path / "experiment.yaml"),
        "--out",
        str(tmp_path / "run"),
        "--cluster",
        address,
    ]
    process = subprocess.Popen(
        command(*words), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 3"):
            return process
    raise AssertionError("the run ended before its third round")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key != "workers"}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_driver_is_killed_or_interrupted_and_goes_on_elsewhere(
    number: signal.Signals, cluster: Local, data: str, tmp_path: Path
) -> None:
    process = begun(data, tmp_path, cluster.address)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    if number is signal.SIGINT:
        assert process.returncode == 130 and "continue with `equipoise resume" in said
    assert gone(cluster.nodes, 30)
    with local(tmp_path / "state", 2) as other:
        done = subprocess.run(
            command("resume", str(tmp_path / "run"), "--cluster", "auto"),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert gone(other.nodes)
    same_run(simulate.run(config(data, rounds=40), tmp_path / "here"), Run(tmp_path / "run"))


def test_the_head_service_is_lost_and_the_run_goes_on_elsewhere(data: str, tmp_path: Path) -> None:
    with local(tmp_path / "state", 1) as alone:
        process = begun(data, tmp_path, alone.address)
        (service,) = [pid for pid in processes([alone.head]) if "gcs/gcs_server" in command_of(pid)]
        os.kill(service, signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2, said
        assert (
            f"the head of the cluster at {alone.address} is lost; committed rounds are kept: with a "
            "cluster again, `equipoise resume" in said
        )
    same_run(
        simulate.run(config(data, rounds=40), tmp_path / "here"), simulate.resume(tmp_path / "run")
    )


def test_a_step_that_raises_leaves_no_actor_and_no_memory(
    cluster: Local, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clumsy_module.py").write_text(
        "from dataclasses import dataclass\nfrom equipoise import "
        "Method\n@dataclass(frozen=True)\nclass Clumsy(Method):\n    def client(self, client, "
        "down):\n        raise ArithmeticError('seven apples')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        RuntimeError, match=r"client 'c\d\d', round 1, step 'client' raised:(?s:.*)seven apples"
    ):
        simulate.run(
            config(data, "clumsy_module:Clumsy"), tmp_path / "run", cluster=cluster.address
        )
    assert gone(cluster.nodes)
