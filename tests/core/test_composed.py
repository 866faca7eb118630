"""A composition is a method like any other: a frozen dataclass that compares, is changed and runs,
whatever its base's round does.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import method
from equipoise.client import Client, Inputs
from equipoise.composition import Composed, IncompatibleComposition, compose, composed, parts
from equipoise.data import federate
from equipoise.experiment.specifications import method_from, spec_of
from equipoise.method import Cohort, Method, Served, Ups, Weights
from equipoise.methods.corefed import CoReFed
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedavgm import FedAvgM
from equipoise.methods.fedprox import FedProx
from equipoise.methods.kdia import KDIA
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task
from tests.helpers.plain import assert_equal
from tests.helpers.plans import plan
from tests.helpers.problems import client_states, server_state, trained
from tests.helpers.runs import everything, played, settings, sites
from tests.helpers.slots import ByLoss, Shifted, Slow


def test_it_is_an_ordinary_frozen_dataclass() -> None:
    one, same, other = (compose(FedProx(mu=0.1), weights=ByLoss(power=p)) for p in (2.0, 2.0, 3.0))
    assert one == same != other and hash(one) == hash(same) and {one: 1}[same] == 1
    assert compose(FedAvg(), weights=ByLoss()) != compose(
        FedAvg(), weights=ByLoss(), companion=Slow()
    )
    assert [field.name for field in dataclasses.fields(one)] == ["base", "guests"]
    assert (
        repr(one)
        == "Composed(base=FedProx(average='size', mu=0.1), guests={'weights': ByLoss(power=2.0)})"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.base = FedAvg()  # type: ignore[attr-defined]


def test_a_changed_one_is_checked_again() -> None:
    one = compose(FedProx(mu=0.1), weights=ByLoss(power=2.0))
    assert replace(one, base=FedAvg()) == compose(FedAvg(), weights=ByLoss(power=2.0))  # type: ignore[call-arg]
    assert replace(one, guests={"companion": Slow()}) == compose(FedProx(mu=0.1), companion=Slow())  # type: ignore[call-arg]
    with pytest.raises(IncompatibleComposition, match="never weighs"):
        replace(one, base=eq.methods.make("standalone"))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="unknown slot 'weight'; did you mean 'weights'"):
        Composed(FedAvg(), {"weight": ByLoss()})


def test_what_was_given_may_change_afterwards() -> None:
    given = {"weights": ByLoss()}
    one = Composed(FedAvg(), given)
    given["weights"] = ByLoss(power=9.0)
    assert one.guests == {"weights": ByLoss()}


def test_no_slot_of_a_method_and_no_door_to_clients_is_forgotten() -> None:
    """A slot that the composition does not hand on would silently be the default."""
    assert set(method.SLOTS) <= vars(Composed).keys()
    doors = {
        name
        for name, found in vars(Cohort).items()
        if inspect.isfunction(found) and not name.startswith("_")
    }
    assert doors == {"run", "weighed"} and doors <= vars(composed._AccompaniedCohort).keys()


@pytest.mark.parametrize("need", ["sgd", "validation", "classes"])
def test_a_need_of_any_part_is_a_need_of_the_whole(need: str) -> None:
    demanding: Any = dataclass(frozen=True)(type("Demanding", (Slow,), {"needs": (need,)}))
    picky: Any = dataclass(frozen=True)(type("Picky", (FedAvg,), {"needs": (need,)}))
    assert compose(FedAvg(), companion=demanding()).needs == (need,)
    assert compose(picky(), companion=Slow()).needs == (need,)
    assert compose(FedAvg(), companion=Slow()).needs == ()


def test_the_flags_of_version_0_2_are_translated() -> None:
    with pytest.warns(DeprecationWarning, match=r"needs = \('validation',\)"):
        kind = type("Older", (FedAvg,), {"needs_validation": True})
    assert kind.needs == ("validation",)


def test_what_the_base_does_with_models_is_what_the_whole_does() -> None:
    assert not compose(eq.methods.make("standalone"), inputs=Shifted()).weighs
    assert not compose(eq.methods.make("standalone"), inputs=Shifted()).uploads_model
    still: Any = dataclass(frozen=True)(type("Still", (FedAvg,), {"trains": False}))
    assert (
        not compose(still(), companion=Slow()).trains and compose(FedAvg(), companion=Slow()).trains
    )


def test_sentences_name_the_parts() -> None:
    """And not the class that holds them together."""
    bad = {"optimiser": "adam"}
    with pytest.raises(ValueError, match=r"Scaffold\+Slow needs plain sgd"):
        eq.Experiment(method=compose(eq.methods.make("scaffold"), companion=Slow()), training=bad)


@dataclass(frozen=True)
class Fussy(Slow):
    """Refuses regression."""

    def check(self, task: Task) -> None:
        if not task.classifies:
            raise ValueError("fussy about numbers")


@dataclass(frozen=True)
class FussyBase(FedAvg):
    check = Fussy.check


@pytest.mark.parametrize(
    "whole", [compose(FedAvg(), companion=Fussy()), compose(FussyBase(), companion=Slow())]
)
def test_every_part_checks_the_task(whole: Method, tmp_path: Path) -> None:
    numbers = {name: (x, y.astype(np.float32)) for name, (x, y) in sites().items()}
    wanted = eq.Experiment(**settings(whole), dataset=eq.from_sites(numbers, kind="regression"))
    with pytest.raises(ValueError, match="fussy about numbers"):
        eq.run(wanted, out=tmp_path / "run")


# Notebooks and grids.


def test_a_grid_over_a_composition_of_a_notebook(tmp_path: Path) -> None:
    """Classes that only this process knows are changed as objects: parameters of the base, and of a
    guest behind the name of its slot.
    """

    @dataclass(frozen=True)
    class Mine(FedProx):
        pass

    @dataclass(frozen=True)
    class Rule(ByLoss):
        composable_weights: ClassVar[bool] = True

        def weights(self, server: Server, state: State, ups: Ups) -> Weights:
            return super().weights(server, state, ups)

    whole = compose(Mine(mu=0.5), weights=Rule())
    base = {"data": {"name": "digits", "clients": 3}, "rounds": 1, "training": {"steps": 2}}
    grid = {"method.mu": [0.0, 1.0], "method.weights.power": [1.0, 2.0]}
    cells = [cell for cell in plan(base, [whole], grid=grid) if cell.label != "standalone"]
    assert [cell.experiment.method for cell in cells] == [
        compose(Mine(mu=mu), weights=Rule(power=p)) for mu in (0.0, 1.0) for p in (1.0, 2.0)
    ]
    table = eq.compare(base, [whole], grid=grid, out=tmp_path, jobs=1)
    assert not table.failures and [entry.label for entry in table.entries] == [
        "standalone",
        "mine + weights=rule",
    ]


def test_a_grid_over_a_composition_that_others_can_import() -> None:
    cells = plan(
        {"rounds": 1},
        [compose(FedProx(mu=0.5), weights=ByLoss())],
        grid={"method.mu": [0.0], "method.weights.power": [2.0]},
    )
    assert cells[-1].experiment.build_method() == compose(
        FedProx(mu=0.0), weights=ByLoss(power=2.0)
    )


def test_as_plain_data_and_back() -> None:
    whole = compose(FedProx(mu=0.5), weights=ByLoss(power=2.0), inputs=Shifted(), companion=Slow())
    assert method_from(spec_of(whole)) == whole
    assert parts(whole) == (
        FedProx(mu=0.5),
        {"weights": ByLoss(power=2.0), "inputs": Shifted(), "companion": Slow()},
    )
    assert parts(FedAvg()) == (FedAvg(), {})


# Whatever the base's round does.


@dataclass(frozen=True)
class Twice(FedAvg):
    """More exchanges than one, of its own kind, around the default round; its state is made anew in
    every round.
    """

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        everyone.run(self.hello, each=lambda client: self.deliver(server, state, client))
        return State(model=state.model, greeted=len(everyone.ids))

    def hello(self, client: Client, down: Down) -> Up:
        assert client.inputs is None, "nothing was prepared for guests yet"
        return Up(heard=True)

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        looked = cohort.run(self.look, Down(model=state.model))
        return (
            super().round(server, state, cohort).with_(looked=float(looked.numbers("mean").mean()))
        )

    def look(self, client: Client, down: Down) -> Up:
        client.state["looked"] = client.round
        x = client.train.x
        return Up(
            mean=float((client.inputs.other(x) if client.inputs is not None else x).double().mean())
        )

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        return State(model=super().update(server, state, ups, weights).model, greeted=state.greeted)


@dataclass(frozen=True)
class Centred(Method):
    """Each client receives its own shift from the server, and keeps a scale to itself."""

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        return state.with_(shifts=everyone.run(self.statistics).table("mean"))

    def statistics(self, client: Client, down: Down) -> Up:
        client.state["scale"] = float(client.train.x.std())
        return Up(mean=float(client.train.x.mean()))

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=state.model, shift=state.shifts[client_id])

    def inputs(self, client: Client, down: Down) -> Inputs:
        kept = client.state  # looked up when samples come: before round 1 there is nothing in it

        def centred(x: torch.Tensor) -> torch.Tensor:
            return (x - down.shift) / kept["scale"]

        return Inputs(train=lambda x, noise: centred(x), other=centred, random=False)


def apart() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sites whose samples differ in mean and scale."""
    return {
        name: ((1 + place) * x + 3 * place, y)
        for place, (name, (x, y)) in enumerate(sites({"ada": 40, "bo": 30, "cy": 20}).items())
    }


