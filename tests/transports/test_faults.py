"""What goes wrong between a server and its clients: each fault has one outcome, and none leaves a
trace.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.engine.reply_validation import validate_envelope
from equipoise.experiment import ConfigurationError, experiment
from equipoise.method import Cohort, Method
from equipoise.methods.fedekd import FedeKD
from equipoise.records import CannotSave, Down, Record, State, Up
from equipoise.runs import Run
from equipoise.runtime.messages import Reply, Request, StateRef, state_file, state_name
from equipoise.runtime.states import FileStates
from equipoise.server import Server
from equipoise.storage.store import RunError
from equipoise.transports.base import ClientError
from equipoise.transports.inprocess import InProcess, Separated
from equipoise.transports.workers import pool as workers
from equipoise.transports.workers.processes import Pool
from tests.helpers.runs import assert_same, everything, played, same_run, settings, sites
from tests.helpers.transports import Lasting, over, separated, sites_given, stop_after


def transports(tmp_path: Path) -> dict[str, Any]:
    return {"here": None, "packed": "loopback", "apart": separated(tmp_path / "disk")}


# Workers that die.


FRAGILE = """
import os, signal
from dataclasses import dataclass
from equipoise.methods.scaffold import Scaffold
@dataclass(frozen=True)
class Fragile(Scaffold):
    deaths: str = ''  # a file, one byte per death still to come
    def client(self, client, down):
        if client.id == 'bo' and client.round == 1 and os.path.getsize(self.deaths):
            os.truncate(self.deaths, os.path.getsize(self.deaths) - 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client(client, down)
"""


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_worker_that_is_killed_is_replaced_twice_and_then_the_run_stops(
    times: int, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_in_workers.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    deaths = tmp_path / "deaths"
    config = settings({"name": "fragile_in_workers:Fragile", "deaths": str(deaths)}, rounds=2)
    deaths.write_bytes(b"x" * times)
    if times < 3:
        there = played(config, tmp_path / "workers", transport=over(pool))
        assert deaths.stat().st_size == 0
        same_run(played(config, tmp_path / "here"), there)
        return
    with pytest.raises(
        RunError,
        match=(
            r"ended 3 times with client 'bo' in round 1, step 'client' \(the last: killed by "
            r"signal 9"
        ),
    ):
        played(config, tmp_path / "workers", transport=over(pool))
    # the pool begins anew by itself
    resumed = simulate.resume(
        tmp_path / "workers", experiment=sites_given(config), transport=over(pool)
    )
    same_run(played(config, tmp_path / "here"), resumed)


def test_what_a_worker_left_half_written_is_gone_at_the_end(tmp_path: Path) -> None:
    """`same` looks at every file of a run.

    Here one is left as by a worker that was killed while it wrote.
    """

    class Messy(InProcess):
        def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
            half = self.files / f"{state_file(state_name('bo', 1, 0, 1))}.123.part"
            half.parent.mkdir(exist_ok=True)
            half.write_bytes(b"half")
            return super().exchange(requests, deadline)

    same_run(
        played(settings("scaffold"), tmp_path / "here"),
        played(settings("scaffold"), tmp_path / "messy", transport=Messy),
    )


# Deadlines, and what comes after them.


@dataclass(frozen=True)
class Slow(Method):
    """One client sleeps in round 2, behind a change of its state.

    What it would have sent must leave no trace.
    """

    seconds: float = 60.0

    def client(self, client: Client, down: Down) -> Up:
        client.state["rounds"] = client.state.get("rounds", 0) + 1
        up = Method.client(self, client, down)
        if client.id == "bo" and client.round == 2:
            time.sleep(self.seconds)
        return up


@pytest.mark.parametrize("kind", ["here", "packed", "apart"])
@pytest.mark.thorough
def test_a_client_that_misses_the_deadline_is_out_of_the_round(kind: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"

    def connect(federation: Any, wanted: Any) -> Separated:
        # a method of this file has no name that a job could send
        return Separated(federation, disk, wanted)

    transport = connect if kind == "apart" else transports(tmp_path)[kind]
    late = played(
        settings(Slow(), participation={"deadline": 1.5}), tmp_path / "late", transport=transport
    )
    assert [(row["round"], row["client"], row["reason"]) for row in late.rejected()] == [
        (2, "bo", "did not answer within 1.5 s")
    ]
    script = {"script": [{"round": 2, "client": "bo", "kind": "drop"}]}
    dropped = played(settings(Slow(seconds=0.0), faults=script), tmp_path / "dropped")
    assert_same(everything(dropped), everything(late, disk if kind == "apart" else None))


class Postman(InProcess):
    """Delivers the reply to one request twice: too late, behind the deadline, and once more with
    the next exchange.
    """

    held: Reply | None = None

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        found = super().exchange(requests, deadline)
        for place, request in enumerate(requests):
            if (request.client, request.round, request.exchange) == ("bo", 2, 1):
                self.held, found[place] = (
                    found[place],
                    Reply("bo", failure="did not answer in time"),
                )
            elif self.held is not None and (request.client, request.round, request.exchange) == (
                "bo",
                3,
                1,
            ):
                found[place] = self.held
        return found


def test_a_late_reply_changes_nothing(tmp_path: Path) -> None:
    """A client's state that was written for a request without an accepted reply is never read, and
    a reply to another request does not count.
    """
    late = played(settings("scaffold", rounds=4), tmp_path / "late", transport=Postman)
    reasons = {(row["round"], row["client"]): row["reason"] for row in late.rejected()}
    assert reasons[2, "bo"] == "did not answer in time" and "its state is named" in reasons[3, "bo"]
    script = {"script": [{"round": number, "client": "bo", "kind": "drop"} for number in (2, 3)]}
    same_bits(played(settings("scaffold", rounds=4, faults=script), tmp_path / "dropped"), late)


def same_bits(first: Run, second: Run) -> None:
    assert_same(everything(first), everything(second))
    assert first.table() == second.table() and first.table()


# Steps that raise.


@dataclass(frozen=True)
class Clumsy(Method):
    def client(self, client: Client, down: Down) -> Up:
        if client.round == 2:
            raise ArithmeticError("seven apples")
        return Method.client(self, client, down)


@pytest.mark.parametrize("kind", ["here", "packed"])
def test_a_step_that_raises_ends_the_run_and_names_client_round_and_step(
    kind: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ClientError, match="client 'ada', round 2, step 'client': ArithmeticError: seven apples"
    ):
        played(settings(Clumsy()), tmp_path / "run", transport=transports(tmp_path)[kind])
    assert Run(tmp_path / "run").last_round == 1


def test_a_step_that_raises_in_a_worker_leaves_the_pool_as_it_was(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apples_module.py").write_text(
        "from dataclasses import dataclass\nfrom equipoise import "
        "Method\n@dataclass(frozen=True)\nclass Clumsy(Method):\n    def client(self, client, "
        "down):\n        raise ArithmeticError('seven apples')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = [one.process.pid for one in pool.started]
    with pytest.raises(
        ClientError, match=r"client 'ada', round 1, step 'client' raised:(?s:.*)seven apples"
    ):
        played(settings("apples_module:Clumsy"), tmp_path / "run", transport=over(pool))
    assert [one.process.pid for one in pool.started] == before


# States that are not there.


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def damage_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


class Careless(Separated):
    """Something happens to the state of one client on its own disk before round 3."""

    happens: Callable[[Path], None]

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        if (requests[0].round, requests[0].exchange) == (3, 1):
            for path in self.disk.glob(state_file(state_name("bo", 2, 0, 1))):
                type(self).happens(path)
        return super().exchange(requests, deadline)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [(Path.unlink, "is not here"), (damage_cut, "is damaged"), (damage_one_bit, "is damaged")],
    ids=["gone", "cut", "a bit"],
)
def test_a_state_that_is_missing_or_damaged_is_a_failure_and_never_an_empty_state(
    happens: Callable[[Path], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "happens", staticmethod(happens), raising=False)
    config = settings("scaffold", rounds=3, evaluation={"every": 0, "clients": "cohort"})
    run = played(
        config,
        tmp_path / "run",
        transport=lambda federation, wanted: Careless(federation, tmp_path / "disk"),
    )
    (row,) = run.rejected()
    assert (row["round"], row["client"], row["exchange"]) == (3, "bo", 1)
    assert row["reason"].startswith(f"state {state_name('bo', 2, 0, 1)} {reason}")


def test_a_client_whose_state_is_missing_when_models_are_evaluated_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "happens", staticmethod(Path.unlink), raising=False)
    run = played(
        settings("fedakd"),
        tmp_path / "run",
        transport=lambda federation, wanted: Careless(federation, tmp_path / "disk"),
    )
    absences = {(row["round"], row["exchange"], row["client"]) for row in run.rejected()}
    assert absences == {(3, 1, "bo"), (3, 0, "bo")}
    assert set(run.final()) == {"ada", "cy", "di"}


def test_a_run_is_resumed_over_the_kind_of_transport_that_it_was_begun_with(tmp_path: Path) -> None:
    whole = played(settings("scaffold"), tmp_path / "whole")
    for name, begun, other in (
        ("a", separated(tmp_path / "a-disk"), None),
        ("b", None, separated(tmp_path / "b-disk")),
    ):
        stop_after(2, settings("scaffold"), tmp_path / name, begun)
        with pytest.raises(
            RunError,
            match=(
                r"lie at the (server|client), and this transport keeps them at the "
                r"(client|server); resume"
            ),
        ):
            simulate.resume(
                tmp_path / name, experiment=sites_given(settings("scaffold")), transport=other
            )
        resumed = simulate.resume(
            tmp_path / name, experiment=sites_given(settings("scaffold")), transport=begun
        )
        same_run(whole, resumed, tmp_path / "a-disk" if begun else None)


# A disk that is full.


@pytest.mark.parametrize("kind", ["here", "packed", "apart"])
def test_a_disk_that_is_full_ends_the_run_with_a_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk" if kind == "apart" else None
    whole, wrote = played(settings("scaffold"), tmp_path / "whole"), Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if "-r2a0x1" in self.name:
            wrote(self, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return wrote(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        CannotSave,
        match=(
            r"cannot write .*No space left on device; make room or permit writing there, then "
            r"resume the run"
        ),
    ):
        played(settings("scaffold"), tmp_path / "run", transport=transports(tmp_path)[kind])
    monkeypatch.undo()
    assert not list((disk or tmp_path / "run" / "files").rglob("*.part"))
    resumed = simulate.resume(
        tmp_path / "run",
        experiment=sites_given(settings("scaffold")),
        transport=transports(tmp_path)[kind],
    )
    same_run(whole, resumed, disk)


def test_a_site_has_a_state_on_its_disk_before_the_server_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        "equipoise.runtime.states.sync", lambda paths: synced.extend(path.name for path in paths)
    )
    FileStates(tmp_path / "own").write("0123-r1a0x1", Record(a=1))
    assert [name.partition(".safetensors")[0] for name in synced] == [
        "client-0123-r1a0x1",
        "01",
        "own",
    ]


# A run that cannot begin.


def open_descriptors() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{number}")
        for number in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{number}")
    }


@pytest.mark.parametrize("more", [{"workers": 0}, {"workers": 2}], ids=["in process", "workers"])
def test_a_failed_open_leaves_no_process_file_or_lock(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedeKD's energies of classes do not fit a regression: the client runtime says so, by the
    sentence of the method itself.
    """
    made: list[Pool] = []
    init = Pool.__init__
    monkeypatch.setattr(
        Pool, "__init__", lambda self, count: (made.append(self), init(self, count))[1]
    )
    before, folders = open_descriptors(), set(tmp_path.iterdir())
    data = {name: (x, y.astype("float32") + 0.5) for name, (x, y) in sites().items()}
    wanted = eq.Experiment(
        **settings({"name": "fedekd", "energy": "entropy"}) | more, dataset=eq.from_sites(data)
    )
    processes: list[Any] = []
    close = Pool.close
    monkeypatch.setattr(
        Pool,
        "close",
        lambda self: (processes.extend(one.process for one in self.started), close(self))[1],
    )
    with pytest.raises(ValueError, match="fedekd: energy='entropy' needs classes, got regression"):
        simulate.run(wanted, tmp_path / "run")
    assert set(tmp_path.iterdir()) == folders
    assert len(processes) == more["workers"] and all(
        process.wait(timeout=10) is not None for process in processes
    )
    assert all(one.data is None and not one.started for one in made)
    assert {
        name for name in open_descriptors() - before if "memfd" in name or "socket" in name
    } == set()


def test_what_one_worker_of_a_kept_pool_refused_is_not_said_of_the_next_run(
    pool: Pool, tmp_path: Path
) -> None:
    data = eq.from_sites({name: (x, y.astype("float32") + 0.5) for name, (x, y) in sites().items()})
    wanted = eq.Experiment(**settings({"name": "fedekd", "energy": "entropy"}), dataset=data)
    with pytest.raises(ConfigurationError, match="needs classes, got regression"):
        simulate.run(wanted, tmp_path / "refused", transport=over(pool))
    time.sleep(0.5)  # the other worker's refusal has arrived by now, and nobody read it
    same_run(
        played(settings("fedavg"), tmp_path / "here"),
        played(settings("fedavg"), tmp_path / "next", transport=over(pool)),
    )


def test_a_resume_that_is_refused_gives_the_lock_back(tmp_path: Path) -> None:
    stop_after(1, settings("fedavg"), tmp_path / "run", None)
    other = {name: (x + 1, y) for name, (x, y) in sites().items()}
    with pytest.raises(RunError, match="have changed since it began"):
        simulate.resume(
            tmp_path / "run",
            experiment=eq.Experiment(**settings("fedavg"), dataset=eq.from_sites(other)),
        )
    assert (
        simulate.resume(tmp_path / "run", experiment=sites_given(settings("fedavg"))).status
        == "finished"
    )


def test_close_may_be_called_twice_and_without_an_open(tmp_path: Path) -> None:
    federation = eq.data.federate(experiment(settings("fedavg")).data, 7, eq.from_sites(sites()))
    fresh = workers.Workers(Pool(0), federation)
    for transport in (
        InProcess(federation),
        Separated(federation, tmp_path / "disk"),
        fresh,
        Lasting(Pool(0), federation),
    ):
        transport.close()
        transport.close()
    fresh.close(keep=True)


# Before round 1.


@dataclass(frozen=True)
class SetUp(FedeKD):
    """Counts all training samples before round 1."""

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        ups = everyone.run(self.count)
        return state.with_(samples=int(ups.numbers("samples").sum()), who=list(ups.ids))

    def count(self, client: Client, down: Down) -> Up:
        return Up(samples=len(client.train))


class Shy(InProcess):
    """One client does not answer before round 1, so many times."""

    silent = 1

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        found = super().exchange(requests, deadline)
        for place, request in enumerate(requests):
            if request.round == 0 and request.client == "cy" and self.silent:
                self.silent -= 1
                found[place] = Reply("cy", failure="did not answer in time")
        return found


def test_a_setup_waits_for_every_client_and_names_those_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = played(settings(SetUp()), tmp_path / "run", transport=Shy)
    assert "waiting for 1 of 4: 'cy'" in caplog.text
    assert not run.rejected()
    same_run(played(settings(SetUp()), tmp_path / "here"), run)


def test_a_setup_without_every_client_does_not_begin_round_1_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shy, "silent", 3)
    sentence = (
        r"SetUp could not be set up before round 1: every client has to answer, and 1 of 4 did "
        r"not; the first, 'cy': did not answer in time; "
    )
    with pytest.raises(RunError, match=sentence + r"when all are there, `equipoise resume"):
        played(settings(SetUp()), tmp_path / "run", transport=Shy)
    assert Run(tmp_path / "run").store.last_round() == -1
    resumed = simulate.resume(tmp_path / "run", experiment=sites_given(settings(SetUp())))
    same_run(played(settings(SetUp()), tmp_path / "here"), resumed)


