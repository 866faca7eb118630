"""What a run records is what happened: rows of the shared test set, repeated rounds, client state,
seconds, precision.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.data import federate
from equipoise.engine.evaluation import SHARED_CHUNK
from equipoise.experiment.build import _try_bfloat16
from equipoise.losses.terms import Batch, supervised, term
from equipoise.method import Cohort
from equipoise.methods.fedavg import FedAvg
from equipoise.models import Outputs
from equipoise.records import Down, State, Up
from equipoise.runs import Run
from equipoise.server import Server
from equipoise.storage.store import RunError
from tests.helpers.callbacks import Calling
from tests.helpers.problems import bench_of, client_states
from tests.helpers.runs import everything, played, settings, sites

# The shared test set.


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_a_shared_test_set_of_many_requests_are_those_of_one_pass(
    workers: int, tmp_path: Path
) -> None:
    """The global model is measured once, for all; a personal one by its owner; both on all samples,
    however they are cut.
    """
    data = {"split": (0.1, 0.1, 0.8), "partition": "natural", "test": "global"}
    grown = {
        name: (x + 0.9 * np.random.default_rng(1).normal(size=x.shape), y)
        for name, (x, y) in sites({"a": 1500, "b": 1300}).items()
    }
    metrics = {"metrics": ["accuracy", "loss", "f1"]}
    wanted = eq.Experiment(
        **settings("fedakd", data=data, rounds=1, evaluation=metrics, workers=workers),
        dataset=eq.from_sites(grown),
    )
    run = simulate.run(wanted, tmp_path / "run")
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    x, y = federation.x[federation.shared_test], federation.y[federation.shared_test]
    assert len(y) > 2 * SHARED_CHUNK and len(y) % SHARED_CHUNK
    rows = {
        (r["client"], r["model"], r["metric"]): r["value"]
        for r in run.table(phase="final", split="shared")
    }
    owners = [("all", "global"), ("a", "personal"), ("b", "personal")]
    assert rows.keys() == {
        (*owner, metric) for owner in owners for metric in ("accuracy", "loss", "f1")
    }
    for client, model in owners:
        net = run.model(model, client=None if client == "all" else client).eval()
        with torch.no_grad():
            logits = net(x).double()
        guess = logits.argmax(1)
        assert rows[client, model, "accuracy"] == pytest.approx(
            float((guess == y).double().mean()), abs=1e-12
        )
        assert 0.4 < rows[client, model, "accuracy"] < 0.99
        assert rows[client, model, "loss"] == pytest.approx(
            float(F.cross_entropy(logits, y)), rel=1e-6
        )
        scores = [
            2 * float(((guess == k) & (y == k)).sum()) / float((guess == k).sum() + (y == k).sum())
            for k in range(federation.task.outputs)
        ]
        assert rows[client, model, "f1"] == pytest.approx(np.mean(scores), rel=1e-9)
    assert not run.table(phase="final", split="test"), "no client has test data of its own"


# Rounds that are repeated.


@dataclass(frozen=True)
class Trial(FedAvg):
    """After the round all must answer once more; a client that does not breaks the round."""

    broken: str = "bo"  # who sends what is not finite in round 2, or "all"
    strict: bool = True

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        state = super().round(server, state, cohort)
        cohort.run(self.trial, Down(model=state.model), strict=self.strict)
        return state

    def trial(self, client: Client, down: Down) -> Up:
        client.state["tried"] = [*client.state.get("tried", []), [client.round, client.attempt]]
        return Up(
            value=float("nan") if client.round == 2 and self.broken in (client.id, "all") else 1.0
        )


def story(run: Run) -> list[tuple[int, list[str], list[str]]]:
    return [(row["attempt"], row["cohort"], row["joined"]) for row in run.rounds()]


def test_a_strict_exchange_repeats_the_round_without_who_failed(tmp_path: Path) -> None:
    run = played(settings(Trial()), tmp_path / "strict")
    everyone, others = ["ada", "bo", "cy", "di"], ["ada", "cy", "di"]
    assert story(run) == [(0, everyone, everyone), (1, others, others), (0, everyone, everyone)]
    assert [(r["round"], r["attempt"], r["exchange"], r["client"]) for r in run.rejected()] == [
        (2, 0, 2, "bo")
    ]
    assert "not finite" in run.rejected()[0]["reason"]
    assert {w["client"] for w in run.weights() if w["round"] == 2} == set(others)
    states = client_states(run)
    assert states["bo"]["tried"] == [[1, 0], [3, 0]], (
        "what a given-up attempt changed does not stand"
    )
    assert all(states[client]["tried"] == [[1, 0], [2, 1], [3, 0]] for client in others)


def test_without_strict_the_round_goes_on_without_who_failed(tmp_path: Path) -> None:
    run = played(settings(Trial(strict=False)), tmp_path / "run")
    everyone, others = ["ada", "bo", "cy", "di"], ["ada", "cy", "di"]
    assert story(run) == [(0, everyone, everyone), (0, everyone, others), (0, everyone, everyone)]
    assert {w["client"] for w in run.weights() if w["round"] == 2} == set(everyone), (
        "its model was weighed before it failed"
    )


def test_a_strict_exchange_that_no_one_answers_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"round 2 was given up 3 times: no client was available"):
        played(settings(Trial(broken="all")), tmp_path / "run")
    with pytest.raises(
        RunError, match=r"round 2 was given up 1 times: client 'ada' left in a step that needs all"
    ):
        played(settings(Trial(broken="all"), participation={"tries": 1}), tmp_path / "one")


# What a client keeps.


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Keeps a note in round 1, and throws it away in round 2."""

    def client(self, client: Client, down: Down) -> Up:
        if client.round == 1:
            client.state["note"], client.state["kept"] = client.id, True
        if client.round == 2:
            del client.state["note"]
        model = client.load(down.model)
        client.fit(model)
        return Up(model=model, had="note" in client.state)


