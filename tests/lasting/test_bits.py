"""No change of the engine moves a bit of what a method learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise import methods
from tests.helpers import bits
from tests.helpers.runs import OF_EACH_KIND

EXPECTED = json.loads(bits.EXPECTED.read_text())


def test_every_method_has_its_digests() -> None:
    assert set(EXPECTED["methods"]) == set(methods.names())


@pytest.mark.quick_cases(*OF_EACH_KIND)
@pytest.mark.parametrize("network", bits.NETWORKS)
@pytest.mark.parametrize("method", EXPECTED["methods"])
def test_the_final_state_is_that_of_the_commit_that_recorded_it(
    method: str, network: str, tmp_path: Path
) -> None:
    assert_recorded(
        EXPECTED["methods"][method][network], bits.found(method, network, tmp_path / "run")
    )


@pytest.mark.parametrize("network", bits.NETWORKS)
@pytest.mark.parametrize("method", bits.FORMER)
def test_a_former_default_gives_the_state_that_was_recorded_under_it(
    method: str, network: str, tmp_path: Path
) -> None:
    state = bits.found(method, network, tmp_path / "run", bits.FORMER[method])
    assert_recorded(EXPECTED["former"][method][network], state)


def assert_recorded(expected: dict[str, Any], found: dict[str, Any]) -> None:
    # on any processor, but for rounding
    assert found["norm"] == pytest.approx(expected["norm"], rel=0.02)
    if bits.processor() != EXPECTED["processor"]:
        pytest.skip(f"the digests belong to {EXPECTED['processor']}; the norm agrees")
    assert found["digest"] == expected["digest"]
