"""Arrays and pictures as data sets: what is taken, what is refused and where the bounds are."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.data import Column, Dataset, from_arrays, from_image_folder, from_sites
from equipoise.data.arrays import images
from equipoise.data.arrays.array_checks import looks_like_classes
from equipoise.data.arrays.image_folders import find_images
from equipoise.data.arrays.images import common_size, opened_image, read_header, read_image
from equipoise.data.arrays.user_data import images_first
from equipoise.task import Task

CLASSES = Task("classification", (2,), 2, ("no", "yes"))
NUMBERS = Task("regression", (2,), 1)
X = torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"site_names": ("a/b",)}, "data set d: the site 'a/b': expected 1 to 64 printable"),
        (
            {"task": Task("classification", (2,), 2, ("no", "yes/no"))},
            "data set d: the label 'yes/no'",
        ),
        ({"y": torch.tensor([0, 1])}, "3 samples but 2 labels; give one for each"),
        ({"part": np.zeros(4)}, "3 samples but 4 split marks"),
        ({"site": np.zeros(2, int), "site_names": ("a",)}, "3 samples but 2 site marks"),
        ({"x": torch.zeros(3, 3)}, r"samples have shape \(3,\), the task says \(2,\)"),
        ({"x": X.double()}, r"inputs must be uint8 \(images\) or float32, got torch.float64"),
        ({"y": torch.zeros(3)}, "classification needs torch.int64 labels, got torch.float32"),
        ({"task": NUMBERS}, "regression needs torch.float32 labels, got torch.int64"),
        ({"y": torch.tensor([0, 2, 1])}, r"labels must lie in 0\.\.1, found 0\.\.2"),
        ({"y": torch.tensor([0, -1, 1])}, r"labels must lie in 0\.\.1, found -1\.\.1"),
        ({"task": NUMBERS, "y": torch.tensor([0, 1, np.inf])}, "every target must be finite"),
        ({"x": X * np.nan}, "inputs hold NaN or infinity"),
        (
            {"x": X + np.inf, "columns": (Column("a"), Column("b"))},
            "its columns hold infinity, or numbers beyond 3e38",
        ),
        ({"columns": (Column("a"),)}, "2 columns of values but 1 column names"),
        (
            {"site": np.array([0, 1, 2]), "site_names": ("a", "b")},
            "site marks must be indices into its 2 site names",
        ),
        (
            {"site": np.array([0, 1, -1]), "site_names": ("a", "b")},
            "site marks must be indices into its 2 site names",
        ),
    ],
)
def test_a_data_set_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        Dataset(**{"name": "d", "x": X, "y": torch.tensor([0, 1, 1]), "task": CLASSES, **given})


def test_what_a_data_set_may_be() -> None:
    found = Dataset(
        "d",
        X,
        torch.tensor([0, 1, 1]),
        CLASSES,
        np.array([0, 1, 2]),
        np.array([0, 1, 1]),
        ("a", "b"),
    )
    assert (
        repr(found) == "Dataset('d', 3 samples of shape (2,), classification)"
        and not found.image
        and found.licence == "unknown"
    )
    assert (
        Dataset(
            "d", X * np.nan, torch.tensor([0, 1, 1]), CLASSES, columns=(Column("a"), Column("b"))
        )
        .columns[1]
        .categories
        == ()
    )
    assert (
        Dataset(
            "d", X[:0], torch.zeros(0, dtype=torch.int64), CLASSES, site=np.zeros(0, int)
        ).site_names
        == ()
    )
    pictures = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)
    assert Dataset("d", pictures, torch.tensor([0]), Task("classification", (1, 2, 2), 1)).image


def test_grades_are_classes_or_numbers_as_asked() -> None:
    grades = Dataset("d", X, torch.tensor([0, 1, 1]), CLASSES)
    assert grades.as_task(None) is grades and grades.as_task("classification") is grades
    numbers = grades.as_task("regression")
    assert (
        numbers.y.tolist() == [0.0, 1.0, 1.0]
        and numbers.task == NUMBERS
        and numbers.as_task("regression") is numbers
    )
    again = Dataset("d", X, torch.tensor([0.0, 3.0, 1.0]), NUMBERS).as_task("classification")
    assert (
        again.y.tolist() == [0, 3, 1]
        and again.y.dtype == torch.int64
        and again.task == Task("classification", (2,), 4)
    )
    for wrong in ([0, 0.5, 1], [-1, 0, 1.0]):
        with pytest.raises(ValueError, match="its targets are not whole numbers from 0"):
            Dataset("d", X, torch.tensor(wrong), NUMBERS).as_task("classification")


@pytest.mark.parametrize(
    ("y", "options", "labels", "names"),
    [
        ([3, 1, 3], {}, [3, 1, 3], ()),
        ([3.0, 1.0, 3.0], {}, [3, 1, 3], ()),
        ([0.5, 1, 3], {}, [0.5, 1, 3], None),
        ([1, 0, 1], {"kind": "regression"}, [1.0, 0.0, 1.0], None),
        ([1, 0, 1], {"class_names": ("no", "yes")}, [1, 0, 1], ("no", "yes")),
        (["b", "a", "b"], {}, [1, 0, 1], ("a", "b")),
        (["b", "a", "b"], {"class_names": ("b", "c", "a")}, [0, 2, 0], ("b", "c", "a")),
        ([True, False, True], {}, [1, 0, 1], ("False", "True")),
        ([[1], [0], [1]], {}, [1, 0, 1], ()),
    ],
)  # fmt: skip
def test_labels(
    y: Any, options: dict[str, Any], labels: list[float], names: tuple[str, ...] | None
) -> None:
    found = from_arrays(np.zeros((3, 2)), y, **options)
    assert found.y.tolist() == labels and found.y.dtype == (
        torch.float32 if names is None else torch.int64
    )
    assert found.task.class_names == (names or ()) and found.task.kind == (
        "regression" if names is None else "classification"
    )
    assert found.task.outputs == (
        1 if names is None else max(len(names), max(map(int, labels)) + 1)
    )


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.arange(20.0), True),
        (np.arange(21.0), False),
        (np.arange(21), True),
        (np.array([0.0, 0.5]), False),
        (np.array(["a"]), True),
    ],
)
def test_few_whole_numbers_look_like_classes(y: np.ndarray, expected: bool) -> None:
    assert looks_like_classes(y) is expected


def test_numbers_of_classes_that_nobody_can_mean_are_refused() -> None:
    assert from_arrays(np.zeros((2, 1)), [0, 99_999]).task.outputs == 100_000
    with pytest.raises(
        ValueError,
        match=(
            r"expected at most 100,000 classes, numbered from 0, got 100,001; use kind='regression'"
        ),
    ):
        from_arrays(np.zeros((2, 1)), [0, 100_000])
    with pytest.raises(
        ValueError, match=r"labels 'c', 'd', 'e', 'f', 'g' are not among the class names a, b"
    ):
        from_arrays(np.zeros((7, 1)), list("abcdefg"), class_names=("a", "b"))
    assert from_arrays(np.zeros((0, 1)), []).task.outputs == 0


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.array([["a"]]), "expected numbers, one row or image per sample, got <U1 of shape"),
        (
            np.array(3.0),
            r"expected numbers, one row or image per sample, got float64 of shape \(\)",
        ),
        (np.array([[1e39]]), "its columns hold infinity"),
    ],
)
def test_inputs_are_numbers(x: np.ndarray, said: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=said):
            from_arrays(x, [0], columns=["a"])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 5, 6), (2, 1, 5, 6)), ((2, 5, 6, 1), (2, 1, 5, 6)), ((2, 5, 6, 3), (2, 3, 5, 6)), ((2, 1, 5, 6), (2, 1, 5, 6)), ((2, 3, 5, 6), (2, 3, 5, 6)),
     ((2, 3, 5, 3), (2, 3, 5, 3)), ((2, 1, 5, 3), (2, 1, 5, 3)), ((2, 4, 5, 6), (2, 4, 5, 6)), ((2, 5, 6, 2), (2, 5, 6, 2))],
)  # fmt: skip
def test_pictures_have_their_channels_first(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    found = images_first(x)
    moved = (
        x
        if x.ndim == 4 and shape == expected
        else x[:, None]
        if x.ndim == 3
        else np.moveaxis(x, 3, 1)
    )
    assert found.shape == expected and np.array_equal(found, moved) and found.flags["C_CONTIGUOUS"]
    for wrong in ((2, 5), (2, 5, 6, 3, 1)):
        with pytest.raises(ValueError, match="expected images as"):
            images_first(np.zeros(wrong, np.uint8))


def test_bytes_in_rows_are_numbers_and_in_pictures_pixels() -> None:
    assert from_arrays(np.zeros((2, 5), np.uint8), [0, 1]).x.dtype == torch.float32
    assert from_arrays(np.zeros((2, 5, 5), np.uint8), [0, 1]).x.dtype == torch.uint8
    assert from_arrays(np.zeros((2, 5, 5)), [0, 1]).x.dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "warned"),
    [
        (np.array([[10.0, 0], [10.0, 0]]), None),
        (np.array([[10.5, 0], [10.5, 0]]), "means up to 10.5 and deviations up to 0;"),
        (np.array([[0, -10.5], [0, -10.5]]), "means up to 10.5 and"),
        (np.array([[-10.0, 0], [10.0, 0]]), None),
        (np.array([[-10.5, 0], [10.5, 0]]), "means up to 0 and deviations up to 10.5;"),
        (np.full((2, 3, 3), 200.0), None),  # no rows
        (np.zeros((2, 0)), None),
    ],
)
def test_rows_far_from_0_and_1_are_warned_of(x: np.ndarray, warned: str | None) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        from_arrays(x, [0, 1], name="mine")
    assert [
        warned in str(one.message) and "data set mine:" in str(one.message)
        for one in seen
        if warned
    ] == [True] * bool(warned)
    assert len(seen) == bool(warned) and all(one.filename == __file__ for one in seen)


def test_columns_are_named_by_the_user_or_by_their_place() -> None:
    x = np.full((2, 2), 500.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_arrays(x, [0, 1], scaled=True).columns == (Column("x0"), Column("x1"))
        named = from_arrays(
            x, [0, 1], columns=["a", Column("b", ("u",))], scaled=True, part=np.array([0, 2])
        )
    assert (
        named.columns == (Column("a"), Column("b", ("u",)))
        and named.part is not None
        and named.part.tolist() == [0, 2]
    )
    assert from_arrays(x * 0, [0, 1]).columns == ()


def test_sites_are_named_in_the_order_in_which_they_come() -> None:
    found = from_sites(
        {"south": (np.zeros((2, 1)), [0, 1]), "north": (np.ones((1, 1)), [[1]])}, name="mine"
    )
    assert (
        found.site_names == ("south", "north")
        and found.site is not None
        and found.site.tolist() == [0, 0, 1]
    )
    assert (
        found.x.tolist() == [[0], [0], [1]]
        and found.y.tolist() == [0, 1, 1]
        and found.name == "mine"
    )
    assert from_arrays(np.zeros((3, 1)), [0, 1, 1], sites=[7, 3, 7]).site_names == ("7", "3")
    plain = from_arrays(np.zeros((1, 1)), [0])
    assert plain.site is None and plain.site_names == () and plain.name == "arrays"
    with pytest.raises(ValueError, match="at least one site"):
        from_sites({})


@pytest.mark.parametrize(
    ("sizes", "asked", "expected"),
    [
        ([(128, 128)], None, None),
        ([(129, 5)], None, (64, 64)),
        ([(5, 129)], None, (64, 64)),
        ([(5, 6), (5, 6)], None, None),
        ([(5, 6), (6, 5)], None, (64, 64)),
        ([(5, 6)], 9, (9, 9)),
    ],
)
def test_the_size_that_images_are_read_at(
    sizes: list[tuple[int, int]], asked: int | None, expected: tuple[int, int] | None
) -> None:
    assert common_size(sizes, asked) == expected


def saved(
    file: Path, size: tuple[int, int] = (3, 2), mode: str = "RGB", colour: Any = None
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour or (0 if mode in "1L" else (9, 8, 7))).save(file)
    return file


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)]
)
def test_grey_pictures_have_one_channel_and_others_three_unless_told(
    mode: str, channels: int, tmp_path: Path
) -> None:
    file = saved(tmp_path / "a.png", mode=mode, colour=1 if mode in "1LP" else None)
    assert read_header(file).shape == (channels, 2, 3)
    assert read_image(file).shape == (channels, 2, 3) and read_image(file).dtype == np.uint8
    assert read_image(file, channels=1).shape == (1, 2, 3) and read_image(
        file, channels=3
    ).shape == (3, 2, 3)
    assert read_image(file, (4, 5)).shape == (channels, 4, 5)


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for place, name in enumerate(("b/x/1.PNG", "a/y/2.jpg", "a/x/1.bmp", "a/x/0.png")):
        saved(tmp_path / name, mode="L", colour=10 * place + 1)
    (tmp_path / "a" / "x" / "notes.txt").write_text("no picture")
    (tmp_path / "a" / "x" / "z.png").mkdir()
    assert [str(file.relative_to(tmp_path)) for file in find_images(tmp_path).files] == [
        "a/x/0.png",
        "a/x/1.bmp",
        "a/y/2.jpg",
        "b/x/1.PNG",
    ]
    data = from_image_folder(str(tmp_path))
    assert (
        data.name == tmp_path.name
        and data.task.shape == (1, 2, 3)
        and data.task.class_names == ("x", "y")
    )
    assert data.y.tolist() == [0, 0, 1, 0] and data.x[:, 0, 0, 0].tolist() == [31, 21, 11, 1]
    assert (
        data.site_names == ("a", "b")
        and data.site is not None
        and data.site.tolist() == [0, 0, 0, 1]
    )
    saved(tmp_path / "a" / "y" / "3.png", (3, 4), "L")  # as wide as the others, but higher
    assert from_image_folder(tmp_path).task.shape == (1, 64, 64) and from_image_folder(
        tmp_path, 5
    ).task.shape == (1, 5, 5)


def test_pictures_that_are_too_large_or_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path / "a.png", (4, 5))
    assert images.MOST_PIXELS == 50_000_000
    monkeypatch.setattr(images, "MOST_PIXELS", 20)
    assert read_header(file).shape == (3, 5, 4)
    monkeypatch.setattr(images, "MOST_PIXELS", 19)
    with pytest.raises(
        ValueError,
        match=r"a\.png: expected an image of at most 19 pixels; this one has more, scale it down",
    ):
        read_header(file)
    monkeypatch.setattr(images, "MOST_PIXELS", 10**9)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 15)  # Pillow's own bound, a warning there
    with pytest.raises(ValueError, match="this one has more, scale it down"):
        read_header(file)
    with pytest.raises(
        ValueError, match=r"absent\.png is not a readable image: No such file or directory"
    ):
        read_header(tmp_path / "absent.png")
    with (
        pytest.raises(
            ValueError,
            match="a packed image is not a readable image: it is damaged, or none of PNG, JPEG",
        ),
        opened_image(io.BytesIO(b"x")),
    ):
        pass  # fmt: skip
    assert logging.getLogger("PIL").handlers
