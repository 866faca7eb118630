"""Findings on labels that would silently be merged or split: spellings and codings."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from equipoise.data.findings import Finding
from equipoise.data.message_text import some
from equipoise.data.tables.cell_numbers import is_number
from equipoise.data.tables.csv_files import cells_as_text, column_of, is_missing
from equipoise.data.tables.finding_text import (
    Columns,
    Counts,
    as_value,
    as_yaml,
    codings,
    in_quotes,
    mapping_as_yaml,
    row_text,
    total_of,
)
from equipoise.data.tables.labels import class_words, label_gaps, read_labels
from equipoise.validation.names import quoted

YES = frozenset({"1", "yes", "y", "true", "t", "ja", "j", "oui", "si", "sí", "positive", "pos"})
NO = frozenset({"0", "no", "n", "false", "f", "nein", "non", "negative", "neg"})

LOOK_ALIKE = "Some look alike but have other characters (Unicode NFC and NFD)."


def find_in_labels(
    columns: Columns, label: str, files: Mapping[str, str], task: str | None = None
) -> list[Finding]:
    """Return findings on the label column of a classification.

    Args:
        columns: The label column of each site, as its file holds it.
        label: The name of the column.
        files: The file of each site.
        task: `classification` or `regression`, if that is known.

    Returns:
        Codings that differ between sites, spellings that are read as one class, classes whose
        names are nearly equal, and words such as `none` that are read as a class.
    """
    written = {site: Counter(map(str, cells_as_text(cells))) for site, cells in columns.items()}
    labels = read_labels(columns, task)
    classes = count_classes(labels)
    split = split_classes(classes, label, files)
    named = {name for finding in split for name in _mapped(finding, label)}
    return [
        *split,
        *_merged_spellings(columns, labels, label, files),
        *_shifted_numbers(classes, label, files),
        *_gap_words(written, label, task),
        *nearly_equal(classes, label, f"the label column {in_quotes(label)}: the classes", named),
    ]


def count_classes(labels: Columns) -> dict[str, Counter[str]]:
    """Return how many rows of each site have each class; gaps are left out."""
    return {
        site: Counter(map(str, cells_as_text(cells[~label_gaps(cells)])))
        for site, cells in labels.items()
    }


def split_classes(classes: Counts, label: str, files: Mapping[str, str]) -> list[Finding]:
    """Return findings on classes that are one class under different names at different sites.

    Training on them is refused: each site would learn classes of its own.

    Args:
        classes: How many rows of each site have each class.
        label: The name of the label column.
        files: The file of each site.

    Returns:
        One finding, with the mapping where it is known; none if all sites use the same names.
    """
    names = {site: set(counts) for site, counts in classes.items() if counts}
    key, certain = _meaning(names)
    mapping = _mapping(classes, key)
    shown = codings(names, files)
    start = f"the label column {in_quotes(label)} is coded differently between sites: {shown}."
    if mapping:
        repair = {"values": {label: mapping}}
        sure = "" if certain else " if that is what they mean"
        alike = "" if _looks_different(mapping) else f" {LOOK_ALIKE}"
        count = len(set().union(*names.values()))
        message = (
            f"{start}{alike} As they stand they would be {count} classes; "
            f"map them in the schema{sure}: {mapping_as_yaml(label, mapping)}"
        )
        return [Finding(message, label, repair=repair, certain=certain)]
    numbers = [site for site in names if all(map(is_number, names[site]))]
    words = [site for site in names if _are_words(names[site])]
    if numbers and words:
        unknown = sorted(set().union(*(names[site] for site in words)))
        example = mapping_as_yaml(label, dict.fromkeys(unknown, "..."))
        known = sorted(set().union(*(names[site] for site in numbers)))
        message = f"{start} Say in the schema which of {some(known)} each word is: {example}"
        return [Finding(message, label, tuple(words))]
    return []


def nearly_equal(
    counts: Counts, column: str, start: str, known: Iterable[str] = ()
) -> list[Finding]:
    """Return findings on values that differ in case, spaces or signs only.

    Args:
        counts: How many rows of each site have each value.
        column: The column.
        start: The start of the message.
        known: Values that another finding names already.

    Returns:
        One finding for each group of such values.
    """
    total = total_of(counts)
    groups: dict[str, list[str]] = {}
    for name in sorted(set(total) - set(known)):
        groups.setdefault(_loose(name), []).append(name)
    findings = []
    for group in groups.values():
        if len(group) < 2:
            continue
        looks_equal = len({unicodedata.normalize("NFC", name) for name in group}) == 1
        best = max(group, key=lambda name: (total[name], name))
        repair = {"values": {column: {name: best for name in group if name != best}}}
        shown = " and ".join(f"{as_value(name)} ({row_text(total[name])})" for name in group)
        message = (
            f"{start} {shown} are nearly equal but count as different; write them alike, "
            f"or map them in the schema: {as_yaml(repair)}"
        )
        findings.append(Finding(message, column, repair=repair, certain=looks_equal))
    return findings


def missing_labels(gaps: Sequence[str], label: str, rows: int, words: Iterable[str]) -> str:
    """Return the message about rows without a label.

    Args:
        gaps: The first of them, such as `boston.csv, line 17`.
        label: The name of the label column.
        rows: The number of such rows.
        words: The cells that were read as gaps, such as `NA`.

    Returns:
        One or two sentences.
    """
    more = f" and {rows - len(gaps)} more" if rows > len(gaps) else ""
    have = "1 row has" if rows == 1 else f"{rows} rows have"
    message = f"{have} no value in the label column {in_quotes(label)} ({'; '.join(gaps)}{more}). "
    message += "Every row needs a label: fill in the missing cells"
    named = sorted(word for word in words if word)
    if named:
        example = as_yaml({"values": {label: {named[0]: "name of the class"}}})
        message += f"; if {quoted(named[0])} is a class, name it in the schema: {example}"
    return message


def same_text(name: str) -> str:
    """Return a key that is the same for names which differ in spelling only.

    >>> same_text("Not_Sick") == same_text("not sick"), same_text("1.0") == same_text("01")
    (True, True)
    """
    if is_number(name):
        return str(cells_as_text(column_of([name]))[0])
    text = unicodedata.normalize("NFC", name).casefold().strip()
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", " ", text.replace("_", " "))


def truth(name: str) -> str:
    """Return 0 or 1 for a word that means no or yes."""
    return "1" if same_text(name) in YES else "0"


def is_truth(names: Iterable[str]) -> bool:
    """Return True if all names mean yes or no."""
    return all(same_text(name) in YES | NO for name in names)


def _meaning(names: Mapping[str, set[str]]) -> tuple[Callable[[str], str], bool]:
    """Return a key that is equal for names of one meaning, and True if that is certain."""
    every: set[str] = set().union(*names.values())
    if is_truth(every) and len(set(map(same_text, every))) > len(set(map(truth, every))):
        return truth, False
    return same_text, True


def _mapping(classes: Counts, key: Callable[[str], str]) -> dict[str, str]:
    """Return names to replace, with their replacement: equal keys that sites use apart."""
    groups: dict[str, list[str]] = {}
    total = total_of(classes)
    for name in sorted(total):
        groups.setdefault(key(name), []).append(name)
    usual = _usual_coding(classes)
    mapping = {}
    for group in groups.values():
        if len(group) < 2:
            continue
        by_site = [{name for name in group if name in counts} for counts in classes.values()]
        if _apart([names for names in by_site if names]):
            best = max(group, key=lambda name: (name in usual, total[name], name))
            mapping.update({name: best for name in group if name != best})
    return mapping


def _looks_different(mapping: Mapping[str, str]) -> bool:
    return any(unicodedata.normalize("NFC", old) != new for old, new in mapping.items())


def _apart(used: Sequence[set[str]]) -> bool:
    """Return True if two sites have no name of a group in common."""
    distinct = list(map(set, {frozenset(names) for names in used}))
    return any(first.isdisjoint(second) for first in distinct for second in distinct)


def _usual_coding(classes: Counts) -> frozenset[str]:
    """Return the names that most sites use; among ties numbers, then those with most rows."""
    sites: Counter[frozenset[str]] = Counter()
    rows: Counter[frozenset[str]] = Counter()
    for counts in classes.values():
        sites[frozenset(counts)] += 1
        rows[frozenset(counts)] += sum(counts.values())

    def rank(names: frozenset[str]) -> tuple[int, bool, int, list[str]]:
        return sites[names], all(map(is_number, names)), rows[names], sorted(names)

    return max(sites, key=rank)


def _merged_spellings(
    columns: Columns, labels: Columns, label: str, files: Mapping[str, str]
) -> list[Finding]:
    """Return a finding on spellings that are read as one class, such as 01 and 1."""
    several = {
        name: spellings
        for name, spellings in sorted(_spellings(columns, labels, files).items())
        if len(spellings) > 1
    }
    if not several:
        return []
    mapping: dict[str, str] = {}
    for name, spellings in several.items():
        mapping.update({spelling: name for spelling in spellings if spelling != name})
    texts = []
    for name, spellings in list(several.items())[:5]:
        shown = [
            f"{quoted(spelling)} ({some(sorted(in_files))})"
            for spelling, in_files in sorted(spellings.items())
        ]
        texts.append(f"{' and '.join(shown)} as {quoted(name)}")
    repair = {"values": {label: mapping}}
    message = (
        f"the label column {in_quotes(label)} is spelled in different ways, which are read as one "
        f"class: {'; '.join(texts)}. If sites only code it differently, that is right: "
        f"{mapping_as_yaml(label, mapping)}; if not, map them to different names"
    )
    certain = all(_apart(_spellings_by_file(spellings)) for spellings in several.values())
    return [Finding(message, label, repair=repair, certain=certain)]


def _spellings(
    columns: Columns, labels: Columns, files: Mapping[str, str]
) -> dict[str, dict[str, set[str]]]:
    """Return for each class its spellings, and for each of them the files that use it.

    Args:
        columns: The label column of each site, as its file holds it.
        labels: The same cells as classes.
        files: The file of each site.
    """
    by_class: dict[str, dict[str, set[str]]] = {}
    for site, cells in columns.items():
        spellings = map(str, cells_as_text(cells))
        names = map(str, cells_as_text(labels[site]))
        for spelling, name in set(zip(spellings, names, strict=True)):
            if name and not is_missing(spelling):
                by_class.setdefault(name, {}).setdefault(spelling, set()).add(files[site])
    return by_class


def _spellings_by_file(spellings: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the spellings that each file uses."""
    by_file: dict[str, set[str]] = {}
    for spelling, in_files in spellings.items():
        for file in in_files:
            by_file.setdefault(file, set()).add(spelling)
    return list(by_file.values())


