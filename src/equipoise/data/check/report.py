"""The report of `equipoise data check`: sites, columns, files, warnings and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.data.findings import Finding
from equipoise.data.schema import Schema


@dataclass(frozen=True)
class SiteReport:
    """The rows of one site.

    Attributes:
        name: The site.
        rows: How many rows it has.
        test: How many of them a run would use for testing, if that is known.
        classes: Rows per class.
        target: In regression, the mean, lowest and highest number to predict. In survival analysis,
            the number of events, the median and the longest time.
    """

    name: str
    rows: int
    test: int | None
    classes: Mapping[str, int] = field(default_factory=dict)
    target: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ColumnReport:
    """One column of a table.

    Attributes:
        name: The column.
        kind: Its kind in the schema.
        gaps: How many cells are missing.
        becomes: The model inputs that it becomes.
    """

    name: str
    kind: str
    gaps: int
    becomes: str


@dataclass(frozen=True)
class DataReport:
    """Everything that `equipoise data check` shows, and `run` before it trains.

    Attributes:
        name: The data set.
        task: The kind of task.
        label: The label column of a table.
        guessed: True if the label column was recognised by its name.
        sites: The sites.
        columns: The columns of a table.
        files: Separator, encoding and decimal commas of each file; of images, the folder layout.
        warnings: Sentences that say what deserves attention, and what to do.
        schema: The schema of the data.
        findings: Observations on single columns and files, some with a repair.
        problems: Reasons why a run on these data would be refused.
    """

    name: str
    task: str
    label: str | None
    guessed: bool
    sites: tuple[SiteReport, ...]
    columns: tuple[ColumnReport, ...]
    files: Mapping[str, str]
    warnings: tuple[str, ...]
    schema: Schema
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
