"""Pixel values of image files, and how they become 0..255."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from equipoise.data.findings import Finding

Window = tuple[float, float]

# Below this share of a type's range, fewer than 32 of the 256 grey levels would be used.
LEAST_RANGE = 1 / 8
# From this share on, a window is not mentioned.
WELL_USED = 1 / 2
# Pixels of these kinds become 0..255 by this range unless a window is stated.
# Others need a window; DICOM files state a range of their own.
TYPE_RANGE: dict[str, Window] = {"16-bit": (0.0, 65535.0), "float": (0.0, 1.0)}


def is_window(low: float, high: float) -> bool:
    """Return True if float32 can tell the two ends apart and hold what lies between.

    >>> is_window(0, 4095), is_window(5, 5), is_window(0, 1e300)
    (True, False, False)
    """
    largest = max(abs(low), abs(high))
    return largest < 1e30 and high - low > max(1e-6 * largest, 1e-30)


@dataclass(frozen=True)
class ImageHeader:
    """Facts about an image that its file states before the image is decoded.

    Attributes:
        shape: Channels, height and width, after the image was turned upright.
        pixels: The kind of its pixels: 8-bit, 16-bit, 32-bit, signed 16-bit, float or DICOM.
        alpha: True if pixels may be transparent.
        frames: How many images the file holds.
        deep_colour: True if its colours have 16 bits per channel, of which 8 are read.
    """

    shape: tuple[int, int, int]
    pixels: str = "8-bit"
    alpha: bool = False
    frames: int = 1
    deep_colour: bool = False

    @property
    def needs_look(self) -> bool:
        """True if only its pixels tell whether it can be read well."""
        return self.alpha or self.pixels != "8-bit"


@dataclass(frozen=True)
class DeepImage:
    """A grey image whose pixels have more than 8 bits.

    Attributes:
        values: Its pixels, (height, width).
        pixels: Their kind, as in `ImageHeader`.
        range: The values that its type can hold; none if that says nothing.
        own_window: A window that the file states.
        inverted: True if high values are dark.
    """

    values: np.ndarray
    pixels: str
    range: Window | None = None
    own_window: Window | None = None
    inverted: bool = False


@dataclass
class _PixelRange:
    """The values of all images with one kind of pixels."""

    example: Path
    images: int = 0
    low: float = np.inf
    high: float = -np.inf
    share: float = 0.0  # the largest share of its type's range that an image uses
    outside: int = 0  # pixels outside the user's window
    total: int = 0

    def __str__(self) -> str:
        return f"from {self.low:.6g} to {self.high:.6g}"


@dataclass
class PixelReport:
    """The values of pixels, collected while images are decoded.

    Attributes:
        window: The user's window.
        seen: The values, by kind of pixels.
        own_windows: The windows that files state.
        transparent: The number of images with transparent pixels.
        folder_shares: By folder, the largest share of its type's range that an image uses.
    """

    window: Window | None = None
    seen: dict[str, _PixelRange] = field(default_factory=dict)
    own_windows: set[Window] = field(default_factory=set)
    transparent: int = 0
    folder_shares: dict[Path, float] = field(default_factory=dict)

    def scaled(self, file: Path, image: DeepImage) -> np.ndarray:
        """Return an image as float32 in 0..255, scaled by its window.

        Raises:
            ValueError: If a pixel is not finite.
        """
        with np.errstate(over="ignore"):  # values beyond float32 become infinite
            values = image.values.astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(
                f"{file}: expected finite pixels, got NaN or infinity; replace them, or the image"
            )
        low, high = self._note(file, image, values)
        shares = np.clip((values - low) / (high - low), 0, 1)
        return np.asarray((1 - shares if image.inverted else shares) * 255, np.float32)

    def _note(self, file: Path, image: DeepImage, values: np.ndarray) -> Window:
        """Record the values of an image, and return its window."""
        seen = self.seen.setdefault(image.pixels, _PixelRange(file))
        highest = float(values.max())
        seen.images += 1
        seen.low = min(seen.low, float(values.min()))
        seen.high = max(seen.high, highest)
        if self.window is not None:
            seen.outside += int(((values < self.window[0]) | (values > self.window[1])).sum())
            seen.total += values.size
            return self.window
        if image.own_window is not None:
            self.own_windows.add(image.own_window)
            seen.share = 1.0
            return image.own_window
        low, high = image.range or (0.0, 1.0)
        share = (highest - low) / (high - low)
        seen.share = max(seen.share, share)
        self.folder_shares[file.parent] = max(share, self.folder_shares.get(file.parent, 0.0))
        return low, high

    def check(self, trained: Sequence[str] | None = None) -> None:
        """Refuse pixels that cannot be read well without a window.

        Args:
            trained: The kinds of pixels that a model was trained on, if these are images to
                predict for; none: these are to be trained on.

        Raises:
            ValueError: If there are such pixels; the message names their range and a window.
        """
        if self.window is not None:
            return
        for pixels, seen in self.seen.items():
            have = f"{_images_have(seen.images)} {pixels} pixels {seen} (such as {seen.example})"
            remedy = self._remedy(pixels, trained)
            known = TYPE_RANGE.get(pixels)
            if known is None and pixels != "DICOM":
                raise ValueError(f"{have}; {remedy}")
            if known is not None and (seen.low < known[0] or seen.high > known[1]):
                raise ValueError(f"{have}, expected {known[0]:g} to {known[1]:g}; {remedy}")
            if seen.share < LEAST_RANGE and pixels not in (trained or ()):
                raise ValueError(
                    f"{have}. That is less than an eighth of what the type can hold, so all would "
                    f"be nearly black; {remedy}"
                )

    def _remedy(self, pixels: str, trained: Sequence[str] | None) -> str:
        if trained is None:
            return f"state what becomes black and white, for example {self._example(pixels)}"
        known = f" ({', '.join(trained)})" if trained else ""
        return f"bring them to the pixels of the images that the model was trained on{known}"

    def findings(self) -> list[Finding]:
        """Return findings on how pixels were brought to 0..255."""
        messages = [self._about(pixels, seen) for pixels, seen in self.seen.items()]
        if len(self.own_windows) > 1:
            low, high = min(self.own_windows)
            messages.append(
                f"DICOM files state {len(self.own_windows)} different windows, such as "
                f"[{low:g}, {high:g}], so equal values are not equally bright; "
                f"{self._example('DICOM')}, for example, reads all alike"
            )
        if self.transparent:
            messages.append(
                f"{_images_have(self.transparent)} transparent pixels, which are read as white; "
                "save them without transparency if white is wrong"
            )
        return [Finding(message) for message in messages if message]

    def _about(self, pixels: str, seen: _PixelRange) -> str:
        have = f"{_images_have(seen.images)} {pixels} pixels {seen}"
        if self.window is not None:
            low, high = self.window
            share = 100 * seen.outside / seen.total
            outside = f"; {share:.2g}% of them lie outside and are clipped" if share else ""
            return f"{have}: {low:g}..{high:g} becomes 0..255 (data.window){outside}"
        # DICOM files state their window, and a range that is well used needs no remark.
        if pixels == "DICOM" or seen.share >= WELL_USED:
            return ""
        low, high = TYPE_RANGE[pixels]
        return (
            f"{have}: {low:g}..{high:g} becomes 0..255; "
            f"{self._example(pixels)}, for example, reads another range"
        )

    def _example(self, pixels: str) -> str:
        """Return a setting whose window contains all pixels of a kind."""
        low = self.seen[pixels].low
        high = self.seen[pixels].high
        if pixels != "float" and low >= 0:
            low = 0
            high = 2 ** int(max(high, 1)).bit_length() - 1
        if high <= low:
            high = low + 1
        return f"data.window=[{low:.10g},{high:.10g}]"


def _images_have(count: int) -> str:
    """Return a number of images with its verb.

    >>> _images_have(1), _images_have(2000)
    ('1 image has', '2,000 images have')
    """
    return "1 image has" if count == 1 else f"{count:,} images have"
