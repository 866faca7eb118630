"""Slots of one method filled by others: names that cannot clash, and refusals that say why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import equipoise as eq
from equipoise.client import Client
from equipoise.composition import IncompatibleComposition, compose
from equipoise.experiment.specifications import method_from, spec_of
from equipoise.method import Method, Ups, Weights
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedprox import FedProx
from equipoise.methods.scaffold import Scaffold
from equipoise.methods.standalone import Standalone
from equipoise.records import Down, State, Up
from equipoise.server import Server
from tests.helpers.plain import assert_equal
from tests.helpers.problems import client_states, server_state, trained
from tests.helpers.runs import everything, played, settings
from tests.helpers.slots import ByLoss, Shifted, Slow


@dataclass(frozen=True)
class Chatty(FedAvg):
    """Keeps and sends entries of the same names as its guests."""

    def start(self, server: Server) -> State:
        return super().start(server).with_(visits="base", past="base")

    def client(self, client: Client, down: Down) -> Up:
        client.state["seen"] = "base"
        model = client.load(down.model)
        client.fit(model)
        return Up(model=model, loss="base")

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        assert set(ups.values("loss")) == {"base"}
        return super().update(server, state, ups, weights)


def test_a_weight_rule_weighs_and_keeps_its_names_apart(tmp_path: Path) -> None:
    run = trained(compose(Chatty(), weights=ByLoss(power=2.0)), tmp_path / "run", "mlp", rounds=2)
    state = server_state(run)
    assert (state.visits, state.past, state["@byloss"]["visits"]) == ("base", "base", 8)
    assert set(state["@byloss"]) == {"visits", "model_seen"}, "a guest has no model of its own"
    for own in client_states(run).values():
        assert (own["seen"], own["@byloss"]) == ("base", {"seen": 2})
    assert len({row["share"] for row in run.weights()}) > 4


def test_composed_weights_are_those_of_the_rule_alone(tmp_path: Path) -> None:
    alone, guest = (
        trained(ByLoss(), tmp_path / "a", "mlp"),
        trained(compose(FedProx(mu=0), weights=ByLoss()), tmp_path / "b", "mlp"),
    )
    plain = trained("fedavg", tmp_path / "c", "mlp")
    assert alone.weights() == guest.weights() != plain.weights()
    assert_equal(server_state(alone).model, server_state(guest).model)


def test_what_stands_beside_serves_and_changes_nothing(tmp_path: Path) -> None:
    plain = played(settings("fedavg"), tmp_path / "plain")
    both = played(settings(compose(FedAvg(), companion=Slow())), tmp_path / "both")
    assert_equal(server_state(plain).model, server_state(both).model)
    assert plain.table(model="global") == both.table(model="global"), (
        "the base's own model keeps its name"
    )
    assert set(both.models()) == {"teacher", "global"} and plain.models() == ["global"]
    own = trained(Slow(), tmp_path / "own", "mlp")
    assert_equal(server_state(both)["@slow"]["past"], server_state(own).past)


@pytest.mark.parametrize("base", [FedAvg(), Standalone()])
def test_inputs_are_changed_for_any_base(tmp_path: Path, base: Method) -> None:
    plain = played(settings(base), tmp_path / "plain")
    shifted = played(settings(compose(base, inputs=Shifted())), tmp_path / "shifted")
    assert plain.final("loss") != shifted.final("loss")
    for own in client_states(shifted).values():
        assert own["@shifted"] == {"asked": True}
    assert "shift" not in server_state(shifted) and server_state(shifted)["@shifted"]["shift"] != 0


def test_a_composition_travels_as_plain_data(tmp_path: Path) -> None:
    config = settings(
        compose(Chatty(average="uniform"), weights=ByLoss(power=2.0), companion=Slow())
    )
    direct, packed = (
        played(config, tmp_path / "direct"),
        played(config, tmp_path / "packed", transport="loopback"),
    )
    first, second = everything(direct), everything(packed)
    assert first.keys() == second.keys() and direct.table() == packed.table()
    spec = spec_of(config["method"])
    assert (
        spec["weights"] == {"name": "tests.helpers.slots:ByLoss", "power": 2.0}
        and spec["average"] == "uniform"
    )
    again = method_from(spec)
    assert spec_of(again) == spec and again == config["method"]


def test_a_method_in_two_slots_remembers_once(tmp_path: Path) -> None:
    run = trained(
        compose(FedAvg(), weights=ByLoss(), companion=ByLoss()), tmp_path / "run", "mlp", rounds=1
    )
    assert server_state(run)["@byloss"]["visits"] == 4
    with pytest.raises(IncompatibleComposition, match="two slots with different settings"):
        compose(FedAvg(), weights=ByLoss(), companion=ByLoss(power=2.0))


@dataclass(frozen=True)
class NoModel(Method):
    uploads_model: ClassVar[bool] = False


@dataclass(frozen=True)
class OwnUpdate(Method):
    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        return state


@pytest.mark.parametrize(
    ("base", "guests", "reason"),
    [
        (Standalone(), {"weights": ByLoss()}, "its round never weighs replies"),
        (
            NoModel(),
            {"weights": ByLoss()},
            "the rule measures the uploaded model, but this method uploads none",
        ),
        (OwnUpdate(), {"weights": ByLoss()}, "its update is derived for its own weights"),
        (FedAvg(), {"weights": Scaffold()}, "it has no weight rule"),
        (FedAvg(), {"weights": Slow()}, "it has no weight rule"),
        (FedAvg(), {"inputs": FedProx()}, "it does not change inputs"),
        (FedAvg(), {"companion": FedProx()}, "it remembers nothing"),
        (NoModel(), {"companion": Slow()}, "uploads none"),
    ],
)
def test_an_unsound_composition_is_refused_with_the_reason(
    base: Method, guests: dict[str, Any], reason: str
) -> None:
    with pytest.raises(IncompatibleComposition, match=reason) as caught:
        compose(base, **guests)
    assert type(base).__name__ in str(caught.value) and type(
        next(iter(guests.values()))
    ).__name__ in str(caught.value)


def test_slots_are_given_at_once() -> None:
    assert compose(base := FedAvg()) is base
    with pytest.raises(IncompatibleComposition, match="a composition already"):
        compose(compose(FedAvg(), weights=ByLoss()), companion=Slow())
    with pytest.raises(ValueError, match="it does not change inputs"):
        eq.Experiment(method={"name": "fedavg", "inputs": "fedprox"})


def test_the_names_of_version_0_2_still_work(tmp_path: Path) -> None:
    """In files, in stored runs and in Python: beside is the companion."""
    spec = {"name": "fedavg", "beside": {"name": "kdia", "lambda_gen": 0.0}}
    wanted = eq.Experiment(method=spec)
    assert wanted.model_dump(mode="json")["method"]["companion"]["name"] == "kdia"
    with pytest.warns(DeprecationWarning, match="companion"):
        older = compose(FedAvg(), beside=Slow())
    assert older == compose(FedAvg(), companion=Slow())
    with pytest.warns(DeprecationWarning, match="after_round_guest"):
        kind = type("Older", (FedAvg,), {"alongside": lambda self, server, state, cohort: "mine"})
    assert kind().after_round_guest(None, None, None) == "mine"
