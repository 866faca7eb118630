"""Tables of a user's sites: one CSV, NPZ or Parquet file per site, or one file with a column that names the site."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Column, Dataset
from equipoise.data.npz import read_npz
from equipoise.data.own import from_arrays, from_sites, looks_like_classes
from equipoise.names import checked_name, quoted

ENDINGS = (".csv", ".npz", ".parquet")
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
LABELS = ("label", "target", "y")
Table = dict[str, np.ndarray]


def site_files(folder: Path) -> list[Path]:
    """The site files of a folder, in the order of their names."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in ENDINGS and p.is_file()) if folder.is_dir() else []


def from_tables(
    path: Path | str, *, label: str | None = None, site: str | None = None, categorical: tuple[str, ...] = (), kind: str | None = None
) -> Dataset:
    """A data set from a folder of site files, or from one file and the column that names the site.

    Text columns (and those in `categorical`) are categories, all others numbers; empty cells, NA and ? are missing.
    """
    path = Path(path)
    files = [path] if path.is_file() else site_files(path)
    if not files:
        raise ValueError(f"{path} holds no site files; expected one {', '.join(ENDINGS)} file per site")
    tables = {checked_name(file.stem, "the site of a file") if path.is_dir() else file.stem: read_table(file) for file in files}
    if len(tables) < len(files):
        raise ValueError(f"{path}: two site files share a name; a site's name is its file's name without the ending")
    if all(file.suffix.lower() == ".npz" for file in files) and "x" in tables[files[0].stem]:
        return _from_site_arrays(path, tables, kind)
    if path.is_file():
        tables = _by_site(tables[path.stem], site, path)
    elif site is not None:
        raise ValueError(f"site: {site} is for one file that holds all sites; {path} is a folder with one file per site")
    flat = all(column.ndim == 1 for table in tables.values() for column in table.values())
    if not flat:
        raise ValueError(f"{path}: expected one number or text per sample and column, or the arrays x and y in every site's file")
    _same_columns(tables)
    label = _label_column(next(iter(tables.values())), label)
    joined = {name: _joined([table[name] for table in tables.values()]) for name in next(iter(tables.values()))}
    sites = [name for name, table in tables.items() for _ in range(len(table[label]))]
    return _dataset(path.stem, joined, label, sites, categorical, kind)


def read_table(file: Path) -> Table:
    """The columns of a file; a column of numbers is a float array with NaN for missing cells, any other an array of text."""
    ending = file.suffix.lower()
    if ending == ".csv":
        return {name: _column(cells) for name, cells in _csv(file).items()}
    if ending == ".npz":
        return _npz(file)
    if ending == ".parquet":
        return _parquet(file)
    raise ValueError(f"cannot read {file} as a table; expected a file ending in {', '.join(ENDINGS)}")


def codes(values: np.ndarray, column: Column, categorical: bool) -> np.ndarray:
    """Numbers as they are, categories as their place among column.categories; unknown ones get the code after the last."""
    if not categorical:
        return _numbers(values, column.name)
    places = {name: i for i, name in enumerate(column.categories)}
    text = _text(values)
    return np.array([np.nan if _is_missing(cell) else places.get(cell, len(places)) for cell in text], np.float64)


def _dataset(name: str, joined: Table, label: str, sites: list[str] | None, categorical: tuple[str, ...], kind: str | None) -> Dataset:
    unknown = [c for c in categorical if c not in joined]
    if unknown:
        raise ValueError(f"categorical names no column of {name}: {', '.join(unknown)}; it has {', '.join(joined)}")
    target = joined.pop(label)
    absent = np.array([_is_missing(v) for v in _text(target)])
    if absent.any():
        raise ValueError(f"{name}: {int(absent.sum())} rows have no {label}; every row needs a label, remove those rows")
    columns, values = [], []
    for column, cells in joined.items():
        is_category = column in categorical or cells.dtype.kind not in "fiu"
        categories = tuple(sorted({c for c in _text(cells) if not _is_missing(c)})) if is_category else ()
        # a column with no value at all would look like a number: one category keeps its kind
        columns.append(Column(column, categories or (("none",) if is_category else ())))
        values.append(codes(cells, columns[-1], is_category))
    x = np.stack(values, axis=1)
    labels, classes = target, ()
    if kind != "regression" and (kind == "classification" or looks_like_classes(target)):
        labels, classes = _text(target), tuple(_text(np.unique(target)))
    return replace(from_arrays(x, labels, name=name, sites=sites, columns=columns, kind=kind, class_names=classes), source="own files")


def _from_site_arrays(path: Path, tables: Mapping[str, Table], kind: str | None) -> Dataset:
    """Site files that hold arrays x and y instead of named columns."""
    lacking = [name for name, table in tables.items() if set(table) != {"x", "y"}]
    if lacking:
        raise ValueError(f"{path}: expected the arrays x and y in every site's file, which {', '.join(lacking)} has not")
    x = next(iter(tables.values()))["x"]
    columns = [f"x{j}" for j in range(x.shape[1])] if x.ndim == 2 else []
    return from_sites({name: (t["x"], t["y"]) for name, t in tables.items()}, name=path.stem, columns=columns, kind=kind)


