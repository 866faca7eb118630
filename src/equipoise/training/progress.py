"""Progress of a fit: epochs, steps and losses so far."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.training.settings import Training


@dataclass
class Progress:
    """The epochs, steps and losses of a fit so far.

    Attributes:
        epoch: The number of epochs done.
        steps: The number of optimiser steps.
        skipped: The number of batches that were skipped.
        samples: The number of samples visited.
        total_loss: The sum of the loss over these samples.
    """

    epoch: int = 0
    steps: int = 0
    skipped: int = 0
    samples: int = 0
    total_loss: float = 0.0

    def add(self, samples: int, loss: float) -> None:
        """Count one step."""
        self.steps += 1
        self.samples += samples
        self.total_loss += loss * samples

    @property
    def mean_loss(self) -> float:
        """The mean loss over all samples visited."""
        return self.total_loss / max(1, self.samples)

    def is_over(self, training: Training) -> bool:
        """Return True if a fit has done its steps, or without a number of steps its epochs."""
        if training.steps:
            return self.steps >= training.steps
        return self.epoch >= training.epochs
