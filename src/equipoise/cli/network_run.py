"""Runs over a network, for `run --network`, `resume --network` and `audit --network`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.console import Console
from rich.live import Live

if TYPE_CHECKING:
    from equipoise.auditing import Findings
    from equipoise.experiment import Experiment
    from equipoise.runs import Run
    from equipoise.transports.nvflare.jobs import Desk
    from equipoise.transports.nvflare.scientist import NetworkRun
    from equipoise.transports.nvflare.serving import Outcome
    from equipoise.validation.imports import FromFile

SECOND_INTERRUPT = 5.0  # seconds in which a second Ctrl-C aborts the run


@dataclass(frozen=True)
class NetworkOptions:
    """The network whose sites execute a run."""

    panel: ClassVar[str] = "Execution"

    network: Annotated[
        Path | None,
        typer.Option(
            metavar="KIT",
            help="run at the sites of a network: folder of your kit (`equipoise member install`)",
        ),
    ] = None
    sites: Annotated[
        str | None,
        typer.Option(help="with --network: sites that take part, e.g. va,boston; default: all"),
    ] = None

    @property
    def names(self) -> list[str]:
        """The names of the sites that were given."""
        words = (self.sites or "").split(",")
        return [word.strip() for word in words if word.strip()]


def run_on_network(
    config: FromFile, options: NetworkOptions, out: Path | None, quiet: bool
) -> Run | None:
    """Run an experiment at the sites of a network.

    Args:
        config: The configuration of the experiment.
        options: The network and the sites.
        out: The folder of the run; by default a new one under runs/.
        quiet: Show no progress.

    Returns:
        The finished run; None if the user left it in progress.
    """
    from equipoise.experiment import experiment, with_settings
    from equipoise.simulate import fresh_folder
    from equipoise.validation.imports import permitted

    config = with_settings(config, {"data.apart": True})
    checked = experiment(config, permitted(config, ()))
    return _started(checked, options, out or fresh_folder(checked), quiet)


def _started(
    experiment: Experiment, options: NetworkOptions, folder: Path, quiet: bool
) -> Run | None:
    from equipoise.data.message_text import counted
    from equipoise.transports.nvflare.scientist import submit

    with _desk(options.network) as desk:
        run = submit(desk, experiment, folder, options.names)
        if not quiet:
            sites = counted(len(run.order.sites), "site")
            _say(f"submitted to {sites} as job {run.job}; run: {folder}")
        return _followed(desk, run, quiet)


def audit_on_network(config: FromFile, options: NetworkOptions, dimensions: int) -> Findings | None:
    """Compare the sites of a network in size, labels and features.

    Args:
        config: The configuration of the experiment.
        options: The network and the sites.
        dimensions: The directions of the features in which sites are compared.

    Returns:
        The findings; None if the user left the audit.
    """
    import tempfile

    from equipoise.auditing.running import auditing_of, findings_of
    from equipoise.experiment import experiment, with_settings
    from equipoise.validation.imports import permitted

    config = with_settings(config, {"data.apart": True})
    audited = experiment(config, permitted(config, ()))
    auditing = auditing_of(audited, None, dimensions)
    with tempfile.TemporaryDirectory(prefix="equipoise-audit-") as folder:
        finished = _started(auditing, options, Path(folder) / "audit", quiet=True)
        return None if finished is None else findings_of(finished, auditing)


def resume_on_network(
    folder: Path, options: NetworkOptions, from_round: int | None, quiet: bool
) -> Run | None:
    """Continue a run over a network, or follow one that is in progress.

    Args:
        folder: The scientist's folder of the run.
        options: The network.
        from_round: Go back to the checkpoint of this round.
        quiet: Show no progress.

    Returns:
        The finished run; None if the user left it in progress.
    """
    from equipoise.transports.nvflare.scientist import resubmit

    with _desk(options.network) as desk:
        return _followed(desk, resubmit(desk, folder, from_round), quiet)


@contextmanager
def _desk(kit: Path | None) -> Iterator[Desk]:
    from equipoise.transports.nvflare.kits import open_kit

    assert kit is not None
    opened = open_kit(kit, "lead")
    from equipoise.transports.nvflare.jobs import open_desk

    with open_desk(opened) as desk:
        yield desk


def _followed(desk: Desk, run: NetworkRun, quiet: bool) -> Run | None:
    """Follow a run to its end; the first Ctrl-C leaves it in progress, a second one aborts it."""
    from equipoise.transports.nvflare.scientist import abort, watch_until_end

    try:
        with _display(quiet) as show:
            outcome = watch_until_end(desk, run, show)
    except KeyboardInterrupt:
        if not _is_aborted():
            _say(
                f"the run continues at the server; follow it with "
                f"`equipoise resume {run.folder} --network {desk.kit.folder}`"
            )
            return None
        _say("aborting the run; finished rounds are saved")
        outcome = abort(desk, run)
    return _result(run, outcome, desk.kit.folder)


def _is_aborted() -> bool:
    """Return True if the user presses Ctrl-C once more."""
    _say(f"press Ctrl-C again within {SECOND_INTERRUPT:g} s to abort the run at all sites")
    try:
        time.sleep(SECOND_INTERRUPT)
    except KeyboardInterrupt:
        return True
    return False


def _result(run: NetworkRun, outcome: Outcome, kit: Path) -> Run:
    """Return a finished run, or say why it is not.

    Raises:
        RunError: With the sentence of the server.
    """
    from equipoise.runs import Run
    from equipoise.storage.store import RunError

    if outcome.status == "finished":
        return Run(run.folder)
    if outcome.status == "stopped":
        text = f"{outcome.text} with `equipoise resume {run.folder} --network {kit}`"
        raise RunError(text)
    raise RunError(f"the server {outcome.status} the run: {outcome.text}")


@contextmanager
def _display(quiet: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show progress: one line that changes in a terminal, else a line per round."""
    if quiet:
        yield lambda progress: None
        return
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _Lines()
        return
    with Live("waiting for the server to begin", console=screen, transient=True) as live:
        yield lambda progress: live.update(progress_text(progress))


