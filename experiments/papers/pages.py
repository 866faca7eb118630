"""Write docs/papers: which published claims stand, from studies and their committed results.

Nothing is run. Repeat it after results or studies have changed:

    python experiments/papers/pages.py            # write the pages
    python experiments/papers/pages.py --check    # name the pages that are out of date
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.report import drawing
from equipoise.report.pictures import Picture
from equipoise.report.study import headline, pictures_of
from equipoise.study import page
from equipoise.study.definition import PAPER, Study, load_study
from equipoise.study.run import results_path, stored_table
from equipoise.study.table import StudyTable
from equipoise.study.verdicts import FAILS, HOLDS, Verdict

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
OUT = ROOT / "docs" / "papers"
FIGURES = "figures"
LEAK = "leak.json"
TITLES = {
    "fedakd": "FedAKD",
    "kdia": "KDIA",
    "fedequilibria": "FedEquilibria",
    "fedekd": "FedeKD",
    "corefed": "CoRe-Fed",
}
COMMAND = "python experiments/papers/pages.py"


@dataclass(frozen=True)
class StudyResults:
    """A study with its results at every scale.

    Attributes:
        study: The study.
        tables: Scale -> table, of the scales that have results.
    """

    study: Study
    tables: Mapping[str, StudyTable]

    @property
    def main(self) -> StudyTable:
        """The table that the overview shows: the most complete one, of equal ones the largest."""
        if not self.tables:
            return StudyTable(self.study, next(iter(self.study.file.scales)), ())
        shares = {}
        for name, table in self.tables.items():
            progress = page.progress_of(table)
            shares[name] = progress.done / max(1, progress.planned)
        return self.tables[max(shares, key=lambda name: shares[name])]

    @property
    def was_run(self) -> bool:
        """True if some run has finished."""
        return bool(self.tables)

    @property
    def label(self) -> str:
        """The tables and figures of the paper."""
        source = self.study.file.source
        return self.study.name if source is None else source.table


def read_studies(folder: Path) -> list[StudyResults]:
    """Return the studies in a folder with their results, those with results first."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        study = load_study(path)
        tables = {}
        for scale in study.file.scales:
            if results_path(study, scale).exists():
                table = stored_table(study, scale)
                if table.records:
                    tables[scale] = table
        found.append(StudyResults(study, tables))
    return sorted(found, key=lambda one: not one.was_run)


def make(folder: Path = FOLDER) -> dict[str, str | Picture]:
    """Return every file of docs/papers by name: pages as text, figures to draw.

    Args:
        folder: The folder with a folder of studies for each paper.
    """
    files: dict[str, str | Picture] = {}
    papers = {}
    for name in TITLES:
        if (folder / name).is_dir():
            papers[name] = read_studies(folder / name)
    files["README.md"] = overview(papers)
    for name, studies in papers.items():
        files[f"{name}.md"] = paper_page(name, studies, leak_section(folder / name))
        for one in studies:
            files |= figures_of(name, one)
    return files


def figures_of(paper: str, one: StudyResults) -> dict[str, str | Picture]:
    """Return the figures of a study: path inside docs/papers -> picture."""
    files: dict[str, str | Picture] = {}
    for scale, table in one.tables.items():
        for name, picture in pictures_of(table).items():
            files[figure_path(paper, table, scale, name)] = picture
    return files


def figure_path(paper: str, table: StudyTable, scale: str, name: str) -> str:
    """Return the path of a figure inside docs/papers, with a digest of what it shows.

    A changed result gives the figure another name, so that an outdated one is noticed without
    drawing it.
    """
    shown = table.study.file.model_dump_json(
        include={"figures", "printed", "printed_as", "methods", "conditions", "measures"}
    )
    digest = hashlib.blake2b(shown.encode(), digest_size=4)
    for rule in (table.study.file.target, table.study.file.speed_up_over):
        # Only if it is set, for the same reason as the defaults below.
        if rule is not None:
            digest.update(repr(rule).encode())
    for record in table.records:
        # Without defaults, so that a new kind of number leaves the names of older figures.
        digest.update(record.model_dump_json(exclude_defaults=True).encode())
    return f"{FIGURES}/{paper}-{table.study.name}-{scale}-{name}-{digest.hexdigest()}.svg"