def _csv(file: Path) -> dict[str, list[str]]:
    rows: list[list[str]] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows.extend(row for row in csv.reader(opened) if row)
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text in UTF-8; save it as CSV in UTF-8") from None
    except csv.Error as error:  # a field of more than 131,072 characters, which a quotation mark that is never closed makes of the rest
        raise ValueError(f"{file}, after row {len(rows)}: {error}; is a quotation mark open, or is this no CSV file?") from None
    if len(rows) < 2:
        raise ValueError(f"{file}: expected a line of column names and at least one row")
    header = [name.strip() for name in rows[0]]
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if repeated:
        raise ValueError(f"{file}: column names appear twice: {', '.join(repeated[:5])}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise ValueError(f"{file}, row {number}: expected {len(header)} cells, got {len(row)}")
    return {name: [row[j].strip() for row in rows[1:]] for j, name in enumerate(header)}


def _npz(file: Path) -> Table:
    arrays = read_npz(file)
    names = [str(n) for n in arrays.pop("feature_names", np.array([])).reshape(-1)]
    shapes = {name: a.shape for name, a in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) != 1 or () in shapes.values() or not all(map(math.prod, shapes.values())):
        raise ValueError(f"{file}: expected arrays of one length with at least one sample, got the shapes {quoted(shapes)}")
    if names and "x" in arrays:
        x = arrays.pop("x")
        if x.ndim != 2 or x.shape[1] != len(names):
            raise ValueError(f"{file}: expected x to have a column for each of {len(names)} feature_names, got the shape {x.shape}")
        return {**{name: x[:, j] for j, name in enumerate(names)}, **arrays}
    return arrays


def _parquet(file: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"reading {file} needs the package pyarrow, which is not installed; pip install pyarrow") from None
    try:
        table = parquet.read_table(file)
    except (ValueError, OSError) as error:  # pyarrow's errors are of these kinds
        raise ValueError(f"{file} is damaged or not a Parquet file ({error})") from None
    cells = {name: table.column(name).to_pylist() for name in table.column_names}
    return {name: _column(["" if c is None else str(c) for c in values]) for name, values in cells.items()}


def _column(cells: list[str]) -> np.ndarray:
    try:
        return np.array([np.nan if _is_missing(cell) else float(cell) for cell in cells])
    except ValueError:
        return np.array(cells, dtype=np.str_)


def _is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def _text(values: np.ndarray) -> np.ndarray:
    """Cells as text; a whole number reads the same whether its file kept it as 3 or 3.0."""
    if values.dtype.kind == "f":
        return np.array(
            ["" if np.isnan(v) else str(int(v)) if v == np.floor(v) and np.isfinite(v) else str(v) for v in values], dtype=np.str_
        )
    return values.astype(np.str_)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """One column over all sites; it is text if it is text anywhere."""
    numeric = all(part.dtype.kind in "fiu" for part in parts)
    return np.concatenate(parts if numeric else [_text(part) for part in parts])


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    try:
        return np.array([np.nan if _is_missing(v) else float(v) for v in values]) if values.dtype.kind == "U" else values.astype(np.float64)
    except ValueError:
        raise ValueError(f"column {name} must hold numbers, found text such as {values[0]!r}") from None


def _by_site(table: Table, site: str | None, path: Path) -> dict[str, Table]:
    if site is None or site not in table:
        raise ValueError(f"{path} is one file: say which column names the site (site: COLUMN), one of {', '.join(table)}")
    owner = _text(table[site])
    if any(_is_missing(o) for o in owner):
        raise ValueError(f"{path}: some rows name no {site}; every row needs its site")
    return {str(o): {n: v[owner == o] for n, v in table.items() if n != site} for o in sorted(set(owner))}


def _same_columns(tables: Mapping[str, Table]) -> None:
    first, *others = tables
    for other in others:
        lacks, extra = sorted(set(tables[first]) - set(tables[other])), sorted(set(tables[other]) - set(tables[first]))
        if lacks or extra:
            said = [f"{other} lacks {', '.join(lacks)}"] * bool(lacks) + [f"{other} has also {', '.join(extra)}"] * bool(extra)
            raise ValueError(
                f"sites differ in their columns: compared with {first}, {' and '.join(said)}; bring all sites to the same columns"
            )


def _label_column(table: Table, label: str | None) -> str:
    found = [name for name in LABELS if name in table]
    if label is None and len(found) == 1:
        return found[0]
    if label is None or label not in table:
        raise ValueError(
            f"say which column is the label (label: COLUMN), one of {', '.join(table)}" + (f"; there is no {label}" if label else "")
        )
    return label
