"""Tables of two sites without anything wrong, for tests that change one thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

Rows = list[list[str]]
HEADER = ["age", "ward", "pressure", "label"]


def clean(site: str) -> Rows:
    """Return 160 rows, which differ between sites."""
    rng = np.random.default_rng(ord(site[0]))
    return [
        [
            str(rng.integers(20, 90)),
            "abc"[i // 3 % 3],
            f"{rng.normal(120, 9):.1f}",
            "well" if i % 3 else "sick",
        ]
        for i in range(160)
    ]


def write(folder: Path, sites: dict[str, Rows], header: list[str] = HEADER) -> Path:
    """Write one CSV file per site, and return the folder."""
    folder.mkdir(exist_ok=True)
    for site, rows in sites.items():
        (folder / f"{site}.csv").write_text(
            "".join(",".join(row) + "\n" for row in [header, *rows])
        )
    return folder


def with_first_column(values: Callable[[str, int], str]) -> Callable[[dict[str, Rows]], None]:
    """Return a function that inserts a column of values, by site and row, in front."""

    def change(sites: dict[str, Rows]) -> None:
        for site, rows in sites.items():
            for place, row in enumerate(rows):
                row.insert(0, values(site, place))

    return change
