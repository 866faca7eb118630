"""The same run on a cluster of two nodes, and what is refused before one is asked.

Kills and the rest are in test_cluster_losses.py, slow.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise import simulate
from equipoise.experiment import ConfigurationError
from equipoise.records import Record, dump
from equipoise.runtime.messages import Reply, StateRef, state_file, state_name
from equipoise.runtime.states import _parsed
from equipoise.storage.files import digest_of
from equipoise.transports.ray import connecting, probe, references
from equipoise.transports.ray.references import References
from tests.helpers.clusters import abroad, gone, local, processes, shared_memory
from tests.helpers.runs import played, same_run, settings

FAULTS = [
    {"round": 1, "client": "bo", "kind": "drop"},
    {"round": 2, "client": "ada", "kind": "nan"},
]


@pytest.mark.slow
def test_two_methods_run_alike_in_process_and_on_a_cluster_of_two_nodes(tmp_path: Path) -> None:
    before = shared_memory()
    with local(tmp_path / "state", 1, 1) as cluster:
        assert Path(cluster.head.token).stat().st_mode & 0o777 == 0o600
        for method in ("fedavg", "scaffold"):
            wanted = settings(method, faults={"script": FAULTS})
            there = simulate.run(given(wanted), tmp_path / method, cluster=cluster.address)
            same_run(played(wanted, tmp_path / f"{method}-here"), there)
            told = [row["seconds"] for row in there.rounds()]
            assert (
                sum(
                    value
                    for row in told
                    for name, value in row.items()
                    if name.startswith("clients@127.0.0.1:")
                )
                >= 11
            )
            assert not abroad([os.getpid(), *processes([cluster.head, *cluster.nodes])])
        assert gone(cluster.nodes)
        everything = processes([cluster.head, *cluster.nodes])
        assert len(everything) > 5
    assert not processes([cluster.head, *cluster.nodes])
    assert shared_memory() <= before


def given(config: dict[str, Any]) -> eq.Experiment:
    from tests.helpers.runs import sites

    return eq.Experiment(**config, dataset=eq.from_sites(sites()))


# States.


class Store:
    """As much of Ray as `References` needs."""

    def __init__(self) -> None:
        self.put_names: list[int] = []

    def put(self, data: np.ndarray) -> bytes:
        self.put_names.append(len(data))
        return data.tobytes()


def test_a_large_state_is_written_before_its_reply_counts_and_read_from_its_file_once_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "INLINE", 0)
    store = Store()
    states = References(store, tmp_path)
    names = [state_name(client, 1, 0, 1) for client in ("ada", "bo", "cy")]
    content = [dump(Record(own=np.full(64, float(place)))) for place in range(3)]
    states.limit = 2 * len(content[0])
    for name, data in zip(names, content, strict=True):
        reply = Reply("x", state=StateRef(name, len(data), digest_of(data)))
        assert states.save_state(reply, np.frombuffer(data, np.uint8), data) is reply
        assert (tmp_path / state_file(name)).read_bytes() == data
    assert list(states.held) == names[1:]  # the oldest went
    assert states.of(names[1]) == content[1] and not store.put_names
    assert states.of(names[0]) == content[0] and len(store.put_names) == 1  # from its file
    assert list(states.held) == [names[1], names[0]] and states.bytes == 2 * len(content[0])
    states.forget(names[1])
    states.forget(names[1])
    assert states.bytes == len(content[0])
    assert _parsed(states.of(names[1]), names[1], digest_of(content[1])).own[0] == 1.0


def test_a_state_that_is_damaged_on_its_way_does_not_count(tmp_path: Path) -> None:
    data = dump(Record(own=1.0))
    name = state_name("ada", 1, 0, 1)
    reply = References(Store(), tmp_path).save_state(
        Reply("ada", state=StateRef(name, len(data), "0" * 64)), np.frombuffer(data, np.uint8), data
    )
    assert reply.state is None and reply.failure == f"state {name} was damaged on its way"


# What is refused, in one sentence.


@pytest.mark.thorough
def test_nothing_of_ray_is_imported_before_it_is_asked_for() -> None:
    program = (
        "import sys, equipoise, equipoise.simulate, equipoise.cli.cluster, "
        "equipoise.transports.ray.cluster; assert 'ray' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError,
        match=r"needs Ray, which is not installed; `pip install equipoise\[cluster\]`",
    ):
        connecting.connected("auto", False)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", ":6379", "127.0.0.1:x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"--cluster: expected HOST:PORT of a head such as 10\.0\.0\.5:6379, or auto, got",
    ):
        connecting.address_of(address)


def test_a_cluster_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ANSWER_DEADLINE", 1.0)
    with pytest.raises(
        ConfigurationError,
        match=r"no cluster answers at 127\.0\.0\.1:1 .*head runs",
    ):
        probe.look("127.0.0.1:1", None)


def test_an_experiment_that_other_machines_cannot_rebuild_is_refused(tmp_path: Path) -> None:
    class Mine(eq.Method):
        pass

    with pytest.raises(
        ConfigurationError,
        match=(
            r"other machines can rebuild, but its method Mine is defined in a notebook or script; "
            r"move it"
        ),
    ):
        simulate.run(given(settings(Mine())), tmp_path / "run", cluster="127.0.0.1:1")
    assert not (tmp_path / "run").exists()
