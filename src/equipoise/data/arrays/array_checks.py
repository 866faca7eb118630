"""Checks of arrays of labels and images that would be read wrongly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from equipoise.data.findings import Finding
from equipoise.data.message_text import some

FAR = 10.0  # beyond this, inputs that are not scaled make training fail at usual rates
MOST_CLASSES = 20
# Whole numbers may be codes for an embedding, which must not be scaled.
CODES_STAY = "codes such as token ids need no scaling"


def looks_like_classes(y: np.ndarray) -> bool:
    """Return True for integers and text, and for few different whole numbers stored as floats.

    >>> looks_like_classes(np.array([0.0, 1.0, 1.0])), looks_like_classes(np.array([0.5, 1.0]))
    (True, False)
    >>> looks_like_classes(np.arange(30.0))
    False
    """
    if y.dtype.kind != "f":
        return True
    are_whole = bool(np.all(y == np.floor(y)))
    return are_whole and len(np.unique(y)) <= MOST_CLASSES


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Return True if images of this shape, (n, ...), have their channels last.

    >>> channels_are_last((5, 32, 32, 3)), channels_are_last((5, 3, 32, 32))
    (True, False)
    """
    if len(shape) != 4 or shape[1] in (1, 3):
        return False
    return shape[3] in (1, 3) or (shape[3] == 4 and shape[1] != 4)


def check_pixels(name: str, x: np.ndarray) -> None:
    """Refuse images whose whole numbers have more than 8 bits, and so no known range.

    Args:
        name: The data set.
        x: The inputs.

    Raises:
        ValueError: If there are such images; the message names their range and how to scale it.
    """
    if x.ndim > 2 and x.dtype.kind == "u" and x.dtype.itemsize > 1 and x.size:
        low, high = int(x.min()), int(x.max())
        raise ValueError(
            f"data set {name}: expected images of uint8 (0..255) or of fractions (0..1), "
            f"got {x.dtype} from {low} to {high}; divide them by the largest value that they can "
            f"take, for example (x / {_full_range(high)}).astype('float32')"
        )


def findings_about(name: str, x: np.ndarray, task_shape: tuple[int, ...]) -> list[Finding]:
    """Return findings on images that were given as an array.

    Args:
        name: The data set.
        x: The array as it was given.
        task_shape: The shape of one sample, as it is read.
    """
    if x.ndim < 3 or not x.size:
        return []
    messages = []
    if len(task_shape) == 3 and task_shape[0] == 4:
        messages.append(
            f"data set {name}: its images have 4 channels; "
            "if the fourth is alpha, leave it out (x[..., :3])"
        )
    elif len(task_shape) == 3 and task_shape[0] > task_shape[2]:
        channels, height, width = task_shape
        messages.append(
            f"data set {name}: its images are read as {channels} channels of {height}x{width} "
            "pixels; if the channels are last, give x.transpose(0, 3, 1, 2)"
        )
    if x.dtype != np.uint8 and x.dtype.kind in "iuf":
        low, high = float(x.min()), float(x.max())
        if max(abs(low), abs(high)) > FAR:
            remedy = "save pixels of 0..255 as uint8, or scale them to 0..1"
            if x.dtype.kind == "i":
                remedy = f"{remedy}; {CODES_STAY}"
            messages.append(
                f"data set {name}: its {x.dtype} values from {low:g} to {high:g} are taken as they "
                f"are, not scaled; {remedy}"
            )
    return [Finding(message) for message in messages]


def check_sites(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse sites whose images have different types or ranges, such as uint8 and 0..1.

    Args:
        arrays: The inputs of each site.

    Raises:
        ValueError: If they differ; the message names sites of both kinds and a common form.
    """
    if any(x.dtype.kind not in "biuf" for x in arrays.values()):
        return  # `from_arrays` refuses text
    images = {site: x for site, x in arrays.items() if x.ndim > 2 and x.size}
    types: dict[str, list[str]] = {}
    for site, x in images.items():
        kind = "fractions" if x.dtype.kind == "f" else str(x.dtype)
        types.setdefault(kind, []).append(site)
    if len(types) > 1:
        shown = "; ".join(f"{kind}: {some(sites)}" for kind, sites in types.items())
        raise ValueError(
            f"sites differ in the type of their images ({shown}); "
            "save all as uint8 (0..255), or all as fractions (0..1)"
        )
    highest = {site: float(np.abs(x).max()) for site, x in images.items()}
    small = [site for site, high in highest.items() if high <= 1]
    large = [site for site, high in highest.items() if high > FAR]
    if small and large:
        low_range = max(highest[site] for site in small)
        high_range = max(highest[site] for site in large)
        raise ValueError(
            f"sites differ in the range of their images: at most {low_range:g} in {some(small)}, "
            f"up to {high_range:g} in {some(large)}; bring all to one range, 0..255 (uint8) or 0..1"
        )


def differing_signs(arrays: Mapping[str, np.ndarray]) -> list[Finding]:
    """Return a finding if images of some sites lie around 0, and those of others above it.

    An example is -1..1 and 0..1: both are fractions, but grey is 0 at one site and 0.5 at another.

    Args:
        arrays: The inputs of each site.
    """
    images = {
        site: x for site, x in arrays.items() if x.ndim > 2 and x.dtype.kind == "f" and x.size
    }
    lowest = {site: float(x.min()) for site, x in images.items()}
    below = [site for site, low in lowest.items() if low < -0.1]
    above = [site for site, low in lowest.items() if low >= 0]
    if not below or not above:
        return []
    message = (
        f"sites differ in the range of their images: down to {min(lowest.values()):g} in "
        f"{some(below)}, not below 0 in {some(above)}; bring all to one range, such as 0..1"
    )
    return [Finding(message)]


def _full_range(high: int) -> int:
    """Return the largest number with as many bits."""
    return int(2 ** max(high, 1).bit_length() - 1)
