"""How a client trains: its settings, the one step of every optimiser, and the workbench that lends networks to a step."""

from equipoise.training.settings import Training
from equipoise.training.steps import GradientHook, Stepper, backward, minimise

__all__ = ["GradientHook", "Stepper", "Training", "backward", "minimise"]
