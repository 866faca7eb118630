"""The slots of one method filled by others."""

from equipoise.composition.composed import (
    Composed,
    compose,
    finishes,
    guest_named,
    parts,
    step_name,
)
from equipoise.composition.soundness import SLOTS, Unsound

__all__ = [
    "SLOTS",
    "Composed",
    "Unsound",
    "compose",
    "finishes",
    "guest_named",
    "parts",
    "step_name",
]
