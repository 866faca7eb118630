"""Matrix products have the same bits wherever their operands lie, in every process of a run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import mkl
from equipoise.storage.store import Store
from tests.helpers.runs import config, stopped

uses_mkl = pytest.mark.skipif(
    mkl.mode() in ("none", "unknown"), reason="torch has no MKL here, or does not name its mode"
)
_PRODUCT = "torch.ones(3, 3) @ torch.ones(3, 3)"


def mode_after(program: str, **environment: str) -> str:
    """Return the mode in a new process that executes some lines first."""
    command = [sys.executable, "-c", f"{program}\nfrom equipoise import mkl\nprint(mkl.mode())"]
    inherited = {name: value for name, value in os.environ.items() if name != mkl.VARIABLE}
    return subprocess.check_output(
        command, env=inherited | environment, text=True, timeout=120
    ).strip()


@uses_mkl
@pytest.mark.parametrize(
    ("program", "environment", "mode"),
    [
        ("import equipoise", {}, mkl.REPRODUCIBLE),
        ("import torch, equipoise", {}, mkl.REPRODUCIBLE),
        (f"import torch; {_PRODUCT}; import equipoise", {}, mkl.OFF),
        ("import equipoise", {mkl.VARIABLE: "COMPATIBLE"}, "COMPATIBLE"),
        ("import equipoise", {mkl.VARIABLE: ""}, mkl.OFF),
    ],
)
@pytest.mark.thorough
def test_importing_the_package_requests_reproducible_products(
    program: str, environment: dict[str, str], mode: str
) -> None:
    assert mode_after(program, **environment) == mode


def shifted(values: Tensor, offset: int) -> Tensor:
    """Return a copy at another alignment."""
    memory = torch.empty(values.numel() + offset)
    return memory[offset:].view(values.shape).copy_(values)


@pytest.mark.skipif("STRICT" not in mkl.mode(), reason="the user chose another mode")
def test_a_product_has_the_same_bits_at_every_alignment() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(150):
        rows, inner, columns = torch.randint(1, 120, (3,), generator=draw).tolist()
        left = torch.randn(rows, inner, generator=draw)
        right = torch.randn(inner, columns, generator=draw)
        expected = left @ right
        for offset in (1, 3, 5, 7, 9):
            assert torch.equal(shifted(left, offset) @ shifted(right, offset), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_clients_compute_in_the_mode_that_the_run_records(workers: int, tmp_path: Path) -> None:
    method = {"name": "tests.helpers.modes:InMode", "mode": mkl.mode()}
    run = eq.run(config(tmp_path, method, rounds=1, workers=workers), tmp_path / "run")
    assert run.status == "finished"
    assert run.store.meta("environment")["mkl"] == mkl.mode()


def test_a_run_of_another_mode_is_resumed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped(tmp_path, "fedavg", rounds=2)
    store = Store(folder, writing=True)
    store.set_meta("environment", {**store.meta("environment"), "mkl": "SSE2"})
    store.close()
    with caplog.at_level(logging.WARNING, "equipoise"):
        eq.resume(folder)
    assert "SSE2" in caplog.text and "MKL_CBWR=SSE2" in caplog.text


def test_a_run_of_the_same_mode_is_resumed_without_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped(tmp_path, "fedavg", rounds=2)
    with caplog.at_level(logging.WARNING, "equipoise"):
        eq.resume(folder)
    assert mkl.VARIABLE not in caplog.text