@pytest.mark.parametrize("transport", [None, "loopback"])
def test_a_deleted_entry_of_the_state_stays_deleted(transport: str | None, tmp_path: Path) -> None:
    run = played(settings(Forgetful(), keep=100), tmp_path / "run", transport=transport)
    for number, expected in ((1, {"note", "kept"}), (2, {"kept"}), (3, {"kept"})):
        assert (
            all(set(own) == expected for own in client_states(run, number).values())
            and len(client_states(run, number)) == 4
        )
    assert not any("note" in name for name in everything(run))


# Where the time went.


@pytest.mark.parametrize("workers", [0, 2])
def test_phases_of_a_round_are_parts_of_its_time(workers: int, tmp_path: Path) -> None:
    """At least 0 each, and together no more than passed between the rounds.

    Slow clients, measuring and refusals are in it.
    """
    moments: list[float] = []
    watch = Calling(
        on_start=lambda start: moments.append(time.perf_counter()),
        on_round=lambda record: moments.append(time.perf_counter()),
    )
    data = {"split": (0.3, 0.2, 0.5), "partition": "natural"}
    faults = {"script": [{"round": 2, "client": "bo", "kind": "nan"}]}
    config = settings(
        "fedekd",
        data=data,
        faults=faults,
        workers=workers,
        evaluation={"after_local": True, "distances": True},
    )
    run = simulate.run(
        eq.Experiment(**config, dataset=eq.from_sites(sites({"ada": 300, "bo": 200, "cy": 9}))),
        tmp_path / "run",
        watch,
    )
    rows = run.rounds()
    assert len(rows) == 3 == len(moments) - 1
    for row, began, ended in zip(rows, moments, moments[1:], strict=False):
        assert row["seconds"]["transport"] >= 0 and all(
            row["seconds"][phase] > 0 for phase in ("clients", "aggregation", "evaluation", "store")
        )
        assert sum(row["seconds"].values()) <= ended - began


# What a loss is computed in.


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.thorough
def test_a_loss_receives_full_precision_under_bfloat16(several: bool) -> None:
    """The network works in bfloat16, its outputs are float32 when they reach the loss, and so is
    the loss.
    """
    _try_bfloat16("cpu")
    bench, _ = bench_of(
        settings("fedavg", "cnn", training={"lr": 0.05, "batch": 5, "precision": "bfloat16"}),
        sites(),
    )
    client = Client(bench, "ada", 1, 1, {})
    models = [client.load(None) for _ in range(2 if several else 1)]
    inside: set[torch.dtype] = set()
    for model in models:
        model.net.head.register_forward_hook(lambda module, given, out: inside.add(out.dtype))
    received: set[tuple[torch.dtype, ...]] = set()

    def look(outputs: Outputs, batch: Batch) -> torch.Tensor:
        received.add(
            (
                outputs.features.dtype,
                outputs.logits.dtype,
                batch.x.dtype,
                batch.supervise(outputs.logits, batch.y).dtype,
            )
        )
        return outputs.logits.sum() * 0

    loss: Any = supervised + term(look)
    client.fit(models if several else models[0], [loss] * len(models) if several else loss)
    assert inside == {torch.bfloat16} and received == {(torch.float32,) * 4}
    assert {tensor.dtype for model in models for tensor in model.trained.values()} == {
        torch.float32
    }
