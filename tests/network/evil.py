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
from equipoise.site.messages import Message, message, perform_message, unpacked
from equipoise.transports.nvflare.link import Link, register_arrays
from equipoise.transports.nvflare.order import RunOrder

RESULTS = "evil.json"


class EvilController(Controller):  # type: ignore[misc]
    """Sends messages that no server of ours sends, and writes down the answers of the first site."""

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
        for name, attack in attacks(self._order, site).items():
            answer = bytes(connection.call(attack, 60.0))
            answers[name] = {"code": unpacked(answer)["code"], "size": len(answer)}
        workspace = engine.get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        (folder / RESULTS).write_text(json.dumps(answers))


def attacks(order: RunOrder, site: str) -> dict[str, Message]:
    """Return messages that a site must refuse, in the order in which they are sent."""
    spec = dict(order.experiment)
    job = Job(order.run, spec, version=order.version)
    secret_file = {**spec, "data": {**spec["data"], "schema": "/etc/passwd"}}
    foreign = {**spec, "method": {"name": "os:system"}}
    random = np.random.default_rng(0)

    def request(**more: Any) -> Message:
        values: dict[str, Any] = {"client": site, "step": "client", "round": 1, "rounds": 2}
        values |= {"exchange": 1, "down": Record(), **more}
        return perform_message(job, Request(**values), None)

    return {
        "random": Message(random.bytes(500), random.bytes(500)),
        "empty": Message(b"", b""),
        "oversized": Message(bytes(1024), bytes(2**21)),
        "other site": message("describe", "elsewhere", job),
        "closed": request(),
        "schema": message("open", site, Job(order.run, secret_file, version=order.version)),
        "foreign code": message("open", site, Job(order.run, foreign, version=order.version)),
        "open": message("open", site, job),
        "init": request(step="__init__"),
        "private": request(step="_control"),
        "evaluation": request(step="@measure", exchange=0),
        "client": request(client="elsewhere"),
        "path": request(committed="../../secret"),
        "close": message("close", site, job),
    }


def experiment_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment as an order carries it."""
    return dict(experiment(config).to_spec())
