"""What `equipoise compare` reads and prints: seeds and grids, progress, the tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from equipoise.cli import output
from equipoise.comparison import formats
from equipoise.comparison.children import Progress as Watching
from equipoise.comparison.plan import Cell
from equipoise.comparison.table import Comparison
from equipoise.experiment import ConfigurationError

MOST_SEEDS = 1000


def parse_seeds(text: str) -> list[int]:
    """Seeds as numbers and ranges.

    >>> parse_seeds("1-3,7")
    [1, 2, 3, 7]
    """
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and not int(first) <= int(last) < int(first) + MOST_SEEDS):
            raise ConfigurationError(f"--seeds: expected numbers and ranges such as 1,2,3 or 1-5, got {text!r}")
        found += range(int(first), int(last or first) + 1)
    return found


def parse_grid(words: Sequence[str]) -> dict[str, list[Any]]:
    """KEY=VALUE,VALUE words as a mapping; values are read as YAML.

    >>> parse_grid(["method.mu=0.01,0.1"])
    {'method.mu': [0.01, 0.1]}
    """
    found = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigurationError(f"--grid: expected KEY=VALUE,VALUE such as method.mu=0.01,0.1, got {word!r}")
        found[key.strip()] = yaml.safe_load(f"[{values}]")
    return found


def show_plan(cells: Sequence[Cell]) -> None:
    rows = [[cell.label, cell.partition, cell.seed, ", ".join(f"{k}={v}" for k, v in cell.setting), cell.name] for cell in cells]
    output.table(["method", "partition", "seed", "setting", "folder"], rows)
    output.console.print(f"[bold]plan[/]: {len(cells)} runs of {cells[0].experiment.rounds} rounds", highlight=False)


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
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=screen) as bars:
        whole = bars.add_task("all runs", total=None)
        going: dict[str, Any] = {}

        def on_plan(missing: Sequence[Cell], finished: int) -> None:
            bars.update(whole, total=sum(cell.experiment.rounds for cell in missing))
            if finished:
                screen.print(f"{finished} runs are finished already, {len(missing)} to do", highlight=False)

        def on_round(cell: Cell, number: int) -> None:
            if cell.name not in going:
                going[cell.name] = bars.add_task(_title(cell), total=cell.experiment.rounds)
            bars.update(going[cell.name], completed=number)
            bars.update(whole, completed=sum(task.completed for task in bars.tasks if task.id != whole))

        def on_end(cell: Cell, failure: str | None) -> None:
            if cell.name in going:
                bars.update(going[cell.name], visible=False)
            if failure is not None:
                screen.print(f"[red]failed[/] {_title(cell)}: {failure}", highlight=False)

        yield Watching(on_plan, on_round, on_end)


def _lines() -> Watching:
    def on_plan(missing: Sequence[Cell], finished: int) -> None:
        print(f"{len(missing)} runs to do, {finished} finished already", file=sys.stderr)

    def on_end(cell: Cell, failure: str | None) -> None:
        print(f"{_title(cell)}: {'done' if failure is None else f'failed: {failure}'}", file=sys.stderr)

    return Watching(on_plan=on_plan, on_end=on_end)


def _title(cell: Cell) -> str:
    setting = "".join(f" {key.removeprefix('method.')}={value}" for key, value in cell.setting)
    return f"{cell.label}{setting}, {cell.partition}, seed {cell.seed}"


def show(result: Comparison, shown_clients: int) -> None:
    """The tables, what they mean, who gained and who lost, and where it is saved."""
    for partition in result.partitions:
        header, rows = formats.grid_of(result, partition, _mark)
        output.console.print(f"[bold]{partition}[/]", highlight=False)
        _wide_table(header, rows)
    output.console.print("[bold]best[/], [underline]second best[/]")
    for line in formats.explanation(result):
        output.console.print(line, highlight=False, markup=False)
    if result.entries:
        _show_clients(result, shown_clients)
    output.console.print(f"saved in [bold]{result.folder}[/]: table.md, table.tex, table.csv, comparison.json; "
                         f"equipoise report {result.folder} makes a page of it", highlight=False, soft_wrap=True)  # fmt: skip


def _show_clients(result: Comparison, limit: int) -> None:
    partition, seed = result.partitions[0], result.seeds[0]
    header, rows = formats.clients_grid(result, partition, seed)
    if not rows:
        return
    output.console.print(
        f"\n[bold]who gains, who loses[/] against training alone ({partition}, seed {seed}; most harmed first)", highlight=False
    )
    *clients, losers = rows
    _wide_table(header, [*([*row[:2], *map(_coloured, row[2:])] for row in clients[:limit]), losers])
    if len(clients) > limit:
        output.console.print(f"... and {len(clients) - limit} more clients in comparison.json", highlight=False)


def _coloured(change: str) -> str:
    return f"[red]{change}[/]" if change.startswith("-") else f"[green]{change}[/]" if change.startswith("+") else change


def _mark(text: str, place: int | None) -> str:
    return f"[bold]{text}[/]" if place == 1 else f"[underline]{text}[/]" if place == 2 else text


def _wide_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, broken into several under each other where the terminal is too narrow; the first column is repeated."""
    from rich.text import Text

    widths = [max(Text.from_markup(str(line[place])).cell_len for line in [header, *rows]) + 2 for place in range(len(header))]
    blocks: list[list[int]] = [[]]
    for place in range(1, len(header)):
        if blocks[-1] and widths[0] + sum(widths[p] for p in blocks[-1]) + widths[place] > output.console.width:
            blocks.append([])
        blocks[-1].append(place)
    for block in blocks:
        grid = Table(box=None, pad_edge=False, header_style="bold")
        grid.add_column(header[0])
        for place in block:
            grid.add_column(header[place], justify="right", no_wrap=True)
        for row in rows:
            grid.add_row(str(row[0]), *(str(row[place]) for place in block))
        output.console.print(grid)
