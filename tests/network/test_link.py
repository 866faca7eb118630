"""The link to FLARE, with a stand-in for its controller: sites that are away, silent or strange."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from equipoise.callbacks import Callback
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.site.messages import Message
from equipoise.transports.nvflare.link import ANSWER, BODY, HEAD, Link, array_of
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.serving import serve_run
from tests.helpers.apart_sites import apart_config, network_of, run_joined
from tests.helpers.runs import same_run

MESSAGE = Message(b"head", b"body")
Behaviour = Callable[[Task], Shareable | None]


class StandIn:
    """FLARE's controller: each site fetches its tasks and answers them in a thread of its own."""

    def __init__(self, behaviour: dict[str, Behaviour]) -> None:
        self.behaviour = behaviour
        self.away: set[str] = set()
        self.waiting: list[tuple[str, Task]] = []
        self.cancelled: list[Task] = []
        self.sent: list[Task] = []

    def send(self, task: Task, fl_ctx: FLContext, targets: list[str], send_order: Any) -> None:
        (site,) = targets
        self.sent.append(task)
        if site in self.away:
            self.waiting.append((site, task))
            return
        threading.Thread(target=self._perform, args=(site, task), daemon=True).start()

    def come_back(self, site: str) -> None:
        self.away.discard(site)
        waiting, self.waiting = self.waiting, []
        for name, task in waiting:
            if task not in self.cancelled:
                self._perform(name, task)

    def cancel_task(self, task: Task) -> None:
        self.cancelled.append(task)

    def _perform(self, site: str, task: Task) -> None:
        client_task = ClientTask(None, task)
        task.before_task_sent_cb(client_task=client_task, fl_ctx=None)
        result = self.behaviour[site](task)
        if result is None or task.result_received_cb is None:
            return
        client_task.result = result
        task.result_received_cb(client_task=client_task, fl_ctx=None)
        assert client_task.result is None  # FLARE would keep it in memory


def echo(task: Task) -> Shareable:
    reply = make_reply(ReturnCode.OK)
    reply[ANSWER] = array_of(
        b"".join(task.data[name].tobytes() for name in (HEAD, BODY) if name in task.data)
    )
    return reply


def silent(task: Task) -> None:
    return None


@pytest.fixture
def aborted() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def link_to(stand_in: StandIn, aborted: threading.Event) -> Link:
    return Link(stand_in, FLContext, aborted.is_set, pick_up=0.2)


def test_an_answer_arrives_and_its_task_is_withdrawn(aborted: threading.Event) -> None:
    stand_in = StandIn({"va": echo})
    connection = link_to(stand_in, aborted).connection("va")
    assert bytes(connection.call(MESSAGE, 5.0)) == b"headbody"
    assert connection.is_reachable and connection.state == "idle"
    assert stand_in.cancelled == stand_in.sent


def test_a_site_that_fetches_nothing_is_away_until_it_does(aborted: threading.Event) -> None:
    stand_in = StandIn({"va": echo})
    stand_in.away.add("va")
    connection = link_to(stand_in, aborted).connection("va")
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="'va' did not fetch"):
        connection.call(MESSAGE, 60.0)
    assert time.monotonic() - began < 5  # not the 60 s of the step
    assert not connection.is_reachable and connection.state == "away"
    stand_in.come_back("va")
    assert connection.is_reachable and connection.state == "idle"
    assert bytes(connection.call(MESSAGE, 5.0)) == b"headbody"


