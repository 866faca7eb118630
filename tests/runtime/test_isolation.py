"""A step is alone: what it changes for the whole process ends with it, and it ends when its time is
over.
"""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.method import Method, Ups
from equipoise.records import Down, State, Up
from equipoise.runtime.isolation import Late, can_interrupt, preserve_global_state, time_limit
from equipoise.runtime.messages import state_name
from equipoise.server import Server
from equipoise.transports.base import ClientError
from tests.helpers.runs import assert_same, everything, played, settings, sites


def numpy_state() -> tuple[Any, ...]:
    kind, numbers, place, waits, waiting = np.random.get_state()  # noqa: NPY002
    return kind, numbers.tolist(), place, waits, waiting


STATES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 2)),
    "gradient mode": (
        torch.is_grad_enabled,
        lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    ),
    "default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.use_deterministic_algorithms(True),
    ),
    "deterministic, warning": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    "matmul precision": (
        torch.get_float32_matmul_precision,
        lambda: torch.set_float32_matmul_precision("medium"),
    ),
    "cudnn": (
        lambda: torch.backends.cudnn.benchmark,
        lambda: setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark),
    ),
    "torch's generator": (lambda: torch.get_rng_state().tolist(), lambda: torch.rand(1)),
    "torch's seed": (lambda: torch.get_rng_state().tolist(), lambda: torch.manual_seed(5)),
    "python's generator": (random.getstate, random.random),
    "numpy's generator": (numpy_state, lambda: np.random.rand()),  # noqa: NPY002
    "numpy's seed": (numpy_state, lambda: np.random.seed(3)),  # noqa: NPY002
    "numpy's normal": (numpy_state, lambda: np.random.randn()),  # noqa: NPY002
}


@pytest.mark.parametrize("what", STATES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_setting_ends_with_the_step(what: str, fails: bool) -> None:
    seen, change = STATES[what]
    for _ in range(2):  # the second time the state of numpy's generator is known already
        before = seen()
        try:
            with preserve_global_state():
                change()
                assert seen() != before
                if fails:
                    raise ArithmeticError
        except ArithmeticError:
            pass
        assert seen() == before


def test_numbers_drawn_between_steps_count_and_a_waiting_normal_is_not_lost() -> None:
    for draws in (1, 0, 1, 2, 1):  # an odd number of normals leaves one that waits
        for _ in range(draws):
            np.random.randn()  # noqa: NPY002
        before = numpy_state()
        with preserve_global_state():
            np.random.randn()  # noqa: NPY002
            with preserve_global_state():
                np.random.randn()  # noqa: NPY002
        assert numpy_state() == before
        with preserve_global_state():
            pass
        assert numpy_state() == before


@dataclass(frozen=True)
class Meddling(Method):
    """Changes global state at every client and reports what it saw; so does the server."""

    def client(self, client: Client, down: Down) -> Up:
        found = [
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            str(torch.get_default_dtype()),
            torch.initial_seed() == 7,
        ]
        up = Up(model=client.load(down.model), found=found)
        torch.set_num_threads(3)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(7)
        return up

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        return state.with_(
            found=[
                *ups.values("found"),
                [
                    torch.get_num_threads(),
                    torch.is_grad_enabled(),
                    str(torch.get_default_dtype()),
                    False,
                ],
            ]
        )


def test_a_step_finds_what_the_first_one_found(tmp_path: Path) -> None:
    from tests.helpers.problems import server_state

    run = played(settings(Meddling(), rounds=2), tmp_path / "run")
    assert server_state(run).found == [[1, True, "torch.float32", False]] * 5
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32


@pytest.fixture
def no_alarm() -> Iterator[None]:
    """The alarm clock as it was, whatever a test did."""
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield
    signal.setitimer(signal.ITIMER_REAL, *before[1])
    signal.signal(signal.SIGALRM, before[0])


def wait(seconds: float) -> None:
    time.sleep(seconds)


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def stubborn(seconds: float) -> None:
    """Catches any error, once; then continues."""
    try:
        time.sleep(seconds)
    except BaseException:
        time.sleep(seconds)


def disguised(seconds: float) -> None:
    try:
        time.sleep(seconds)
    except BaseException as error:
        raise ArithmeticError("nothing to see") from error


@pytest.mark.parametrize("step", [wait, spin, stubborn, disguised])
def test_a_step_that_takes_too_long_is_interrupted(
    step: Callable[[float], None], no_alarm: None
) -> None:
    began = time.monotonic()
    with pytest.raises(Late), time_limit(0.1):
        step(60)
    assert time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(
        signal.ITIMER_REAL
    ) == (0, 0)


def test_a_step_that_ends_in_time_is_not(no_alarm: None) -> None:
    with time_limit(0.2):
        pass
    with pytest.raises(ZeroDivisionError), time_limit(0.2):
        _ = 1 / 0
    with pytest.raises(KeyboardInterrupt), time_limit(0.2):
        raise KeyboardInterrupt
    time.sleep(0.4)  # no alarm is left to come


def test_an_answer_that_comes_in_spite_of_the_alarm_is_late(no_alarm: None) -> None:
    with pytest.raises(Late), time_limit(0.05), contextlib.suppress(BaseException):
        time.sleep(10)


def test_an_alarm_of_the_users_own_comes_in_its_time_and_again(no_alarm: None) -> None:
    rings: list[float] = []
    signal.signal(signal.SIGALRM, lambda number, frame: rings.append(time.monotonic()))
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    with time_limit(60):
        spin(0.5)
    assert len(rings) >= 2 and 0.2 <= rings[0] - began < 0.5
    assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(0.2)
    count = len(rings)
    spin(0.5)
    assert len(rings) > count, "it goes on behind the step"


def test_an_alarm_behind_the_end_of_the_step_still_comes(no_alarm: None) -> None:
    rings: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: rings.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.6)
    with pytest.raises(Late), time_limit(0.1):
        time.sleep(10)
    assert not rings
    spin(1.0)
    assert rings == [signal.SIGALRM]


