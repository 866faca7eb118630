"""Nodes of this machine and the way to a cluster, with every process replaced: nothing is started.

Real ones are in test_cluster*.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.experiment import ConfigurationError
from equipoise.transports.ray import connecting, nodes, probe
from equipoise.version import __version__
from tests.helpers.standin_ray import Clock


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of nodes, and no other trace of a cluster."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / "state" / "equipoise" / "cluster"
    assert nodes.folder() == found
    return found


def test_files_lie_in_the_home_folder_unless_the_environment_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    assert nodes.folder() == tmp_path / ".local" / "state" / "equipoise" / "cluster"


class Started:
    """In place of a process that was started: what it was given, what it says, how it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pid, self.says, self.code, self.polls, self.killed = (
            4_194_305,
            "Ray runtime started",
            None,
            0,
            [],
        )  # no system has so high a number
        self.began, self.clock, self.ready_after, self.stubborn = "77", Clock(), 0, False
        self.command: list[str] = []
        self.given: dict[str, Any] = {}
        monkeypatch.setattr(
            nodes,
            "time",
            SimpleNamespace(monotonic=self.clock.monotonic, sleep=self.sleep, time_ns=lambda: 5),
        )
        monkeypatch.setattr(
            nodes, "subprocess", SimpleNamespace(Popen=self.popen, DEVNULL=subprocess.DEVNULL)
        )
        monkeypatch.setattr(nodes, "_began", lambda pid: self.began if pid == self.pid else "")
        monkeypatch.setattr(
            nodes,
            "os",
            SimpleNamespace(
                **{
                    name: getattr(os, name)
                    for name in ("environ", "pathsep", "open", "O_WRONLY", "O_CREAT", "O_EXCL")
                },
                kill=self.kill,
                killpg=self.kill_all,
                waitpid=self.wait,
            ),
        )
        monkeypatch.setattr(nodes, "look", self.look)
        self.found: dict[str, Any] = {"ray": nodes.version("ray")}

    def popen(self, command: list[str], **given: Any) -> Any:
        self.command, self.given = command, given
        self.write()
        return SimpleNamespace(pid=self.pid, poll=self.poll)

    def write(self) -> None:
        Path(self.given["stdout"].name).write_text(
            self.says if self.polls >= self.ready_after else "Enabling\n\n it waits \n\n"
        )

    def poll(self) -> int | None:
        self.polls += 1
        if self.polls == self.ready_after:
            self.write()
        return self.code

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def kill(self, pid: int, number: int) -> None:
        self.killed.append((pid, number))
        self.began = self.began if self.stubborn else ""

    def kill_all(self, pid: int, number: int) -> None:
        self.killed.append((pid, number))
        if not self.began:
            raise ProcessLookupError

    def wait(self, pid: int, options: int) -> None:
        assert (pid, options) == (self.pid, 0)
        raise ChildProcessError

    def look(self, cluster: str, token: Path) -> dict[str, Any]:
        self.looked = cluster, token
        return self.found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    yield Started(monkeypatch)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_a_head_is_started_on_this_machine_alone_with_a_token_of_its_owner(
    started: Started, folder: Path
) -> None:
    started.ready_after = 3
    node = nodes.start(
        port=7000, cores=2, store=150, environment={"EXTRA": "1", "RAY_worker_niceness": "5"}
    )
    assert (
        replace(node, private="")
        == nodes.Node(started.pid, "77", "127.0.0.1:7000", str(folder / "token-7000"), True)
        and node.alive
    )
    assert (
        stat.S_IMODE((folder / "token-7000").stat().st_mode) == 0o600
        and len((folder / "token-7000").read_text()) == 64
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    words = started.command
    assert words[:3] == [sys.executable, "-P", "-c"] and words[4:7] == [
        "loopback",
        "start",
        "--block",
    ]
    assert [option(words, name) for name in ("--port", "--node-ip-address", "--num-cpus")] == [
        "7000",
        "127.0.0.1",
        "2",
    ]
    assert (
        option(words, "--object-store-memory") == str(150 * 2**20)
        and "--head" in words
        and "--address" not in words
    )
    torch = nodes.version("torch").replace("+", "_")
    assert option(words, "--labels") == f"equipoise={__version__},torch={torch}"
    environment = started.given["env"]
    assert environment["RAY_AUTH_MODE"] == "token" and environment["RAY_AUTH_TOKEN_PATH"] == str(
        folder / "token-7000"
    )
    assert (
        environment["OMP_NUM_THREADS"] == "1"
        and environment["EXTRA"] == "1"
        and environment["RAY_worker_niceness"] == "5"
    )
    assert environment["PYTHONPATH"] == os.pathsep.join(
        path for path in sys.path if path
    ) and "" not in environment["PYTHONPATH"].split(":")
    assert (
        started.given["start_new_session"] is True
        and started.given["cwd"] == folder
        and started.given["stdin"] == subprocess.DEVNULL
    )
    assert nodes.here() == [node] and json.loads(node.file.read_text()) == asdict(node)
    assert not list(folder.glob("*.log")) and not started.killed  # ready: its log goes
    token = (folder / "token-7000").read_text()
    nodes.start(port=7000)
    assert (folder / "token-7000").read_text() == token  # made once
    assert not {"--num-cpus", "--object-store-memory"} & set(started.command)


def test_what_ray_writes_lies_in_a_folder_of_its_owner_alone_and_goes_with_the_node(
    started: Started, tmp_path: Path
) -> None:
    head = nodes.start(port=7000)
    given = Path(option(started.command, "--temp-dir"))
    assert given.parent == Path(head.private) and given.parent.parent == tmp_path
    assert stat.S_IMODE(given.parent.stat().st_mode) == 0o700
    token = token_in(tmp_path / "token")
    nodes.start("127.0.0.1:7000", token=token)
    assert Path(option(started.command, "--temp-dir")).parent != given.parent
    given.mkdir()
    (given / "ray_current_cluster").write_text("127.0.0.1:7000")
    nodes.end(head)
    assert not given.parent.exists()


def test_the_folder_of_a_killed_node_goes_when_somebody_looks(started: Started) -> None:
    head = nodes.start(port=7000)
    started.began = ""
    assert nodes.here() == [] and not Path(head.private).exists() and not head.file.exists()


def test_a_folder_that_is_not_of_a_node_is_not_removed(started: Started, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    node = replace(nodes.start(port=7000), private=str(tmp_path / "mine"))
    nodes.end(node)
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("port", [10002, 15000, 19999])
def test_a_head_does_not_take_a_port_of_rays_workers(port: int, started: Started) -> None:
    with pytest.raises(ConfigurationError, match=rf"10002-19999.*got {port}"):
        nodes.start(port=port)
    assert not started.command
    for fine in (10001, 20000):
        nodes.start(port=fine)


def test_a_cluster_whose_head_is_gone_is_told_within_seconds() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match=f"no cluster answers at {address}"):
            probe.look(address, None)
        assert time.monotonic() - began < probe.ANSWER_DEADLINE


@pytest.mark.parametrize("whose", ["pipe", "somebody else's"])
def test_an_address_that_anybody_may_have_written_is_not_taken(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "ray_current_cluster"
    os.mkfifo(current) if whose == "pipe" else current.write_text("10.0.0.1:3")
    monkeypatch.setattr(connecting, "Path", lambda name: current)
    if whose != "pipe":
        monkeypatch.setattr(connecting.os, "getuid", lambda: 12345)
        os.chown(current, 54321, -1) if os.geteuid() == 0 else None
    with pytest.raises(ConfigurationError, match="no cluster runs on this machine"):
        connecting.address_of("auto")


def test_a_token_in_the_environment_is_not_handed_on(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    nodes.start()
    assert "RAY_AUTH_TOKEN" not in started.given["env"] and started.given["env"][
        "RAY_AUTH_TOKEN_PATH"
    ].endswith("token-6379")


@pytest.mark.parametrize(("join", "bind", "mode", "address"), [
    ("127.0.0.1:7000", None, "loopback", "127.0.0.1"), ("10.0.0.5:7000", None, "network", None), ("10.0.0.5:7000", "10.0.0.6", "network", "10.0.0.6"),
])  # fmt: skip
def test_a_node_joins(
    join: str, bind: str | None, mode: str, address: str | None, started: Started, tmp_path: Path
) -> None:
    token = token_in(tmp_path / "token")
    node = nodes.start(join, bind, token=token)
    assert (node.cluster, node.token, node.head) == (
        join,
        str(token),
        False,
    ) and started.looked == (join, token)
    words = started.command
    assert words[4] == mode and option(words, "--address") == join and "--head" not in words
    assert (option(words, "--node-ip-address") if "--node-ip-address" in words else None) == address


def token_in(file: Path, mode: int = 0o600, text: str = "0" * 64) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_node_does_not_join_without_a_token_or_with_another_ray(
    started: Started, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigurationError,
        match=(
            r"^--join: expected the head's token too; copy its file to this machine and add "
            r"--token FILE$"
        ),
    ):
        nodes.start("127.0.0.1:7000")
    with pytest.raises(ConfigurationError, match=r"expected a file with the token"):
        nodes.start("127.0.0.1:7000", token=tmp_path / "none")
    assert not hasattr(started, "looked")
    started.found = {"ray": "0.1"}
    ours = nodes.version("ray")
    with pytest.raises(
        ConfigurationError,
        match=(
            rf"expected a head with Ray {ours} as here, got Ray 0\.1 at 127\.0\.0\.1:7000; install "
            r"the same"
        ),
    ):
        nodes.start("127.0.0.1:7000", token=token_in(tmp_path / "token"))
    # nor is a head started with it
    with pytest.raises(ConfigurationError, match=r"can be read by others"):
        nodes.start(token=token_in(tmp_path / "token", 0o640))
    assert not started.command


@pytest.mark.parametrize(
    ("code", "cause", "seconds"),
    [(3, "it ended with code 3", 0.0), (None, "it was not ready within 120 s", 120.0)],
)
def test_a_node_that_does_not_start_is_ended_and_its_words_are_told(
    code: int | None, cause: str, seconds: float, started: Started, folder: Path
) -> None:
    started.ready_after, started.code = 10_000, code
    began = started.clock.now
    with pytest.raises(ConfigurationError) as refused:
        nodes.start(port=7000)
    log = folder / "start-5.log"
    assert (
        str(refused.value)
        == f"no node of 127.0.0.1:7000 could be started: {cause}; it said: it waits (all of it in {log})"
    )
    assert seconds <= started.clock.now - began < seconds + 0.5 and log.exists()
    assert (started.pid, signal.SIGTERM) in started.killed and not list(folder.glob("node-*"))


def test_a_node_that_says_nothing(started: Started) -> None:
    started.says, started.code = "", 1
    with pytest.raises(
        ConfigurationError, match=r"it ended with code 1; it said: nothing \(all of it in"
    ):
        nodes.start()


# Their ends.


@pytest.mark.parametrize(("stubborn", "seconds"), [(False, 0.0), (True, 15.0)])
def test_a_node_is_asked_to_end_and_what_is_left_is_killed(
    stubborn: bool, seconds: float, started: Started
) -> None:
    node, started.stubborn = nodes.start(), stubborn
    began = started.clock.now
    assert nodes.stop() == 1
    assert started.killed == [(started.pid, signal.SIGTERM), (started.pid, signal.SIGKILL)]
    assert seconds <= started.clock.now - began < seconds + 0.1 and not node.file.exists()
    started.began = ""
    assert nodes.stop() == 0


def test_a_process_that_has_the_number_of_a_node_that_is_gone_is_left_alone(
    started: Started,
) -> None:
    node, started.began = nodes.start(), "78"
    for _ in range(2):  # somebody else may have ended it, too
        nodes.end(node)
        assert not started.killed and not node.file.exists()


def test_the_nodes_here_are_those_that_run_and_the_head_comes_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    monkeypatch.setattr(nodes, "_began", lambda pid: {1: "10", 2: "20", 3: "30"}.get(pid, ""))
    ended: list[int] = []
    found = [nodes.Node(pid, began, "127.0.0.1:7000", "token", head) for pid, began, head in [
        (1, "10", False), (2, "20", True), (3, "31", False), (4, "", False),
    ]]  # fmt: skip
    for node in found:
        node.file.write_text(json.dumps(asdict(node)))
    for name, text in {
        "node-5.json": "{",
        "node-6.json": '{"pid": 6}',
        "node-7.json": "[]",
    }.items():
        (folder / name).write_text(text)
    (folder / "node-8.json").mkdir()
    assert [node.pid for node in nodes.here()] == [2, 1]
    assert sorted(path.name for path in folder.iterdir()) == [
        f"node-{number}.json" for number in (1, 2, 5, 6, 7, 8)
    ]  # the stale ones went
    monkeypatch.setattr(nodes, "end", lambda node: ended.append(node.pid))
    assert nodes.stop() == 2 and ended == [1, 2]  # the head last


def test_when_a_process_began_tells_it_from_a_later_one() -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    try:
        own, its = nodes._began(os.getpid()), nodes._began(child.pid)
        assert own.isdigit() and its.isdigit() and int(own) <= int(its)
        boot = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime")
        )
        assert (
            abs(boot + int(its) / os.sysconf("SC_CLK_TCK") - os.stat(f"/proc/{child.pid}").st_ctime)
            < 60
        )
    finally:
        child.stdin.close()
        while not (
            ended := Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
            == "Z"
        ):
            pass
        assert ended and nodes._began(child.pid) == ""  # nobody has asked how it ended
        child.wait()
    assert nodes._began(child.pid) == ""


def test_versions_of_packages() -> None:
    assert (
        nodes._version("torch") == nodes.version("torch")
        and nodes._version("no-such-package") == "none"
    )


@pytest.mark.parametrize(("mode", "text", "sentence"), [
    (0o600, " \n", "expected a file with the token of the cluster, got"), (0o640, "0", "can be read by others; `chmod 600"),
    (0o604, "0", "can be read by others; `chmod 600"),
])  # fmt: skip
def test_tokens_that_are_empty_or_not_their_owners_alone_are_refused(
    mode: int, text: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        nodes.check_token(token_in(tmp_path / "token", mode, text))
    nodes.check_token(token_in(tmp_path / "token"))


# The way to a cluster.


def looked(monkeypatch: pytest.MonkeyPatch, answer: Any) -> dict[str, Any]:
    """The next look has such an answer; what was asked."""
    seen: dict[str, Any] = {}

    def run(command: list[str], **given: Any) -> Any:
        seen.update(given, words=command[4:])
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(
            stdout=json.dumps({"found": answer}).encode()
            if not isinstance(answer, bytes)
            else answer
        )

    monkeypatch.setattr(
        probe,
        "subprocess",
        SimpleNamespace(run=run, DEVNULL=-3, TimeoutExpired=subprocess.TimeoutExpired),
    )
    return seen


def test_a_look_says_what_the_cluster_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"ray": "2", "token": True}
    seen = looked(monkeypatch, found)
    assert probe.look("1.2.3.4:5", tmp_path / "token") == found
    assert (
        seen["words"] == ["1.2.3.4:5", "token"]
        and seen["env"]["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
        and (seen["timeout"], seen["capture_output"], seen["stdin"]) == (15.0, True, -3)
    )
    assert probe.look("1.2.3.4:5", None) == found
    assert seen["words"] == ["1.2.3.4:5"] and "RAY_AUTH_TOKEN_PATH" not in seen["env"]
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0")
    probe.look("1.2.3.4:5", None)
    assert seen["words"] == ["1.2.3.4:5", "token"]


def test_a_cluster_without_a_token_is_for_those_who_trust_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked(monkeypatch, {"token": False})
    assert probe.look("1.2.3.4:5", None, True) == {"token": False}
    with pytest.raises(
        ConfigurationError,
        match=(
            r"asks for no token, so whoever reaches its ports runs code there; .* or add "
            r"--trust-network"
        ),
    ):
        probe.look("1.2.3.4:5", None)


@pytest.mark.parametrize(("answer", "token", "sentence"), [
    (None, True, "at 1.2.3.4:5 refused the token; copy the file with its token from its head"),
    (None, False, "at 1.2.3.4:5 asks for a token and there is none here; let RAY_AUTH_TOKEN_PATH name the file with it"),
    (b"Traceback", False, "at 1.2.3.4:5 did not answer within 15 s; check that its head runs"),
    (subprocess.TimeoutExpired("", 15), False, "at 1.2.3.4:5 did not answer within 15 s; check that its head runs"),
])  # fmt: skip
def test_a_cluster_that_gives_no_answer(
    answer: Any, token: bool, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked(monkeypatch, answer)
    with pytest.raises(ConfigurationError, match=sentence):
        probe.look("1.2.3.4:5", tmp_path / "token" if token else None)


def some_nodes(monkeypatch: pytest.MonkeyPatch, *clusters: str) -> None:
    monkeypatch.setattr(
        connecting,
        "here",
        lambda: [nodes.Node(1, "1", cluster, f"/tokens/{cluster}", True) for cluster in clusters],
    )


def test_auto_is_the_cluster_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "ray_current_cluster"
    monkeypatch.setattr(
        connecting,
        "Path",
        lambda name: current if name == "/tmp/ray/ray_current_cluster" else Path(name),
    )
    with pytest.raises(
        ConfigurationError,
        match=r"no cluster runs on this machine; start one with `equipoise cluster start --head`",
    ):
        connecting.address_of("auto")
    current.write_text("10.0.0.1:3\n")
    assert connecting.address_of("auto") == "10.0.0.1:3"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert connecting.address_of("auto") == "10.0.0.1:3"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:2")
    assert connecting.address_of("auto") == "10.0.0.1:2"
    some_nodes(monkeypatch, "10.0.0.1:1")
    assert (
        connecting.address_of("auto") == "10.0.0.1:1"
        and connecting.address_of("[::1]:9") == "[::1]:9"
    )


def test_the_token_is_the_one_that_the_environment_names_of_a_node_here_or_rays_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connecting.token_for("10.0.0.1:2") is None
    (tmp_path / ".ray").mkdir()
    usual = token_in(tmp_path / ".ray" / "auth_token")
    some_nodes(monkeypatch, "10.0.0.1:1", "10.0.0.1:2")
    assert connecting.token_for("10.0.0.1:3") == usual
    assert connecting.token_for("10.0.0.1:2") == Path("/tokens/10.0.0.1:2")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/mine")
    assert connecting.token_for("10.0.0.1:2") == Path("/mine")


class Ray:
    """As much of Ray as connecting takes."""

    __spec__ = "it is installed"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: bool = True) -> None:
        self.given: dict[str, Any] = {}
        self.seen: dict[str, str] = {}
        self.connected, self.error, self.steps, self.imported = "", "", [], []
        self.constants = SimpleNamespace(ENABLE_RAY_CLUSTER=None)
        loader = SimpleNamespace(
            instance=lambda: SimpleNamespace(reset_cache=lambda: self.steps.append("cache"))
        )
        raylet = SimpleNamespace(
            Config=SimpleNamespace(initialize=lambda text: self.steps.append("config")),
            AuthenticationTokenLoader=loader,
        )
        modules = {
            "ray": self,
            "ray._raylet": raylet,
            "ray._private.ray_constants": self.constants,
            "ray.util.scheduling_strategies": None,
        }
        monkeypatch.setattr(
            connecting, "import_module", lambda name: self.imported.append(name) or modules[name]
        )
        monkeypatch.setattr(
            connecting,
            "look",
            lambda address, token_, trust: (
                self.steps.append((address, token_, trust)) or {"token": token}
            ),
        )
        monkeypatch.setitem(sys.modules, "ray", self)  # type: ignore[arg-type]
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token_in(tmp_path / "token")))

    def is_initialized(self) -> bool:
        return bool(self.connected)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.connected)

    def init(self, **given: Any) -> None:
        self.given, self.seen = given, dict(os.environ)
        if self.error:
            raise ConnectionError(self.error)


