"""Models, each split into features and head, by name."""

from equipoise.models.generator import Generator
from equipoise.models.mixture import Mixture
from equipoise.models.model import Model, Outputs
from equipoise.models.network import Network, shape_after, wrap
from equipoise.models.registry import build, describe, names

__all__ = [
    "Generator",
    "Mixture",
    "Model",
    "Network",
    "Outputs",
    "build",
    "describe",
    "names",
    "shape_after",
    "wrap",
]
