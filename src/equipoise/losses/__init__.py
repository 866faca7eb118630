"""What clients minimise and measure, as pure functions: arrays or tensors in, the same out."""

from .contrast import model_contrast
from .distillation import distillation_loss, focal_loss, kl_divergence
from .embeddings import alignment, cohort_contrast, embedding_contrast, embedding_target, mean_direction, refined_alignment
from .energies import energy, trust
from .fisher import fisher_diagonal
from .offsets import class_offsets
from .prototypes import class_means

__all__ = [
    "alignment",
    "class_means",
    "class_offsets",
    "cohort_contrast",
    "distillation_loss",
    "embedding_contrast",
    "embedding_target",
    "energy",
    "fisher_diagonal",
    "focal_loss",
    "kl_divergence",
    "mean_direction",
    "model_contrast",
    "refined_alignment",
    "trust",
]
