"""Named random streams."""

from __future__ import annotations

import itertools

import pytest
import torch

from equipoise.streams import default_generator, number, stream, torch_stream


def test_a_name_always_gives_the_same_numbers() -> None:
    assert (
        stream(3, "client", 1, "ada").random(4).tolist()
        == stream(3, "client", 1, "ada").random(4).tolist()
    )
    first, second = torch_stream(3, "client", 1), torch_stream(3, "client", 1)
    assert torch.equal(torch.randperm(20, generator=first), torch.randperm(20, generator=second))


def test_the_numbers_are_the_same_everywhere_and_for_ever() -> None:
    """A saved run must repeat after an upgrade: these values are part of the format."""
    assert number(1, "batches", 3) == 5713842438527498217
    assert stream(0, "cohort", 1).integers(0, 1000, 4).tolist() == [493, 799, 565, 742]


def test_any_difference_in_seed_or_name_gives_another_stream() -> None:
    names = [
        (0, "a"),
        (1, "a"),
        (0, "b"),
        (0, "a", "b"),
        (0, "ab"),
        (0, "a", 1),
        (0, "a", "1"),
        (0, "a", 1, "b"),
        (0, 1, "a", "b"),
        (0,),
    ]
    found = [number(*name) for name in names]
    assert len(set(found)) == len(found)
    draws = [stream(*name).standard_normal(2000) for name in names]
    for a, b in itertools.combinations(draws, 2):
        # four and a half standard errors of a correlation that is zero
        assert abs((a * b).mean()) < 0.1


def test_drawing_from_one_stream_leaves_others_alone() -> None:
    untouched = torch_stream(0, "b").get_state()
    torch.randn(100, generator=torch_stream(0, "a"))
    assert torch.equal(torch_stream(0, "b").get_state(), untouched)


def test_the_default_generator_is_set_inside_and_restored_after() -> None:
    before = torch.random.get_rng_state()
    with default_generator(5, "dropout"):
        first = torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    with default_generator(5, "dropout"):
        assert torch.equal(torch.rand(3), first)
    with default_generator(5, "other"):
        assert not torch.equal(torch.rand(3), first)


def test_the_default_generator_is_restored_after_an_error_and_when_nested() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError), default_generator(5, "outer"):
        outer = torch.rand(1)
        with default_generator(5, "inner"):
            torch.rand(1)
        following = torch.rand(1)
        raise ZeroDivisionError
    assert torch.equal(torch.random.get_rng_state(), before)
    with default_generator(5, "outer"):
        assert torch.equal(torch.rand(2), torch.cat([outer, following]))