def test_inputs_of_a_guest_reach_every_step_of_the_base(tmp_path: Path) -> None:
    """Also those that do not come through `deliver`, and not those before the guest is prepared."""
    whole = played(settings(compose(Twice(), inputs=Centred())), tmp_path / "whole", apart())
    assert (
        abs(server_state(whole).looked)
        < 1e-6
        < server_state(played(settings(Twice()), tmp_path / "plain", apart())).looked
    )
    assert server_state(whole).greeted == 3
    for own in client_states(whole).values():
        assert own["looked"] == 3 and set(own["@centred"]) == {"scale"}


def test_a_base_that_makes_its_state_anew_loses_no_guest(tmp_path: Path) -> None:
    run = trained(
        compose(Twice(), weights=ByLoss(), companion=Slow()), tmp_path / "run", "mlp", rounds=2
    )
    state = server_state(run)
    assert (state["@byloss"]["visits"], state["@slow"]["rounds"]) == (8, 3)
    plain = trained(compose(FedAvg(), weights=ByLoss()), tmp_path / "plain", "mlp", rounds=2)
    assert_equal(state.model, server_state(plain).model)


def test_inputs_delivered_to_each_client_are_those_it_is_measured_with(tmp_path: Path) -> None:
    """One test set for all, and one model: what a client scores on it depends on its own inputs,
    and nobody scores for all.
    """
    data = {"split": (0.6, 0.2, 0.2), "partition": "natural", "test": "global"}
    whole = played(
        settings(compose(FedAvg(), inputs=Centred()), data=data), tmp_path / "run", apart()
    )
    rows = {
        row["client"]: row["value"]
        for row in whole.table(phase="final", split="shared", metric="loss")
    }
    assert rows.keys() == {"ada", "bo", "cy"}
    wanted = eq.Experiment(**settings("fedavg", data=data), dataset=eq.from_sites(apart()))
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    x, y = federation.x[federation.shared_test], federation.y[federation.shared_test]
    net = whole.model("global", client="ada").net  # without the inputs
    for place, client in enumerate(federation.ids):
        own = federation.x[federation.train[place]]
        with torch.no_grad():
            logits = net((x - own.mean()) / own.std())
        assert rows[client] == pytest.approx(
            float(nn.functional.cross_entropy(logits.double(), y)), rel=1e-5
        )
    assert len(set(rows.values())) == 3


