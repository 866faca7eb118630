"""Configurations that are read section by section are what reading them as a whole gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.validation import safe_yaml
from equipoise.validation.yaml_sections import LONGEST_TEXT, read_with_lines

TEXTS = {
    "empty": "",
    "comments only": "# nothing\n\n# here\n",
    "sections": "data:\n  name: digits\n  sizes:\n  - 1\n  - 2\nrounds: 5\nseed: 0\n",
    "comment between": "a: 1\n# why\n\nb:\n  c: 2  # inside\n",
    "no line end": "a: 1\nb: 2",
    "line ends of Windows": "a: 1\r\nb:\r\n  c: 2\r\n",
    "quoted text over lines": 'a: "x\nb: y"\nc: 1\n',
    "flow mapping over lines": "a: {b: 1,\nc: 2}\nd: 3\n",
    "block text": "a: |\n  x\n\n  y: 1\nb: >-\n  z\n  z\n",
    "anchor in another section": "a: &x\n  c: 1\nb: *x\n",
    "merge": "a: &x {c: 1}\nb:\n  <<: *x\n  d: 2\n",
    "document start": "---\na: 1\n",
    "list": "- a\n- b: 1\n",
    "scalar": "text\n",
    "key in quotes": '"a": 1\nb: 2\n',
    "numbers": "a: -0.0\nb: .inf\nc: 1e3\nd: 9007199254740993\ne: '1e3'\nf: null\n",
}


def whole(path: Path) -> object:
    """Return the content of a file that is parsed as one text."""
    return safe_yaml.parsed(path.read_text(), str(path))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_content_is_that_of_the_whole_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(text.encode())
    expected = whole(path)
    for _ in range(2):  # parsed, and remembered
        content, _ = read_with_lines(path)
        assert repr(content or None) == repr(expected or None)


@pytest.mark.parametrize(
    "text",
    ["a: 1\nb: [", "a: 1\na: 2\n", "a: 1\n...\nb: 2\n", "a: 1\n  b: 2\n", "a: 1\nb\n", "a: 1\n}\n"],
)
def test_an_error_is_that_of_the_whole_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(safe_yaml.Unreadable) as expected:
        whole(path)
    with pytest.raises(safe_yaml.Unreadable) as error:
        read_with_lines(path)
    assert str(error.value) == str(expected.value)


def test_lines_are_counted_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("# first\na:\n  b: 1\n  c:\n  - 2\nd: 3\n")
    assert read_with_lines(path)[1] == {"a": 2, "a.b": 3, "a.c": 4, "a.c.0": 5, "d": 6}


def test_a_reader_may_change_what_it_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a:\n  b: [1]\n")
    read_with_lines(path)[0]["a"]["b"].append(2)
    assert read_with_lines(path)[0] == {"a": {"b": [1]}}


def test_a_long_file_is_within_the_bounds_of_all_files(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    line = f"k: [{'1,' * (LONGEST_TEXT // 2)}]\n"
    path.write_text("".join(f"{name}{line}" for name in "abcdefgh"))
    with pytest.raises(safe_yaml.Unreadable, match="at most"):
        read_with_lines(path)
