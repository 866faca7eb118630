"""Clinical measures from counts: how many samples of a class, and of all others, a model scored at 0, 1, ..., 100 %.

That is what a client sends in place of scores. A table of counts is an array (classes, 4, 101); for every class it counts, by the score of that class
in whole per cent, its own samples (POSITIVES), all others (NEGATIVES), and of both those for which the model named this class (FOUND, MISTAKEN).
Measures are those of `metrics.clinical`, of scores rounded to whole per cent: two samples in one bin count as a tie. With two classes they are
those of the second one, with more the plain mean over the classes that occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.intervals import Interval, percentile_interval
from equipoise.metrics.performance import classified
from equipoise.streams import stream
from equipoise.validation.arrays import Array, float64

BINS = 101
POSITIVES, NEGATIVES, FOUND, MISTAKEN = range(4)
MEASURES = (
    "auroc",
    "auprc",
    "balanced_accuracy",
    "sensitivity_at_specificity",
    "calibration_error",
)
CONFIDENCES = 15  # bins of the calibration error, as in `clinical.calibration_error`
Counts = NDArray[np.int64]


def counted(probabilities: ArrayLike, labels: ArrayLike) -> Counts:
    """The table of counts of some samples; probabilities are (samples, classes).

    >>> table = counted([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])
    >>> table.shape, int(table[1, POSITIVES, 80]), table[1, NEGATIVES, [10, 60]].tolist(), int(table[1, MISTAKEN].sum())
    ((2, 4, 101), 1, [1, 1], 1)
    """
    p, y = classified(probabilities, labels, "probabilities")
    percent = np.rint(100 * p)
    if not ((percent >= 0) & (percent < BINS)).all():  # nor is NaN
        raise ValueError("probabilities: expected numbers from 0 to 1; take softmax(logits)")
    bins, called = percent.astype(np.int64), p.argmax(1)
    table = np.zeros((p.shape[1], 4, BINS), np.int64)
    for c in range(p.shape[1]):
        own, named = y == c, called == c
        for row, chosen in (
            (POSITIVES, own),
            (NEGATIVES, ~own),
            (FOUND, own & named),
            (MISTAKEN, ~own & named),
        ):
            table[c, row] = np.bincount(bins[chosen, c], minlength=BINS)
    return table


def total(table: Counts) -> int:
    """How many samples were counted."""
    return int(table[0, [POSITIVES, NEGATIVES]].sum())


def fault(table: Any, classes: int, samples: int | None = None) -> str | None:
    """What is wrong with a table that came from elsewhere; None if it could be one."""
    found = np.asarray(table)
    if found.shape != (classes, 4, BINS) or found.dtype.kind not in "iu" or (found < 0).any():
        return f"expected counts of shape ({classes}, 4, {BINS}), got {found.dtype} of shape {found.shape}"
    sums = found.sum(-1)
    whole = sums[:, POSITIVES] + sums[:, NEGATIVES]
    alike = (
        whole.min() == whole.max() == sums[:, POSITIVES].sum() == sums[:, [FOUND, MISTAKEN]].sum()
    )
    fits = (found[:, FOUND] <= found[:, POSITIVES]).all() and (
        found[:, MISTAKEN] <= found[:, NEGATIVES]
    ).all()
    if not alike or not fits or (samples is not None and whole.max() != samples):
        return f"its counts contradict each other, or the {samples} samples they are of"
    return None


def measures(table: ArrayLike) -> dict[str, Array]:
    """The measures of one table, or of several along leading axes; NaN where one does not exist.

    >>> found = measures(counted([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.5, 0.5]], [0, 1, 0, 1]))
    >>> {name: round(float(value), 4) for name, value in found.items() if name != "calibration_error"}
    {'auroc': 0.75, 'auprc': 0.8333, 'balanced_accuracy': 0.5, 'sensitivity_at_specificity': 0.5}
    """
    n = float64(table)
    classes = n.shape[-3]
    chosen = [1] if classes == 2 else range(classes)
    with np.errstate(invalid="ignore", divide="ignore"):
        ranked = [_of_ranks(n[..., c, POSITIVES, :], n[..., c, NEGATIVES, :]) for c in chosen]
        found = {
            name: _mean(np.stack([one[name] for one in ranked]))
            for name in ("auroc", "auprc", "sensitivity_at_specificity")
        }
        found["balanced_accuracy"] = _mean(
            np.stack(
                [
                    n[..., c, FOUND, :].sum(-1) / n[..., c, POSITIVES, :].sum(-1)
                    for c in range(classes)
                ]
            )
        )
    found["calibration_error"] = _calibration_error(n)
    return {name: found[name] for name in MEASURES}


def resolution(table: ArrayLike) -> float:
    """How far the AUROC of the scores themselves may be from that of their counts: half of the pairs that share a bin.

    >>> resolution(counted([[0.2, 0.8], [0.201, 0.799]], [1, 0]))
    0.5
    """
    n = float64(table)
    chosen = [1] if len(n) == 2 else range(len(n))
    pairs = [(n[c, POSITIVES], n[c, NEGATIVES]) for c in chosen]
    halves = [float(p @ q / (2 * p.sum() * q.sum())) for p, q in pairs if p.sum() and q.sum()]
    return float(np.mean(halves)) if halves else float("nan")


def intervals(
    table: Counts, seed: int = 0, level: float = 0.95, draws: int = 1000
) -> dict[str, Interval]:
    """Every measure with its percentile interval over other test sets of this size, drawn from the counts.

    With more than two classes each class is drawn by itself, since it is not known which samples stand behind two counts.
    """
    drawn, value = measures(redrawn(table, seed, draws)), measures(table)
    return {name: percentile_interval(float(value[name]), drawn[name], level) for name in MEASURES}


def redrawn(table: Counts, seed: int, draws: int) -> Counts:
    """Tables of as many samples, drawn with replacement: (draws, classes, 4, bins)."""
    generator, classes = stream(seed, "curves"), len(table)
    out = np.zeros((draws, classes, 4, BINS), np.int64)
    for c in [1] if classes == 2 else range(classes):
        # Four kinds of samples that exclude each other: positives found and missed, negatives mistaken and cleared.
        cells = np.stack(
            [
                table[c, FOUND],
                table[c, POSITIVES] - table[c, FOUND],
                table[c, MISTAKEN],
                table[c, NEGATIVES] - table[c, MISTAKEN],
            ]
        ).ravel()
        filled = np.flatnonzero(cells)
        samples = np.zeros((draws, 4 * BINS), np.int64)
        if len(filled):
            samples[:, filled] = generator.multinomial(
                int(cells.sum()), cells[filled] / cells.sum(), draws
            )
        found, missed, mistaken, cleared = samples.reshape(draws, 4, BINS).swapaxes(0, 1)
        out[:, c] = np.stack([found + missed, mistaken + cleared, found, mistaken], axis=1)
        if classes == 2:  # the other class sees the same samples from the other end
            out[:, 0] = np.stack([mistaken + cleared, found + missed, cleared, missed], axis=1)[
                ..., ::-1
            ]
    return out


def pooled(tables: Sequence[Counts]) -> Counts:
    """All samples of several tables in one."""
    return np.asarray(np.sum(tables, axis=0), dtype=np.int64)


def majority(table: Counts) -> float:
    """The share of the most frequent class: the accuracy of always naming it."""
    return float(table[:, POSITIVES].sum(-1).max() / total(table)) if total(table) else float("nan")


def roc(positives: ArrayLike, negatives: ArrayLike) -> tuple[Array, Array]:
    """1 - specificity and sensitivity as the threshold falls from above 100 % to 0 %.

    >>> [values.tolist() for values in (x[[0, 1, 51, 101]] for x in roc(*counted([[0.5, 0.5], [0, 1]], [0, 1])[1, :2]))]
    [[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    """
    return tuple(
        np.append(0.0, _falling(n)) / max(1.0, float(float64(n).sum()))
        for n in (negatives, positives)
    )  # type: ignore[return-value]


def calibration(
    positives: ArrayLike, negatives: ArrayLike, groups: int = 10
) -> list[tuple[float, float, int]]:
    """For every tenth of the scores that occurs: the mean score, the share of positives, and how many samples it is of."""
    p, n, score = float64(positives), float64(negatives), np.arange(BINS) / 100
    group = np.minimum(np.arange(BINS) * groups // 100, groups - 1)
    found = []
    for g in range(groups):
        here = group == g
        count = float((p + n)[here].sum())
        if count:
            found.append(
                (
                    float(((p + n) * score)[here].sum() / count),
                    float(p[here].sum() / count),
                    int(count),
                )
            )
    return found


def at_threshold(positives: ArrayLike, negatives: ArrayLike, percent: int) -> dict[str, float]:
    """What calling a sample positive from this score on would give: sensitivity, specificity, PPV and NPV; NaN where nothing is called so."""
    p, n = float64(positives), float64(negatives)
    true, false = float(p[percent:].sum()), float(n[percent:].sum())
    missed, cleared = float(p[:percent].sum()), float(n[:percent].sum())
    ratios = {
        "sensitivity": (true, true + missed),
        "specificity": (cleared, cleared + false),
        "ppv": (true, true + false),
        "npv": (cleared, cleared + missed),
    }
    return {name: part / whole if whole else float("nan") for name, (part, whole) in ratios.items()}


def _falling(counts: ArrayLike) -> Array:
    """How many samples have at least a score, from the highest score down."""
    return np.asarray(np.cumsum(float64(counts)[..., ::-1], axis=-1), dtype=np.float64)


def _of_ranks(positives: Array, negatives: Array) -> dict[str, Array]:
    true, false = _falling(positives), _falling(negatives)
    p, n, own = true[..., -1:], false[..., -1:], positives[..., ::-1]
    auroc = (own * (n - false + negatives[..., ::-1] / 2)).sum(-1) / (p * n)[..., 0]
    precision = np.nan_to_num(true / (true + false))
    allowed = (1 - 0.9 + 1e-9) * n
    sensitivity = np.where(false <= allowed, true, 0).max(-1) / p[..., 0]
    exists = (p > 0)[..., 0] & (n > 0)[..., 0]
    found = {
        "auroc": auroc,
        "auprc": (precision * own).sum(-1) / p[..., 0],
        "sensitivity_at_specificity": sensitivity,
    }
    return {name: np.where(exists, value, np.nan) for name, value in found.items()}


def _calibration_error(n: Array) -> Array:
    """Of the class that was named: |share of right answers - confidence|, averaged over bins of confidence."""
    right, named = n[..., FOUND, :].sum(-2), (n[..., FOUND, :] + n[..., MISTAKEN, :]).sum(-2)
    gap = right - named * np.arange(BINS) / 100
    group = np.maximum((np.arange(BINS) * CONFIDENCES + 99) // 100 - 1, 0)
    parts = [np.abs(gap[..., group == g].sum(-1)) for g in range(CONFIDENCES)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sum(parts, axis=0) / named.sum(-1), dtype=np.float64)


def _mean(values: Array) -> Array:
    """Over the first axis, of what exists; NaN where nothing does."""
    known = ~np.isnan(values)
    count = known.sum(0)
    return np.asarray(
        np.where(count > 0, np.where(known, values, 0).sum(0) / np.maximum(count, 1), np.nan),
        dtype=np.float64,
    )
