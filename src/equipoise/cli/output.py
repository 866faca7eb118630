"""What the commands print: plans, progress, tables."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise import methods
from equipoise.comparison.formats import figure
from equipoise.comparison.measures import in_unit_of
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.metrics.gains import SIGNIFICANT
from equipoise.metrics.registry import find, main_of, measured
from equipoise.runs import Run
from equipoise.runs.clinical import TITLES, ClinicalValue, notes, silent
from equipoise.runs.reference import reference_of
from equipoise.runs.summary import summarise
from equipoise.runtime.isolation import UNKEPT, can_interrupt
from equipoise.storage.store import DATABASE, RunError
from equipoise.validation import safe_yaml
from equipoise.validation.names import quoted
from equipoise.validation.text import shown

if TYPE_CHECKING:
    from equipoise.data import Federation

console = Console()
MOST_LISTED, AT_EACH_END = 50, 10  # clients of a run that a terminal shows
SHARES = (1, 10, 25, 50, 75, 90, 99)


class Styled(str):
    """A word of a table and how it looks; names of users come as plain words, in which rich is not to look for its markup."""

    style: str = ""


def styled(text: str, style: str) -> Styled:
    result = Styled(text)
    result.style = style
    return result


def as_text(cell: Any) -> Text:
    return Text(shown(cell), style=getattr(cell, "style", ""))


def say(*words: str, wrap: bool = True) -> None:
    """Print a line as it is: what is in it is never taken for markup."""
    console.print(Text.assemble(*map(as_text, words)), highlight=False, soft_wrap=not wrap)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    if title:
        say(styled(title, "italic"))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        numeric = bool(rows) and all(
            isinstance(row[place], (int, float)) or str(row[place])[:1] in "+-0123456789"
            for row in rows
        )
        grid.add_column(as_text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(as_text, row))
    console.print(grid)


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE words as a mapping; values are read as YAML, so numbers are numbers."""
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigurationError(
                f"--set: expected KEY=VALUE such as training.lr=0.01, got {setting!r}"
            )
        found[key.strip()] = safe_yaml.parsed(value, f"--set {key}: {quoted(value)}")
    return found


def plan(wanted: Experiment, federation: Federation) -> None:
    """Print the resolved experiment and what it would do."""
    from equipoise.data.roster import roster_of
    from equipoise.engine.evaluation import check_main
    from equipoise.experiment.build import prepare, try_precision

    roster, wanted = roster_of(federation), wanted.with_model(federation.task.shape)
    try_precision(wanted)
    bench, _ = prepare(wanted, roster.task, roster.ids)
    check_main(wanted.evaluation, federation)
    print(safe_yaml.dumped(wanted.model_dump(mode="json")), end="")
    sizes = list(roster.sizes["train"].values())
    parameters = {name: bench.initial(name).count() for name in bench.architectures}
    asked = wanted.participation.size(len(roster.ids))
    metrics = measured(roster.task, wanted.evaluation.metrics, wanted.evaluation.main)
    say(
        styled("plan", "bold"),
        f": {len(roster.ids)} clients with {min(sizes)} to {max(sizes)} training samples ({sum(sizes)} in all), {asked} asked in each of "
        f"{wanted.rounds} rounds; {', '.join(f'{name} {count:,} parameters' for name, count in parameters.items())}; "
        f"measured: {', '.join(metrics)}; main metric: {main_of(metrics, wanted.evaluation.main)}",
    )
    if not can_interrupt() and (
        wanted.workers == 0 or wanted.why_not_remote is not None or os.name != "posix"
    ):
        say(styled("note", "bold"), f": {UNKEPT}")


def remove_run(folder: Path) -> None:
    """Remove a run, and nothing that is not one."""
    if not folder.exists():
        return
    if not (folder / DATABASE).exists():
        raise RunError(
            f"--overwrite: {folder} exists but is not a run; remove it yourself or choose another --out"
        )
    from equipoise.storage.store import Store

    Store(folder, writing=True).close()  # refuses a run that is going on
    shutil.rmtree(folder)


def summary(run: Run) -> None:
    """What is printed at the end of a run."""
    show(summarise(run, reference_of(run)))
    say(
        "saved in ",
        styled(str(run.folder), "bold"),
        f"; look again with: equipoise show {run.folder}",
        wrap=False,
    )


