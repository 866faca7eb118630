"""What is looked at before a reply counts."""

from __future__ import annotations

import torch

from equipoise.checking import _finite


def test_finite_is_judged_by_every_value_even_where_their_sum_overflows() -> None:
    largest = torch.finfo(torch.float32).max
    assert _finite(torch.tensor([largest, largest])) and _finite(torch.zeros(0)) and _finite(torch.tensor([7]))
    for wrong in (float("nan"), float("inf"), -float("inf")):
        assert not _finite(torch.tensor([0.0, wrong])) and not _finite(torch.tensor([largest, largest, wrong]))
    assert not _finite(torch.tensor([float("inf"), -float("inf")]))
