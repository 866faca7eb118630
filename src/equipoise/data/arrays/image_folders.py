"""Folders of images: their layout, and the data set of their images."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from equipoise.data.arrays.images import (
    IMAGE_ENDINGS,
    common_size,
    look_at,
    read_headers,
    read_images,
)
from equipoise.data.arrays.pixels import LEAST_RANGE, ImageHeader, PixelReport, Window
from equipoise.data.arrays.user_data import from_arrays
from equipoise.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from equipoise.data.findings import Finding
from equipoise.data.message_text import counted, some
from equipoise.validation.names import checked_name, quoted
from equipoise.validation.regular_files import check_regular

PARTS = {
    "train": TRAIN,
    "training": TRAIN,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "test": TEST,
    "testing": TEST,
}
PART_NAMES = {TRAIN: "training", VALIDATION: "validation", TEST: "test"}
DEEPEST = 4  # folders between the data folder and an image, at most: site, part, class
MOST_FILES = 10_000_000
LAYOUTS = (
    "FOLDER/SITE/CLASS/*, FOLDER/CLASS/*, FOLDER/{train,val,test}/CLASS/* or "
    "FOLDER/SITE/{train,val,test}/CLASS/*"
)
_SYSTEM_FILES = ("__MACOSX", "Thumbs.db", "desktop.ini")


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder, with classes, sites and parts from the names of its folders.

    Attributes:
        path: The folder.
        layout: Its layout, such as FOLDER/SITE/CLASS/*.
        files: The images, in sorted order.
        labels: The class of each image.
        sites: The site of each image; none if all are one pool.
        parts: TRAIN, VALIDATION or TEST of each image; none without an official split.
        findings: Files that were left out, and other observations.
    """

    path: Path
    layout: str
    files: tuple[Path, ...]
    labels: tuple[str, ...]
    sites: tuple[str, ...] | None = None
    parts: tuple[int, ...] | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def classes(self) -> list[str]:
        """The different labels, sorted."""
        return sorted(set(self.labels))

    def __str__(self) -> str:
        """The layout, with the numbers of images of an official split."""
        counts = Counter(self.parts or ())
        parts = ", ".join(f"{counts[part]:,} {PART_NAMES[part]}" for part in sorted(counts))
        split = f", an official split: {parts} images" if parts else ""
        pool = "" if self.sites else ", one pool"
        return f"{self.layout}{pool}{split}"


def find_images(path: Path) -> ImageFolder:
    """Find the images of a folder, and its layout by the names of its folders.

    Args:
        path: A folder laid out as FOLDER/SITE/CLASS/*, FOLDER/CLASS/*,
            FOLDER/{train,val,test}/CLASS/* or FOLDER/SITE/{train,val,test}/CLASS/*.

    Raises:
        ValueError: If there is no image, or the layout can be read in two ways.
    """
    files, others = _walk(path)
    depths = Counter(len(_folders(path, file)) for file in files)
    _check_depths(path, depths, files)
    depth = max((depth for depth in depths if 0 < depth < DEEPEST), default=0)
    inside = [file for file in files if len(_folders(path, file)) == depth]
    outside = [file for file in files if len(_folders(path, file)) != depth]
    folder = _with_layout(path, inside)
    findings = (
        *_findings_on_other_files(path, others),
        *_findings_on_outside_images(path, outside),
        *_findings_on_classes(folder),
        *_findings_on_parts(folder),
    )
    return replace(folder, findings=findings)


def holds_images(path: Path) -> bool:
    """Return True if there are images in folders inside a folder."""
    return any(_folders(path, file) for file in _walk(path)[0])


def findings_about(
    folder: ImageFolder,
    headers: Sequence[ImageHeader],
    window: Window | None = None,
    every_pixel: bool = False,
) -> list[Finding]:
    """Return findings on images, from headers and from pixels that may be read wrongly.

    Args:
        folder: The images.
        headers: Their headers, in the same order.
        window: The values that become 0 and 255, for pixels of more than 8 bits.
        every_pixel: True to decode all images, so that damaged ones are found.

    Raises:
        ValueError: If images cannot be read, or need a window.
    """
    pairs = list(zip(folder.files, headers, strict=True))
    doubtful = [file for file, header in pairs if every_pixel or header.needs_look]
    _check_window(folder.path, headers, window)
    report = look_at(doubtful, window)
    return _all_findings(folder, headers, report)


def _all_findings(
    folder: ImageFolder, headers: Sequence[ImageHeader], report: PixelReport
) -> list[Finding]:
    return [
        *folder.findings,
        *_findings_on_headers(folder, headers),
        *_findings_on_dark_sites(folder, report),
        *report.findings(),
    ]


