"""Parties that attack: a server that sends anything to sites, and a site that answers anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from equipoise.experiment import experiment
from equipoise.records import Record
from equipoise.runtime.messages import Job, Request
from equipoise.site.messages import Message, message, packed, perform_message, unpacked
from equipoise.transports.nvflare.link import Link, register_arrays
from equipoise.transports.nvflare.order import RunOrder

RESULTS = "evil.json"


class EvilController(Controller):  # type: ignore[misc]
    """Sends messages that no server of ours sends, and records the answers of the first site."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self._order = RunOrder.of(order)

    def start_controller(self, fl_ctx: FLContext) -> None:
        register_arrays()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        link = Link(self, engine.new_context, lambda: bool(abort_signal.triggered))
        site = self._order.sites[0]
        connection = link.connection(site)
        answers = {}

        def send(name: str, attack: Message) -> Any:
            answer = bytes(connection.call(attack, 60.0))
            answers[name] = {"code": unpacked(answer)["code"], "size": len(answer)}
            return unpacked(answer)

        for name, attack in attacks_on_closed(self._order, site).items():
            send(name, attack)
        job = job_of(self._order)
        ticket = send("describe", message("describe", site, job))["ticket"]
        opening = message("open", site, job, ticket=ticket)
        send("open", opening)
        for name, attack in attacks_on_open(self._order, site, ticket).items():
            send(name, attack)
        send("close", message("close", site, job, ticket=ticket))
        send("replayed", opening)
        workspace = engine.get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        (folder / RESULTS).write_text(json.dumps(answers))


def job_of(order: RunOrder, **changes: Any) -> Job:
    """Return the job of an order, with changes of its experiment."""
    return Job(order.run, {**order.experiment, **changes}, version=order.version)


def attacks_on_closed(order: RunOrder, site: str) -> dict[str, Message]:
    """Return messages that a site must refuse while no run is open."""
    random = np.random.default_rng(0)
    data = {**order.experiment["data"], "schema": "/etc/passwd"}
    return {
        "random": Message(random.bytes(500), random.bytes(500)),
        "empty": Message(b"", b""),
        "oversized": Message(bytes(1024), bytes(2**21)),
        "other site": message("describe", "elsewhere", job_of(order)),
        "closed": request(order, site),
        "no ticket": message("open", site, job_of(order)),
        "schema": message("describe", site, job_of(order, data=data)),
        "foreign code": message("describe", site, job_of(order, method={"name": "os:system"})),
    }


def attacks_on_open(order: RunOrder, site: str, ticket: str) -> dict[str, Message]:
    """Return messages that a site must refuse in a run."""
    return {
        "init": request(order, site, ticket, step="__init__"),
        "private": request(order, site, ticket, step="_control"),
        "evaluation": request(order, site, ticket, step="@measure", exchange=0),
        "client": request(order, site, ticket, client="elsewhere"),
        "path": request(order, site, ticket, committed="../../secret"),
        "other ticket": request(order, site, "0" * 32),
    }


def request(order: RunOrder, site: str, ticket: str = "", **more: Any) -> Message:
    """Return the message of a step, with changes."""
    values: dict[str, Any] = {"client": site, "step": "client", "round": 1, "rounds": 2}
    values |= {"exchange": 1, "down": Record(), **more}
    head, body = perform_message(job_of(order), Request(**values), None, ticket=ticket)
    # The message is for the site, whatever client the request names.
    if values["client"] != site:
        entries = {**unpacked(head + body), "site": site}
        return Message(packed(entries), b"")
    return Message(head, body)


def experiment_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment as an order carries it."""
    return dict(experiment(config).to_spec())
