"""Plugins for pytest: one records the lines of each test, one selects tests."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from seen import FOLDER, SOURCE, Tracer


class Choose:
    """Run only some tests, in a given order.

    A test that hangs ends the process, which counts as a failure. The name of the running test is
    written to a file, so that the failing one is known.

    Args:
        tests: The tests with the seconds that each took before.
        last: The file for the name of the running test.
    """

    def __init__(
        self, tests: dict[str, float], last: Path
    ) -> None:  # tests with the seconds that each took before
        self.seconds, self.last = tests, last
        self.places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Write the name of the test, and end the process if it hangs."""
        self.last.write_text(item.nodeid)
        # Many times slower than before is still no hang: other work may be going on.
        faulthandler.dump_traceback_later(60 + 10 * self.seconds[item.nodeid], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select and order the tests."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.places),
            key=lambda item: self.places[item.nodeid],
        )


class Record:
    """Record duration, result and lines of each test."""

    def __init__(self, source: str, folder: Path) -> None:
        self.source, self.folder, self.tracer = source, folder, Tracer(source)
        self.passed: dict[str, bool] = {}
        self.found: list[dict[str, Any]] = []

    def pytest_sessionstart(self) -> None:
        """Let child processes record their lines, too."""
        os.environ |= {FOLDER: str(self.folder), SOURCE: self.source}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Trace the lines of a test."""
        self.tracer.fresh()
        self.tracer.start()
        began = time.monotonic()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            lines = {file: sorted(numbers) for file, numbers in self.tracer.lines.items()}
            self.found.append(
                {"test": item.nodeid, "seconds": time.monotonic() - began, "lines": lines}
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note if the test passed."""
        self.passed[report.nodeid] = (
            self.passed.get(report.nodeid, True) and report.outcome == "passed"
        )

    def pytest_sessionfinish(self) -> None:
        """Write the rows to a file."""
        for row in self.found:
            row["passed"] = self.passed.get(row["test"], False)
        (self.folder / "rows.json").write_text(json.dumps(self.found))
