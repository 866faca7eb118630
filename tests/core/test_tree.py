"""Arithmetic on trees: what it covers, what it leaves alone, and in which order it sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.records import Record, read, write
from equipoise.tree import FileTensors, Tree, combine, gram


def tree(w: float = 1.0, b: float = 2.0, mean: float = 10.0, count: int = 3) -> Tree:
    """Two trained entries, a float buffer and an integer buffer."""
    values = {
        "w": torch.full((2, 2), float(w)),
        "mean": torch.tensor([float(mean)]),
        "b": torch.tensor([float(b)]),
        "count": torch.tensor(count),
    }
    return Tree(values, "net", ["mean", "count"])


def listed(entries: Tree) -> dict[str, object]:
    return {
        name: value.flatten().tolist() if value.ndim else value.item()
        for name, value in entries.items()
    }


def test_differences_and_multiples_cover_trained_entries_only() -> None:
    a, b = tree(5, 7, 1, 1), tree(2, 3, 99, 99)
    assert listed(a - b) == {"w": [3] * 4, "b": [4]}
    assert listed(-a) == {"w": [-5] * 4, "b": [-7]}
    assert listed(2 * a) == listed(a * 2) == {"w": [10] * 4, "b": [14]}
    assert listed(a / 2) == {"w": [2.5] * 4, "b": [3.5]}
    assert listed(a.apply(torch.square)) == {"w": [25] * 4, "b": [49]}
    assert (a - b).untrained == frozenset()
    assert (a - b).model == "net"


def test_a_step_moves_trained_entries_and_keeps_buffers() -> None:
    moved = tree(5, 7, 1, 1) + tree(2, 3, 99, 99)
    assert listed(moved) == {"w": [7] * 4, "mean": [1], "b": [10], "count": 1}
    assert moved.untrained == {"mean", "count"}
    assert listed(moved + (tree(1, 1) - tree(3, 5))) == {
        "w": [5] * 4,
        "mean": [1],
        "b": [6],
        "count": 1,
    }


def test_parts_of_a_tree() -> None:
    whole = tree()
    assert list(whole.params) == whole.trained == ["w", "b"]
    assert list(whole.rest) == ["mean", "count"]
    assert whole.rest.untrained == {"mean", "count"} and whole.params.untrained == frozenset()
    assert listed(tree(5, 7).with_rest(tree(0, 0, 42, 8).rest)) == {
        "w": [5] * 4,
        "b": [7],
        "mean": [42],
        "count": 8,
    }
    assert tree(5, 7).with_rest(tree().rest).untrained == {"mean", "count"}


def test_norms_products_and_counts_ignore_buffers() -> None:
    a, b = tree(1, 2, 1e9), tree(3, -1, 1e9)
    assert a.dot(b) == 4 * 3 - 2
    assert a.norm() == np.sqrt(8)
    assert a.count() == len(a.flat()) == 5
    assert a.flat().tolist() == [1, 1, 1, 1, 2]
    assert a.flat().dtype == torch.float64
    assert a.bytes() == 4 * 4 + 4 + 4 + 8
    assert Tree({}).flat().tolist() == [] and Tree({}).norm() == 0


def test_products_are_summed_in_float64() -> None:
    wide = Tree({"w": torch.tensor([1e4, 1e-4, -1e4])})
    assert wide.dot(Tree({"w": torch.tensor([1e4, 1.0, 1e4])})) == pytest.approx(
        float(torch.tensor(1e-4)), rel=1e-6
    )


def test_a_clone_has_memory_of_its_own() -> None:
    original = tree()
    copy = original.clone()
    copy["w"].zero_()
    assert listed(original)["w"] == [1] * 4
    assert copy.untrained == original.untrained


def test_combine_averages_float_buffers_and_takes_the_largest_counter() -> None:
    result = combine(
        [tree(1, 2, 10, 3), tree(5, 6, 20, 9), tree(3, 1, 60, 7)], [1.0, 2.0, 1.0], divide=4.0
    )
    assert listed(result) == {"w": [3.5] * 4, "mean": [27.5], "b": [3.75], "count": 9}
    assert result.untrained == {"mean", "count"} and result.model == "net"
    assert [value.dtype for value in result.values()] == [
        torch.float32,
        torch.float32,
        torch.float32,
        torch.int64,
    ]


def test_combine_of_one_tree_is_that_tree() -> None:
    awkward = Tree({"w": torch.tensor([0.1, 1 / 3, -7e-12])})
    assert torch.equal(combine([awkward], [13.0], divide=13.0)["w"], awkward["w"])


def test_an_empty_place_does_not_change_the_rest_and_a_zero_share_is_not_read() -> None:
    broken = Tree({"w": torch.tensor([float("nan")])})
    known = Tree({"w": torch.tensor([4.0])})
    assert combine([None, known, None], [0.0, 2.0, 0.0], divide=2.0)["w"].tolist() == [4]
    assert combine([broken, known], [0.0, 1.0])["w"].tolist() == [4]
    assert combine([known, known], [0.0, 0.0])["w"].tolist() == [0]


def test_sums_run_in_blocks_of_sixteen_places() -> None:
    """A worker may sum its block alone: the whole is the sum of the blocks' sums, bit for bit, also
    with places left empty.
    """
    draw = torch.Generator().manual_seed(1)
    numbers = torch.randn(37, 50, generator=draw, dtype=torch.float64)
    trees: list[Tree | None] = [Tree({"w": row}) for row in numbers]
    trees[3] = trees[16] = None
    shares = torch.rand(37, generator=draw, dtype=torch.float64).tolist()
    total = torch.zeros(50, dtype=torch.float64)
    for start in (0, 16, 32):
        block = torch.zeros(50, dtype=torch.float64)
        for one, share in zip(trees[start : start + 16], shares[start : start + 16], strict=True):
            if one is not None:
                block.add_(one["w"], alpha=share)
        total += block
    assert torch.equal(combine(trees, shares)["w"], total)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1, max_size=6
    )
)
def test_gram_is_the_matrix_of_products(rows: list[list[float]]) -> None:
    trees = [
        Tree(
            {"a": torch.tensor(row[:1]), "b": torch.tensor(row[1:]), "buffer": torch.tensor(1e30)},
            untrained=["buffer"],
        )
        for row in rows
    ]
    expected = np.array(rows) @ np.array(rows).T
    np.testing.assert_allclose(gram(trees), expected, rtol=1e-12, atol=1e-9)


def test_gram_in_slices_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [Tree({"w": torch.arange(7.0) * k}) for k in (1, -2, 3)]
    whole = gram(trees)
    monkeypatch.setattr("equipoise.tree._GRAM_ELEMENTS", 6)  # two numbers of each tree at a time
    np.testing.assert_array_equal(gram(trees), whole)
    assert gram([]).shape == (0, 0)


def test_a_tree_in_a_file_is_read_when_asked_and_can_be_held(tmp_path: Path) -> None:
    write(Record(model=tree(5)), tmp_path / "one.safetensors")
    lazy: Tree = read(tmp_path / "one.safetensors").model
    assert isinstance(lazy._tensors, FileTensors)
    held = lazy.held()
    assert held.held() is held
    (tmp_path / "one.safetensors").unlink()
    assert listed(held) == listed(tree(5)) and held.untrained == {"mean", "count"}
    with pytest.raises(FileNotFoundError):
        lazy["w"]


def test_a_tree_is_read_only() -> None:
    with pytest.raises(TypeError):
        tree()["w"] = Tensor()  # type: ignore[index]


def test_a_tree_says_what_it_is() -> None:
    assert (
        repr(tree()) == "Tree('net', 4 entries, 5 trained numbers)"
        and Tree({}).model == "model"
        and not tree().plain
    )
    assert tree().params is not None and Tree({"w": torch.ones(1)}).params.untrained == frozenset()
    only = Tree({"w": torch.ones(1)})
    assert only.params is only and list(only.rest) == []


def test_functions_of_several_trees_and_numbers_of_numpy() -> None:
    a, b = tree(5, 7), tree(2, 3)
    assert listed(a.apply(torch.sub, b)) == listed(a - b) and listed(a.apply(torch.mul, b)) == {
        "w": [10] * 4,
        "b": [21],
    }
    assert listed(np.float64(2) * a) == listed(2 * a) and isinstance(np.float64(2) * a, Tree)
    with pytest.raises(
        TypeError, match=r"a.apply\(torch.mul, b\), for the inner product a.dot\(b\)"
    ):
        a * b  # type: ignore[operator]


def test_numbers_in_a_row_become_the_tree_again() -> None:
    a = Tree(
        {
            "w": torch.arange(4.0).reshape(2, 2),
            "n": torch.tensor(9),
            "b": torch.tensor([5.0], dtype=torch.float16),
        },
        "net",
        ["n"],
    )
    again = a.with_flat(a.flat() + 1)
    assert (
        listed(again) == {"w": [1, 2, 3, 4], "b": [6]}
        and again["b"].dtype == torch.float16
        and again["w"].shape == (2, 2)
    )
    assert again.model == "net" and again.untrained == frozenset()
    for wrong in (torch.zeros(4), torch.zeros(6), torch.zeros(5, 1)):
        with pytest.raises(ValueError, match="expected 5 numbers in one vector"):
            a.with_flat(wrong)


def test_the_size_is_that_of_every_entry_and_is_remembered() -> None:
    a = Tree(
        {"w": torch.zeros(3, dtype=torch.float64), "n": torch.zeros(2, dtype=torch.int8)},
        untrained=["n"],
    )
    assert a.bytes() == a.bytes() == 26 and a.count() == 3


def test_a_clone_is_contiguous_and_without_a_graph() -> None:
    learnt = torch.ones(2, 3, requires_grad=True)
    copy = Tree({"w": learnt.T}).clone()
    assert copy["w"].is_contiguous() and not copy["w"].requires_grad and copy["w"].shape == (3, 2)


def test_the_first_tree_that_is_there_gives_the_form() -> None:
    late = Tree(
        {"w": torch.tensor([2.0], dtype=torch.float16), "n": torch.tensor([1, 5])}, "late", ["n"]
    )
    other = Tree(
        {"w": torch.tensor([4.0], dtype=torch.float16), "n": torch.tensor([3, 2])}, "other", ["n"]
    )
    found = combine([None, late, other], [7.0, 1.0, 2.0])
    assert (
        found.model == "late"
        and found["w"].dtype == torch.float16
        and listed(found) == {"w": [10], "n": [3, 5]}
    )
    assert torch.equal(late["w"], torch.tensor([2.0], dtype=torch.float16)), (
        "what is summed stays as it was"
    )
    with pytest.raises(ValueError, match="zip"):
        combine([late, other], [1.0])


def test_a_sum_of_doubles_leaves_its_terms_alone() -> None:
    terms = [Tree({"w": torch.tensor([float(k)], dtype=torch.float64)}) for k in range(40)]
    assert combine(terms, [1.0] * 40, divide=2.0)["w"].item() == 390
    assert [one["w"].item() for one in terms] == list(range(40))


def test_tensors_in_a_file_are_a_mapping(tmp_path: Path) -> None:
    write(Record(model=tree(5)), tmp_path / "one.safetensors")
    lazy: Tree = read(tmp_path / "one.safetensors").model
    assert (
        list(lazy) == list(tree())
        and len(lazy) == 4
        and len(lazy._tensors) == 4
        and lazy.held() is not lazy
    )
    assert lazy["w"].tolist() == [[5, 5], [5, 5]] and lazy["count"].item() == 3


def test_mixing_a_model_with_a_difference_names_the_entry_and_the_remedy() -> None:
    model, step = tree(5, 7), tree(5, 7) - tree(1, 2)
    for mix in (
        lambda: combine([model, step], [0.5, 0.5]),
        lambda: model + Tree({}),
        lambda: gram([model, Tree({})]),
    ):
        with pytest.raises(ValueError, match=r"without '\w+'.*\.with_rest\(model\.rest\)"):
            mix()
    combine([model, step.with_rest(model.rest)], [0.5, 0.5])