class _Lines:
    """Prints a line whenever a round ends or a site comes or goes."""

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, progress: Mapping[str, Any]) -> None:
        text = _steady_text(progress)
        if text != self.last:
            self.last = text
            _say(text)


def progress_text(progress: Mapping[str, Any]) -> str:
    """Return the progress of a run in one line.

    Args:
        progress: The progress as the server reports it.

    Example:
        >>> progress_text({"status": "running", "round": 3, "rounds": 50,
        ...     "sites": {"va": "working", "boston": "away"}})
        'round 3 of 50; va: training; boston: not connected'
    """
    parts = [_steady_text(progress, with_sites=False)]
    step = str(progress.get("step", ""))
    activity = "evaluating" if step.startswith("@") else "training"
    words = {"working": activity, "idle": "ready", "waiting": "ready", "away": "not connected"}
    for name, state in _sites(progress).items():
        parts.append(f"{name}: {words.get(state, state)}")
    return "; ".join(parts)


def _steady_text(progress: Mapping[str, Any], with_sites: bool = True) -> str:
    """Return what changes once a round: the round, the last evaluation, sites that are away."""
    if progress.get("status") == "opening":
        return "sites prepare their data"
    if progress.get("status") == "waiting":
        return "the server is about to continue the run"
    text = f"round {progress.get('round')} of {progress.get('rounds')}"
    if progress.get("ending"):
        text = "after the last round"
    evaluation = progress.get("evaluation")
    if isinstance(evaluation, Mapping):
        extreme = "highest" if evaluation.get("lower_is_better") else "lowest"
        text += (
            f": {evaluation.get('metric')} {_number(evaluation.get('average'))}, "
            f"{extreme} {_number(evaluation.get('worst'))}"
        )
    if with_sites:
        away = [name for name, state in _sites(progress).items() if state == "away"]
        text += f"; not connected: {', '.join(away)}" if away else ""
    return text


def _sites(progress: Mapping[str, Any]) -> Mapping[str, str]:
    sites = progress.get("sites")
    return sites if isinstance(sites, Mapping) else {}


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "?"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def refuse_with_network(options: Mapping[str, bool]) -> None:
    """Refuse options that have no meaning for a run over a network.

    Args:
        options: True for the options that were given, by name.
    """
    from equipoise.experiment import ConfigurationError

    set_options = [name for name, is_set in options.items() if is_set]
    if set_options:
        raise ConfigurationError(
            f"--network: expected no {set_options[0]} together with it; "
            "sites use their own settings"
        )