@pytest.mark.parametrize(
    ("address", "own", "beyond"), [("127.0.0.1:7", "127.0.0.1", False), ("10.0.0.1:7", None, True)]
)
def test_a_connection_with_its_token_for_its_time(
    address: str, own: str | None, beyond: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(monkeypatch, tmp_path)
    before = dict(os.environ)
    assert connecting.connected(address, False) == (ray, address, True)
    assert ray.given == {
        "address": address,
        "log_to_driver": False,
        "logging_level": "error",
        "_node_ip_address": own,
    }
    assert ray.seen["RAY_AUTH_MODE"] == "token" and ray.seen["RAY_AUTH_TOKEN_PATH"] == str(
        tmp_path / "token"
    )
    assert ray.seen["RAY_USAGE_STATS_ENABLED"] == "0" and ray.constants.ENABLE_RAY_CLUSTER is beyond
    assert (
        ray.steps == [(address, tmp_path / "token", False), "config", "cache"]
        and dict(os.environ) == before
    )
    assert (
        ray.seen["RAY_max_direct_call_object_size"] == str(2 * 2**20)
        and "ray.util.scheduling_strategies" in ray.imported
    )


def test_a_connection_without_a_token_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(monkeypatch, tmp_path, token=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    assert connecting.connected("10.0.0.1:7", True) == (ray, "10.0.0.1:7", True)
    assert ray.steps[0] == ("10.0.0.1:7", None, True) and "RAY_AUTH_TOKEN_PATH" not in ray.seen


def test_a_connection_that_fails_says_why_and_leaves_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(monkeypatch, tmp_path, token=False)
    ray.error = "no\n  raylet " + "x" * 300
    before = dict(os.environ)
    with pytest.raises(ConfigurationError) as refused:
        connecting.connected("10.0.0.1:7", True)
    assert str(refused.value) == (
        f"this machine cannot work with the cluster at 10.0.0.1:7 (no raylet {'x' * 190}); it has "
        "to be one of its nodes: `equipoise cluster start --join 10.0.0.1:7 --token FILE`"
    )
    assert (
        ray.seen["RAY_AUTH_MODE"] == "disabled"
        and dict(os.environ) == before
        and ray.steps[0][2] is True
    )
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ConfigurationError, match="can be read by others"):
        connecting.connected("10.0.0.1:7", True)


def test_a_connection_of_the_users_own_is_taken_and_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(monkeypatch, tmp_path)
    ray.connected = "10.0.0.1:7"
    assert (
        connecting.connected("auto", False)
        == connecting.connected("10.0.0.1:7", False)
        == (ray, "10.0.0.1:7", False)
    )
    with pytest.raises(
        ConfigurationError,
        match=r"connected to the cluster at 10\.0\.0\.1:7 already, got '10\.0\.0\.1:8'; use auto",
    ):
        connecting.connected("10.0.0.1:8", False)
    assert not ray.given
