"""Patients' records: patients and their events, in the form of FedAKD's Appendix H.

A folder holds patients.csv (patient, sex, postal_code, a column that names the site, and label if
it is known) and events.csv (patient, code, value, age, and system and time if they are known), as
CSV or Parquet; or there is one such folder per site. Files are read in blocks, so that memory
grows with the number of events and not with the size of the text. Everything that is left out or
changed is reported with file, row and count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.message_text import counted, plural, some
from equipoise.data.patients.codes import (
    PANCREATIC_CANCER,
    STATES,
    SYSTEMS,
    LabelRule,
    state_of,
    system_of,
)
from equipoise.data.patients.record_files import column_among, number_of, read_blocks, time_in_days
from equipoise.data.tables.csv_files import is_missing
from equipoise.validation.names import checked_name, quoted
from equipoise.validation.regular_files import check_regular

OLDEST = 130
LARGEST = 1e30  # a larger value is no measurement, and its square overflows in the network
SEXES = {"f": 0, "female": 0, "w": 0, "m": 1, "male": 1}
UNKNOWN_SEX = 2
UNKNOWN_SITE = "unknown"
UNKNOWN_LABEL = -1  # the codes of a patient decide
NAMES = {
    "patient": ("patient", "patient_id"),
    "sex": ("sex", "gender"),
    "postal_code": ("postal_code", "zip", "zipcode", "zip_code"),
    "label": ("label",),
    "code": ("code",),
    "value": ("value",),
    "age": ("age", "age_at_event"),
    "system": ("system", "code_system"),
    "time": ("time", "date", "datetime"),
    "site": ("state", "site"),
}
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
Cells = Mapping[str, Sequence[str]]  # the cells of a block of rows, by column


@dataclass
class Notes:
    """Sentences about rows that were left out or changed, with count and first row.

    Attributes:
        counts: The number of rows, by file, noun and reason.
        first: The first of these rows.
        other: Further sentences.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str, str], str] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)

    def add(
        self, file: str, noun: str, reason: str, row: int, cell: str = "", count: int = 1
    ) -> None:
        """Count a row.

        Args:
            file: The file.
            noun: The thing that is counted, in the singular, such as `patient`.
            reason: The rest of the sentence, such as `left out: no id`.
            row: The number of the row in the file.
            cell: The cell that is wrong.
            count: How many things there are.
        """
        key = (file, noun, reason)
        self.counts[key] += count
        self.first.setdefault(key, f"row {row} ({quoted(cell)})" if cell else f"row {row}")

    def sentences(self) -> list[str]:
        """Return one sentence for each reason, then the further sentences."""
        sentences = []
        for (file, noun, reason), count in self.counts.items():
            first = self.first[file, noun, reason]
            sentences.append(f"{file}: {counted(count, noun)} {reason}; the first in {first}")
        return sentences + self.other


@dataclass(frozen=True)
class Records:
    """Patients and their events before diagnosis, sorted by time.

    Events are flat arrays, one per property; `offsets` says which events belong to which patient.

    Attributes:
        site: The site of each patient, an index into `site_names`.
        site_names: The names of the sites.
        sex: 0 female, 1 male, 2 unknown.
        state: An index into STATES; their number: unknown.
        label: 1 for positive patients, else 0.
        offsets: The first event of each patient, and the end of the last.
        code: The code of each event, an index into `codes`.
        value: The value of each event; NaN: none.
        age: The patient's age at each event, in years.
        codes: The names of the codes.
        notes: Sentences about rows that were left out or changed.
        ids: The patients' ids, after the site's name if each site has a folder.
    """

    site: np.ndarray
    site_names: tuple[str, ...]
    sex: np.ndarray
    state: np.ndarray
    label: np.ndarray
    offsets: np.ndarray
    code: np.ndarray
    value: np.ndarray
    age: np.ndarray
    codes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.site)

    @property
    def lengths(self) -> np.ndarray:
        """The number of events of each patient."""
        return np.diff(self.offsets)


def is_patients(path: Path) -> bool:
    """Return True if a folder holds patients' records, or folders of sites that do."""
    return bool(record_folders(path))


def record_folders(path: Path) -> dict[str, tuple[Path, Path]]:
    """Return the files of patients and events of each site; "" names one folder for all sites."""
    if not path.is_dir():
        return {}
    files = _record_files(path)
    if files is not None:
        return {"": files}
    by_site = {}
    for folder in _site_folders(path):
        files = _record_files(folder)
        if files is not None:
            by_site[folder.name] = files
    return by_site


