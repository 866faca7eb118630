"""Image files of every kind: what their pixels become, and what is refused with a remedy."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.data import DataConfig, federate, from_image_folder, inputs_from
from equipoise.data.arrays.images import read_header, read_image, read_images
from equipoise.data.check import DataReport, check_data
from tests.helpers.reports import remarks_on
from tests.helpers.terminal import Terminal

RAMP = np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)


def save(file: Path, image: Image.Image | np.ndarray, **options: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    picture.save(file, **options)
    return file


def folder(tmp_path: Path, image: np.ndarray | Image.Image, ending: str = ".png") -> Path:
    """Two sites with two classes, all of one image but for one pixel of the array."""
    for place, name in enumerate(("a/x/0", "a/y/1", "b/x/2", "b/y/3")):
        own = image
        if isinstance(image, np.ndarray):
            own = image.copy()
            own[-1, place] = image[0, 0]
        save(tmp_path / "images" / f"{name}{ending}", own)
    return tmp_path / "images"


def look(path: Path, **settings: object) -> DataReport:
    return check_data(DataConfig(name=str(path), **settings))


def test_sixteen_bits_are_scaled_by_their_range(tmp_path: Path) -> None:
    file = save(tmp_path / "a.png", (RAMP * 65535).astype(np.uint16))
    found = read_image(file)
    assert found.shape == (1, 4, 5) and found.dtype == np.uint8
    assert np.array_equal(found[0], np.rint((RAMP * 65535).astype(np.uint16) / 257))
    colour = read_image(file, channels=3)
    assert colour.shape == (3, 4, 5) and np.array_equal(colour[2], found[0])


@pytest.mark.parametrize(
    ("image", "ending", "window", "levels"),
    [
        ((RAMP * 4095).astype(np.uint16), ".png", (0, 4095), RAMP),
        ((RAMP * 70_000).astype(np.int32), ".tif", (0, 70_000), RAMP),
        (RAMP * 2000 - 1000, ".tif", (-1000, 1000), RAMP),
        (RAMP, ".tif", (0, 1), RAMP),
        (RAMP * 2000 - 1000, ".tif", (-1000, 0), np.minimum(2 * RAMP, 1)),
    ],
)
def test_a_window_says_what_becomes_black_and_white(
    image: np.ndarray, ending: str, window: tuple[float, float], levels: np.ndarray, tmp_path: Path
) -> None:
    found = read_image(save(tmp_path / f"a{ending}", image), window=window)
    assert np.abs(found[0] - levels * 255.0).max() <= 0.6


@pytest.mark.parametrize(
    ("image", "ending", "said"),
    [
        ((RAMP * 4095).astype(np.uint16), ".png", r"16-bit .* 0 to 4095 .*data\.window=\[0,4095\]"),
        ((RAMP * 70_000).astype(np.int32), ".tif", r"32-bit .*data\.window=\[0,131071\]"),
        (RAMP * 2000 - 1000, ".tif", r"float .* -1000 to 1000 .*data\.window=\[-1000,1000\]"),
        (np.full((4, 5), np.nan, np.float32), ".tif", "NaN or infinity"),
    ],
)
def test_pixels_without_a_known_range_are_refused_by_check_and_run(
    image: np.ndarray, ending: str, said: str, tmp_path: Path, equipoise: Terminal
) -> None:
    path = folder(tmp_path, image, ending)
    with pytest.raises(ValueError, match=said):
        from_image_folder(path)
    with pytest.raises(ValueError, match=said):
        look(path)
    assert "error: " in equipoise("data", "check", str(path)).err
    ran = equipoise("run", "--data", str(path), "--rounds", "1", "--out", str(tmp_path / "run"))
    assert ran.code != 0 and "round 1" not in ran.err


def test_pixels_outside_the_window_are_counted(tmp_path: Path) -> None:
    path = folder(tmp_path, (RAMP * 4095).astype(np.uint16))
    (told,) = [one for one in remarks_on(look(path, window=(0, 4095))) if "window" in one]
    assert "clipped" not in told
    (told,) = [one for one in remarks_on(look(path, window=(0, 3000))) if "window" in one]
    assert "0..3000" in told and "% of them lie outside and are clipped" in told
    notes = federate(DataConfig(name=str(path), window=(0, 3000)), 1).metadata["notes"]
    assert told in notes, "the run keeps it"


def test_a_window_where_nothing_needs_one_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, (RAMP * 255).astype(np.uint8))
    for read in (
        look,
        lambda path, **settings: federate(DataConfig(name=str(path), **settings), 1),
    ):
        with pytest.raises(ValueError, match=r"data\.window: .*more than 8 bits"):
            read(path, window=(0, 9))
    with pytest.raises(
        ValueError, match=r"data\.window: expected a folder of image files, got dig"
    ):
        federate(DataConfig(name="digits", window=(0, 9)), 1)
    for wrong in ((9, 9), (9, 8), (0, 1e-300), (-1e300, 1e300), (1e9, 1e9 + 1e-4)):
        with pytest.raises(ValueError, match="low and a higher"):
            DataConfig(name=str(path), window=wrong)


def test_predictions_read_images_as_training_did(tmp_path: Path) -> None:
    path = folder(tmp_path, (RAMP * 4095).astype(np.uint16))
    federation = federate(DataConfig(name=str(path), window=(0, 4095)), 1)
    dark = save(tmp_path / "dark.png", (RAMP * 40).astype(np.uint16))
    assert inputs_from(dark, federation.recipe).max() < 0.02
    grey = folder(tmp_path / "8", (RAMP * 255).astype(np.uint8))
    recipe = federate(DataConfig(name=str(grey)), 1).recipe
    with pytest.raises(ValueError, match=r"16-bit .*trained on \(8-bit\)"):
        inputs_from(dark, recipe)
    deep = folder(tmp_path / "16", (RAMP * 65535).astype(np.uint16))
    assert inputs_from(dark, federate(DataConfig(name=str(deep)), 1).recipe).max() == 0
    recipe.pop("pixel_kinds")  # as in runs of older versions
    assert inputs_from(path.parent / "8", recipe).shape == (4, 1, 4, 5)


@pytest.mark.parametrize(
    ("mode", "ending", "channels"),
    [
        ("1", ".png", 1),
        ("L", ".png", 1),
        ("LA", ".png", 1),
        ("P", ".png", 3),
        ("RGBA", ".png", 3),
        ("CMYK", ".jpg", 3),
        ("CMYK", ".tif", 3),
        ("YCbCr", ".tif", 3),
        ("LAB", ".tif", 3),
        ("P", ".gif", 3),
        ("RGBA", ".webp", 3),
    ],
)
def test_modes_become_grey_or_colour_and_headers_tell_which(
    mode: str, ending: str, channels: int, tmp_path: Path
) -> None:
    file = save(
        tmp_path / f"a{ending}",
        Image.new("RGB", (5, 4), (200, 200, 200)).convert(mode)
        if mode != "LAB"
        else Image.new("LAB", (5, 4), (200, 128, 128)),
    )
    found = read_image(file)
    assert found.shape == read_header(file).shape == (channels, 4, 5)
    assert mode == "1" or np.abs(found.astype(int) - 200).max() < 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", [".jpg", ".png", ".tif", ".webp"])
def test_images_are_turned_upright(orientation: int, ending: str, tmp_path: Path) -> None:
    """The corner that is bright when a viewer shows the image is the bright one here."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.zeros((16, 32), np.uint8)
    stored[:8, :8] = 255  # the corner at row 0, column 0 of the file
    file = save(tmp_path / f"a{ending}", stored, exif=exif)
    found = read_image(file, channels=1)[0]
    # EXIF 2.3, tag Orientation: where row 0 and column 0 of the file are to be shown
    bottom, right = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    height, width = (16, 32) if orientation < 5 else (32, 16)
    assert found.shape == read_header(file).shape[1:] == (height, width)
    corner = found[height - 8 if bottom else 0 :, width - 8 if right else 0 :][:8, :8]
    assert corner.mean() > 240 and found.mean() < 40


