"""YAML 1.2 of plain data, read with bounds.

A file from a stranger must neither hang the reader nor fill the memory.

PyYAML follows YAML 1.1, in which `no` is false, 1:30 is 90, 010 is 8 and 1e3 is text. Here only
true and false are booleans and numbers are those of YAML 1.2. Dates are text. A key that appears
twice in one mapping is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from equipoise.validation.names import quoted
from equipoise.validation.regular_files import NotRegularFile, check_regular

MOST_BYTES = 1_000_000
MOST_VALUES = 300_000  # an alias counts as all that it stands for
DEEPEST = 32
_LONGEST_NUMBER = 100  # characters
_WHOLE = 2**63

BASE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = tuple(
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")
)


class Unreadable(ValueError):
    """A text that is not the YAML that was expected."""


def read(path: Path | str) -> Any:
    """Return the content of a YAML file.

    Args:
        path: The path of the file.

    Raises:
        Unreadable: If it cannot be read, is too large, or is not YAML.
    """
    return parsed(read_text(path), str(path))


def read_text(path: Path | str) -> str:
    """Return the text of a YAML file.

    Args:
        path: The path of the file.

    Raises:
        Unreadable: If it cannot be read, is too large, or is not UTF-8.
    """
    try:
        check_regular(path)
        with Path(path).open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
    except NotRegularFile as error:
        raise Unreadable(str(error)) from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) > MOST_BYTES:
        raise Unreadable(f"{path}: expected a YAML file of at most 1 MB; this one is larger")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"{path} is not text in UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None


def parsed(text: str, where: str) -> Any:
    """Return the content of a YAML text.

    Args:
        text: The text.
        where: Its origin, for messages.

    Raises:
        Unreadable: If it is not YAML, or exceeds the bounds.

    Example:
        >>> parsed("lr: 0.1", "--set")
        {'lr': 0.1}
    """
    try:
        _check_bounds(text, where)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise Unreadable(f"{where} is not YAML: {error.problem or error.context}{line}") from None
    except yaml.YAMLError as error:
        raise Unreadable(f"{where} is not YAML: {' '.join(str(error).split())}") from None


@dataclass
class _Size:
    """Values and levels of a node, counting an alias as all that it stands for."""

    values: int = 1
    levels: int = 0
    anchor: str | None = None

    def add(self, inner: _Size) -> None:
        self.values += inner.values
        self.levels = max(self.levels, inner.levels)


def _check_bounds(text: str, where: str) -> None:
    """Count values and levels before anything is built, following aliases."""
    anchored: dict[str, _Size] = {}
    unclosed: list[_Size] = []
    for event in yaml.parse(text, Loader=BASE_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            if len(unclosed) >= DEEPEST:
                raise Unreadable(
                    f"{where}: expected at most {DEEPEST} levels of lists and mappings inside "
                    "each other; it has more"
                )
            unclosed.append(_Size(anchor=event.anchor))
            continue
        size = _size_of(event, unclosed, anchored, where)
        if size is None:
            continue
        if size.anchor:
            anchored[size.anchor] = size
        if unclosed:
            unclosed[-1].add(size)
            if unclosed[-1].values > MOST_VALUES or len(unclosed) + size.levels > DEEPEST:
                raise Unreadable(
                    f"{where}: expected at most {MOST_VALUES:,} values and {DEEPEST} levels, "
                    "counting an alias as all that it stands for; it has more"
                )


def _size_of(
    event: Any, unclosed: list[_Size], anchored: dict[str, _Size], where: str
) -> _Size | None:
    """Return the size of the node that an event completes; None if it completes none."""
    if isinstance(event, yaml.ScalarEvent):
        return _Size(anchor=event.anchor)
    if isinstance(event, yaml.CollectionEndEvent):
        size = unclosed.pop()
        size.levels += 1
        return size
    if isinstance(event, yaml.AliasEvent):
        if event.anchor not in anchored:
            raise Unreadable(
                f"{where}: the alias *{quoted(event.anchor)[1:-1]} stands for nothing that "
                "comes before it"
            )
        return anchored[event.anchor]
    return None


_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOLEAN = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_WHOLE_NUMBER = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FRACTION = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
_RESOLVERS = (
    ("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", _BOOLEAN, list("tTfF")),
    ("tag:yaml.org,2002:int", _WHOLE_NUMBER, list("-+0123456789")),
    ("tag:yaml.org,2002:float", _FRACTION, list("-+.0123456789")),
)


class _Loader(BASE_LOADER):  # type: ignore[misc]
    """Plain data only: no dates, sets or bytes, numbers of a sane size, keys that are text."""

    yaml_constructors = {
        tag: constructor
        for tag, constructor in BASE_LOADER.yaml_constructors.items()
        if tag in _TAGS or tag is None
    }
    yaml_implicit_resolvers: dict[str, list[Any]] = {
        "<": [(tag, pattern) for tag, pattern in BASE_LOADER.yaml_implicit_resolvers["<"]]
    }

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None:
            _refuse_repeated_keys(node)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        for key in mapping:
            # A client's id may look like a number; all else that YAML reads as something
            # (true, null, 0.1) is not a key of ours.
            if not isinstance(key, str) and type(key) is not int:
                raise _wrong(node, f"expected text as a key, got {quoted(key)}; write it in quotes")
        return {str(key): value for key, value in mapping.items()}

    def construct_boolean(self, node: Any) -> bool:
        if not _BOOLEAN.match(node.value):
            raise _wrong(node, f"expected true or false, got {quoted(node.value)}")
        return str(node.value).lower() == "true"

    def construct_number(self, node: Any) -> int | float:
        if len(node.value) > _LONGEST_NUMBER:
            raise _wrong(
                node,
                f"the number {quoted(node.value, 40)} has more than {_LONGEST_NUMBER} characters",
            )
        number: int | float
        if node.tag.endswith(":int"):
            number = _whole(node)
            too_large = abs(number) >= _WHOLE
        else:
            number = _fraction(node)
            too_large = math.isinf(number) and "inf" not in node.value.lower()
        if too_large:
            raise _wrong(node, f"the number {node.value} is too large")
        return number


def dumped(value: Any, **options: Any) -> str:
    r"""Return a value as YAML text that `parsed` reads to the same value.

    Args:
        value: Plain data.
        options: Those of `yaml.dump`, such as `allow_unicode` or `default_flow_style`.

    Example:
        >>> dumped({"name": "1e3", "answer": "no"})
        "name: '1e3'\nanswer: 'no'\n"
    """
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options))


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 or 1.2 would read as something else than text."""

    yaml_implicit_resolvers = {
        sign: list(resolvers) for sign, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _whole(node: Any) -> int:
    if not _WHOLE_NUMBER.match(node.value):
        raise _wrong(node, f"{quoted(node.value)} is not a number")
    base = {"0o": 8, "0x": 16}.get(node.value[:2], 10)
    return int(node.value, base)


def _fraction(node: Any) -> float:
    if not _FRACTION.match(node.value):
        raise _wrong(node, f"{quoted(node.value)} is not a number")
    return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _refuse_repeated_keys(root: Any) -> None:
    """Refuse a mapping that has a key twice, before merges (<<) add keys of other mappings."""
    waiting = [root]
    visited = set()
    while waiting:
        node = waiting.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            _refuse_repeated_keys_of(node)
            waiting += [value for _, value in node.value]


def _refuse_repeated_keys_of(mapping: Any) -> None:
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
            continue
        name = key.value
        if key.tag.endswith(":int") and len(name) <= _LONGEST_NUMBER:
            name = str(_whole(key))  # keys become text, so 1 and "1" are the same key
        if name in lines:
            raise _wrong(
                key,
                f"the key {quoted(name)} appears twice in one mapping (first in line "
                f"{lines[name]}); remove one of the two",
            )
        lines[name] = key.start_mark.line + 1


def _wrong(node: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)
for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader.construct_boolean)
