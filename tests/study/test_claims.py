"""The grammar of claims."""

from __future__ import annotations

import pytest

from equipoise.study.claims import ClaimError, parse_claim

ROWS = ["fedavg", "kdia.global", "kdia.teacher"]
CONDITIONS = ["POW", "ICS 5"]


def test_rows_measures_groups_offsets_and_conditions_are_read():
    claim = parse_claim(
        "kdia.teacher.average[mnist.m] >= fedavg.average[mnist.m] - 0.02 at POW, ICS 5",
        ROWS,
        CONDITIONS,
    )
    assert (claim.left.row, claim.left.column) == ("kdia.teacher", "average[mnist.m]")
    assert (claim.operator, claim.greater, claim.offset) == (">=", True, -0.02)
    assert claim.conditions == ("POW", "ICS 5")
    assert claim.columns == ("average[mnist.m]",)


def test_a_number_may_stand_on_the_right():
    claim = parse_claim("fedavg.change < -1e-2", ROWS, CONDITIONS)
    assert (claim.right, claim.offset, claim.greater) == (None, -0.01, False)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("fedavg.average", "two terms"),
        ("fedavg.average > kdia.global.average > 0.5", "two terms"),
        ("fedprox.average > fedavg.average", "fedprox"),
        ("fedavg.average > every other", "every other"),
        ("every other.average < fedavg.average", "left"),
        ("fedavg.average > 0.5 at CLA", "CLA"),
        ("fedavg.average > kdia.global.average + x", "'x'"),
        ("fedavg.average > kdia.global.average + 1e", "1e"),
        ("fedavg > 0.5", "fedavg"),
        ("fedavg.average[ > 0.5", "average["),
        ("0.3 < fedavg.average", "write 'fedavg.average > 0.3'"),
        ("fedavg.average > fedavg.average", "both sides"),
        ("fedavg.average > fedavg.average + 0.01", "both sides"),
        ("fedavg.average > 1e999", "finite"),
        ("fedavg.average > kdia.global.average + 1e999", "finite"),
    ],
)
def test_what_is_no_claim_is_refused_naming_the_part(text, hint):
    with pytest.raises(ClaimError) as caught:
        parse_claim(text, ROWS, CONDITIONS)
    assert hint in str(caught.value)
    assert text in str(caught.value)