@pytest.mark.parametrize(("outer", "inner"), [(0.1, 60.0), (60.0, 0.1)])
def test_limits_inside_each_other_each_end_their_own(
    outer: float, inner: float, no_alarm: None
) -> None:
    ended = []
    try:
        with time_limit(outer):
            try:
                with time_limit(inner):
                    time.sleep(30)
            except Late:
                ended.append("inner")
    except Late:
        ended.append("outer")
    assert ended == ["outer" if outer < inner else "inner"]


def test_in_another_thread_it_cannot_be_kept_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    from equipoise.cli import output

    wanted = eq.Experiment(**settings("fedavg", rounds=1), dataset=eq.from_sites(sites()))
    federation = eq.data.federate(wanted.data, wanted.seed, wanted.dataset)
    said: list[bool] = []

    def work() -> None:
        said.append(can_interrupt())
        with time_limit(0.01):
            time.sleep(0.1)
        with caplog.at_level(logging.WARNING, "equipoise"):
            simulate.run(wanted, tmp_path / "run")
        output.plan(wanted, federation)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [False] and can_interrupt()
    assert [record.message for record in caplog.records].count(
        next(r.message for r in caplog.records if "deadline" in r.message)
    ) == 1
    plan = " ".join(capsys.readouterr().out.split())
    assert "participation.deadline is kept in the main thread only" in plan
    output.plan(wanted, federation)
    assert "main thread only" not in " ".join(capsys.readouterr().out.split())


@dataclass(frozen=True)
class Slow(Method):
    """One client sleeps at one place."""

    where: str = "client"

    def _perhaps(self, client: Client, here: str) -> None:
        if client.id == "bo" and client.round == 2 and here == self.where:
            client.state["half"] = 1
            time.sleep(60)

    def client(self, client: Client, down: Down) -> Up | None:
        client.state["rounds"] = client.state.get("rounds", 0) + 1
        up = super().client(client, down)
        self._perhaps(client, "client")
        return up

    def serves(self, client: Client, down: Down) -> Any:
        self._perhaps(client, "serves")
        return super().serves(client, down)


@pytest.mark.parametrize("transport", [None, "loopback"])
@pytest.mark.thorough
def test_in_process_a_client_that_hangs_is_out_of_the_round(
    tmp_path: Path, transport: str | None
) -> None:
    """The rest of the run is, bit for bit, that of a run in which it dropped out."""
    hung = played(
        settings(Slow(), participation={"deadline": 1.5}), tmp_path / "hung", transport=transport
    )
    assert [(row["round"], row["client"], row["reason"]) for row in hung.rejected()] == [
        (2, "bo", "did not answer within 1.5 s")
    ]
    script = {"script": [{"round": 2, "client": "bo", "kind": "drop"}]}
    assert_same(
        everything(played(settings(Slow(where="nowhere"), faults=script), tmp_path / "dropped")),
        everything(hung),
    )
    assert not list(
        (tmp_path / "hung" / "files").rglob(
            f"client-{state_name('bo', 2, 0, 0).rpartition('a')[0]}*"
        )
    )


def test_in_process_an_evaluation_that_hangs_leaves_the_client_out(tmp_path: Path) -> None:
    run = played(
        settings(Slow(where="serves"), participation={"deadline": 1.5}, evaluation={"every": 1}),
        tmp_path / "run",
    )
    assert [
        (row["round"], row["exchange"], row["client"], row["reason"]) for row in run.rejected()
    ] == [(2, 0, "bo", "did not answer within 1.5 s")]
    evaluated = {row["client"] for row in run.table(round=2, phase="received")}
    assert run.last_round == 3 and evaluated == {"ada", "cy", "di"}


@dataclass(frozen=True)
class NoRecord(Method):
    def client(self, client: Client, down: Down) -> Any:
        return {"model": client.load(down.model)}


@pytest.mark.parametrize("transport", [None, "loopback"])
def test_a_step_returns_a_record_or_nothing(tmp_path: Path, transport: str | None) -> None:
    with pytest.raises(
        ClientError,
        match=r"client: expected an Up, got dict; end the step with `return Up\(name=value\)`",
    ):
        played(settings(NoRecord()), tmp_path / "run", transport=transport)
