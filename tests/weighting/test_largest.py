from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.tree import Tree
from equipoise.weighting import largest

# Few different values, so that most draws have ties.
numbers = st.lists(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 2.5, 1e-30]), min_size=1, max_size=12
)


def by_sorting(values: list[float], count: int) -> list[float]:
    """The largest first, of equal ones the first; all others are 0."""
    kept = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))[:count]
    return [value if place in kept else 0.0 for place, value in enumerate(values)]


@given(numbers, numbers, st.integers(0, 24))
def test_of_the_whole_tree(first: list[float], second: list[float], count: int) -> None:
    tree = Tree({"a": torch.tensor(first), "b": torch.tensor(second).reshape(1, -1, 1)})
    size = len(first) + len(second)
    count = min(count, size)
    found = largest(tree, count / size)
    expected = torch.tensor(by_sorting(torch.tensor([*first, *second]).tolist(), count))
    assert torch.equal(found.flat().float(), expected)
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        n: (v.shape, v.dtype) for n, v in tree.items()
    }


@given(numbers, numbers, st.integers(0, 100))
def test_per_tensor(first: list[float], second: list[float], percent: int) -> None:
    found = largest(
        Tree({"a": torch.tensor(first), "b": torch.tensor(second)}), percent / 100, per_tensor=True
    )
    for name, values in (("a", first), ("b", second)):
        expected = by_sorting(torch.tensor(values).tolist(), -(-percent * len(values) // 100))
        assert torch.equal(found[name], torch.tensor(expected))


@pytest.mark.parametrize("percent", range(101))
def test_shares_that_floating_point_misses_are_counted_right(percent: int) -> None:
    """0.29 * 100 is below 29, 0.07 * 100 above 7."""
    tree = Tree({"a": torch.arange(1.0, 101.0)})
    assert int((largest(tree, percent / 100)["a"] != 0).sum()) == percent
    assert int((largest(tree, percent / 100, per_tensor=True)["a"] != 0).sum()) == percent


def test_down_for_the_whole_tree_and_up_per_tensor() -> None:
    tree = Tree({"a": torch.tensor([1.0, 2.0, 3.0]), "b": torch.tensor([4.0])})
    assert largest(tree, 0.4).flat().tolist() == [0, 0, 0, 4]
    assert largest(tree, 0.4, per_tensor=True).flat().tolist() == [0, 2, 3, 4]
    assert largest(tree, 0.2).flat().tolist() == [0, 0, 0, 0]


def test_all_and_nothing() -> None:
    tree = Tree({"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([5.0])})
    for per_tensor in (False, True):
        assert torch.equal(largest(tree, 1, per_tensor).flat(), tree.flat())
        assert not largest(tree, 0, per_tensor).flat().any()


@pytest.mark.parametrize("per_tensor", [False, True])
def test_ties_go_by_index_whatever_the_layout_in_memory(per_tensor: bool) -> None:
    values = torch.ones(2, 3, 2, 2)
    plain, channels_last = (
        largest(Tree({"a": one}), 0.5, per_tensor)["a"]
        for one in (values, values.to(memory_format=torch.channels_last))
    )
    assert (
        torch.equal(plain, channels_last) and plain.reshape(-1).tolist() == [1.0] * 12 + [0.0] * 12
    )


def test_buffers_are_left_out() -> None:
    tree = Tree({"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([100.0])}, untrained=["mean"])
    assert dict(largest(tree, 0.5)).keys() == {"w"} and largest(tree, 0.5)["w"].tolist() == [0, 2]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_and_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="lies between 0 and 1; got"):
        largest(Tree({"a": torch.ones(2)}), share)
