"""Reading the options of `equipoise compare`, and printing its plan, progress and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from equipoise.cli import output
from equipoise.cli.data import before_training, method_advice
from equipoise.comparison import formats
from equipoise.comparison.executor import Progress as ComparisonProgress
from equipoise.comparison.measures import is_of_group, measures
from equipoise.comparison.plan import Cell, Refusal
from equipoise.comparison.table import Comparison
from equipoise.data.message_text import counted
from equipoise.experiment import ConfigurationError
from equipoise.metrics.registry import find
from equipoise.runs.baseline import ALONE
from equipoise.validation import safe_yaml
from equipoise.validation.names import nearest, quoted
from equipoise.validation.text import shown

MOST_SEEDS = 1000
SHOWN_CLIENTS = 20


def parse_seeds(text: str) -> list[int]:
    """Return seeds given as numbers and ranges.

    Raises:
        ConfigurationError: A word is neither a number nor a range of at most 1,000 seeds.

    >>> parse_seeds("1-3,7")
    [1, 2, 3, 7]
    """
    seeds: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not dash:
            last = first
        valid = first.isdecimal() and last.isdecimal()
        if not valid or not int(first) <= int(last) < int(first) + MOST_SEEDS:
            raise ConfigurationError(
                f"--seeds: expected numbers and ranges such as 1,2,3 or 1-5, got {text!r}"
            )
        seeds += range(int(first), int(last) + 1)
    return seeds


def words(text: str | None) -> list[str]:
    """Return names that are separated by commas.

    >>> words("fedavg, fedprox,")
    ['fedavg', 'fedprox']
    """
    names = [name.strip() for name in (text or "").split(",")]
    return [name for name in names if name]


def parse_columns(text: str | None, output_format: str) -> list[str]:
    """Return the names of the measures of a printed table, checked before any run starts.

    Raises:
        ConfigurationError: The format takes no columns.
        ValueError: A name is no measure.

    >>> parse_columns("average, worst", "latex")
    ['average', 'worst']
    """
    columns = words(text)
    if columns and output_format not in ("latex", "markdown"):
        raise ConfigurationError(
            "--columns: chooses what --format latex or markdown prints, got --format "
            f"{output_format}; leave out one of them"
        )
    known = measures(find("accuracy"))
    for name in columns:
        if name not in known and not is_of_group(name):
            raise nearest("column", name, list(known))
    return columns


def ask_about_seeds(text: str) -> None:
    """Print a question if a single number may have been meant as the number of seeds."""
    word = text.strip()
    if word.isdecimal() and 1 < int(word) <= MOST_SEEDS:
        print(f"--seeds {word} is one seed; did you mean 1-{word}?", file=sys.stderr)


def also_finished(methods: Sequence[Any], finish: str) -> list[Any]:
    """Return the methods, and each once more with the final phase of another one.

    Training alone has no final phase.

    >>> also_finished(["standalone", "fedavg", {"name": "kdia", "lambda_kd": 0.1}], "poise")[3:]
    [{'name': 'fedavg', 'finish': 'poise'}, {'name': 'kdia', 'lambda_kd': 0.1, 'finish': 'poise'}]
    """
    finished = []
    for method in methods:
        spec = {"name": method} if isinstance(method, str) else dict(method)
        if spec.get("name") != ALONE:
            finished.append({**spec, "finish": finish})
    return [*methods, *finished]


def show_data_report(missing: Sequence[Cell]) -> None:
    """Print how the data are understood, and advice about methods, once for all runs.

    Data that cannot be read are a failure of each run, which is reported there.
    """
    if missing and missing[0].experiment.dataset is None:
        with suppress(ValueError, OSError):
            before_training(missing[0].experiment)
    # Runs are other processes, whose warnings are not shown.
    method_advice(cell.experiment for cell in missing)


def parse_grid(options: Sequence[str], flag: str = "--grid") -> dict[str, list[Any]]:
    """Return KEY=VALUE,VALUE words as a mapping; values are read as YAML.

    Raises:
        ConfigurationError: A word has no key or no value.

    >>> parse_grid(["method.mu=0.01,0.1"])
    {'method.mu': [0.01, 0.1]}
    """
    grid = {}
    for option in options:
        key, equals, values = option.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigurationError(
                f"{flag}: expected KEY=VALUE,VALUE such as method.mu=0.01,0.1, got {option!r}"
            )
        grid[key.strip()] = safe_yaml.parsed(f"[{values}]", f"{flag} {key}: {quoted(values)}")
    return grid


def show_plan(cells: Sequence[Cell], refusals: Sequence[Refusal] = ()) -> None:
    """Print the runs of a comparison, and the methods that refuse their settings."""
    rows = []
    for cell in cells:
        setting = ", ".join(f"{key}={value}" for key, value in (*cell.setting, *cell.overrides))
        rows.append([cell.label, cell.partition, cell.seed, setting, cell.name])
    output.table(["method", "partition", "seed", "setting", "folder"], rows)
    rounds = counted(cells[0].experiment.rounds, "round")
    # Two rows may show one run.
    runs = len({cell.name for cell in cells})
    output.say(output.styled("plan", "bold"), f": {counted(runs, 'run')} of {rounds}")
    for refusal in refusals:
        output.say(output.styled("refused", "red"), f" {refusal.method}: {refusal.reason}")


@contextmanager
def progress(quiet: bool) -> Iterator[ComparisonProgress]:
    """Show the progress of a comparison: bars in a terminal, else one line per run."""
    screen = Console(stderr=True)
    if quiet:
        yield ComparisonProgress()
    elif screen.is_terminal:
        with _Bars(screen) as bars:
            yield ComparisonProgress(bars.on_plan, bars.on_round, bars.on_end)
    else:
        yield ComparisonProgress(on_plan=_print_plan, on_end=_print_end)


class _Bars:
    """One bar for all rounds, and one for every run in progress."""

    def __init__(self, screen: Console) -> None:
        self.screen = screen
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=screen,
        )
        self.total = self.bars.add_task("all runs", total=0)
        self.tasks: dict[str, Any] = {}  # name of a run -> its bar

    def __enter__(self) -> _Bars:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def on_plan(self, missing: Sequence[Cell], finished: int) -> None:
        show_data_report(missing)
        self.bars.update(self.total, total=sum(cell.experiment.rounds for cell in missing))
        if finished:
            line = f"{counted(finished, 'run')} already finished, {len(missing)} to do"
            self.screen.print(line, highlight=False)

    def on_round(self, cell: Cell, number: int) -> None:
        if cell.name not in self.tasks:
            rounds = cell.experiment.rounds
            self.tasks[cell.name] = self.bars.add_task(_title(cell), total=rounds)
        self.bars.update(self.tasks[cell.name], completed=number)
        completed = sum(task.completed for task in self.bars.tasks if task.id != self.total)
        self.bars.update(self.total, completed=completed)

    def on_end(self, cell: Cell, failure: str | None) -> None:
        if cell.name in self.tasks:
            self.bars.update(self.tasks[cell.name], visible=False)
        if failure is not None:
            line = Text.assemble(("failed", "red"), f" {shown(_title(cell))}: {shown(failure)}")
            self.screen.print(line, highlight=False)


def _print_plan(missing: Sequence[Cell], finished: int) -> None:
    show_data_report(missing)
    print(f"{counted(len(missing), 'run')} to do, {finished} already finished", file=sys.stderr)


def _print_end(cell: Cell, failure: str | None) -> None:
    outcome = "done" if failure is None else f"failed: {failure}"
    print(shown(f"{_title(cell)}: {outcome}"), file=sys.stderr)


def _title(cell: Cell) -> str:
    setting = "".join(f" {key.removeprefix('method.')}={value}" for key, value in cell.setting)
    return f"{cell.label}{setting}, {cell.partition}, seed {cell.seed}"


def show(comparison: Comparison) -> None:
    """Print the tables of a comparison, which clients gain and lose, and where it is saved."""
    for partition in comparison.partitions:
        header, rows = formats.grid_of(comparison, partition, _mark)
        output.say(output.styled(partition, "bold"))
        wide_table(header, rows)
    output.say(output.styled("best", "bold"), ", ", output.styled("second best", "underline"))
    for line in formats.explanation(comparison):
        output.say(line)
    if comparison.entries:
        _show_clients(comparison)
    output.say(
        "saved in ",
        output.styled(str(comparison.folder), "bold"),
        ": table.md, table.tex, table.csv, comparison.json; equipoise report "
        f"{comparison.folder} makes a page of it",
        wrap=False,
    )


def _show_clients(comparison: Comparison) -> None:
    partition = comparison.partitions[0]
    seed = comparison.seeds[0]
    header, rows = formats.clients_grid(comparison, partition, seed)
    if not rows:
        return
    output.console.print()
    output.say(
        output.styled("who gains, who loses", "bold"),
        f" against training alone ({partition}, seed {seed}; most harmed first)",
    )
    *clients, losers = rows
    coloured = [[*row[:2], *map(_coloured, row[2:])] for row in clients[:SHOWN_CLIENTS]]
    wide_table(header, [*coloured, losers])
    output.say(formats.about_changes(comparison))
    if len(clients) > SHOWN_CLIENTS:
        hidden = len(clients) - SHOWN_CLIENTS
        output.say(f"... and {hidden} more clients in comparison.json")


def _coloured(change: str) -> str:
    colours = {"-": "red", "+": "green"}
    return output.styled(change, colours.get(change[:1], ""))


def _mark(text: str, position: int | None) -> str:
    styles = {1: "bold", 2: "underline"}
    return output.styled(text, styles.get(position or 0, ""))


def wide_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; a terminal that is too narrow shows it in several parts.

    Every part repeats the first column.
    """
    for columns in _parts(header, rows, output.console.width):
        grid = Table(box=None, pad_edge=False, header_style="bold")
        grid.add_column(output.as_text(header[0]))
        for column in columns:
            grid.add_column(output.as_text(header[column]), justify="right", no_wrap=True)
        for row in rows:
            grid.add_row(*(output.as_text(row[column]) for column in (0, *columns)))
        output.console.print(grid)


def _parts(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Return the columns of each part of a table, the first column left out."""
    widths = []
    for column in range(len(header)):
        cells = [output.as_text(line[column]).cell_len for line in [header, *rows]]
        widths.append(max(cells) + 2)
    parts: list[list[int]] = [[]]
    used = widths[0]
    for column in range(1, len(header)):
        if parts[-1] and used + widths[column] > width:
            parts.append([])
            used = widths[0]
        parts[-1].append(column)
        used += widths[column]
    return parts
