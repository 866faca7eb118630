"""`check_method` makes every check on both networks, says by name what came of each, and fails in
no other way.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.client import Client
from equipoise.composition import compose
from equipoise.method import Method, Ups, Weights
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedequilibria import FedEquilibria
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task
from equipoise.testing import CHECKS, NETWORKS, ContractBroken, Result, check_method
from equipoise.testing.small import Broken, assert_same
from equipoise.tree import Tree
from equipoise.validation.names import UnknownName
from tests.helpers.runs import environment

ALL = [(check, network) for network in NETWORKS for check in CHECKS]


@dataclass(frozen=True)
class NeedsEveryClass(FedAvg):
    """Sends the mean inputs of every class, also of those that a client has not."""

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        return Up(
            prototypes=torch.stack(
                [client.train.x[client.train.y == k].mean(0) for k in range(client.task.outputs)]
            )
        )


@dataclass(frozen=True)
class FirstCountsMore(FedAvg):
    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.arange(len(ups), 0.0, -1.0))


@dataclass(frozen=True)
class Flat(FedAvg):
    """Refuses convolutions."""

    def models(self, task: Task, others: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        if any(isinstance(module, nn.Conv2d) for module in others["model"]().modules()):
            raise ValueError("Flat works without convolutions; choose an mlp")
        return {}


@dataclass(frozen=True)
class OnlyRegression(FedAvg):
    def check(self, task: Task) -> None:
        if task.kind != "regression":
            raise ValueError(f"OnlyRegression needs numbers to predict, got {task.kind}")


@dataclass(frozen=True)
class Parametrised(Method):
    rate: float


def test_a_sound_method_passes_every_check_by_name() -> None:
    @dataclass(frozen=True)
    class Halved(Method):
        """Defined where no other process could find it, as in a notebook."""

        def client(self, client: Client, down: Down) -> Up:
            model = client.load(down.model)
            client.fit(model, lr=client.lr / 2)
            return Up(model=model)

    seen: list[Result] = []
    results = check_method(Halved, on_result=seen.append)
    assert results == seen == [Result(check, network, "passed") for check, network in ALL]


def test_a_broken_method_is_told_which_checks_it_fails_and_why() -> None:
    with pytest.raises(
        ContractBroken,
        match=r"NeedsEveryClass fails 1 of 2 checks:\nfailed one_class \(mlp\): .*not finite",
    ) as caught:
        check_method(NeedsEveryClass, checks=["one_class", "one_client"], networks=["mlp"])
    assert [result.outcome for result in caught.value.results] == ["failed", "passed"]
    assert caught.value.__cause__ is caught.value.results[0].error, (
        "its traceback leads to the place"
    )
    results = check_method(NeedsEveryClass(), checks=["one_class", "repeats"], raise_errors=False)
    assert [(result.check, result.network, result.outcome) for result in results] == [
        (check, network, "failed" if check == "one_class" else "passed")
        for network in NETWORKS
        for check in ("one_class", "repeats")
    ]


def test_a_mistake_is_a_failure_of_every_check_that_meets_it() -> None:
    @dataclass(frozen=True)
    class Mistaken(FedAvg):
        def client(self, client: Client, down: Down) -> Up:
            return Up(model=down.modell)

    results = check_method(Mistaken, networks=["mlp"], raise_errors=False)
    assert {result.outcome for result in results} == {"failed"} and all(
        "modell" in result.reason for result in results
    )


def test_a_network_that_the_method_refuses_is_skipped_with_its_sentence() -> None:
    results = check_method(Flat, checks=["one_client"])
    assert [str(result) for result in results] == [
        "passed one_client (mlp)",
        "skipped one_client (cnn): Flat works without convolutions; choose an mlp",
    ]


@pytest.mark.parametrize("more", [{}, {"checks": []}, {"networks": []}])
def test_where_nothing_could_be_checked_nothing_has_passed(more: dict[str, Any]) -> None:
    with pytest.raises(
        ContractBroken,
        match=(
            r"no check of OnlyRegression could be made: (OnlyRegression needs numbers|no checks "
            r"were selected)"
        ),
    ):
        check_method(OnlyRegression, **more)


def test_parameters_and_compositions() -> None:
    with pytest.raises(
        TypeError,
        match=(
            r"Parametrised cannot be made without parameters .*check_method\(Parametrised\(...\)\)"
        ),
    ):
        check_method(Parametrised)
    for method in (Parametrised(0.1), compose(FedAvg(), weights=FedEquilibria())):
        results = check_method(method, checks=["one_sample", "no_foreign_data"], networks=["mlp"])
        assert [result.outcome for result in results] == ["passed", "passed"]


def test_what_is_no_method_and_what_is_no_check_is_refused() -> None:
    for wrong in ("fedavg", 3, dict):
        with pytest.raises(TypeError, match="expected a class or an object of Method, got"):
            check_method(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="one_clas.*did you mean.*one_class"):
        check_method(FedAvg, checks=["one_clas"])
    with pytest.raises(UnknownName, match="resnet"):
        check_method(FedAvg, networks=["resnet"])


def test_the_tolerance_is_that_of_the_order_of_clients() -> None:
    for tolerance, outcome in ((2e-4, "failed"), (10.0, "passed")):
        results = check_method(
            FirstCountsMore,
            checks=["order_of_clients"],
            networks=["mlp"],
            tolerance=tolerance,
            raise_errors=False,
        )
        assert [result.outcome for result in results] == [outcome]


def test_an_empty_comparison_is_no_agreement() -> None:
    with pytest.raises(Broken, match="nothing was learnt"):
        assert_same({}, {})


@pytest.mark.thorough
def test_optimised_python_checks_as_well_and_pytest_is_not_needed() -> None:
    code = """
import sys
sys.modules["pytest"] = None
from dataclasses import dataclass
import equipoise as eq
from equipoise.testing import check_method
assert False, "asserts are off"
@dataclass(frozen=True)
class Spread(eq.Method):
    def after(self, client, received, uploaded):
        return eq.Up(spread=client.train.x.var(0, correction=1))
print(check_method(Spread, checks=["one_sample"], networks=["mlp"], raise_errors=False)[0])
"""
    done = subprocess.run(
        [sys.executable, "-O", "-W", "ignore", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (
        "failed one_sample (mlp): " in done.stdout
        and "spread holds values that are not finite" in done.stdout
    ), done.stderr


def test_notes_about_the_data_of_the_checks_are_not_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_method(FedAvg(), checks=["state_round_trips", "repeats"], networks=["mlp"])
    assert "test rows" not in capsys.readouterr().err