# Replies of strangers.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"client": "ada"}, "the reply to 'bo' came from 'ada'"),
        ({"steps": -1}, "its steps are -1; expected a number that is not negative"),
        ({"bytes": "many"}, "its bytes are 'many'"),
        ({"bytes": 2**70}, "its bytes are 1180591620717411303424"),
        ({"steps": 2**70}, "its steps are 1180591620717411303424"),
        ({"steps": True}, "its steps are True"),
        ({"skipped": 1.0}, "its skipped are 1.0"),
        ({"seconds": float("nan")}, "its seconds are nan"),
        ({"seconds": float("inf")}, "its seconds are inf"),
        ({"seconds": -0.5}, "its seconds are -0.5"),
        ({"seconds": 1}, "its seconds are 1; expected a number that is not negative"),
        ({"measured": [{"model": "global", "split": "test", "metric": "loss", "value": 1}]}, "its measurements are not rows"),
        ({"measured": [{"model": "global", "split": "test"}]}, "its measurements are not rows"),
        ({"state": StateRef("../../x", 1, "0" * 64)}, "its state is named '../../x'; expected"),
        ({"state": StateRef(state_name("bo", 1, 0, 2), 1, "0" * 64)}, "its state is named"),
        ({"state": StateRef(state_name("bo", 1, 0, 1), -1, "0" * 64)}, "its state has no size and digest"),
        ({"state": StateRef(state_name("bo", 1, 0, 1), 2**70, "0" * 64)}, "its state has no size and digest"),
        ({"state": StateRef(state_name("bo", 1, 0, 1), 1, "")}, "its state has no size and digest"),
        ({"state": StateRef(state_name("bo", 1, 0, 1), 1, "0" * 65)}, "its state has no size and digest"),
        ({"state": StateRef(state_name("bo", 1, 0, 1), 1, "A" * 64)}, "its state has no size and digest"),
    ],
)  # fmt: skip
def test_a_reply_that_no_performing_side_would_send_is_refused_by_name(
    change: dict[str, Any], sentence: str
) -> None:
    after = {"splits": ["test"], "metrics": ["loss"]}
    request = Request("bo", "client", Down(), 1, 3, exchange=1, after=after)
    good = Reply(
        "bo",
        Up(),
        StateRef(state_name("bo", 1, 0, 1), 1, "0" * 64),
        seconds=1.0,
        measured=[
            {"model": "global", "split": "test", "metric": "loss", "value": 1.0, "counts": [1, 2]}
        ],
    )
    assert validate_envelope(request, good) is None
    found = validate_envelope(request, dataclasses.replace(good, **change))
    assert found is not None and sentence in found
    assert "expected none" in (
        validate_envelope(dataclasses.replace(request, exchange=0), good) or ""
    )