def test_transparent_pixels_are_white_and_counted(tmp_path: Path) -> None:
    hidden = Image.new("RGBA", (5, 4), (0, 0, 0, 0))
    assert read_image(save(tmp_path / "a.png", hidden)).min() == 255
    grey = Image.new("LA", (5, 4), (0, 128))
    assert 120 < read_image(save(tmp_path / "b.png", grey)).min() < 135
    keyed = Image.new("L", (5, 4), 7)
    assert read_image(save(tmp_path / "c.png", keyed, transparency=7)).min() == 255
    opaque = Image.new("RGBA", (5, 4), (9, 9, 9, 255))
    assert read_image(save(tmp_path / "d.png", opaque)).max() == 9
    path = folder(tmp_path, hidden)
    save(path / "a" / "x" / "5.png", opaque)
    assert any(one.startswith("4 images have transparent") for one in remarks_on(look(path)))


def test_of_several_images_in_a_file_the_first_is_read(tmp_path: Path) -> None:
    images = [Image.new("L", (5, 4), level) for level in (10, 200, 250)]
    path = folder(tmp_path, (RAMP * 255).astype(np.uint8))
    for ending in (".tif", ".gif", ".webp", ".png"):
        file = path / "a" / "x" / f"several{ending}"
        save(file, images[0], save_all=True, append_images=images[1:], lossless=True)
        assert abs(int(read_image(file, channels=1).max()) - 10) < 2
    (told,) = [one for one in remarks_on(look(path)) if "several images" in one]
    assert told.startswith("4 files hold") and "with 3" in told


