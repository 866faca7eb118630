"""A report on data as a few lines of text, as a run started from Python prints it."""

from __future__ import annotations

from equipoise.data.check import DataReport
from equipoise.data.message_text import some

_SHOWN_NAMES = 12


def summary_lines(report: DataReport) -> list[str]:
    """Return rows, sites, the inputs that columns become, and every warning of a report.

    `equipoise data check` shows the whole report as tables.
    """
    rows = sum(site.rows for site in report.sites)
    label = label_text(report, "guessed from its name")
    lines = [f"{report.name}: {rows} rows, {report.task}{label}{shape_text(report)}"]
    if len(report.sites) > 1:
        names = [f"{site.name} ({site.rows})" for site in report.sites]
        lines.append(f"sites (rows): {some(names, _SHOWN_NAMES)}")
    columns: dict[str, list[str]] = {}
    for column in report.columns:
        columns.setdefault(column.becomes, []).append(column.name)
    lines += [f"{some(names, _SHOWN_NAMES)}: {becomes}" for becomes, names in columns.items()]
    if report.schema.shape is not None:  # of image files, the layout of their folders
        lines += [f"read as {layout}" for layout in report.files.values()]
    return [*lines, *warning_lines(report)]


def label_text(report: DataReport, remark_if_guessed: str) -> str:
    """Return the label column as a part of a sentence; empty if there is none."""
    if not report.label:
        return ""
    remark = f" ({remark_if_guessed})" if report.guessed else ""
    return f", label {report.label}{remark}"


def shape_text(report: DataReport) -> str:
    """Return the shape of images as a part of a sentence; empty for other data."""
    shape = report.schema.shape
    if shape is None or len(shape) != 3:
        return ""
    return f", images of {'x'.join(map(str, shape))}"


def warning_lines(report: DataReport) -> list[str]:
    """Return the warnings and findings, one line each; a note needs no decision of a person.

    Findings that are among the reasons for a refusal are part of the error instead.
    """
    lines = [f"warning: {warning}" for warning in report.warnings]
    for finding in report.findings:
        if finding.message in report.problems:
            continue
        kind = "note" if finding.certain else "warning"
        lines.append(f"{kind}: {finding.message}")
    return lines


def default_model_text(model: str, shape: tuple[int, ...]) -> str:
    """Return a line about the model that is the default for images.

    >>> default_model_text("cnn", (1, 28, 28)).partition(";")[0]
    'model: cnn, the default for images of 1x28x28'
    """
    return (
        f"model: {model}, the default for images of {'x'.join(map(str, shape))}; "
        "--model (in Python model=) chooses another, `equipoise models` lists them"
    )
