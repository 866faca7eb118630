"""Clients that are trained in a stack get the bits that they get alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import mkl
from equipoise.client import Client
from equipoise.data.pipeline import federate_loaded
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, Up, pack
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.messages import Reply, Request
from equipoise.runtime.states import CarriedStates
from equipoise.session import job_of
from equipoise.training.stack import Deferral, PlannedFit
from tests.helpers.runs import settings

pytestmark = pytest.mark.skipif(
    not mkl.is_reproducible(), reason="products are not reproducible, so nothing is stacked"
)


def executor_of(
    sizes: list[int],
    columns: int = 13,
    hidden: Sequence[int] = (64,),
    classes: int = 2,
    method: Any = "fedavg",
    **training: Any,
) -> ClientExecutor:
    """Return a client runtime with clients of several sizes."""
    draw = np.random.default_rng(columns)
    sites = {}
    for position, size in enumerate(sizes):
        x = draw.normal(size=(size, columns)).astype(np.float32)
        y = draw.integers(0, classes, size)
        y[: min(size, classes)] = np.arange(classes)[:size]
        sites[f"c{position}"] = (x, y)
    experiment = eq.Experiment(
        **settings(
            method,
            data={"split": (1.0, 0.0, 0.0), "partition": "natural", "duplicates": "separate"},
            models={"model": {"name": "mlp", "hidden": list(hidden)}},
            training=training,
        ),
        dataset=eq.from_sites(sites, kind="classification"),
    )
    federation = federate_loaded(experiment.data, experiment.seed, experiment.dataset)
    return ClientExecutor(job_of(experiment, "run"), federation, CarriedStates(), experiment)


def requests_of(executor: ClientExecutor) -> list[Request]:
    model = executor.bench.initial("model")
    down = Down(model=model, control=0.01 * model, mean_size=40.0)
    return [Request(client, "client", down, 1, 3, exchange=1) for client in executor.federation.ids]


@dataclass
class Executed:
    """The replies and states of requests, and the number of their fits that stacks trained."""

    replies: list[Reply]
    states: dict[str, bytes]
    stacked: int = 0


def alone(executor: ClientExecutor) -> Executed:
    """Execute all clients one after another."""
    executor.states = states = CarriedStates()
    replies = [executor.execute_catching(request) for request in requests_of(executor)]
    return Executed(replies, states.carried)


def grouped(executor: ClientExecutor, size: int = 25) -> Executed:
    """Execute all clients in groups."""
    executor.states = states = CarriedStates()
    result = Executed([], states.carried)
    deferrals: dict[int, Deferral] = {}

    def execute(request: Request, deferral: Deferral | None) -> Reply:
        if deferral is not None:
            deferrals[id(deferral)] = deferral
        return executor.execute_catching(request, deferral)

    requests = requests_of(executor)
    for start in range(0, len(requests), size):
        result.replies += executor.execute_group(requests[start : start + size], execute)
    for deferral in deferrals.values():
        result.stacked += sum(isinstance(value, PlannedFit) for value in deferral.results)
    return result


def bits(reply: Reply) -> bytes:
    assert reply.error is None, reply.error
    assert reply.up is not None
    return b"".join(pack(reply.up))


def assert_same_replies(expected: list[Reply], replies: list[Reply]) -> None:
    for one, other in zip(expected, replies, strict=True):
        assert bits(one) == bits(other)
        assert (one.client, one.steps, one.bytes) == (other.client, other.steps, other.bytes)
        assert other.seconds > 0


def assert_same_bits(executor: ClientExecutor) -> Executed:
    expected, result = alone(executor), grouped(executor)
    assert_same_replies(expected.replies, result.replies)
    assert expected.states == result.states
    return result


SIZES = [60, 5, 33, 60, 64, 34]
SHAPES = [(13, [64], 2), (31, [27, 33], 5), (30, [200, 200], 2)]


@pytest.mark.parametrize(
    "training",
    [
        {"lr": 0.1},
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        {"lr": 0.01, "optimiser": "adam"},
        {"lr": 0.1, "clip": 0.5},
    ],
)
@pytest.mark.parametrize("batch", [7, 13, 32])
@pytest.mark.parametrize(("columns", "hidden", "classes"), SHAPES)
def test_a_group_has_the_bits_of_its_clients_alone(
    columns: int, hidden: list[int], classes: int, batch: int, training: dict[str, Any]
) -> None:
    executor = executor_of(SIZES, columns, hidden, classes, batch=batch, epochs=2, **training)
    assert assert_same_bits(executor).stacked >= len(SIZES) - 1


# A proximal term; one of two fits with it; hooks of the gradient, alone, with a term and with
# clipping; two fits with distillation, the second on samples that the first one selects.
KINDS = ["fedprox", "ditto", "scaffold", "feddc", "feddyn", "fedakd"]
FITS = {"ditto": 2, "fedakd": 2}


@pytest.mark.parametrize("batch", [7, 13])
@pytest.mark.parametrize(("columns", "hidden", "classes"), SHAPES[:2])
@pytest.mark.parametrize("method", KINDS)
def test_terms_and_hooks_have_the_bits_of_clients_alone(
    method: str, columns: int, hidden: list[int], classes: int, batch: int
) -> None:
    sizes = [60, 33, 60, 60, 34]
    executor = executor_of(sizes, columns, hidden, classes, method, batch=batch, epochs=2, lr=0.1)
    result = assert_same_bits(executor)
    # Sizes weigh the term of FedDC, so that only clients of one size have the same form.
    assert result.stacked >= (3 if method == "feddc" else 5 * FITS.get(method, 1))


@pytest.mark.parametrize("optimiser", [{"momentum": 0.9}, {"optimiser": "adam"}])
@pytest.mark.parametrize("method", ["fedprox", "feddyn", "fedakd"])
def test_terms_and_hooks_have_these_bits_with_other_optimisers(
    method: str, optimiser: dict[str, Any]
) -> None:
    executor = executor_of([40, 40, 31], method=method, batch=7, lr=0.01, **optimiser)
    assert assert_same_bits(executor).stacked >= 3


def test_a_temperature_and_weights_of_terms_do_not_change_the_bits() -> None:
    method = {"name": "fedakd", "temperature": 3.0, "alpha": 0.3, "beta": 2.0}
    executor = executor_of([40, 40, 31], method=method, batch=7, lr=0.1)
    assert assert_same_bits(executor).stacked == 6


@pytest.mark.parametrize(
    ("hidden", "training"),
    [
        ([3, 9], {"batch": 7}),  # products too small for a stack
        ([64], {"batch": 1}),
        ([64], {"batch": 7, "steps": 3}),
        ([64], {"batch": 7, "loss": "focal"}),
    ],
)
def test_fits_that_a_stack_cannot_train_run_alone(
    hidden: list[int], training: dict[str, Any]
) -> None:
    executor = executor_of([40, 40, 31], hidden=hidden, lr=0.1, **training)
    assert assert_same_bits(executor).stacked == 0


class Reporting(FedAvg):
    """Uploads what fits return; changes outputs and continues with the optimiser's memory."""

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        outputs = client.predict(model)
        outputs += 1
        first = client.fit(model, eq.supervised + 0.3 * eq.proximity(0.5 * down.model))
        outputs *= 2
        taught = eq.distillation(outputs) + 0.5 * eq.supervised
        second = client.fit(model, taught, memory=first.memory, purpose="second")
        return Up(model=model, losses=[first.loss, second.loss], memory=second.memory)