# The overview


def overview(papers: Mapping[str, Sequence[StudyResults]]) -> str:
    """Return the page that says which claims of which paper stand."""
    total = _count(one for studies in papers.values() for one in studies)
    parts = [
        "# Five papers, claim by claim",
        "This page shows which claims of the five papers stand in our runs, and which do not. "
        f"{headline(total)}{_preliminary(papers)}",
        page.markdown(_papers_grid(papers)),
        "*Holds* and *does not hold* are significant at 5 % over all claims of a table, paired "
        "over seeds. *Cannot be told* means that the runs do not decide. "
        "[How verdicts are made](../studies.md#verdicts).",
    ]
    for name, studies in papers.items():
        parts += _paper_summary(name, studies)
    parts.append(
        f"The pages are made by `{COMMAND}` from `experiments/papers/`: one file for each table, "
        "with its printed numbers, claims and results."
    )
    return "\n\n".join(parts) + "\n"


def _preliminary(papers: Mapping[str, Sequence[StudyResults]]) -> str:
    """Return a sentence about verdicts on tables whose runs are not all there; empty if none."""
    number = 0
    for studies in papers.values():
        for one in studies:
            if one.was_run and not page.progress_of(one.main).complete:
                counts = page.count_decisions(one.main.verdicts)
                number += counts[HOLDS] + counts[FAILS]
    if not number:
        return ""
    if number == 1:
        return " 1 verdict is preliminary: some runs of its table are missing and may change it."
    return (
        f" {number} verdicts are preliminary: some runs of their tables are missing and may "
        "change them."
    )


def _papers_grid(papers: Mapping[str, Sequence[StudyResults]]) -> page.Grid:
    header = ["paper", "tables", "run", "claims", *(page.SYMBOLS[d] for d in page.DECISIONS)]
    rows = []
    for name, studies in papers.items():
        counts = _count(studies)
        run = sum(one.was_run for one in studies)
        numbers = [len(studies), run, sum(counts.values()), *counts.values()]
        rows.append([f"[{TITLES[name]}]({name}.md)", *(str(number) for number in numbers)])
    return page.Grid("papers", header, rows)


def _count(studies: Iterable[StudyResults]) -> dict[str, int]:
    counts = dict.fromkeys(page.DECISIONS, 0)
    for one in studies:
        for decision, number in page.count_decisions(one.main.verdicts).items():
            counts[decision] += number
    return counts


def _paper_summary(name: str, studies: Sequence[StudyResults]) -> list[str]:
    parts = [f"## [{TITLES[name]}]({name}.md)"]
    run = [one for one in studies if one.was_run]
    if run:
        parts.append(page.markdown(_studies_grid(name, run)))
    for decision, title in ((HOLDS, "Holds"), (FAILS, "Does not hold")):
        lines = _decided(run, decision)
        if lines:
            parts.append("\n".join([f"{title}:", "", *lines]))
    missing = [one for one in studies if not one.was_run]
    if missing:
        hours = sum(one.study.scale(one.main.scale).core_hours for one in missing)
        tables = "1 table" if len(missing) == 1 else f"{len(missing)} tables"
        parts.append(f"Not run: {tables}, about {page.core_hours(hours)} at the paper's scale.")
    return parts


