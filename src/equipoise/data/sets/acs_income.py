"""ACS income: one table from each of 18 US states (folktables, by way of FeDa4Fair)."""

from __future__ import annotations

import numpy as np
import torch

from equipoise.data.dataset import Column, Dataset
from equipoise.data.sets.registered import Arrays, RegisteredSet, array_of
from equipoise.task import Task

STATES = (
    "AK",
    "AZ",
    "CO",
    "CT",
    "HI",
    "IA",
    "MA",
    "MD",
    "MN",
    "NC",
    "NE",
    "NJ",
    "NM",
    "NV",
    "RI",
    "SC",
    "SD",
    "UT",
)
FEATURES = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P")
# The names of the codes from the lowest code on. FeDa4Fair has merged marital states and races into
# two groups each. Occupation (OCCP) and place of birth (POBP) stay numbers, as in folktables.
CATEGORIES = {
    "COW": tuple(str(code) for code in range(1, 9)),
    "MAR": ("married", "other"),
    "RELP": tuple(str(code) for code in range(18)),
    "SEX": ("male", "female"),
    "RAC1P": ("white", "other"),
}
LOWEST_CODE = {"RELP": 0}  # every other column starts at 1


def _read(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return the tables of all states; codes of categories count from 0."""
    x = np.concatenate([array_of(entry, arrays, f"x_{state}") for state in STATES])
    y = np.concatenate([array_of(entry, arrays, f"y_{state}") for state in STATES])
    if x.shape[1:] != entry.shape:
        raise ValueError(
            f"data set {entry.name}: expected {entry.shape[0]} columns, "
            f"got samples of shape {x.shape[1:]}"
        )
    x = x.astype(np.float32)
    for name, categories in CATEGORIES.items():
        column = x[:, FEATURES.index(name)]
        column -= LOWEST_CODE.get(name, 1)
        if not np.isin(column, np.arange(len(categories))).all():
            raise ValueError(f"data set {entry.name}: column {name} has unknown codes")
    sizes = [len(arrays[f"y_{state}"]) for state in STATES]
    return Dataset(
        entry.name,
        torch.from_numpy(x),
        torch.from_numpy(y.astype(np.int64)),
        Task("classification", entry.shape, 2, entry.class_names),
        site=np.repeat(np.arange(len(STATES)), sizes),
        site_names=STATES,
        columns=tuple(Column(name, CATEGORIES.get(name, ())) for name in FEATURES),
        licence=entry.licence,
        source=entry.cited,
    )


ENTRIES = (
    RegisteredSet(
        "acs_income",
        "ACS income: work and origin of adults in 18 US states, income above 50,000 dollars",
        (10,),
        ("at most 50,000", "above 50,000"),
        "18 states, 2,500 rows each",
        "public use data of the US Census Bureau",
        "import-only: an NPZ file with x_AK, y_AK, ...; rows of the American Community Survey "
        "(https://www.census.gov/programs-surveys/acs/microdata.html) as selected by folktables "
        "(https://github.com/socialfoundations/folktables) and published by FeDa4Fair "
        "(https://github.com/xheilmann/FeDa4Fair); its contents are checked",
        _read,
        packed="acs_income_states",
        content="509d415bb99754b00792c7106c9ed22c78353607516a73aba4aef9fdbadca369",
        note="at most 2,500 rows are drawn per state; SEX and RAC1P are the usual groups",
    ),
)
