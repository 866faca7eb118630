"""Property tests draw the same examples every time and are not timed."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# The small runs of the contract and made-up runs of the reports serve here, too.
sys.path[:0] = [str(Path(__file__).parent.parent / folder) for folder in ("contract", "report")]

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
