"""The slots of one method filled by others."""

from equipoise.composition.compatibility import SLOTS, IncompatibleComposition
from equipoise.composition.composed import (
    Composed,
    compose,
    finishes,
    guest_named,
    parts,
    served_names,
    step_name,
)

__all__ = [
    "SLOTS",
    "Composed",
    "IncompatibleComposition",
    "compose",
    "finishes",
    "guest_named",
    "parts",
    "served_names",
    "step_name",
]
