"""CSV files with any usual separator, decimal sign and encoding; and cells as numbers.

Separators are commas, semicolons, tabs or bars; encodings are UTF-8, UTF-16 or Latin-1.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from equipoise.validation.names import quoted

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
CLASS_WORDS = ("none", "na", "null")  # gaps that may be a class where they are a label
# Distinct values up to which a column may be a label, whose spelling must not be lost.
MOST_SPELLINGS = 50
_SAMPLED_ROWS = 200  # by which the separator is found
# `01` and `1.0`, which are the same as `1` once they are numbers.
_OTHER_SPELLING = re.compile(r"[-+]?(?:0\d+|\d+\.0*)", re.ASCII)
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)
# A number needs a digit: E10 and - are codes.
_COMMA = re.compile(
    r"[-+]?(?:(?:(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?|,\d+)(?:e[-+]?\d+)?|inf(?:inity)?)",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True)
class Dialect:
    """The form of a CSV file.

    Attributes:
        separator: The sign between cells.
        encoding: The name of the encoding.
        decimal_commas: Columns whose numbers have decimal commas.
        point_columns: Columns of the same file whose numbers have points: 1.234 may mean a
            thousand.
        lines: The line of the file in which each row begins.
    """

    separator: str = ","
    encoding: str = "UTF-8"
    decimal_commas: tuple[str, ...] = ()
    point_columns: tuple[str, ...] = ()
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def usual(self) -> bool:
        """True for commas, UTF-8 and decimal points."""
        return self == Dialect()

    def __str__(self) -> str:
        text = f"{SEPARATORS[self.separator]}, {self.encoding}"
        if self.decimal_commas:
            text += f", decimal commas in {', '.join(self.decimal_commas[:5])}"
        return text


def read_csv(file: Path) -> tuple[dict[str, np.ndarray], Dialect]:
    """Read a CSV file.

    Returns:
        The columns, numbers as floats with NaN for missing cells and all else as text; and the
        form of the file.

    Raises:
        ValueError: If the file is no CSV file, or a row has too many or too few cells.
    """
    text, encoding = _decoded(file)
    separator = _separator(text)
    rows, lines = _rows(file, text, separator)
    if len(rows) < 2:
        raise ValueError(f"{file}: expected a line of column names and at least one row")
    header = [name.strip() for name in rows[0]]
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if repeated:
        raise ValueError(
            f"{file}, line {lines[0]}: column names appear twice: {', '.join(repeated[:5])}"
        )
    for line, row in zip(lines[1:], rows[1:], strict=True):
        if len(row) != len(header):
            raise ValueError(
                f"{file}, line {line}: expected {len(header)} cells, got {len(row)}: "
                f"{quoted(separator.join(row))}; correct that line"
            )
    return _columns(
        {name: [row[j].strip() for row in rows[1:]] for j, name in enumerate(header)},
        Dialect(separator, encoding, lines=tuple(lines[1:])),
    )


def _rows(file: Path, text: str, separator: str) -> tuple[list[list[str]], list[int]]:
    """Return the rows of a file that are not empty, and the line in which each begins."""
    rows: list[list[str]] = []
    lines: list[int] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    first_line = 1
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(first_line)
            first_line = reader.line_num + 1
    except csv.Error as error:
        # An open quotation mark makes one field, of more than 131,072 characters, of the rest.
        raise ValueError(
            f"{file}, line {first_line}: {error}; is a quotation mark open, or is this no CSV file?"
        ) from None
    return rows, lines


def column_of(cells: Sequence[str], decimal_commas: bool = False) -> np.ndarray:
    """Return a column as numbers if all cells are numbers or missing, else as text.

    Args:
        cells: The cells of the column.
        decimal_commas: True to read 1.234,5 as a number, too, if all cells are of this form.
    """
    try:
        return np.array([np.nan if is_missing(cell) else number_of(cell) for cell in cells])
    except ValueError:
        if decimal_commas and all(is_missing(cell) or _COMMA.fullmatch(cell) for cell in cells):
            return np.array([np.nan if is_missing(cell) else _with_comma(cell) for cell in cells])
        return np.array(cells, dtype=np.str_)


def number_of(cell: str) -> float:
    """Return a cell as a number; 1_0 and digits of other scripts are text.

    Raises:
        ValueError: If the cell is not a number.
    """
    if "_" in cell or not cell.isascii():
        raise ValueError(f"expected a number, got {quoted(cell)}")
    return float(cell)


def _with_comma(cell: str) -> float:
    return float(cell.replace(".", "").replace(",", "."))


def spelled_column(cells: Sequence[str], decimal_commas: bool = False) -> np.ndarray:
    """Return a column as `column_of` does, but as text where numbers would merge different cells.

    This concerns columns of few distinct values, which may be a label: with `01` or `1.0`, with
    integers that a float cannot hold, with `none` and numbers, or with nothing but words that may
    mean a gap or a class. `numbers_if_all` makes numbers of such a column once it is known not to
    be the label.

    Args:
        cells: The cells of one column, without outer spaces.
        decimal_commas: True to read 1.234,5 as a number, too, if all cells are of this form.

    Returns:
        An array of floats, with NaN for missing cells, or of text.
    """
    distinct = set(cells)
    if len(distinct) <= MOST_SPELLINGS and _numbers_lose_spelling(distinct):
        return np.array(cells, dtype=np.str_)
    return column_of(cells, decimal_commas)


def numbers_if_all(column: np.ndarray) -> np.ndarray:
    """Return a column of text as numbers if all its cells are numbers or missing."""
    return column_of(column.tolist()) if column.dtype.kind == "U" else column


def is_inexact_integer(cell: str) -> bool:
    """Return True if a cell is an integer that a float cannot hold, such as 9007199254740993.

    >>> is_inexact_integer("9007199254740993"), is_inexact_integer("9007199254740992")
    (True, False)
    """
    # Digits are bounded since Python refuses to convert thousands of them.
    if _INTEGER.fullmatch(cell) is None or not 15 < len(cell) <= 300:
        return False
    return int(float(cell)) != int(cell)


def _numbers_lose_spelling(distinct: set[str]) -> bool:
    present = [cell for cell in distinct if not is_missing(cell)]
    words = {cell.lower() for cell in distinct} & set(CLASS_WORDS)
    if not present:
        return bool(words)
    if column_of(present).dtype.kind != "f":
        return False
    return "none" in words or any(
        _OTHER_SPELLING.fullmatch(cell) or is_inexact_integer(cell) for cell in present
    )


def is_missing(cell: str) -> bool:
    """Return True if a cell is empty or a word for a missing value, such as NA."""
    return cell.lower() in MISSING


def cells_as_text(values: np.ndarray) -> np.ndarray:
    """Return cells as text; a whole number is the same whether its file has 3 or 3.0."""
    if values.dtype.kind != "f":
        return values.astype(np.str_)
    # Columns often have few different numbers, so each is converted once.
    distinct, index = np.unique(values, return_inverse=True)
    texts = np.array([_number_as_text(value) for value in distinct.tolist()], dtype=np.str_)
    if not values.size:
        return texts
    return np.asarray(texts[index.reshape(values.shape)])


def _number_as_text(value: float) -> str:
    if np.isnan(value):
        return ""
    is_whole = np.isfinite(value) and value == np.floor(value)
    return str(int(value)) if is_whole else str(value)


def _columns(
    cells: dict[str, list[str]], dialect: Dialect
) -> tuple[dict[str, np.ndarray], Dialect]:
    """Return the columns, and the dialect with those that have decimal commas and points."""
    table = {name: spelled_column(column) for name, column in cells.items()}
    if dialect.separator == ",":
        return table, dialect
    commas = []
    for name, column in cells.items():
        if numbers_if_all(table[name]).dtype.kind == "f":
            continue
        numbers = column_of(column, decimal_commas=True)
        if numbers.dtype.kind == "f":
            table[name] = numbers
            commas.append(name)
    if not commas:
        return table, dialect
    points = [
        name for name in cells if name not in commas and _has_points(cells[name], table[name])
    ]
    dialect = replace(dialect, decimal_commas=tuple(commas), point_columns=tuple(points))
    return table, dialect


def _has_points(cells: list[str], values: np.ndarray) -> bool:
    return any("." in cell for cell in cells) and numbers_if_all(values).dtype.kind == "f"


def _decoded(file: Path) -> tuple[str, str]:
    """Return the text of a file and the name of its encoding."""
    raw = file.read_bytes()
    for codec, name in _possible_encodings(raw):
        try:
            text = raw.decode(codec)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, name
    raise ValueError(f"{file} is not text in UTF-8, UTF-16 or Latin-1; save it as CSV in UTF-8")


def _possible_encodings(raw: bytes) -> list[tuple[str, str]]:
    """Return the codecs to try, with the names of the encodings."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return [("utf-16", "UTF-16")]
    if _every_second_is_zero(raw, 1):
        return [("utf-16-le", "UTF-16")]
    if _every_second_is_zero(raw, 0):
        return [("utf-16-be", "UTF-16")]
    return [("utf-8-sig", "UTF-8"), ("cp1252", "Latin-1")]


