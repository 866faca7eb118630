"""Archives of images in folders: CINIC-10, PACS, MedIMeta.

Members are read in memory; nothing is unpacked to disk.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from equipoise.data.arrays.images import IMAGE_ENDINGS, opened_image
from equipoise.data.arrays.user_data import images_first
from equipoise.data.sets.registered import Arrays

MOST_BYTES = 2**26  # of one member
MOST_MEMBERS = 400_000
PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def members(file: Path) -> Iterator[tuple[PurePosixPath, Callable[[], bytes]]]:
    """Yield the regular files of a ZIP or TAR archive, each with a function that reads it.

    Raises:
        ValueError: If a file is too large, or there are too many.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for index, member in enumerate(archive.infolist()):
                _check(file, member.filename, member.file_size, index)
                if not member.is_dir():
                    yield PurePosixPath(member.filename), partial(archive.read, member)
        return
    with tarfile.open(file) as tape:
        for index, entry in enumerate(tape):
            _check(file, entry.name, entry.size, index)
            if entry.isfile():
                yield PurePosixPath(entry.name), partial(_read_entry, tape, entry)


def _read_entry(tape: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    opened = tape.extractfile(entry)
    assert opened is not None  # entries are regular files
    return opened.read()


def _check(file: Path, name: str, size: int, index: int) -> None:
    if size > MOST_BYTES or index >= MOST_MEMBERS:
        raise ValueError(
            f"{file.name} holds {name!r} of {size:,} bytes as member {index + 1:,}, "
            "which is no part of the data set"
        )


def _pixels(raw: bytes, size: int) -> np.ndarray:
    """Return a colour image of one size, as bytes with the channels first."""
    from PIL import Image

    with opened_image(io.BytesIO(raw)) as opened:
        picture = opened.convert("RGB")
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(images_first(np.asarray(picture)[None])[0])


def _sorted(images: dict[str, np.ndarray]) -> np.ndarray:
    """Return images sorted by name, whatever their order in the archive."""
    return np.stack([images[name] for name in sorted(images)])


def cinic10(files: dict[str, Path]) -> Arrays:
    """Read CINIC-10.tar.gz: train, valid and test with ten folders of PNG files each."""
    (file,) = files.values()
    folders: dict[str, dict[str, np.ndarray]] = {"train": {}, "valid": {}, "test": {}}
    for path, read in members(file):
        if path.suffix == ".png" and len(path.parts) >= 3 and path.parts[-3] in folders:
            folders[path.parts[-3]]["/".join(path.parts[-2:])] = _pixels(read(), 32)
    # The official order of the classes is alphabetical.
    kinds = sorted({name.partition("/")[0] for images in folders.values() for name in images})
    arrays: Arrays = {}
    for folder, part in (("train", "train"), ("valid", "validation"), ("test", "test")):
        if not folders[folder]:
            raise ValueError(
                f"{file.name}: expected PNG files as {folder}/CLASS/NAME.png, found none"
            )
        arrays[f"x_{part}"] = _sorted(folders[folder])
        arrays[f"y_{part}"] = np.array(
            [kinds.index(name.partition("/")[0]) for name in sorted(folders[folder])], np.uint8
        )
    return arrays


def pacs(files: dict[str, Path]) -> Arrays:
    """Read an archive of PACS: four domains with seven folders of images each, at 64x64."""
    (file,) = files.values()
    domains: dict[str, dict[str, np.ndarray]] = {domain: {} for domain in PACS_DOMAINS}
    for path, read in members(file):
        if (
            path.suffix.lower() in IMAGE_ENDINGS
            and len(path.parts) >= 3
            and path.parts[-3] in domains
            and path.parts[-2] in PACS_CLASSES
        ):
            domains[path.parts[-3]]["/".join(path.parts[-2:])] = _pixels(read(), 64)
    arrays: Arrays = {}
    for domain, images in domains.items():
        if not images:
            raise ValueError(f"{file.name}: expected images as {domain}/CLASS/NAME, found none")
        arrays[f"x_{domain}"] = _sorted(images)
        arrays[f"y_{domain}"] = np.array(
            [PACS_CLASSES.index(name.partition("/")[0]) for name in sorted(images)], np.uint8
        )
    return arrays


def medimeta(files: dict[str, Path], task: str = "DR level", size: int = 224) -> Arrays:
    """Read an archive of MedIMeta.

    It holds images/000000.tiff, ..., task_labels/TASK.npy, splits/train.txt, val.txt and test.txt.
    """
    (file,) = files.values()
    pixels: dict[int, np.ndarray] = {}
    splits: dict[str, list[int]] = {}
    labels: np.ndarray | None = None
    for path, read in members(file):
        folder, name = (path.parts[-2] if len(path.parts) > 1 else ""), path.name
        if folder == "images" and path.suffix.lower() in (".tiff", ".tif"):
            pixels[int(path.stem)] = _pixels(read(), size)
        elif folder == "splits" and path.suffix == ".txt":
            splits[path.stem] = [
                int(PurePosixPath(line.strip()).stem)
                for line in read().decode("ascii").splitlines()
                if line.strip()
            ]
        elif folder == "task_labels" and name == f"{task}.npy":
            labels = np.load(io.BytesIO(read()), allow_pickle=False).reshape(-1)
    if labels is None or not {"train", "val", "test"} <= set(splits) or not pixels:
        raise ValueError(
            f"{file.name}: expected images/, splits/train.txt, val.txt and test.txt, "
            f"and task_labels/{task}.npy; some are missing"
        )
    arrays: Arrays = {}
    for folder, part in (("train", "train"), ("val", "validation"), ("test", "test")):
        lacking = [
            number for number in splits[folder] if number not in pixels or number >= len(labels)
        ]
        if lacking:
            raise ValueError(
                f"{file.name}: splits/{folder}.txt names the image {lacking[0]:06d}, "
                "which has no pixels or no label"
            )
        arrays[f"x_{part}"] = np.stack([pixels[number] for number in splits[folder]])
        arrays[f"y_{part}"] = np.array([labels[number] for number in splits[folder]], np.uint8)
    return arrays