def show(found: dict[str, Any]) -> None:
    method = found["method"]
    details = ", ".join(f"{key}={value}" for key, value in method.items() if key != "name")
    say(
        styled(methods.shown(method["name"]), "bold"),
        f"{f' ({details})' if details else ''} on {found['data']}, partition {found['partition']}, {found['clients']} clients, "
        f"seed {found['seed']}: {found['status']}, round {found['round']} of {found['rounds']}",
    )
    if found["outdated"]:
        say(f"outdated: {found['outdated']}; run it anew for numbers of this version", wrap=False)
    if found["rejected replies"]:
        say(f"{found['rejected replies']} replies did not count")
    rows, metric = found["per client"], find(found["metric"])
    for note in found["notes"]:
        say(note, wrap=False)
    if not rows:
        say("nothing measured yet" if not found["notes"] else "no client has a value")
        return

    def number(value: float, signed: bool = False) -> str:
        return figure(value, in_unit_of(metric), signed)

    known = any("gain" in row for row in rows.values())
    beside = any("majority" in row for row in rows.values())
    header = ["client", "samples", *(["alone"] if known else []), found["model"]]
    header += [*(["majority class"] if beside else []), *(["gain", ""] if known else [])]
    lines = []
    for client, row in (
        _extremes(rows, metric.lower_is_better) if len(rows) > MOST_LISTED else rows.items()
    ):
        gain = row.get("gain")
        verdict = [] if not known else ["", ""]
        if gain is not None:
            verdict = [number(gain, True), _verdict(gain, row.get("p"))]
        lines.append(
            [
                client,
                row["samples"] if row["samples"] is not None else "",
                *([number(row["alone"]) if "alone" in row else ""] if known else []),
                number(row["value"]),
                *([number(row["majority"]) if "majority" in row else ""] if beside else []),
                *verdict,
            ]
        )
    table(header, lines, f"{metric.title} of the {found['model']} model on {found['split']} data")
    if len(rows) > MOST_LISTED:
        shares = np.quantile(
            [row["value"] for row in rows.values()], [share / 100 for share in SHARES]
        )
        quantiles = ", ".join(
            f"{share} % {number(float(value))}" for share, value in zip(SHARES, shares, strict=True)
        )
        say(
            f"the {AT_EACH_END} worst and the {AT_EACH_END} best of {len(rows):,} clients; all: equipoise show {found['run']} --json",
            wrap=False,
        )
        say(f"quantiles over clients: {quantiles}", wrap=False)
    without = found.get("std without test noise")
    noise = "" if without is None else f" ({number(without)} without the noise of finite test sets)"
    say(
        f"average {number(found['average'])}, worst {number(found['worst'])}, best {number(found['best'])}, std over clients {number(found['std'])}{noise}"
        + (
            f"; best round {found['best round']} ({number(found['average then'])})"
            if "best round" in found
            else ""
        ),
        wrap=False,
    )
    others = {
        name: values for name, values in found["metrics"].items() if name != metric.name and values
    }
    if others:
        means = ", ".join(
            f"{name} {figure(values['average'], in_unit_of(find(name)))}"
            for name, values in others.items()
        )
        say(
            f"average of other metrics: {means}; equipoise show {found['run']} --metric {next(iter(others))}",
            wrap=False,
        )
    _show_clinical(found["clinical"], rows if found["split"] == "test" else ())
    if known:
        told = ""
        if "clearly gained" in found:
            told = f"; beyond luck (exact McNemar test at 5 % for each client): {found['clearly gained']} gain, {found['clearly lost']} lose"
        say(
            f"against training alone ({found['against']}): {found['gained']} of {len(rows)} clients gain, {found['lost']} lose, average gain {number(found['average gain'], True)}{told}",
            wrap=False,
        )


def _verdict(gain: float, p: float | None) -> str:
    """Whether a client gains or loses, and whether that may be the luck of its test samples."""
    if math.isnan(gain):
        return ""
    if not gain:
        return "equal"
    luck = " (may be luck)" if p is not None and p >= SIGNIFICANT else ""
    return styled(f"gains{luck}", "green") if gain > 0 else styled(f"loses{luck}", "red")


def _show_clinical(clinical: Mapping[str, Any], clients: Collection[str], most: int = 20) -> None:
    """Measures beside accuracy, each with its interval."""
    if not clinical:
        return

    values = {
        client: {name: ClinicalValue(**one) for name, one in own.items()}
        for client, own in clinical.items()
    }
    names = list(next(iter(values.values())))
    rows = [
        [client, *(own[name].in_percent() for name in names)]
        for client, own in list(values.items())[:most]
    ]
    title = "classes are unequal; in %, with 95 % intervals over other test sets like it"
    table(["client", *(TITLES[name] for name in names)], rows, title)
    if len(clinical) > most:
        say(f"... and {len(clinical) - most} more clients")
    for note in notes(values):
        say(note)
    if missing := silent(clients, clinical):
        say(missing)


def _extremes(rows: Mapping[str, dict[str, Any]], lower: bool) -> list[tuple[str, dict[str, Any]]]:
    """The worst clients and the best; a model that has diverged is the worst there is."""
    order = sorted(
        rows.items(),
        key=lambda item: (
            not math.isnan(item[1]["value"]),
            -item[1]["value"] if lower else item[1]["value"],
        ),
    )
    return [*order[:AT_EACH_END], *order[-AT_EACH_END:]]


def plain(found: Any) -> Any:
    """The same with null in place of numbers that do not exist, which JSON cannot write."""
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items()}
    return None if isinstance(found, float) and not math.isfinite(found) else found


def profile(run: Run) -> None:
    """Where the time of a round went: medians over all rounds."""
    import statistics

    rounds = run.rounds()
    phases = list(
        dict.fromkeys(phase for row in rounds for phase in row["seconds"] if "@" not in phase)
    )  # those are of a place
    medians = {
        phase: statistics.median(row["seconds"].get(phase, 0.0) for row in rounds)
        for phase in phases
    }
    total = sum(medians.values()) or 1.0
    table(
        ["phase", "ms per round", "share"],
        [
            [phase, f"{value * 1000:.2f}", f"{value / total:.0%}"]
            for phase, value in medians.items()
        ],
    )