def test_a_fit_of_a_stack_returns_what_it_returns_alone() -> None:
    executor = executor_of([40, 40, 31], method=Reporting(), batch=7, lr=0.1, momentum=0.5)
    assert assert_same_bits(executor).stacked == 6


class Correcting(FedAvg):
    """Corrects gradients by two trees, neither of which is zero, as SCAFFOLD does from round 2."""

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model, gradient=eq.Correction(minus=0.3 * down.model, plus=down.control))
        return Up(model=model)


def test_corrections_of_a_stack_are_subtracted_and_added_as_alone() -> None:
    executor = executor_of([40, 40, 31], method=Correcting(), batch=7, lr=0.1)
    assert assert_same_bits(executor).stacked == 3


class Forgetting(FedAvg):
    """Overwrites the optimiser's memory of its first fit before it makes a second one."""

    def client(self, client: Client, down: Down) -> Up:
        first = client.load(down.model)
        memory = client.fit(first).memory
        length = sum(float(slots["square"].sum()) for slots in memory.values())
        for slots in memory.values():
            slots["square"].zero_()
        second = client.load(down.model)
        client.fit(second, purpose="again")
        return Up(model=second, length=length)


def test_a_step_that_is_repeated_finds_the_memory_of_its_optimiser_as_it_was() -> None:
    executor = executor_of([40, 40, 31], method=Forgetting(), optimiser="adam", lr=0.01)
    assert assert_same_bits(executor).stacked == 6


class Moody(FedAvg):
    """Evaluates a model only when its step is executed for the first time."""

    clients: ClassVar[set[str]] = set()

    def client(self, client: Client, down: Down) -> Up:
        if client.id not in self.clients:
            self.clients.add(client.id)
            client.predict(client.load(down.model))
        return super().client(client, down)


def test_a_step_that_does_not_repeat_itself_is_an_error_that_says_so() -> None:
    executor = executor_of([40, 40], method=Moody(), batch=7)
    for reply in executor.execute_group(requests_of(executor)):
        assert reply.error is not None and "depend on its client and its message" in reply.error


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_size_of_a_group_does_not_matter(size: int) -> None:
    executor = executor_of([40, 40, 31, 50, 64], batch=16, epochs=2)
    assert_same_replies(alone(executor).replies, grouped(executor, size).replies)


def test_a_client_that_fails_does_not_disturb_the_others() -> None:
    executor = executor_of([40, 40, 40], batch=16)
    requests = requests_of(executor)
    broken = Down(model=eq.Tree({"w": torch.zeros(1)}, "model"))
    requests[1] = Request(requests[1].client, "client", broken, 1, 3, exchange=1)
    replies = executor.execute_group(requests)
    assert replies[1].error is not None and "does not fit the model" in replies[1].error
    assert_same_replies(alone(executor).replies[::2], replies[::2])