def png(colour_type: int, samples: int, value: int) -> bytes:
    """A PNG file of 16 bits per sample; Pillow cannot write one in colour."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    rows = b"".join(b"\0" + np.full(4 * samples, value, ">u2").tobytes() for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 16, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_colours_of_sixteen_bits_are_told(tmp_path: Path) -> None:
    path = folder(tmp_path, Image.new("RGB", (4, 4)))
    (path / "a" / "x" / "deep.png").write_bytes(png(2, 3, 40_000))
    assert read_image(path / "a" / "x" / "deep.png").max() == 40_000 // 256
    assert any("1 image has colours of 16 bits" in one for one in remarks_on(look(path)))


def test_sites_with_different_kinds_of_pixels_are_told(tmp_path: Path) -> None:
    path = folder(tmp_path, (RAMP * 255).astype(np.uint8))
    for file in (path / "b").glob("*/*"):
        save(file, (RAMP * 65535).astype(np.uint16))
    (told,) = [one for one in remarks_on(look(path)) if "different kinds" in one]
    assert "2 8-bit, 2 16-bit" in told and "a: 8-bit, b: 16-bit" in told


def test_sites_with_fewer_bits_than_others_are_told(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 64).reshape(8, 8)
    for site, highest in (("bright", 65535), ("dark", 4095)):
        for label in ("ill", "well"):
            for number in range(6):
                image = (highest * np.roll(ramp, number)).astype(np.uint16)
                save(tmp_path / site / label / f"{number}.png", image)
    for found in (remarks_on(look(tmp_path)), from_image_folder(tmp_path).notes):
        assert [note for note in found if "'dark'" in note and "6.2%" in note]


def test_all_files_that_cannot_be_read_are_named_together(
    tmp_path: Path, equipoise: Terminal
) -> None:
    path = folder(tmp_path, np.random.default_rng(0).integers(0, 255, (40, 50), dtype=np.uint8))
    for name in ("a/x/0.png", "b/y/3.png"):
        (path / name).write_bytes((path / name).read_bytes()[:300])
    answers = [equipoise("data", "check", str(path)).err]
    answers.append(equipoise("run", "--data", str(path), "--out", str(tmp_path / "r")).err)
    for told in answers:
        assert "2 of 4 images cannot be read" in told
        assert "a/x/0.png" in told and "b/y/3.png" in told
    (path / "a" / "x" / "0.png").write_text("no image")
    assert "a/x/0.png is not a readable image" in equipoise("data", "check", str(path)).err


def test_images_that_would_take_too_much_memory_are_refused_before_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path, Image.new("L", (100, 100)))
    monkeypatch.setenv("EQUIPOISE_MAX_BYTES", str(5 * 4 * 10_000))
    assert len(from_image_folder(path).x) == 4
    monkeypatch.setenv("EQUIPOISE_MAX_BYTES", str(5 * 4 * 10_000 - 1))
    for read in (from_image_folder, look):
        with pytest.raises(ValueError, match=r"4 images of 1x100x100 .*image_size.*MAX_BYTES"):
            read(path)
    assert len(from_image_folder(path, image_size=50).x) == 4
    assert len(read_images(sorted(path.glob("*/*/*")), (9, 9), 1)[0]) == 4
