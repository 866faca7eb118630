"""Progress of a run: a bar with the time left, or plain lines without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from equipoise.callbacks import Callback, ClientProgress, RunStart
from equipoise.data.message_text import counted
from equipoise.runs.round_summary import summarise_round
from equipoise.runtime.evaluation_messages import EvaluateModels, PredictShared
from equipoise.storage.tables import RoundRecord


class PrintRounds(Callback):
    """Prints one line per round to standard error."""

    def __init__(self, main: str | None) -> None:
        self.main = main

    def on_round(self, record: RoundRecord) -> None:
        """Print the main metric of the round."""
        when = "after the last round" if record.finish else f"round {record.round}"
        print(f"{when}: {_headline(record, self.main)}", file=sys.stderr)


class ProgressBars(Callback):
    """Shows the rounds, the clients of the current exchange, and the time left."""

    def __init__(self, screen: Console, main: str | None) -> None:
        self.main = main
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=screen,
            transient=False,
        )
        self.rounds = self.bars.add_task("rounds", total=None, note="")
        self.clients = self.bars.add_task("clients", total=None, note="")

    def on_start(self, start: RunStart) -> None:
        """Start drawing; this starts a thread, so worker processes must have been forked."""
        self.bars.start()
        self.bars.update(self.rounds, total=start.rounds, completed=start.first - 1)

    def on_client(self, progress: ClientProgress) -> None:
        """Move the bar of clients."""
        note = (
            "evaluating"
            if progress.step in (EvaluateModels.step, PredictShared.step)
            else "training"
        )
        if progress.by_node:
            counts = (f"{node} {count:.0f}" for node, count in sorted(progress.by_node.items()))
            note = f"{note}; this round by node: {', '.join(counts)}"
        self.bars.update(self.clients, total=progress.total, completed=progress.done, note=note)

    def on_round(self, record: RoundRecord) -> None:
        """Move the bar of rounds and show the main metric."""
        self.bars.update(self.rounds, note=_headline(record, self.main))
        if not record.finish:
            self.bars.update(self.rounds, completed=record.round)

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        """Stop drawing."""
        self.bars.stop()


def progress(quiet: bool, main: str | None = None) -> list[Callback]:
    """Return the callbacks that show progress.

    Args:
        quiet: Show nothing.
        main: The main metric, if the experiment names one.
    """
    if quiet:
        return []
    screen = Console(stderr=True)
    if screen.is_terminal:
        return [ProgressBars(screen, main)]
    return [PrintRounds(main)]


@contextmanager
def announced_interrupts() -> Iterator[None]:
    """Print how to continue a run that Ctrl-C interrupts."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(f"\n{stop}" if str(stop) else "\nstopped", file=sys.stderr)
        raise


def _headline(record: RoundRecord, main: str | None) -> str:
    summary = summarise_round(record, main)
    if summary is None:
        return counted(len(record.joined), "reply", "replies")
    metric = summary.metric
    extreme = "highest" if metric.lower_is_better else "lowest"
    return f"{record.main} {metric.name} {summary.average:.3f}, {extreme} {summary.worst:.3f}"
