"""Image files as arrays of 0..255, and their headers."""

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
# Images are resized to USUAL_SIZE by default if they differ or a side exceeds LARGEST_SIZE.
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
    """Return the height and width at which images are read; None: as they are.

    By default, images of different or of large sizes are made small.

    Args:
        sizes: The heights and widths of the images.
        image_size: The size that the user chose.

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
        ValueError: If some cannot be read; the message names them together.
    """
    return _each(files, read_header)


def read_header(file: Path) -> ImageHeader:
    """Return the header of an image file, without decoding the image.

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
        # A phone's JPEG file may hold previews of its image, which do not count.
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
    """Return images as uint8 (n, channels, height, width), and a report on their pixels.

    Args:
        files: At least one image file.
        size: Height and width; none: those of the first image.
        channels: 1 or 3; none: those of the first image.
        window: The values that become 0 and 255, for pixels of more than 8 bits.
        trained: The kinds of pixels that a model was trained on, for images to predict for.

    Raises:
        ValueError: If images cannot be read, take too much memory, or need a window.
    """
    if size is None or channels is None:
        first = read_header(files[0]).shape
        channels = channels or first[0]
        size = size or first[1:]
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
    """Return the report on pixels of `read_images`, without keeping the images."""
    report = PixelReport(window)
    _each(files, lambda file: _decoded(file, None, None, report))
    report.check()
    return report


@contextmanager
def opened_image(file: Path | IO[bytes]) -> Iterator[Picture]:
    """Open an image file of a reasonable size.

    Formats that need another program, such as EPS, are not opened.

    Raises:
        ValueError: If it is no readable image, or too large.
    """
    from PIL import Image

    # Pillow's decoders log damaged bytes, which the error reports as well.
    if not logging.getLogger("PIL").handlers:
        logging.getLogger("PIL").addHandler(logging.NullHandler())
    shown = file if isinstance(file, Path) else "a packed image"
    if isinstance(file, Path):
        check_regular(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damaged EXIF data do not matter
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
            f"{shown}: expected an image of at most {MOST_PIXELS:,} pixels; "
            "this one has more, scale it down"
        ) from None
    except Exception as error:  # Pillow's decoders raise many errors for damaged bytes
        reason = f"it is damaged, or none of {', '.join(IMAGE_FORMATS)}"
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise ValueError(f"{shown} is not a readable image: {reason}") from error


def _each(files: Sequence[Path], read: Callable[[Path], _Result]) -> list[_Result]:
    """Read every file; one error names all that cannot be read."""
    results = []
    errors = []
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
        ValueError: If they do; the message names the bytes and the remedies.
    """
    # The pixels, and once more as float32, which is what models take.
    needed = 5 * int(np.prod(shape, dtype=np.float64))
    if needed > most_bytes():
        sides = "x".join(map(str, shape[1:]))
        raise ValueError(
            f"{shape[0]:,} images of {sides} take {needed:,} bytes, "
            f"expected at most {most_bytes():,}; "
            f"choose a smaller data.image_size, use fewer images, or set {BYTES}"
        )


def _decoded(
    file: Path, size: tuple[int, int] | None, channels: int | None, report: PixelReport
) -> np.ndarray:
    """Return one image as uint8 (channels, height, width)."""
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
    """Return the first image of a file, upright: uint8, or its numbers if they have more bits."""
    from PIL import Image

    with opened_image(file) as opened:
        kind = _kind_of_pixels(opened.mode, _rawmode(opened))
        opened.load()
        # Pillow turns TIFF images upright automatically.
        turn = None if opened.format == "TIFF" else _UPRIGHT.get(_orientation(opened))
        upright = opened.transpose(Image.Transpose[turn]) if turn else opened
        if kind != "8-bit":
            return DeepImage(np.array(upright), kind, TYPE_RANGE.get(kind))
        target = "L" if _is_grey(opened) else "RGB"
        if not opened.has_transparency_data:
            return np.array(upright.convert(target))
        upright.info = dict(opened.info)  # it names a transparent colour
        layers = upright.convert("RGBA")
        report.transparent += bool(np.asarray(layers.getchannel("A")).min() < 255)
        white = Image.new("RGBA", layers.size, "white")
        return np.array(Image.alpha_composite(white, layers).convert(target))


def _is_grey(opened: Picture) -> bool:
    return opened.mode in ("1", "L", "LA", "La", "F") or opened.mode.startswith("I")


def _kind_of_pixels(mode: str, rawmode: str) -> str:
    """Return the kind of pixels of Pillow's mode and raw mode.

    >>> _kind_of_pixels("I;16", "I;16B"), _kind_of_pixels("I", "I;16S")
    ('16-bit', 'signed 16-bit')
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
    """Return the form of the pixels in the file, by Pillow's name."""
    tiles = getattr(opened, "tile", None)
    if not tiles:
        return ""
    arguments = tiles[0][3]
    return str(arguments[0]) if isinstance(arguments, tuple) and arguments else str(arguments)


def _orientation(opened: Picture) -> int:
    try:
        value = opened.getexif().get(_ORIENTATION, 1)
        return value if value in _UPRIGHT else 1
    except Exception:  # damaged EXIF data do not make an image unreadable
        return 1