def _studies_grid(paper: str, studies: Sequence[StudyResults]) -> page.Grid:
    header = ["table", "scale", "runs", *(page.SYMBOLS[d] for d in page.DECISIONS)]
    rows = []
    for one in studies:
        progress = page.progress_of(one.main)
        counts = page.count_decisions(one.main.verdicts)
        link = f"[{one.label}]({paper}.md#{one.study.name})"
        cells = [link, one.main.scale, f"{progress.done} of {progress.planned}"]
        rows.append([*cells, *(str(count) for count in counts.values())])
    return page.Grid("studies", header, rows)


def _decided(studies: Sequence[StudyResults], decision: str) -> list[str]:
    lines = []
    for one in studies:
        for verdict in one.main.verdicts:
            if page.decision_of(verdict) == decision:
                lines.append(f"- {_claim_in_words(one, verdict)}")
    return lines


def _claim_in_words(one: StudyResults, verdict: Verdict) -> str:
    words = one.study.sayings.get(verdict.claim.text, "")
    where = f"{one.label}, scale {one.main.scale}{page.restriction(one.main, verdict)}"
    progress = page.progress_of(one.main)
    if not progress.complete:
        where += f", preliminary: {progress.done} of {progress.planned} runs"
    text = f"`{verdict.claim.text}` ({where})"
    return f"{text}: {words}" if words else text


# The page of a paper


def paper_page(name: str, studies: Sequence[StudyResults], reasons: str = "") -> str:
    """Return the page of one paper: every table, verdict and figure.

    Args:
        name: The folder of the paper.
        studies: Its tables.
        reasons: What a run shows about differences from the printed numbers; may be empty.
    """
    parts = [f"# {TITLES[name]}"]
    source = studies[0].study.file.source if studies else None
    if source is not None:
        parts.append(f"{source.paper}.")
    parts.append(
        f"This page shows every table of the paper next to our numbers. {headline(_count(studies))}"
        f"{_preliminary({name: studies})} A positive change is an improvement for every metric."
    )
    parts += [page.markdown(_studies_grid(name, studies)), page.CLAIMS_TEXT, page.CELLS_TEXT]
    if not any(one.study.file.source and one.study.file.source.changed for one in studies):
        parts.append("No setting was changed after its result had been seen.")
    for one in studies:
        parts += _section(name, one)
    if reasons:
        parts.append(reasons)
    parts.append(f"Made by `{COMMAND}`; [overview](README.md).")
    return "\n\n".join(parts) + "\n"


def leak_section(folder: Path) -> str:
    """Return what `leak.py` found about a paper whose code trains on test samples; may be empty."""
    path = folder / "results" / LEAK
    if not path.is_file():
        return ""
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for row, numbers in content["rows"].items():
        values = [numbers["best"], numbers["average"], numbers["cf"]]
        shown = [None if v is None else v * f for v, f in zip(values, (100, 100, 1), strict=True)]
        rows.append([row, *("–" if value is None else f"{value:.1f}" for value in shown)])
    grid = page.Grid("leak", ["row", "best", "average", "cf"], rows)
    setting = (
        f"{content['data']}, {content['condition']}, {content['samples']:,} samples, "
        f"{content['rounds']} rounds, seed {content['seed']}, one run per row"
    )
    return "\n\n".join(
        [
            "## Why numbers differ: a LEAK of test samples",
            "The released code trains and distils on data that contain the client's test samples. "
            "The row LEAK does the same, on data that a script builds for this question only. Its "
            f"numbers are no result of the method. Setting: {setting}.",
            page.markdown(grid),
            "Made by `python experiments/papers/leak.py OUT`.",
        ]
    )


def _section(paper: str, one: StudyResults) -> list[str]:
    parts = [f'<a id="{one.study.name}"></a>', f"## {one.label}: {one.study.file.title}"]
    if not one.was_run:
        parts.append("Not run yet.")
        if one.main.verdicts:
            parts.append(page.markdown(page.claims_grid(one.main)))
        printed = [_condition(grid) for grid in page.condition_grids(one.main)]
        if printed:
            parts.append(_folded("Numbers that the paper prints", printed))
    for scale, table in one.tables.items():
        parts += _results(paper, table, scale)
    parts.append(_to_run(one))
    notes = page.differences(one.study)
    if notes:
        parts.append(_folded("Settings that differ from the paper", [notes]))
    return parts


