"""The target of survival analysis in tables: columns of times and events as one column.

A target is the time of the event, or minus the time of censoring; see `task.Task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equipoise.data.findings import DataErrors
from equipoise.data.message_text import counted, some
from equipoise.data.tables.csv_files import numbers_if_all
from equipoise.data.tables.repairs import Table
from equipoise.data.tables.sites import MOST_COLUMNS, Origin, Sites
from equipoise.metrics.survival import signed_times
from equipoise.validation.names import did_you_mean, quoted

_SHOWN = 3  # rows that a message lists


def with_survival_target(sites: Sites, time: str, event: str) -> Sites:
    """Return the sites with one column, named like the times, in place of times and events.

    Args:
        sites: The tables of all sites.
        time: The column of times to event or censoring.
        event: The column that is 1 for an event and 0 for censoring.

    Returns:
        The sites; cells that are no times or events are among the problems.

    Raises:
        DataErrors: If a site lacks one of the columns, or both have one name.
    """
    if sites.arrays:
        return sites
    if time == event:
        raise DataErrors(
            [f"data.event: expected another column than the times, got {quoted(event)} for both"]
        )
    lacking = _lacking_columns(sites, time, event)
    if lacking:
        raise DataErrors([*sites.problems, *lacking])
    problems: list[str] = []
    tables: dict[str, Table] = {}
    for site, table in sites.tables.items():
        times = _numbers(table[time], time, sites.origins[site], problems)
        events = _numbers(table[event], event, sites.origins[site], problems)
        problems += _cell_problems(times, time, events, event, sites.origins[site])
        rest = {name: cells for name, cells in table.items() if name != event}
        # Gaps are among the problems already, and must not be reported as missing labels again.
        known = np.nan_to_num(np.abs(times))
        tables[site] = {**rest, time: signed_times(known, events != 0)}
    return replace(sites, tables=tables, problems=(*sites.problems, *problems))


def _lacking_columns(sites: Sites, time: str, event: str) -> list[str]:
    problems = []
    for site, table in sites.tables.items():
        for key, column in (("time", time), ("event", event)):
            if column not in table:
                problems.append(
                    f"site {quoted(site)} ({sites.files[site]}) lacks the column {quoted(column)} "
                    f"of survival; it has {some(table, MOST_COLUMNS)}"
                    f"{did_you_mean(column, table)}; name it as data.{key}"
                )
    return problems


def _numbers(cells: np.ndarray, column: str, origin: Origin, problems: list[str]) -> np.ndarray:
    """Return cells as numbers; a column of text becomes a problem, and zeros."""
    numbers = numbers_if_all(cells)
    if numbers.dtype.kind in "fiub":
        return numbers.astype(np.float64)
    row = next(row for row, cell in enumerate(cells) if not _is_number(str(cell)))
    problems.append(
        f"{origin.of_row(row)}, column {quoted(column)}: expected numbers, got text such as "
        f"{quoted(str(cells[row]))}; map cells under `values` in a schema"
    )
    return np.zeros(len(cells))


def _is_number(cell: str) -> bool:
    return numbers_if_all(np.array([cell], np.str_)).dtype.kind == "f"


def _cell_problems(
    times: np.ndarray, time: str, events: np.ndarray, event: str, origin: Origin
) -> list[str]:
    """Return a sentence for gaps, negative times, and events other than 0 and 1."""
    is_event = (events == 0) | (events == 1)
    faults = (
        (~np.isfinite(times), time, "a time in every row", "no time"),
        (times < 0, time, "times from 0 on", "a negative time"),
        (np.isnan(events), event, "1 (event) or 0 (censored) in every row", "no value"),
        (~is_event & ~np.isnan(events), event, "1 (event) or 0 (censored)", "another number"),
    )
    problems = []
    for is_wrong, column, expected, received in faults:
        rows = np.flatnonzero(is_wrong)
        if len(rows):
            problems.append(_sentence(rows, column, expected, received, origin))
    return problems


def _sentence(rows: np.ndarray, column: str, expected: str, received: str, origin: Origin) -> str:
    locations: Sequence[str] = [origin.of_row(int(row)) for row in rows[:_SHOWN]]
    verb = "has" if len(rows) == 1 else "have"
    return (
        f"column {quoted(column)}: expected {expected}, but {counted(len(rows), 'row')} {verb} "
        f"{received} ({'; '.join(locations)}); correct or remove them"
    )
