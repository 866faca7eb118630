"""Processes that execute steps keep freed memory for the next step, whatever started them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import equipoise as eq
from tests.helpers.terminal import in_a_process

METHOD = "tests.helpers.broken:Thrifty"
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")


def test_a_comparison_keeps_the_memory_of_its_steps(tmp_path: Path):
    base = {"data": {"name": "digits", "clients": 2}, "rounds": 1, "training": {"steps": 1}}
    result = eq.compare(base, [METHOD], seeds=[1], out=tmp_path, jobs=1, baselines="none")
    assert not result.failures


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_from_the_command_line_keeps_the_memory_of_its_steps(workers: int, tmp_path: Path):
    answer = in_a_process(
        *("run", "--data", "digits", "--clients", 2, "--method", METHOD, "--rounds", 1),
        *("--workers", workers, "--set", "training.steps=1", "--out", tmp_path / "run"),
        folder=tmp_path,
        path=ROOT,
    )
    assert answer.code == 0, answer.err
