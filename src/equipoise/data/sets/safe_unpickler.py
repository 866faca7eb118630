"""A reader of pickle files with plain data, such as CIFAR's batches; it imports and calls nothing.

The standard library's disassembler turns the file into a list of operations. A small stack machine
follows those that build numbers, text, lists, mappings and byte arrays. Any other operation, and
any name except the parts of NumPy arrays, is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from functools import partial
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
    """A name that the file refers to; it is never imported."""


class _Array:
    """A byte array whose content follows in a BUILD operation."""

    value: np.ndarray | None = None


def plain(raw: bytes) -> Any:
    r"""Return the value of a pickle file that consists of plain data and byte arrays.

    Args:
        raw: The bytes of the file.

    Raises:
        ValueError: If the file is damaged, or holds anything else.

    >>> plain(b"(dp0\nS'labels'\np1\n(lp2\nI3\naI5\nas.")
    {'labels': [3, 5]}
    """
    try:
        return _StackMachine().run(raw)
    except (TypeError, AttributeError, IndexError, KeyError) as error:
        raise ValueError(f"the file is damaged or not what it claims to be ({error})") from error


class _StackMachine:
    """The state of an unpickler: a stack, marks in it, and values that are used again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[Any, Any] = {}
        self.operations: dict[str, Callable[[Any], None]] = {
            "PROTO": self._ignore,
            "FRAME": self._ignore,
            "MARK": self._mark,
            "TUPLE": self._tuple_since_mark,
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "LIST": lambda _: self.stack.append(self._pop_since_mark()),
            "DICT": self._dict_since_mark,
            "APPEND": lambda _: self._extend([self.stack.pop()]),
            "APPENDS": lambda _: self._extend(self._pop_since_mark()),
            "SETITEM": lambda _: self._set_items([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda _: self._set_items(self._pop_since_mark()),
            "MEMOIZE": lambda _: self._remember(len(self.memo)),
            "GLOBAL": lambda name: self.stack.append(_known(str(name))),
            "REDUCE": self._reduce,
            "BUILD": self._build,
        }
        for name in _VALUES + _BYTES:
            self.operations[name] = self.stack.append
        for name, value in _CONSTANTS.items():
            self.operations[name] = partial(self._push, value)
        for name, count in _TUPLES.items():
            self.operations[name] = partial(self._tuple_of, count)
        for name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.operations[name] = self._remember
        for name in ("GET", "BINGET", "LONG_BINGET"):
            self.operations[name] = lambda key: self.stack.append(self.memo[key])

    def run(self, raw: bytes) -> Any:
        """Follow all operations of a file and return the value that they build."""
        for operation, argument, _ in pickletools.genops(raw):
            if operation.name == "STOP":
                return _finished(self.stack.pop())
            if operation.name not in self.operations:
                raise ValueError(
                    f"refused: the file holds the operation {operation.name}, "
                    "which plain data do not need"
                )
            self.operations[operation.name](argument)
        raise ValueError("the file ends in the middle")

    def _ignore(self, _: Any) -> None:
        """Skip an operation that concerns the form of the file only."""

    def _mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def _pop_since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _tuple_since_mark(self, _: Any) -> None:
        self.stack.append(tuple(self._pop_since_mark()))

    def _push(self, value: Any, _: Any) -> None:
        self.stack.append(value)

    def _tuple_of(self, count: int, _: Any) -> None:
        start = len(self.stack) - count
        items = self.stack[start:]
        del self.stack[start:]
        self.stack.append(tuple(items))

    def _dict_since_mark(self, _: Any) -> None:
        items = self._pop_since_mark()
        self.stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def _extend(self, items: list[Any]) -> None:
        self.stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1].update({_text(key): _finished(value)})

    def _remember(self, key: Any) -> None:
        self.memo[key] = self.stack[-1]

    def _reduce(self, _: Any) -> None:
        arguments = self.stack.pop()
        self.stack.append(_reduced(self.stack.pop(), arguments))

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], _Array):
            self.stack[-1].value = _array(state)


def _known(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(
            f"refused: the file refers to {name.replace(' ', '.')}, which plain data do not need"
        )
    return _Name(name)


def _reduced(name: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the result of calling one of the known names; a dtype is its code."""
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