def from_image_folder(
    folder: Path | str,
    image_size: int | None = None,
    window: Window | None = None,
    shape: tuple[int, ...] | None = None,
) -> Dataset:
    """Return a data set of a folder of images, all read at one size.

    Args:
        folder: A folder with one of the layouts of `find_images`.
        image_size: Height and width; none: the size of the images, or as `common_size` says.
        window: The values that become 0 and 255, for pixels of more than 8 bits.
        shape: Channels, height and width on which sites agreed, in place of `image_size`; colours
            are not made grey.

    Raises:
        ValueError: If the layout is ambiguous, or images cannot be read.
    """
    images = find_images(Path(folder))
    headers = read_headers(images.files)
    _check_window(images.path, headers, window)
    size = common_size([header.shape[1:] for header in headers], image_size)
    channels = max(header.shape[0] for header in headers)
    if shape is not None:
        size = shape[1], shape[2]
        channels = max(channels, shape[0])
    pixels, report = read_images(images.files, size or headers[0].shape[1:], channels, window)
    codes = {name: code for code, name in enumerate(images.classes)}
    dataset = from_arrays(
        pixels,
        np.array([codes[label] for label in images.labels]),
        name=images.path.name,
        sites=images.sites,
        part=None if images.parts is None else np.array(images.parts),
        class_names=images.classes,
    )
    findings = _all_findings(images, headers, report)
    return replace(
        dataset,
        notes=tuple(finding.message for finding in findings),
        keeps_parts=images.parts is not None,
        pixel_kinds=tuple(sorted({header.pixels for header in headers})),
    )


def _walk(path: Path) -> tuple[list[Path], list[Path]]:
    """Return image files and other files, sorted, without hidden ones."""
    images: list[Path] = []
    others: list[Path] = []
    pending = [(path, 0)]
    while pending:
        folder, depth = pending.pop()
        # A link to a folder that contains it would never end.
        if folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve()):
            continue
        if len(images) + len(others) + len(pending) > MOST_FILES:
            raise ValueError(
                f"{path}: expected at most {MOST_FILES:,} files; "
                "use a part of them, or remove links in circles"
            )
        for entry in os.scandir(folder):
            if entry.name.startswith(".") or entry.name in _SYSTEM_FILES:
                continue
            file = folder / entry.name
            if entry.is_dir():
                if depth < DEEPEST:
                    pending.append((file, depth + 1))
            elif file.suffix.lower() in IMAGE_ENDINGS:
                check_regular(file)  # no image is left out silently
                images.append(file)
            elif entry.is_file():
                others.append(file)
    return sorted(images), sorted(others)


def _folders(path: Path, file: Path) -> tuple[str, ...]:
    """Return the folders between the data folder and a file."""
    return file.relative_to(path).parts[:-1]


def _check_depths(path: Path, depths: Counter[int], files: Sequence[Path]) -> None:
    """Refuse a folder whose images do not lie equally deep."""
    usable = [depth for depth in sorted(depths) if 0 < depth < DEEPEST]
    if not usable:
        message = f"no images found in {path}; expected {LAYOUTS} with {', '.join(IMAGE_ENDINGS)}"
        if depths[0]:
            message += f"; {depths[0]:,} lie in {path} itself: put them into one folder per class"
        raise ValueError(message)
    if len(usable) > 1:
        shown = [f"{depths[depth]:,} as {_example(path, files, depth)}" for depth in usable]
        raise ValueError(
            f"{path}: images lie at different depths, {' and '.join(shown)}; "
            f"expected one of {LAYOUTS}: move the others out of the folder"
        )


def _example(path: Path, files: Sequence[Path], depth: int) -> str:
    return str(next(file for file in files if len(_folders(path, file)) == depth).relative_to(path))


