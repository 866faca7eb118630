"""YAML of plain data, read with bounds: a file from a stranger must neither hang nor fill the memory."""

from __future__ import annotations

import math
from collections.abc import Hashable
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

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = tuple(
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")
)


class Unreadable(ValueError):
    """A text that is not the YAML that was expected."""


def read(path: Path | str) -> Any:
    """What a YAML file holds."""
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
        return parsed(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"{path} is not text in UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None


def parsed(text: str, where: str) -> Any:
    """What a YAML text holds; `where` says in errors whose text it is.

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
    except (KeyError, IndexError):  # a tag such as !!bool on a text that is none
        raise Unreadable(
            f"{where} is not YAML: a value does not fit the tag in front of it"
        ) from None


def _check_bounds(text: str, where: str) -> None:
    """Count values and depth before anything is built, following aliases as if they were written out."""
    known: dict[str, tuple[int, int]] = {}  # anchor -> values, levels
    unclosed: list[list[Any]] = []  # anchor, values, levels inside
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.CollectionStartEvent):
            if len(unclosed) >= DEEPEST:
                raise Unreadable(
                    f"{where}: expected at most {DEEPEST} levels of lists and mappings inside each other; it has more"
                )
            unclosed.append([event.anchor, 1, 0])
            continue
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in known:
                raise Unreadable(
                    f"{where}: the alias *{quoted(event.anchor)[1:-1]} stands for nothing that comes before it"
                )
            values, levels = known[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            values, levels = 1, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, inside = unclosed.pop()
            levels = inside + 1
            if anchor:
                known[anchor] = values, levels
        else:
            continue
        if isinstance(event, yaml.ScalarEvent) and event.anchor:
            known[event.anchor] = values, levels
        if unclosed:
            unclosed[-1][1] += values
            unclosed[-1][2] = max(unclosed[-1][2], levels)
            if unclosed[-1][1] > MOST_VALUES or len(unclosed) + levels > DEEPEST:
                raise Unreadable(
                    f"{where}: expected at most {MOST_VALUES:,} values and {DEEPEST} levels, counting an alias as all that it stands for; it has more"
                )


class _Loader(_Base):  # type: ignore[misc]
    """Plain data only: no dates, sets or bytes, numbers of a sane size, keys that are text."""

    yaml_constructors = {
        tag: made for tag, made in _Base.yaml_constructors.items() if tag in _TAGS or tag is None
    }
    yaml_implicit_resolvers = {
        sign: [(tag, pattern) for tag, pattern in found if tag in _TAGS or tag.endswith(":merge")]
        for sign, found in _Base.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        for key in found:
            # A client's id may look like a number; all else that YAML reads as something (yes, null, 0.1) is not a key of ours.
            if not isinstance(key, str) and type(key) is not int:
                raise _wrong(node, f"expected text as a key, got {quoted(key)}; write it in quotes")
        return {str(key): value for key, value in found.items()}

    def construct_number(self, node: Any) -> int | float:
        if len(node.value) > _LONGEST_NUMBER:
            raise _wrong(
                node,
                f"the number {quoted(node.value, 40)} has more than {_LONGEST_NUMBER} characters",
            )
        whole = node.tag.endswith(":int")
        try:
            number: int | float = (
                self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)
            )
        except (ValueError, OverflowError):
            raise _wrong(node, f"{quoted(node.value)} is not a number") from None
        if (whole and abs(number) >= _WHOLE) or (
            not whole and math.isinf(number) and "inf" not in node.value.lower()
        ):
            raise _wrong(node, f"the number {node.value} is too large")
        return number


def _wrong(node: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)
