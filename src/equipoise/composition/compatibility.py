"""Compatibility of composed methods, with a reason for every refusal."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.method import Method, overridden
from equipoise.validation.names import nearest

SLOTS = ("weights", "inputs", "companion", "finish")


class IncompatibleComposition(ValueError):
    """A composition that would not compute what its parts promise."""


def label(guest: Method) -> str:
    """Return the name of a guest's branch in records."""
    return f"@{type(guest).__name__.lower()}"


def check(base: Method, guests: Mapping[str, Method]) -> None:
    """Refuse a composition that would not compute what its parts promise.

    Args:
        base: The method whose slots are filled.
        guests: The methods that fill them, by slot.

    Raises:
        IncompatibleComposition: With the reason.
        UnknownName: If there is no such slot.
    """
    for slot, guest in guests.items():
        if slot not in SLOTS:
            raise nearest("slot", slot, list(SLOTS))
        if any(label(other) == label(guest) and other != guest for other in guests.values()):
            raise IncompatibleComposition(
                f"{guest.title} stands in two slots with different settings, but has one name in "
                "records; give both the same"
            )
        reason = _REASONS[slot](base, guest, guests)
        if reason is not None:
            raise IncompatibleComposition(f"{slot}={guest.title}() on {base.title}(): {reason}")


def _why_not_weights(base: Method, guest: Method, guests: Mapping[str, Method]) -> str | None:
    if not base.weighs:
        return "its round never weighs replies, so a rule would be ignored"
    if not base.uploads_model:
        return "the rule measures the uploaded model, but this method uploads none"
    if overridden(base, "update") and not base.composable_update:
        return "its update is derived for its own weights; others would break it"
    if not guest.composable_weights:
        return (
            "it has no weight rule that stands without its own client or update; "
            "take one that has, such as FedEquilibria or CoReFed"
        )
    # A class that inherits its rule, or the statement that the rule stands alone, says nothing
    # about its own client and update.
    owner = next(kind for kind in type(guest).__mro__ if "weights" in vars(kind))
    if owner is not type(guest):
        instead = "FedAvg" if owner is Method else owner.__name__
        return (
            f"its weight rule is inherited from {owner.__name__}; give {instead} as weights instead"
        )
    if "composable_weights" not in vars(owner):
        return (
            "only the class it inherits from says that its rule stands alone; "
            "if its own does too, write composable_weights = True in it"
        )
    return None


def _why_not_inputs(base: Method, guest: Method, guests: Mapping[str, Method]) -> str | None:
    others = [base, *(other for slot, other in guests.items() if slot != "inputs")]
    if not overridden(guest, "inputs"):
        return "it does not change inputs"
    if overridden(guest, "observe") and guest not in others[1:]:
        return (
            "its inputs follow from what it observes in a round, which this slot never calls; "
            "give it as companion, too"
        )
    for other in others:
        if "validation" in other.needs:
            return (
                f"{other.title} measures models on validation data at the server, where inputs "
                "are not changed; its numbers would be wrong"
            )
    return None


def _why_not_companion(base: Method, guest: Method, guests: Mapping[str, Method]) -> str | None:
    if not overridden(guest, "observe"):
        return "it remembers nothing that it could serve alongside another method"
    if not base.uploads_model:
        return "it remembers uploaded models, but this method uploads none"
    needed = [name for name in ("before", "after") if overridden(guest, name)]
    if needed and guests.get("weights") != guest:
        return (
            f"it remembers what its {' and '.join(needed)} measured, which only the slot weights "
            "asks for; give it as weights, too"
        )
    return None


def _why_not_finish(base: Method, guest: Method, guests: Mapping[str, Method]) -> str | None:
    if not guest.composable_finish:
        return (
            "it has no end that stands on the rounds of another method; "
            "take one that has, such as Poise or Finetune"
        )
    if not base.shares_model:
        return "its clients share nothing, so there is no model that could be made one's own"
    if type(base) is type(guest):
        return "it ends so already; set its own parameters"
    if guest.uses_validation and base.held_out_rounds(rounds=1) is not None:
        return (
            "it relies on validation data that no model has seen, but this method trains on them; "
            "set fold or validation of this method to false"
        )
    return None


_REASONS = {
    "weights": _why_not_weights,
    "inputs": _why_not_inputs,
    "companion": _why_not_companion,
    "finish": _why_not_finish,
}
