"""Synthetic patients: nobody's records. They stand in for the private data of FedAKD's real-world experiment: its 50 states, with the sizes and the
shares of positives of the paper's Table 7, and what a study needs: states that differ in what is coded, measured and how often, and a signal to learn.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.patients.codes import STATES
from equipoise.data.patients.histories import dataset_of
from equipoise.data.patients.records import Notes, Records, before_diagnosis
from equipoise.streams import stream

NAME, SMALL, SMALL_SHARE = "synthetic_patients", "synthetic_patients_small", 0.06
NOTE = "these patients are synthetic: drawn at random, nobody's records; results say nothing of medicine"
SEED = 2025
# Table 7: patients and positives of each state (training and test).
TABLE_7 = {
    "AK": (558, 196), "AL": (3410, 1292), "AR": (2341, 842), "AZ": (5521, 2347), "CA": (20040, 7116), "CO": (4164, 1362), "CT": (2595, 1180),
    "DE": (805, 342), "FL": (18898, 8158), "GA": (7901, 2461), "HI": (1060, 433), "IA": (2951, 1093), "ID": (1021, 361), "IL": (8932, 3497),
    "IN": (4388, 1523), "KS": (1857, 524), "KY": (4110, 1396), "LA": (3316, 1150), "MA": (3492, 1453), "MD": (5145, 1959), "ME": (1183, 473),
    "MI": (9744, 3629), "MN": (3504, 1371), "MO": (4341, 1572), "MS": (2246, 710), "MT": (636, 221), "NC": (7263, 2222), "ND": (605, 179),
    "NE": (1429, 424), "NH": (900, 344), "NJ": (7347, 3762), "NM": (1203, 416), "NV": (1994, 792), "NY": (18268, 8134), "OH": (11634, 4339),
    "OK": (2575, 865), "OR": (3637, 1322), "PA": (11817, 4658), "RI": (423, 158), "SC": (3386, 1194), "SD": (651, 266), "TN": (5671, 2038),
    "TX": (15785, 5152), "UT": (2117, 495), "VA": (6057, 1924), "VT": (445, 150), "WA": (6247, 2009), "WI": (2893, 1281), "WV": (1712, 617),
    "WY": (358, 113),
}  # fmt: skip
# (code, share of all events, how many times as frequent as the diagnosis nears)
# No code and no value tells on its own: each is common in the healthy too, and most of the ill lack any one of them.
_TELLING = (
    ("ICD-10:E11.9", 0.030, 4.0), ("ICD-10:R63.4", 0.008, 14.0), ("ICD-10:K86.1", 0.004, 12.0), ("ICD-10:R10.13", 0.012, 10.0),
    ("ICD-10:R17", 0.004, 16.0), ("ICD-10:M54.9", 0.020, 4.0), ("ICD-10:R63.0", 0.006, 12.0), ("ICD-10:R11.0", 0.012, 6.0),
    ("ICD-10:K90.3", 0.003, 14.0), ("ICD-10:I82.4", 0.004, 8.0), ("ICD-10:F32.9", 0.015, 3.0), ("ICD-10:F17.2", 0.015, 3.0),
    ("LOINC:1975-2", 0.020, 5.0), ("LOINC:24108-3", 0.006, 10.0), ("LOINC:2345-7", 0.040, 2.0), ("LOINC:3040-3", 0.008, 8.0),
    ("LOINC:1751-7", 0.015, 2.0), ("vital:BMI", 0.050, 1.0),
)  # fmt: skip
# of what is measured: mean and deviation, and the deviations by which illness moves it
_VALUES = {
    "LOINC:1975-2": (0.7, 0.3, 1.2), "LOINC:24108-3": (15.0, 8.0, 1.5), "LOINC:2345-7": (105.0, 22.0, 0.8), "LOINC:3040-3": (32.0, 12.0, 1.0),
    "LOINC:1751-7": (4.2, 0.4, -0.8), "vital:BMI": (28.0, 5.0, -0.5),
}  # fmt: skip
_NEAR = 4.0  # years over which signs fade, counted back from the diagnosis
_OTHERS = 240  # codes that tell nothing
_FACTORS = 4  # ways in which states differ from each other in what they code
LONGEST = 50


def records(seed: int = SEED, share: float = 1.0) -> Records:
    """The patients of all states; `share` of Table 7's numbers, at least four in a state, of whom one is a positive."""
    owner, when, parts, positive = _drawn(seed, share)
    return replace(before_diagnosis(parts, owner, when, positive, Notes()), notes=(NOTE,))


def synthetic_patients(seed: int = SEED, share: float = 1.0) -> Dataset:
    """The data set `synthetic_patients`."""
    return dataset_of(
        records(seed, share),
        NAME if share == 1 else SMALL,
        licence="made by equipoise, free of rights",
        source="drawn at random: synthetic",
    )


