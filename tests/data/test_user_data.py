from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.data import (
    DataConfig,
    federate,
    from_arrays,
    from_huggingface,
    from_image_folder,
    from_sites,
    from_torch,
    inputs_from,
)
from equipoise.data.check import check_data
from tests.helpers.reports import remarks_on


def test_labels_decide_the_task() -> None:
    x = np.zeros((4, 2))
    assert from_arrays(x, [0, 2, 1, 1]).task.outputs == 3
    assert from_arrays(x, ["b", "a", "b", "c"]).y.tolist() == [1, 0, 1, 2]
    assert from_arrays(x, [0.5, 1, 2, 3]).task.kind == "regression"
    assert from_arrays(x, [0, 1, 2, 3], kind="regression").y.dtype == torch.float32
    assert from_arrays(x, [[0], [1], [0], [1]]).y.shape == (4,)
    assert from_arrays(x[:1], [0]).y.shape == (1,)
    with pytest.raises(ValueError, match="have fractions"):
        from_arrays(x, [0.5, 1, 2, 3], kind="classification")
    with pytest.raises(ValueError, match="not among the class names"):
        from_arrays(x, ["a", "b", "c", "z"], class_names=("a", "b", "c"))


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="4 samples but 3 labels"):
        from_arrays(np.zeros((4, 2)), [0, 1, 0])
    with pytest.raises(ValueError, match="one label per sample"):
        from_arrays(np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match="NaN or infinity"):
        from_arrays(np.array([[np.nan]]), [0])
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1, found -1\.\.1"):
        from_arrays(np.zeros((2, 1)), [-1, 1])
    with pytest.raises(ValueError, match="differ in shape between sites"):
        from_sites({"a": (np.zeros((2, 3)), [0, 1]), "b": (np.zeros((2, 4)), [0, 1])})


def test_pictures_may_have_their_channels_last() -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    data = from_arrays(x, [0, 1])
    assert data.x.shape == (2, 3, 5, 6)
    assert np.array_equal(data.x[1, 2].numpy(), x[1, :, :, 2])


def test_the_users_array_is_not_shared_with_the_data_set() -> None:
    x = np.zeros((2, 1), np.float32)
    data = from_arrays(x, [0, 1])
    x[:] = 7
    assert data.x.tolist() == [[0.0], [0.0]]


def test_a_torch_dataset_keeps_many_integer_classes() -> None:
    tensors = torch.utils.data.TensorDataset(torch.arange(60.0).view(30, 2), torch.arange(30))
    data = from_torch(tensors, name="mine")
    assert data.task.outputs == 30
    assert data.x[3].tolist() == [6.0, 7.0]
    with pytest.raises(ValueError, match=r"\(input, label\) pairs"):
        from_torch(torch.utils.data.TensorDataset(torch.zeros(3)))


class Rows:
    """The part of a Hugging Face dataset's interface that is used."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def test_a_hugging_face_dataset_by_its_columns() -> None:
    rows = Rows(
        {
            "image": [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(4)],
            "label": [0, 1, 0, 1],
            "age": [1, 2, 3, 4],
            "site": list("aabb"),
        }
    )
    images = from_huggingface(rows, inputs="image", label="label", site="site")
    assert images.task.shape == (3, 4, 4)
    assert images.x[2, 0, 0, 0] == 2
    assert images.site_names == ("a", "b")
    table = from_huggingface(rows, inputs=["age"], label="label")
    assert [c.name for c in table.columns] == ["age"]
    with pytest.raises(ValueError, match="no column labels; it has image, label"):
        from_huggingface(rows, inputs="image", label="labels")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for site in ("east", "west"):
        for kind in ("cat", "dog"):
            (tmp_path / "pets" / site / kind).mkdir(parents=True)
            for i in range(5):
                Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(
                    tmp_path / "pets" / site / kind / f"{i}.png"
                )
    return tmp_path / "pets"


def test_a_folder_of_pictures_per_site_and_class(pictures: Path) -> None:
    federation = federate(DataConfig(name=str(pictures)), 1)
    assert federation.ids == ("east", "west")
    assert federation.task.class_names == ("cat", "dog")
    assert federation.task.shape == (3, 6, 6)
    first = sorted(pictures.glob("*/*/*"))[0]
    assert torch.equal(inputs_from(first, federation.recipe)[0], federation.x[0])
    assert inputs_from(pictures / "east" / "cat", federation.recipe).shape == (5, 3, 6, 6)


def test_pictures_of_different_sizes_are_read_at_one_and_grey_ones_become_colour(
    pictures: Path,
) -> None:
    Image.new("L", (9, 7), 128).save(pictures / "east" / "cat" / "9.png")
    assert from_image_folder(pictures).task.shape == (3, 64, 64)
    data = from_image_folder(pictures, image_size=4)
    assert data.task.shape == (3, 4, 4)
    assert data.x[5].unique().tolist() == [128]
    found = check_data(DataConfig(name=str(pictures)))
    assert found.schema.shape == (3, 64, 64)
    assert any(
        "2 different sizes, such as 6x6, 7x9 (height x width): they are read at 64x64" in w
        for w in remarks_on(found)
    )
    assert federate(DataConfig(name=str(pictures)), 1).task.shape == (3, 64, 64)


def test_large_pictures_are_made_small_unless_told(pictures: Path) -> None:
    for file in pictures.glob("*/*/*"):
        Image.open(file).resize((200, 150)).save(file)
    assert federate(DataConfig(name=str(pictures)), 1).task.shape == (3, 64, 64)
    assert federate(DataConfig(name=str(pictures), image_size=150), 1).task.shape == (3, 150, 150)
    assert "images are large, 150x200" in " ".join(
        remarks_on(check_data(DataConfig(name=str(pictures))))
    )


def test_pictures_are_resized_once(pictures: Path) -> None:
    """Twice would blur: the pixels are those of one resize of the file, in training and in
    prediction.
    """
    for place, file in enumerate(sorted(pictures.glob("*/*/*"))):
        Image.fromarray(
            np.random.default_rng(place).integers(0, 256, (12, 9, 3), dtype=np.uint8)
        ).save(file)
    federation = federate(DataConfig(name=str(pictures), image_size=5), 1)
    first = sorted(pictures.glob("*/*/*"))[0]
    once = np.asarray(
        Image.open(first).convert("RGB").resize((5, 5), Image.Resampling.BILINEAR)
    ).transpose(2, 0, 1) / np.float32(255)
    assert np.array_equal(federation.x[0].numpy(), once.astype(np.float32))
    assert torch.equal(inputs_from(first, federation.recipe)[0], federation.x[0])
    oblong = federate(DataConfig(name=str(pictures)), 1)
    assert oblong.task.shape == (3, 12, 9)
    assert torch.equal(inputs_from(pictures, oblong.recipe)[0], oblong.x[0]), (
        "the layout of training, of images that are no squares"
    )


def test_a_broken_picture_is_named(pictures: Path) -> None:
    (pictures / "east" / "cat" / "9.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"9\.png is not a readable image"):
        from_image_folder(pictures)
    with pytest.raises(ValueError, match="no images found"):
        from_image_folder(pictures / "east" / "cat")
