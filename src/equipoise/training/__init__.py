"""Training at a client: settings, optimiser steps, and the workbench that lends networks."""

from equipoise.training.settings import Training
from equipoise.training.steps import Correction, GradientHook, Stepper, backward, minimise

__all__ = ["Correction", "GradientHook", "Stepper", "Training", "backward", "minimise"]
