"""A user's own data: arrays, arrays per site, folders of images."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from equipoise.data.dataset import Column, Dataset
from equipoise.task import Task
from equipoise.validation.names import quoted
from equipoise.validation.regular_files import check_regular

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MOST_PIXELS = 50_000_000
MOST_OUTPUTS = 100_000
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
MOST_CLASSES = 20
USUAL_SIZE, LARGEST_SIZE = (
    64,
    128,
)  # pixels that images are brought to unless told, if they differ or one side is longer than the second
FAR = 10.0  # a mean or deviation of a column beyond which unscaled rows deserve a warning


def from_arrays(
    x: Any,
    y: Any,
    *,
    name: str = "arrays",
    sites: Sequence[Any] | np.ndarray | None = None,
    part: np.ndarray | None = None,
    columns: Sequence[str | Column] = (),
    scaled: bool = False,
    kind: str | None = None,
    class_names: Sequence[str] = (),
) -> Dataset:
    """A data set from arrays or tensors; labels that are integers or text are classes, fractions are targets (or say `kind`).

    uint8 inputs are images, (n, height, width), (n, height, width, channels) or (n, channels, height, width); all else
    becomes float32 and is taken as it is. With `columns`, or `scaled=True`, rows are a table: gaps are filled and numbers scaled.

    >>> data = from_arrays(np.zeros((4, 3)), [0, 1, 1, 2])
    >>> data.task.kind, data.task.outputs, data.x.dtype
    ('classification', 3, torch.float32)
    """
    x, y = np.asarray(x), np.asarray(y).squeeze()
    if x.dtype.kind not in "biuf" or not x.ndim:
        raise ValueError(
            f"data set {name}: expected numbers, one row or image per sample, got {x.dtype} of shape {x.shape}"
        )
    y = y.reshape(len(x)) if y.size == len(x) else y
    if y.ndim != 1:
        raise ValueError(
            f"data set {name}: expected one label per sample, got {len(x)} samples and labels of shape {y.shape}"
        )
    # what is beyond float32 becomes infinite, and is refused as such
    with np.errstate(over="ignore"):
        inputs = torch.tensor(
            images_first(x) if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32)
        )
    labels, names = _labels(y, kind, tuple(class_names))
    classes = names is not None
    outputs = max(len(names or ()), int(labels.max()) + 1 if len(labels) else 0) if classes else 1
    if outputs > MOST_OUTPUTS:
        raise ValueError(
            f"data set {name}: expected at most {MOST_OUTPUTS:,} classes, numbered from 0, got {outputs:,}; use kind='regression' for numbers"
        )
    task = Task(
        "classification" if classes else "regression", tuple(inputs.shape[1:]), outputs, names or ()
    )
    site, site_names = _sites(sites)
    if scaled and inputs.ndim != 2:
        raise ValueError(
            f"data set {name}: scaled=True is for rows of numbers, got samples of shape {tuple(inputs.shape[1:])}"
        )
    columns = columns or ([f"x{place}" for place in range(inputs.shape[1])] if scaled else [])
    described = tuple(Column(c) if isinstance(c, str) else c for c in columns)
    if not described:
        _warn_of_scale(inputs, name)
    return Dataset(
        name,
        inputs,
        torch.tensor(labels),
        task,
        part=part,
        site=site,
        site_names=site_names,
        columns=described,
    )


def _warn_of_scale(x: torch.Tensor, name: str) -> None:
    """Rows that are taken as they are should be near 0 and 1: training at any usual rate fails on blood pressures."""
    if x.ndim != 2 or not x.numel():
        return
    centre, spread = (
        float(x.double().mean(0).abs().max()),
        float(x.double().std(0, correction=0).max()),
    )
    if centre > FAR or spread > FAR:  # NaN and infinity are refused by what follows
        warnings.warn(
            f"data set {name}: its columns are taken as they are, not scaled, and have means up to {centre:.4g} and deviations up to "
            f"{spread:.4g}; give scaled=True to scale them as tables are, or scale them yourself",
            stacklevel=3,
        )


def from_sites(sites: Mapping[str, tuple[Any, Any]], **options: Any) -> Dataset:
    """A data set from one pair (inputs, labels) per site; options as for `from_arrays`.

    >>> from_sites({"north": (np.zeros((2, 3)), [0, 1]), "south": (np.ones((1, 3)), [1])}).site_names
    ('north', 'south')
    """
    if not sites:
        raise ValueError("expected at least one site")
    shapes = {name: np.asarray(x).shape[1:] for name, (x, _) in sites.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"samples differ in shape between sites: {shapes}; all sites must have the same inputs"
        )
    x = np.concatenate([np.asarray(x) for x, _ in sites.values()])
    y = np.concatenate([np.asarray(y).reshape(-1) for _, y in sites.values()])
    names = [name for name, (inputs, _) in sites.items() for _ in range(len(inputs))]
    return from_arrays(x, y, sites=names, **options)


def from_image_folder(folder: Path | str, image_size: int | None = None) -> Dataset:
    """A data set from FOLDER/SITE/CLASS/image files, in sorted order, all read at one size: theirs, or the one that `common_size` says."""
    folder = Path(folder)
    files = image_files(folder)
    shapes = [image_shape(file) for file in files]
    channels, size = (
        max(shape[0] for shape in shapes),
        common_size([shape[1:] for shape in shapes], image_size),
    )
    pixels = [read_image(file, size, channels) for file in files]
    classes = sorted({f.parent.name for f in files})
    y = np.array([classes.index(f.parent.name) for f in files])
    return from_arrays(
        np.stack(pixels),
        y,
        name=folder.name,
        sites=[f.parent.parent.name for f in files],
        class_names=classes,
    )


def common_size(
    sizes: Sequence[tuple[int, ...]], image_size: int | None = None
) -> tuple[int, int] | None:
    """Height and width that images are read at; None: as they are. Unless told, images of different or of large sizes are made small.

    >>> common_size([(30, 40)]), common_size([(30, 40), (28, 28)]), common_size([(500, 400)]), common_size([(500, 400)], 128)
    (None, (64, 64), (64, 64), (128, 128))
    """
    if image_size is not None:
        return image_size, image_size
    return (
        (USUAL_SIZE, USUAL_SIZE)
        if len(set(sizes)) > 1 or max(max(size) for size in sizes) > LARGEST_SIZE
        else None
    )


def image_shape(file: Path) -> tuple[int, int, int]:
    """Channels, height and width as the file says them; no picture is decoded."""
    with opened_image(file) as opened:
        return 1 if opened.mode in ("1", "L") else 3, opened.height, opened.width


def image_files(folder: Path) -> list[Path]:
    """FOLDER/SITE/CLASS/image files, in sorted order."""
    named = sorted(path for path in folder.glob("*/*/*") if path.suffix.lower() in IMAGE_ENDINGS)
    for path in named:
        check_regular(path)  # an image must not be left out in silence
    files = [path for path in named if path.is_file()]
    if not files:
        raise ValueError(f"no images found as {folder}/SITE/CLASS/*{{{','.join(IMAGE_ENDINGS)}}}")
    return files


def read_image(
    file: Path, size: tuple[int, int] | None = None, channels: int | None = None
) -> np.ndarray:
    """One image as uint8 (channels, height, width), resized once where `size` is another; unless told, one channel if it is grey, else three."""
    with opened_image(file) as opened:
        grey = channels == 1 if channels else opened.mode in ("1", "L")
        picture = opened.convert("L" if grey else "RGB")
    if size is not None and (picture.height, picture.width) != size:
        from PIL import Image

        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(images_first(np.asarray(picture)[None])[0])


@contextmanager
def opened_image(file: Path | IO[bytes]) -> Iterator[Picture]:
    """An image file, if it is one of a sane size; formats that need a program of their own (EPS) are not opened."""
    from PIL import Image

    # what its decoders log of damaged bytes is no news: the error says it
    if not logging.getLogger("PIL").handlers:
        logging.getLogger("PIL").addHandler(logging.NullHandler())
    shown = file if isinstance(file, Path) else "a packed image"
    if isinstance(file, Path):
        check_regular(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=IMAGE_FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                yield opened
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(
            f"{shown}: expected an image of at most {MOST_PIXELS:,} pixels; this one has more, scale it down"
        ) from None
    except Exception as error:  # Pillow's decoders raise whatever damaged bytes make of them
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "it is damaged, or none of " + ", ".join(IMAGE_FORMATS)
        )
        raise ValueError(f"{shown} is not a readable image: {why}") from error


def images_first(x: np.ndarray) -> np.ndarray:
    """Images with their channels first.

    >>> images_first(np.zeros((5, 28, 28), np.uint8)).shape, images_first(np.zeros((5, 32, 32, 3), np.uint8)).shape
    ((5, 1, 28, 28), (5, 3, 32, 32))
    """
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise ValueError(
            f"expected images as (n, height, width) or with channels first or last, got shape {x.shape}"
        )
    if x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def looks_like_classes(y: np.ndarray) -> bool:
    """Integers are classes; so are whole numbers kept as fractions, if there are few different ones.

    >>> looks_like_classes(np.array([0.0, 1.0, 1.0])), looks_like_classes(np.array([0.5, 1.0])), looks_like_classes(np.arange(30.0))
    (True, False, False)
    """
    return y.dtype.kind != "f" or (
        bool(np.all(y == np.floor(y))) and len(np.unique(y)) <= MOST_CLASSES
    )


def _labels(
    y: np.ndarray, kind: str | None, names: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels as numbers, and the class names (None for regression)."""
    if y.dtype.kind in "USOb":
        found = names or tuple(sorted({str(value) for value in y}))
        places = {name: i for i, name in enumerate(found)}
        unknown = sorted({str(v) for v in y} - set(found))
        if unknown:
            raise ValueError(
                f"labels {', '.join(map(quoted, unknown[:5]))} are not among the class names {', '.join(found)}"
            )
        return np.array([places[str(value)] for value in y], np.int64), found
    whole = bool(np.all(y == np.floor(y)))
    if kind == "regression" or (kind is None and not looks_like_classes(y)):
        return y.astype(np.float32), None
    if not whole:
        raise ValueError(
            "classification needs whole-number labels; these have fractions: use kind='regression'"
        )
    return y.astype(np.int64), names


def _sites(sites: Sequence[Any] | np.ndarray | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Site marks as numbers, and the sites' names in order of appearance."""
    if sites is None:
        return None, ()
    names = tuple(dict.fromkeys(str(s) for s in sites))
    places = {name: i for i, name in enumerate(names)}
    return np.array([places[str(s)] for s in sites], np.int64), names