def _with_layout(path: Path, files: Sequence[Path]) -> ImageFolder:
    """Return images with their classes, sites and parts, by the names of their folders."""
    folders = [_folders(path, file) for file in files]
    depth = len(folders[0])
    level = _level_of_parts(path, folders)
    names = ["CLASS"] if depth - (level is not None) == 1 else ["SITE", "CLASS"]
    if depth - (level is not None) > 2:
        raise ValueError(
            f"{path}: images lie three folders deep, such as {files[0].relative_to(path)}; "
            f"expected {LAYOUTS}"
        )
    parts = None
    if level is not None:
        parts = tuple(PARTS[names_of_file[level].casefold()] for names_of_file in folders)
        folders = [names_of_file[:level] + names_of_file[level + 1 :] for names_of_file in folders]
        present = [name for name in ("train", "val", "test") if PARTS[name] in parts]
        names.insert(level, "{" + ",".join(present) + "}")
    if not folders[0]:
        holders = sorted({file.parent.name for file in files})
        raise ValueError(
            f"{path}: {' and '.join(holders)} hold images but no folders of classes; "
            f"expected {LAYOUTS}"
        )
    sites = None
    if "SITE" in names:
        sites = tuple(names_of_file[0] for names_of_file in folders)
    folder = ImageFolder(
        path,
        "/".join(["FOLDER", *names, "*"]),
        tuple(files),
        tuple(names_of_file[-1] for names_of_file in folders),
        sites,
        parts,
    )
    for name in folder.classes:
        checked_name(name, f"{path}: the label")
    for name in sorted(set(folder.sites or ())):
        checked_name(name, f"{path}: the site")
    _check_parts(folder)
    return folder


def _level_of_parts(path: Path, folders: Sequence[tuple[str, ...]]) -> int | None:
    """Return the level of the folders train, val and test: 0, 1 inside sites, or None."""
    for level in range(len(folders[0])):
        names = sorted({names_of_file[level] for names_of_file in folders})
        known = [name for name in names if name.casefold() in PARTS]
        innermost = level == len(folders[0]) - 1
        if len(known) == len(names) and not (innermost and level > 0):
            return level
        if len(known) == len(names):
            raise ValueError(
                f"{path}: the innermost folders are {', '.join(names)}, so {folders[0][0]}, "
                f"for example, may be a site or a class; expected {LAYOUTS}"
            )
        if known and not innermost:
            others = [name for name in names if name not in known]
            raise ValueError(
                f"{path}: {', '.join(known)} looks like a part of an official split, "
                f"{some(others)} next to it does not; rename or move one of them, "
                f"expected {LAYOUTS}"
            )
    return None


def _check_parts(folder: ImageFolder) -> None:
    """Refuse an official split without images to train on or to test on."""
    if folder.parts is None:
        return
    present = set(folder.parts)
    if TEST not in present or TRAIN not in present:
        lacking = "test" if TEST not in present else "train"
        have = " and ".join(PART_NAMES[part] for part in sorted(present))
        raise ValueError(
            f"{folder.path}: expected an official split with train and test, got {have} images "
            f"only; add {lacking}, rename a folder, or put all images into FOLDER/CLASS/* to have "
            "them split"
        )
    sites = folder.sites or ("",) * len(folder.files)
    trained = {site for site, part in zip(sites, folder.parts, strict=True) if part == TRAIN}
    idle = sorted(set(sites) - trained)
    if idle:
        raise ValueError(
            f"{folder.path}: site {some(map(quoted, idle))} has no training images; "
            "add some, or move it away"
        )


def _findings_on_other_files(path: Path, others: Sequence[Path]) -> list[Finding]:
    if not others:
        return []
    endings = Counter(file.suffix.lower() or "no ending" for file in others)
    shown = some(f"{ending} ({count:,})" for ending, count in endings.most_common())
    verb = "is" if len(others) == 1 else "are"
    return [
        Finding(
            f"{counted(len(others), 'file')} of {path} {verb} not read: {shown}; "
            f"images must end in {', '.join(IMAGE_ENDINGS)}"
        )
    ]


def _findings_on_outside_images(path: Path, images: Sequence[Path]) -> list[Finding]:
    if not images:
        return []
    verb = "is" if len(images) == 1 else "are"
    return [
        Finding(
            f"{counted(len(images), 'image')} outside the layout {verb} not read, such as "
            f"{images[0].relative_to(path)}; move images that belong to the data into a folder "
            "of their class"
        )
    ]


def _findings_on_classes(folder: ImageFolder) -> list[Finding]:
    """Return a finding on folders that are probably no sites: no class is in two of them."""
    if folder.sites is None or len(set(folder.sites)) < 2:
        return []
    holders = Counter(label for label, _ in set(zip(folder.labels, folder.sites, strict=True)))
    if max(holders.values()) > 1:
        return []
    return [
        Finding(
            f"no class is found at two sites: {some(sorted(set(folder.sites)))} are read as sites "
            f"and {some(folder.classes)} as classes; if the first are classes, move their images "
            "up to FOLDER/CLASS/*"
        )
    ]


