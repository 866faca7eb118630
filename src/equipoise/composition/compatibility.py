"""Which compositions would do what they say; the others are refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.method import Method, overridden
from equipoise.validation.names import nearest

SLOTS = ("weights", "inputs", "companion", "finish")


class IncompatibleComposition(ValueError):
    """A composition that would not do what it says."""


def label(guest: Method) -> str:
    """The name of a guest's branch in records."""
    return f"@{type(guest).__name__.lower()}"


def check(base: Method, guests: Mapping[str, Method]) -> None:
    """Refuse, with the reason, a composition that would not do what it says."""
    for slot, guest in guests.items():
        if slot not in SLOTS:
            raise nearest("slot", slot, list(SLOTS))
        if any(label(other) == label(guest) and other != guest for other in guests.values()):
            raise IncompatibleComposition(
                f"{guest.title} stands in two slots with different settings, but has one name in records; give both the same"
            )
        reason = _refusal(base, slot, guest, guests)
        if reason:
            raise IncompatibleComposition(f"{slot}={guest.title}() on {base.title}(): {reason}")


def _refusal(base: Method, slot: str, guest: Method, guests: Mapping[str, Method]) -> str | None:
    elsewhere = [other for where, other in guests.items() if where != slot]
    if slot == "weights":
        if not base.weighs:
            return "its round never weighs replies, so a rule would be ignored"
        if not base.uploads_model:
            return "the rule measures the uploaded model, but this method uploads none"
        if overridden(base, "update") and not base.composable_update:
            return "its update is derived for its own weights; others would break it"
        return _no_rule(guest)
    if slot == "inputs":
        if not overridden(guest, "inputs"):
            return "it does not change inputs"
        if overridden(guest, "observe") and guest not in elsewhere:
            return "its inputs follow from what it observes in a round, which this slot never calls; give it as companion, too"
        judge = next((part for part in (base, *elsewhere) if "validation" in part.needs), None)
        if judge is not None:
            return f"{judge.title} measures models on validation data at the server, where inputs are not changed; its numbers would be wrong"
    if slot == "companion":
        if not overridden(guest, "observe"):
            return "it remembers nothing that it could serve alongside another method"
        if not base.uploads_model:
            return "it remembers uploaded models, but this method uploads none"
        needed = [name for name in ("before", "after") if overridden(guest, name)]
        if needed and guests.get("weights") != guest:
            return f"it remembers what its {' and '.join(needed)} measured, which only the slot weights asks for; give it as weights, too"
    if slot == "finish":
        if not guest.composable_finish:
            return "it has no end that stands on the rounds of another method; take one that has, such as Poise or Finetune"
        if not base.shares_model:
            return "its clients share nothing, so there is no model that could be made one's own"
        if type(base) is type(guest):
            return "it ends so already; set its own parameters"
    return None


def _no_rule(guest: Method) -> str | None:
    """Why a guest has no weight rule to lend. What its class inherited says nothing of its own: neither the rule nor that it stands alone."""
    if not guest.composable_weights:
        return "it has no weight rule that stands without its own client or update; take one that has, such as FedEquilibria or CoReFed"
    rule = next(kind for kind in type(guest).__mro__ if "weights" in vars(kind))
    if rule is not type(guest):
        return f"its weight rule is inherited from {rule.__name__}; give {'FedAvg' if rule is Method else rule.__name__} as weights instead"
    if "composable_weights" not in vars(rule):
        return "only the class it inherits from says that its rule stands alone; if its own does too, write composable_weights = True in it"
    return None