def write_patients(
    folder: Path | str, seed: int = SEED, share: float = 0.01, per_site: bool = False
) -> Path:
    """The same patients as files, with the events after their diagnosis: what `read_patients` reads."""
    owner, when, parts, _ = _drawn(seed, share)
    folder = Path(folder)
    files: dict[str, np.ndarray] = {"": np.arange(len(parts))} if not per_site else {
        name: np.flatnonzero(parts.site == place) for place, name in enumerate(parts.site_names)
    }  # fmt: skip
    for name, patients in files.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        with open(folder / name / "patients.csv", "w", newline="", encoding="utf-8") as opened:
            writer = csv.writer(opened)
            writer.writerow(["patient", "sex", "postal_code", "state"])
            writer.writerows(
                [
                    f"synthetic-{p}",
                    "FM"[parts.sex[p]],
                    _POSTAL[parts.site_names[parts.site[p]]],
                    parts.site_names[parts.site[p]],
                ]
                for p in patients
            )
        with open(folder / name / "events.csv", "w", newline="", encoding="utf-8") as opened:
            writer = csv.writer(opened)
            writer.writerow(["patient", "age", "system", "code", "value"])
            order = np.lexsort((when, owner))
            for e in order[np.isin(owner[order], patients)]:
                system, _, code = parts.codes[parts.code[e]].partition(":")
                value = "" if np.isnan(parts.value[e]) else f"{parts.value[e]:.4g}"
                writer.writerow([f"synthetic-{owner[e]}", f"{when[e]:.6f}", system, code, value])
    return folder


def _drawn(seed: int, share: float) -> tuple[np.ndarray, np.ndarray, Records, np.ndarray]:
    """Owner and time of every event, all else of the patients, and which codes are the diagnosis."""
    if not 0 < share <= 1:
        raise ValueError(f"share: expected a number above 0 and at most 1, got {share}")
    common = stream(seed, NAME)
    codes = (
        [one[0] for one in _TELLING]
        + [f"ICD-10:Z{k // 10:02}.{k % 10}" for k in range(_OTHERS)]
        + ["ICD-10:C25.9", "ICD-9:157.9"]
    )
    base = np.concatenate(
        [
            [one[1] for one in _TELLING],
            (weight := 1 / np.arange(3, _OTHERS + 3)) / weight.sum() * 0.8,
            [0, 0],
        ]
    )
    more = np.concatenate([[one[2] for one in _TELLING], np.ones(_OTHERS + 2)])
    factors = common.normal(size=(_FACTORS, len(codes))) * 0.6
    facts: dict[str, list[np.ndarray]] = {
        name: [] for name in ("site", "sex", "owner", "when", "code", "value")
    }
    start = 0
    for place, (state, (patients, ill)) in enumerate(TABLE_7.items()):
        draw = stream(seed, NAME, state)
        n = max(4, round(patients * share))
        sick = np.zeros(n, bool)
        sick[: max(1, round(n * ill / patients))] = True
        sick = draw.permutation(sick)
        # What is the state's own: what it codes, what its laboratories measure, how often its people are seen, how old they are.
        shares = base * np.exp(draw.normal(size=_FACTORS) @ factors)
        calibration, often, older = (
            draw.normal(scale=0.5),
            np.exp(draw.normal(scale=0.25)),
            draw.normal(scale=4.0),
        )
        count = 1 + np.minimum(LONGEST - 1, draw.poisson(draw.gamma(3.0, 6.0 * often, n)))
        age = np.clip(draw.normal(62 + older + 3 * sick, 11), 20, 95)
        owner = np.repeat(np.arange(n), count)
        last = np.repeat(age, count)
        when = last - draw.exponential(4.0, len(owner))
        code = np.empty(len(owner), np.int64)
        # events that the coming illness has a part in
        near = sick[owner] & (draw.random(len(owner)) < np.exp((when - last) / _NEAR))
        for ill_ones in (False, True):
            mine = np.flatnonzero(near == ill_ones)
            likely = shares * more if ill_ones else shares
            code[mine] = draw.choice(len(codes), len(mine), p=likely / likely.sum())
        value = np.full(len(owner), np.nan)
        for measured, (mean, deviation, moved) in _VALUES.items():
            mine = np.flatnonzero((code == codes.index(measured)) & (draw.random(len(code)) < 0.95))
            value[mine] = mean + deviation * (
                draw.normal(size=len(mine)) + calibration + moved * near[mine]
            )
        # the diagnosis, and an event behind it that must not be seen
        after = np.repeat(np.flatnonzero(sick), 2)
        diagnosis = np.tile([len(codes) - (2 if draw.random() < 0.8 else 1), 0], int(sick.sum()))
        for name, values in (
            ("site", np.full(n, place)), ("sex", (draw.random(n) < 0.5).astype(np.int64)), ("owner", start + np.concatenate([owner, after])),
            ("when", np.concatenate([when, np.repeat(age[sick], 2) + np.tile([0.1, 0.5], int(sick.sum()))])),
            ("code", np.concatenate([code, diagnosis])), ("value", np.concatenate([value, np.full(len(after), np.nan)])),
        ):  # fmt: skip
            facts[name].append(values)
        start += n
    whole = {name: np.concatenate(values) for name, values in facts.items()}
    when = np.round(np.maximum(whole["when"], 1.0), 6)
    made = Records(
        whole["site"], tuple(TABLE_7), whole["sex"], np.array([STATES.index(s) for s in TABLE_7])[whole["site"]], np.full(start, -1), np.zeros(start + 1, np.int64),
        whole["code"], whole["value"].astype(np.float32), when.astype(np.float32), tuple(codes),
    )  # fmt: skip
    return whole["owner"], when, made, np.arange(len(codes)) >= len(codes) - 2


_POSTAL = dict(zip(STATES, ["99501", "35203", "72201", "85001", "90001", "80202", "06103", "19801", "33101", "30303", "96813", "50309", "83702", "60601", "46204", "66101", "40202", "70112", "02108", "21201", "04101", "48226", "55401", "63101", "39201", "59101", "27601", "58102", "68102", "03101", "07102", "87102", "89101", "10001", "43215", "73102", "97201", "19102", "02903", "29201", "57104", "37201", "75201", "84101", "23219", "05401", "98101", "53202", "25301", "82001"], strict=True))  # fmt: skip
