"""Patients' records: who they are, and what happened when (the schema of FedAKD's real-world experiment, Appendix H).

A folder holds patients.csv (patient, sex, postal_code, and a column that names the site; label if it is known) and events.csv (patient, code, value,
age; system and time if they are known), as CSV or Parquet; or one such folder per site. Files are read in blocks, so that memory follows the
number of events and not the size of the text. Whatever is left out or changed is told, with file, row and count.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.patients.codes import (
    PANCREATIC_CANCER,
    STATES,
    SYSTEMS,
    LabelRule,
    state_of,
    system_of,
)
from equipoise.data.patients.record_files import blocks, column_among, moment_of, number_of
from equipoise.data.tables.csv_files import is_missing
from equipoise.validation.names import checked_name, quoted
from equipoise.validation.regular_files import check_regular

OLDEST = 130
LARGEST = 1e30  # of a value: what lies beyond is no measurement, and its square no number of the network's
SEXES = {"f": 0, "female": 0, "w": 0, "m": 1, "male": 1}
UNKNOWN_SEX = 2
NAMES = {
    "patient": ("patient", "patient_id"), "sex": ("sex", "gender"), "postal_code": ("postal_code", "zip", "zipcode", "zip_code"),
    "label": ("label",), "code": ("code",), "value": ("value",), "age": ("age", "age_at_event"), "system": ("system", "code_system"),
    "time": ("time", "date", "datetime"), "site": ("state", "site"),
}  # fmt: skip
ENDINGS = (".csv", ".parquet")
EVENT = np.dtype(
    [
        ("patient", "i4"),
        ("when", "f8"),
        ("age", "f4"),
        ("value", "f4"),
        ("code", "i4"),
        ("row", "i4"),
    ]
)


@dataclass
class Notes:
    """What was left out or changed: a sentence for each reason, with the first place and the count."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (file, reason) -> rows
    first: dict[tuple[str, str], str] = field(default_factory=dict)
    more: list[str] = field(default_factory=list)

    def add(self, file: str, reason: str, row: int, cell: str = "", count: int = 1) -> None:
        key = (file, reason)
        self.counts[key] += count
        self.first.setdefault(key, f"row {row}" + (f" ({quoted(cell)})" if cell else ""))

    def sentences(self) -> list[str]:
        counted = [
            f"{file}: {count:,} {reason}; the first in {self.first[file, reason]}"
            for (file, reason), count in self.counts.items()
        ]
        return counted + self.more


@dataclass(frozen=True)
class Records:
    """Patients and their events, before diagnosis only, in the order of time: one flat array per fact, cut by `offsets`."""

    site: np.ndarray  # of each patient, a number into site_names
    site_names: tuple[str, ...]
    sex: np.ndarray  # 0 female, 1 male, 2 unknown
    state: np.ndarray  # a number into STATES; their count: unknown
    label: np.ndarray
    offsets: np.ndarray  # where each patient's events begin, and the end
    code: np.ndarray  # a number into codes
    value: np.ndarray  # NaN: none
    age: np.ndarray  # in years
    codes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    ids: tuple[
        str, ...
    ] = ()  # as their files have them, behind the site where each has a folder of its own

    def __len__(self) -> int:
        return len(self.site)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


def is_patients(path: Path) -> bool:
    """Whether a folder holds patients' records, or folders of sites that do."""
    return bool(folders(path))


def folders(path: Path) -> dict[str, tuple[Path, Path]]:
    """Site -> its two files; one folder for all sites has the name ""."""
    if not path.is_dir():
        return {}
    both = _both(path)
    if both is not None:
        return {"": both}
    found = {folder.name: _both(folder) for folder in _subfolders(path)}
    return (
        {name: files for name, files in found.items() if files is not None}
        if any(found.values())
        else {}
    )


