"""The contract, over every registered method and both models: a new method gets it for free."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import methods
from tests.helpers.checks import CHECKS


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("method", methods.names())
def test_contract(method: str, model: str, check, tmp_path: Path) -> None:
    check(method, model, tmp_path)
