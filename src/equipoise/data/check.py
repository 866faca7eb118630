"""How a user's data were understood: sites, classes, columns, how the files were written; and warnings that say what to do."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from equipoise.data.arrays.image_folders import ImageFolder, find_images, findings_about
from equipoise.data.arrays.images import check_memory, common_size, read_headers
from equipoise.data.config import DataConfig
from equipoise.data.dataset import TEST, Dataset
from equipoise.data.findings import Finding
from equipoise.data.patients.records import is_patients
from equipoise.data.pipeline import LoadedData, is_image_folder, is_own, load
from equipoise.data.schema import INPUTS, ColumnSchema, Schema
from equipoise.data.tables.csv_files import cells_as_text, column_of, is_missing, numbers_if_all
from equipoise.data.tables.repairs import Table
from equipoise.data.tables.schema_inference import (
    decided,
    is_date,
    refuse_repairs,
    schema_of,
    with_schema,
)
from equipoise.data.tables.sites import (
    LABELS,
    LARGEST,
    DataErrors,
    Sites,
    as_counted,
    dataset_of,
    joined_cells,
    label_name,
    read_sites,
)
from equipoise.data.tables.table_findings import find_in_tables
from equipoise.validation.names import quoted

FEW_TESTS = 30  # test rows of a site below which a difference of some percent is noise
_NAMED = 5


@dataclass(frozen=True)
class Site:
    """What one site has."""

    name: str
    rows: int
    test: int | None  # rows that a run would test on, where that is known
    classes: Mapping[str, int] = field(default_factory=dict)
    target: Mapping[str, float] = field(default_factory=dict)  # mean, lowest and highest number


@dataclass(frozen=True)
class ColumnReport:
    """One column, and what becomes of it."""

    name: str
    kind: str
    gaps: int
    becomes: str


@dataclass(frozen=True)
class DataReport:
    """All that `equipoise data check` shows, and `run` before it trains."""

    name: str
    task: str
    label: str | None
    guessed: bool  # whether the label was found by its name
    sites: tuple[Site, ...]
    columns: tuple[ColumnReport, ...]
    files: Mapping[str, str]  # file -> separator, encoding, decimal commas; of images the layout
    warnings: tuple[str, ...]
    schema: Schema
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()  # why a run on these data would be refused


def understood(
    config: DataConfig, dataset: Dataset | None = None, every_pixel: bool = False
) -> DataReport:
    """Return how the data of an experiment are read, before anything is dealt or trained.

    Args:
        config: The data section.
        dataset: Data that were given in Python.
        every_pixel: True to decode every image file, so that damaged ones are found.

    Raises:
        ValueError: If the data cannot be read, or only wrongly.
    """
    path = Path(config.name)
    if dataset is not None:
        return _of_dataset(with_schema(dataset.as_task(config.task), config.schema), config)
    if not is_own(config) or is_patients(path):
        return _of_dataset(with_schema(load(config).as_task(config.task), config.schema), config)
    if is_image_folder(path):
        return _of_images(path, config, every_pixel)
    names = (*([config.label] if config.label else []), *config.categorical)
    sites = read_sites(path, config.site, config.schema, names)
    try:
        dataset = dataset_of(sites, config.label, config.categorical, config.task, config.schema)
    except ValueError as error:
        if sites.arrays:  # they have no columns that could be told of
            raise
        problems = error.problems if isinstance(error, DataErrors) else (str(error),)
        return _incomplete(sites, config, problems)
    if sites.arrays:
        return _of_dataset(with_schema(dataset, config.schema), config)
    return report_on(config, LoadedData(dataset, sites))


def report_on(config: DataConfig, loaded: LoadedData) -> DataReport:
    """Return how data were read, as `understood` does, without reading tables again.

    Args:
        config: The data section.
        loaded: The data that it names.
    """
    dataset = loaded.dataset
    if loaded.tables is None:
        # Of a folder of images the report needs the headers only, which are not kept.
        path = Path(config.name)
        is_images = is_own(config) and is_image_folder(path)
        return understood(config, None if is_images else dataset)
    assert dataset.schema is not None and dataset.schema.label is not None
    return _of_tables(loaded.tables, dataset.schema, _sites(dataset, config), config)


def repaired_by_findings(config: DataConfig, report: DataReport) -> DataReport:
    """Return how the data are read with the certain repairs of their findings.

    Args:
        config: The data.
        report: How they are read without.
    """
    schema = config.schema or Schema()
    certain = [finding.repair for finding in report.findings if finding.certain and finding.repair]
    for fragment in certain:
        schema = schema.with_repairs(fragment)
    if not certain:
        return report
    return understood(config.model_copy(update={"schema": schema}))


def _of_tables(
    sites: Sites, schema: Schema, described: tuple[Site, ...], config: DataConfig
) -> DataReport:
    """Tables that can be read as one."""
    label = schema.label
    assert label is not None
    guessed = config.label is None and (config.schema is None or config.schema.label is None)
    rows = sum(site.rows for site in described)
    warnings = [
        *_of_columns(sites, schema, config.schema is None or not config.schema.columns),
        *_of_labels(label, schema.classes, rows),
        *_of_sites(described, schema.classes, config),
        *_of_dialects(sites),
    ]
    return DataReport(
        sites.path.stem,
        "classification" if schema.classes else "regression",
        label,
        guessed,
        described,
        _columns(sites, schema, config),
        {file: str(one) for file, one in sites.dialects.items()},
        tuple(warnings),
        schema,
        _findings(sites, config),
    )


def _incomplete(sites: Sites, config: DataConfig, problems: Sequence[str]) -> DataReport:
    """Tables that a run would refuse: all that can be told of them, and why."""
    given = config.schema or Schema()
    task = config.task or given.predicts
    names = _common_columns(sites)
    label = next((n for n in (label_name(sites, config.label, given), *LABELS) if n in names), None)
    tables = {site: {name: table[name] for name in names} for site, table in sites.tables.items()}
    tables = as_counted(tables, label, task, given)
    owners = [site for site, table in sites.tables.items() for _ in range(_rows(table))]
    kinds = {column.name: column.kind for column in given.columns}
    joined = {
        name: joined_cells([table[name] for table in tables.values()])
        for name in names
        if not kinds or name in kinds or name == label
    }
    found = decided(joined, owners, label, kinds, task)
    return DataReport(
        sites.path.stem,
        task or found.predicts or "unknown task",
        label,
        config.label is None and given.label is None,
        tuple(
            _site_of_table(site, _rows(table), tables[site].get(label or ""), found, config)
            for site, table in sites.tables.items()
        ),
        _columns(sites, found, config),
        {file: str(one) for file, one in sites.dialects.items()},
        tuple(_of_dialects(sites)),
        # Kinds and classes may change with the repair: they are decided when all can be read.
        given if given.label or label is None else given.model_copy(update={"label": label}),
        _findings(sites, config),
        tuple(problems),
    )


def _common_columns(sites: Sites) -> list[str]:
    """The columns that all sites have, with one cell per row."""
    tables = list(sites.tables.values())
    return [
        name
        for name in tables[0]
        if all(name in table and table[name].ndim == 1 for table in tables)
    ]


def _findings(sites: Sites, config: DataConfig) -> tuple[Finding, ...]:
    """Everything that looks wrong in the tables; a person decided on columns of a given schema."""
    schema = config.schema or Schema()
    decided = {column.name for column in schema.columns} | set(config.categorical)
    label = label_name(sites, config.label, schema)
    used = {column.name for column in schema.inputs} | ({label} if label else set(LABELS))
    found = find_in_tables(sites, label, config.task or schema.predicts, decided)
    if schema.columns:  # of columns that are left out nothing is said
        found = [one for one in found if one.column is None or one.column in used]
    return (*sites.findings, *found)


def _rows(table: Table) -> int:
    return len(next(iter(table.values()))) if table else 0


def _site_of_table(
    name: str, rows: int, labels: np.ndarray | None, schema: Schema, config: DataConfig
) -> Site:
    if labels is None or not schema.classes:
        return Site(name, rows, _tests(rows, config))
    counts = Counter(map(str, cells_as_text(labels)))
    classes = {one: counts[one] for one in schema.classes if counts[one]}
    return Site(name, rows, _tests(rows, config), classes)


def _of_dialects(sites: Sites) -> list[str]:
    return [
        f"{file}: numbers of {_some(one.decimal_commas)} have decimal commas, those of {_some(one.points_beside)} points, which were read as decimal points; write them alike"
        for file, one in sites.dialects.items()
        if one.points_beside
    ]


def _columns(sites: Sites, schema: Schema, config: DataConfig) -> tuple[ColumnReport, ...]:
    """The columns of the schema, then those of the files that it does not list."""
    listed = {column.name for column in schema.columns} | {schema.label}
    every = dict.fromkeys(name for table in sites.tables.values() for name in table)
    columns: list[ColumnSchema | str] = [*schema.columns]
    columns += [name for name in every if name not in listed]
    found = []
    for column in columns:
        name = column if isinstance(column, str) else column.name
        parts = [table[name] for table in sites.tables.values() if name in table]
        found.append(_seen(column, parts, config))
    return tuple(found)


def _of_dataset(dataset: Dataset, config: DataConfig) -> DataReport:
    """A registered set, or arrays."""
    schema, sites = dataset.schema or schema_of(dataset), _sites(dataset, config)
    places = {column.name: place for place, column in enumerate(dataset.columns)}
    cells = {name: dataset.x.numpy()[:, place] for name, place in places.items()}
    seen = tuple(_seen(column, [cells[column.name]], config) for column in schema.inputs)
    warnings = [
        *dataset.notes,
        *(_of_sites(sites, dataset.task.class_names, config) if dataset.site is not None else []),
    ]
    return DataReport(
        dataset.name, dataset.task.kind, None, False, sites, seen, {}, tuple(warnings), schema
    )


def _similar_classes(counts: Mapping[str, int]) -> list[Finding]:
    """Findings on folders of classes whose names differ in case, blanks or signs only."""
    groups: dict[str, list[str]] = {}
    for name in sorted(counts):
        groups.setdefault(re.sub(r"[\W_]+", "", name.casefold()) or name, []).append(name)
    found = []
    for group in groups.values():
        if len(group) > 1:
            shown = " and ".join(f"{quoted(name)} ({counts[name]:,} images)" for name in group)
            found.append(
                Finding(
                    f"the classes {shown} are nearly equal but count as different; "
                    "give their folders the same name if they are one class"
                )
            )
    return found


def _of_images(path: Path, config: DataConfig, every_pixel: bool) -> DataReport:
    """A folder of images, by its names, by its files' headers, and by pixels that are doubtful."""
    if config.schema is not None:
        refuse_repairs(config.schema, path.name)
    folder = find_images(path)
    headers = read_headers(folder.files)
    findings = findings_about(folder, headers, config.window, every_pixel)
    classes = tuple(folder.classes)
    sites = _image_sites(folder, config)
    channels = max(header.shape[0] for header in headers)
    sizes = sorted({header.shape[1:] for header in headers})
    size = common_size(sizes, config.image_size) or sizes[0]
    check_memory((len(headers), channels, *size))
    findings = [*findings, *_similar_classes(Counter(folder.labels))]
    warnings = _of_sites(sites, classes, config) if folder.sites else _of_pool(sites[0], classes)
    if sizes != [size] and config.image_size is None:
        shown = ", ".join(f"{height}x{width}" for height, width in sizes[:_NAMED])
        have = (
            f"images have {len(sizes)} different sizes, such as {shown}"
            if len(sizes) > 1
            else f"images are large, {shown}"
        )
        warnings.append(
            f"{have} (height x width): they are read at {size[0]}x{size[1]}; data.image_size=128, say, chooses another size"
        )
    schema = config.schema or Schema(
        task="classification", classes=classes, shape=(channels, *size)
    )
    return DataReport(
        path.name,
        "classification",
        None,
        False,
        sites,
        (),
        {path.name: _layout_in_words(folder, config)},
        tuple(warnings),
        schema,
        tuple(findings),
    )


