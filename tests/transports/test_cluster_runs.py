"""Every method on clusters of one, two and five nodes; long runs; states larger than the object
store; nodes and clusters that are refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise import methods, simulate
from equipoise.experiment import ConfigurationError
from equipoise.transports.ray import connecting, nodes, probe
from tests.helpers.callbacks import Calling
from tests.helpers.clusters import Local, abroad, actors, free_port, gone, local, processes
from tests.helpers.runs import folder_of, same_run, settings, sites
from tests.helpers.transports import sites_given

pytestmark = pytest.mark.slow
FAULTS = [
    {"round": 1, "client": "bo", "kind": "drop"},
    {"round": 2, "client": "ada", "kind": "nan"},
    {"round": 2, "client": "di", "kind": "kill"},
]


@pytest.fixture(scope="module", params=[1, 2, 5])
def several(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Local]:
    with local(tmp_path_factory.mktemp("state"), *[1] * request.param) as found:
        yield found


@pytest.mark.parametrize("method", methods.names())
def test_every_method_runs_alike_on_one_two_and_five_nodes(
    method: str, several: Local, tmp_path: Path
) -> None:
    wanted = settings(method, faults={"script": FAULTS})
    there = simulate.run(sites_given(wanted), tmp_path / "there", cluster=several.address)
    same_run(simulate.run(sites_given(wanted), tmp_path / "here"), there)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with local(tmp_path_factory.mktemp("state"), 1, 1) as found:
        yield found


@pytest.mark.parametrize("method", ["fedakd", "scaffold"])
def test_clients_that_are_trained_together_have_the_bits_of_a_run_in_process(
    method: str, two: Local, tmp_path: Path
) -> None:
    wide = {"name": "mlp", "hidden": [24]}  # large enough for a stack
    wanted = settings(method, models={"model": wide}, training={"batch": 7})
    there = simulate.run(sites_given(wanted), tmp_path / "there", cluster=two.address)
    same_run(simulate.run(sites_given(wanted), tmp_path / "here"), there)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder_of(
        tmp_path_factory.mktemp("data") / "sites",
        sites({f"c{place:03d}": 12 for place in range(200)}),
    )


def config(data: str, method: str, **more: Any) -> dict[str, Any]:
    found = settings(method, **more)
    return found | {"data": found["data"] | {"name": data}}


def test_two_hundred_states_of_five_megabytes_in_an_object_store_of_a_hundred(
    two: Local, data: str, tmp_path: Path
) -> None:
    """References are dropped and states are put again from the files.

    Nothing is spilled to a disk.
    """
    large = {
        "models": {"model": {"name": "mlp", "hidden": [18000]}},
        "rounds": 2,
        "evaluation": {"every": 0},
    }  # 65 and 3 weights each
    there = simulate.run(config(data, "scaffold", **large), tmp_path / "there", cluster=two.address)
    (first, *_) = (file for file in there.store.current("client").values())
    assert first.bytes > 4.5e6
    same_run(simulate.run(config(data, "scaffold", **large), tmp_path / "here"), there)
    assert gone(two.nodes)
    session = Path("/tmp/ray/session_latest")
    assert not [path for path in session.glob("**/*spill*") if path.is_file()]


def test_two_hundred_rounds_without_growth(two: Local, tmp_path: Path) -> None:
    """Of this process, the actors, and the memory of the object stores."""
    seen: list[tuple[float, float, float]] = []

    def after(record: Any) -> None:
        if record.round in (50, 100, 150, 200):
            stores = sum(
                _memory(pid, "RssShmem")
                for pid in processes(two.nodes)
                if "raylet/raylet" in _command(pid)
            )
            seen.append(
                (
                    _memory(os.getpid(), "RssAnon"),
                    sum(_memory(pid, "RssAnon") for pid in actors(two.nodes)),
                    stores,
                )
            )

    watcher = Calling(on_round=after)
    more = {"rounds": 200, "evaluation": {"every": 50}}
    there = simulate.run(
        sites_given(settings("scaffold", **more)), tmp_path / "there", watcher, cluster=two.address
    )
    same_run(simulate.run(sites_given(settings("scaffold", **more)), tmp_path / "here"), there)
    print("MB of this process, the actors, the object stores:", seen)
    # what is ever touched of a store stays mapped
    assert all(last - first < 8 for first, last in zip(seen[1], seen[3], strict=True))


def _memory(pid: int, kind: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


# What is refused.


def command(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from equipoise.cli import main; main()", *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=300)


def refused(*words: str) -> str:
    """The one sentence that a command ends with."""
    done = command(*words)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in done.stderr
    return lines[0]


def run_words(data: str, tmp_path: Path, *more: str) -> list[str]:
    return [
        "run",
        "--data",
        data,
        "--partition",
        "natural",
        "--model",
        "mlp",
        "--rounds",
        "2",
        "--out",
        str(tmp_path / "run"),
        *more,
    ]


def test_tokens_that_are_wrong_missing_or_readable(
    two: Local, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    join = ["cluster", "start", "--join", two.address, "--cores", "1", "--store", "100"]
    assert "refused the token; copy the file with its token from its head" in refused(
        *join, "--token", str(wrong)
    )
    assert "copy its file to this machine and add --token FILE" in refused(*join)
    assert "expected a file with the token of the cluster, got" in refused(
        *join, "--token", str(tmp_path / "none")
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        "asks for a token and there is none here; let RAY_AUTH_TOKEN_PATH name the file"
        in refused(*run_words(data, tmp_path, "--cluster", two.address))
    )
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(wrong))
    assert "refused the token" in refused(*run_words(data, tmp_path, "--cluster", two.address))
    Path(two.head.token).chmod(0o644)
    assert f"can be read by others; `chmod 600 {two.head.token}`" in refused(
        *join, "--token", two.head.token
    )
    Path(two.head.token).chmod(0o600)


def test_addresses_that_do_not_answer_and_words_that_do_not_go_together(
    two: Local, data: str, tmp_path: Path
) -> None:
    assert "no cluster answers at" in refused(
        *run_words(data, tmp_path, "--cluster", f"127.0.0.1:{free_port()}")
    )
    assert "--cluster: expected no --workers together with it, got 2" in refused(
        *run_words(data, tmp_path, "--cluster", "auto", "--workers", "2")
    )
    assert "expected either --head or --join" in refused("cluster", "start")
    compared = [
        "compare",
        "--data",
        data,
        "--partition",
        "natural",
        "--out",
        str(tmp_path / "c"),
        "--cluster",
        two.address,
    ]
    assert "jobs: expected 1 run at a time on a cluster, got 2" in refused(*compared, "--jobs", "2")


def test_a_head_of_another_version_is_not_joined(
    two: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "version", lambda name: "2.55.1")
    with pytest.raises(
        ConfigurationError,
        match=r"expected a head with Ray 2\.55\.1 as here, got Ray 2\.\d+\.\d+ at 127",
    ):
        nodes.start(two.address, token=Path(two.head.token), cores=1, store=100)


def test_a_cluster_without_cores_and_data_that_are_too_large(tmp_path: Path) -> None:
    with local(tmp_path / "state") as cluster:
        wanted = settings("fedavg")
        with pytest.raises(
            ConfigurationError,
            match=r"offers no CPUs; start nodes with `equipoise cluster start --join",
        ):
            simulate.run(sites_given(wanted), tmp_path / "run", cluster=cluster.address)
        cluster.join()
        rows = {"ada": 140_000, "bo": 100_000}  # 64 numbers of 4 bytes each
        with pytest.raises(
            ConfigurationError,
            match=(
                r"the data \(\d\d MB\) exceed half of its object store \(100 MB\) and cannot be "
                r"made there"
            ),
        ):
            simulate.run(
                eq.Experiment(**wanted, dataset=eq.from_sites(sites(rows))),
                tmp_path / "run",
                cluster=cluster.address,
            )
        named = config(
            folder_of(tmp_path / "data", sites(rows)),
            "fedavg",
            rounds=1,
            training={"lr": 0.05, "batch": 5000, "epochs": 1},
        )
        # made by the node itself
        there = simulate.run(named, tmp_path / "made", cluster=cluster.address)
        same_run(simulate.run(named, tmp_path / "here"), there)
    assert not (tmp_path / "run").exists()


def test_a_cluster_without_a_token_is_taken_only_by_who_trusts_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_SETTINGS", nodes._SETTINGS | {"RAY_AUTH_MODE": "disabled"})
    monkeypatch.setattr(nodes, "look", lambda address, token: {"ray": nodes.version("ray")})
    with local(tmp_path / "state", 1) as cluster:
        with pytest.raises(
            ConfigurationError,
            match=(
                r"asks for no token, so whoever reaches its ports runs code there; .* add "
                r"--trust-network"
            ),
        ):
            simulate.run(sites_given(settings("fedavg")), tmp_path / "run", cluster=cluster.address)
        simulate.run(
            sites_given(settings("fedavg")),
            tmp_path / "run",
            cluster=cluster.address,
            trust_network=True,
        )


def test_a_node_that_differs_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        "import equipoise.version\nequipoise.version.__version__ = '0.0.0'\n"
    )
    false = {"PYTHONPATH": os.pathsep.join([str(other), *filter(None, sys.path)])}
    with local(tmp_path / "state") as cluster:
        cluster.join(1, false)
        sentence = (
            r"no node .* can do this work: node 127.0.0.1:\d+: it has equipoise 0\.0\.0 instead "
            rf"of {eq.__version__}"
        )
        with pytest.raises(ConfigurationError, match=sentence):
            simulate.run(
                sites_given(settings("scaffold")), tmp_path / "run", cluster=cluster.address
            )
        cluster.join()
        there = simulate.run(
            sites_given(settings("scaffold")), tmp_path / "run", cluster=cluster.address
        )
        assert "is left out: it has equipoise 0.0.0 instead of" in caplog.text
        same_run(simulate.run(sites_given(settings("scaffold")), tmp_path / "here"), there)
        assert any(
            name.startswith("left out@127.0.0.1")
            for row in there.rounds()
            for name in row["seconds"]
        )


def test_the_commands_as_a_user_types_them(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    port = str(free_port())
    found: list[nodes.Node] = []
    try:
        said = command(
            "cluster", "start", "--head", "--port", port, "--cores", "1", "--store", "100"
        )
        assert said.returncode == 0, said.stderr
        (join,) = [
            line.split() for line in said.stdout.splitlines() if "cluster start --join" in line
        ]
        assert command(*join[1:], "--cores", "2", "--store", "100").returncode == 0
        found = nodes.here()
        assert [node.head for node in found] == [True, False]
        status = command("cluster", "status").stdout
        assert "(head)" in status and "100 MB" in status and eq.__version__ in status
        done = command(*run_words(data, tmp_path, "--cluster", "auto", "--seed", "1"))
        assert done.returncode == 0, done.stderr
        same_run(
            simulate.run(json_of(tmp_path / "run"), tmp_path / "here"), eq.Run(tmp_path / "run")
        )
        compared = [
            "compare",
            "--data",
            data,
            "--partition",
            "natural",
            "--model",
            "mlp",
            "--rounds",
            "1",
            "--seeds",
            "1",
            "--out",
            str(tmp_path / "c"),
        ]
        done = command(*compared, "--cluster", "auto", "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
        assert not abroad(processes(found))
    finally:
        stopped = command("cluster", "stop")
    assert "2 nodes stopped" in stopped.stdout and not processes(found) and not nodes.here()
    assert "no node was started here" in command("cluster", "stop").stdout


def json_of(folder: Path) -> Any:
    from equipoise.storage.form import read_configuration

    return {**read_configuration(folder), "workers": 0}


def test_the_token_of_a_cluster_is_found_where_it_was_left(two: Local) -> None:
    assert connecting.token_for(two.address) == Path(two.head.token)
    assert connecting.address_of("auto") == two.address
    assert probe.look(two.address, Path(two.head.token))["token"] is True
