"""Reports on folders of images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.data.arrays.image_folders import ImageFolder, find_images, findings_about
from equipoise.data.arrays.images import check_memory, common_size, read_headers
from equipoise.data.check.report import DataReport, SiteReport
from equipoise.data.check.samples import report_on_classes
from equipoise.data.check.warnings import warnings_on_image_pool, warnings_on_sites
from equipoise.data.config import DataConfig
from equipoise.data.dataset import TEST
from equipoise.data.findings import Finding
from equipoise.data.schema import Schema
from equipoise.data.tables.schema_inference import refuse_repairs
from equipoise.validation.names import quoted

_SHOWN_SIZES = 5


def report_on_images(path: Path, config: DataConfig, every_pixel: bool) -> DataReport:
    """Report on a folder of images: names, headers of files, and pixels that look wrong.

    Args:
        path: The folder.
        config: The data section.
        every_pixel: True to decode every file, so that damaged ones are reported.

    Raises:
        ValueError: If the folder cannot be read, or the schema has repairs, which are for tables.
    """
    if config.schema is not None:
        refuse_repairs(config.schema, path.name)
    folder = find_images(path)
    headers = read_headers(folder.files)
    findings = findings_about(folder, headers, config.window, every_pixel)
    findings = [*findings, *_similar_classes(Counter(folder.labels))]
    classes = tuple(folder.classes)
    sites = _report_on_sites(folder, config)
    channels = max(header.shape[0] for header in headers)
    sizes = sorted({header.shape[1:] for header in headers})
    size = common_size(sizes, config.image_size) or sizes[0]
    check_memory((len(headers), channels, *size))
    if folder.sites:
        warnings = warnings_on_sites(sites, classes)
    else:
        warnings = warnings_on_image_pool(sites[0], classes)
    if config.image_size is None:
        warnings += _warnings_on_sizes(sizes, size)
    schema = config.schema
    if schema is None:
        schema = Schema(task="classification", classes=classes, shape=(channels, *size))
    return DataReport(
        name=path.name,
        task="classification",
        label=None,
        guessed=False,
        sites=sites,
        columns=(),
        files={path.name: _layout_text(folder, config)},
        warnings=tuple(warnings),
        schema=schema,
        findings=tuple(findings),
    )


def _report_on_sites(folder: ImageFolder, config: DataConfig) -> tuple[SiteReport, ...]:
    """Return the sites of a folder, or the folder as one; test rows are the official test part."""
    owners = folder.sites or (folder.path.name,) * len(folder.files)
    counts = Counter(zip(owners, folder.labels, strict=True))
    keeps_parts = folder.parts is not None and config.pool != "all"
    tests: Counter[str] = Counter()
    if folder.parts is not None:
        for owner, part in zip(owners, folder.parts, strict=True):
            tests[owner] += part == TEST
    reports = []
    for name in sorted(set(owners)):
        classes = {kind: counts[name, kind] for kind in folder.classes if counts[name, kind]}
        report = report_on_classes(name, classes, config)
        if keeps_parts:
            report = replace(report, test=tests[name])
        elif folder.sites is None:
            report = replace(report, test=None)
        reports.append(report)
    return tuple(reports)


def _similar_classes(counts: Mapping[str, int]) -> list[Finding]:
    """Return findings on folders of classes whose names differ in case, blanks or signs only."""
    groups: dict[str, list[str]] = {}
    for name in sorted(counts):
        key = re.sub(r"[\W_]+", "", name.casefold()) or name
        groups.setdefault(key, []).append(name)
    findings = []
    for group in groups.values():
        if len(group) > 1:
            shown = " and ".join(f"{quoted(name)} ({counts[name]:,} images)" for name in group)
            findings.append(
                Finding(
                    f"the classes {shown} are nearly equal but count as different; "
                    "give their folders the same name if they are one class"
                )
            )
    return findings


def _warnings_on_sizes(sizes: Sequence[tuple[int, ...]], read_size: tuple[int, ...]) -> list[str]:
    """Return a warning if images are resized though the user chose no size."""
    if list(sizes) == [read_size]:
        return []
    shown = ", ".join(f"{height}x{width}" for height, width in sizes[:_SHOWN_SIZES])
    if len(sizes) > 1:
        start = f"images have {len(sizes)} different sizes, such as {shown}"
    else:
        start = f"images are large, {shown}"
    return [
        f"{start} (height x width): they are read at {read_size[0]}x{read_size[1]}; "
        "choose another size with, for example, data.image_size=128"
    ]


def _layout_text(folder: ImageFolder, config: DataConfig) -> str:
    """Return the layout of a folder, and how a run partitions it."""
    layout = str(folder)
    if folder.parts is not None and config.pool == "all":
        layout += " that is ignored (data.pool=all)"
    if folder.sites is None:
        partition = "iid" if config.partition == "auto" else config.partition
        layout += f", partitioned into {config.clients or 10} clients by data.partition={partition}"
    return layout
