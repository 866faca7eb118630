"""The command equipoise study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.options import ClusterOptions, ImportOptions, option_groups
from equipoise.transports.workers import processes

if TYPE_CHECKING:
    from equipoise.study.plan import Refusal
    from equipoise.study.run import StudyOutcome
    from equipoise.study.table import StudyTable


@option_groups
def study(
    file: Annotated[
        Path, typer.Argument(help="the study: a YAML file with methods, conditions and claims")
    ],
    cluster_options: ClusterOptions,
    import_options: ImportOptions,
    scale: Annotated[str, typer.Option(help="one of the scales that the study defines")] = "paper",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="run only this method; repeat for several"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="runs at a time; default: one per core")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the runs; default: comparisons/STUDY-SCALE")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Markdown file to which the table and the verdicts are written"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list the runs and their cost in core-hours, and stop")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Run a published table and judge its claims.

    A study is a file with the methods, conditions, seeds and claims of a table. Finished runs are
    kept: a second call runs what is missing. Results are in the folder `results` next to the file.

    Example:
      equipoise study experiments/papers/fedekd/retina.yaml --scale small
    """
    processes.allow_fork()
    from equipoise.cli import comparison_output
    from equipoise.study.page import study_page
    from equipoise.study.run import run_study

    if dry_run:
        _show_plan(file, scale, only or [], import_options.packages)
        return
    if page is not None:
        _prepare_page(page)
    with comparison_output.progress(quiet) as progress:
        outcome = run_study(
            file,
            scale,
            only or [],
            out,
            jobs,
            progress,
            import_options.packages,
            cluster_options.arguments(),
        )
    _show_outcome(outcome)
    if page is not None:
        page.write_text(study_page(outcome.table), encoding="utf-8")
    if outcome.failures:
        raise typer.Exit(1)


def _prepare_page(page: Path) -> None:
    """Create the folder of a page, so that a wrong path is found before the runs."""
    from equipoise.experiment import ConfigurationError

    if page.is_dir():
        raise ConfigurationError(
            f"--page: expected a Markdown file, found the folder {page}; name a file in it, such "
            f"as {page / 'study.md'}"
        )
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"--page: cannot create the folder {page.parent}: {error.strerror or error}; name a "
            "file in another folder"
        ) from error


def _show_plan(file: Path, scale: str, only: Sequence[str], packages: Sequence[str]) -> None:
    from equipoise.cli import output
    from equipoise.data.message_text import counted
    from equipoise.study.definition import load_study
    from equipoise.study.page import core_hours
    from equipoise.study.plan import plan_study
    from equipoise.study.run import known_results, missing_runs, results_path, stored_table

    study = load_study(file, packages)
    plan = plan_study(study, study.scale(scale), only)
    table = stored_table(study, scale)
    known = known_results(plan, results_path(study, scale))
    missing = missing_runs(plan, [*table.records, *known])
    rows = [[run.method, run.condition, run.seed, run.cell.name] for run in missing]
    output.table(["method", "condition", "seed", "folder"], rows)
    _show_refusals(plan.refusals)
    _show_outdated(table)
    hours = study.scale(scale).core_hours
    output.say(
        f"{len(missing)} of {counted(len(plan.runs), 'run')} to do; "
        f"the whole scale takes about {core_hours(hours)}"
    )


def _show_outcome(outcome: StudyOutcome) -> None:
    from equipoise.cli import output
    from equipoise.data.message_text import counted
    from equipoise.study.page import decision_of, preliminary

    if outcome.copied:
        output.say(
            f"{counted(outcome.copied, 'run')} copied from results of other studies in "
            f"{outcome.results.parent}"
        )
    rows = []
    for verdict in outcome.table.verdicts:
        decision = decision_of(verdict) + preliminary(outcome.table, verdict)
        rows.append([verdict.claim.text, decision, f"{verdict.p:.2g}", verdict.reason])
    if rows:
        output.table(["claim", "verdict", "p", "reason"], rows)
    _show_refusals(outcome.refusals)
    for name, reason in outcome.failures.items():
        output.say(f"failed: {name}: {reason}")
    _show_outdated(outcome.table)
    output.say(f"results: {outcome.results}", wrap=False)


def _show_refusals(refusals: Sequence[Refusal]) -> None:
    from equipoise.cli import output

    for refusal in refusals:
        output.say(f"refused: {refusal.method} at {refusal.condition}: {refusal.reason}")


def _show_outdated(table: StudyTable) -> None:
    from equipoise.cli import output
    from equipoise.study.run import results_path

    if not table.outdated:
        return
    lines = "1 line" if table.outdated == 1 else f"{table.outdated} lines"
    verbs = ("belongs", "is") if table.outdated == 1 else ("belong", "are")
    results = results_path(table.study, table.scale)
    output.say(
        f"{lines} of {results} {verbs[0]} to other settings of the study and {verbs[1]} not shown",
        wrap=False,
    )
