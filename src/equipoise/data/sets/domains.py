"""Sets of several domains: Office-Caltech10, and any image sets joined as domains."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.data.arrays.transforms import resized
from equipoise.data.dataset import TEST, TRAIN, Dataset
from equipoise.data.sets import archives
from equipoise.data.sets.registered import Arrays, RegisteredSet, dataset, wanted
from equipoise.task import Task

OFFICE = ("amazon", "caltech", "dslr", "webcam")
OFFICE_CLASSES = (
    "backpack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
# shorter names of joined sets; the digit domains of FedEquilibria are mnist, usps, svhn and syn
JOINED = {
    "digit_domains": "mnist+usps+svhn+syn",
    "digit_domains_subset": "mnist+usps+svhn_subset+mnist_m_regenerated_subset",
}


def _office(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Four domains, each sorted by class; of ten consecutive images the last two are for testing (FedHEAL's rule)."""
    from dataclasses import replace

    x = np.concatenate([wanted(entry, arrays, f"x_{name}") for name in OFFICE]).transpose(
        0, 3, 1, 2
    )
    labels = [wanted(entry, arrays, f"y_{name}") for name in OFFICE]
    part = np.concatenate([np.where(np.arange(len(y)) % 10 <= 7, TRAIN, TEST) for y in labels])
    site = np.repeat(np.arange(len(OFFICE)), [len(y) for y in labels])
    return replace(
        dataset(entry, x, np.concatenate(labels), part=part), site=site, site_names=OFFICE
    )


def _pacs(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Four domains, each in the order of classes and names; of each class the last fifth, rounded up, is for testing."""
    from dataclasses import replace

    x = np.concatenate([wanted(entry, arrays, f"x_{name}") for name in archives.PACS_DOMAINS])
    labels = [wanted(entry, arrays, f"y_{name}") for name in archives.PACS_DOMAINS]
    part = np.full(len(x), TRAIN)
    for start, y in zip(np.cumsum([0, *map(len, labels)]), labels, strict=False):
        for kind in np.unique(y):
            mine = start + np.flatnonzero(y == kind)
            part[mine[len(mine) - -(-len(mine) // 5) :]] = TEST
    site = np.repeat(np.arange(len(labels)), [len(y) for y in labels])
    return replace(
        dataset(entry, x, np.concatenate(labels), part=part),
        site=site,
        site_names=archives.PACS_DOMAINS,
    )


def join(name: str, sets: list[Dataset], size: int = 32) -> Dataset:
    """Image sets with the same classes as the domains of one, as colour images of one size."""
    differing = [
        s.name for s in sets if not s.image or s.task.class_names != sets[0].task.class_names
    ]
    if differing:
        raise ValueError(
            f"only image sets with the same classes can be joined: {', '.join(differing)} differs from {sets[0].name}"
        )
    parts = [s.part if s.part is not None else np.full(len(s.x), TRAIN) for s in sets]
    x = torch.cat([_colour(resized(s.x, size)) for s in sets])
    task = Task("classification", (3, size, size), sets[0].task.outputs, sets[0].task.class_names)
    return Dataset(
        name,
        x,
        torch.cat([s.y for s in sets]),
        task,
        part=np.concatenate(parts),
        site=np.repeat(np.arange(len(sets)), [len(s.x) for s in sets]),
        site_names=tuple(s.name for s in sets),
        licence="; ".join(f"{s.name}: {s.licence}" for s in sets),
        source="; ".join(f"{s.name}: {s.source}" for s in sets),
    )


def _colour(x: Tensor) -> Tensor:
    return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


ENTRIES = (
    RegisteredSet(
        "office_caltech10",
        "Office-Caltech10: ten kinds of objects in four domains, 64x64",
        (3, 64, 64),
        OFFICE_CLASSES,
        "958 Amazon, 1,123 Caltech, 157 DSLR, 295 Webcam",
        "none stated by the source",
        "import-only, no published checksum was found: an NPZ file with x_amazon, y_amazon, x_caltech, ...",
        _office,
        packed="office_caltech10_64",
    ),
    RegisteredSet(
        "pacs",
        "PACS: seven kinds of things as photographs, paintings, cartoons and sketches, 64x64",
        (3, 64, 64),
        archives.PACS_CLASSES,
        "2,048 art_painting, 2,344 cartoon, 1,670 photo, 3,929 sketch",
        "none stated by the source",
        "import-only, no published checksum was found: an archive of the folders art_painting, cartoon, photo and sketch, named PACS.zip",
        _pacs,
        files=("PACS.zip",),
        prepare=archives.pacs,
    ),
)
