"""Records: what they take, what they refuse, and that they come back as they went."""

from __future__ import annotations

import enum
import json
import math
import re
import struct
import warnings
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from equipoise.client import ClientState
from equipoise.models import Model
from equipoise.records import (
    Down,
    PerClient,
    Record,
    Saved,
    State,
    Up,
    files,
    pack,
    read,
    size,
    tensors_of,
    unpack,
    write,
)
from equipoise.tree import Tree


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
    model=Tree(
        {"w": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), "n": torch.tensor(3)},
        "net@4",
        ["n"],
    ),
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
    assert (
        write(RICH, tmp_path / "record.safetensors")
        == (tmp_path / "record.safetensors").stat().st_size
    )
    assert_alike(RICH, read(tmp_path / "record.safetensors", lazy=lazy))


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text().filter(lambda key: not key.startswith("$")), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(plain_values)
@pytest.mark.thorough
def test_any_plain_value_survives_the_wire(value: Any) -> None:
    assert_alike(Record(value=value), there_and_back(Record(value=value)))


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    write(
        Record(whole=base, part=base[2:4], again=base, turned=base.reshape(2, 3).T),
        tmp_path / "r.safetensors",
    )
    back = read(tmp_path / "r.safetensors")
    assert (
        back.part.tolist() == [2, 3]
        and back.again.tolist() == base.tolist()
        and back.turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    )


def test_models_arrays_and_numpy_numbers_become_plain() -> None:
    model = Model(nn.BatchNorm1d(2), "net")
    array = np.arange(3)
    record = Up(
        model=model, array=array, f=np.float32(0.5), i=np.int64(3), flag=np.bool_(True), pair=(1, 2)
    )
    assert isinstance(record.model, Tree) and record.model.untrained == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    array[0] = 99
    assert record.array.tolist() == [0, 1, 2], (
        "a later change of the array must not reach what was recorded"
    )
    assert [type(record[name]) for name in ("f", "i", "flag", "pair")] == [float, int, bool, list]


def test_what_is_recorded_of_a_network_does_not_move_with_it() -> None:
    layer = nn.Linear(2, 2)
    record = Up(weight=layer.weight, model=Model(layer, "net"))
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1)
    assert torch.equal(record.weight, before) and torch.equal(record.model["weight"], before)
    assert not record.weight.requires_grad


DENSE = "x: expected a dense tensor of float64,.* got a"
with warnings.catch_warnings():  # torch says of some of them that they will change
    warnings.simplefilter("ignore")
    UNFIT = {
        "coo": (torch.eye(2).to_sparse(), f"{DENSE} sparse_coo one of float32"),
        "csr": (torch.eye(2).to_sparse_csr(), f"{DENSE} sparse_csr one of float32"),
        "complex": (torch.zeros(2, dtype=torch.complex64), f"{DENSE} strided one of complex64"),
        "uint16": (torch.zeros(2, dtype=torch.uint16), f"{DENSE} strided one of uint16"),
        "meta": (torch.zeros(2, device="meta"), f"{DENSE} meta one of float32"),
        "quantised": (
            torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
            f"{DENSE} strided one of qint8",
        ),
        "nested": (
            torch.nested.as_nested_tensor([torch.zeros(2), torch.zeros(3)]),
            f"{DENSE} nested one of float32",
        ),
        "dimensions": (
            torch.zeros([1] * 65),
            "at most 64 dimensions, got a strided one of float32 and 65 dimensions",
        ),
    }


@pytest.mark.parametrize("kind", UNFIT)
def test_tensors_that_cannot_travel_are_refused_alone_in_lists_in_trees_and_in_a_clients_state(
    kind: str,
) -> None:
    tensor, sentence = UNFIT[kind]
    pattern = ".*".join(map(re.escape, sentence.split(".*")))
    for make in (Up, Down, State, Record):
        with pytest.raises(TypeError, match=pattern):
            make(x=tensor)
    with pytest.raises(TypeError, match=pattern.replace("x:", r"x\.a\[1\]:")):
        Up(x={"a": [0, tensor]})
    with pytest.raises(TypeError, match=pattern.replace("x:", r"x\.w:")):
        Up(x=Tree({"fine": torch.zeros(1), "w": tensor}))
    with pytest.raises(TypeError, match=pattern.replace("x:", r"client\.state\['x'\]:")):
        ClientState({})["x"] = tensor


