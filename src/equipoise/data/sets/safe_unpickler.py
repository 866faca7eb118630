"""A reader of the one kind of Python-serialised file we meet, CIFAR's batches: data only, nothing is ever imported or called.

The standard library's disassembler turns the file into a list of operations. Here a small stack machine follows those that
build numbers, text, lists, mappings and byte arrays; any other operation, or any name but NumPy's array parts, is refused.
"""

from __future__ import annotations

import pickletools
from typing import Any

import numpy as np

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = (
    "INT",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "UNICODE",
)
_BYTES = ("BINBYTES", "SHORT_BINBYTES")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NAMES = {
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray _reconstruct",
    "numpy ndarray",
    "numpy dtype",
    "_codecs encode",
}


class _Name(str):
    """A name the file refers to; it stays a name."""


class _Array:
    """A byte array whose content follows in a BUILD operation."""

    value: np.ndarray | None = None


def plain(raw: bytes) -> Any:
    """The value a serialised file describes, if it consists of plain data and byte arrays.

    >>> plain(b"(dp0\\nS'labels'\\np1\\n(lp2\\nI3\\naI5\\nas.")
    {'labels': [3, 5]}
    """
    try:
        return _followed(raw)
    except (TypeError, AttributeError, IndexError, KeyError) as error:
        raise ValueError(f"the file is damaged or not what it claims to be ({error})") from error


def _followed(raw: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for operation, argument, _ in pickletools.genops(raw):
        name = operation.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return _finished(stack.pop())
        if name == "MARK":
            marks.append(len(stack))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _VALUES or name in _BYTES:
            stack.append(argument)
        elif name in _TUPLES:
            count = _TUPLES[name]
            items = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack.append(tuple(items))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "LIST":
            stack.append(since_mark())
        elif name == "DICT":
            items = since_mark()
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else since_mark()
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else since_mark()
            stack[-1].update(
                {_text(k): _finished(v) for k, v in zip(items[::2], items[1::2], strict=True)}
            )
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(_known(str(argument)))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_reduced(stack.pop(), arguments))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], _Array):
                stack[-1].value = _array(state)
        else:
            raise ValueError(
                f"refused: the file holds the operation {name}, which plain data do not need"
            )
    raise ValueError("the file ends in the middle")


def _known(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(
            f"refused: the file refers to {name.replace(' ', '.')}, which plain data do not need"
        )
    return _Name(name)


def _reduced(name: Any, arguments: tuple[Any, ...]) -> Any:
    """What the few known names stand for; a dtype stays its code."""
    if not isinstance(name, _Name):
        raise TypeError("refused: the file calls something that is not one of NumPy's array parts")
    if name.endswith("_reconstruct"):
        return _Array()
    if name == "numpy dtype":
        return str(_text(arguments[0]))
    if name == "_codecs encode":
        return str(arguments[0]).encode("latin1")
    raise ValueError(f"refused: the file calls {name}")


def _array(state: tuple[Any, ...]) -> np.ndarray:
    _, shape, code, fortran, content = state
    if code not in ("u1", "uint8"):
        raise ValueError(f"refused: expected an array of bytes, the file has {code}")
    data = content.encode("latin1") if isinstance(content, str) else bytes(content)
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


def _text(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key


def _finished(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value
