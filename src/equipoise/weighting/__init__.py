"""Aggregation weights as pure functions of numbers about clients."""

from equipoise.weighting.clusters import clusters
from equipoise.weighting.largest import largest
from equipoise.weighting.likeness import batch_losses, loss_divergence
from equipoise.weighting.mixtures import (
    log_likelihoods,
    mixture_weights,
    on_simplex,
    posterior_mean,
    simplex_grid,
)
from equipoise.weighting.participation import (
    participation_alignment,
    participation_frequency,
    participation_window,
)
from equipoise.weighting.shares import drift_shares, hybrid, trifreqs
from equipoise.weighting.simplex import cosines, min_norm, min_norm_box

__all__ = [
    "batch_losses",
    "clusters",
    "cosines",
    "drift_shares",
    "hybrid",
    "label_chances",
    "largest",
    "log_likelihoods",
    "loss_divergence",
    "min_norm",
    "min_norm_box",
    "mixture_weights",
    "number_chances",
    "on_simplex",
    "participation_alignment",
    "participation_frequency",
    "participation_window",
    "posterior_mean",
    "simplex_grid",
    "trifreqs",
]