def _findings_on_parts(folder: ImageFolder) -> list[Finding]:
    """Return findings on classes without training images, and on test images in training."""
    if folder.parts is None:
        return []
    rows = list(zip(folder.files, folder.labels, folder.parts, strict=True))
    trained = {label for _, label, part in rows if part == TRAIN}
    unknown = sorted(set(folder.classes) - trained)
    findings = []
    if unknown:
        findings.append(
            Finding(
                f"no training image has the class {some(map(quoted, unknown))}, so it cannot be "
                "learnt; add some, or remove it from the other parts"
            )
        )
    train = [file for file, _, part in rows if part == TRAIN]
    test = [file for file, _, part in rows if part == TEST]
    equal = _equal_files(train, test)
    if equal:
        first, second = (file.relative_to(folder.path) for file in equal[0])
        verb = "equals" if len(equal) == 1 else "equal"
        findings.append(
            Finding(
                f"{counted(len(equal), 'test image')} {verb} a training image, such as "
                f"{first} and {second}; remove one of each, or results look better than they are"
            )
        )
    return findings


def _equal_files(train: Sequence[Path], test: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Return test files with the bytes of a training file; files of one size are compared."""
    sizes = {file: file.stat().st_size for file in (*train, *test)}
    shared = {sizes[file] for file in train} & {sizes[file] for file in test}
    known = {_digest(file): file for file in train if sizes[file] in shared}
    pairs = [(file, known.get(_digest(file))) for file in test if sizes[file] in shared]
    return [(file, equal) for file, equal in pairs if equal is not None]


def _digest(file: Path) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _findings_on_headers(folder: ImageFolder, headers: Sequence[ImageHeader]) -> list[Finding]:
    """Return findings on files with several images, deep colours and different kinds of pixels."""
    pairs = list(zip(folder.files, headers, strict=True))
    findings = []
    several = [(file, header) for file, header in pairs if header.frames > 1]
    if several:
        file, header = several[0]
        verb = "holds" if len(several) == 1 else "hold"
        findings.append(
            f"{counted(len(several), 'file')} {verb} several images, such as "
            f"{file.relative_to(folder.path)} with {header.frames}: the first is read; "
            "save the others as separate files"
        )
    deep = [file for file, header in pairs if header.deep_colour]
    if deep:
        verb = "has" if len(deep) == 1 else "have"
        findings.append(
            f"{counted(len(deep), 'image')} {verb} colours of 16 bits, such as "
            f"{deep[0].relative_to(folder.path)}: the upper 8 are read"
        )
    kinds = Counter(header.pixels for header in headers)
    if len(kinds) > 1:
        shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        findings.append(
            f"images have different kinds of pixels ({shown}), each brought to 0..255 in its own "
            f"way{_kinds_by_site(folder, headers)}; save all alike if they are to be compared"
        )
    return [Finding(message) for message in findings]


def _findings_on_dark_sites(folder: ImageFolder, report: PixelReport) -> list[Finding]:
    """Return a finding on sites that use a small part of the pixel range, as 12 of 16 bits."""
    shares: dict[str, float] = {}
    for file, site in zip(folder.files, folder.sites or (), strict=False):
        if file.parent in report.folder_shares:
            shares[site] = max(shares.get(site, 0.0), report.folder_shares[file.parent])
    brightest = max(shares.values(), default=0.0)
    dark = {site: share for site, share in shares.items() if share < LEAST_RANGE * brightest}
    if not dark:
        return []
    message = (
        f"images of {some(map(quoted, dark))} use at most {100 * max(dark.values()):.2g}% of the "
        f"range of their pixels, those of other sites up to {100 * brightest:.3g}%, so they are "
        "nearly black in comparison; if they were saved with fewer bits, save all alike"
    )
    return [Finding(message, sites=tuple(dark))]


def _kinds_by_site(folder: ImageFolder, headers: Sequence[ImageHeader]) -> str:
    """Return the kinds of pixels of each site, if a site has one kind only."""
    if folder.sites is None:
        return ""
    kinds: dict[str, set[str]] = {}
    for site, header in zip(folder.sites, headers, strict=True):
        kinds.setdefault(site, set()).add(header.pixels)
    if all(len(site_kinds) > 1 for site_kinds in kinds.values()):
        return ""
    shown = [f"{site}: {' and '.join(sorted(names))}" for site, names in sorted(kinds.items())]
    return f" ({some(shown)})"


def _check_window(path: Path, headers: Sequence[ImageHeader], window: Window | None) -> None:
    if window is not None and all(header.pixels == "8-bit" for header in headers):
        raise ValueError(
            f"data.window: expected images with more than 8 bits per pixel, got none in {path}; "
            "leave it out"
        )