def _image_sites(folder: ImageFolder, config: DataConfig) -> tuple[Site, ...]:
    """The sites of a folder of images, or all of it; test rows are those of an official split."""
    owners = folder.sites or (folder.path.name,) * len(folder.files)
    counts = Counter(zip(owners, folder.labels, strict=True))
    keeps = folder.parts is not None and config.pool != "all"
    tests = Counter(
        owner
        for owner, part in zip(owners, folder.parts or (), strict=False)
        if part == TEST and keeps
    )
    found = []
    for name in sorted(set(owners)):
        classes = {one: counts[name, one] for one in folder.classes if counts[name, one]}
        site = _site(name, classes, config)
        if keeps:
            site = replace(site, test=tests[name])
        elif folder.sites is None:
            site = replace(site, test=None)
        found.append(site)
    return tuple(found)


def _layout_in_words(folder: ImageFolder, config: DataConfig) -> str:
    """How a folder of images was understood, and what follows for a run."""
    layout = str(folder)
    if folder.parts is not None and config.pool == "all":
        layout += " that is not kept (data.pool=all)"
    if folder.sites is None:
        partition = "iid" if config.partition == "auto" else config.partition
        layout += f", dealt to {config.clients or 10} clients by data.partition={partition}"
    return layout


def _of_pool(pool: Site, classes: Sequence[str]) -> list[str]:
    """Of one pool: whether there is something to learn, and enough to test on."""
    found = []
    if len(classes) == 1:
        found.append(
            f"all images have the class {quoted(classes[0])}, so there is nothing to learn; add a folder for each other class"
        )
    if pool.test is not None and pool.test < FEW_TESTS:
        found.append(
            f"there are {pool.test} test images, fewer than {FEW_TESTS}: differences of some percent are noise; collect more"
        )
    return found


