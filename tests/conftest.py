"""What tests of several folders are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.browser import Browser, find_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not here and cannot be installed")
    opened = Browser(program)
    yield opened
    opened.close()
