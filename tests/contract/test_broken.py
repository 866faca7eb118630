"""Every check of the contract fails on a method that breaks it, and for its own reason."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from equipoise.client import Client
from equipoise.losses.terms import supervised, term
from equipoise.method import Method, Served, Ups, Weights
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.testing import CHECKS
from equipoise.testing.checks import Case
from equipoise.tree import Tree


@dataclass(frozen=True)
class ObjectInState(Method):
    """Remembers something that cannot be saved."""

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        return state.with_(seen=set(ups.ids))


@dataclass(frozen=True)
class HiddenPerClient(Method):
    """Hides a mapping by client in a list, where it cannot be written value by value."""

    def start(self, server: Server) -> State:
        return super().start(server).with_(history=[PerClient()])


@dataclass(frozen=True)
class NotFinite(Method):
    """Divides by a spread that is zero."""

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        return state.with_(score=torch.zeros(3) / torch.zeros(3))


@dataclass(frozen=True)
class LiveTensors(Method):
    """Uploads the tensors of the network itself, which the next client trains on."""

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model)
        return Up(model=Tree(model.net.state_dict(), model.name, model.untrained))


@dataclass(frozen=True)
class ObjectInReply(Method):
    def client(self, client: Client, down: Down) -> Up:
        return Up(model=client.load(down.model), who=client)


@dataclass(frozen=True)
class NeedsOthers(Method):
    """Weighs by the distance to the mean of the other replies."""

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        norms = np.array([up.model.norm() for up in ups])
        with np.errstate(invalid="ignore"):
            return Weights(
                1 / (1 + np.abs(norms - (norms.sum() - norms) / np.float64(len(ups) - 1)))
            )


@dataclass(frozen=True)
class NeedsEveryClass(Method):
    """Sends the mean features of every class, also of those that a client has not."""

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        features = client.features(client.load(uploaded))
        return Up(
            prototypes=torch.stack(
                [features[client.train.y == k].mean(0) for k in range(client.task.outputs)]
            )
        )


@dataclass(frozen=True)
class NeedsTwoSamples(Method):
    """Sends a spread that one sample does not have."""

    def after(self, client: Client, received: Tree | None, uploaded: Tree | None) -> Up:
        return Up(spread=client.train.x.var(0, correction=1))


@dataclass(frozen=True)
class NeedsEveryReply(Method):
    """Weighs all clients of the federation, whoever answered."""

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.array([server.sizes[client] for client in server.ids], dtype=np.float64))


@dataclass(frozen=True)
class OwnMemory(Method):
    """Counts a client's rounds outside of its state, so that a refused reply still counts."""

    def client(self, client: Client, down: Down) -> Up:
        calls: Counter[str] = client._bench._free.setdefault("calls", Counter())  # type: ignore[arg-type, assignment]
        calls[client.id] += 1
        model = client.load(down.model)
        client.fit(model, lr=0.05 / calls[client.id])
        return Up(model=model)


@dataclass(frozen=True)
class FirstCountsMore(Method):
    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.arange(len(ups), 0.0, -1.0))


@dataclass(frozen=True)
class TrainsOnTestData(Method):
    """Opens the functions behind its samples and adds a term over all data, those of tests among
    them.
    """

    def client(self, client: Client, down: Down) -> Up:
        x, y = (
            inspect.getclosurevars(client.train._x).nonlocals["x"],
            inspect.getclosurevars(client.train._y).nonlocals["y"],
        )
        model = client.load(down.model)
        client.fit(
            model,
            supervised + term(lambda outputs, batch: batch.supervise(outputs.model(x).logits, y)),
        )
        return Up(model=model)


@dataclass(frozen=True)
class KeepsSamples(Method):
    """Keeps every client's samples on the class, where the next client and the server find them."""

    kept: ClassVar[list[torch.Tensor]] = []

    def client(self, client: Client, down: Down) -> Up:
        self.kept.append(client.train.x)
        return Up(model=client.load(down.model))


@dataclass(frozen=True)
class SendsSamples(Method):
    """Sends what it trains on."""

    def client(self, client: Client, down: Down) -> Up:
        return Up(model=client.load(down.model), inputs=client.train.x[:2])


@dataclass(frozen=True)
class StateOnTheClass(Method):
    """Keeps a count on the class, where it outlives the run."""

    rounds_seen: ClassVar[Counter[str]] = Counter()

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        self.rounds_seen["all"] += 1
        return super().update(server, state, ups, weights.times(1 / self.rounds_seen["all"]))


@dataclass(frozen=True)
class UnnamedRandomness(Method):
    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.random.default_rng().random(len(ups)))


@dataclass(frozen=True)
class ClaimsToBeCommon(Method):
    """Says that a model of the client's own state is the same for all."""

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model, lr=1.0)
        client.state["mine"] = model
        return Up(model=model)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        return {"global": Served(client.load(client.state["mine"]), same_for_all=True)}


BROKEN: list[tuple[str, Method, str]] = [
    (
        "state_round_trips",
        ObjectInState(),
        "seen: expected a tree, model, tensor, number, string, list or mapping, got set",
    ),
    ("state_round_trips", HiddenPerClient(), "a PerClient lives in the server's state"),
    (
        "state_round_trips",
        NotFinite(),
        "score in the server's state holds values that are not finite",
    ),
    ("payload_travels", LiveTensors(), "differs by"),
    (
        "payload_travels",
        ObjectInReply(),
        "who: expected a tree, model, tensor, number, string, list or mapping, got Client",
    ),
    ("one_client", NeedsOthers(), "expected one finite share of at least 0 per reply, got .nan"),
    ("one_class", NeedsEveryClass(), "prototypes holds values that are not finite"),
    ("one_sample", NeedsTwoSamples(), "spread holds values that are not finite"),
    ("missing_reply", NeedsEveryReply(), "zip|coefficients"),
    ("nan_reply", OwnMemory(), "differs by"),
    ("order_of_clients", FirstCountsMore(), "differs by .*, more than 0.0002"),
    ("unseen_test_data", TrainsOnTestData(), "differs by"),
    (
        "no_foreign_data",
        KeepsSamples(),
        "client 'bo' reaches a sample that is not its own through method.kept",
    ),
    (
        "no_foreign_data",
        SendsSamples(),
        "the server reaches a sample that is not its own through ups",
    ),
    ("repeats", StateOnTheClass(), "differs by"),
    ("repeats", UnnamedRandomness(), "differs by"),
    ("shared_test_set", ClaimsToBeCommon(), "global"),
]


def test_every_check_is_shown_to_fail() -> None:
    assert {check for check, _, _ in BROKEN} == set(CHECKS)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(
    ("check", "method", "reason"),
    BROKEN,
    ids=[f"{check}-{type(method).__name__}" for check, method, _ in BROKEN],
)
def test_the_check_fails(check: str, method: Method, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=reason):  # of whatever kind: the reason is what counts
        CHECKS[check](Case(method, "mlp", tmp_path))
