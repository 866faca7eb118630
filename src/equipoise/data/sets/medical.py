"""MedMNIST v2: 28x28 image sets with one label per image.

Addresses, checksums and labels are those of medmnist 3.0.2, info.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.sets import archives
from equipoise.data.sets.registered import Arrays, RegisteredSet, Remote, array_of, images

ORGANS = (
    "bladder",
    "femur-left",
    "femur-right",
    "heart",
    "kidney-left",
    "kidney-right",
    "liver",
    "lung-left",
    "lung-right",
    "pancreas",
    "spleen",
)
_BLOOD_CELLS = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "immature granulocytes",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)
_SKIN = (
    "actinic keratoses and intraepithelial carcinoma",
    "basal cell carcinoma",
    "benign keratosis-like lesions",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevi",
    "vascular lesions",
)
_TISSUE = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)
_KIDNEY = (
    "collecting duct, connecting tubule",
    "distal convoluted tubule",
    "glomerular endothelial cells",
    "interstitial endothelial cells",
    "leukocytes",
    "podocytes",
    "proximal tubule segments",
    "thick ascending limb",
)
_RETINA_LAYERS = ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal")


def _read(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return the data set of an official file: train_images, train_labels, val_images, ..."""
    renamed: Arrays = {}
    for official, part in (("train", "train"), ("val", "validation"), ("test", "test")):
        renamed[f"x_{part}"] = array_of(entry, arrays, f"{official}_images")
        renamed[f"y_{part}"] = array_of(entry, arrays, f"{official}_labels")
    return images(entry, renamed)


def _any_finding(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return a data set whose label is 1 for any of several findings, else 0."""
    changed: Arrays = {}
    for name, array in arrays.items():
        if name.endswith("_labels"):
            array = np.asarray((array.reshape(len(array), -1) > 0).any(1), np.uint8)
        changed[name] = array
    return _read(entry, changed)


def _entry(
    name: str,
    title: str,
    md5: str,
    channels: int,
    classes: tuple[str, ...],
    counts: str,
    licence: str = "CC BY 4.0",
    note: str = "",
) -> RegisteredSet:
    remote = Remote(
        f"{name}.npz", md5, (f"https://zenodo.org/records/10519652/files/{name}.npz?download=1",)
    )
    cited = "address and checksum from medmnist 3.0.2, info.py"
    return RegisteredSet(
        name,
        title,
        (channels, 28, 28),
        classes,
        counts,
        licence,
        cited,
        _read,
        (remote,),
        note=note,
    )


ENTRIES = (
    _entry(
        "pathmnist",
        "PathMNIST: colon tissue",
        "a8b06965200029087d5bd730944a56c1",
        3,
        _TISSUE,
        "89,996 / 10,004 / 7,180",
    ),
    _entry(
        "dermamnist",
        "DermaMNIST: skin lesions",
        "0744692d530f8e62ec473284d019b0c7",
        3,
        _SKIN,
        "7,007 / 1,003 / 2,005",
        "CC BY-NC 4.0",
    ),
    _entry(
        "octmnist",
        "OCTMNIST: retinal layers",
        "c68d92d5b585d8d81f7112f81e2d0842",
        1,
        _RETINA_LAYERS,
        "97,477 / 10,832 / 1,000",
    ),
    _entry(
        "pneumoniamnist",
        "PneumoniaMNIST: chest X-rays",
        "28209eda62fecd6e6a2d98b1501bb15f",
        1,
        ("normal", "pneumonia"),
        "4,708 / 524 / 624",
    ),
    _entry(
        "retinamnist",
        "RetinaMNIST: fundus photographs, grades 0-4",
        "bd4c0672f1bba3e3a89f0e4e876791e4",
        3,
        ("0", "1", "2", "3", "4"),
        "1,080 / 120 / 400",
        note="task: regression takes the grades as numbers",
    ),
    _entry(
        "breastmnist",
        "BreastMNIST: ultrasound",
        "750601b1f35ba3300ea97c75c52ff8f6",
        1,
        ("malignant", "normal, benign"),
        "546 / 78 / 156",
    ),
    _entry(
        "bloodmnist",
        "BloodMNIST: blood cells",
        "7053d0359d879ad8a5505303e11de1dc",
        3,
        _BLOOD_CELLS,
        "11,959 / 1,712 / 3,421",
    ),
    _entry(
        "organamnist",
        "OrganAMNIST: abdominal CT, axial",
        "68e3f8846a6bd62f0c9bf841c0d9eacc",
        1,
        ORGANS,
        "34,561 / 6,491 / 17,778",
    ),
    _entry(
        "organcmnist",
        "OrganCMNIST: abdominal CT, coronal",
        "b9ceb9546e10131b32923c5bbeaea2b1",
        1,
        ORGANS,
        "12,975 / 2,392 / 8,216",
    ),
    _entry(
        "organsmnist",
        "OrganSMNIST: abdominal CT, sagittal",
        "9ab87b696fb54e2a387ebe992d6ed5f1",
        1,
        ORGANS,
        "13,932 / 2,452 / 8,827",
    ),
    _entry(
        "tissuemnist",
        "TissueMNIST: kidney cortex cells",
        "ebe78ee8b05294063de985d821c1c34b",
        1,
        _KIDNEY,
        "165,466 / 23,640 / 47,280",
    ),
    replace(
        _entry(
            "chestmnist",
            "ChestMNIST: chest X-rays, any finding or none",
            "02c8a6516a18b556561a56cbdd36c4a8",
            1,
            ("no finding", "finding"),
            "78,468 / 11,219 / 22,433",
            "CC0 1.0",
            "the official labels are 14 findings, each yes or no: "
            "an image with any of them is a finding",
        ),
        read=_any_finding,
    ),
    RegisteredSet(
        "diabetic_retinopathy",
        "Diabetic Retinopathy (regular fundus, MedIMeta): photographs with grades 0-4",
        (3, 224, 224),
        ("0", "1", "2", "3", "4"),
        "2,000 in all",
        "CC BY-SA 4.0",
        "import-only, no published checksum was found: "
        "dr_regular.zip of https://www.woerner.eu/projects/medimeta/",
        images,
        files=("dr_regular.zip",),
        prepare=archives.medimeta,
        note="task: regression takes the grades as numbers",
    ),
)
