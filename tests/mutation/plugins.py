"""Plugins for pytest: one that records which lines each test runs, and one that runs some tests only."""

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
    """Of the tests in the files that are run, only these, in this order; one that hangs ends the process, which counts as a failure.

    The name of the test that is run is written down, so that one knows which it was that failed.
    """

    def __init__(
        self, tests: dict[str, float], last: Path
    ) -> None:  # tests with the seconds that each took before
        self.seconds, self.last = tests, last
        self.places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.last.write_text(item.nodeid)
        # Many times slower than before is still no hang: other work may be going on.
        faulthandler.dump_traceback_later(60 + 10 * self.seconds[item.nodeid], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.places),
            key=lambda item: self.places[item.nodeid],
        )


class Record:
    """For each test its seconds, whether it passed, and the lines that it ran."""

    def __init__(self, source: str, folder: Path) -> None:
        self.source, self.folder, self.tracer = source, folder, Tracer(source)
        self.passed: dict[str, bool] = {}
        self.found: list[dict[str, Any]] = []

    def pytest_sessionstart(self) -> None:
        os.environ |= {FOLDER: str(self.folder), SOURCE: self.source}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
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
        self.passed[report.nodeid] = (
            self.passed.get(report.nodeid, True) and report.outcome == "passed"
        )

    def pytest_sessionfinish(self) -> None:
        for row in self.found:
            row["passed"] = self.passed.get(row["test"], False)
        (self.folder / "rows.json").write_text(json.dumps(self.found))
