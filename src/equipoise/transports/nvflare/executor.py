"""FLARE's executor at a site: it passes messages to the site and returns its answers."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from equipoise.site import Site
from equipoise.transports.nvflare.kits import open_kit
from equipoise.transports.nvflare.link import (
    ALIVE,
    ANSWER,
    BODY,
    HEAD,
    array_of,
    bytes_in,
    register_arrays,
)
from equipoise.transports.nvflare.site_settings import site_settings

_POLL = 0.1  # seconds between two looks at whether the job is aborted
_PULSE = 2.0  # seconds between two signs of life


class SiteExecutor(Executor):  # type: ignore[misc]
    """Performs the only task of our jobs: to answer a message."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Site | None = None
        self._ended = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start and end the site with the job; called by FLARE."""
        if event_type == EventType.START_RUN:
            register_arrays()
            folder = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).parent
            # The name is that of the certificate, whatever a message says.
            settings = site_settings(open_kit(folder, "site"))
            self._site = Site(fl_ctx.get_identity_name(), settings)
            engine = fl_ctx.get_engine()
            threading.Thread(target=self._send_signs_of_life, args=(engine,), daemon=True).start()
        elif event_type in (EventType.END_RUN, EventType.ABORT_TASK):
            self._ended.set()
            self._close()

    def _send_signs_of_life(self, engine: Any) -> None:
        """Tell the server again and again that this process lives, also during a step.

        Otherwise the server would learn of a power cut here after minutes only.
        """
        while not self._ended.wait(_PULSE):
            with suppress(Exception), engine.new_context() as context:
                engine.fire_and_forget_aux_request(ALIVE, Shareable(), context, optional=True)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Answer a message; called by FLARE."""
        site = self._site
        if site is None:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        head = bytes_in(shareable, HEAD)
        body = bytes_in(shareable, BODY)
        # The message is freed as soon as the site has it in one piece.
        shareable.pop(HEAD, None)
        shareable.pop(BODY, None)
        data = bytearray() if head is None or body is None else bytearray(head) + body
        del head, body
        answer = _Answer(site, data)
        del data
        while not answer.ended.wait(_POLL):
            if abort_signal.triggered:
                self._close()
                return make_reply(ReturnCode.TASK_ABORTED)
        reply = make_reply(ReturnCode.OK)
        reply[ANSWER] = array_of(answer.data)
        return reply

    def _close(self) -> None:
        if self._site is not None:
            self._site.close()


class _Answer:
    """The answer of a site, which a thread waits for, so that a job can be aborted meanwhile."""

    def __init__(self, site: Site, data: bytearray) -> None:
        self.ended = threading.Event()
        self.data = b""
        threading.Thread(target=self._run, args=(site, [data]), daemon=True).start()

    def _run(self, site: Site, message: list[bytearray]) -> None:
        try:
            self.data = site.answer(message.pop())
        finally:
            self.ended.set()
