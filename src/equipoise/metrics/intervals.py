"""Uncertainty of a number: over seeds, and over finite test sets.

The two answer different questions. Seeds: would another run of the method give this number? Test
sets: would another sample of the same clients' patients give it? Neither covers other clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import UndefinedMetric, undefined, what_is_missing
from equipoise.streams import stream
from equipoise.validation.arrays import Array, float64, vector, vectors

Statistic = Callable[..., Mapping[str, float]]

# Of these names a statistic over clients has no valid percentile interval.
EXTREMES = ("worst", "best", "min", "max", "worst_decile", "p10", "p90", "harmed", "std")
NO_PERCENTILES = (
    "no interval: redrawing test samples adds noise to noise, which moves extremes and the spread "
    "over clients outwards; take several seeds"
)
FEWEST_FOR_EXTREMES = 3
TOO_FEW_FOR_EXTREMES = "no interval: an extreme over clients needs three seeds"


@dataclass(frozen=True)
class Interval:
    """A number with its interval; `low` and `high` are None where there is none."""

    value: float
    low: float | None
    high: float | None
    std: float | None  # sample standard deviation (ddof 1) of the seeds or of the bootstrap draws
    count: int  # seeds or draws that counted
    # seeds or draws for which the number does not exist: never averaged in, always reported
    undefined: int = 0
    note: str = ""  # why there is no interval, if that needs saying


def over_seeds(
    values: ArrayLike, level: float = 0.95, *, extreme_step: float | None = None
) -> Interval:
    """Return the mean over seeds with Student's t interval; NaN seeds are counted apart.

    Fewer than two seeds give no interval. An extreme over clients (worst, p10, p90) often takes
    the same value in several seeds, for accuracies move in whole test samples, and then t
    intervals are too short.

    Args:
        values: One value per seed.
        level: Level of the interval.
        extreme_step: For an extreme over clients, the smallest step it can take, such as one over
            the number of test samples; 0 if it moves continuously. Such an interval needs three
            seeds and is wider by half a step on both sides.

    >>> result = over_seeds([0.80, 0.82, 0.84])
    >>> round(result.value, 3), round(result.low, 3), round(result.high, 3), round(result.std, 3)
    (0.82, 0.77, 0.87, 0.02)
    >>> over_seeds([0.8, float("nan")])
    Interval(value=0.8, low=None, high=None, std=None, count=1, undefined=1, note='')
    """
    from scipy.special import stdtrit

    _check(level)
    x = vector(values)
    known = x[~np.isnan(x)]
    count, missing = len(known), len(x) - len(known)
    if not count:
        return Interval(
            undefined("the mean over seeds is undefined: no seed has a value"),
            None,
            None,
            None,
            0,
            missing,
        )
    mean = float(known.mean())
    if count == 1:
        return Interval(mean, None, None, None, count, missing)
    std = float(known.std(ddof=1))
    if extreme_step is not None and count < FEWEST_FOR_EXTREMES:
        return Interval(mean, None, None, std, count, missing, TOO_FEW_FOR_EXTREMES)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * std / np.sqrt(count)
    half += (extreme_step or 0.0) / 2
    return Interval(mean, float(mean - half), float(mean + half), std, count, missing)


def each_over_seeds(
    rows: Sequence[Mapping[str, float]], level: float = 0.95
) -> dict[str, Interval]:
    """Return `over_seeds` of every entry of a metric that is a mapping, one row per seed.

    >>> each_over_seeds([{"worst": -0.1}, {"worst": -0.3}])["worst"].value
    -0.2
    """
    return {
        name: over_seeds([row[name] for row in rows], level) for name in (rows[0] if rows else ())
    }


def bootstrap(
    statistic: Statistic,
    *samples: Sequence[ArrayLike] | Array,
    seed: int,
    level: float = 0.95,
    draws: int = 1000,
) -> dict[str, Interval]:
    """Return percentile intervals of a statistic of client means.

    Each client's test samples are drawn anew with replacement. With two arrays (alone, together) a
    client's sample is drawn for both at once, so their common luck cancels. A client with every
    sample right varies in no draw: then the interval is too short. It holds for averages over
    clients. Extremes and the spread (entries called worst, min, p10, harmed, std, ...) get no
    interval, and for the gain of a single client `gain_from_samples` has an exact test.

    Args:
        statistic: A function of the vectors of client means.
        *samples: One array per client each, with one number per test sample: correct or not, or a
            squared error.
        seed: The seed of the draws.
        level: The level of the interval.
        draws: The number of draws.

    >>> alone, together = [[1, 0, 1, 0], [1, 1, 0]], [[1, 1, 1, 0], [1, 1, 1]]
    >>> def mean_gain(a, t):
    ...     return {"gain": float((t - a).mean())}
    >>> gain = bootstrap(mean_gain, alone, together, seed=1)["gain"]
    >>> round(gain.value, 4), gain.low >= 0, gain.high <= 1
    (0.2917, True, True)
    """
    _check(level, draws)
    if len({len(rows) for rows in samples}) != 1 or not len(samples[0]):
        raise ValueError(
            "expected the same clients, at least one, for every model, got "
            f"{[len(rows) for rows in samples]} clients"
        )
    tables = [_table(position, rows) for position, rows in enumerate(zip(*samples, strict=True))]
    means = np.stack([table.mean(0) for table in tables], axis=1)
    redrawn = np.stack(
        [_resampled_means(table, draws, seed, position) for position, table in enumerate(tables)],
        axis=2,
    )
    return _percentiles(statistic, means, redrawn, level)


def bootstrap_counts(
    statistic: Statistic,
    *correct: ArrayLike,
    totals: ArrayLike,
    seed: int,
    level: float = 0.95,
    draws: int = 1000,
) -> dict[str, Interval]:
    """Return `bootstrap` where only the numbers of correct test samples are known.

    Several counts are drawn independently, because pairs are unknown: the interval is wider than
    that of `bootstrap` where both models fail on the same samples.

    >>> def mean_accuracy(a):
    ...     return {"mean": float(a.mean())}
    >>> mean = bootstrap_counts(mean_accuracy, [80, 45], totals=[100, 50], seed=1)["mean"]
    >>> round(mean.value, 4), mean.low < 0.85 < mean.high
    (0.85, True)
    """
    _check(level, draws)
    pairs = [vectors(right, totals, ("correct", "totals")) for right in correct]
    for right, n in pairs:
        if not (
            np.array_equal(right, right.round()) and np.all((right >= 0) & (right <= n) & (n >= 1))
        ):
            raise ValueError(
                "expected whole counts from 0 to each client's total, and totals of at least 1; "
                "multiply accuracies by totals and round"
            )
    means = np.stack([right / n for right, n in pairs])
    generators = (stream(seed, "bootstrap_counts", position) for position in range(len(pairs)))
    redrawn = np.stack(
        [
            g.binomial(n.astype(np.int64), right / n, (draws, len(n))) / n
            for g, (right, n) in zip(generators, pairs, strict=True)
        ],
        1,
    )
    return _percentiles(statistic, means, redrawn, level)


def between_client_variance(values: ArrayLike, sampling_variances: ArrayLike) -> dict[str, float]:
    """Return the variance between clients: observed, added by finite test sets, and the difference.

    Observed accuracies differ even between equal clients. The population variance of K values, each
    with an independent error of variance v_k, exceeds that of the true values by (1 - 1/K) mean(v)
    on average. Subtracting that is unbiased up to the floor at 0.

    >>> result = between_client_variance([0.7, 0.8, 0.9], [0.002, 0.002, 0.002])
    >>> {name: round(value, 6) for name, value in result.items()}
    {'raw': 0.006667, 'sampling': 0.001333, 'debiased': 0.005333}
    """
    x, v = vectors(values, sampling_variances, ("values", "sampling_variances"))
    if reason := what_is_missing(x, v):
        return dict.fromkeys(
            ("raw", "sampling", "debiased"),
            undefined(f"between-client variance is undefined: {reason}"),
        )
    if v.min() < 0:
        raise ValueError(
            f"sampling_variances: expected at least 0, got {v.min():g}; for accuracies use "
            "accuracy_variance"
        )
    raw, sampling = float(x.var()), float((1 - 1 / len(x)) * v.mean())
    return {"raw": raw, "sampling": sampling, "debiased": max(0.0, raw - sampling)}


def accuracy_variance(accuracies: ArrayLike, totals: ArrayLike) -> Array:
    """Return the unbiased sampling variance of each accuracy, a (1 - a) / (n - 1).

    NaN for a single test sample.

    >>> accuracy_variance([0.5, 1.0], [26, 10]).tolist()
    [0.01, 0.0]
    """
    a, n = vectors(accuracies, totals, ("accuracies", "totals"))
    if ((a < 0) | (a > 1)).any() or (n < 1).any():
        raise ValueError(
            "expected accuracies from 0 to 1 and totals of at least 1; divide percentages by 100"
        )
    return np.where(n > 1, a * (1 - a) / np.maximum(n - 1, 1), np.nan)


def _table(position: int, rows: Iterable[ArrayLike]) -> Array:
    """Return one client's test samples as rows, with a column per model."""
    columns = [float64(row).ravel() for row in rows]
    sizes = {len(column) for column in columns}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            "expected the same test samples, at least one, for every model of the client at "
            f"place {position}, got {sorted(sizes)}"
        )
    return np.stack(columns, axis=1)


