"""The verdict of an audit: the dominant kind of difference, methods for it, and confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.auditing.divergence import as_overlap, imbalance

# Least severity that counts; chosen on other data than those of docs/results.md, see docs/audit.md.
SIZE = 0.15
LABELS = 0.08
FEATURES = 0.25
RESAMPLES = 400
THIN = 10  # samples per dimension below which heavy tails look like differences
SENTENCES = {
    "size": "the clients differ mainly in size",
    "labels": "the clients differ mainly in their labels",
    "features": "the clients differ mainly in their features",
    "none": "the clients differ little in size, labels and features",
}
FEATURES_UNKNOWN = "the clients differ little in size and labels; their features cannot be compared"
MADE_FOR = {  # methods whose papers are about this kind of difference
    "size": ("cgsv", "cffl", "fedave", "fedsac", "qfedavg"),
    "labels": ("feddisco", "kdia", "fedcog", "fedlsa", "moon", "scaffold", "feddyn", "feddc"),
    "features": ("fedakd", "fedequilibria", "fedheal", "fedrdn", "fedas", "fedmpr"),
    "none": ("fedavg",),
}


@dataclass(frozen=True)
class Measured:
    """The numbers of a verdict, one per client; NaN for a client with too few samples.

    Attributes:
        sizes: The number of samples.
        labels: The total variation of labels, beyond chance.
        features: The KL of features, beyond chance.
        beyond: The KL of features that labels do not explain, beyond chance.
        imbalance: The imbalance of the sizes.
        dimensions: The number of dimensions in which features are compared.
    """

    sizes: np.ndarray
    labels: np.ndarray
    features: np.ndarray
    beyond: np.ndarray
    imbalance: float
    dimensions: int = 0

    @property
    def thin(self) -> bool:
        """True if most clients have so few samples that heavy tails look like differences."""
        return bool(len(self.sizes)) and float(np.median(self.sizes)) < THIN * self.dimensions

    def of(self, clients: np.ndarray) -> Measured:
        """Return the numbers of some clients, by position."""
        return Measured(
            self.sizes[clients],
            self.labels[clients],
            self.features[clients],
            self.beyond[clients],
            imbalance(self.sizes[clients]),
            self.dimensions,
        )


@dataclass(frozen=True)
class Verdict:
    """The dominant kind of difference, the others, and the confidence in it.

    Attributes:
        dominant: `size`, `labels`, `features` or `none`.
        kinds: All kinds that count, the dominant one first.
        severity: A number from 0 to 1 for size, labels and features.
        explained: The share of the difference in features that follows from labels.
        agreement: The share of resamples of the clients with the same dominant kind.
        sure: `clear`, `likely` or `unsure`.
        methods: Methods whose papers are about the dominant kind.
        text: The verdict in sentences.
    """

    dominant: str
    kinds: tuple[str, ...]
    severity: dict[str, float]
    explained: float | None
    agreement: float
    sure: str
    methods: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class _Kinds:
    """The kinds of differences between clients, without confidence."""

    order: tuple[str, ...]
    severity: dict[str, float]
    explained: float | None

    @property
    def dominant(self) -> str:
        return self.order[0] if self.order else "none"


def judge(measured: Measured, seed: int = 0) -> Verdict:
    """Return the verdict on all clients, with its agreement over resamples of the clients.

    Args:
        measured: The numbers of all clients.
        seed: The seed of the resampling.
    """
    kinds = _kinds_of(measured)
    agreement = _agreement(measured, kinds.dominant, seed)
    sure = _confidence(measured, agreement)
    if "features" in kinds.order and measured.thin:
        sure = "unsure"
    return Verdict(
        dominant=kinds.dominant,
        kinds=kinds.order,
        severity=kinds.severity,
        explained=kinds.explained,
        agreement=agreement,
        sure=sure,
        methods=MADE_FOR[kinds.dominant],
        text=_text(measured, kinds, agreement, sure),
    )


def _agreement(measured: Measured, dominant: str, seed: int) -> float:
    """Return the share of resamples of the clients with the same dominant kind."""
    clients = len(measured.sizes)
    if clients < 2:
        return 1.0
    rng = np.random.Generator(np.random.PCG64(seed))
    same = 0
    for _ in range(RESAMPLES):
        resample = measured.of(rng.integers(0, clients, clients))
        same += _kinds_of(resample).dominant == dominant
    return same / RESAMPLES


def _confidence(measured: Measured, agreement: float) -> str:
    clients = len(measured.sizes)
    compared = float(np.isfinite(measured.features).mean()) if clients else 0.0
    if agreement >= 0.95 and compared >= 0.8 and clients >= 4:
        return "clear"
    if agreement >= 0.8 and compared >= 0.5:
        return "likely"
    return "unsure"


def _kinds_of(measured: Measured) -> _Kinds:
    features = _mean(measured.features)
    beyond = _mean(measured.beyond)
    severity = {
        "size": measured.imbalance,
        "labels": max(0.0, _mean(measured.labels)),
        "features": as_overlap(beyond),
    }
    explained = float(np.clip(1 - beyond / features, 0, 1)) if features > 0 else None
    # Classes have different features, and samples with other features have other classes. The part
    # that labels explain does not count as features, so that labels come first where classes are
    # alike everywhere.
    thresholds = {"labels": LABELS, "features": FEATURES}
    order = [kind for kind, least in thresholds.items() if severity[kind] >= least]
    order.sort(key=lambda kind: -severity[kind])
    if severity["size"] >= SIZE:
        order.append("size")  # the content of data matters more than their amount
    return _Kinds(tuple(order), severity, explained)


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def _text(measured: Measured, kinds: _Kinds, agreement: float, sure: str) -> str:
    """Return the verdict in sentences."""
    clients = len(measured.sizes)
    if clients < 2:
        return "There is one client, so there is nothing to compare."
    unknown = int((~np.isfinite(measured.features)).sum())
    # Without any client to compare, features are unknown, not alike.
    all_unknown = unknown == clients
    sentences = [_first_sentence(kinds, all_unknown)]
    features = "unknown" if all_unknown else f"{kinds.severity['features']:.2f}"
    sentences.append(
        f"On a scale from 0 to 1: size {kinds.severity['size']:.2f}, "
        f"labels {kinds.severity['labels']:.2f}, "
        f"features beyond what labels explain {features}."
    )
    if kinds.explained is not None and "labels" in kinds.order:
        share = f"{100 * kinds.explained:.0f} %"
        sentences.append(f"Labels explain {share} of the difference in features.")
    # Without a dimension, the reason is not the number of samples.
    if unknown and (measured.dimensions or not all_unknown):
        sentences.append(
            f"{unknown} of {clients} clients have too few samples to compare their features."
        )
    if "features" in kinds.order and measured.thin:
        sentences.append(
            f"Most clients have fewer than {THIN} samples for each of {measured.dimensions} "
            "dimensions, where features with heavy tails look as if they differed."
        )
    methods = ", ".join(MADE_FOR[kinds.dominant])
    sentences.append(f"Methods whose papers are about this: {methods}.")
    sentences.append(
        f"This is {sure}: the same verdict in {100 * agreement:.0f} % of {RESAMPLES} resamples "
        "of the clients."
    )
    return " ".join(sentences)


def _first_sentence(kinds: _Kinds, features_unknown: bool) -> str:
    text = SENTENCES[kinds.dominant]
    if features_unknown and kinds.dominant == "none":
        text = FEATURES_UNKNOWN
    others = kinds.order[1:]
    if others:
        text += f", and also in {' and '.join(others)}"
    return f"{text[0].upper()}{text[1:]}."
