"""Data sets of several domains: Office-Caltech10, PACS, and image sets joined as domains."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from equipoise.data.arrays.transforms import resized
from equipoise.data.dataset import TEST, TRAIN, Dataset
from equipoise.data.sets import archives
from equipoise.data.sets.registered import Arrays, RegisteredSet, array_of, dataset
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
# Names of joined sets; the digit domains of FedEquilibria are mnist, usps, svhn and syn.
JOINED = {
    "digit_domains": "mnist+usps+svhn+syn",
    "digit_domains_subset": "mnist+usps+svhn_subset+mnist_m_regenerated_subset",
}


def _office(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return four domains; the last two of ten consecutive images are for testing.

    Images of a domain are sorted by class. This is FedHEAL's rule.
    """
    from dataclasses import replace

    x = np.concatenate([array_of(entry, arrays, f"x_{name}") for name in OFFICE]).transpose(
        0, 3, 1, 2
    )
    labels = [array_of(entry, arrays, f"y_{name}") for name in OFFICE]
    part = np.concatenate([np.where(np.arange(len(y)) % 10 <= 7, TRAIN, TEST) for y in labels])
    site = np.repeat(np.arange(len(OFFICE)), [len(y) for y in labels])
    return replace(
        dataset(entry, x, np.concatenate(labels), part=part), site=site, site_names=OFFICE
    )


def _pacs(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    """Return four domains; the last fifth of each class, rounded up, is for testing.

    Images of a domain are sorted by class and name.
    """
    from dataclasses import replace

    x = np.concatenate([array_of(entry, arrays, f"x_{name}") for name in archives.PACS_DOMAINS])
    labels = [array_of(entry, arrays, f"y_{name}") for name in archives.PACS_DOMAINS]
    part = np.full(len(x), TRAIN)
    for start, y in zip(np.cumsum([0, *map(len, labels)]), labels, strict=False):
        for kind in np.unique(y):
            members = start + np.flatnonzero(y == kind)
            test_count = math.ceil(len(members) / 5)
            part[members[len(members) - test_count :]] = TEST
    site = np.repeat(np.arange(len(labels)), [len(y) for y in labels])
    return replace(
        dataset(entry, x, np.concatenate(labels), part=part),
        site=site,
        site_names=archives.PACS_DOMAINS,
    )


def join(name: str, sets: list[Dataset], size: int = 32) -> Dataset:
    """Return image sets with the same classes as domains of one data set.

    Args:
        name: The name of the joined data set.
        sets: The data sets.
        size: The height and width of the joined images, which are in colour.

    Raises:
        ValueError: If a set holds no images, or has other classes.
    """
    first = sets[0]
    differing = [
        domain.name
        for domain in sets
        if not domain.image or domain.task.class_names != first.task.class_names
    ]
    if differing:
        raise ValueError(
            "only image sets with the same classes can be joined: "
            f"{', '.join(differing)} differs from {first.name}"
        )
    parts = []
    for domain in sets:
        part = domain.part
        if part is None:
            part = np.full(len(domain.x), TRAIN)
        parts.append(part)
    return Dataset(
        name,
        torch.cat([_colour(resized(domain.x, size)) for domain in sets]),
        torch.cat([domain.y for domain in sets]),
        Task("classification", (3, size, size), first.task.outputs, first.task.class_names),
        part=np.concatenate(parts),
        site=np.repeat(np.arange(len(sets)), [len(domain.x) for domain in sets]),
        site_names=tuple(domain.name for domain in sets),
        licence="; ".join(f"{domain.name}: {domain.licence}" for domain in sets),
        source="; ".join(f"{domain.name}: {domain.source}" for domain in sets),
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
        "import-only, no published checksum was found: "
        "an NPZ file with x_amazon, y_amazon, x_caltech, ...",
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
        "import-only, no published checksum was found: an archive of the folders art_painting, "
        "cartoon, photo and sketch, named PACS.zip",
        _pacs,
        files=("PACS.zip",),
        prepare=archives.pacs,
    ),
)
