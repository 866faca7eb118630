"""What `equipoise compare` reads and prints: seeds and grids, progress, the tables."""

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
from equipoise.comparison.executor import Progress as Watching
from equipoise.comparison.measures import measures
from equipoise.comparison.plan import Cell
from equipoise.comparison.table import Comparison
from equipoise.experiment import ConfigurationError
from equipoise.metrics.registry import find
from equipoise.runs.reference import ALONE
from equipoise.validation import safe_yaml
from equipoise.validation.names import nearest, quoted
from equipoise.validation.text import shown

MOST_SEEDS = 1000


def parse_seeds(text: str) -> list[int]:
    """Seeds as numbers and ranges.

    >>> parse_seeds("1-3,7")
    [1, 2, 3, 7]
    """
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if (
            not first.isdigit()
            or (dash and not last.isdigit())
            or (dash and not int(first) <= int(last) < int(first) + MOST_SEEDS)
        ):
            raise ConfigurationError(
                f"--seeds: expected numbers and ranges such as 1,2,3 or 1-5, got {text!r}"
            )
        found += range(int(first), int(last or first) + 1)
    return found


def words(text: str | None) -> list[str]:
    """Names separated by commas.

    >>> words("fedavg, fedprox,")
    ['fedavg', 'fedprox']
    """
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_columns(text: str | None, output_format: str) -> list[str]:
    """Names of measures for a printed table, checked before any run starts.

    >>> parse_columns("average, worst", "latex")
    ['average', 'worst']
    """
    columns = words(text)
    if columns and output_format not in ("latex", "markdown"):
        raise ConfigurationError(
            f"--columns: chooses what --format latex or markdown prints, got --format {output_format}; leave out one of them"
        )
    known = measures(find("accuracy"))
    for name in columns:
        if name not in known:
            raise nearest("column", name, list(known))
    return columns


def ask_about_seeds(text: str) -> None:
    """One number may have been meant as how many."""
    word = text.strip()
    if word.isdigit() and 1 < int(word) <= MOST_SEEDS:
        print(f"seed {word} only; did you mean 1-{word}?", file=sys.stderr)


def also_finished(methods: Sequence[Any], finish: str) -> list[Any]:
    """The methods, and each once more with another one's end; training alone has nothing to end with.

    >>> also_finished(["standalone", "fedavg", {"name": "kdia", "lambda_kd": 0.1}], "poise")[3:]
    [{'name': 'fedavg', 'finish': 'poise'}, {'name': 'kdia', 'lambda_kd': 0.1, 'finish': 'poise'}]
    """
    specs = [{"name": method} if isinstance(method, str) else dict(method) for method in methods]
    return [*methods, *({**spec, "finish": finish} for spec in specs if spec.get("name") != ALONE)]


def understood(missing: Sequence[Cell]) -> None:
    """How the user's own data are understood, once for all runs; data that cannot be read are a failure of each run."""
    if missing and missing[0].experiment.dataset is None:
        with suppress(ValueError, OSError):
            before_training(missing[0].experiment)
    # the runs themselves are other processes, whose warnings are not shown
    method_advice(cell.experiment for cell in missing)


def parse_grid(words: Sequence[str]) -> dict[str, list[Any]]:
    """KEY=VALUE,VALUE words as a mapping; values are read as YAML.

    >>> parse_grid(["method.mu=0.01,0.1"])
    {'method.mu': [0.01, 0.1]}
    """
    found = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigurationError(
                f"--grid: expected KEY=VALUE,VALUE such as method.mu=0.01,0.1, got {word!r}"
            )
        found[key.strip()] = safe_yaml.parsed(f"[{values}]", f"--grid {key}: {quoted(values)}")
    return found


def show_plan(cells: Sequence[Cell]) -> None:
    rows = [
        [
            cell.label,
            cell.partition,
            cell.seed,
            ", ".join(f"{k}={v}" for k, v in cell.setting),
            cell.name,
        ]
        for cell in cells
    ]
    output.table(["method", "partition", "seed", "setting", "folder"], rows)
    output.say(
        output.styled("plan", "bold"), f": {len(cells)} runs of {cells[0].experiment.rounds} rounds"
    )


