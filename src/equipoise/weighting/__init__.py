"""Rules that turn numbers about clients into their shares of an average."""

from .clusters import clusters
from .largest import largest
from .likeness import batch_losses, loss_divergence
from .mixtures import log_likelihoods, mixture_weights, on_simplex, posterior_mean, simplex_grid
from .participation import participation_alignment, participation_frequency, participation_window
from .shares import drift_shares, hybrid, trifreqs
from .simplex import cosines, min_norm, min_norm_box

__all__ = [
    "batch_losses",
    "clusters",
    "cosines",
    "drift_shares",
    "hybrid",
    "largest",
    "log_likelihoods",
    "loss_divergence",
    "min_norm",
    "min_norm_box",
    "mixture_weights",
    "on_simplex",
    "participation_alignment",
    "participation_frequency",
    "participation_window",
    "posterior_mean",
    "simplex_grid",
    "trifreqs",
]
