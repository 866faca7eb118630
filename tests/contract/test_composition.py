"""Every compatible pair of client side and weight rule, or of client side and companion, runs.

Incompatible pairs are refused with a reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import methods
from equipoise.composition import (
    IncompatibleComposition,
    compose,
    finishes,
    guest_named,
    parts,
    step_name,
)
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.finetune import Finetune
from tests.helpers.runs import assert_same, everything, finite, played, settings
from tests.helpers.slots import ByLoss, Shifted, Slow

BASES = [
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedakd",
    "kdia",
    "corefed",
    "fedequilibria",
    "fedekd",
    "ditto",
    "fedas",
]
BASES += [
    "moon",
    "fedgkd",
    "fedproto",
    "fedmpr",
    "fedrdn",
    "feddisco",
    "qfedavg",
    "pa3fed",
    "fedlsa",
    "fedtype",
]
RULES = ["fedavg", "fedequilibria", "corefed", "fedas", "feddisco", "qfedavg", "pa3fed", "fedheal"]
# settings with which a rule stands without its own client and update
ALONE = {"fedheal": {"masks": False}}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.quick_cases("fedavg", "fedakd", "ditto")
def test_a_weight_rule_on_another_client_side(base: str, rule: str, tmp_path: Path) -> None:
    own = settings(base)["method"]
    run = played(
        settings({**own, "weights": {"name": rule, **ALONE.get(rule, {})}}, rounds=2),
        tmp_path / "run",
    )
    finite(run)
    assert {row["round"] for row in run.weights()} == {1, 2}


@pytest.mark.parametrize(
    "base",
    [
        "fedavg",
        "fedprox",
        "fedavgm",
        "scaffold",
        "fedakd",
        "corefed",
        "fedequilibria",
        "fedekd",
        "ditto",
        "fedas",
        "feddyn",
        "feddc",
    ],
)
@pytest.mark.quick_cases("fedavg", "fedakd", "ditto")
def test_a_teacher_beside_another_method_changes_nothing_and_is_served(
    base: str, tmp_path: Path
) -> None:
    alone = played(settings(base, rounds=2), tmp_path / "alone")
    both = played(
        settings(
            {**settings(base)["method"], "companion": {"name": "kdia", "lambda_gen": 0.0}}, rounds=2
        ),
        tmp_path / "both",
    )
    assert "teacher" in both.models() and "teacher" not in alone.models()
    found = everything(both)
    assert_same(
        everything(alone), {name: value for name, value in found.items() if "@kdia" not in name}
    )
    assert any("@kdia" in name for name in found)


@pytest.mark.parametrize("base", [*BASES, "standalone", "scaffold"])
@pytest.mark.quick_cases("fedavg", "fedakd", "ditto")
def test_inputs_of_another_method(base: str, tmp_path: Path) -> None:
    own = settings(base)["method"]
    plain = played(settings(own, rounds=2), tmp_path / "plain")
    run = played(settings({**own, "inputs": {"name": "fedrdn"}}, rounds=2), tmp_path / "run")
    finite(run)
    assert (run.final("loss") == plain.final("loss")) == (base == "fedrdn")


def test_a_rule_of_its_own_gives_the_same_run(tmp_path: Path) -> None:
    """FedAvg weighed by FedEquilibria is FedEquilibria: its client side is FedAvg's."""
    composed = played(
        settings({"name": "fedavg", "weights": {"name": "fedequilibria", "t": 0.4}}),
        tmp_path / "composed",
    )
    whole = played(settings({"name": "fedequilibria", "t": 0.4}), tmp_path / "whole")
    assert [row["share"] for row in composed.weights()] == [row["share"] for row in whole.weights()]
    assert_same({k: v for k, v in everything(composed).items() if "@" not in k}, everything(whole))


@pytest.mark.parametrize(
    ("base", "slot", "guest", "reason"),
    [
        ("standalone", "weights", "fedequilibria", "never weighs"),
        ("scaffold", "weights", "fedequilibria", "derived for its own weights"),
        ("feddyn", "weights", "fedas", "derived for its own weights"),
        ("feddc", "weights", "fedas", "derived for its own weights"),
        ("pfedck", "weights", "fedas", "derived for its own weights"),
        ("fedavg", "weights", "scaffold", "no weight rule that stands"),
        ("fedavg", "weights", "fedakd", "no weight rule that stands"),
        ("fedavg", "weights", "ditto", "no weight rule that stands"),
        ("fedavg", "weights", "fedheal", "no weight rule that stands"),
        ("fedavg", "weights", "fedmgda", "no weight rule that stands"),
        ("fedheal", "weights", "fedavg", "derived for its own weights"),
        ("fedmgda", "weights", "fedavg", "derived for its own weights"),
        ("fedavg", "weights", "fedgkd", "no weight rule that stands"),
        ("fedavg", "inputs", "fedprox", "does not change inputs"),
        ("fedavg", "companion", "fedprox", "remembers nothing"),
        ("standalone", "companion", "kdia", "uploads none"),
    ],
)
def test_unsound_pairs_are_refused_with_a_reason(
    base: str, slot: str, guest: str, reason: str
) -> None:
    with pytest.raises(IncompatibleComposition, match=reason):
        compose(methods.make(base), **{slot: methods.make(guest)})


def test_steps_travel_under_the_name_of_whose_they_are() -> None:
    alone, shifted = FedAvg(), Shifted()
    whole = compose(alone, inputs=shifted, companion=Slow())
    base, guests = parts(whole)
    assert (base, list(guests)) == (alone, ["inputs", "companion"]) and parts(alone) == (alone, {})
    assert {step_name(whole, one.client) for one in (whole, base, whole.flow)} == {"client"}  # type: ignore[attr-defined]
    assert step_name(alone, alone.client) == "client"
    assert step_name(whole, guests["inputs"].centre) == "@shifted.centre"  # type: ignore[attr-defined]
    assert (
        guest_named(whole, "@shifted") is guests["inputs"]
        and guest_named(whole, "@slow") is guests["companion"]
    )
    for strange in (shifted.centre, FedAvg().client, len, lambda client, down: None):
        with pytest.raises(
            TypeError, match=r"expected a method of FedAvg\+Shifted\+Slow such as self.client"
        ):
            step_name(whole, strange)


def test_what_is_known_of_a_composition() -> None:
    whole = compose(FedAvg(), companion=Slow(), weights=ByLoss())
    assert whole.title == "FedAvg+ByLoss+Slow" and list(parts(whole)[1]) == [
        "weights",
        "companion",
    ], "by slot, in whatever order they are given"
    assert whole.weighs and whole.uploads_model and whole.shares_model and whole.trains
    assert not compose(methods.make("standalone"), inputs=Shifted()).shares_model
    assert not (finishes(FedAvg()) or finishes(whole))
    assert (
        finishes(Finetune())
        and finishes(compose(FedAvg(), finish=Finetune()))
        and finishes(compose(Finetune(), weights=ByLoss()))
    )
    with pytest.raises(IncompatibleComposition, match="it ends so already"):
        compose(Finetune(), finish=Finetune(tune_epochs=1))
    compose(methods.make("poise"), finish=Finetune())