def _sites(dataset: Dataset, config: DataConfig) -> tuple[Site, ...]:
    owners = np.zeros(len(dataset.x), np.int64) if dataset.site is None else dataset.site
    names = dataset.site_names or (dataset.name,)
    found = []
    for place, name in enumerate(names):
        y = dataset.y.numpy()[owners == place]
        if dataset.task.classifies:
            labels = dataset.task.class_names or tuple(map(str, range(dataset.task.outputs)))
            found.append(
                _site(
                    name,
                    {
                        labels[int(code)]: int(n)
                        for code, n in zip(*np.unique(y, return_counts=True), strict=True)
                    },
                    config,
                )
            )
        else:
            target = (
                {"mean": float(y.mean()), "lowest": float(y.min()), "highest": float(y.max())}
                if len(y)
                else {}
            )
            found.append(Site(name, len(y), _tests(len(y), config), {}, target))
    return tuple(found)


def _site(name: str, classes: Mapping[str, int], config: DataConfig) -> Site:
    rows = sum(classes.values())
    return Site(name, rows, _tests(rows, config), classes)


def _tests(rows: int, config: DataConfig) -> int | None:
    """How many rows a client of this site would be tested on; None where clients are not sites, or share a test set."""
    natural = (
        config.test == "local"
        and config.partition in ("auto", "natural")
        and config.samples is None
    )
    return math.floor(config.split[2] * rows + 1e-9) if natural else None


