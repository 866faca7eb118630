"""Reports on data as tables and sentences on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.data.check import DataReport, SiteReport

MOST_CLASSES = 12  # columns of counts on a screen
PLAIN_WIDTH = 160  # columns of text where the output is no terminal
TARGET_STATISTICS = {
    "regression": ("mean", "lowest", "highest"),
    "survival": ("events", "median time", "longest time"),
}


def show_report(report: DataReport, stream: TextIO, most: int = 60) -> None:
    """Print a report on data.

    Args:
        report: The report.
        stream: The stream to print to.
        most: The most rows of a table.
    """
    from rich.console import Console

    from equipoise.cli.output import as_text
    from equipoise.data.summary_text import warning_lines

    width = None if stream.isatty() else PLAIN_WIDTH
    console = Console(file=stream, width=width, highlight=False)
    console.print(as_text(_headline(report)))
    _show_sites(report, console, most)
    if report.columns:
        rows = [
            [column.name, column.kind, column.gaps, column.becomes] for column in report.columns
        ]
        _show_table(console, ["column", "kind", "gaps", "becomes"], rows, most)
    if report.task == "regression":
        console.print("the target is standardised in training; errors are in its own unit")
    if report.task == "survival":
        console.print("times are divided by the longest training time; censored rows have event 0")
    for line in _file_lines(report):
        console.print(as_text(line))
    for line in warning_lines(report):
        console.print(as_text(line))
    if any(finding.repair for finding in report.findings):
        console.print("equipoise data check --save schema.yaml writes the proposed repairs")


def _headline(report: DataReport) -> str:
    from equipoise.data.message_text import plural
    from equipoise.data.summary_text import label_text, shape_text

    rows = sum(site.rows for site in report.sites)
    sites = f"{len(report.sites)} {plural('site', len(report.sites))}"
    label = label_text(report, "guessed from its name; --label chooses another")
    return f"{report.name}: {sites}, {rows} rows, {report.task}{label}{shape_text(report)}"


def _show_sites(report: DataReport, console: Console, most: int) -> None:
    """Print the rows of each site, with counts of classes or the range of the target."""
    classes = list(report.schema.classes)
    if not classes:
        classes = sorted({name for site in report.sites for name in site.classes})
    shown_classes = classes[:MOST_CLASSES]
    statistics = TARGET_STATISTICS.get(report.task, ())
    rows = [_site_row(site, shown_classes, statistics) for site in report.sites]
    header = ["site", "rows", "test rows", *shown_classes, *statistics]
    _show_table(console, header, rows, most)
    if len(classes) > MOST_CLASSES:
        console.print(f"... and {len(classes) - MOST_CLASSES} more classes")


def _site_row(site: SiteReport, classes: list[str], statistics: tuple[str, ...]) -> list[Any]:
    row: list[Any] = [site.name, site.rows, "" if site.test is None else site.test]
    row += [site.classes.get(name, 0) for name in classes]
    for name in statistics:
        row.append(f"{site.target[name]:.4g}" if name in site.target else "")
    return row


def _file_lines(report: DataReport) -> list[str]:
    """Return one line for each way in which files are written, with these files."""
    files: dict[str, list[str]] = {}
    for file, dialect in report.files.items():
        files.setdefault(dialect, []).append(file)
    return [f"read as {dialect}: {', '.join(names)}" for dialect, names in files.items()]


def _show_table(console: Console, header: list[str], rows: list[list[Any]], most: int) -> None:
    from rich.table import Table

    from equipoise.cli.output import as_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(as_text(name), overflow="fold")
    for row in rows[:most]:
        table.add_row(*map(as_text, row))
    console.print(table)
    if len(rows) > most:
        console.print(f"... and {len(rows) - most} more")
