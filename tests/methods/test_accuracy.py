"""Every method learns: what it serves after 30 rounds of the setting of docs/results.md is right
more often than not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accuracy import BEGIN, BELOW, END, LEAST, RESULTS, SEEDS, accuracies, with_section
from equipoise import methods


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_every_method_learns_digits(method: str, tmp_path: Path) -> None:
    reached = np.mean([accuracies(method, seed, tmp_path / str(seed))[1].mean() for seed in SEEDS])
    assert reached >= (BELOW[method][0] if method in BELOW else LEAST), f"{method}: {reached:.1%}"


def test_the_table_names_every_method_and_every_bound() -> None:
    table = RESULTS.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert {
        line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")
    } >= set(methods.names())
    assert all(reason in table for _, reason in BELOW.values())


def test_a_page_keeps_what_others_wrote() -> None:
    page = with_section("# Mine\n", f"{BEGIN}\none\n{END}")
    assert (
        with_section(page + "behind\n", f"{BEGIN}\n\\1 two\n{END}")
        == f"# Mine\n\n{BEGIN}\n\\1 two\n{END}\nbehind\n"
    )
