"""What tests of several folders are given, and which tests are thorough."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from tests.helpers.browser import Browser, find_chromium

# As in a run: with several threads the last bits of a sum differ. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Equations and bits are shown by the multilayer perceptron, too.
CONVOLUTIONS = {"cnn", "conv"}
SHOWN_BY_OTHERS = ("tests/methods/", "tests/lasting/test_bits.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases of a test as thorough, before pytest selects by marks."""
    for item in items:
        if is_thorough(item):
            item.add_marker("thorough")


def is_thorough(item: pytest.Item) -> bool:
    """Return True for a case that other cases of its test represent."""
    _, _, case = item.name.partition("[")
    words = set(re.split(r"[-\s]", case.removesuffix("]")))
    if item.nodeid.startswith(SHOWN_BY_OTHERS) and words & CONVOLUTIONS:
        return True
    quick = item.get_closest_marker("quick_cases")
    return quick is not None and not words & set(quick.args)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not here and cannot be installed")
    opened = Browser(program)
    yield opened
    opened.close()