def test_a_site_that_works_too_long_is_late(
    aborted: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.transports.nvflare.link.GRACE", 0.0)
    stand_in = StandIn({"va": silent})
    connection = link_to(stand_in, aborted).connection("va")
    with pytest.raises(TimeoutError):
        connection.call(MESSAGE, 0.1)
    assert connection.is_reachable
    assert stand_in.cancelled == stand_in.sent


def test_a_site_that_dies_during_a_step_counts_as_away(aborted: threading.Event) -> None:
    def dies(task: Task) -> None:
        stand_in.away.add("va")

    stand_in = StandIn({"va": dies})
    link = Link(stand_in, FLContext, aborted.is_set, pick_up=30.0, silence=0.3)
    connection = link.connection("va")
    link.hear("va")
    link.hear("nobody")
    with pytest.raises(ConnectionError, match="'va' has sent no heartbeat"):
        connection.call(MESSAGE, None)
    assert not connection.is_reachable and connection.state == "away"


@pytest.mark.thorough
def test_a_site_that_gives_signs_of_life_is_waited_for(aborted: threading.Event) -> None:
    def slow(task: Task) -> Shareable:
        for _ in range(24):
            time.sleep(0.1)
            link.hear("va")
        return echo(task)

    link = Link(StandIn({"va": slow}), FLContext, aborted.is_set, pick_up=30.0, silence=2.0)
    assert bytes(link.connection("va").call(MESSAGE, None)) == b"headbody"


def test_a_call_ends_with_the_job(aborted: threading.Event) -> None:
    connection = link_to(StandIn({"va": silent}), aborted).connection("va")
    threading.Timer(0.1, aborted.set).start()
    with pytest.raises(ConnectionError, match="job ends"):
        connection.call(MESSAGE, None)


@pytest.mark.parametrize(
    "strange",
    [
        make_reply(ReturnCode.EXECUTION_EXCEPTION),
        make_reply(ReturnCode.OK),
        Shareable({ANSWER: "text"}),
        Shareable({ANSWER: np.zeros(3)}),
        Shareable({ANSWER: np.zeros((2, 2), np.uint8)}),
        {"no": "shareable"},
    ],
)
def test_a_result_of_another_form_is_no_answer(aborted: threading.Event, strange: Any) -> None:
    connection = link_to(StandIn({"va": lambda task: strange}), aborted).connection("va")
    with pytest.raises(ConnectionError, match="no answer"):
        connection.call(MESSAGE, 5.0)


def test_a_task_that_flare_ends_is_no_answer(aborted: threading.Event) -> None:
    def dies(task: Task) -> None:
        task.task_done_cb(task=task, fl_ctx=None)

    connection = link_to(StandIn({"va": dies}), aborted).connection("va")
    with pytest.raises(ConnectionError, match="no answer"):
        connection.call(MESSAGE, 60.0)


def served(tmp_path: Path, config: dict[str, Any], stand_in: StandIn, **more: Any) -> Any:
    aborted = threading.Event()
    link = link_to(stand_in, aborted)
    order = RunOrder("a" * 32, experiment(config).to_spec(), tuple(stand_in.behaviour))
    connections = {site: link.connection(site) for site in order.sites}
    callback = more.pop("callback", Callback())
    interrupted = more.pop("interrupted", lambda: False)
    return serve_run(order, tmp_path / "runs", connections, callback, interrupted, **more)


def behaviour_of(tmp_path: Path, **more: Any) -> dict[str, Behaviour]:
    lock = threading.Lock()  # steps in one process share the generators of torch

    def answering(site: Any) -> Behaviour:
        def answer(task: Task) -> Shareable:
            message = b"".join(task.data[name].tobytes() for name in (HEAD, BODY))
            with lock:
                reply = make_reply(ReturnCode.OK)
                reply[ANSWER] = array_of(site.answer(message))
            return reply

        return answer

    sites = network_of(tmp_path, **more).transport().sites
    return {name: answering(site) for name, site in sites.items()}


def test_an_order_is_served_to_the_end_with_the_bits_of_a_simulation(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedakd")
    outcome = served(tmp_path, config, StandIn(behaviour_of(tmp_path)))
    assert outcome.status == "finished"
    run = Run(tmp_path / "runs" / ("a" * 32))
    same_run(run_joined(config, tmp_path / "joined"), run, network_of(tmp_path).states(run))


def test_a_run_that_was_stopped_is_continued_under_its_identifier(tmp_path: Path) -> None:
    class Stop(Callback):
        stopped = False

        def on_round(self, record: Any) -> None:
            self.stopped = True

    config = apart_config(tmp_path, "scaffold", rounds=3)
    stop = Stop()
    behaviour = behaviour_of(tmp_path)
    outcome = served(
        tmp_path, config, StandIn(behaviour), callback=stop, interrupted=lambda: stop.stopped
    )
    assert outcome.status == "stopped"
    outcome = served(tmp_path, config, StandIn(behaviour))
    assert outcome.status == "finished"
    run = Run(tmp_path / "runs" / ("a" * 32))
    same_run(run_joined(config, tmp_path / "joined"), run, network_of(tmp_path).states(run))


def test_another_experiment_under_the_same_identifier_is_refused(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=1)
    assert served(tmp_path, config, StandIn(behaviour_of(tmp_path))).status == "finished"
    other = served(tmp_path, {**config, "rounds": 2}, StandIn(behaviour_of(tmp_path)))
    assert other.status == "refused" and "another experiment" in other.text


def test_a_method_with_code_of_the_scientist_is_refused(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=1)
    spec = dict(experiment(config).to_spec())
    spec["method"] = {"name": "os.path:join"}
    order = RunOrder("a" * 32, spec, ("ada",))
    outcome = serve_run(order, tmp_path / "runs", {}, Callback(), lambda: False)
    assert outcome.status == "refused"
    assert not (tmp_path / "runs").exists()


def test_a_defect_is_named_by_its_type_only(tmp_path: Path) -> None:
    class Defect(Callback):
        def on_round(self, record: Any) -> None:
            raise LookupError("patient4711")

    logged: list[str] = []
    config = apart_config(tmp_path, "fedavg", rounds=1)
    stand_in = StandIn(behaviour_of(tmp_path))
    outcome = served(tmp_path, config, stand_in, callback=Defect(), log=logged.append)
    assert outcome.status == "failed" and "LookupError" in outcome.text
    assert "patient4711" not in outcome.text and "patient4711" in logged[0]


@pytest.mark.parametrize(
    "text",
    ["", "!", "e30=", "W10=", RunOrder("x", {}, ("va",)).text(), RunOrder("a" * 32, {}, ()).text()],
)
def test_a_malformed_order_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="expected an order"):
        RunOrder.of(text)


def test_an_order_of_another_version_is_refused() -> None:
    order = RunOrder("a" * 32, {}, ("va",), version="0.0")
    with pytest.raises(ValueError, match=r"'0\.0'; install the same version"):
        RunOrder.of(order.text())


def test_an_order_survives_its_journey() -> None:
    order = RunOrder("a" * 32, {"data": {"name": "{workspace}"}}, ("va", "bo"), from_round=3)
    assert RunOrder.of(order.text()) == order
    assert set(order.text()) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_="
    )