def deep(levels: int) -> Any:
    """So many lists and mappings inside each other."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


class Mine(Up):
    pass


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"x": {1, 2}},
            "x: expected a tree, model, tensor, number, string, list or mapping, got set",
        ),
        ({"x": {"y": [0, object()]}}, "x.y[1]: expected a tree"),
        ({"x": nn.Linear(1, 1)}, "x: expected a tree.* got Linear"),
        ({"x": {1: 2}}, "x: expected string keys that do not begin with $, got 1; use str(key)"),
        ({"x": {"$tensor": 0}}, "x: expected string keys that do not begin with $, got '$tensor'"),
        ({1: 2}, "State: expected string keys that do not begin with $, got 1"),
        ({"$tensor": 2}, "State: expected string keys that do not begin with $, got '$tensor'"),
        ({"x": lambda: 0}, "x: expected a tree.* got function"),
        ({"x": 1j}, "x: expected a tree.* got complex"),
        ({"x": np.complex64(1j)}, "x: expected a tree.* got complex"),
        ({"x": np.datetime64("2020-01-01")}, "x: expected a tree.* got date"),
        ({"x": b"bytes"}, "x: expected a tree.* got bytes"),
        ({"x": 1 << 1024}, "x: expected an integer of at most 1024 bits, got one of 1025"),
        ({"x": np.array(["a"])}, "x: expected an array of float64,.* got one of <U1"),
        (
            {"x": np.zeros(2, np.complex64)},
            "x: expected a dense tensor of float64,.* got a strided one of complex64",
        ),
        (
            {"x": np.zeros(2, np.uint16)},
            "x: expected a dense tensor of float64,.* got a strided one of uint16",
        ),
        ({"x": [PerClient()]}, "x[0]: a PerClient lives in the server's state"),
        (
            {"x": Up(y=1), "y": [{"z": PerClient()}]},
            "y[0].z: a PerClient lives in the server's state",
        ),
        ({"x": State(y=PerClient())}, "x.y: a PerClient lives in the server's state"),
        ({"x": Tree({"w": 1.0})}, "x.w: expected a tensor in a tree, got float"),
        (
            {"x": Tree({"w": torch.zeros(1)}, "$shared 1")},
            "x: expected a tree with the name of its model, not beginning with $",
        ),
        (
            {"x": Tree({"w": torch.zeros(1)}, 3)},
            "x: expected a tree with the name of its model, not beginning with $, got 3",
        ),  # type: ignore[arg-type]
        (
            {"x": Tree({"w": torch.zeros(1)}, "net", ["$w"])},
            "x: expected string keys that do not begin with $, got '$w'",
        ),
        (
            {"x": Tree({"$w": torch.zeros(1)}, "net")},
            "x: expected string keys that do not begin with $, got '$w'",
        ),
        ({"x": deep(32)}, "expected at most 32 levels of records, lists and mappings"),
        ({"x": Up(x=deep(31))}, "expected at most 32 levels of records, lists and mappings"),
        (
            {"x": reduce(lambda inner, _: [inner], range(32), 1)},
            "expected at most 32 levels of records, lists and mappings",
        ),
        (
            {"x": reduce(lambda inner, _: {"a": inner}, range(32), 1)},
            "expected at most 32 levels of records, lists and mappings",
        ),
    ],
)
def test_what_cannot_travel_is_refused_by_name(values: dict[Any, Any], sentence: str) -> None:
    pattern = ".*".join(map(re.escape, sentence.split(".*")))
    with pytest.raises(TypeError, match=pattern):
        State(values)


def test_what_just_may_travel_does() -> None:
    """At the bounds that the refusals above name."""
    record = Up(
        many=(1 << 1024) - 1,
        few=1 - (1 << 1024),
        wide=torch.zeros([1] * 64),
        deep=deep(31),
        none=None,
        no=False,
    )
    assert_alike(record, there_and_back(record))
    with pytest.raises(TypeError, match="at most 1024 bits, got one of 1025"):
        Up(x=-(1 << 1024))
    assert there_and_back(Up(model=Tree({"w": torch.ones(1)}))).model.plain, (
        "what was just unpacked is not looked at again"
    )


def test_a_record_shows_its_entries() -> None:
    assert (
        repr(Up(a=1, b="x")) == "Up(a=1, b='x')"
        and len(Up(a=1, b=2)) == 2
        and list(Up(a=1, b=2)) == ["a", "b"]
        and not Up()
    )
    assert dict(Up({"a": 1}, a=2, b=3)) == {"a": 2, "b": 3} and dict(Up(None)) == {}


def test_only_the_servers_state_holds_values_by_client() -> None:
    assert isinstance(State(a=PerClient(), b={"c": PerClient()}).b["c"], PerClient)
    for make in (Up, Down, Record):
        with pytest.raises(TypeError, match=r"b\.c: a PerClient lives in the server's state"):
            make(b={"c": PerClient()})
    with pytest.raises(TypeError, match="a PerClient lives in the server's state"):
        ClientState({})["x"] = PerClient()
    with pytest.raises(TypeError, match="string keys"):
        PerClient().put({1: 2})  # type: ignore[dict-item]


def test_a_list_that_holds_itself_is_refused_and_a_record_of_a_class_of_its_own_too() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="at most 32 levels"):
        Up(x=endless)
    with pytest.raises(TypeError, match="Mine: expected one of Record, State, Up, Down"):
        Mine(x=1)


def test_the_deepest_record_that_can_be_made_travels_in_the_engines_envelopes(
    tmp_path: Path,
) -> None:
    down = Down(x=deep(31))
    for record in (
        down,
        Record._trusted({"kind": "task", "down": Record(down=down, alike=True)}),
        State(x=deep(31)),
    ):
        assert_alike(record, there_and_back(record))
        write(record, tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors")
    assert_alike(down, read(tmp_path / "0.safetensors"))


class Colour(enum.IntEnum):
    RED = 3


class Size(enum.StrEnum):
    SMALL = "s"


def test_what_is_recorded_is_what_arrives(tmp_path: Path) -> None:
    """Whatever the transport: bare values of enumerations, no gradients, no strides, no live
    parameters, not even frozen ones.
    """
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    turned = torch.arange(6.0).reshape(2, 3).T
    live = nn.Linear(2, 1)
    record = Up(
        colour=Colour.RED,
        size=Size.SMALL,
        text=np.str_("t"),
        frozen=frozen,
        turned=turned,
        negative=torch.tensor([1 + 2j]).conj().imag,
        big=np.array([1.5, 2.5], ">f8"),
        scalar=np.array(2.5),
        tree=Tree({"t": turned, "w": live.weight}),
        again=Tree({"w": torch.ones(1)}),
    )
    with torch.no_grad():
        frozen.zero_()
        live.weight.zero_()
    assert_alike(record, there_and_back(record))
    assert (type(record.colour), type(record.size), type(record.text), type(record.frozen)) == (
        int,
        str,
        str,
        torch.Tensor,
    )
    assert (
        record.frozen.tolist() == [1, 1]
        and record.negative.tolist() == [-2]
        and record.big.tolist() == [1.5, 2.5]
    )
    assert (
        record.scalar.shape == ()
        and record.turned.is_contiguous()
        and record.tree["t"].is_contiguous()
    )
    assert not record.tree["w"].requires_grad and record.tree["w"].abs().sum() > 0


def test_a_tree_that_is_fit_to_travel_is_recorded_as_it_is() -> None:
    tree = Tree({"w": torch.ones(2)})
    first, second = Up(model=tree), Down(model=tree)
    assert first.model is second.model is tree  # one tree for many clients: sent once


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


def test_a_file_without_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.safetensors"
    write(Up(x=torch.ones(3)), path)
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:40],
        whole.replace(b"$tensor", b"$tonsor"),
        whole.replace(b'\\"Up\\"', b'\\"op\\"'),
    ):
        assert damaged != whole
        path.write_bytes(damaged)
        for lazy in (False, True):
            with pytest.raises(ValueError, match="r.safetensors holds no whole record"):
                read(path, lazy=lazy)


STRUCTURES = {
    "no metadata": (None, "no whole record"),
    "a tensor alone": ('{"$tensor": 0}', "no record"),
    "a mapping": ('{"x": {"$tensor": 0}}', "no record"),
    "a tensor that no entry names": (
        '{"$record": "Up", "values": {}}',
        "tensors that belong to no entry",
    ),
    "a tensor named twice": (
        '{"$record": "Up", "values": {"x": {"$tensor": 0}, "y": {"$tensor": 0}}}',
        "no whole record",
    ),
    "a tree named twice": (
        '{"$record": "Up", "values": {"x": {"$tensor": 0}, "y": {"$tree": "m", "entries": {"w": '
        '0}, "untrained": []}}}',
        "no whole record",
    ),
    "a tensor that is not there": (
        '{"$record": "Up", "values": {"x": {"$tensor": 0}, "y": {"$tensor": 1}}}',
        "no whole record",
    ),
    "half of it": ('{"$record": "Up", "values": {', "no whole record"),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_a_whole_file_of_something_else_is_no_record(case: str, tmp_path: Path) -> None:
    structure, sentence = STRUCTURES[case]
    path = tmp_path / "r.safetensors"
    save_file(
        {"0": torch.ones(2)}, path, metadata=None if structure is None else {"record": structure}
    )
    for lazy in (False, True):
        with pytest.raises(ValueError, match=f"r.safetensors holds {sentence}"):
            read(path, lazy=lazy)
    data = path.read_bytes()
    with pytest.raises(ValueError, match=f"^{len(data)} bytes that hold {sentence}"):
        files.parse(data)
    with pytest.raises(ValueError, match="^" + sentence.replace("no whole", "no")):
        files.check_form(data)


def test_the_bytes_of_a_file_are_a_record_too(tmp_path: Path) -> None:
    write(RICH, tmp_path / "r.safetensors")
    assert_alike(RICH, files.parse(files.dump(RICH)))
    assert_alike(RICH, files.parse((tmp_path / "r.safetensors").read_bytes()))
    files.check_form(files.dump(RICH))
    for data in (b"", b"1234567", b"\xff" * 8 + b"{}", b"\x02" + bytes(7) + b"[]"):
        with pytest.raises(ValueError, match="^no record: "):
            files.check_form(data)
    for data in (b"", b"1234567", files.dump(RICH)[:-1]):
        with pytest.raises(ValueError, match=f"^{len(data)} bytes that hold no whole record"):
            files.parse(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", [3]),
        ("dtype", "F64"),
        ("data_offsets", [0, 4]),
        ("data_offsets", [8, 16]),
        ("data_offsets", [8, 0]),
    ],
)
def test_a_tensor_that_is_not_where_the_file_says_is_no_record(key: str, value: Any) -> None:
    whole = files.dump(Up(x=torch.zeros(2), none=torch.zeros(0, 3)))
    files.check_form(whole)
    (length,) = struct.unpack_from("<Q", whole)
    header = json.loads(whole[8 : 8 + length])
    next(entry for entry in header.values() if entry.get("shape") == [2])[key] = value
    told = json.dumps(header).encode()
    with pytest.raises(ValueError, match="^no record: tensors that"):
        files.check_form(struct.pack("<Q", len(told)) + told + whole[8 + length :])
    with pytest.raises(ValueError, match="^no record: tensors that"):
        files.check_form(whole + b"!")


def test_tensors_that_share_bytes_are_no_record() -> None:
    whole = files.dump(Up(x=torch.zeros(2), y=torch.zeros(2)))
    (length,) = struct.unpack_from("<Q", whole)
    told = whole[8 : 8 + length].replace(b'[2],"data_offsets":[8,16]', b'[4],"data_offsets":[0,16]')
    assert told != whole[8 : 8 + length]
    with pytest.raises(ValueError, match="^no record: tensors that do not follow"):
        files.check_form(struct.pack("<Q", len(told)) + told + whole[8 + length :])


def test_of_values_by_client_those_that_changed_are_looked_at() -> None:
    state = State(own=PerClient({"a": float("nan"), "b": 1.0}, {"b": 2.0, "c": [3]}))
    assert dict(tensors_of(state)) == {"own.b": 2.0, "own.c[0]": 3} and size(state) == 16
    own = state.own
    assert (
        list(own) == ["a", "b", "c"]
        and len(own) == 3
        and (own["b"], own["c"]) == (2.0, [3])
        and "a" in own
        and "d" not in own
    )


def test_numbers_and_tensors_are_found_with_their_paths() -> None:
    found = dict(
        tensors_of(
            Up(a=1, b=True, c="x", d={"e": [2.5, torch.zeros(3)]}, f=Tree({"w": torch.zeros(4)}))
        )
    )
    assert list(found) == ["a", "d.e[0]", "d.e[1]", "f"]
    assert (
        size(Up(a=1, d={"e": [2.5, torch.zeros(3)]}, f=Tree({"w": torch.zeros(4)}), s="text"))
        == 8 + 8 + 12 + 16
    )


def saved(folder: Path, **values: Any) -> PerClient:
    for client, value in values.items():
        write(Record(value=value), folder / f"{client}.safetensors")
    return PerClient(Saved({client: folder / f"{client}.safetensors" for client in values}))


def test_values_by_client_are_read_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = saved(tmp_path, ada=1, bo=2, cy=3)
    asked: list[str] = []
    original = files.read
    monkeypatch.setattr(files, "read", lambda path: asked.append(path.stem) or original(path))
    assert (
        len(mapping) == 3
        and "bo" in mapping
        and "di" not in mapping
        and list(mapping) == ["ada", "bo", "cy"]
    )
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
