"""The link between a transport and FLARE's controller: one task for each message to a site."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from nvflare.apis.controller_spec import ClientTask, SendOrder, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.utils import fobs

from equipoise.site.messages import Message

TASK = "call"  # the only task that sites perform
ALIVE = "equipoise.alive"  # the topic under which sites say that they live
# Entries of a task and of its result. Arrays of bytes travel a third faster than bytes.
HEAD = "head"
BODY = "body"
ANSWER = "answer"
PICK_UP = 5.0  # seconds in which a site that is there fetches a task
SILENCE = 15.0  # seconds without a sign of life after which a site that has a task counts as away
GRACE = 30.0  # seconds beyond a step's deadline in which its answer travels
LONGEST = 24 * 3600.0  # seconds that a site has for a step without a deadline
_POLL = 0.5  # seconds between two looks at whether the run shall stop


def register_arrays() -> None:
    """Let FLARE send arrays; both sides need it."""
    fobs.register(NumpyArrayDecomposer)


def array_of(data: bytes) -> np.ndarray:
    """Return bytes as an array, without a copy."""
    return np.frombuffer(data, np.uint8)


def bytes_in(shareable: Mapping[str, Any], name: str) -> memoryview | None:
    """Return the bytes under a name of what a stranger sent; None if there are none."""
    array = shareable.get(name)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
        return None
    return array.data


class Scheduler(Protocol):
    """The part of FLARE's controller that sends tasks."""

    def send(
        self, task: Task, fl_ctx: FLContext, targets: list[str], send_order: SendOrder
    ) -> None:
        """Schedule a task for the first of some sites."""
        ...

    def cancel_task(self, task: Task) -> None:
        """Withdraw a task."""
        ...


class Link:
    """Sends messages to sites as tasks of FLARE.

    Args:
        scheduler: FLARE's controller.
        context: Makes a context of FLARE, with which a task is sent.
        aborted: Returns True once FLARE ends the job.
        pick_up: Seconds after which a site that does not fetch its task counts as away.
        silence: Seconds without a sign of life after which a site with a task counts as away.
        on_change: Called with the name of a site that leaves or returns, and True if it leaves.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        context: Callable[[], FLContext],
        aborted: Callable[[], bool],
        pick_up: float = PICK_UP,
        on_change: Callable[[str, bool], None] = lambda site, is_away: None,
        silence: float = SILENCE,
    ) -> None:
        self.scheduler = scheduler
        self.context = context
        self.aborted = aborted
        self.pick_up = pick_up
        self.silence = silence
        self.on_change = on_change
        self.connections: dict[str, SiteConnection] = {}

    def connection(self, site: str, is_in_job: bool = True) -> SiteConnection:
        """Return the connection to a site.

        Args:
            site: The name of the site.
            is_in_job: False for a site that was away when the job began: FLARE never lets it in.
        """
        return self.connections.setdefault(site, SiteConnection(site, self, is_in_job))

    def hear(self, site: str) -> None:
        """Note a sign of life of a site."""
        connection = self.connections.get(site)
        if connection is not None:
            connection.heard = time.monotonic()

    def states(self) -> dict[str, str]:
        """Return the state of each site: idle, waiting, working or away."""
        return {name: connection.state for name, connection in self.connections.items()}

    def send(self, site: str, task: Task) -> None:
        """Schedule a task for a site."""
        self.scheduler.send(task, self.context(), [site], SendOrder.SEQUENTIAL)


class SiteConnection:
    """The connection to a site.

    Attributes:
        site: The name of the site.
        is_reachable: False from the moment at which the site did not fetch a task, until it does.
        state: idle, waiting, working or away.
        heard: The time of the last sign of life; None before the first.
    """

    def __init__(self, site: str, link: Link, is_in_job: bool = True) -> None:
        self.site = site
        self.heard: float | None = None
        self.is_reachable = is_in_job
        self.state = "idle" if is_in_job else "away"
        self._link = link

    def call(self, message: Message, seconds: float | None) -> memoryview:
        """Send a message and return the answer; see `Connection.call`."""
        call = _Call(message)
        self.state = "waiting"
        self._link.send(self.site, call.task)
        try:
            if not self._happens(call.fetched, self._link.pick_up):
                self._leave()
                raise ConnectionError(f"site {self.site!r} did not fetch a task")
            self.state = "working"
            limit = LONGEST if seconds is None else seconds
            if not self._happens(call.ended, limit + GRACE):
                raise TimeoutError(f"site {self.site!r} did not answer")
        finally:
            self._link.scheduler.cancel_task(call.task)
            if self.is_reachable:
                self.state = "idle"
        if call.answer is None:
            raise ConnectionError(f"site {self.site!r} sent no answer")
        return call.answer

    def _happens(self, event: threading.Event, seconds: float) -> bool:
        """Return True once an event happens; False if it does not in time.

        Raises:
            ConnectionError: If the job ends, or the site has died.
        """
        until = time.monotonic() + seconds
        while not event.wait(min(_POLL, max(0.0, until - time.monotonic()))):
            if self._link.aborted():
                raise ConnectionError("the job ends")
            if self._is_silent():
                self._leave()
                raise ConnectionError(f"site {self.site!r} has sent no heartbeat")
            if time.monotonic() >= until:
                return event.is_set()
        return True

    def _is_silent(self) -> bool:
        """Return True if the site has stopped to give signs of life."""
        return self.heard is not None and time.monotonic() - self.heard > self._link.silence

    def _leave(self) -> None:
        """Count the site as away until it fetches an empty task, which waits for it."""
        self.is_reachable = False
        self.state = "away"
        self.heard = None
        knock = Task(TASK, Shareable(), before_task_sent_cb=self._on_return)
        self._link.send(self.site, knock)
        self._link.on_change(self.site, True)

    def _on_return(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self.is_reachable = True
        self.state = "idle"
        self._link.on_change(self.site, False)


class _Call:
    """One message on its way: the task that carries it, and what became of it."""

    def __init__(self, message: Message) -> None:
        self.fetched = threading.Event()
        self.ended = threading.Event()
        self.answer: memoryview | None = None
        content = Shareable({HEAD: array_of(message.head), BODY: array_of(message.body)})
        self.task = Task(
            TASK,
            content,
            before_task_sent_cb=self._on_fetched,
            result_received_cb=self._on_result,
            task_done_cb=self._on_end,
        )

    def _on_fetched(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self.fetched.set()

    def _on_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        result = client_task.result
        client_task.result = None  # FLARE would keep it as long as the task
        if isinstance(result, Shareable) and result.get_return_code() == ReturnCode.OK:
            self.answer = bytes_in(result, ANSWER)
        self.ended.set()

    def _on_end(self, task: Task, fl_ctx: FLContext) -> None:
        # Without a result: the site has died, or FLARE could not deliver the task.
        self.fetched.set()
        self.ended.set()