def _site_folders(path: Path) -> list[Path]:
    """Return the folders of sites; hidden ones (.git, .ipynb_checkpoints) belong to programs."""
    return [
        folder
        for folder in sorted(path.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    ]


def _record_files(folder: Path) -> tuple[Path, Path] | None:
    """Return the files of patients and events of a folder, if it has both."""
    patients = _record_file(folder, "patients")
    events = _record_file(folder, "events")
    if patients is None or events is None:
        return None
    return patients, events


def _record_file(folder: Path, stem: str) -> Path | None:
    candidates = [folder / f"{stem}{ending}" for ending in ENDINGS]
    for file in candidates:
        check_regular(file)
    files = [file for file in candidates if file.is_file()]
    if len(files) > 1:
        raise ValueError(
            f"{folder}: expected one file of {stem}, got {files[0].name} and {files[1].name}; "
            "move one of them away"
        )
    return files[0] if files else None


def read_patients(
    path: Path | str,
    site: str | None = None,
    rule: LabelRule = PANCREATIC_CANCER,
    anywhere: bool = False,
    own_site: str | None = None,
) -> Records:
    """Read all patients of a folder.

    Args:
        path: A folder with patients and events, or with one such folder per site.
        site: The column that names the site, if one folder holds all; default: `state` or `site`,
            else the state of the postal code.
        rule: The codes that make a patient positive, where the file has no labels.
        anywhere: True to keep patients of no known site, too, as for prediction.
        own_site: The site of all patients, if the folder is that of one site alone.

    Raises:
        ValueError: If files are missing or damaged, or no patient is left.
    """
    path = Path(path)
    folders = record_folders(path)
    _check_layout(path, folders, site)
    if own_site is not None:
        folders = {own_site: folders[""]}
    reader = _RecordReader(rule, anywhere)
    for folder, (patients, events) in folders.items():
        prefix = f"{folder}/" if folder else ""
        reader.read_patients(patients, prefix + patients.name, folder, site)
        reader.read_events(events, prefix + events.name, folder, patients.name)
    return reader.finish()


def _check_layout(path: Path, folders: Mapping[str, tuple[Path, Path]], site: str | None) -> None:
    """Refuse folders that hold neither or both of the two layouts."""
    if not folders:
        raise ValueError(
            f"{path}: expected patients.csv and events.csv (or .parquet), "
            "or one folder per site with both"
        )
    if "" in folders:
        return
    for folder in _site_folders(path):
        if folder.name not in folders:
            raise ValueError(
                f"{path}: expected patients.csv and events.csv in every site's folder, "
                f"but not in {folder.name}; add them or move the folder away"
            )
    for stem in ("patients", "events"):
        for ending in ENDINGS:
            if (path / f"{stem}{ending}").is_file():
                raise ValueError(
                    f"{path}: expected either one folder for all sites or one per site, "
                    f"got {stem}{ending} and folders of sites"
                )
    if site is not None:
        raise ValueError(
            f"site: {site} is for one folder that holds all sites; {path} has one folder per site"
        )


@dataclass(frozen=True)
class _Patient:
    """One row of a file of patients."""

    site: str
    sex: int
    state: int
    label: int


class _RecordReader:
    """Collects patients and events of all files in typed arrays."""

    def __init__(self, rule: LabelRule, anywhere: bool) -> None:
        self.rule = rule
        self.anywhere = anywhere
        self.notes = Notes()
        # Sites with a folder of their own may use the same ids.
        self.index: dict[tuple[str, str], int] = {}  # (folder, id) -> position in `patients`
        self.patients: list[_Patient] = []
        self.codes: dict[str, int] = {}
        self.is_positive: list[bool] = []  # by code
        self.blocks: list[np.ndarray] = []  # of dtype EVENT

    def read_patients(self, file: Path, shown: str, folder: str, site: str | None) -> None:
        """Read a file of patients.

        Args:
            file: The file.
            shown: Its name in messages.
            folder: The site, if it has a folder of its own.
            site: The column that names the site.
        """
        columns = {name: NAMES[name] for name in ("patient", "sex", "postal_code", "label")}
        required = ["patient", "sex", "postal_code"]
        if not folder:
            site_column = site or column_among(file, NAMES["site"])
            if site_column is not None:
                columns["site"] = (site_column.lower(),)
            if site:
                required.append("site")
        for start, cells in read_blocks(file, columns, required):
            for offset, patient in enumerate(cells["patient"]):
                row = start + offset
                if is_missing(patient):
                    self.notes.add(shown, "patient", "left out: no id", row)
                elif (folder, patient) in self.index:
                    self.notes.add(
                        shown, "row", "left out: the patient was listed before", row, patient
                    )
                else:
                    self._add_patient(folder, cells, offset, shown, row)

    def _add_patient(self, folder: str, cells: Cells, offset: int, shown: str, row: int) -> None:
        patient = cells["patient"][offset]
        postal_code = cells["postal_code"][offset]
        state = state_of(postal_code)
        if state is None:
            self.notes.add(shown, "postal code", "of no state, read as unknown", row, postal_code)
        site = folder
        if not folder:
            site = cells["site"][offset].strip() if "site" in cells else state or ""
        if not site or is_missing(site):
            if not self.anywhere:
                self.notes.add(shown, "patient", "left out: no known site", row, patient)
                return
            site = UNKNOWN_SITE
        sex_cell = cells["sex"][offset]
        sex = SEXES.get(sex_cell.strip().lower(), UNKNOWN_SEX)
        if sex == UNKNOWN_SEX:
            self.notes.add(shown, "patient", "of unknown sex (known: female, male)", row, sex_cell)
        label = UNKNOWN_LABEL
        if "label" in cells:
            label = _parse_label(cells["label"][offset], shown, row)
        site = checked_name(site, f"{shown}, row {row}: the site of a patient,")
        self.index[folder, patient] = len(self.patients)
        self.patients.append(
            _Patient(site, sex, STATES.index(state) if state else len(STATES), label)
        )

    def read_events(self, file: Path, shown: str, folder: str, patients_file: str) -> None:
        """Read a file of events.

        Args:
            file: The file.
            shown: Its name in messages.
            folder: The site, if it has a folder of its own.
            patients_file: The name of the file of patients, for messages.
        """
        columns = {
            name: NAMES[name] for name in ("patient", "code", "value", "age", "system", "time")
        }
        unknown_patient = f"left out: the patient is not in {patients_file}"
        last_age: dict[int, float] = {}
        first_block = len(self.blocks)
        for start, cells in read_blocks(file, columns, ("patient", "code", "value", "age")):
            events = []
            for offset, patient in enumerate(cells["patient"]):
                row = start + offset
                index = self.index.get((folder, patient))
                if index is None:
                    self.notes.add(shown, "event", unknown_patient, row, patient)
                    continue
                event = self._read_event(index, cells, offset, shown, row)
                if event is None:
                    continue
                events.append(event)
                age = event[2]
                if age < last_age.get(index, 0.0) and "time" not in cells:
                    self.notes.add(
                        shown,
                        "event",
                        "after a later one of the same patient; events were sorted by age",
                        row,
                    )
                last_age[index] = age
            self.blocks.append(np.array(events, EVENT))
        if column_among(file, NAMES["time"]) is not None:
            self._check_order(self.blocks[first_block:], shown)

    def _read_event(
        self, index: int, cells: Cells, offset: int, shown: str, row: int
    ) -> tuple[int, float, float, float, int, int] | None:
        """Return one event as a row of dtype EVENT; None if it is left out."""
        system = system_of(cells["system"][offset]) if "system" in cells else ""
        if system is None:
            known = ", ".join(sorted(set(SYSTEMS.values())))
            reason = f"left out: unknown code system (known: {known})"
            self.notes.add(shown, "event", reason, row, cells["system"][offset])
            return None
        age = number_of(cells["age"][offset])
        if not 0 <= age <= OLDEST:
            reason = f"left out: no age from 0 to {OLDEST}"
            self.notes.add(shown, "event", reason, row, cells["age"][offset])
            return None
        when = time_in_days(cells["time"][offset]) if "time" in cells else age
        if math.isnan(when):
            reason = "left out: no valid time (2024-01-31, or a number)"
            self.notes.add(shown, "event", reason, row, cells["time"][offset])
            return None
        code = cells["code"][offset]
        if is_missing(code):
            self.notes.add(shown, "event", "left out: no code", row)
            return None
        value = self._read_value(cells["value"][offset], shown, row)
        return index, when, age, value, self._code_index(system, code), row

    def _read_value(self, cell: str, shown: str, row: int) -> float:
        value = number_of(cell)
        if abs(value) <= LARGEST:
            return value
        if not is_missing(cell):
            self.notes.add(shown, "value", "read as missing: not a number", row, cell)
        return math.nan

    def _check_order(self, blocks: list[np.ndarray], shown: str) -> None:
        """Note events whose ages disagree with their times."""
        events: Any = np.concatenate([np.zeros(0, EVENT), *blocks])
        events = events[np.lexsort((events["when"], events["patient"]))]
        is_younger = np.diff(events["age"]) < 0
        is_same_patient = np.diff(events["patient"]) == 0
        wrong = np.flatnonzero(is_younger & is_same_patient)
        if len(wrong):
            self.notes.add(
                shown,
                "event",
                "with an age below that of an earlier one; events are sorted by time",
                int(events["row"][wrong + 1].min()),
                count=len(wrong),
            )

    def _code_index(self, system: str, cell: str) -> int:
        code = cell.strip().upper()
        name = f"{system}:{code}" if system else code
        if name not in self.codes:
            self.codes[name] = len(self.codes)
            self.is_positive.append(self.rule.matches(system, cell))
        return self.codes[name]

    def finish(self) -> Records:
        """Return all patients with their events before diagnosis.

        Raises:
            ValueError: If there is no patient.
        """
        if not self.patients:
            reasons = "".join(f"; {sentence}" for sentence in self.notes.sentences())
            raise ValueError(
                f"expected at least one patient with an id and a site; none is left{reasons}"
            )
        sites = np.array([patient.site for patient in self.patients])
        site_names = tuple(sorted(set(sites.tolist())))
        events: Any = np.concatenate([np.zeros(0, EVENT), *self.blocks])
        self.blocks = []
        records = Records(
            site=np.searchsorted(site_names, sites),
            site_names=site_names,
            sex=np.array([patient.sex for patient in self.patients]),
            state=np.array([patient.state for patient in self.patients]),
            label=np.array([patient.label for patient in self.patients]),
            offsets=np.zeros(len(sites) + 1, np.int64),
            code=events["code"],
            value=events["value"],
            age=events["age"],
            codes=tuple(self.codes),
        )
        is_positive = np.array(self.is_positive, bool)
        records = before_diagnosis(
            records, events["patient"], events["when"], is_positive, self.notes
        )
        self._note_empty_histories(records)
        self._note_sites_without_positives(records)
        ids = [f"{folder}/{patient}" if folder else patient for folder, patient in self.index]
        return replace(records, notes=tuple(self.notes.sentences()), ids=tuple(ids))

    def _note_empty_histories(self, records: Records) -> None:
        empty = records.lengths == 0
        if not empty.any():
            return
        positive = int(records.label[empty].sum())
        before = " before the diagnosis" if positive else ""
        self.notes.other.append(
            f"{int(empty.sum()):,} of {counted(len(records), 'patient')} without an event{before}, "
            f"kept with an empty history; {positive:,} of them positive"
        )

    def _note_sites_without_positives(self, records: Records) -> None:
        without = [
            name
            for index, name in enumerate(records.site_names)
            if not records.label[records.site == index].any()
        ]
        if not without:
            return
        sites = plural("site", len(records.site_names))
        self.notes.other.append(
            f"{len(without)} of {len(records.site_names)} {sites} without a positive patient, "
            f"whose own results say nothing about positives: {some(without)}"
        )


def before_diagnosis(
    records: Records, owner: np.ndarray, when: np.ndarray, positive: np.ndarray, notes: Notes
) -> Records:
    """Return records with events sorted by time, and without those from the diagnosis on.

    The diagnosis is the first event with a positive code. It decides the label of a patient
    whose label is not known.

    Args:
        records: The patients, with events in any order and labels of -1 where unknown.
        owner: The patient of each event.
        when: The time of each event.
        positive: True for each code that makes a patient positive.
        notes: Notes that receive what was removed.
    """
    order = np.lexsort((when, owner))
    owner = owner[order]
    when = when[order]
    code = records.code[order]
    diagnosis = np.full(len(records), np.inf)
    hits = positive[code] if len(code) else np.zeros(0, bool)
    np.minimum.at(diagnosis, owner[hits], when[hits])
    is_diagnosed = np.isfinite(diagnosis)
    label = records.label
    is_known = label != UNKNOWN_LABEL
    contradicting = np.flatnonzero(is_known & ((label > 0) != is_diagnosed))
    if len(contradicting):
        notes.other.append(
            f"{counted(len(contradicting), 'patient')} with a label that contradicts the codes; "
            f"the label was used (the first is patient {contradicting[0] + 1})"
        )
    is_before = when < diagnosis[owner]
    if not is_before.all():
        removed = counted(int((~is_before).sum()), "event")
        diagnosed = counted(int(is_diagnosed.sum()), "patient")
        notes.other.append(f"{removed} at or after the diagnosis of {diagnosed} removed")
    sizes = np.bincount(owner[is_before], minlength=len(records))
    return replace(
        records,
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        label=np.where(is_known, label, is_diagnosed).astype(np.int64),
        code=code[is_before],
        value=records.value[order][is_before],
        age=records.age[order][is_before],
    )


def _parse_label(cell: str, shown: str, row: int) -> int:
    if cell.strip() in ("0", "1", "0.0", "1.0"):
        return int(float(cell))
    raise ValueError(
        f"{shown}, row {row}: expected a label of 0 or 1, got {quoted(cell)}; "
        "leave the column out to label by codes"
    )
