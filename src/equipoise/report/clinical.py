"""For clinical readers: ROC and calibration curves of each site, and what a threshold would give; all from counts of scores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from equipoise.metrics import score_histograms
from equipoise.report import drawing
from equipoise.runs import Run
from equipoise.runs.clinical import (
    TITLES,
    ClinicalValue,
    classes_of,
    clinical,
    notes,
    of_clients,
    silent,
    thresholds,
    unequal,
)

MOST_CLASSES = 5  # that have curves of their own on a page
MOST_SITES = 12  # lines that can be told apart; of more the page shows all together
Drawn = tuple[str, str, Any]  # title, text, what draws it


def curves_of(run: Run) -> dict[str, Drawn]:
    """Name -> title, text and figure: ROC and calibration curve of every served model and class, site by site."""
    found: dict[str, Drawn] = {}
    for model in run.models():
        tables = run.counts(model)
        if (
            not tables
            or (run.task.outputs > 2 and not unequal(tables))
            or run.task.outputs > MOST_CLASSES
        ):
            continue
        lines = (
            tables
            if len(tables) <= MOST_SITES
            else {"all clients together": score_histograms.pooled(list(tables.values()))}
        )
        for of, name in classes_of(run):
            parts = [
                *([] if model == run.main_model else [model]),
                *([] if run.task.outputs == 2 else [str(of)]),
            ]
            # what follows a - in a figure's name is its method
            end = "".join(f"_{part.replace('-', '_')}" for part in parts)
            what = f"{name} against {'the other class' if run.task.outputs == 2 else 'the rest'}, {model} model"
            exact = of_clients(run, model) if run.task.outputs == 2 else {}
            areas = ", ".join(
                f"{site} {_area(table, of, exact.get(site))}" for site, table in lines.items()
            )
            found[f"roc{end}"] = (
                f"ROC: {what}",
                f"AUROC in %: {areas}. {_who(run, tables)}",
                partial(roc, lines, of),
            )
            text = f"On the line, of all samples with a score of 30 %, say, 30 % are {name}. Sizes of points show how many samples they are of."
            found[f"calibration{end}"] = (
                f"Calibration: {what}",
                text,
                partial(calibration, lines, of),
            )
    return found


def tables_of(run: Run) -> list[dict[str, Any]]:
    """Tables for the page: measures with intervals where classes are unequal, and thresholds."""
    found = []
    measured = clinical(run)
    if measured:
        rows = [
            [client, *(one.in_percent() for one in own.values())]
            for client, own in measured.items()
        ]
        few = silent(run.clients, measured) if run.main_split == "test" else ""
        title = "; ".join(
            [
                "Beside accuracy: in %, with 95 % intervals over other test sets like it",
                *notes(measured),
                *([few] if few else []),
            ]
        )
        found.append(_table(title, ["client", *TITLES.values()], rows))
    tables = run.counts()
    if tables and run.task.outputs == 2:
        (of, name), *_ = classes_of(run)
        whole = score_histograms.pooled(list(tables.values()))
        rows = [
            [
                f"{one['threshold']} %",
                *(_percent(one[key]) for key in ("sensitivity", "specificity", "ppv", "npv")),
            ]
            for one in thresholds(whole, of)
        ]
        title = f"Thresholds: calling a sample {name} from a score on; all clients that sent counts together, {score_histograms.total(whole):,} test samples"
        found.append(
            _table(
                title,
                ["threshold", "sensitivity in %", "specificity in %", "PPV in %", "NPV in %"],
                rows,
            )
        )
    return found


def roc(lines: Mapping[str, score_histograms.Counts], of: int) -> Figure:
    figure, axes = drawing.new()
    for place, (site, table) in enumerate(lines.items()):
        x, y = score_histograms.roc(
            table[of, score_histograms.POSITIVES], table[of, score_histograms.NEGATIVES]
        )
        style = ("-", "--", "-.", ":")[place % 4]
        axes.plot(
            100 * x,
            100 * y,
            style,
            color=drawing.COLOURS[place % len(drawing.COLOURS)],
            linewidth=1.6,
            label=drawing.in_legend(drawing.short(site)),
        )
    axes.plot([0, 100], [0, 100], color=drawing.ALONE, linewidth=0.8)
    axes.set(
        xlabel="100 - specificity in %", ylabel="sensitivity in %", xlim=(-1, 101), ylim=(-1, 101)
    )
    axes.legend(loc="lower right")
    return figure


def calibration(lines: Mapping[str, score_histograms.Counts], of: int) -> Figure:
    figure, axes = drawing.new()
    most = max(
        n
        for table in lines.values()
        for _, _, n in score_histograms.calibration(table[of, 0], table[of, 1])
    )
    for place, (site, table) in enumerate(lines.items()):
        score, share, sizes = np.array(
            score_histograms.calibration(
                table[of, score_histograms.POSITIVES], table[of, score_histograms.NEGATIVES]
            )
        ).T
        colour, marker = (
            drawing.COLOURS[place % len(drawing.COLOURS)],
            drawing.MARKERS[place % len(drawing.MARKERS)],
        )
        axes.plot(100 * score, 100 * share, color=colour, linewidth=1, alpha=0.8)
        axes.scatter(
            100 * score,
            100 * share,
            s=6 + 60 * sizes / most,
            color=colour,
            marker=marker,
            linewidths=0,
            label=drawing.in_legend(drawing.short(site)),
        )
    axes.plot([0, 100], [0, 100], color=drawing.ALONE, linewidth=0.8)
    axes.set(
        xlabel="score in %", ylabel="share that has the class in %", xlim=(-1, 101), ylim=(-1, 101)
    )
    axes.legend(loc="upper left")
    return figure


def _who(run: Run, tables: Mapping[str, score_histograms.Counts]) -> str:
    few = silent(run.clients, tables) if run.main_split == "test" else ""
    return "Curves come from counts of scores; no single score left a client." + (
        f" {few}." if few else ""
    )


def _table(title: str, header: list[str], rows: list[list[str]]) -> dict[str, Any]:
    return {"title": title, "header": header, "rows": rows, "clients_header": [], "clients": []}


def _area(
    table: score_histograms.Counts, of: int, known: Mapping[str, ClinicalValue] | None
) -> str:
    """Return the AUROC in %, exact if the client sent it, else that of the histogram with its resolution."""
    if known is not None:
        one = known["auroc"]
        return ClinicalValue(one.value, resolution=one.resolution).in_percent()
    pair = table[[1 - of, of]] if len(table) == 2 else np.stack([table[of], table[of]])
    value = score_histograms.measures(pair)["auroc"]
    return ClinicalValue(value, resolution=score_histograms.resolution(pair)["auroc"]).in_percent()


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.1f}"