def _subfolders(path: Path) -> list[Path]:
    """Those of sites; what programs keep for themselves (.git, .ipynb_checkpoints) is none."""
    return [
        folder
        for folder in sorted(path.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    ]


def _both(folder: Path) -> tuple[Path, Path] | None:
    def one(stem: str) -> Path | None:
        named = [folder / f"{stem}{ending}" for ending in ENDINGS]
        for file in named:
            check_regular(file)
        found = [file for file in named if file.is_file()]
        if len(found) > 1:
            raise ValueError(
                f"{folder}: expected one file of {stem}, got {found[0].name} and {found[1].name}; move one of them away"
            )
        return found[0] if found else None

    patients, events = one("patients"), one("events")
    return (patients, events) if patients is not None and events is not None else None


def read_patients(
    path: Path | str,
    site: str | None = None,
    rule: LabelRule = PANCREATIC_CANCER,
    anywhere: bool = False,
) -> Records:
    """All patients of a folder; `site` is the column that names the site where one folder holds all (default: state, or the postal code's).

    `anywhere` keeps patients of no known site, too: who is predicted need not belong to one.
    """
    path = Path(path)
    found = folders(path)
    if not found:
        raise ValueError(
            f"{path}: expected patients.csv and events.csv (or .parquet), or one folder per site with both"
        )
    lone = [
        folder.name for folder in _subfolders(path) if "" not in found and folder.name not in found
    ]
    if lone:
        raise ValueError(
            f"{path}: expected patients.csv and events.csv in every site's folder, which {lone[0]} has not"
        )
    beside = [
        f"{stem}{ending}"
        for stem in ("patients", "events")
        for ending in ENDINGS
        if (path / f"{stem}{ending}").is_file()
    ]
    if "" not in found and beside:
        raise ValueError(
            f"{path}: expected either one folder for all sites or one per site, got {beside[0]} beside the sites' folders"
        )
    if site is not None and "" not in found:
        raise ValueError(
            f"site: {site} is for one folder that holds all sites; {path} has one folder per site"
        )
    notes, reader = Notes(), _Reader(rule, anywhere)
    for name, (patients, events) in found.items():
        shown = f"{name}/" if name else ""
        reader.patients(patients, shown + patients.name, name, site, notes)
        reader.events(events, shown + events.name, patients.name, notes)
    return reader.finished(notes)


class _Reader:
    """Collects patients and events of all files in typed arrays."""

    def __init__(self, rule: LabelRule, anywhere: bool) -> None:
        self.rule, self.anywhere = rule, anywhere
        self.place: dict[
            str, int
        ] = {}  # patient -> number; ids of sites' folders carry the site's name, since sites count by themselves
        self.rows: list[tuple[str, int, int, int]] = []  # site, sex, state, label (-1: by codes)
        self.codes: dict[str, int] = {}
        self.positive: dict[int, bool] = {}  # by code
        self.blocks: list[np.ndarray] = []  # structured events

    def patients(self, file: Path, shown: str, name: str, site: str | None, notes: Notes) -> None:
        self.prefix = name
        by_column = site or column_among(file, NAMES["site"])
        wanted = {
            "patient": NAMES["patient"],
            "sex": NAMES["sex"],
            "postal_code": NAMES["postal_code"],
            "label": NAMES["label"],
        }
        if not name and by_column is not None:
            wanted["site"] = (by_column.lower(),)
        needed = ("patient", "sex", "postal_code", *(("site",) if site and not name else ()))
        for start, cells in blocks(file, wanted, needed):
            for k, patient in enumerate(cells["patient"]):
                row, key = start + k, f"{name}\x1f{patient}"
                if is_missing(patient):
                    notes.add(shown, "patients without an id were left out", row)
                    continue
                if key in self.place:
                    notes.add(
                        shown,
                        "rows name a patient who was there before and were left out",
                        row,
                        patient,
                    )
                    continue
                state = state_of(cells["postal_code"][k])
                if state is None:
                    notes.add(
                        shown,
                        "postal codes are of no state and count as unknown",
                        row,
                        cells["postal_code"][k],
                    )
                own = name or (cells["site"][k].strip() if "site" in cells else state or "")
                if (not own or is_missing(own)) and self.anywhere:
                    own = "unknown"
                if not own or is_missing(own):
                    notes.add(shown, "patients of no known site were left out", row, patient)
                    continue
                sex = SEXES.get(cells["sex"][k].strip().lower(), UNKNOWN_SEX)
                if sex == UNKNOWN_SEX:
                    notes.add(
                        shown,
                        "patients have no sex that is known (female, male) and count as unknown",
                        row,
                        cells["sex"][k],
                    )
                label = _label(cells["label"][k], shown, row) if "label" in cells else -1
                self.place[key] = len(self.rows)
                self.rows.append(
                    (
                        checked_name(own, f"{shown}, row {row}: the site of a patient,"),
                        sex,
                        STATES.index(state) if state else len(STATES),
                        label,
                    )
                )

    def events(self, file: Path, shown: str, patients: str, notes: Notes) -> None:
        wanted = {
            name: NAMES[name] for name in ("patient", "code", "value", "age", "system", "time")
        }
        last: dict[int, float] = {}
        first = len(self.blocks)
        for start, cells in blocks(file, wanted, ("patient", "code", "value", "age")):
            rows = []
            for k, patient in enumerate(cells["patient"]):
                row = start + k
                place = self.place.get(f"{self.prefix}\x1f{patient}")
                if place is None:
                    notes.add(
                        shown, f"events are of nobody in {patients} and were left out", row, patient
                    )
                    continue
                system = system_of(cells["system"][k]) if "system" in cells else ""
                if system is None:
                    known = ", ".join(sorted(set(SYSTEMS.values())))
                    notes.add(
                        shown,
                        f"events have an unknown code system (known: {known}) and were left out",
                        row,
                        cells["system"][k],
                    )
                    continue
                age = number_of(cells["age"][k])
                if not 0 <= age <= OLDEST:
                    notes.add(
                        shown,
                        f"events have no age from 0 to {OLDEST} and were left out",
                        row,
                        cells["age"][k],
                    )
                    continue
                when = moment_of(cells["time"][k]) if "time" in cells else age
                if math.isnan(when):
                    notes.add(
                        shown,
                        "events have a time that is none (2024-01-31, or a number) and were left out",
                        row,
                        cells["time"][k],
                    )
                    continue
                if is_missing(cells["code"][k]):
                    notes.add(shown, "events without a code were left out", row)
                    continue
                value = number_of(cells["value"][k])
                value = value if abs(value) <= LARGEST else math.nan
                if math.isnan(value) and not is_missing(cells["value"][k]):
                    notes.add(
                        shown, "values are no numbers and count as missing", row, cells["value"][k]
                    )
                if age < last.get(place, 0.0) and "time" not in cells:
                    notes.add(
                        shown,
                        "events come after later ones of the same patient; events were put in the order of age",
                        row,
                    )
                last[place] = age
                rows.append((place, when, age, value, self._code(system, cells["code"][k]), row))
            found = np.array(rows, EVENT)
            self.blocks.append(found)
        if column_among(file, NAMES["time"]) is not None:
            self._check_order(self.blocks[first:], shown, notes)

    def _check_order(self, blocks: list[np.ndarray], shown: str, notes: Notes) -> None:
        """With times given, ages have to agree with them."""
        mine: Any = np.concatenate([np.zeros(0, EVENT), *blocks])
        mine = mine[np.lexsort((mine["when"], mine["patient"]))]
        wrong = np.flatnonzero((np.diff(mine["age"]) < 0) & (np.diff(mine["patient"]) == 0))
        if len(wrong):
            row = int(mine["row"][wrong + 1].min())
            notes.add(
                shown,
                "events have an age below that of an earlier one; the order is that of time",
                row,
                count=len(wrong),
            )

    def _code(self, system: str, cell: str) -> int:
        name = f"{system}:{cell.strip().upper()}" if system else cell.strip().upper()
        if name not in self.codes:
            self.codes[name] = len(self.codes)
            self.positive[self.codes[name]] = self.rule.matches(system, cell)
        return self.codes[name]

    def finished(self, notes: Notes) -> Records:
        if not self.rows:
            raise ValueError(
                "expected at least one patient with an id and a site; none is left"
                + "".join(f"; {one}" for one in notes.sentences())
            )
        sites, sex, state, told = (np.array(column) for column in zip(*self.rows, strict=True))
        names = tuple(sorted(set(sites.tolist())))
        events: Any = np.concatenate([np.zeros(0, EVENT), *self.blocks])
        self.blocks = []
        positive = np.array([self.positive[k] for k in range(len(self.codes))], bool)
        records = before_diagnosis(
            Records(
                np.searchsorted(names, sites), names, sex, state, told, np.zeros(len(sites) + 1, np.int64), events["code"], events["value"],
                events["age"], tuple(self.codes),
            ),
            events["patient"], events["when"], positive, notes,
        )  # fmt: skip
        silent = records.lengths == 0
        if silent.any():
            notes.more.append(
                f"{int(silent.sum()):,} of {len(records):,} patients have no event"
                f"{' before their diagnosis' if records.label[silent].any() else ''} and are kept with an empty history; "
                f"{int(records.label[silent].sum()):,} of them are positive"
            )
        without = [
            name
            for place, name in enumerate(names)
            if not records.label[records.site == place].any()
        ]
        if without:
            shown = ", ".join(without[:5]) + (
                f" and {len(without) - 5} more" if len(without) > 5 else ""
            )
            notes.more.append(
                f"{len(without)} of {len(names)} sites have no positive patient, so their own numbers say nothing of them: {shown}"
            )
        ids = tuple(key.replace("\x1f", "/").removeprefix("/") for key in self.place)
        return replace(records, notes=tuple(notes.sentences()), ids=ids)


def before_diagnosis(
    records: Records, owner: np.ndarray, when: np.ndarray, positive: np.ndarray, notes: Notes
) -> Records:
    """Events in the order of time, without those at or after the first code that makes a label; labels by codes where none were told."""
    order = np.lexsort((when, owner))
    owner, when, code = owner[order], when[order], records.code[order]
    ends = np.full(len(records), np.inf)
    hits = positive[code] if len(code) else np.zeros(0, bool)
    np.minimum.at(ends, owner[hits], when[hits])
    diagnosed = np.isfinite(ends)
    told = records.label
    against = np.flatnonzero((told >= 0) & ((told > 0) != diagnosed))
    if len(against):
        notes.more.append(
            f"{len(against):,} patients have a label that their codes do not tell; the label was followed (the first is patient {against[0] + 1})"
        )
    kept = when < ends[owner]
    if not kept.all():
        notes.more.append(
            f"{int((~kept).sum()):,} events at or after the diagnosis of {int(diagnosed.sum()):,} patients were removed"
        )
    offsets = np.concatenate(
        [[0], np.cumsum(np.bincount(owner[kept], minlength=len(records)))]
    ).astype(np.int64)
    values = {name: getattr(records, name)[order][kept] for name in ("code", "value", "age")}
    return Records(
        **{
            **vars(records),
            **values,
            "offsets": offsets,
            "label": np.where(told >= 0, told, diagnosed).astype(np.int64),
        }
    )


def _label(cell: str, shown: str, row: int) -> int:
    if cell.strip() in ("0", "1", "0.0", "1.0"):
        return int(float(cell))
    raise ValueError(
        f"{shown}, row {row}: expected a label of 0 or 1, got {quoted(cell)}; leave the column out to label by codes"
    )
