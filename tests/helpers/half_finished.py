"""Half-finished runs of store format 1, made with version 0.1.0: every later version resumes them
to the bits that 0.1.0 would have reached.

They stopped after round 2 of 4, on digits in 4 clients by dirichlet:0.5, three of them in each
round. They cannot be made again: later versions write later formats.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "lasting" / "half_finished"
EXPECTED = FOLDER / "expected.json"
METHODS = ("fedavg", "scaffold")
