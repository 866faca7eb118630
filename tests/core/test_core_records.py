"""Records: what they take, what they refuse, and that they come back as they went."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise import records
from equipoise.records import Down, PerClient, Record, State, Up, pack, read, size, tensors_of, unpack, write
from equipoise.tree import Tree
from equipoise.workbench import Model


def there_and_back(record: Record) -> Any:
    return unpack(bytearray(b"".join(pack(record))))


def assert_alike(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, Tree):
        assert (first.model, first.untrained) == (second.model, second.untrained)
    if isinstance(first, (Record, Tree, dict)):
        assert list(first) == list(second)
        for name in first:
            assert_alike(first[name], second[name])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_alike(a, b)
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype and first.shape == second.shape
        assert torch.equal(torch.nan_to_num(first, nan=7.5), torch.nan_to_num(second, nan=7.5))
    else:
        assert first == second or (math.isnan(first) and math.isnan(second))


RICH = Up(
    model=Tree({"w": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), "n": torch.tensor(3)}, "net@4", ["n"]),
    flags=torch.tensor([True, False, True]),
    odd=torch.arange(3, dtype=torch.int8),  # its three bytes shift what follows off its alignment
    double=torch.tensor([1 / 3], dtype=torch.float64),
    half=torch.tensor([0.1, float("nan")], dtype=torch.float16),
    empty=torch.zeros(0, 4),
    scalar=torch.tensor(2.5),
    number=0.1,
    many=10**30,
    wrong=float("nan"),
    yes=True,
    nothing=None,
    text="naïve",
    nested={"a": [1, {"b": torch.ones(2)}], "c": {}},
    inner=State(x=torch.zeros(1), y=Down(z=1)),
)


def test_everything_plain_survives_the_wire() -> None:
    assert_alike(RICH, there_and_back(RICH))


@pytest.mark.parametrize("lazy", [False, True])
def test_everything_plain_survives_a_file(tmp_path: Path, lazy: bool) -> None:
    assert write(RICH, tmp_path / "sub" / "record.safetensors") == (tmp_path / "sub" / "record.safetensors").stat().st_size
    assert_alike(RICH, read(tmp_path / "sub" / "record.safetensors", lazy=lazy))


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text().filter(lambda key: not key.startswith("$")), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(plain_values)
def test_any_plain_value_survives_the_wire(value: Any) -> None:
    assert_alike(Record(value=value), there_and_back(Record(value=value)))


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    write(Record(whole=base, part=base[2:4], again=base, turned=base.reshape(2, 3).T), tmp_path / "r.safetensors")
    back = read(tmp_path / "r.safetensors")
    assert back.part.tolist() == [2, 3] and back.again.tolist() == base.tolist() and back.turned.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_models_arrays_and_numpy_numbers_become_plain() -> None:
    model = Model(nn.BatchNorm1d(2), "net")
    array = np.arange(3)
    record = Up(model=model, array=array, f=np.float32(0.5), i=np.int64(3), flag=np.bool_(True), pair=(1, 2))
    assert isinstance(record.model, Tree) and record.model.untrained == {"running_mean", "running_var", "num_batches_tracked"}
    array[0] = 99
    assert record.array.tolist() == [0, 1, 2], "a later change of the array must not reach what was recorded"
    assert [type(record[name]) for name in ("f", "i", "flag", "pair")] == [float, int, bool, list]


def test_what_is_recorded_of_a_network_does_not_move_with_it() -> None:
    layer = nn.Linear(2, 2)
    record = Up(weight=layer.weight, model=Model(layer, "net"))
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1)
    assert torch.equal(record.weight, before) and torch.equal(record.model["weight"], before)
    assert not record.weight.requires_grad


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"x": {1, 2}}, "x: expected a tree, model, tensor, number, string, list or mapping, got set"),
        ({"x": {"y": [0, object()]}}, "x.y[1]: expected a tree"),
        ({"x": nn.Linear(1, 1)}, "x: expected a tree.* got Linear"),
        ({"x": {1: 2}}, "x: expected string keys that do not begin with $, got 1; use str(key)"),
        ({"x": {"$tensor": 0}}, "x: expected string keys that do not begin with $, got '$tensor'"),
        ({"x": lambda: 0}, "x: expected a tree.* got function"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(values: dict[str, Any], sentence: str) -> None:
    pattern = ".*".join(map(re.escape, sentence.split(".*")))
    with pytest.raises(TypeError, match=pattern):
        State(values)


def test_entries_are_attributes_and_changes_make_a_new_record() -> None:
    first = State(a=1)
    second = first.with_(b=2, a=3)
    assert (first.a, second.a, second["b"], type(second)) == (1, 3, 2, State)
    with pytest.raises(AttributeError, match=r"State has no entry 'c'; it has \['a', 'b'\]"):
        _ = second.c
    with pytest.raises(TypeError):
        first["a"] = 2  # type: ignore[index]


def test_a_cut_record_is_refused() -> None:
    whole = bytearray(b"".join(pack(Up(x=torch.ones(100)))))
    with pytest.raises(ValueError, match="cut off on its way"):
        unpack(whole[:-64])


def test_numbers_and_tensors_are_found_with_their_paths() -> None:
    found = dict(tensors_of(Up(a=1, b=True, c="x", d={"e": [2.5, torch.zeros(3)]}, f=Tree({"w": torch.zeros(4)}))))
    assert list(found) == ["a", "d.e[0]", "d.e[1]", "f"]
    assert size(Up(a=1, d={"e": [2.5, torch.zeros(3)]}, f=Tree({"w": torch.zeros(4)}), s="text")) == 8 + 8 + 12 + 16


def saved(folder: Path, **values: Any) -> PerClient:
    for client, value in values.items():
        write(Record(value=value), folder / f"{client}.safetensors")
    return PerClient({client: folder / f"{client}.safetensors" for client in values})


def test_values_by_client_are_read_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = saved(tmp_path, ada=1, bo=2, cy=3)
    asked: list[str] = []
    original = records.read
    monkeypatch.setattr(records, "read", lambda path: asked.append(path.stem) or original(path))
    assert len(mapping) == 3 and "bo" in mapping and "di" not in mapping and list(mapping) == ["ada", "bo", "cy"]
    assert asked == []
    assert mapping["bo"] == 2 and asked == ["bo"]
    assert mapping.get("di", 7) == 7 and asked == ["bo"]


def test_put_changes_a_copy_and_notes_only_what_changed(tmp_path: Path) -> None:
    mapping = saved(tmp_path, ada=1, bo=2)
    changed = mapping.put({"bo": 20}).put({"cy": 30})
    assert dict(mapping) == {"ada": 1, "bo": 2} and dict(changed) == {"ada": 1, "bo": 20, "cy": 30}
    assert changed.changed == {"bo": 20, "cy": 30} and len(changed) == 3
    with pytest.raises(TypeError, match="bo: expected a tree"):
        mapping.put({"bo": object()})


def test_a_mapping_by_client_does_not_travel() -> None:
    with pytest.raises(TypeError, match="lives in the server's state, .*; send single values"):
        pack(Down(all=PerClient()))
