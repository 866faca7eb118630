from __future__ import annotations

import pytest
import torch

from equipoise.data import augment
from equipoise.data.arrays.transforms import NORMALISATIONS, normalised, resized
from equipoise.streams import torch_stream


def batch(n: int = 64, side: int = 8) -> torch.Tensor:
    return torch.rand((n, 2, side, side + 2), generator=torch_stream(1, "test")) + 0.1


def test_normalisation_subtracts_then_divides_per_channel() -> None:
    x = torch.randint(0, 256, (3, 3, 4, 4), dtype=torch.uint8, generator=torch_stream(1, "test"))
    for name, (mean, std) in NORMALISATIONS.items():
        shape = (1, -1, 1, 1)
        expected = (x.float() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(
            shape
        )
        assert torch.allclose(normalised(x, name), expected, atol=1e-6)


def test_normalisations_are_those_of_the_papers_codes() -> None:
    """Typed from them a second time: KDIA and FedEquilibria write per-channel values of pixels in
    [0, 255] and in [0, 1].
    """
    typed = {
        "none": [[0], [1]],
        "half": [[0.5], [0.5]],
        "imagenet": [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]],
        "cifar10": [[0.491373, 0.482353, 0.446667], [0.247059, 0.243529, 0.261569]],
        "cifar10_corefed": [[0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]],
        "cifar100": [[0.50708, 0.48655, 0.44092], [0.26733, 0.25644, 0.27615]],
        "cinic10": [[0.4789, 0.47228, 0.43047], [0.24206, 0.23828, 0.25875]],
    }
    assert NORMALISATIONS.keys() == typed.keys()
    for name, values in typed.items():
        assert [list(part) for part in NORMALISATIONS[name]] == [
            pytest.approx(part, abs=1e-6) for part in values
        ]


def test_normalisation_leaves_the_input_alone() -> None:
    x = torch.zeros((2, 1, 2, 2))
    assert torch.equal(normalised(x, "half"), torch.full_like(x, -1))
    assert torch.equal(x, torch.zeros_like(x))


def test_resizing_keeps_type_mean_and_order_over_blocks() -> None:
    x = torch.arange(1500, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 6, 6)
    assert torch.allclose(resized(x, 3)[:, 0, 0, 0], torch.arange(1500.0))
    assert resized((x % 256).to(torch.uint8), 3).dtype == torch.uint8


def test_augmentation_follows_from_its_stream() -> None:
    names = ("crop", "flip", "rotate")
    first = augment(batch(), names, torch_stream(1, "a"))
    assert torch.equal(first, augment(batch(), names, torch_stream(1, "a")))
    assert not torch.equal(first, augment(batch(), names, torch_stream(1, "b")))
    assert first.shape == batch().shape