@pytest.mark.parametrize("transport", [None, "loopback"])
def test_one_object_as_base_and_guest_has_steps_of_both(
    tmp_path: Path, transport: str | None
) -> None:
    one = Centred()
    run = played(settings(compose(one, inputs=one)), tmp_path / "run", apart(), transport)
    for own in client_states(run).values():
        assert own["scale"] == own["@centred"]["scale"] > 0
    same = played(
        settings(compose(Centred(), inputs=Centred())), tmp_path / "same", apart(), transport
    )
    assert everything(run).keys() == everything(same).keys()


def test_a_step_that_is_nobodys_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Stray(FedAvg):
        def round(self, server: Server, state: State, cohort: Cohort) -> State:
            cohort.run(FedAvg().client, Down(model=state.model))
            return state

    with pytest.raises(TypeError, match=r"expected a method of Stray\+Slow such as self.client"):
        played(settings(compose(Stray(), companion=Slow())), tmp_path / "run")


# Refused.


@dataclass(frozen=True)
class Squared(FedAvg):
    """A rule of its own, below a class that says that its rule stands alone."""

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(super().weights(server, state, ups).shares ** 2)


@dataclass(frozen=True)
class Claiming(Method):
    composable_weights: ClassVar[bool] = True


@dataclass(frozen=True)
class Judging(FedAvg):
    needs = ("validation",)


