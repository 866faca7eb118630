"""Bytes of strangers: whatever is wrong with them is a ValueError, and they cannot ask for more
memory than they bring.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import tracemalloc
from typing import Any

import pytest
import torch

from equipoise.records import Down, Record, State, Up, pack, unpack
from equipoise.tree import Tree

HONEST = [
    Up(
        model=Tree({"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "net", ["n"]),
        loss=0.25,
        wrong=float("nan"),
        many=2**80,
    ),
    Down(
        a=[1, [2.5, None, True, "text"], {"b": torch.zeros(0, 4)}],
        c={},
        d=torch.tensor([1, 2, 3], dtype=torch.int8),
        e=-float("inf"),
    ),
    Record(
        kind="task",
        number=3,
        request={"client": "ada", "round": 1},
        down=State(x=torch.ones(70, dtype=torch.bool)),
        returned=[1, 2],
    ),
]


def packed(record: Record) -> bytes:
    return b"".join(pack(record))


def message(header: Any, body: bytes = b"") -> bytearray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return bytearray(struct.pack("<Q", len(text)) + text + body)


def one(value: Any, *tensors: Any, body: bytes = b"") -> bytearray:
    return message(
        {"value": {"$record": "Up", "values": {"x": value}}, "tensors": list(tensors)}, body
    )


def test_messages_of_this_form_are_read() -> None:
    """What the wrong ones below differ from."""
    assert unpack(one({"$tensor": 0}, ["float32", [2]], body=bytes(64))).x.tolist() == [0, 0]
    assert unpack(one({"$tree": "m", "entries": {"w": 0}, "untrained": []}, ["float32", [0, 4]])).x[
        "w"
    ].shape == (0, 4)
    assert unpack(one({"$tensor": 0}, ["float32", [1] * 64], body=bytes(64))).x.shape == (1,) * 64
    assert unpack(one({"$tensor": 0}, ["float32", []], body=bytes(64))).x.shape == ()
    assert str(unpack(one(json.loads("[" * 33 + "]" * 33))).x) == "[" * 33 + "]" * 33
    assert unpack(one({"$number": "-inf"})).x == -float("inf") and unpack(
        one({"a": {"b": 1}})
    ).x == {"a": {"b": 1}}


TREE = {"$tree": "m", "entries": {"w": 0}, "untrained": []}
WRONG = {
    "nothing": bytearray(),
    "half a length": bytearray(7),
    "a header of 8 exabytes": bytearray(struct.pack("<Q", 2**63) + bytes(56)),
    "a header of 16 exabytes": bytearray(struct.pack("<Q", 2**64 - 1) + bytes(56)),
    "a header that is cut": message(b'{"value": 1')[:-3],
    "no JSON": message(b"hello"),
    "no text": message(b'"\xff\xfe"'),
    "two values": message(b"{} {}"),
    "no mapping": message([1]),
    "other keys": message({"value": 1}),
    "no record": message({"value": [1], "tensors": []}),
    "no list of tensors": message({"value": {"$record": "Up", "values": {}}, "tensors": {}}),
    "a tensor without shape": one({"$tensor": 0}, ["float32"]),
    "a tensor that is a number": one({"$tensor": 0}, 7),
    "an unknown dtype": one({"$tensor": 0}, ["complex64", [1]], body=bytes(64)),
    "a dtype that is a list": one({"$tensor": 0}, [[], [1]], body=bytes(64)),
    "a negative width": one({"$tensor": 0}, ["float32", [-1]], body=bytes(64)),
    "two negative widths": one({"$tensor": 0}, ["float32", [-4, -4]], body=bytes(64)),
    "a width of true": one({"$tensor": 0}, ["float32", [True]], body=bytes(64)),
    "a fractional width": one({"$tensor": 0}, ["float32", [1.0]], body=bytes(64)),
    "a shape of text": one({"$tensor": 0}, ["float32", "11"], body=bytes(64)),
    "a shape over 2^63": one({"$tensor": 0}, ["float32", [2**62, 4]], body=bytes(64)),
    "a shape whose size wraps to 0": one(
        {"$tensor": 0}, ["float32", [2**32, 2**32]], body=bytes(64)
    ),
    "an empty shape over 2^63": one({"$tensor": 0}, ["float32", [0, 2**62, 4]]),
    "an empty shape over any number": one({"$tensor": 0}, ["float32", [0, 10**30]]),
    "65 dimensions": one({"$tensor": 0}, ["float32", [1] * 65], body=bytes(64)),
    "a thousand dimensions": one({"$tensor": 0}, ["float32", [1] * 1000], body=bytes(64)),
    "a tensor of a terabyte": one({"$tensor": 0}, ["float64", [2**37]], body=bytes(64)),
    "no body": one({"$tensor": 0}, ["float32", [2]]),
    "no padding": one({"$tensor": 0}, ["float32", [2]], body=bytes(8)),
    "a longer body": one({"$tensor": 0}, ["float32", [2]], body=bytes(128)),
    "a header that is not aligned": bytearray(struct.pack("<Q", 57) + one(1)[8:] + b" ")[: 8 + 57],
    "a place too far": one({"$tensor": 1}, ["float32", [2]], body=bytes(64)),
    "a negative place": one({"$tensor": -1}, ["float32", [2]], body=bytes(64)),
    "a place of true": one({"$tensor": False}, ["float32", [2]], body=bytes(64)),
    "a place of text": one({"$tensor": "0"}, ["float32", [2]], body=bytes(64)),
    "a place that is a list": one({"$tensor": []}, ["float32", [2]], body=bytes(64)),
    "a tensor used twice": one([{"$tensor": 0}, {"$tensor": 0}], ["float32", [2]], body=bytes(64)),
    "a tensor used in two trees": one([TREE, TREE], ["float32", [2]], body=bytes(64)),
    "a tensor never used": one(1, ["float32", [2]], body=bytes(64)),
    "an unknown kind": message({"value": {"$record": "System", "values": {}}, "tensors": []}),
    "a kind that is a list": message({"value": {"$record": [], "values": {}}, "tensors": []}),
    "a record of a list": message({"value": {"$record": "Up", "values": []}, "tensors": []}),
    "an unknown mark": one({"$import": "os"}),
    "a mark among other keys": one({"a": 1, "$tensor": 0}, ["float32", [2]], body=bytes(64)),
    "two marks": one({"$tensor": 0, "$record": "Up"}, ["float32", [2]], body=bytes(64)),
    "a tree without entries": one({"$tree": "m", "untrained": []}),
    "a tree whose entries are a list": one(
        TREE | {"entries": [0]}, ["float32", [2]], body=bytes(64)
    ),
    "a tree whose entries are trees": one(
        TREE | {"entries": {"w": TREE}}, ["float32", [2]], body=bytes(64)
    ),
    "a tree whose model is a number": one(TREE | {"$tree": 3}, ["float32", [2]], body=bytes(64)),
    "a tree with untrained numbers": one(
        TREE | {"untrained": [1]}, ["float32", [2]], body=bytes(64)
    ),
    "a tree with untrained lists": one(
        TREE | {"untrained": [[]]}, ["float32", [2]], body=bytes(64)
    ),
    "the literal NaN": one(float("nan")),
    "the literal Infinity": one(float("inf")),
    "the literal -Infinity": one([-float("inf")]),
    "NaN as a width": one({"$tensor": 0}, ["float32", [float("nan")]], body=bytes(64)),
    "an unknown number": one({"$number": "seven"}),
    "a number that is a list": one({"$number": [1]}),
    "an integer of 10^5 digits": message(
        b'{"value": {"$record": "Up", "values": {"x": ' + b"9" * 10**5 + b'}}, "tensors": []}'
    ),
    "35 levels": one(json.loads("[" * 34 + "]" * 34)),
    "1,000 levels": message(b"[" * 1000 + b"]" * 1000),
    "100,000 lists": message(b"[" * 10**5 + b"]" * 10**5),
    "100,000 mappings": message(b'{"value":' * 10**5),
    "100,000 records": message(b'{"$record": "Up", "values": ' * 10**5),
}


@pytest.mark.parametrize("what", WRONG)
def test_whatever_is_wrong_is_a_value_error(what: str) -> None:
    with pytest.raises(ValueError, match="bytes that are no whole record: "):
        unpack(WRONG[what])


def test_a_record_that_is_cut_anywhere_is_refused() -> None:
    for record in HONEST:
        whole = packed(record)
        for length in range(len(whole)):
            with pytest.raises(ValueError, match="no whole record"):
                unpack(bytearray(whole[:length]))
        with pytest.raises(ValueError, match="no whole record"):
            unpack(bytearray(whole + bytes(64)))


EXPANDING = [
    b"[" + b"[]," * 20_000 + b"1]",
    b"[" + b"{}," * 20_000 + b"1]",
    b"[" + b'{"a":0},' * 10_000 + b"1]",
    b"[" + b"1e9," * 20_000 + b"1]",
]


@pytest.mark.parametrize("inside", EXPANDING, ids=["lists", "mappings", "entries", "numbers"])
def test_memory_is_a_small_multiple_of_the_message(inside: bytes) -> None:
    data = message(b'{"value": {"$record": "Up", "values": {"x": ' + inside + b'}}, "tensors": []}')
    tracemalloc.start()
    try:
        unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data)
    finally:
        tracemalloc.stop()


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_tensors_without_numbers_cost_little_and_impossible_ones_nothing() -> None:
    count = 20_000
    entries = ",".join(f'"{place}":{place}' for place in range(count))
    header = (
        b'{"value": {"$record": "Up", "values": {"x": {"$tree": "m", "entries": {%s}, "untrained": '
        b'[]}}}, "tensors": [%s]}'
    )
    data = message(header % (entries.encode(), b",".join([b'["bool",[0]]'] * count)))
    before = resident()
    assert len(unpack(data).x) == count
    assert resident() - before < 100 * len(data)
    before = resident()
    for what in WRONG:
        with pytest.raises(ValueError):
            unpack(WRONG[what])
    assert resident() - before < 50e6


TOKENS = [
    b"$tensor",
    b"$tree",
    b"$record",
    b"$number",
    b"entries",
    b"untrained",
    b"values",
    b"tensors",
    b"value",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"-1",
    b"1e999",
    b"9223372036854775807",
    b"18446744073709551616",
    b"[[[[",
    b"0",
    b"float64",
    b"\\ud800",
    b"\xff",
]


def mutated(whole: bytes, draw: random.Random) -> bytearray:
    """An honest message with a few changes, most of them in its header: bits, cuts, copies, words
    of our own, and numbers that are too large.
    """
    data = bytearray(whole)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        end = 8 + struct.unpack("<Q", whole[:8])[0] if draw.random() < 0.8 else len(data)
        place = draw.randrange(min(end, len(data)) or 1)
        kind = draw.randrange(7)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[place : place + draw.choice([1, 1, 2, 8, 64])]
        elif kind == 2:
            data[place:place] = draw.choice(TOKENS)
        elif kind == 3:
            token = draw.choice(TOKENS)
            data[place : place + len(token)] = token
        elif kind == 4:
            data[place:place] = data[place : place + draw.choice([1, 4, 16, 64])]
        elif kind == 5:
            data[:8] = struct.pack(
                "<Q",
                draw.choice([0, 1, 56, 2**31, 2**63, 2**64 - 1, draw.randrange(2 * len(whole))]),
            )
        else:
            digits = [at for at in range(8, min(end, len(data))) if 48 <= data[at] <= 57]
            if digits:
                data[(at := draw.choice(digits)) : at + 1] = draw.choice(
                    [
                        b"0",
                        b"7",
                        b"-1",
                        b"99999999999999999999",
                        b"4611686018427387904",
                        b"1.5",
                        b'"0"',
                    ]
                )
    # Where only the length of the header is wrong, what lies behind would never be looked at.
    if len(data) >= 8 and draw.random() < 0.7:
        text = data[8:end] if (end := data.rfind(b"}") + 1) > 8 else data[8:]
        text += b" " * (-(8 + len(text)) % 64)
        data = bytearray(struct.pack("<Q", len(text)) + text + data[max(end, 8) :].lstrip(b" "))
    return data


def attack(count: int, seed: int) -> None:
    draw, read = random.Random(seed), 0
    originals = [packed(record) for record in HONEST]
    before = resident()
    for number in range(count):
        data = mutated(draw.choice(originals), draw)
        try:
            record = unpack(data)
        except ValueError:
            continue
        except BaseException as error:
            raise AssertionError(f"message {number} of seed {seed}: {bytes(data)!r}") from error
        read += 1
        # What is read is a record like any other: it can be sent on, and arrives.
        assert isinstance(record, Record)
        assert packed(unpack(bytearray(packed(record)))) == packed(record)
    assert 0.01 * count < read < 0.9 * count, (
        "the changes are of use only if some pass and most do not"
    )
    assert resident() - before < 200e6


def test_ten_thousand_mutated_messages() -> None:
    attack(10_000, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_hundred_thousand_mutated_messages(seed: int) -> None:
    attack(10_000, seed)