def test_flip_mirrors_about_half_and_leaves_the_rest() -> None:
    x = batch(400)
    changed = augment(x, ("flip",), torch_stream(1, "flip"))
    same = (changed == x).flatten(1).all(1)
    mirrored = (changed == x.flip(-1)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


def test_crop_shifts_by_at_most_the_padding_and_fills_with_zero() -> None:
    x = batch(300)
    changed = augment(x, ("crop:1",), torch_stream(1, "crop"))
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    shifts = [(d, r) for d in range(3) for r in range(3)]
    fits = torch.stack(
        [(changed == padded[:, :, d : d + 8, r : r + 10]).flatten(1).all(1) for d, r in shifts]
    )
    assert bool((fits.sum(0) == 1).all())
    assert bool((fits.sum(1) > 0).all())  # every shift occurs


def test_reflecting_crop_brings_no_zeros_in() -> None:
    assert float(augment(batch(), ("crop_reflect",), torch_stream(1, "crop")).min()) > 0


def test_rotation_by_nothing_is_the_identity_and_a_centred_disc_survives_any() -> None:
    x = batch()
    assert torch.allclose(augment(x, ("rotate:0",), torch_stream(1, "turn")), x, atol=1e-5)
    rows, columns = torch.meshgrid(torch.arange(20) - 9.5, torch.arange(30) - 14.5, indexing="ij")
    disc = torch.exp(-(rows**2 + columns**2) / 20).expand(8, 1, 20, 30)
    turned = augment(disc, ("rotate:90",), torch_stream(1, "turn"))
    assert float((turned - disc).abs().max()) < 0.05


def test_rotation_really_turns() -> None:
    bar = torch.zeros(40, 1, 21, 21)
    bar[:, :, 10] = 1
    turned = augment(bar, ("rotate:45",), torch_stream(1, "turn"))
    assert float((turned - bar).abs().amax((1, 2, 3)).median()) > 0.5


def test_augmentation_is_for_images_and_known_names() -> None:
    with pytest.raises(ValueError, match="is for images"):
        augment(torch.zeros(2, 3), ("flip",), torch_stream(1, "a"))
    with pytest.raises(ValueError, match="did you mean 'rotate'"):
        augment(batch(), ("rotat",), torch_stream(1, "a"))
    with pytest.raises(ValueError, match="expected flip$"):
        augment(batch(), ("flip:3",), torch_stream(1, "a"))
    with pytest.raises(ValueError, match="expected crop or a whole number as in crop:4$"):
        augment(batch(), ("crop:x",), torch_stream(1, "a"))


@pytest.mark.parametrize(
    ("usual", "written"),
    [("crop", "crop:4"), ("crop_reflect", "crop_reflect:4"), ("rotate", "rotate:15")],
)
def test_an_augmentation_without_an_amount_has_its_usual_one(usual: str, written: str) -> None:
    assert torch.equal(
        augment(batch(), (usual,), torch_stream(1, "a")),
        augment(batch(), (written,), torch_stream(1, "a")),
    )


def test_augmentations_go_in_their_order_and_none_is_for_anything() -> None:
    x = batch()
    both = augment(x, ("crop:2", "flip"), torch_stream(1, "a"))
    generator = torch_stream(1, "a")
    assert torch.equal(both, augment(augment(x, ("crop:2",), generator), ("flip",), generator))
    assert augment(torch.zeros(2, 3), (), torch_stream(1, "a")).shape == (2, 3)


def test_a_reflecting_crop_shows_a_window_of_the_mirrored_image() -> None:
    x = batch(60)
    mirrored = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")
    changed = augment(x, ("crop_reflect:2",), torch_stream(1, "crop"))
    shifts = [(d, r) for d in range(5) for r in range(5)]
    assert bool(
        torch.stack(
            [
                (changed == mirrored[:, :, d : d + 8, r : r + 10]).flatten(1).all(1)
                for d, r in shifts
            ]
        )
        .any(0)
        .all()
    )


@pytest.mark.parametrize("degrees", [15, 40])
def test_a_rotation_turns_by_an_angle_between_its_bounds(degrees: int) -> None:
    """A blob 8 pixels to the right of the centre of an oblong image: its distance stays, its angle
    is drawn uniformly.
    """
    rows, columns = torch.meshgrid(torch.arange(30) - 14.5, torch.arange(44) - 21.5, indexing="ij")
    blob = torch.exp(-(rows**2 + (columns - 8) ** 2) / 8).expand(30, 1, 30, 44)
    turned = augment(blob, (f"rotate:{degrees}",), torch_stream(1, "turn"))[:, 0]
    down, right = ((turned * place).sum((1, 2)) / turned.sum((1, 2)) for place in (rows, columns))
    angle = torch.rad2deg(torch.atan2(down, right))
    drawn = (2 * torch.rand(30, generator=torch_stream(1, "turn")) - 1) * degrees
    assert torch.allclose((down**2 + right**2).sqrt(), torch.full((30,), 8.0), atol=0.05)
    assert torch.allclose(angle.abs(), drawn.abs(), atol=0.5) and bool(
        ((angle > 0) == (angle[0] > 0)).eq((drawn > 0) == (drawn[0] > 0)).all()
    )


def test_resizing_is_bilinear_smoothed_and_rounded_and_leaves_what_fits() -> None:
    x = torch.randint(0, 256, (3, 2, 9, 6), dtype=torch.uint8, generator=torch_stream(1, "test"))
    x[0], x[1, :, :4] = 255, 0
    expected = torch.nn.functional.interpolate(x.float(), (5, 5), mode="bilinear", antialias=True)
    assert torch.equal(resized(x, 5), expected.round().to(torch.uint8)) and torch.allclose(
        resized(x.float(), 5), expected
    )
    assert int(resized(x, 5)[0].min()) == 255 and int(resized(x, 5)[1, 0, 0, 0]) == 0
    square = x[:, :, :6]
    assert (
        resized(square, 6) is square
        and resized(x, 9).shape == (3, 2, 9, 9)
        and resized(x, 6).shape == (3, 2, 6, 6)
    )


def test_normalisation_is_refused_for_other_channels_and_kept_for_rows() -> None:
    rows = torch.tensor([[0.0, 1.0, 2.0]])
    assert (
        normalised(rows, "half").tolist() == [[-1, 1, 3]]
        and normalised(rows, "none").tolist() == rows.tolist()
    )
    assert normalised(torch.tensor([[0, 51]], dtype=torch.uint8), "none").tolist() == [
        [0, pytest.approx(0.2)]
    ]
    for wrong in (rows, torch.zeros(2, 1, 4, 4), torch.zeros(2, 3, 4)):
        with pytest.raises(
            ValueError,
            match="normalisation imagenet is for images with 3 channels, got samples of shape",
        ):
            normalised(wrong, "imagenet")
    turned = torch.zeros(2, 4, 4, 3).permute(0, 3, 1, 2)
    assert (
        normalised(turned, "imagenet").is_contiguous()
        and normalised(turned, "none").is_contiguous()
    )
