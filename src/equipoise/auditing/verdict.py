"""What the numbers of an audit mean, in plain words: which kind of difference dominates, which methods were made for it, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.auditing.divergence import as_overlap, imbalance

# From which on a difference counts; chosen on other data than those of docs/results.md, see docs/audit.md.
SIZE, LABELS, FEATURES = 0.15, 0.08, 0.25
RESAMPLES = 400
THIN = 10  # samples per dimension
WORDS = {
    "size": "the clients differ mainly in size",
    "labels": "the clients differ mainly in their labels",
    "features": "the clients differ mainly in their features",
    "none": "the clients differ little in size, labels and features",
}
UNTOLD = "the clients differ little in size and labels; how their features differ cannot be told"
MADE_FOR = {  # methods of ours whose papers are about this kind
    "size": ("cgsv", "cffl", "fedave", "fedsac", "qfedavg"),
    "labels": ("feddisco", "kdia", "fedcog", "fedlsa", "moon", "scaffold", "feddyn", "feddc"),
    "features": ("fedakd", "fedequilibria", "fedheal", "fedrdn", "fedas", "fedmpr"),
    "none": ("fedavg",),
}


@dataclass(frozen=True)
class Measured:
    """What a verdict rests on: one entry per client; NaN where a client is too small to tell."""

    sizes: np.ndarray
    labels: np.ndarray  # total variation beyond chance
    features: np.ndarray  # KL beyond chance, of the whole difference
    beyond: np.ndarray  # KL beyond chance, of what the labels do not explain
    imbalance: float
    dimensions: int = 0

    @property
    def thin(self) -> bool:
        """Whether most clients have so few samples that features with heavy tails would look like features that differ."""
        return bool(len(self.sizes)) and float(np.median(self.sizes)) < THIN * self.dimensions

    def of(self, places: np.ndarray) -> Measured:
        return Measured(
            self.sizes[places],
            self.labels[places],
            self.features[places],
            self.beyond[places],
            imbalance(self.sizes[places]),
            self.dimensions,
        )


@dataclass(frozen=True)
class Verdict:
    """The kind that dominates, what else is there, and how sure that is."""

    dominant: str  # size, labels, features or none
    kinds: tuple[str, ...]  # all that are there, the dominant one first
    severity: dict[str, float]  # 0 to 1 for size, labels and features
    explained: float | None  # share of the difference in features that follows from labels
    agreement: float  # share of resamples of the clients with the same dominant kind
    sure: str  # clear, likely, unsure
    methods: tuple[str, ...]
    text: str


def judge(found: Measured, seed: int = 0) -> Verdict:
    """The verdict on all clients, and how often it is the same when clients are drawn anew from these."""
    dominant, kinds, severity, explained = _kind(found)
    clients = len(found.sizes)
    draw = np.random.Generator(np.random.PCG64(seed))
    if clients > 1:
        again = Counter(
            _kind(found.of(draw.integers(0, clients, clients)))[0] for _ in range(RESAMPLES)
        )
        agreement = again[dominant] / RESAMPLES
    else:
        agreement = 1.0
    told = float(np.isfinite(found.features).mean()) if clients else 0.0
    sure = (
        "clear"
        if agreement >= 0.95 and told >= 0.8 and clients >= 4
        else "likely"
        if agreement >= 0.8 and told >= 0.5
        else "unsure"
    )
    if "features" in kinds and found.thin:
        sure = "unsure"
    methods = MADE_FOR[dominant]
    return Verdict(
        dominant, kinds, severity, explained, agreement, sure, methods, _text(found, dominant, kinds, severity, explained, agreement, sure, methods)
    )  # fmt: skip


def _kind(found: Measured) -> tuple[str, tuple[str, ...], dict[str, float], float | None]:
    features, beyond = _mean(found.features), _mean(found.beyond)
    severity = {
        "size": found.imbalance,
        "labels": max(0.0, _mean(found.labels)),
        "features": as_overlap(beyond),
    }
    there = {
        kind
        for kind, least in (("size", SIZE), ("labels", LABELS), ("features", FEATURES))
        if severity[kind] >= least
    }
    explained = float(np.clip(1 - beyond / features, 0, 1)) if features > 0 else None
    # One brings the other along: classes have different features, and samples with other features other classes. What labels explain is not
    # counted as features, so that labels come first where the classes themselves are alike everywhere.
    order = sorted(there - {"size"}, key=lambda kind: -severity[kind])
    if "size" in there:
        order.append("size")  # what the models see weighs more than how much of it there is
    return (order[0] if order else "none"), tuple(order), severity, explained


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def _text(
    found: Measured, dominant: str, kinds: Sequence[str], severity: dict[str, float], explained: float | None, agreement: float, sure: str,
    methods: Sequence[str],
) -> str:  # fmt: skip
    if len(found.sizes) < 2:
        return "There is one client, so there is nothing to compare."
    unknown = int((~np.isfinite(found.features)).sum())
    # then nothing is known of features, which is not that they are alike
    untold = unknown == len(found.sizes)
    words = UNTOLD if untold and dominant == "none" else WORDS[dominant]
    more = [kind for kind in kinds if kind != dominant]
    said = [
        f"{words[0].upper()}{words[1:]}{', and also in ' + ' and '.join(more) if more else ''}."
    ]
    said.append(
        f"On a scale from 0 to 1: size {severity['size']:.2f}, labels {severity['labels']:.2f}, features beyond what labels explain "
        f"{'unknown' if untold else format(severity['features'], '.2f')}."
    )
    if explained is not None and "labels" in kinds:
        said.append(f"Labels explain {100 * explained:.0f} % of the difference in features.")
    # without a dimension, samples are not what lacks
    if unknown and (found.dimensions or not untold):
        said.append(
            f"{unknown} of {len(found.sizes)} clients have too few samples to tell their features."
        )
    if "features" in kinds and found.thin:
        said.append(
            f"Most clients have fewer than {THIN} samples for each of {found.dimensions} dimensions, where features with heavy tails look as if they differed."
        )
    said.append(f"Methods whose papers are about this: {', '.join(methods)}.")
    said.append(
        f"This is {sure}: the same verdict in {100 * agreement:.0f} % of {RESAMPLES} redraws of the clients."
    )
    return " ".join(said)