def _seen(
    column: ColumnSchema | str, parts: Sequence[np.ndarray], config: DataConfig
) -> ColumnReport:
    gaps = sum(int(_gaps(part).sum()) for part in parts)
    if isinstance(column, str):
        return ColumnReport(column, "not in the schema", gaps, "left out")
    if column.kind not in INPUTS:
        return ColumnReport(column.name, column.kind, gaps, "left out")
    scaling = {"auto": "client" if config.test != "global" else "pooled"}.get(
        config.normalise, config.normalise
    )
    scaled = {
        "client": "scaled by each client's own mean and deviation",
        "pooled": "scaled by mean and deviation of all clients",
    }
    how = f", {scaled[scaling]}" if scaling in scaled else ", not scaled"
    becomes = {
        "number": f"1 input{how}",
        "date": f"1 input (days since 1970){how}",
        "category": f"{len(column.categories) + 1} inputs: {_some(column.categories)}, other",
    }[column.kind]
    return ColumnReport(
        column.name, column.kind, gaps, becomes + ("; 1 more marks gaps" if column.gaps else "")
    )


def _gaps(cells: np.ndarray) -> np.ndarray:
    if cells.dtype.kind == "f":
        return np.asarray(~np.isfinite(cells))
    return np.array([is_missing(cell) for cell in cells_as_text(cells)], bool)


def _place_of(cell: str, column: str, sites: Sites) -> str:
    """Return file and line of the first row with this cell."""
    for site, table in sites.tables.items():
        rows = np.flatnonzero(cells_as_text(table[column]) == cell) if column in table else []
        if len(rows):
            return sites.origins[site].of_row(int(rows[0]))
    return _some(list(sites.files.values()))


