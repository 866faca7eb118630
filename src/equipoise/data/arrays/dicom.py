"""DICOM images, read with pydicom, which comes with the extra `dicom`."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.arrays.pixels import DeepImage, ImageHeader, Window, is_window
from equipoise.validation.names import quoted
from equipoise.validation.regular_files import check_regular

ENDINGS = (".dcm", ".dicom")
_DEFLATED = "1.2.840.10008.1.2.1.99"
_GREY = ("MONOCHROME1", "MONOCHROME2")


def is_dicom(file: Path) -> bool:
    """Return True if a file's name has an ending of DICOM.

    >>> is_dicom(Path("a/1.DCM")), is_dicom(Path("a/1.png"))
    (True, False)
    """
    return file.suffix.lower() in ENDINGS


def read_header(file: Path, most_pixels: int) -> ImageHeader:
    """Return the header of a DICOM file, without decoding the image.

    Raises:
        ValueError: If pydicom is missing, or the file holds no image that can be read.
    """
    dataset = _read(file, stop_before_pixels=True)
    rows = _whole(dataset, "Rows", file)
    columns = _whole(dataset, "Columns", file)
    if rows * columns > most_pixels:
        raise ValueError(
            f"{file}: expected an image of at most {most_pixels:,} pixels; "
            "this one has more, scale it down"
        )
    colour = str(dataset.get("PhotometricInterpretation", ""))
    grey = colour in _GREY
    if not grey and not colour.startswith(("RGB", "YBR")):
        raise ValueError(
            f"{file}: expected a photometric interpretation of MONOCHROME1, MONOCHROME2, RGB or "
            f"YBR, got {quoted(colour)}; convert the image"
        )
    if not grey and _whole(dataset, "BitsAllocated", file) != 8:
        raise ValueError(f"{file}: expected colours of 8 bits; convert the image")
    if _whole(dataset, "SamplesPerPixel", file) != (1 if grey else 3):
        raise ValueError(f"{file}: expected one sample per grey pixel, three per coloured one")
    if _whole(dataset, "BitsAllocated", file) > 32 or _whole(dataset, "BitsStored", file) > 32:
        raise ValueError(f"{file}: expected at most 32 bits per pixel; convert the image")
    frames = _whole(dataset, "NumberOfFrames", file, 1)
    return ImageHeader(
        (1 if grey else 3, rows, columns), "DICOM" if grey else "8-bit", False, frames
    )


def read_dicom(file: Path, most_pixels: int) -> DeepImage | np.ndarray:
    """Return the first image of a DICOM file: a grey one with its window, a coloured one as uint8.

    Rescale slope and intercept, or a modality table, are applied.

    Raises:
        ValueError: If it cannot be decoded, or states a window of an unknown kind.
    """
    header = read_header(file, most_pixels)
    dataset = _read(file)
    values = _pixels(dataset, file)
    if header.shape[0] == 3:
        return values
    slope = _number(dataset, "RescaleSlope", file) or 1.0
    intercept = _number(dataset, "RescaleIntercept", file) or 0.0
    if "ModalityLUTSequence" in dataset:
        raise ValueError(
            f"{file}: expected rescale slope and intercept, got a modality table; convert the image"
        )
    # Values beyond float32 become infinite, and are refused.
    with np.errstate(over="ignore", invalid="ignore"):
        rescaled = values.astype(np.float32) * np.float32(slope) + np.float32(intercept)
    return DeepImage(
        rescaled,
        "DICOM",
        _stored_range(dataset, slope, intercept, file),
        _window(dataset, file),
        dataset.PhotometricInterpretation == "MONOCHROME1",
    )


def _stored_range(dataset: Any, slope: float, intercept: float, file: Path) -> Window:
    """Return the range of the stored bits, rescaled."""
    bits = _whole(dataset, "BitsStored", file)
    signed = _whole(dataset, "PixelRepresentation", file, 0) == 1
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    ends = sorted((low * slope + intercept, high * slope + intercept))
    return ends[0], ends[1]


def _window(dataset: Any, file: Path) -> Window | None:
    """Return the first window that a file states, as its lowest and highest value."""
    centre = _number(dataset, "WindowCenter", file)
    width = _number(dataset, "WindowWidth", file)
    if centre is None or width is None:
        if "VOILUTSequence" in dataset:
            raise ValueError(
                f"{file}: expected a window, got a table of brightness (VOI LUT); "
                "state data.window=[low,high]"
            )
        return None
    kind = str(dataset.get("VOILUTFunction", "") or "LINEAR")
    if kind == "LINEAR":  # DICOM PS3.3 C.11.2.1.2.1
        low, high = centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2
    elif kind == "LINEAR_EXACT":
        low, high = centre - width / 2, centre + width / 2
    else:
        low, high = 0.0, 0.0
    if not is_window(low, high):
        raise ValueError(
            f"{file}: expected a LINEAR or LINEAR_EXACT window, got {quoted(kind)} at {centre:g} "
            f"of width {width:g}; state data.window=[low,high]"
        )
    return low, high


def _number(dataset: Any, name: str, file: Path) -> float | None:
    """Return the first number of an element; None if there is no such element, or it is empty."""
    try:
        value = dataset.get(name)
        if value is None or value == "":
            return None
        number = float(value if isinstance(value, (str, float, int)) else value[0])
    except Exception:  # pydicom raises many errors for damaged bytes
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{file}: expected a number as {name}; replace the file")
    return number


def _pixels(dataset: Any, file: Path) -> np.ndarray:
    """Return the first frame, (height, width) or (height, width, 3)."""
    from pydicom.pixels.utils import pixel_array

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says what is wrong
            several = int(dataset.get("NumberOfFrames", 1) or 1) > 1
            return np.asarray(pixel_array(dataset, index=0 if several else None))
    except Exception as error:  # decoders raise many errors for damaged bytes
        raise ValueError(
            f"{file}: its pixels cannot be decoded ({quoted(str(error))}); save it "
            "uncompressed, or "
            "replace it"
        ) from error


def _read(file: Path, stop_before_pixels: bool = False) -> Any:
    try:
        import pydicom
    except ImportError:
        raise ValueError(
            f"reading {file} needs the package pydicom, which is not installed; "
            "pip install 'equipoise[dicom]'"
        ) from None
    check_regular(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            syntax = str(pydicom.filereader.read_file_meta_info(file).get("TransferSyntaxUID", ""))
            if syntax != _DEFLATED:
                return pydicom.dcmread(file, stop_before_pixels=stop_before_pixels)
    except Exception as error:  # as above
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "it is damaged, or no DICOM file"
        )
        raise ValueError(f"{file} is not a readable image: {why}") from error
    # pydicom would inflate the whole file before anything can be checked.
    raise ValueError(
        f"{file}: expected a file that is not deflated as a whole; save it uncompressed"
    )


def _whole(dataset: Any, name: str, file: Path, default: int | None = None) -> int:
    value: Any = None
    try:
        value = dataset.get(name, default)
        number = int(value)
    except Exception:  # as above
        number = -1
    if number < 0 or (number == 0 and name in ("Rows", "Columns", "BitsStored")):
        raise ValueError(f"{file}: expected a DICOM image with {name}, got {quoted(value)}")
    return number
