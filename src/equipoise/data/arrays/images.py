"""Image files as arrays of 0..255, and what their headers say."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from equipoise.data.arrays import dicom
from equipoise.data.arrays.pixels import TYPE_RANGE, DeepImage, ImageHeader, PixelReport, Window
from equipoise.validation.limits import BYTES, most_bytes
from equipoise.validation.regular_files import check_regular

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MOST_PIXELS = 50_000_000
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF")
IMAGE_ENDINGS = (
    ".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", *dicom.ENDINGS
)  # fmt: skip
# Images are brought to USUAL_SIZE unless told, if they differ or a side exceeds LARGEST_SIZE.
USUAL_SIZE, LARGEST_SIZE = 64, 128
_NAMED = 5

# Values of the EXIF tag Orientation, and the names of Pillow's operations that undo them.
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_Result = TypeVar("_Result")


def common_size(
    sizes: Sequence[tuple[int, ...]], image_size: int | None = None
) -> tuple[int, int] | None:
    """Return the height and width that images are read at; none: as they are.

    Unless told, images of different or of large sizes are made small.

    >>> common_size([(30, 40)]), common_size([(30, 40), (28, 28)])
    (None, (64, 64))
    >>> common_size([(500, 400)]), common_size([(500, 400)], 128)
    ((64, 64), (128, 128))
    """
    if image_size is not None:
        return image_size, image_size
    if len(set(sizes)) > 1 or max(max(size) for size in sizes) > LARGEST_SIZE:
        return USUAL_SIZE, USUAL_SIZE
    return None


def read_headers(files: Sequence[Path]) -> list[ImageHeader]:
    """Return every file's header.

    Raises:
        ValueError: If some cannot be read; it names them together.
    """
    return _each(files, read_header)


def read_header(file: Path) -> ImageHeader:
    """Return what a file says about its image; nothing is decoded.

    Raises:
        ValueError: If it is no readable image, or too large.
    """
    if dicom.is_dicom(file):
        return dicom.read_header(file, MOST_PIXELS)
    with opened_image(file) as opened:
        rawmode = _rawmode(opened)
        grey = _is_grey(opened)
        height, width = opened.height, opened.width
        # Pillow has already exchanged the sides of a TIFF image.
        if opened.format != "TIFF" and _orientation(opened) >= 5:
            height, width = width, height
        # A phone's JPEG file may hold previews of its image, which are no further images.
        frames = 1 if opened.format in ("JPEG", "MPO") else getattr(opened, "n_frames", 1)
        return ImageHeader(
            (1 if grey else 3, height, width),
            _kind_of_pixels(opened.mode, rawmode),
            opened.has_transparency_data,
            frames,
            not grey and ";16" in rawmode,
        )


def read_image(
    file: Path,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    window: Window | None = None,
) -> np.ndarray:
    """Return one image as uint8 (channels, height, width); arguments as for `read_images`."""
    return np.asarray(read_images([file], size, channels, window)[0][0])


def read_images(
    files: Sequence[Path],
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    window: Window | None = None,
    trained: Sequence[str] | None = None,
) -> tuple[np.ndarray, PixelReport]:
    """Return images as uint8 (n, channels, height, width), and what was seen in them.

    Args:
        files: At least one image file.
        size: Height and width; none: those of the first image.
        channels: 1 or 3; none: those of the first image.
        window: The values that become 0 and 255, for pixels of more than 8 bits.
        trained: The kinds of pixels that a model was trained on, for images to predict for.

    Raises:
        ValueError: If images cannot be read, take too much memory, or need a window.
    """
    first = read_header(files[0]).shape if size is None or channels is None else None
    if first is not None:
        channels, size = channels or first[0], size or first[1:]
    assert channels is not None and size is not None
    shape = (len(files), channels, *size)
    check_memory(shape)
    images = np.empty(shape, np.uint8)
    report = PixelReport(window)
    positions = {file: position for position, file in enumerate(files)}

    def read(file: Path) -> None:
        images[positions[file]] = _decoded(file, size, channels, report)

    _each(files, read)
    report.check(trained)
    return images, report


def look_at(files: Sequence[Path], window: Window | None = None) -> PixelReport:
    """Return what images hold, as `read_images` does, without keeping them."""
    report = PixelReport(window)
    _each(files, lambda file: _decoded(file, None, None, report))
    report.check()
    return report


@contextmanager
def opened_image(file: Path | IO[bytes]) -> Iterator[Picture]:
    """Open an image file of a sane size; formats that need a program of their own (EPS) are not opened."""
    from PIL import Image

    # what its decoders log of damaged bytes is no news: the error says it
    if not logging.getLogger("PIL").handlers:
        logging.getLogger("PIL").addHandler(logging.NullHandler())
    shown = file if isinstance(file, Path) else "a packed image"
    if isinstance(file, Path):
        check_regular(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow says of damaged EXIF data is no news
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Given a path, Pillow 13 maps a plain TIFF file into memory before it exchanges the
            # sides of a turned image, and mixes up its pixels.
            source = file.open("rb") if isinstance(file, Path) else nullcontext(file)
            with source as stream, Image.open(stream, formats=IMAGE_FORMATS) as opened:
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


def _each(files: Sequence[Path], read: Callable[[Path], _Result]) -> list[_Result]:
    """Read every file; whatever cannot be read is named in one error."""
    results, errors = [], []
    for file in files:
        try:
            results.append(read(file))
        except ValueError as error:
            errors.append(str(error))
    if len(errors) == 1:
        raise ValueError(errors[0])
    if errors:
        more = f"; and {len(errors) - _NAMED} more" if len(errors) > _NAMED else ""
        raise ValueError(
            f"{len(errors):,} of {len(files):,} images cannot be read, replace or remove them: "
            f"{'; '.join(errors[:_NAMED])}{more}"
        )
    return results


def check_memory(shape: tuple[int, ...]) -> None:
    """Refuse images that take more memory than one data set may.

    Args:
        shape: Their number, channels, height and width.

    Raises:
        ValueError: It names the bytes and what to do.
    """
    # The pixels, and once more as float32, which is what models take.
    needed = 5 * int(np.prod(shape, dtype=np.float64))
    if needed > most_bytes():
        sides = "x".join(map(str, shape[1:]))
        raise ValueError(
            f"{shape[0]:,} images of {sides} take {needed:,} bytes, expected at most {most_bytes():,}; "
            f"choose a smaller data.image_size, use fewer images, or set {BYTES}"
        )


def _decoded(
    file: Path, size: tuple[int, int] | None, channels: int | None, report: PixelReport
) -> np.ndarray:
    """One image as uint8 (channels, height, width)."""
    from PIL import Image

    image = dicom.read_dicom(file, MOST_PIXELS) if dicom.is_dicom(file) else _opened(file, report)
    if isinstance(image, DeepImage):
        image = report.scaled(file, image)
    picture = Image.fromarray(image)
    if channels is not None and picture.mode != "F":
        picture = picture.convert("L" if channels == 1 else "RGB")
    if size is not None and (picture.height, picture.width) != size:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    if picture.mode == "F":
        pixels = np.rint(pixels).clip(0, 255).astype(np.uint8)
    if pixels.ndim == 2:
        return np.repeat(pixels[None], channels or 1, axis=0)
    return pixels.transpose(2, 0, 1)


def _opened(file: Path, report: PixelReport) -> np.ndarray | DeepImage:
    """The first image of a file, upright: uint8, or its own numbers if they have more bits."""
    from PIL import Image

    with opened_image(file) as opened:
        kind = _kind_of_pixels(opened.mode, _rawmode(opened))
        opened.load()
        # Pillow turns TIFF images upright by itself.
        turn = None if opened.format == "TIFF" else _UPRIGHT.get(_orientation(opened))
        upright = opened.transpose(Image.Transpose[turn]) if turn else opened
        if kind != "8-bit":
            return DeepImage(np.array(upright), kind, TYPE_RANGE.get(kind))
        target = "L" if _is_grey(opened) else "RGB"
        if not opened.has_transparency_data:
            return np.array(upright.convert(target))
        upright.info = dict(opened.info)  # a transparent colour is told there
        layers = upright.convert("RGBA")
        report.transparent += bool(np.asarray(layers.getchannel("A")).min() < 255)
        white = Image.new("RGBA", layers.size, "white")
        return np.array(Image.alpha_composite(white, layers).convert(target))


def _is_grey(opened: Picture) -> bool:
    return opened.mode in ("1", "L", "LA", "La", "F") or opened.mode.startswith("I")


def _kind_of_pixels(mode: str, rawmode: str) -> str:
    """
    >>> _kind_of_pixels("I;16", "I;16B"), _kind_of_pixels("I", "I;16S"), _kind_of_pixels("I", "I;32S")
    ('16-bit', 'signed 16-bit', '32-bit')
    """
    if mode == "F":
        return "float"
    if not mode.startswith("I"):
        return "8-bit"
    if "16" in rawmode and rawmode.endswith(("S", "BS", "NS")):
        return "signed 16-bit"
    # Older versions of Pillow open a PNG file of 16 bits as mode I.
    return "16-bit" if mode.startswith("I;16") or "16" in rawmode else "32-bit"


def _rawmode(opened: Picture) -> str:
    """How the pixels lie in the file, in Pillow's words."""
    tiles = getattr(opened, "tile", None)
    if not tiles:
        return ""
    how = tiles[0][3]
    return str(how[0]) if isinstance(how, tuple) and how else str(how)


def _orientation(opened: Picture) -> int:
    try:
        value = opened.getexif().get(_ORIENTATION, 1)
        return value if value in _UPRIGHT else 1
    except Exception:  # damaged EXIF data do not make an image unreadable
        return 1
