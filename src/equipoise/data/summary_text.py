"""How data were understood, in a few lines of text: what a run started from Python prints before it trains."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.data.check import DataReport

SHOWN_SITES = 12


def in_words(found: DataReport) -> list[str]:
    """The sites with their rows, what becomes of the columns, and every warning; `equipoise data check` shows all of it as tables."""
    rows = sum(site.rows for site in found.sites)
    label = (
        f", label {found.label}{' (guessed from its name)' if found.guessed else ''}"
        if found.label
        else ""
    )
    shape = f", images of {'x'.join(map(str, found.schema.shape))}" if found.schema.shape else ""
    names = [f"{site.name} ({site.rows})" for site in found.sites]
    lines = [f"{found.name}: {rows} rows, {found.task}{label}{shape}"]
    if len(names) > 1:
        lines.append(f"sites (rows): {_some(names)}")
    for how in dict.fromkeys(column.becomes for column in found.columns):
        lines.append(
            f"{_some([column.name for column in found.columns if column.becomes == how])}: {how}"
        )
    if found.schema.shape is not None:  # of image files, how their folders were understood
        lines += [f"read as {layout}" for layout in found.files.values()]
    return [*lines, *remarks(found)]


def remarks(found: DataReport) -> list[str]:
    """Return the warnings and findings, one line each; a note needs no decision of a person.

    Findings that are among the reasons for a refusal are left to it.
    """
    lines = [f"warning: {warning}" for warning in found.warnings]
    for finding in found.findings:
        if finding.message in found.problems:
            continue
        kind = "note" if finding.certain else "warning"
        lines.append(f"{kind}: {finding.message}")
    return lines


def model_in_words(model: str, shape: tuple[int, ...]) -> str:
    """
    >>> model_in_words("cnn", (1, 28, 28))
    'model: cnn, the default for images of 1x28x28; --model (in Python model=) chooses another, `equipoise models` lists them'
    """
    return (
        f"model: {model}, the default for images of {'x'.join(map(str, shape))}; --model (in Python model=) chooses another, "
        "`equipoise models` lists them"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_SITES]) + (
        f" and {len(names) - SHOWN_SITES} more" if len(names) > SHOWN_SITES else ""
    )
