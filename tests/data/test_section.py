"""The `data:` section at its bounds, and what it is by default; and codes of systems,
labels and states.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from equipoise.data import DataConfig
from equipoise.data.patients.codes import LabelRule, bare, read_rule, state_of, system_of
from equipoise.data.sets.synthetic import Synthetic


def test_what_holds_where_nothing_is_said() -> None:
    found = DataConfig()
    assert (found.name, found.partition, found.split, found.test, found.pool) == (
        "digits",
        "auto",
        (0.7, 0.1, 0.2),
        "local",
        "auto",
    )
    assert (found.normalise, found.augment, found.categorical, found.duplicates) == (
        "auto",
        (),
        (),
        "together",
    )
    unset = (
        "clients",
        "samples",
        "task",
        "schema",
        "synthetic",
        "label",
        "site",
        "codes",
        "events",
        "image_size",
    )
    assert [getattr(found, name) for name in unset] == [None] * len(unset)
    assert DataConfig(name="synthetic").synthetic == Synthetic(
        samples=10_000, features=20, classes=10, seed=0
    )
    assert (
        DataConfig(synthetic={"samples": 5}).name == "synthetic"
        and DataConfig.model_validate(found) is found
    )


@pytest.mark.parametrize(
    ("key", "values", "refused"),
    [
        ("clients", (1, 1_000_000), (0, 1_000_001)),
        ("samples", (1,), (0,)),
        ("events", (1, 10_000), (0, 10_001)),
        ("image_size", (4, 1024), (3, 1025)),
        ("name", ("x" * 4096,), ("x" * 4097, "a\0b", "\ud800")),
        ("split", ((1, 0, 0), (0.5, 0.5, 0), (0.5, 0.25, 0.2500005)), ((0, 0.5, 0.5), (1.2, -0.2, 0), (0.5, 0.5, 0.1), (0.5, 0.2, 0.2), (1.1, 0.1, -0.2))),
        ("normalise", ("auto", "client", "pooled", "none", "half", "imagenet"), ("clients",)),
        ("augment", (("flip", "crop"),), (("flipp",),)),
        ("partition", ("iid", "dirichlet:0.3"), ("dirichlett:0.3",)),
        ("test", ("local", "global", "site"), ("none",)),
        ("task", ("classification", "regression"), ("ranking",)),
        ("unknown", (), (1,)),
    ],
)  # fmt: skip
def test_bounds_of_the_section(key: str, values: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    for value in values:
        assert getattr(DataConfig(**{key: value}), key) == value
    for value in refused:
        with pytest.raises(ValidationError):
            DataConfig(**{key: value})


@pytest.mark.parametrize(
    ("key", "values", "refused"),
    [
        ("samples", (1, 1_000_000_000), (0, 1_000_000_001)),
        ("features", (1, 1_000_000), (0, 1_000_001)),
        ("classes", (2, 1_000_000), (1, 1_000_001)),
        ("seed", (0, 2**63 - 1), (-1, 2**63)),
        ("more", (), (1,)),
    ],
)
def test_bounds_of_the_synthetic_set(
    key: str, values: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    for value in values:
        assert getattr(Synthetic(**{key: value}), key) == value
    for value in refused:
        with pytest.raises(ValidationError):
            Synthetic(**{key: value})


def test_nothing_of_the_section_changes_afterwards() -> None:
    for section in (DataConfig(), Synthetic()):
        with pytest.raises(ValidationError, match="frozen"):
            section.seed = 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("94103", "CA"), (" 94103 ", "CA"), ("941", "CA"), ("02139-4307", "MA"), ("2139", "MA"), ("0213", None), ("94", None), ("941030", None),
        ("39701", "MS"), ("39801", "GA"), ("39999", "GA"), ("40001", "KY"), ("99999", "AK"), ("99501", "AK"), ("99401", "WA"), ("9410a", None),
    ],
)  # fmt: skip
def test_the_state_of_a_postal_code(code: str, state: str | None) -> None:
    assert state_of(code) == state


def test_rules_of_labels(tmp_path: Path) -> None:
    rule = LabelRule((("ICD-10", "C25.0"), ("", "157")))
    seen = {
        (system, code): rule.matches(system, code)
        for system in ("ICD-10", "ICD-9", "")
        for code in ("c250", "C25.1", "15.7")
    }
    assert [pair for pair, matches in seen.items() if matches] == [
        ("ICD-10", "c250"), ("ICD-10", "15.7"), ("ICD-9", "15.7"), ("", "c250"), ("", "15.7"),
    ]  # fmt: skip
    assert (
        bare(" c25.0 ") == "C250"
        and system_of("icd-9-cm") == "ICD-9"
        and system_of(" ") == ""
        and system_of("OPS") is None
    )
    file = tmp_path / "codes.csv"
    file.write_text("Code ,system\nC25,icd10\n\nE11\n")
    assert read_rule(file).codes == (("ICD-10", "C25"), ("", "E11"))
    file.write_text("system,code\nCPT, 157 \nXYZ,1\n")
    with pytest.raises(
        ValueError, match=r"codes\.csv, row 3: unknown code system 'XYZ'; known: ATC, CPT, CVX"
    ):
        read_rule(file)
    file.write_text("C25, pancreas\n \nE11\n")
    assert read_rule(str(file)).codes == (("", "C25"), ("", "E11"))
    file.write_text(" \n\n")
    with pytest.raises(ValueError, match="expected codes, one per line, got an empty file"):
        read_rule(file)
