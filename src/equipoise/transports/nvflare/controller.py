"""FLARE's controller of a run: it runs in the job process of the server."""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.entry import RUNS
from equipoise.transports.nvflare.kits import SUPERVISOR_ROLE
from equipoise.transports.nvflare.link import ALIVE, Link, register_arrays
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.progress import NetworkProgress
from equipoise.transports.nvflare.run_jobs import JobFacts, RunJob
from equipoise.transports.nvflare.server_settings import server_files
from equipoise.transports.nvflare.serving import DELIVERED, Outcome

PROGRESS = "equipoise"  # the group under which FLARE's statistics of a job have the progress


class RunController(Controller):  # type: ignore[misc]
    """Carries out the order of a scientist.

    Args:
        order: The order as text; see `RunOrder.text`.
    """

    def __init__(self, order: str) -> None:
        super().__init__()
        self._order = order
        self._progress: NetworkProgress | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Prepare for messages; called by FLARE."""
        register_arrays()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """End; called by FLARE."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the experiment, and deliver the run; called by FLARE."""
        engine = fl_ctx.get_engine()
        workspace = engine.get_workspace()
        folder = Path(workspace.get_root_dir()).parent
        results = Path(workspace.get_run_dir(fl_ctx.get_job_id()))

        def aborted() -> bool:
            return bool(abort_signal.triggered)

        try:
            order = RunOrder.of(self._order)
            files = server_files(folder)
        except ConfigurationError as error:
            Outcome("refused", str(error)).write(results)
            return
        facts = _job_facts(fl_ctx, results)
        job = RunJob(order, facts, folder / RUNS, aborted)
        link = Link(self, engine.new_context, aborted, on_change=job.note)

        def hear(topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
            link.hear(fl_ctx.get_peer_context().get_identity_name())
            return make_reply(ReturnCode.OK)

        engine.register_aux_message_handler(topic=ALIVE, message_handle_func=hear)
        connections = {
            site: link.connection(site, is_in_job=site in facts.sites) for site in order.sites
        }

        def states() -> dict[str, str]:
            left_out = {site: f"left out: {reason}" for site, reason in job.left_out.items()}
            return link.states() | left_out

        self._progress = NetworkProgress(states, _main_metric(order))
        outcome = job.carry_out(
            connections,
            self._progress,
            results / DELIVERED,
            files,
            lambda text: self.log_error(fl_ctx, text, fire_event=False),
        )
        outcome.write(results)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer a question for the progress; called by FLARE."""
        if event_type != InfoCollector.EVENT_TYPE_GET_STATS or self._progress is None:
            return
        collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
        if isinstance(collector, GroupInfoCollector):
            collector.set_info(PROGRESS, self._progress.snapshot())


def _job_facts(fl_ctx: FLContext, folder: Path) -> JobFacts:
    """Return the facts about a job, which FLARE's server wrote when it was submitted.

    Args:
        fl_ctx: FLARE's context.
        folder: The folder of the job.
    """
    meta = json.loads((folder / "meta.json").read_bytes())
    sites = tuple(client.name for client in fl_ctx.get_engine().get_clients())
    return JobFacts(
        job=fl_ctx.get_job_id(),
        submitter=str(meta[JobMetaKey.SUBMITTER_NAME.value]),
        is_continuation=meta[JobMetaKey.SUBMITTER_ROLE.value] == SUPERVISOR_ROLE,
        sites=sites,
    )


def _main_metric(order: RunOrder) -> str | None:
    evaluation = order.experiment.get("evaluation")
    main = evaluation.get("main") if isinstance(evaluation, dict) else None
    return main if isinstance(main, str) else None
