"""Models, each split into features and head, by name."""

from .generator import Generator
from .mixture import Mixture
from .network import Network, shape_after, wrap
from .registry import build, describe, names

__all__ = ["Generator", "Mixture", "Network", "build", "describe", "names", "shape_after", "wrap"]
