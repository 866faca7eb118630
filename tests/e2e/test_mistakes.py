"""A user's mistakes and damaged files, one row each.

The answer is one sentence and exit code 2, without a traceback, and never advises to load a file
unsafely.

To add a case: a function that prepares a folder (which holds four sites in `sites`, an image folder
in `images` and a finished run in `run`) and gives the words of the command, and a part of the
sentence that is expected.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.experiment import load
from tests.helpers.runs import folder_of, sites
from tests.helpers.terminal import Terminal

Words = list[Any]
CASES: dict[str, tuple[Callable[[Path], Words], str]] = {}
DRY = ["--dry-run", "--workers", "0"]


def case(
    sentence: str, name: str = ""
) -> Callable[[Callable[[Path], Words]], Callable[[Path], Words]]:
    def keep(prepare: Callable[[Path], Words]) -> Callable[[Path], Words]:
        CASES[name or prepare.__name__] = prepare, sentence
        return prepare

    return keep


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    data = folder_of(folder / "sites", sites())
    eq.run(
        {
            "data": {"name": data, "split": [0.7, 0.15, 0.15]},
            "model": {"name": "mlp", "hidden": [4]},
            "rounds": 1,
            "workers": 0,
        },
        folder / "run",
    )
    for site in ("north", "south"):
        for place, label in enumerate(("cat", "dog")):
            (folder / "images" / site / label).mkdir(parents=True)
            for number in range(3):
                (folder / "images" / site / label / f"{number}.png").write_bytes(
                    _png(4, 4, bytes([place, number] * 10))
                )
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    return tmp_path / "place"


# --- files of an experiment
# --------------------------------------------------------------------------------------------------


def _yaml(text: str | bytes) -> Callable[[Path], Words]:
    def prepare(place: Path) -> Words:
        (place / "e.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return ["run", "e.yaml", *DRY]

    return prepare


def _bomb(levels: int = 9, width: int = 9) -> str:
    lines = ["a0: &a0 [" + ", ".join("x" * width) + "]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


TEXTS: dict[str, tuple[str | bytes, str]] = {
    "nested 2,000 deep": ("[" * 2000 + "]" * 2000, "at most 32 levels"),
    "mappings nested 2,000 deep": ("{a: " * 2000 + "}" * 2000, "at most 32 levels"),
    "deep by indentation": ("\n".join(" " * n + "a:" for n in range(1000)), "at most 32 levels"),
    "deep by aliases": (
        "x0: &x0 [1]\n" + "\n".join(f"x{n}: &x{n} [*x{n - 1}]" for n in range(1, 90)),
        "32 levels",
    ),
    "alias bomb": (_bomb(), "counting an alias as all that it stands for"),
    "merge bomb": (
        "a0: &a0 {k: v}\n"
        + "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)),
        "counting an alias",
    ),
    "alias of itself": ("model: &m [*m]", "stands for nothing that comes before it"),
    "more than 1 MB": ("# " + "x" * 1_000_001, "at most 1 MB"),
    "not UTF-8": (b"method: \xff\xfe", "not text in UTF-8"),
    "UTF-16": ("method: fedavg".encode("utf-16"), "not text in UTF-8"),
    "a control character": ("method: fed\x07avg", "not YAML"),
    "a number of 100,000 digits": ("rounds: " + "9" * 100_000, "more than 100 characters"),
    "a hexadecimal number": ("seed: 0x" + "f" * 100_000, "more than 100 characters"),
    "a number in sixties": ("seed: " + ":".join(["1"] * 100_000), "seed: expected an integer"),
    "beyond 64 bits": ("seed: 18446744073709551616", "too large"),
    "1.0e+400": ("training: {lr: 1.0e+400}", "too large"),
    "1e400": ("training: {lr: 1e400}", "the number 1e400 is too large"),
    "infinity": ("training: {lr: .inf}", "training.lr: expected a finite number"),
    "no number": ("training: {clip: .nan}", "training.clip: expected"),
    "an infinite parameter": (
        "method: {name: fedprox, mu: .inf}",
        "method.mu: expected a finite number",
    ),
    "an infinite deadline": (
        "participation: {deadline: .inf}",
        "participation.deadline: expected a finite number",
    ),
    "an absurd layer": ("model: {name: mlp, hidden: [1000000000000]}", "model 'mlp': "),
    "an absurd layer of 2^62": (
        "model: {name: mlp, hidden: [4611686018427387904]}",
        "model 'mlp': ",
    ),
    "absurd rounds": ("rounds: 4000000000000000000", "rounds: "),
    "absurd clients": ("data: {name: digits, clients: 4000000000000000000}", "data.clients: "),
    "absurd partition": (
        "data: {name: digits, partition: 'dirichlet:1e400'}",
        "must be of type float and finite",
    ),
    "a partition of 5,000 digits": (
        "data: {name: digits, partition: 'shards:" + "9" * 5000 + "'}",
        "must be of type int and finite",
    ),
    "an absurd device": (
        "device: 'cuda:99999999999999999999'",
        "device: expected cpu, cuda or cuda:1, say, got",
    ),
    "a list": ("[1, 2]", "expected a mapping such as `method: fedavg`, got list"),
    "nothing": ("", "expected a mapping such as `method: fedavg`, got NoneType"),
    "two documents": ("rounds: 1\n---\nrounds: 2", "not YAML"),
    "a truth as a key": ("true: 1", "expected text as a key, got True"),
    "a list as a key": ("? [a]\n: b", "not YAML"),
    "a number as a parameter": ("method: {name: fedavg, 3: 4}", "unknown parameter of fedavg '3'"),
    "Python in YAML": (
        "model: !!python/object/apply:os.system ['touch pwned']",
        "could not determine a constructor",
    ),
    "bytes in YAML": ("model: {name: mlp, x: !!binary aGk=}", "could not determine a constructor"),
    "a wrong tag": ("rounds: !!int _", "not YAML"),
    "a wrong truth": (
        "training: {nesterov: !!bool perhaps}",
        "expected true or false, got 'perhaps'",
    ),
    "an unclosed bracket": ("training: {lr: [", "not YAML"),
    "a NUL in a path": ('data: {name: "a\\0b"}', "expected a name or a path in UTF-8"),
    "a surrogate in a path": ('data: {name: "a\\udcffb"}', "not YAML"),
    "a long path": ("data: {name: " + "a" * 300 + "}", "File name too long"),
    "a longer path": ("data: {name: " + "a" * 100_000 + "}", "expected a name or a path"),
    "a name that is a list": ("model: {name: [mlp]}", "model.name: expected text"),
    "a method that is a list": ("method: [fedavg]", "expected a name or a mapping"),
    "a method's name that is a list": ("method: {name: [fedavg]}", "unknown method ['fedavg']"),
    "clients that are a list": (
        "model: {name: mlp, clients: [a]}",
        "model.clients: expected a mapping",
    ),
    "a model named a@b": ("models: {a@b: mlp}", "expected names without @"),
    "a model named with a slash": ("models: {a/b: mlp}", "printable characters without /"),
    "an escape sequence in a name": ('method: "\\e[31mfedavg"', r"unknown method '\x1b[31mfedavg'"),
    "a long name": ("method: " + "x" * 100_000, "unknown method 'xxx"),
}
for _name, (_text, _sentence) in TEXTS.items():
    case(_sentence, f"yaml: {_name}")(_yaml(_text))


@case("Is a directory")
def a_folder_for_an_experiment(place: Path) -> Words:
    return ["run", place / "sites", *DRY]


@case("--set training: '{lr: [' is not YAML")
def a_setting_that_is_no_yaml(place: Path) -> Words:
    return ["run", "--data", "sites", "--set", "training={lr: [", *DRY]


@case("--grid method.mu")
def a_grid_that_is_no_yaml(place: Path) -> Words:
    return [
        "compare",
        "--data",
        "sites",
        "--methods",
        "fedprox",
        "--grid",
        "method.mu={",
        "--dry-run",
    ]


@case("seeds: expected a list, got 'many'")
def seeds_that_are_a_word(place: Path) -> Words:
    (place / "c.yaml").write_text("data: sites\nmethods: [fedavg]\nseeds: many\n")
    return ["compare", "c.yaml", "--dry-run"]


@case("seeds: expected whole numbers, got 'many'")
def a_seed_that_is_a_word(place: Path) -> Words:
    (place / "c.yaml").write_text("data: sites\nmethods: [fedavg]\nseeds: [many]\n")
    return ["compare", "c.yaml", "--dry-run"]


@case("grid: expected a list of values for method.mu, got 'x'")
def a_grid_without_lists(place: Path) -> Words:
    (place / "c.yaml").write_text("data: sites\nmethods: [fedprox]\ngrid: {method.mu: x}\n")
    return ["compare", "c.yaml", "--dry-run"]


@case("expected words and names of files in UTF-8")
def a_word_that_is_not_utf8(place: Path) -> Words:
    return ["run", os.fsdecode(b"e\xff.yaml"), *DRY]


# --- data
# --------------------------------------------------------------------------------------------------


def _npy(shape: str, code: str = "<f8", content: bytes = b"") -> bytes:
    header = f"{{'descr': {code!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def _npz(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def _site(**members: bytes) -> Callable[[Path], Words]:
    def prepare(place: Path) -> Words:
        _npz(place / "sites" / "bo.npz", **members)
        return ["run", "--data", "sites", *DRY]

    return prepare


LABELS = _npy("(2,)", "<i8", bytes(16))
for _name, _members, _sentence in [
    (
        "a header of 20 TB",
        {"x": _npy("(2500000000000,)", content=bytes(16)), "y": LABELS},
        "20,000,000,000,000 bytes), but the file has 16 bytes",
    ),
    (
        "a header beyond 64 bits",
        {"x": _npy("(9999999999999999999999,)"), "y": LABELS},
        "but the file has 0 bytes",
    ),
    (
        "a negative shape",
        {"x": _npy("(-2, -1)", content=bytes(16)), "y": LABELS},
        "the file is damaged",
    ),
    (
        "no columns but many",
        {"x": _npy("(0, 1000000000)"), "y": _npy("(0,)", "<i8")},
        "at least one sample",
    ),
    (
        "nothing, absurdly wide",
        {"x": _npy("(0, 999999999999999)"), "y": _npy("(0,)", "<i8")},
        "the file is damaged",
    ),
    (
        "text of no width",
        {"x": _npy("(1000000000000,)", "<U0"), "y": LABELS},
        "save it as numbers or text",
    ),
    (
        "Python objects",
        {"x": _npy("(1,)", "|O", b"cos\nsystem\n(S'touch pwned'\ntR."), "y": LABELS},
        "holds Python objects, which are never loaded",
    ),
    (
        "complex numbers",
        {"x": _npy("(2, 1)", "<c16", bytes(32)), "y": LABELS},
        "of type complex128",
    ),
    (
        "dates",
        {"x": _npy("(2, 1)", "<M8[s]", bytes(16)), "y": LABELS},
        "save it as numbers or text",
    ),
    (
        "a single number",
        {"x": _npy("()", content=bytes(8)), "y": LABELS},
        "expected arrays of one length",
    ),
    (
        "a header that is no header",
        {"x": b"\x93NUMPY\x01\x00\x10\x00__import__('os')", "y": LABELS},
        "is damaged or not an NPZ file",
    ),
    (
        "a huge header",
        {
            "x": b"\x93NUMPY\x02\x00" + struct.pack("<I", 50_000_000) + b" " * 50_000_000,
            "y": LABELS,
        },
        "is damaged or not an NPZ file",
    ),
    (
        "words",
        {"x": _npy("(2, 1, 8, 8)", "<U1", bytes(512)), "y": LABELS},
        "expected numbers, one row or image per sample, got <U",
    ),
    ("no array", {"x": b"hello", "y": LABELS}, "is damaged or not an NPZ file"),
    (
        "names for other columns",
        {
            "x": _npy("(2, 3)", content=bytes(48)),
            "y": LABELS,
            "feature_names": _npy("(2,)", "<U1", bytes(8)),
        },
        "a column for each of 2 feature_names",
    ),
    (
        "class 10^12",
        {
            "x": _npy("(2, 1, 8, 8)", "<f4", bytes(512)),
            "y": _npy("(2,)", "<i8", struct.pack("<qq", 0, 10**12)),
        },
        "expected at most 100,000 classes",
    ),
]:
    case(_sentence, f"npz: {_name}")(_site(**_members))


@case("would expand to")
def npz_that_is_a_zip_bomb(place: Path) -> Words:
    with zipfile.ZipFile(
        place / "sites" / "bo.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as opened:
            opened.write(_npy(f"({2**29 // 8},)"))
            block = bytes(2**24)
            for _ in range(2**5):
                opened.write(block)
        archive.writestr("y.npy", LABELS)
    return ["run", "--data", "sites", *DRY]


@case("is damaged or not an NPZ file")
def npz_under_a_password(place: Path) -> Words:
    path = place / "sites" / "bo.npz"
    raw = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + offset] |= 1
    path.write_bytes(raw)
    return ["run", "--data", "sites", *DRY]


@case("is damaged or not an NPZ file")
def npz_of_an_unknown_compression(place: Path) -> Words:
    path = place / "sites" / "bo.npz"
    raw = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        raw[raw.index(mark) + offset] = 97
    path.write_bytes(raw)
    return ["run", "--data", "sites", *DRY]


@case("is damaged or not an NPZ file")
def npz_that_is_a_serialised_object(place: Path) -> Words:
    (place / "sites" / "bo.npz").write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    return ["run", "--data", "sites", *DRY]


@case("is damaged or not an NPZ file")
def npz_cut_off(place: Path) -> Words:
    path = place / "sites" / "bo.npz"
    path.write_bytes(path.read_bytes()[:-30])
    return ["run", "--data", "sites", *DRY]


@case("is damaged or not an NPZ file")
def new_samples_that_are_damaged(place: Path) -> Words:
    (place / "new.npz").write_bytes(b"PK\x03\x04 and so on")
    return ["predict", "run", "new.npz"]


@case("expected numbers in x, got <U1")
def new_samples_that_are_words(place: Path) -> Words:
    np.savez(place / "new.npz", x=np.array([["a", "b"]]))
    return ["predict", "run", "new.npz"]


@case("is damaged or not an NPZ file")
def an_official_file_that_is_damaged(place: Path) -> Words:
    (place / "m.npz").write_bytes(b"PK\x03\x04")
    return ["data", "import", "mnist", "m.npz"]


@case("cannot be taken as data set mnist")
def a_prepared_copy_of_something_else(place: Path) -> Words:
    folder = Path(os.environ["EQUIPOISE_DATA"])
    folder.mkdir()
    np.savez(
        folder / "mnist.npz",
        x_train=np.zeros(3),
        y_train=np.zeros(3),
        x_test=np.zeros(3),
        y_test=np.zeros(3),
    )
    return ["run", "--data", "mnist", *DRY]


@case("which is no part of the data set")
def an_archive_that_swells(place: Path) -> Words:
    import gzip
    import tarfile

    member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    member.size = 10**12
    with gzip.open(place / "c.tar.gz", "wb") as opened:
        opened.write(member.tobuf() + bytes(1024))
    return ["data", "import", "cifar10", "c.tar.gz"]


def _png(width: int, height: int, pixels: bytes | None = None) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = b"".join(
        b"\0" + (pixels or b"")[row * width : (row + 1) * width].ljust(width, b"\0")
        for row in range(height if pixels else 0)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def _image(content: bytes) -> Callable[[Path], Words]:
    def prepare(place: Path) -> Words:
        (place / "images" / "north" / "cat" / "0.png").write_bytes(content)
        return ["run", "--data", "images", *DRY]

    return prepare


case("at most 50,000,000 pixels", "png: 655 megapixels")(_image(_png(25_600, 25_600)))
case("at most 50,000,000 pixels", "png: 100 megapixels")(_image(_png(10_000, 10_000)))
case("is not a readable image", "png: cut off")(_image(_png(4, 4)))
case("is not a readable image", "png: no image")(_image(b"hello"))
case("is not a readable image", "png: PostScript")(
    _image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n(touch pwned) run\n")
)


@case("is not a readable image")
def a_png_with_a_text_that_swells(place: Path) -> Words:
    swollen = b"Comment\0\0" + zlib.compress(bytes(20_000_000))
    chunk = (
        struct.pack(">I", len(swollen))
        + b"zTXt"
        + swollen
        + struct.pack(">I", zlib.crc32(b"zTXt" + swollen))
    )
    whole = _png(4, 4, bytes(16))
    return _image(whole[:33] + chunk + whole[33:])(place)


def _csv(content: bytes, name: str = "bo.csv") -> Callable[[Path], Words]:
    def prepare(place: Path) -> Words:
        (place / "tables").mkdir()
        (place / "tables" / "ada.csv").write_bytes(b"a,label\n1,0\n2,1\n3,0\n4,1\n")
        (place / "tables" / name).write_bytes(content)
        return ["run", "--data", "tables", *DRY]

    return prepare


for _name, _content, _sentence in [
    (
        "a field of 200,000 characters",
        b"a,label\n" + b"x" * 200_000 + b",1\n",
        "field larger than field limit",
    ),
    (
        "a quotation mark that is never closed",
        b'a,label\n"1,0\n' + b"1,0\n" * 60_000,
        "is a quotation mark open",
    ),
    ("no text", b"a,label\n\x81,1\n", "is not text in UTF-8"),
    ("no rows", b"a,label\n", "at least one row"),
    ("nothing", b"", "at least one row"),
    ("300,000 columns of one name", b"a," * 300_000 + b"a\n1\n", "appear twice"),
    ("an escape sequence in a column", b"a\x1b[2J,label\n1,0\n", r"a\x1b[2J"),
    (
        "a label with a slash",
        b"a,label\n1,0/1\n2,0/2\n",
        "the label '0/1': expected 1 to 64 printable characters",
    ),
    (
        "a label of 65 characters",
        b"a,label\n1," + b"x" * 65 + b"\n",
        "expected 1 to 64 printable characters",
    ),
]:
    case(_sentence, f"csv: {_name}")(_csv(_content))
for _name, _file in {
    "65 characters": "x" * 65,
    "a line break": "a\nb",
    "an escape sequence": "a\x1b[2J",
    "a blank": "a ",
}.items():
    case("the site of a file", f"a site called by {_name}")(
        _csv(b"a,label\n1,0\n2,1\n", f"{_file}.csv")
    )
case("it is not UTF-8", "a site called in Latin-1")(
    _csv(b"a,label\n1,0\n2,1\n", os.fsdecode(b"Z\xfcrich.csv"))
)


@case(
    "needs the package pyarrow"
    if not __import__("importlib.util").util.find_spec("pyarrow")
    else "not a Parquet file"
)
def a_damaged_parquet_file(place: Path) -> Words:
    (place / "sites" / "zz.parquet").write_bytes(b"PAR1 and no more")
    return ["run", "--data", "sites", *DRY]


@case("some rows name no")
def a_row_without_a_site(place: Path) -> Words:
    (place / "all.csv").write_text("who,a,label\nx,1,0\n,2,1\n")
    return ["run", "--data", "all.csv", "--set", "data.site=who", *DRY]


@case(r"the site 'a\x1b[2J'")
def a_row_with_an_escape_sequence_for_a_site(place: Path) -> Words:
    (place / "all.csv").write_text("who,a,label\nx,1,0\na\x1b[2J,2,1\n")
    return ["run", "--data", "all.csv", "--set", "data.site=who", *DRY]


@case("the site 'north", "an image folder with an escape sequence")
def _(place: Path) -> Words:
    (place / "images" / "north").rename(place / "images" / "north\x1b[2J")
    return ["run", "--data", "images", *DRY]


@case("the label", "an image folder with a class in Latin-1")
def _(place: Path) -> Words:
    (place / "images" / "north" / "cat").rename(place / "images" / "north" / os.fsdecode(b"\xff"))
    return ["run", "--data", "images", *DRY]


# --- runs
# --------------------------------------------------------------------------------------------------


@case("is not a run")
def a_run_that_is_none(place: Path) -> Words:
    return ["show", place]


@case("cannot be read")
def a_database_that_is_none(place: Path) -> Words:
    (place / "run" / "run.db").write_bytes(b"not a database" * 100)
    return ["show", "run"]


@case("damaged")
def a_database_that_lacks_a_table(place: Path) -> Words:
    with sqlite3.connect(place / "run" / "run.db") as db:
        db.execute("drop table measurements")
    return ["show", "run"]


@case("damaged")
def a_checkpoint_whose_header_is_damaged(place: Path) -> Words:
    for path in (place / "run" / "files").rglob("*.safetensors"):
        path.write_bytes(b"\xff" * 7 + b"\x7f" + path.read_bytes()[8:])
    return ["export", "run"]


@case("experiment.yaml has no 'data'")
def a_run_whose_configuration_is_empty(place: Path) -> Words:
    (place / "run" / "experiment.yaml").write_text("method: {name: fedavg}\n")
    return ["show", "run"]


@case("it has no experiment.yaml")
def a_run_without_configuration(place: Path) -> Words:
    (place / "run" / "experiment.yaml").unlink()
    return ["show", "run"]


@case("expected a mapping such as `method: fedavg`, got list")
def a_run_whose_configuration_is_a_list(place: Path) -> Words:
    (place / "run" / "experiment.yaml").write_text("[]")
    return ["report", "run"]


@case("counting an alias")
def a_run_whose_configuration_is_a_bomb(place: Path) -> Words:
    (place / "run" / "experiment.yaml").write_text(_bomb())
    return ["export", "run"]


@case("was not written by Equipoise")
def a_run_with_a_client_that_steers_the_terminal(place: Path) -> Words:
    with sqlite3.connect(place / "run" / "run.db") as db:
        db.execute(
            "update meta set value = ? where key = 'clients'",
            (json.dumps(["ada", "bo\x1b[2J", "cy", "di"]),),
        )
    return ["show", "run"]


@case("experiment.yaml is a pipe")
def a_run_whose_configuration_never_ends(place: Path) -> Words:
    (place / "run" / "experiment.yaml").unlink()
    os.mkfifo(place / "run" / "experiment.yaml")
    return ["show", "run"]


@case("it is damaged")
def a_comparison_nested_too_deep(place: Path) -> Words:
    (place / "run" / "comparison.json").write_text("[" * 200_000)
    return ["report", "run"]


@case("experiment.yaml has no 'model'")
def a_run_whose_configuration_names_no_model(place: Path) -> Words:
    path = place / "run" / "experiment.yaml"
    path.write_text(json.dumps({key: value for key, value in load(path).items() if key != "model"}))
    return ["show", "run"]


@case("it is damaged")
def a_comparison_without_a_baseline(place: Path) -> Words:
    entry = {"method": "fedavg", "run": str(place / "run"), "alone": None, "setting": {}}
    (place / "run" / "comparison.json").write_text(
        json.dumps({"format": 1, "entries": [entry], "failures": [], "level": 0.95})
    )
    return ["report", "run"]


@case("it is damaged")
def a_comparison_without_entries(place: Path) -> Words:
    (place / "run" / "comparison.json").write_text('{"format": 1, "entries": [{}]}')
    return ["report", "run"]


@case("Not a directory")
def a_file_in_place_of_a_folder(place: Path) -> Words:
    return ["predict", "run", "sites/bo.npz", "--out", "sites/bo.npz/p.csv"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thorough
def test_a_mistake_is_one_sentence(equipoise: Terminal, place: Path, name: str) -> None:
    prepare, sentence = CASES[name]
    answer = equipoise(*prepare(place))  # a traceback would be an exception here
    assert answer.code == 2, answer
    assert (
        answer.err.startswith("error: ")
        and len(answer.err.splitlines()) == 1
        and len(answer.err) < 2500
    ), answer.err[:3000]
    assert sentence in answer.err
    assert all(sign.isprintable() for sign in answer.err.removesuffix("\n"))
    assert not any(word in answer.err for word in ("pickle", "unsafe", "Traceback"))
    assert not (place / "pwned").exists()


def test_numpys_advice_is_known_and_would_be_seen(tmp_path: Path) -> None:
    """What this file looks for is what NumPy says."""
    (tmp_path / "a.npz").write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"(?s)pickle.*unsafe|unsafe.*pickle"):
        np.load(tmp_path / "a.npz")
    np.savez(buffer := io.BytesIO(), x=np.array([{}], dtype=object))
    buffer.seek(0)
    with pytest.raises(ValueError, match="pickle"):
        np.load(buffer)["x"]


def test_a_good_file_is_still_read(equipoise: Terminal, place: Path) -> None:
    for data in ("sites", "images"):
        assert equipoise("run", "--data", data, "--set", "data.duplicates=separate", *DRY).code == 0