def _of_columns(sites: Sites, schema: Schema, guessed: bool) -> list[str]:
    found = []
    for column in schema.columns:
        name = quoted(column.name)
        parts = [
            numbers_if_all(table[column.name])
            for table in sites.tables.values()
            if column.name in table
        ]
        texts = [
            cell
            for part in parts
            if part.dtype.kind not in "fiu"
            for cell in map(str, part)
            if not is_missing(cell)
        ]
        infinite = sum(
            int((np.abs(part) > LARGEST).sum()) for part in parts if part.dtype.kind == "f"
        )
        if infinite:
            found.append(
                f"column {name}: {infinite} cells are infinite (inf, or beyond 3e38) and count as missing; mend them, or leave them empty"
            )
        if parts and all(_gaps(part).all() for part in parts):
            found.append(
                f"column {name} has no value at all; remove it from the files, or leave it out of the schema"
            )
        if not guessed:
            continue
        if column.kind in ("identifier", "text"):
            what = "free text" if column.kind == "text" else "an identifier"
            found.append(
                f"column {name} looks like {what} (about one value per row) and is left out; to use it, give it the kind "
                f"number or category in a schema (equipoise data check --save schema.yaml, then --schema schema.yaml)"
            )
        if column.kind in ("identifier", "text", "category") and texts:
            strange = [
                cell for cell in texts if column_of([cell.replace(",", ".", 1)]).dtype.kind != "f"
            ]
            numbers = (
                sum(part.size for part in parts)
                - len(strange)
                - sum(int(_gaps(part).sum()) for part in parts)
            )
            if strange and numbers > 4 * len(strange):
                count = "1 cell," if len(strange) == 1 else f"{len(strange)} cells such as"
                found.append(
                    f"column {name} is not read as numbers because of {count} {quoted(strange[0])} "
                    f"({_place_of(strange[0], column.name, sites)}); "
                    "leave such cells empty if they mean that nothing is known"
                )
        if column.kind == "date":
            found.append(
                f"column {name} holds dates, which become numbers (days since 1970); leave the column out of the schema if the day says nothing"
                + (
                    f"; it could be read with the month first, too: here {_first(texts)}"
                    if _either(texts, column.formats)
                    else ""
                )
            )
    return found


def _either(cells: Sequence[str], formats: Sequence[str]) -> bool:
    """Whether day and month could be exchanged in all cells."""
    swapped = [form.replace("%d/%m", "%m/%d") for form in formats]
    return swapped != list(formats) and all(
        any(is_date(cell, form) for form in swapped) for cell in set(cells)
    )


def _first(cells: Sequence[str]) -> str:
    day, month, _ = cells[0].split("/", 2)
    return f"{cells[0]} is day {int(day)} of month {int(month)}"


def _of_labels(label: str, classes: Sequence[str], rows: int) -> list[str]:
    if len(classes) <= 20 or 2 * len(classes) <= rows:
        return []
    return [
        f"the label {quoted(label)} has {len(classes)} classes for {rows} rows; choose another column with --label"
    ]


def _of_sites(sites: Sequence[Site], classes: Sequence[str], config: DataConfig) -> list[str]:
    found = []
    if len(sites) == 1:
        found.append(
            f"there is one site only, {quoted(sites[0].name)}, so nobody to learn with; give one file per site, or a column that names the site (data.site)"
        )
    if len(classes) == 1:
        found.append(
            f"all rows have the label {quoted(classes[0])}, so there is nothing to learn; is another column the label (--label)?"
        )
    for site in sites:
        lacks = [name for name in classes if not site.classes.get(name)]
        if lacks and len(classes) > 1:
            found.append(
                f"site {quoted(site.name)} has no row of {_some(list(map(quoted, lacks)))}: its own numbers say nothing of that; look at class-wise results with care"
            )
    few = [site for site in sites if site.test is not None and site.test < FEW_TESTS]
    if few:
        shown = _some([f"{site.name} ({site.test})" for site in few])
        found.append(
            f"fewer than {FEW_TESTS} test rows in {shown}: differences of some percent are noise there; "
            "collect more rows, give tests a larger share (data.split), or use several seeds (equipoise compare --seeds 1-5)"
        )
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )
