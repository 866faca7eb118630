"""An author's usual mistakes, each answered by one sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.client import Client
from equipoise.method import Cohort, Method, Ups, Weights
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.storage.store import RunError
from equipoise.tree import Tree


def run(method: Any, out: Path, **more: Any) -> eq.Run:
    data = {"name": "digits", "partition": "iid", "clients": 4}
    return eq.run(
        eq.Experiment(**{"data": data, "method": method, "rounds": 2, "workers": 0, **more}), out
    )


@dataclass(frozen=True)
class Forgets(Method):
    def client(self, client: Client, down: Down) -> Up:  # type: ignore[return]
        client.fit(client.load(down.model))


@dataclass(frozen=True)
class ArrayOfWeights(Method):
    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return np.ones(len(ups))  # type: ignore[return-value]


@dataclass(frozen=True)
class Negative(Method):
    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.array([1.0, -1.0, 1.0, 1.0]))


@dataclass(frozen=True)
class Misspelt(Method):
    def weight(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))


class NoDataclass(Method):
    mu: float = 0.1


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            Forgets(),
            r"Forgets\.client sent nothing, but no `model`; end it with `return Up\(model=model\)`",
        ),
        (ArrayOfWeights(), r"ArrayOfWeights\.weights returned ndarray; expected Weights\(shares\)"),
        (Negative(), "expected one finite share of at least 0 per reply"),
        (Misspelt(), r"Misspelt\.weight is never called; did you mean weights\?"),
        (
            NoDataclass(),
            r"NoDataclass has the parameter 'mu' but is no dataclass.*write "
            r"@dataclass\(frozen=True\)",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else "",
)
def test_one_sentence_each(method: Method, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=sentence):
        run(method, tmp_path / "run")


@dataclass(frozen=True)
class DivergesAtTheServer(Method):
    """The server's state is not finite from round 2 on."""

    where: str = "nested"

    def start(self, server: Server) -> State:
        return super().start(server).with_(kept=PerClient())

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        bad = float("nan") if server.round == 2 else 0.0
        values: dict[str, Callable[[], State]] = {
            "nested": lambda: state.with_(deep={"list": [1.0, torch.tensor([bad])]}),
            "number": lambda: state.with_(number=bad),
            "kept": lambda: state.with_(kept=state.kept.put({"1": bad})),
        }
        return values[self.where]()


@pytest.mark.parametrize(
    ("where", "entry"), [("nested", r"deep\.list\[1\]"), ("number", "number"), ("kept", r"kept\.1")]
)
def test_a_server_state_that_is_not_finite_ends_the_run_in_that_round(
    where: str, entry: str, tmp_path: Path
) -> None:
    with pytest.raises(
        RunError,
        match=(
            rf"round 2: {entry} in the server's state .* not finite.*lower training\.lr \(now "
            r"0\.1\)"
        ),
    ):
        run(DivergesAtTheServer(where), tmp_path / "run", rounds=4)
    assert eq.Run(tmp_path / "run").last_round == 1


@dataclass(frozen=True)
class DivergesAtAClient(Method):
    """Client 2 keeps a state that is not finite in round 1, and sends a fine reply."""

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model)
        client.state["score"] = torch.tensor(
            [float("inf") if client.id == "2" and client.round == 1 else 1.0]
        )
        return Up(model=model)


def test_a_clients_own_state_that_is_not_finite_refuses_its_reply(tmp_path: Path) -> None:
    found = run(DivergesAtAClient(), tmp_path / "run")
    assert [(row["round"], row["client"], row["reason"]) for row in found.rejected()] == [
        (1, "2", "its own state score holds values that are not finite")
    ]
    assert [row["joined"] for row in found.rounds()] == [["0", "1", "3"], ["0", "1", "2", "3"]]


@dataclass(frozen=True)
class AllDiverge(Method):
    def client(self, client: Client, down: Down) -> Up:
        return Up(model=client.load(down.model), score=float("nan"))


def test_a_round_in_which_all_replies_were_refused_names_the_first_and_its_reason(
    tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.ERROR)
    with pytest.raises(
        RunError,
        match=(
            "round 1 was given up 3 times: 0 of 4 replies counted.*of client '0': score is nan: "
            "not finite"
        ),
    ) as raised:
        run(AllDiverge(), tmp_path / "run")
    assert "participation.floor" not in str(raised.value)


@dataclass(frozen=True)
class StrictSetup(Method):
    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        everyone.run(self.trial, strict=True)
        return state

    def trial(self, client: Client, down: Down) -> Up:
        return Up(score=float("nan") if client.id == "1" else 0.0)


def test_a_strict_exchange_broken_in_the_setup_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        RunError,
        match=(
            r"StrictSetup could not be set up before round 1: every client has to answer, and 1 of "
            r"4 did not; the first, '1': score is nan"
        ),
    ):
        run(StrictSetup(), tmp_path / "run")


def test_numbers_of_numpy_times_a_tree_and_trees_times_trees() -> None:
    tree = Tree({"w": torch.tensor([1.0, 2.0]), "n": torch.tensor([7])}, "m", ["n"])
    for half in (np.float64(0.5), np.float32(0.5), 0.5):
        assert torch.equal((half * tree)["w"], torch.tensor([0.5, 1.0])) and list(half * tree) == [
            "w"
        ]
        assert torch.equal((tree * half)["w"], torch.tensor([0.5, 1.0]))
    with pytest.raises(TypeError, match=r"a\.apply\(torch\.mul, b\)"):
        tree * tree  # type: ignore[operator]
    assert torch.equal(tree.apply(torch.mul, tree)["w"], torch.tensor([1.0, 4.0]))


def test_with_flat_is_the_inverse_of_flat() -> None:
    tree = Tree(
        {"a": torch.randn(2, 3), "n": torch.tensor([7]), "b": torch.randn(4).to(torch.bfloat16)},
        "m",
        ["n"],
    )
    again = tree.with_flat(tree.flat())
    assert list(again) == ["a", "b"] and again.model == "m"
    assert all(
        torch.equal(again[name], tree[name]) and again[name].dtype == tree[name].dtype
        for name in again
    )
    with pytest.raises(ValueError, match="expected 10 numbers"):
        tree.with_flat(torch.zeros(11))
