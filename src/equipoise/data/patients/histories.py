"""Patients' records as inputs of a recurrent network: padded sequences of scaled events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from equipoise.data.dataset import Dataset
from equipoise.data.federation import Parts
from equipoise.data.message_text import counted
from equipoise.data.patients.records import Records
from equipoise.data.schema import CodeSchema
from equipoise.task import Task

LONGEST = 512  # the latest events of a patient that are kept by default
VOCABULARY = 1000  # the most frequent codes, which have their own number in the network
MOST_DEVIATIONS = 5.0  # at which scaled values are clipped
_BLOCK = 4096  # patients whose values are added up at once


def dataset_of(
    records: Records,
    name: str,
    events: int | None = None,
    vocabulary: tuple[str, ...] | None = None,
    **more: Any,
) -> Dataset:
    """Return records as samples of shape (1 + events, 4), see models/gru.py.

    Values and ages are not scaled; a missing value is 0, with a mark after it.

    Args:
        records: The patients.
        name: The name of the data set.
        events: The latest events to keep; default: the 99th percentile of the histories' lengths,
            at most 512, so that a few long ones do not pad all others.
        vocabulary: The codes with their own number; default: the most frequent ones.
        **more: Further fields of the data set.
    """
    codes = vocabulary or frequent(records)
    numbers = {code: number for number, code in enumerate(codes, 1)}
    unknown = len(codes) + 1
    number_of_code = np.array([numbers.get(code, unknown) for code in records.codes], np.float32)
    lengths = records.lengths
    length = events or _default_length(lengths)
    x = np.zeros((len(records), 1 + length, 4), np.float32)
    x[:, 0, 0] = records.sex
    x[:, 0, 1] = records.state
    x[:, 0, 2] = np.minimum(lengths, length)
    patient = np.repeat(np.arange(len(records)), lengths)
    first_kept = records.offsets[:-1] + np.maximum(0, lengths - length)
    step = np.arange(len(patient)) - np.repeat(first_kept, lengths)
    is_kept = step >= 0
    positions = (patient[is_kept], 1 + step[is_kept])
    value = records.value[is_kept]
    x[(*positions, 0)] = number_of_code[records.code[is_kept]]
    x[(*positions, 1)] = np.where(np.isnan(value), 0, value)
    x[(*positions, 2)] = records.age[is_kept]
    x[(*positions, 3)] = np.isnan(value)
    notes = list(records.notes)
    if not is_kept.all():
        notes.append(_shortened_note(int((~is_kept).sum()), int((lengths > length).sum()), length))
    rare = len(np.unique(records.code[number_of_code[records.code] == unknown]))
    if rare:
        notes.append(
            f"{counted(rare, 'rare code')} read as unknown: only the {len(codes):,} most frequent "
            "codes have their own number"
        )
    return Dataset(
        name,
        torch.from_numpy(x),
        torch.from_numpy(records.label),
        Task("classification", (1 + length, 4), 2, ("no", "yes")),
        site=records.site,
        site_names=records.site_names,
        codes=codes,
        notes=tuple(notes),
        **more,
    )


def _default_length(lengths: np.ndarray) -> int:
    if not len(lengths):
        return 1
    percentile = int(np.percentile(lengths, 99, method="higher"))
    return min(LONGEST, max(1, percentile))


def _shortened_note(events: int, patients: int, length: int) -> str:
    return (
        f"{counted(events, 'event')} of {counted(patients, 'patient')} left out: "
        f"only the latest {length} of each are kept"
    )


def latest(dataset: Dataset, events: int) -> Dataset:
    """Return the same histories with at most so many events each, the latest."""
    if dataset.x.shape[1] <= 1 + events:
        return dataset
    x = dataset.x
    lengths = x[:, 0, 2].long()
    shortened_lengths = lengths.clamp(max=events)
    # Rows after the end of a short history hold zeros, as before.
    rows = 1 + (lengths - shortened_lengths).unsqueeze(1) + torch.arange(events)
    patients = torch.arange(len(x)).unsqueeze(1)
    shortened = torch.cat([x[:, :1], x[patients, rows]], dim=1)
    shortened[:, 0, 2] = shortened_lengths
    notes = dataset.notes
    is_longer = lengths > events
    if bool(is_longer.any()):
        removed = int((lengths - shortened_lengths).sum())
        notes = (*notes, _shortened_note(removed, int(is_longer.sum()), events))
    task = replace(dataset.task, shape=(1 + events, 4))
    return replace(dataset, x=shortened, task=task, notes=notes)


def frequent(records: Records) -> tuple[str, ...]:
    """Return the most frequent codes, ties sorted by name; these have their own number."""
    counts = np.bincount(records.code, minlength=len(records.codes))
    order = sorted(range(len(records.codes)), key=lambda code: (-counts[code], records.codes[code]))
    return tuple(records.codes[code] for code in order[:VOCABULARY] if counts[code])


def fit(x: np.ndarray, codes: tuple[str, ...], train: Parts) -> dict[str, Any]:
    """Return the recipe: mean and deviation of each code's values over all training patients."""
    count, total, square = np.zeros((3, len(codes) + 2))
    rows = np.unique(train.index)
    for start in range(0, len(rows), _BLOCK):
        block = x[rows[start : start + _BLOCK], 1:]
        has_value = (block[..., 0] > 0) & (block[..., 3] == 0)
        code = block[..., 0][has_value].astype(np.int64)
        value = block[..., 1][has_value].astype(np.float64)
        count += np.bincount(code, minlength=len(count))
        total += np.bincount(code, value, minlength=len(count))
        square += np.bincount(code, value**2, minlength=len(count))
    mean = total / np.maximum(count, 1)
    deviation = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    scale = np.where(deviation > 1e-6 * (np.abs(mean) + 1e-12), deviation, 1.0)
    return _recipe(x, codes, mean, scale)


