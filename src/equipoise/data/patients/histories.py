"""Patients' records as samples of the recurrent network: padded sequences, values on the scale of their code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from equipoise.data.dataset import Dataset
from equipoise.data.federation import Parts
from equipoise.data.patients.records import Records
from equipoise.task import Task

LONGEST = 512  # events of a patient that are kept unless told otherwise, the latest
VOCABULARY = 1000  # codes that have a number of their own, the most frequent; the network's default
FARTHEST = 5.0  # deviations at which values are cut


def dataset_of(
    records: Records,
    name: str,
    events: int | None = None,
    vocabulary: tuple[str, ...] | None = None,
    **more: Any,
) -> Dataset:
    """Samples of shape (1 + events, 4), see models/gru.py; values and ages as they are, a missing value is 0 with a mark behind it.

    Without `events` the length is the 99th percentile of the histories', at most 512: a few long ones must not pad all others.
    """
    kept = vocabulary or frequent(records)
    numbers = {code: place for place, code in enumerate(kept, 1)}
    number = np.array([numbers.get(code, len(kept) + 1) for code in records.codes], np.float32)
    lengths = records.lengths
    length = events or int(
        min(LONGEST, max(1, np.percentile(lengths, 99, method="higher") if len(lengths) else 1))
    )
    x = np.zeros((len(records), 1 + length, 4), np.float32)
    fits = np.minimum(lengths, length)
    x[:, 0, 0], x[:, 0, 1], x[:, 0, 2] = records.sex, records.state, fits
    owner = np.repeat(np.arange(len(records)), lengths)
    step = np.arange(len(owner)) - np.repeat(
        records.offsets[:-1] + np.maximum(0, lengths - length), lengths
    )  # below 0: not among the latest
    chosen = step >= 0
    where = (owner[chosen], 1 + step[chosen])
    value = records.value[chosen]
    x[(*where, 0)] = number[records.code[chosen]]
    x[(*where, 1)] = np.where(np.isnan(value), 0, value)
    x[(*where, 2)] = records.age[chosen]
    x[(*where, 3)] = np.isnan(value)
    notes = list(records.notes)
    if not chosen.all():
        notes.append(
            f"{int((~chosen).sum()):,} events of {int((lengths > length).sum()):,} patients were left out: each keeps the latest {length}"
        )
    rare = len(np.unique(records.code[number[records.code] > len(kept)]))
    if rare:
        notes.append(
            f"{rare:,} rare codes count as unknown: the {len(kept):,} most frequent have a number of their own"
        )
    return Dataset(
        name, torch.from_numpy(x), torch.from_numpy(records.label), Task("classification", (1 + length, 4), 2, ("no", "yes")),
        site=records.site, site_names=records.site_names, codes=kept, notes=tuple(notes), **more,
    )  # fmt: skip


def latest(dataset: Dataset, events: int) -> Dataset:
    """The same histories with at most so many events each; samples that are no longer stay as they are."""
    if dataset.x.shape[1] <= 1 + events:
        return dataset
    x, lengths = dataset.x, dataset.x[:, 0, 2].long()
    fits = lengths.clamp(max=events)
    # past a history's end they hold zeros, as before
    rows = 1 + (lengths - fits).unsqueeze(1) + torch.arange(events)
    made = torch.cat([x[:, :1], x[torch.arange(len(x)).unsqueeze(1), rows]], dim=1)
    made[:, 0, 2] = fits
    note = f"{int((lengths - fits).sum()):,} events of {int((lengths > events).sum()):,} patients were left out: each keeps the latest {events}"
    task = replace(dataset.task, shape=(1 + events, 4))
    return replace(
        dataset,
        x=made,
        task=task,
        notes=(*dataset.notes, note) if bool((lengths > events).any()) else dataset.notes,
    )


def frequent(records: Records) -> tuple[str, ...]:
    """The codes that have a number of their own: the most frequent ones, by name where they are equally frequent."""
    counts = np.bincount(records.code, minlength=len(records.codes))
    order = sorted(range(len(records.codes)), key=lambda code: (-counts[code], records.codes[code]))
    return tuple(records.codes[code] for code in order[:VOCABULARY] if counts[code])


def fit(x: np.ndarray, codes: tuple[str, ...], train: Parts) -> dict[str, Any]:
    """The recipe: mean and deviation of each code's values over all clients' training patients."""
    count, total, square = np.zeros((3, len(codes) + 2))
    for start in range(0, len(rows := np.unique(train.index)), 4096):
        block = x[rows[start : start + 4096], 1:]
        seen = (block[..., 0] > 0) & (block[..., 3] == 0)
        code, value = block[..., 0][seen].astype(np.int64), block[..., 1][seen].astype(np.float64)
        count += np.bincount(code, minlength=len(count))
        total += np.bincount(code, value, minlength=len(count))
        square += np.bincount(code, value**2, minlength=len(count))
    mean = total / np.maximum(count, 1)
    deviation = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    scale = np.where(deviation > 1e-6 * (np.abs(mean) + 1e-12), deviation, 1.0)
    return {
        "kind": "histories",
        "codes": list(codes),
        "mean": mean.tolist(),
        "scale": scale.tolist(),
        "shape": list(x.shape[1:]),
    }


def apply(x: np.ndarray, recipe: dict[str, Any]) -> np.ndarray:
    """Model inputs: values in deviations of their code, cut at 5; ages in centuries."""
    made = np.array(x, np.float32)
    code = made[:, 1:, 0].astype(np.int64)
    mean, scale = (np.array(recipe[name], np.float32) for name in ("mean", "scale"))
    seen = (code > 0) & (made[:, 1:, 3] == 0)
    scaled = np.clip((made[:, 1:, 1] - mean[code]) / scale[code], -FARTHEST, FARTHEST)
    made[:, 1:, 1] = np.where(seen, scaled, 0)
    made[:, 1:, 2] /= 100
    return made


def inputs_of(records: Records, recipe: dict[str, Any]) -> torch.Tensor:
    """New patients as inputs of a trained model."""
    made = dataset_of(records, "new patients", recipe["shape"][0] - 1, tuple(recipe["codes"]))
    return torch.from_numpy(apply(made.x.numpy(), recipe))