def _resampled_means(table: Array, draws: int, seed: int, position: int) -> Array:
    """Return the column means of `draws` resamplings of the rows, (draws, columns).

    Equal rows are drawn together, which is the same and faster.
    """
    kinds, counts = np.unique(table, axis=0, return_counts=True)
    generator, total = stream(seed, "bootstrap", position), len(table)
    # bounds memory for real-valued rows, which are all different
    block = max(1, 1_000_000 // len(kinds))
    sizes = [min(block, draws - start) for start in range(0, draws, block)]
    return np.concatenate(
        [generator.multinomial(total, counts / total, size) @ kinds / total for size in sizes]
    )


def _percentiles(
    statistic: Statistic, means: Array, redrawn: Array, level: float
) -> dict[str, Interval]:
    value = statistic(*means)
    with warnings.catch_warnings():
        # counted below; a thousand warnings would hide the one that matters
        warnings.simplefilter("ignore", UndefinedMetric)
        rows = [statistic(*draw) for draw in redrawn]
    intervals = {}
    for name in value:
        drawn = np.array([row[name] for row in rows])
        interval = percentile_interval(float(value[name]), drawn, level)
        if name in EXTREMES:
            interval = replace(interval, low=None, high=None, note=NO_PERCENTILES)
        intervals[name] = interval
    return intervals


def percentile_interval(value: float, drawn: Array, level: float) -> Interval:
    """Return a value with the percentiles of what was drawn around it."""
    known = drawn[~np.isnan(drawn)]
    missing = len(drawn) - len(known)
    if np.isnan(value) or len(known) < 2:
        return Interval(value, None, None, None, len(known), missing)
    low, high = np.percentile(known, [50 * (1 - level), 50 * (1 + level)])
    return Interval(value, float(low), float(high), float(known.std(ddof=1)), len(known), missing)


def _check(level: float, draws: int = 2) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level: expected a share between 0 and 1 such as 0.95, got {level:g}")
    if draws < 2:
        raise ValueError(f"draws: expected at least 2, and 1000 for a usable interval, got {draws}")
