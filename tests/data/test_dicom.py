"""DICOM files: rescaling, windows, photometric interpretation; and without pydicom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from equipoise.data import DataConfig, federate, from_image_folder, inputs_from  # noqa: E402
from equipoise.data.arrays.images import read_header, read_image  # noqa: E402
from equipoise.data.check import check_data  # noqa: E402
from tests.helpers.reports import remarks_on  # noqa: E402

RAMP = np.linspace(0, 4095, 20).reshape(4, 5).astype(np.uint16)


def write(file: Path, pixels: np.ndarray = RAMP, **elements: Any) -> Path:
    """A small file of the kind that a scanner writes."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(str(file), {}, file_meta=meta, preamble=b"\0" * 128)
    colour = pixels.ndim == 3 and pixels.shape[-1] == 3
    defaults = {
        "Rows": pixels.shape[-3 if colour else -2],
        "Columns": pixels.shape[-2 if colour else -1],
        "SamplesPerPixel": 3 if colour else 1,
        "PhotometricInterpretation": "RGB" if colour else "MONOCHROME2",
        "BitsAllocated": 8 * pixels.dtype.itemsize,
        "BitsStored": 8 if pixels.dtype.itemsize == 1 else 12,
        "PixelRepresentation": int(pixels.dtype.kind == "i"),
    }
    if colour:
        defaults["PlanarConfiguration"] = 0
    for name, value in (defaults | elements).items():
        setattr(dataset, name, value)
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelData = pixels.tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(file, enforce_file_format=True)
    return file


def test_the_stored_bits_say_the_range(tmp_path: Path) -> None:
    file = write(tmp_path / "a.dcm")
    assert read_header(file).shape == (1, 4, 5)
    assert np.array_equal(read_image(file)[0], np.rint(RAMP / 4095 * 255))
    inverted = write(tmp_path / "b.DCM", PhotometricInterpretation="MONOCHROME1")
    assert np.abs(read_image(inverted)[0] + read_image(file)[0].astype(int) - 255).max() <= 1


def test_windows_are_in_rescaled_units(tmp_path: Path) -> None:
    """As DICOM's own formula says, against pydicom's implementation of it."""
    file = write(
        tmp_path / "a.dcm", RescaleSlope=2, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400
    )
    from pydicom.pixels import apply_rescale, apply_windowing

    dataset = pydicom.dcmread(file)
    shown = apply_windowing(apply_rescale(dataset.pixel_array, dataset), dataset)
    expected = (shown - shown.min()) / (shown.max() - shown.min()) * 255
    assert np.abs(read_image(file)[0] - expected).max() <= 0.51
    hounsfield = RAMP * 2.0 - 1024
    stated = np.clip((hounsfield + 1000) / 2000, 0, 1) * 255
    assert np.abs(read_image(file, window=(-1000, 1000))[0] - stated).max() <= 0.51
    exact = write(
        tmp_path / "b.dcm",
        WindowCenter=[1000, 5],
        WindowWidth=[500, 1],
        VOILUTFunction="LINEAR_EXACT",
    )
    assert np.abs(read_image(exact)[0] - np.clip((RAMP - 750.0) / 500, 0, 1) * 255).max() <= 0.51


def test_signed_and_coloured_images(tmp_path: Path) -> None:
    signed = RAMP.astype(np.int16) - 2048
    found = read_image(write(tmp_path / "a.dcm", signed))
    assert found.min() == 0 and found.max() == 255
    colour = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    found = read_image(write(tmp_path / "b.dcm", colour))
    assert np.array_equal(found, colour.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        ({"WindowCenter": 1, "WindowWidth": 0}, r"width 0; state data\.window"),
        ({"WindowCenter": "1e300", "WindowWidth": "1e300"}, r"width 1e\+300; state data\.window"),
        ({"RescaleSlope": "1e300"}, "infinity"),
        ({"SamplesPerPixel": 9}, "one sample per grey pixel"),
        ({"WindowCenter": 1, "WindowWidth": 9, "VOILUTFunction": "SIGMOID"}, "SIGMOID"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
        ({"BitsStored": 16}, r"DICOM pixels from 0 to 4095 .*data\.window=\[0,4095\]"),
        ({"Rows": 60_000, "Columns": 60_000}, "at most 50,000,000 pixels"),
        ({"Rows": 40}, "cannot be decoded"),
    ],
)
def test_what_cannot_be_read_well_is_refused(
    elements: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"a\.dcm.*{said}|{said}.*a\.dcm|{said}"):
        read_image(write(tmp_path / "a.dcm", **elements))


def test_files_that_are_none_or_deflated_as_a_whole_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_text("no scan")
    with pytest.raises(ValueError, match=r"a\.dcm is not a readable image"):
        read_image(tmp_path / "a.dcm")
    dataset = pydicom.dcmread(write(tmp_path / "b.dcm"))
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    dataset.save_as(tmp_path / "b.dcm")
    with pytest.raises(ValueError, match=r"b\.dcm.*deflated"):
        read_image(tmp_path / "b.dcm")


def scans(root: Path, **elements: Any) -> Path:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for name in ("ill", "well"):
            for place in range(5):
                pixels = rng.integers(0, 4096, (6, 6)).astype(np.uint16)
                write(root / site / name / f"{place}.dcm", pixels, **elements)
    return root


def test_a_folder_of_scans_from_check_to_prediction(tmp_path: Path) -> None:
    root = scans(tmp_path / "scans", RescaleIntercept=-1024)
    write(root / "north" / "ill" / "several.dcm", np.stack([RAMP[:3, :4]] * 2), NumberOfFrames=2)
    found = check_data(DataConfig(name=str(root), image_size=6), every_pixel=True)
    assert found.schema.shape == (1, 6, 6)
    assert any("1 file holds several images" in one for one in remarks_on(found))
    federation = federate(DataConfig(name=str(root), image_size=6, window=(-1000, 1000)), 1)
    file = root / "north" / "ill" / "0.dcm"
    assert np.array_equal(inputs_from(file, federation.recipe)[0], federation.x[0])


def test_files_with_different_windows_are_told(tmp_path: Path) -> None:
    root = scans(tmp_path / "scans", WindowCenter=2000, WindowWidth=4000)
    assert not any("window" in one for one in remarks_on(check_data(DataConfig(name=str(root)))))
    write(root / "north" / "ill" / "0.dcm", RAMP, WindowCenter=100, WindowWidth=50)
    told = " ".join(remarks_on(check_data(DataConfig(name=str(root)))))
    assert "2 different windows" in told and "data.window=[0,4095]" in told


def test_without_pydicom_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = scans(tmp_path / "scans")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    for read in (from_image_folder, lambda path: check_data(DataConfig(name=str(path)))):
        with pytest.raises(ValueError, match=r"pip install 'equipoise\[dicom\]'"):
            read(root)
