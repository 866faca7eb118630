"""A schema as YAML that people edit: one column per line, and proposed repairs as comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from equipoise.data.findings import Finding
from equipoise.validation import safe_yaml

_NOTE = """\
# Lines that begin with "# " are proposals. Remove the "# " of those that are right, also in front
# of the lines above them to which they belong. A line that begins with "##" says why.
"""
_NOTE_WITHOUT_REASONS = """\
# Lines that begin with "# " are proposals. Remove the "# " of those that are right, also in front
# of the lines above them to which they belong. `equipoise data check` says why.
"""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)  # needs no quotation marks, unless it is
_READ_OTHERWISE = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
_NEVER_SPLIT = 2**31  # columns of a line: one comment sign must cover a whole value
_REPAIRS = ("rename", "missing", "values", "factors", "sites")
_BLOCKS = ("columns", "codes", *_REPAIRS)  # keys whose entries have lines of their own
_NOTHING = object()
_IN_PLACE = "## in place of the line above:\n"
Path = tuple[str, ...]


def schema_text(
    plain: Mapping[str, Any], findings: Sequence[Finding] = (), reasons: bool = True
) -> str:
    """Return a schema as YAML.

    Args:
        plain: The schema as plain data.
        findings: Their repairs become comments, except those that the schema has already.
            Kinds are proposed only for columns that the schema lists: a schema that lists some
            columns leaves out all others.
        reasons: False to leave out the reasons of proposals, which quote cells and ranges.
    """
    proposals = [finding for finding in findings if finding.repair]
    columns = list(plain.get("columns", []))
    lines = [f"{_inline({key: value})}\n" for key, value in plain.items() if _is_short(key)]
    lines += _code_lines(plain.get("codes", []))
    lines += _column_lines(columns, proposals)
    lines += _reasons_once(_repairs(plain, proposals).lines())
    if not reasons:
        lines = [line for line in lines if not line.startswith("## ") or line == _IN_PLACE]
    if any(line.startswith("# ") for line in lines):
        lines.insert(0, _NOTE if reasons else _NOTE_WITHOUT_REASONS)
    return "".join(lines)


def _code_lines(codes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the codes of patients' events, one per line."""
    lines = ["codes:\n"] if codes else []
    return lines + [f"- {_inline(code, braces=True)}\n" for code in codes]


def _repairs(plain: Mapping[str, Any], proposals: Sequence[Finding]) -> _Entry:
    """Return the repairs of a schema, and those that findings propose."""
    repairs = _Entry()
    for key, section in plain.items():
        if key in _REPAIRS:
            for path, value in _leaves(section, (key,)):
                repairs.add(path, value)
    for finding in proposals:
        for path, value in _leaves(finding.repair, ()):
            if path[0] != "columns":
                repairs.add(path, value, finding.message)
    return repairs


class _Entry:
    """A key of nested mappings: its value, the values proposed for it, and the keys below it."""

    def __init__(self) -> None:
        self.value: Any = _NOTHING
        self.proposed: list[tuple[Any, str]] = []
        self.below: dict[str, _Entry] = {}

    def add(self, path: Path, value: Any, reason: str | None = None) -> None:
        """Add a value at the end of a path; with a reason it is a proposal."""
        if path:
            self.below.setdefault(path[0], _Entry()).add(path[1:], value, reason)
        elif reason is None:
            self.value = value
        else:
            value = _joined(self.value, value)
            if self.value is _NOTHING or _texts(self.value) != _texts(value):
                self.proposed.append((value, reason))

    def is_active(self) -> bool:
        """Return True if there is a value, not only proposals, here or below."""
        return self.value is not _NOTHING or any(entry.is_active() for entry in self.below.values())

    def lines(self, indent: str = "") -> Iterator[str]:
        """Yield the lines of all keys below this one, with proposals as comments."""
        for key, entry in self.below.items():
            if entry.value is not _NOTHING:
                yield f"{indent}{_inline({key: entry.value})}\n"
            for value, reason in entry.proposed:
                yield from _comment(reason)
                if entry.value is not _NOTHING:
                    yield _IN_PLACE
                yield f"# {indent}{_inline({key: value})}\n"
            if entry.below:
                comment = "" if entry.is_active() else "# "
                yield f"{comment}{indent}{_flow(key)}:\n"
                yield from entry.lines(indent + "  ")


def _reasons_once(lines: Iterable[str]) -> Iterator[str]:
    """Leave out a reason that is the same as the last one: many values may have one reason."""
    last = None
    for line in lines:
        if line.startswith("##"):
            if line == last:
                continue
            last = line
        yield line


def _column_lines(columns: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> list[str]:
    """Return the columns, one per line, each followed by the entries proposed instead."""
    proposed: dict[str, list[tuple[Mapping[str, Any], str]]] = {}
    known = {str(column["name"]): column for column in columns}
    for finding in findings:
        for entry in (finding.repair or {}).get("columns", []):
            current = known.get(str(entry["name"]), {})
            if any(current.get(key) != value for key, value in entry.items()):
                proposed.setdefault(str(entry["name"]), []).append((entry, finding.message))
    lines = ["columns:\n"] if columns else []
    for name, column in known.items():
        lines.append(f"- {_inline(column, braces=True)}\n")
        for entry, reason in proposed.get(name, []):
            lines += _comment(reason)
            lines.append(_IN_PLACE)
            lines.append(f"# - {_inline(entry, braces=True)}\n")
    return lines


def _is_short(key: str) -> bool:
    return key not in _BLOCKS


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, (*path, str(key)))
    else:
        yield path, value


def _texts(value: Any) -> Any:
    """Return a value as text to compare: a repair may be written as text or as a number."""
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return str(value)


def _joined(active: Any, proposed: Any) -> Any:
    """Return a proposed list with the items of the active one, which it replaces."""
    if not isinstance(active, (list, tuple)) or not isinstance(proposed, (list, tuple)):
        return proposed
    return list(dict.fromkeys([*map(str, active), *map(str, proposed)]))


def _comment(reason: str) -> list[str]:
    return [f"## {' '.join(reason.split())}\n"]


def _inline(value: Mapping[str, Any], braces: bool = False) -> str:
    """Return a mapping on one line."""
    text = ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items())
    return f"{{{text}}}" if braces else text


def _flow(value: Any) -> str:
    """Return a value, a list or a mapping of values on one line of YAML."""
    if isinstance(value, Mapping):
        return _inline(value, braces=True)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)  # a line break in a name must not end the line
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _READ_OTHERWISE:
        return value
    return safe_yaml.dumped(
        [value], default_flow_style=True, allow_unicode=True, width=_NEVER_SPLIT
    ).strip()[1:-1]