def _shifted_numbers(classes: Counts, label: str, files: Mapping[str, str]) -> list[Finding]:
    """Return a finding on two numbers per site that differ between sites, as 0/1 and 1/2."""
    names = {site: set(counts) for site, counts in classes.items() if counts}
    if not are_shifted(names.values()):
        return []
    site, site_names = next(iter(names.items()))
    mapping = dict.fromkeys(sorted(site_names), "...")
    example = as_yaml({"sites": {site: {"values": {label: mapping}}}})
    message = (
        f"the label column {in_quotes(label)} has two classes at every site, but not the same: "
        f"{codings(names, files)}. If they mean the same, map them in the schema: {example}"
    )
    return [Finding(message, label)]


def are_shifted(names: Iterable[Iterable[str]]) -> bool:
    """Return True if every site has two classes, which are numbers and not the same two.

    Args:
        names: The classes of each site.
    """
    pairs = set(map(frozenset, names))
    every = frozenset[str]().union(*pairs)
    if len(pairs) < 2 or len(every) < 3 or any(len(pair) != 2 for pair in pairs):
        return False
    return all(map(is_number, every))


def _gap_words(written: Counts, label: str, task: str | None) -> list[Finding]:
    """Return findings on words such as `none` that are read as a class but often mean a gap."""
    counts = total_of(written)
    if task == "regression":
        return []
    findings = []
    for word in sorted(class_words(counts, task)):
        repair = {"missing": {label: [word]}}
        message = (
            f"the label column {in_quotes(label)}: {quoted(word)} ({row_text(counts[word])}) "
            "is read as a class because it is frequent; if it means that the label is unknown: "
            f"{as_yaml(repair)}, and these rows are refused until their labels are filled in"
        )
        findings.append(Finding(message, label, repair=repair))
    return findings


def _mapped(finding: Finding, label: str) -> set[str]:
    mapping = (finding.repair or {}).get("values", {}).get(label, {})
    return {*mapping, *mapping.values()}


def _loose(name: str) -> str:
    """Return a name without case, spaces and signs, but with those that change a meaning."""
    text = unicodedata.normalize("NFC", name).casefold()
    return re.sub(r"[^\w+<>=-]+|_|(?<=\w)-+(?=\w)", "", text) or name


def _are_words(names: set[str]) -> bool:
    """Return True if no name has a digit, and they are not just a word for a gap."""
    return not any(map(str.isdigit, "".join(names))) and not all(map(is_missing, names))
