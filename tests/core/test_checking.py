"""What is looked at before a reply counts."""

from __future__ import annotations

import torch

from equipoise.records import finite


def test_finite_is_judged_by_every_value_even_where_their_sum_overflows() -> None:
    largest = torch.finfo(torch.float32).max
    assert (
        finite(torch.tensor([largest, largest]))
        and finite(torch.zeros(0))
        and finite(torch.tensor([7]))
    )
    for wrong in (float("nan"), float("inf"), -float("inf")):
        assert not finite(torch.tensor([0.0, wrong])) and not finite(
            torch.tensor([largest, largest, wrong])
        )
    assert not finite(torch.tensor([float("inf"), -float("inf")]))
