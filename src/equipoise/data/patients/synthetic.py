"""Synthetic patients, drawn at random: records of no real person.

They stand in for the private data of FedAKD's real-world experiment: its 50 states, with the sizes
and the shares of positives of the paper's Table 7. States differ in the codes they use, in their
measurements and in the number of visits, and histories carry a signal to learn.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.patients.codes import STATES
from equipoise.data.patients.histories import dataset_of
from equipoise.data.patients.records import UNKNOWN_LABEL, Notes, Records, before_diagnosis
from equipoise.streams import stream

NAME = "synthetic_patients"
SMALL = "synthetic_patients_small"
SMALL_SHARE = 0.06
NOTE = (
    "these patients are synthetic: drawn at random, nobody's records; "
    "results say nothing of medicine"
)
SEED = 2025
# Table 7: patients and positives of each state (training and test).
TABLE_7 = {
    "AK": (558, 196), "AL": (3410, 1292), "AR": (2341, 842), "AZ": (5521, 2347),
    "CA": (20040, 7116), "CO": (4164, 1362), "CT": (2595, 1180), "DE": (805, 342),
    "FL": (18898, 8158), "GA": (7901, 2461), "HI": (1060, 433), "IA": (2951, 1093),
    "ID": (1021, 361), "IL": (8932, 3497), "IN": (4388, 1523), "KS": (1857, 524),
    "KY": (4110, 1396), "LA": (3316, 1150), "MA": (3492, 1453), "MD": (5145, 1959),
    "ME": (1183, 473), "MI": (9744, 3629), "MN": (3504, 1371), "MO": (4341, 1572),
    "MS": (2246, 710), "MT": (636, 221), "NC": (7263, 2222), "ND": (605, 179), "NE": (1429, 424),
    "NH": (900, 344), "NJ": (7347, 3762), "NM": (1203, 416), "NV": (1994, 792),
    "NY": (18268, 8134), "OH": (11634, 4339), "OK": (2575, 865), "OR": (3637, 1322),
    "PA": (11817, 4658), "RI": (423, 158), "SC": (3386, 1194), "SD": (651, 266),
    "TN": (5671, 2038), "TX": (15785, 5152), "UT": (2117, 495), "VA": (6057, 1924),
    "VT": (445, 150), "WA": (6247, 2009), "WI": (2893, 1281), "WV": (1712, 617), "WY": (358, 113),
}  # fmt: skip


@dataclass(frozen=True)
class _Sign:
    """A code that becomes more frequent before a diagnosis.

    No code and no value determines the label: each is common in healthy patients, too, and most
    positive patients lack any single one.

    Attributes:
        code: The code.
        share: Its share of all events.
        increase: The factor by which it is more frequent as the diagnosis nears.
    """

    code: str
    share: float
    increase: float


@dataclass(frozen=True)
class _Measurement:
    """The values of a code.

    Attributes:
        mean: Their mean.
        deviation: Their standard deviation.
        shift: The deviations by which the illness moves them.
    """

    mean: float
    deviation: float
    shift: float


_SIGNS = (
    _Sign("ICD-10:E11.9", 0.030, 4.0),
    _Sign("ICD-10:R63.4", 0.008, 14.0),
    _Sign("ICD-10:K86.1", 0.004, 12.0),
    _Sign("ICD-10:R10.13", 0.012, 10.0),
    _Sign("ICD-10:R17", 0.004, 16.0),
    _Sign("ICD-10:M54.9", 0.020, 4.0),
    _Sign("ICD-10:R63.0", 0.006, 12.0),
    _Sign("ICD-10:R11.0", 0.012, 6.0),
    _Sign("ICD-10:K90.3", 0.003, 14.0),
    _Sign("ICD-10:I82.4", 0.004, 8.0),
    _Sign("ICD-10:F32.9", 0.015, 3.0),
    _Sign("ICD-10:F17.2", 0.015, 3.0),
    _Sign("LOINC:1975-2", 0.020, 5.0),
    _Sign("LOINC:24108-3", 0.006, 10.0),
    _Sign("LOINC:2345-7", 0.040, 2.0),
    _Sign("LOINC:3040-3", 0.008, 8.0),
    _Sign("LOINC:1751-7", 0.015, 2.0),
    _Sign("vital:BMI", 0.050, 1.0),
)
_MEASUREMENTS = {
    "LOINC:1975-2": _Measurement(0.7, 0.3, 1.2),
    "LOINC:24108-3": _Measurement(15.0, 8.0, 1.5),
    "LOINC:2345-7": _Measurement(105.0, 22.0, 0.8),
    "LOINC:3040-3": _Measurement(32.0, 12.0, 1.0),
    "LOINC:1751-7": _Measurement(4.2, 0.4, -0.8),
    "vital:BMI": _Measurement(28.0, 5.0, -0.5),
}
_DIAGNOSES = ("ICD-10:C25.9", "ICD-9:157.9")
_FADING = 4.0  # years over which signs fade, counted back from the diagnosis
_OTHER_CODES = 240  # codes without a relation to the label
_FACTORS = 4  # directions in which states differ in the codes they use
LONGEST = 50


@dataclass(frozen=True)
class _CodeTable:
    """All codes, with the diagnoses last.

    Attributes:
        names: The codes.
        shares: The share of each code among the events of healthy patients.
        increases: The factor by which each is more frequent as the diagnosis nears.
    """

    names: tuple[str, ...]
    shares: np.ndarray
    increases: np.ndarray


@dataclass(frozen=True)
class _Drawn:
    """Patients and events of one state, or of all, before the diagnosis is cut off.

    Attributes:
        site: The state of each patient, as an index.
        sex: The sex of each patient.
        owner: The patient of each event.
        when: The time of each event, as the patient's age.
        code: The code of each event.
        value: The value of each event; NaN: none.
    """

    site: np.ndarray
    sex: np.ndarray
    owner: np.ndarray
    when: np.ndarray
    code: np.ndarray
    value: np.ndarray


def records(seed: int = SEED, share: float = 1.0) -> Records:
    """Return the patients of all states.

    Args:
        seed: The seed.
        share: The share of Table 7's numbers; a state has at least four patients, one positive.
    """
    drawn, patients = _draw_patients(seed, share)
    is_diagnosis = np.array([code in _DIAGNOSES for code in patients.codes])
    patients = before_diagnosis(patients, drawn.owner, drawn.when, is_diagnosis, Notes())
    return replace(patients, notes=(NOTE,))


def synthetic_patients(seed: int = SEED, share: float = 1.0) -> Dataset:
    """Return the data set `synthetic_patients`."""
    return dataset_of(
        records(seed, share),
        NAME if share == 1 else SMALL,
        licence="made by equipoise, free of rights",
        source="drawn at random: synthetic",
    )


def write_patients(
    folder: Path | str, seed: int = SEED, share: float = 0.01, per_site: bool = False
) -> Path:
    """Write the same patients as files, with the events after their diagnosis.

    Args:
        folder: The folder.
        seed: The seed.
        share: The share of Table 7's numbers.
        per_site: True for one folder per state.

    Returns:
        The folder, which `read_patients` reads.
    """
    drawn, patients = _draw_patients(seed, share)
    folder = Path(folder)
    if not per_site:
        _write_folder(folder, np.arange(len(patients)), drawn, patients)
        return folder
    for index, name in enumerate(patients.site_names):
        _write_folder(folder / name, np.flatnonzero(patients.site == index), drawn, patients)
    return folder


def _write_folder(folder: Path, chosen: np.ndarray, drawn: _Drawn, patients: Records) -> None:
    """Write the files of some patients."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "patients.csv", "w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["patient", "sex", "postal_code", "state"])
        for patient in chosen:
            state = patients.site_names[patients.site[patient]]
            sex = "FM"[patients.sex[patient]]
            writer.writerow([f"synthetic-{patient}", sex, _POSTAL_CODES[state], state])
    order = np.lexsort((drawn.when, drawn.owner))
    with open(folder / "events.csv", "w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["patient", "age", "system", "code", "value"])
        for event in order[np.isin(drawn.owner[order], chosen)]:
            system, _, code = patients.codes[patients.code[event]].partition(":")
            value = patients.value[event]
            writer.writerow(
                [
                    f"synthetic-{drawn.owner[event]}",
                    f"{drawn.when[event]:.6f}",
                    system,
                    code,
                    "" if np.isnan(value) else f"{value:.4g}",
                ]
            )


def _draw_patients(seed: int, share: float) -> tuple[_Drawn, Records]:
    """Return the events of all patients in the order of drawing, and the patients' records."""
    if not 0 < share <= 1:
        raise ValueError(f"share: expected a number above 0 and at most 1, got {share}")
    codes = _code_table()
    factors = stream(seed, NAME).normal(size=(_FACTORS, len(codes.names))) * 0.6
    states = []
    first_patient = 0
    for index, state in enumerate(TABLE_7):
        drawn = _draw_state(seed, share, state, index, first_patient, codes, factors)
        first_patient += len(drawn.site)
        states.append(drawn)
    drawn = _Drawn(
        site=np.concatenate([state.site for state in states]),
        sex=np.concatenate([state.sex for state in states]),
        owner=np.concatenate([state.owner for state in states]),
        when=np.round(np.maximum(np.concatenate([state.when for state in states]), 1.0), 6),
        code=np.concatenate([state.code for state in states]),
        value=np.concatenate([state.value for state in states]),
    )
    state_numbers = np.array([STATES.index(state) for state in TABLE_7])
    patients = Records(
        site=drawn.site,
        site_names=tuple(TABLE_7),
        sex=drawn.sex,
        state=state_numbers[drawn.site],
        label=np.full(first_patient, UNKNOWN_LABEL),
        offsets=np.zeros(first_patient + 1, np.int64),
        code=drawn.code,
        value=drawn.value.astype(np.float32),
        age=drawn.when.astype(np.float32),
        codes=codes.names,
    )
    return drawn, patients


def _code_table() -> _CodeTable:
    others = [f"ICD-10:Z{number // 10:02}.{number % 10}" for number in range(_OTHER_CODES)]
    weights = 1 / np.arange(3, _OTHER_CODES + 3)
    return _CodeTable(
        names=(*(sign.code for sign in _SIGNS), *others, *_DIAGNOSES),
        shares=np.concatenate(
            [[sign.share for sign in _SIGNS], weights / weights.sum() * 0.8, [0, 0]]
        ),
        increases=np.concatenate([[sign.increase for sign in _SIGNS], np.ones(_OTHER_CODES + 2)]),
    )


def _draw_state(
    seed: int,
    share: float,
    state: str,
    index: int,
    first_patient: int,
    codes: _CodeTable,
    factors: np.ndarray,
) -> _Drawn:
    """Draw the patients and events of one state.

    Args:
        seed: The seed.
        share: The share of Table 7's numbers.
        state: The state.
        index: Its index.
        first_patient: The number of its first patient.
        codes: The codes.
        factors: The directions in which states differ in the codes they use.
    """
    rng = stream(seed, NAME, state)
    patients, positives = TABLE_7[state]
    n = max(4, round(patients * share))
    is_ill = np.zeros(n, bool)
    is_ill[: max(1, round(n * positives / patients))] = True
    is_ill = rng.permutation(is_ill)
    # The state's own habits: its codes, its laboratories, the number of visits, the age.
    shares = codes.shares * np.exp(rng.normal(size=_FACTORS) @ factors)
    calibration = rng.normal(scale=0.5)
    visits = np.exp(rng.normal(scale=0.25))
    older = rng.normal(scale=4.0)
    count = 1 + np.minimum(LONGEST - 1, rng.poisson(rng.gamma(3.0, 6.0 * visits, n)))
    age = np.clip(rng.normal(62 + older + 3 * is_ill, 11), 20, 95)
    owner = np.repeat(np.arange(n), count)
    last = np.repeat(age, count)
    when = last - rng.exponential(4.0, len(owner))
    # The events that the coming illness influences.
    is_sign = is_ill[owner] & (rng.random(len(owner)) < np.exp((when - last) / _FADING))
    code = np.empty(len(owner), np.int64)
    for influenced in (False, True):
        events = np.flatnonzero(is_sign == influenced)
        likely = shares * codes.increases if influenced else shares
        code[events] = rng.choice(len(codes.names), len(events), p=likely / likely.sum())
    value = np.full(len(owner), np.nan)
    for name, measurement in _MEASUREMENTS.items():
        is_measured = (code == codes.names.index(name)) & (rng.random(len(code)) < 0.95)
        events = np.flatnonzero(is_measured)
        deviations = rng.normal(size=len(events)) + calibration
        deviations = deviations + measurement.shift * is_sign[events]
        value[events] = measurement.mean + measurement.deviation * deviations
    # The diagnosis, and an event after it that must not be used.
    ill = int(is_ill.sum())
    diagnosis = len(codes.names) - (2 if rng.random() < 0.8 else 1)
    later = np.repeat(age[is_ill], 2) + np.tile([0.1, 0.5], ill)
    return _Drawn(
        site=np.full(n, index),
        sex=(rng.random(n) < 0.5).astype(np.int64),
        owner=first_patient + np.concatenate([owner, np.repeat(np.flatnonzero(is_ill), 2)]),
        when=np.concatenate([when, later]),
        code=np.concatenate([code, np.tile([diagnosis, 0], ill)]),
        value=np.concatenate([value, np.full(2 * ill, np.nan)]),
    )


_POSTAL_CODES = dict(
    zip(
        STATES,
        [
            "99501", "35203", "72201", "85001", "90001", "80202", "06103", "19801", "33101",
            "30303", "96813", "50309", "83702", "60601", "46204", "66101", "40202", "70112",
            "02108", "21201", "04101", "48226", "55401", "63101", "39201", "59101", "27601",
            "58102", "68102", "03101", "07102", "87102", "89101", "10001", "43215", "73102",
            "97201", "19102", "02903", "29201", "57104", "37201", "75201", "84101", "23219",
            "05401", "98101", "53202", "25301", "82001",
        ],
        strict=True,
    )
)  # fmt: skip