def _results(paper: str, table: StudyTable, scale: str) -> list[str]:
    progress = page.progress_of(table)
    runs = f"{progress.done} of {progress.planned} runs"
    parts = [f"### At {page.name_of_scale(scale)}: {runs}"]
    changes = page.changes_of_scale(table.study, scale)
    if changes:
        parts.append(f"Changed against the paper: {changes}.")
    if table.verdicts:
        parts.append(page.markdown(page.claims_grid(table)))
    parts += [_condition(grid) for grid in page.condition_grids(table)]
    for name, picture in pictures_of(table).items():
        path = figure_path(paper, table, scale, name)
        parts += [f"![{picture.text}]({path})", f"*{picture.title}*"]
    parts += [page.describe_environment(table), page.describe_refusals(table.refusals)]
    return [part for part in parts if part]


def _condition(grid: page.Grid) -> str:
    return f"**{grid.title}**\n\n{page.markdown(grid)}"


def _folded(title: str, parts: Sequence[str]) -> str:
    body = "\n\n".join(parts)
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _to_run(one: StudyResults) -> str:
    """Return what has not been run, with its cost and the command that runs it.

    Scales are listed from the largest on, up to the first one that is complete.
    """
    lines = []
    for scale, settings in one.study.file.scales.items():
        table = one.tables.get(scale, StudyTable(one.study, scale, ()))
        progress = page.progress_of(table)
        if progress.complete:
            break
        missing = progress.planned - progress.done
        hours = settings.core_hours * missing / max(1, progress.planned)
        lines.append(
            f"- {missing} of {progress.planned} runs at {page.describe_scale(one.study, scale)}, "
            f"about {page.core_hours(hours)}: `{command(one.study, scale)}`"
        )
    if not lines:
        return "Everything has been run."
    return "\n".join(["Not run:", "", *lines])


def command(study: Study, scale: str) -> str:
    """Return the command that runs what is missing of a study."""
    option = "" if scale == PAPER else f" --scale {scale}"
    path = Path("experiments", "papers", study.path.parent.name, study.path.name)
    return f"equipoise study {path.as_posix()}{option}"


# Files


def outdated(files: Mapping[str, str | Picture], out: Path = OUT) -> list[str]:
    """Return the names of files that are missing, differ, or should not be there."""
    names = []
    for name, content in files.items():
        path = out / name
        same = path.is_file()
        if same and isinstance(content, str):
            same = path.read_text(encoding="utf-8") == content
        if not same:
            names.append(name)
    return names + surplus(files, out)


def surplus(files: Mapping[str, str | Picture], out: Path) -> list[str]:
    """Return the names of pages and figures that nothing makes any more."""
    existing = [*out.glob("*.md"), *(out / FIGURES).glob("*.svg")]
    names = [path.relative_to(out).as_posix() for path in existing]
    return sorted(name for name in names if name not in files)


def write(files: Mapping[str, str | Picture], out: Path = OUT) -> None:
    """Write what is out of date, and remove what nothing makes any more."""
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for name in surplus(files, out):
        (out / name).unlink()
    for name in outdated(files, out):
        content = files[name]
        if isinstance(content, str):
            (out / name).write_text(content, encoding="utf-8")
        else:
            (out / name).write_bytes(drawing.encoded(content.draw, "svg"))
    if not any((out / FIGURES).iterdir()):
        (out / FIGURES).rmdir()


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them with `--check`; return the exit status."""
    files = make()
    if "--check" not in arguments:
        write(files)
        return 0
    names = outdated(files)
    if names:
        print(f"out of date: {', '.join(names)}; run `{COMMAND}`")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