def _every_second_is_zero(raw: bytes, first: int) -> bool:
    """Return True if nearly every second byte is 0: UTF-16 of a western language.

    Args:
        raw: The bytes of a file without a byte order mark.
        first: The first byte that is 0: 0 or 1.
    """
    start = raw[:2000]
    if len(start) < 4 or len(start) % 2:
        return False
    zeros = start[first::2]
    letters = start[1 - first :: 2]
    return 10 * zeros.count(0) > 9 * len(zeros) and not letters.count(0)


def _separator(text: str) -> str:
    """Return the separator of a file.

    It is the sign with which most rows have as many cells as the header; of several the one with
    the longest header, then the one with most numbers.
    """
    scores: dict[str, tuple[float, int, int]] = {}
    for sign in SEPARATORS:
        rows = _first_rows(text, sign)
        if not rows or len(rows[0]) < 2:
            continue
        alike = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
        numbers = sum(_looks_like_number(cell) for row in rows[1:] for cell in row)
        scores[sign] = (alike, len(rows[0]), numbers)
    return max(scores, key=scores.__getitem__, default=",")


def _first_rows(text: str, separator: str) -> list[list[str]]:
    """Return the first rows of a file that are not empty, as far as they can be read."""
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if row:
                rows.append(row)
            if len(rows) > _SAMPLED_ROWS:
                break
    except csv.Error:
        pass
    return rows


def _looks_like_number(cell: str) -> bool:
    return _COMMA.fullmatch(cell.strip().replace(".", ",", 1)) is not None