def agreed(x: np.ndarray, codes: tuple[str, ...], schema: tuple[CodeSchema, ...]) -> dict[str, Any]:
    """Return the recipe by which values are scaled as sites agreed.

    Values of codes without a scale, and of unknown codes, count as missing: a scale of 0 says so.

    Args:
        x: The histories.
        codes: Their codes, numbered from 1.
        schema: The codes of the schema.

    Raises:
        ValueError: If the codes are not those of the schema, or none of them has a scale though
            there are values.
    """
    if codes != tuple(code.name for code in schema):
        raise ValueError(
            "data.normalise: agreed expects the codes of patients' events in the schema, got "
            "others; write it with `equipoise data check --save --statistics`"
        )
    mean = np.zeros(len(codes) + 2)
    scale = np.zeros(len(codes) + 2)
    for number, code in enumerate(schema, 1):
        if code.centre is not None and code.scale is not None:
            mean[number] = code.centre
            scale[number] = code.scale
    events = x[:, 1:]
    has_value = (events[..., 0] > 0) & (events[..., 3] == 0)
    if has_value.any() and not scale.any():
        raise ValueError(
            "expected centre and scale of the codes of patients' events in the schema, got none, "
            "though events have values; write them with `equipoise data check --save --statistics` "
            "at each site, and `equipoise data schema join`"
        )
    return _recipe(x, codes, mean, scale)


def _recipe(
    x: np.ndarray, codes: tuple[str, ...], mean: np.ndarray, scale: np.ndarray
) -> dict[str, Any]:
    """Return mean and scale of the values of each code as plain data."""
    return {
        "kind": "histories",
        "codes": list(codes),
        "mean": mean.tolist(),
        "scale": scale.tolist(),
        "shape": list(x.shape[1:]),
    }


def apply(x: np.ndarray, recipe: dict[str, Any]) -> np.ndarray:
    """Return model inputs: values in deviations of their code, clipped at 5; ages in centuries."""
    inputs = np.array(x, np.float32)
    code = inputs[:, 1:, 0].astype(np.int64)
    mean = np.array(recipe["mean"], np.float32)
    scale = np.array(recipe["scale"], np.float32)
    is_unscaled = (code > 0) & (scale[code] == 0)
    inputs[:, 1:, 3][is_unscaled] = 1
    has_value = (code > 0) & (inputs[:, 1:, 3] == 0)
    scaled = (inputs[:, 1:, 1] - mean[code]) / np.where(scale[code] == 0, 1, scale[code])
    clipped = np.clip(scaled, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    inputs[:, 1:, 1] = np.where(has_value, clipped, 0)
    inputs[:, 1:, 2] /= 100
    return inputs


def inputs_of(records: Records, recipe: dict[str, Any]) -> torch.Tensor:
    """Return new patients as inputs of a trained model."""
    events = recipe["shape"][0] - 1
    dataset = dataset_of(records, "new patients", events, tuple(recipe["codes"]))
    return torch.from_numpy(apply(dataset.x.numpy(), recipe))
