"""What is known of every registered data set: where its files come from, their checksums, shape,
classes, licence. A wrong digit is found here.

python -m tests.data.test_registered > tests/data/registered.yaml
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise.data import sets


def known() -> dict[str, dict[str, Any]]:
    return {name: _of(sets.entry(name)) for name in sets.ENTRIES}


def _of(entry: sets.RegisteredSet) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(entry):
        value = getattr(entry, field.name)
        if field.name in ("remotes", "also"):
            value = [f"{one.file} {one.md5} {' '.join(one.urls)}" for one in value]
        elif callable(value):
            value = getattr(value, "__qualname__", type(value).__name__)
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        if value not in (None, "", []):
            found[field.name] = value
    return found


def test_nothing_of_a_registered_set_changes_unnoticed() -> None:
    expected = yaml.safe_load(Path(__file__).with_name("registered.yaml").read_text())
    assert known() == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("digits", "data set digits is built in: there is nothing to fetch or to import"),
        (
            "digit_domains",
            "data set digit_domains consists of others, which are fetched or imported one by one: "
            "mnist, usps, svhn, syn",
        ),
        ("mnits", "unknown data set 'mnits'; did you mean 'mnist'?"),
    ],
)
def test_what_cannot_be_fetched_is_refused_with_the_reason(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        sets.entry(name)


if __name__ == "__main__":
    print(yaml.safe_dump(known(), sort_keys=False, width=200, allow_unicode=True), end="")