@dataclass(frozen=True)
class JudgingRule(ByLoss):
    composable_weights: ClassVar[bool] = True
    needs = ("validation",)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))


@dataclass(frozen=True)
class Learning(Shifted):
    """Its inputs follow from what it observes."""

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        return state.with_(shift=state.shift + 1)


@pytest.mark.parametrize(
    ("base", "guests", "reason"),
    [
        (
            FedAvg(),
            {"weights": FedProx()},
            r"weights=FedProx\(\) on FedAvg\(\): its weight rule is inherited from FedAvg; give "
            r"FedAvg",
        ),
        (FedAvg(), {"weights": FedAvgM()}, "inherited from FedAvg; give FedAvg"),
        (FedProx(), {"weights": Claiming()}, "inherited from Method; give FedAvg"),
        (FedProx(), {"weights": Squared()}, "write composable_weights = True in it"),
        (
            FedAvg(),
            {"companion": CoReFed()},
            "remembers what its after measured, which only the slot weights asks for",
        ),
        (FedAvg(), {"companion": ByLoss()}, "remembers what its before and after measured"),
        (
            FedAvg(),
            {"weights": ByLoss(), "companion": CoReFed()},
            "remembers what its after measured",
        ),
        (
            Judging(),
            {"inputs": Shifted()},
            "Judging measures models on validation data at the server, where inputs are not "
            "changed",
        ),
        (
            FedAvg(),
            {"inputs": Shifted(), "weights": JudgingRule()},
            "JudgingRule measures models on validation data at the server",
        ),
        (FedAvg(), {"inputs": Learning()}, "give it as companion, too"),
        (
            FedAvg(),
            {"weights": compose(FedAvg(), weights=ByLoss())},
            r"FedAvg\+ByLoss is a composition already",
        ),
    ],
)
def test_what_would_not_do_what_it_says_is_refused(
    base: Method, guests: dict[str, Any], reason: str
) -> None:
    with pytest.raises(IncompatibleComposition, match=reason):
        compose(base, **guests)


def test_what_the_sentences_advise_is_accepted() -> None:
    compose(FedAvg(), weights=CoReFed(), companion=CoReFed())
    compose(FedAvg(), inputs=Learning(), companion=Learning())
    compose(Judging(), weights=ByLoss(), companion=Slow())


@dataclass(frozen=True)
class Bringing(Slow):
    """Brings a network along."""

    brings: str = "model"

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        return {self.brings: lambda: nn.Linear(3, 3)}


@dataclass(frozen=True)
class BringingBase(Bringing, FedAvg):
    def serves(self, client: Client, down: Down) -> Mapping[str, Any]:
        return {"global": Served(client.load(down.model), same_for_all=True)}


@pytest.mark.parametrize(
    ("base", "brings"),
    [(FedAvg(), "model"), (FedAvg(), "private"), (BringingBase(brings="extra"), "extra")],
)
def test_a_guest_does_not_replace_a_network(base: Method, brings: str, tmp_path: Path) -> None:
    with pytest.raises(
        IncompatibleComposition, match=f"Bringing brings a model '{brings}', which would replace"
    ):
        played(settings(compose(base, companion=Bringing(brings=brings))), tmp_path / "run")


def test_a_guest_may_bring_a_network_of_its_own(tmp_path: Path) -> None:
    run = played(
        settings(compose(FedAvg(), companion=KDIA(gen_steps=2)), rounds=1), tmp_path / "run"
    )
    assert "teacher" in run.models()
