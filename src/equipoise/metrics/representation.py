"""Distance of a client's model from the global one (CoRe-Fed, section 4.1).

It is measured in parameters or in mean embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.undefined import undefined
from equipoise.validation.arrays import Array, float64

Point = ArrayLike | Mapping[str, ArrayLike]


def angle_between(first: Point, second: Point) -> float:
    """Return the angle in radians between two vectors, D_Cosine of CoRe-Fed.

    Mappings of arrays with the same names are compared, too. For parameters pass trainable ones
    only: a batch counter would dwarf every weight. It equals arccos of the cosine, in a form
    (Kahan's) that is exact for equal directions and needs no clamp.

    >>> round(angle_between([1, 0], [1, 1]), 4)
    0.7854
    >>> angle_between({"w": [[1, 2]], "b": [3]}, {"b": [6], "w": [[2, 4]]})
    0.0
    """
    a, b = _flat(first, second)
    length_a, length_b = np.linalg.norm(a), np.linalg.norm(b)
    if not (np.isfinite(length_a) and np.isfinite(length_b)):
        return undefined("the angle is undefined: a vector has entries that are not finite")
    if length_a == 0 or length_b == 0:
        return undefined("the angle is undefined: a vector is zero (or empty) and has no direction")
    a, b = a / length_a, b / length_b
    return float(2 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b)))


def manhattan(first: Point, second: Point) -> float:
    """Return the sum of absolute differences of two vectors, D_Manhattan of CoRe-Fed.

    Mappings of arrays with the same names are compared, too.

    >>> manhattan([1, 2, 3], [1, 0, 4])
    3.0
    """
    a, b = _flat(first, second)
    return float(np.abs(a - b).sum())


def parameter_distances(client: Point, reference: Point) -> dict[str, float]:
    """Return both distances of a client's parameters, or mean embedding, from the global ones.

    >>> parameter_distances({"w": [3, 0]}, {"w": [1, 0]})
    {'angle': 0.0, 'manhattan': 2.0}
    """
    return {"angle": angle_between(client, reference), "manhattan": manhattan(client, reference)}


def divergence(clients: Sequence[Point], reference: Point) -> dict[str, float]:
    """Return mean angle and mean Manhattan distance of the clients' vectors from a reference.

    In parameter space pass the trained client models and the new global model; in embedding space
    the mean, un-normalised features of each client's data under each. CoRe-Fed's printed values fit
    embeddings.

    >>> divergence([[1, 0], [2, 0]], [1, 0])
    {'angle': 0.0, 'manhattan': 0.5}
    """
    if not len(clients):
        nothing = undefined("divergence is undefined: there are no clients")
        return {"angle": nothing, "manhattan": nothing}
    rows = [parameter_distances(client, reference) for client in clients]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def feature_similarity(
    real: ArrayLike, real_labels: ArrayLike, made: ArrayLike, made_labels: ArrayLike, classes: int
) -> Array:
    """Return for each class the mean cosine between real and generated features (KDIA, Figure 7).

    NaN where a class lacks one of them. Features of convolutions (n, channels, height, width) are
    first averaged over space.

    Args:
        real: Features of real samples.
        real_labels: Their labels.
        made: Generated features.
        made_labels: Their labels.
        classes: The number of classes.

    >>> feature_similarity([[1, 0], [0, 2]], [0, 1], [[3, 0], [1, 1]], [0, 0], classes=2).round(3)
    array([0.854,   nan])
    """
    means = []
    for features, labels in ((real, real_labels), (made, made_labels)):
        flat, labels = float64(features), np.asarray(labels)
        flat = flat.reshape(*flat.shape[:2], -1).mean(2)
        unit = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
        # the mean over pairs of products is the product of means
        means.append(
            np.stack(
                [
                    unit[labels == c].mean(0)
                    if (labels == c).any()
                    else np.full(flat.shape[1], np.nan)
                    for c in range(classes)
                ]
            )
        )
    return np.asarray((means[0] * means[1]).sum(1))


def _flat(first: Point, second: Point) -> tuple[Array, Array]:
    """Return both as flat vectors, with entries matched by name and shape.

    Equal sizes alone would compare different weights.
    """
    if isinstance(first, Mapping) != isinstance(second, Mapping):
        raise TypeError(
            "expected two vectors or two mappings of arrays, got one of each; pass the same kind "
            "twice"
        )
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if unmatched := sorted(first.keys() ^ second.keys()):
            raise ValueError(
                f"expected the same names in both, but {unmatched} are in one only; compare "
                "models of one architecture"
            )
        pairs = [_flat(first[name], second[name]) for name in first]
        return np.concatenate([a for a, _ in pairs] or [np.empty(0)]), np.concatenate(
            [b for _, b in pairs] or [np.empty(0)]
        )
    a, b = float64(first), float64(second)  # type: ignore[arg-type]
    if a.shape != b.shape:
        raise ValueError(
            f"expected arrays of one shape, got {a.shape} and {b.shape}; compare models of one "
            "architecture"
        )
    return a.ravel(), b.ravel()
