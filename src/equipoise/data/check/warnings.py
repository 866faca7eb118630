"""Warnings about sites, labels and files: what deserves attention, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.data.check.report import SiteReport
from equipoise.data.message_text import some
from equipoise.data.schema import DATES
from equipoise.data.tables.cell_numbers import is_date, is_number
from equipoise.data.tables.sites import Sites
from equipoise.validation.names import quoted

FEW_TESTS = 30  # test rows of a site below which a difference of a few percent is noise
_MANY_CLASSES = 20  # up to which any number of rows is enough


def warnings_on_sites(
    sites: Sequence[SiteReport], classes: Sequence[str], alone: bool = False
) -> list[str]:
    """Return warnings about sites that cannot learn or cannot be tested.

    Args:
        sites: The sites.
        classes: The classes of all sites; none in regression.
        alone: True if this is one site of several, and the others are elsewhere.
    """
    warnings = []
    if len(sites) == 1 and not alone:
        warnings.append(
            f"there is only one site, {quoted(sites[0].name)}, so there is no other to learn with; "
            "provide one file per site, or a column that names the site (data.site)"
        )
    if len(classes) == 1:
        warnings.append(
            f"all rows have the label {quoted(classes[0])}, so there is nothing to learn; "
            "is another column the label (--label)?"
        )
    else:
        warnings += _warnings_on_lacking_classes(sites, classes)
    warnings += _warnings_on_events(sites)
    few = [site for site in sites if site.test is not None and site.test < FEW_TESTS]
    if few:
        shown = some(f"{site.name} ({site.test})" for site in few)
        warnings.append(
            f"fewer than {FEW_TESTS} test rows in {shown}: differences of a few percent are noise "
            "there; collect more rows, increase the test share (data.split), "
            "or use several seeds (equipoise compare --seeds 1-5)"
        )
    return warnings


def _warnings_on_events(sites: Sequence[SiteReport]) -> list[str]:
    """Return a warning if sites have no event, from which a survival model learns nothing."""
    lacking = [site.name for site in sites if site.target.get("events") == 0]
    if not lacking:
        return []
    noun = "site" if len(lacking) == 1 else "sites"
    return [
        f"no event in the {noun} {some(map(quoted, lacking))}: the Cox loss is 0 there, and its "
        "concordance does not exist; follow patients longer, or leave the site out"
    ]


def _warnings_on_lacking_classes(sites: Sequence[SiteReport], classes: Sequence[str]) -> list[str]:
    warnings = []
    for site in sites:
        lacking = [name for name in classes if not site.classes.get(name)]
        if not lacking:
            continue
        noun = "class" if len(lacking) == 1 else "classes"
        warnings.append(
            f"site {quoted(site.name)} has no row of the {noun} {some(map(quoted, lacking))}: "
            "its own results say nothing about that; read class-wise results with care"
        )
    return warnings


def warnings_on_labels(label: str, classes: Sequence[str], rows: int) -> list[str]:
    """Return a warning if a label column has about as many classes as rows."""
    if len(classes) <= _MANY_CLASSES or 2 * len(classes) <= rows:
        return []
    return [
        f"the label {quoted(label)} has {len(classes)} classes for {rows} rows; "
        "choose another column with --label"
    ]


def warnings_on_image_pool(pool: SiteReport, classes: Sequence[str]) -> list[str]:
    """Return warnings about images without sites: nothing to learn, or too few to test on."""
    warnings = []
    if len(classes) == 1:
        warnings.append(
            f"all images have the class {quoted(classes[0])}, so there is nothing to learn; "
            "add a folder for each other class"
        )
    if pool.test is not None and pool.test < FEW_TESTS:
        warnings.append(
            f"there are {pool.test} test images, fewer than {FEW_TESTS}: "
            "differences of a few percent are noise; collect more"
        )
    return warnings


def warnings_on_dialects(sites: Sites) -> list[str]:
    """Return a warning for each file whose numbers have decimal commas and decimal points."""
    warnings = []
    for file, dialect in sites.dialects.items():
        if dialect.point_columns:
            warnings.append(
                f"{file}: numbers of {some(dialect.decimal_commas)} have decimal commas, those of "
                f"{some(dialect.point_columns)} points, which were read as decimal points; "
                "use one of the two in the whole file"
            )
    return warnings


def warnings_on_headers(sites: Sites) -> list[str]:
    """Return a warning for each CSV file whose first line looks like a row and not like names."""
    tables = {sites.files[site]: table for site, table in sites.tables.items()}
    warnings = []
    for file in sites.dialects:
        cells = _names_like_cells(list(tables.get(file, {})))
        if cells:
            warnings.append(
                f"{file}: the column names {some(map(quoted, cells))} look like the cells of a "
                "row, which is then lost and would be in a saved schema; add a first line of names"
            )
    return warnings


def _names_like_cells(names: Sequence[str]) -> list[str]:
    """Return names that are dates, or numbers other than 0, 1, 2, ... and 1, 2, 3, ...."""
    numbers = [name for name in names if is_number(name)]
    first = int(numbers[0]) if numbers and numbers[0] in ("0", "1") else 0
    counted = [str(first + position) for position in range(len(numbers))]
    dates = [name for name in names if any(is_date(name, form) for form in DATES)]
    if numbers == counted:
        return dates
    return list(dict.fromkeys([*numbers, *dates]))
