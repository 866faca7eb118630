"""Losses and measurements of clients as pure functions: arrays or tensors in, the same out."""

from equipoise.losses.contrast import model_contrast, separation
from equipoise.losses.distillation import disagreement, distillation_loss, focal_loss, kl_divergence
from equipoise.losses.embeddings import (
    alignment,
    cohort_contrast,
    embedding_contrast,
    embedding_gap,
    embedding_target,
    mean_direction,
    refined_alignment,
)
from equipoise.losses.energies import energy, trust
from equipoise.losses.fisher import fisher_diagonal
from equipoise.losses.offsets import (
    class_offsets,
    has_offsets,
    hazard_offsets,
    mean_offset,
    offsets,
)
from equipoise.losses.prototypes import class_means

__all__ = [
    "alignment",
    "class_means",
    "class_offsets",
    "cohort_contrast",
    "disagreement",
    "distillation_loss",
    "embedding_contrast",
    "embedding_gap",
    "embedding_target",
    "energy",
    "fisher_diagonal",
    "focal_loss",
    "has_offsets",
    "hazard_offsets",
    "kl_divergence",
    "mean_direction",
    "mean_offset",
    "model_contrast",
    "offsets",
    "refined_alignment",
    "separation",
    "trust",
]