@contextmanager
def progress(quiet: bool) -> Iterator[Watching]:
    """Rounds done of all runs, and the runs at work; plain lines where there is no terminal."""
    screen = Console(stderr=True)
    if quiet:
        yield Watching()
        return
    if not screen.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=screen) as bars:
        whole = bars.add_task("all runs", total=0)
        going: dict[str, Any] = {}

        def on_plan(missing: Sequence[Cell], finished: int) -> None:
            understood(missing)
            bars.update(whole, total=sum(cell.experiment.rounds for cell in missing))
            if finished:
                screen.print(
                    f"{finished} runs are finished already, {len(missing)} to do", highlight=False
                )

        def on_round(cell: Cell, number: int) -> None:
            if cell.name not in going:
                going[cell.name] = bars.add_task(_title(cell), total=cell.experiment.rounds)
            bars.update(going[cell.name], completed=number)
            bars.update(
                whole, completed=sum(task.completed for task in bars.tasks if task.id != whole)
            )

        def on_end(cell: Cell, failure: str | None) -> None:
            if cell.name in going:
                bars.update(going[cell.name], visible=False)
            if failure is not None:
                screen.print(
                    Text.assemble(("failed", "red"), f" {shown(_title(cell))}: {shown(failure)}"),
                    highlight=False,
                )

        yield Watching(on_plan, on_round, on_end)


def _lines() -> Watching:
    def on_plan(missing: Sequence[Cell], finished: int) -> None:
        understood(missing)
        print(f"{len(missing)} runs to do, {finished} finished already", file=sys.stderr)

    def on_end(cell: Cell, failure: str | None) -> None:
        print(
            shown(f"{_title(cell)}: {'done' if failure is None else f'failed: {failure}'}"),
            file=sys.stderr,
        )

    return Watching(on_plan=on_plan, on_end=on_end)


def _title(cell: Cell) -> str:
    setting = "".join(f" {key.removeprefix('method.')}={value}" for key, value in cell.setting)
    return f"{cell.label}{setting}, {cell.partition}, seed {cell.seed}"


def show(result: Comparison, shown_clients: int) -> None:
    """The tables, what they mean, who gained and who lost, and where it is saved."""
    for partition in result.partitions:
        header, rows = formats.grid_of(result, partition, _mark)
        output.say(output.styled(partition, "bold"))
        _wide_table(header, rows)
    output.say(output.styled("best", "bold"), ", ", output.styled("second best", "underline"))
    for line in formats.explanation(result):
        output.say(line)
    if result.entries:
        _show_clients(result, shown_clients)
    end = f": table.md, table.tex, table.csv, comparison.json; equipoise report {result.folder} makes a page of it"
    output.say("saved in ", output.styled(str(result.folder), "bold"), end, wrap=False)


def _show_clients(result: Comparison, limit: int) -> None:
    partition, seed = result.partitions[0], result.seeds[0]
    header, rows = formats.clients_grid(result, partition, seed)
    if not rows:
        return
    output.console.print()
    output.say(
        output.styled("who gains, who loses", "bold"),
        f" against training alone ({partition}, seed {seed}; most harmed first)",
    )
    *clients, losers = rows
    _wide_table(
        header, [*([*row[:2], *map(_coloured, row[2:])] for row in clients[:limit]), losers]
    )
    output.say(formats.about_changes(result))
    if len(clients) > limit:
        output.say(f"... and {len(clients) - limit} more clients in comparison.json")


def _coloured(change: str) -> str:
    return output.styled(
        change, "red" if change.startswith("-") else "green" if change.startswith("+") else ""
    )


def _mark(text: str, position: int | None) -> str:
    return output.styled(text, "bold" if position == 1 else "underline" if position == 2 else "")


def _wide_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, broken into several under each other where the terminal is too narrow; the first column is repeated."""
    widths = [
        max(output.as_text(line[position]).cell_len for line in [header, *rows]) + 2
        for position in range(len(header))
    ]
    blocks: list[list[int]] = [[]]
    for position in range(1, len(header)):
        if (
            blocks[-1]
            and widths[0] + sum(widths[p] for p in blocks[-1]) + widths[position]
            > output.console.width
        ):
            blocks.append([])
        blocks[-1].append(position)
    for block in blocks:
        grid = Table(box=None, pad_edge=False, header_style="bold")
        grid.add_column(output.as_text(header[0]))
        for position in block:
            grid.add_column(output.as_text(header[position]), justify="right", no_wrap=True)
        for row in rows:
            grid.add_row(*(output.as_text(row[position]) for position in (0, *block)))
        output.console.print(grid)
