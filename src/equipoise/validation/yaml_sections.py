"""YAML files of configurations: their content, and the line of each key.

A section is a key at the start of a line and everything up to the next such key. The runs of a
folder have most sections in common, so a section that was parsed before is not parsed again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from equipoise.validation import safe_yaml

MOST_SECTIONS = 4096  # that are remembered
LONGEST_TEXT = 100_000  # characters of a file that is parsed by section; it is within all bounds
_START_OF_SECTION = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)
# An anchor, which other sections may refer to, or a line that neither starts nor continues one.
_INDIVISIBLE = re.compile(r"&|^(?![A-Za-z_ #]|- |$)", re.MULTILINE)


def read_with_lines(path: Path | str) -> tuple[Any, dict[str, int]]:
    """Return the content of a YAML file, and the line of each key by its dotted path.

    Keys of lists count from 0.

    Args:
        path: The path of the file.

    Raises:
        Unreadable: If it cannot be read, is too large, or is not YAML.
    """
    text = safe_yaml.read_text(path)
    content_and_lines = _read_by_section(text)
    if content_and_lines is None:
        return safe_yaml.parsed(text, str(path)), _key_lines(text)
    return content_and_lines


def _read_by_section(text: str) -> tuple[dict[str, Any], dict[str, int]] | None:
    """Return content and lines; None for a text that must be parsed as a whole.

    That is also how an error is located: its line is counted in the whole text.
    """
    if len(text) > LONGEST_TEXT or _INDIVISIBLE.search(text):
        return None
    content: dict[str, Any] = {}
    lines: dict[str, int] = {}
    lines_before = 0
    for part in _START_OF_SECTION.split(text):
        try:
            section = _parse_section(part)
        except safe_yaml.Unreadable:
            return None
        values = json.loads(section.content)
        if not isinstance(values, dict) or not content.keys().isdisjoint(values):
            return None
        content |= values
        for key, line in section.lines:
            lines[key] = lines_before + line
        lines_before += part.count("\n")
    if not content:  # An empty file holds nothing, which is not an empty mapping.
        return None
    return content, lines


@dataclass(frozen=True)
class _Section:
    """A section that was parsed.

    Attributes:
        content: Its content as JSON, from which every reader quickly makes a copy of its own.
        lines: The dotted path of each key, and its line within the section.
    """

    content: str
    lines: tuple[tuple[str, int], ...]


@lru_cache(MOST_SECTIONS)
def _parse_section(text: str) -> _Section:
    if not text.strip():
        return _Section("{}", ())
    content = safe_yaml.parsed(text, "a section")
    return _Section(json.dumps(content), tuple(_key_lines(text).items()))


def _key_lines(text: str) -> dict[str, int]:
    """Return the line of each key of a YAML text that could be parsed."""
    lines: dict[str, int] = {}
    unseen = [("", yaml.compose(text, Loader=safe_yaml.BASE_LOADER))]
    while unseen:
        prefix, node = unseen.pop()
        if isinstance(node, yaml.MappingNode):
            members = [(str(key.value), key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            members = [(str(index), value, value) for index, value in enumerate(node.value)]
        else:
            continue
        for name, marked, value in members:
            lines[f"{prefix}{name}"] = marked.start_mark.line + 1
            unseen.append((f"{prefix}{name}.", value))
    return lines
