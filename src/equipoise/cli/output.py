"""Printing for all commands: lines and tables, the plan of a run, and settings as typed."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.data.message_text import counted
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.metrics.registry import main_of, measured
from equipoise.runtime.isolation import UNKEPT, can_interrupt
from equipoise.storage.store import DATABASE, RunError, Store
from equipoise.validation import safe_yaml
from equipoise.validation.names import quoted
from equipoise.validation.text import shown

if TYPE_CHECKING:
    from equipoise.data import Federation

console = Console()


class Styled(str):
    """A text with a style of rich. Names of users are plain text, in which rich finds no markup."""

    style: str = ""


def styled(text: str, style: str) -> Styled:
    """Return a text with a style, such as "bold" or "red"."""
    result = Styled(text)
    result.style = style
    return result


def as_text(cell: Any) -> Text:
    """Return a cell for rich, without control characters."""
    return Text(shown(cell), style=getattr(cell, "style", ""))


def say(*words: str, wrap: bool = True) -> None:
    """Print a line.

    Args:
        words: The parts of the line; nothing in them is taken for markup.
        wrap: Break the line at the width of the terminal.
    """
    console.print(Text.assemble(*map(as_text, words)), highlight=False, soft_wrap=not wrap)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print a table; columns of numbers are aligned to the right."""
    if title:
        say(styled(title, "italic"))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column, name in enumerate(header):
        numeric = bool(rows) and all(_is_number(row[column]) for row in rows)
        grid.add_column(as_text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(as_text, row))
    console.print(grid)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float)) or str(cell)[:1] in "+-0123456789"


def plain(value: Any) -> Any:
    """Return data with None in place of numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return KEY=VALUE words as a mapping; values are read as YAML, so numbers are numbers.

    Raises:
        ConfigurationError: A word has no key or no value.
    """
    parsed = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigurationError(
                f"--set: expected KEY=VALUE such as training.lr=0.01, got {setting!r}"
            )
        parsed[key.strip()] = safe_yaml.parsed(value, f"--set {key}: {quoted(value)}")
    return parsed


def plan(experiment: Experiment, federation: Federation) -> None:
    """Print the resolved experiment and a summary of what it would do."""
    from equipoise.data.roster import roster_of
    from equipoise.engine.evaluation import check_main
    from equipoise.experiment.build import prepare, try_precision

    roster = roster_of(federation)
    experiment = experiment.with_model(federation.task.shape)
    try_precision(experiment)
    bench, _ = prepare(experiment, roster.task, roster.ids)
    check_main(experiment.evaluation, roster)
    print(safe_yaml.dumped(experiment.model_dump(mode="json")), end="")
    sizes = list(roster.sizes["train"].values())
    evaluation = experiment.evaluation
    metrics = measured(roster.task, evaluation.metrics, evaluation.main)
    networks = ", ".join(
        f"{name} {bench.initial(name).count():,} parameters" for name in bench.architectures
    )
    clients = counted(len(roster.ids), "client")
    rounds = counted(experiment.rounds, "round")
    say(
        styled("plan", "bold"),
        f": {clients} with {min(sizes)} to {max(sizes)} training samples "
        f"({sum(sizes)} in all), {experiment.participation.size(len(roster.ids))} in each of "
        f"{rounds}; {networks}; measured: {', '.join(metrics)}; main metric: "
        f"{main_of(metrics, evaluation.main)}",
    )
    in_process = (
        experiment.workers == 0 or experiment.why_not_remote is not None or os.name != "posix"
    )
    if in_process and not can_interrupt():
        say(styled("note", "bold"), f": {UNKEPT}")


def remove_run(folder: Path) -> None:
    """Remove a run.

    Raises:
        RunError: The folder holds no run, or one that is in progress.
    """
    if not folder.exists():
        return
    if not (folder / DATABASE).exists():
        raise RunError(
            f"--overwrite: {folder} exists but is not a run; remove it yourself or choose another "
            "--out"
        )
    Store(folder, writing=True).close()  # refuses a run that is in progress
    shutil.rmtree(folder)
