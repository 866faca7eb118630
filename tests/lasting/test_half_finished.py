"""Runs that version 0.1.0 left half-finished are resumed to the bits it would have reached."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

import equipoise as eq
from tests.helpers import bits, half_finished
from tests.helpers.runs import everything

EXPECTED = json.loads(half_finished.EXPECTED.read_text())


@pytest.mark.parametrize("method", half_finished.METHODS)
def test_a_run_of_format_1_is_resumed_to_the_same_bits(method: str, tmp_path: Path) -> None:
    shutil.copytree(half_finished.FOLDER / method, tmp_path / "run")
    assert eq.Run(tmp_path / "run").last_round == 2
    run = eq.resume(tmp_path / "run")
    expected, values = EXPECTED["methods"][method], everything(run)
    assert bits.norms(values) == pytest.approx(expected["norms"], rel=1e-3)
    if bits.processor() != EXPECTED["processor"]:
        pytest.skip(f"the digests belong to {EXPECTED['processor']}; the norms agree")
    assert bits.digest(values) == expected["digest"]
    # To nine decimals: a metric's own formula may round otherwise than it did in version 0.1, which had no rows of reference either.
    rows = [
        (r["round"], r["client"], r["model"], r["phase"], r["split"], r["metric"], round(r["value"], 9))
        for r in run.table()
        if r["phase"] != "reference"
    ]
    assert hashlib.sha256(repr(rows).encode()).hexdigest() == expected["table"]
