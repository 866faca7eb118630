"""Problems with a known answer, run as real experiments, and the results of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.data import federate
from equipoise.experiment.build import prepare
from equipoise.method import Method
from equipoise.records import State, Up, read
from equipoise.runs import Run
from equipoise.server import Server
from equipoise.training.workbench import Workbench
from tests.helpers.plain import plain_mean
from tests.helpers.runs import played, settings

WHOLE = {
    "split": (1.0, 0.0, 0.0),
    "partition": "natural",
    "duplicates": "separate",
}  # every sample is trained on
RATE = 0.05


def scalar(
    method: Any,
    out: Path,
    h: Sequence[float],
    a: Sequence[float],
    start: float = 0.0,
    **changes: Any,
) -> Run:
    """Client i minimises h_i/2 (w - a_i)^2: a single weight and one sample, x = sqrt(h_i/2), y =
    a_i x, under squared error.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, start)
    sites = {}
    for place, (curvature, centre) in enumerate(zip(h, a, strict=True)):
        x = np.sqrt(curvature / 2)
        sites[f"site{place}"] = (np.array([[x]], np.float32), np.array([centre * x], np.float32))
    training = {"lr": RATE, "batch": 1, "steps": 10, **changes.pop("training", {})}
    config = {
        "data": {
            **WHOLE,
            "schema": {"centre": 0.0, "scale": 1.0},
        },  # targets as they are: the optima are known in their unit
        "model": model,
        "method": method,
        "training": training,
        "seed": 7,
        "workers": 0,
        "keep": 100,
        "evaluation": {"every": 0},
        **changes,
    }
    return simulate.run(
        eq.Experiment(**config, dataset=eq.from_sites(sites, kind="regression")), out
    )


def weight(run: Run, round: int | None = None) -> float:
    """The only weight of a scalar problem's global model."""
    return float(server_state(run, round).model["features.weight"])


def server_state(run: Run, round: int | None = None) -> State:
    """The server's state after a round (default: the last), of a run that kept all checkpoints."""
    state: State = _saved(run, "server", run.last_round if round is None else round)[""]
    return state


def client_states(run: Run, round: int | None = None) -> dict[str, Any]:
    """What each client that has a state remembers after a round."""
    return _saved(run, "client", run.last_round if round is None else round)


def _saved(run: Run, kind: str, round: int) -> dict[str, Any]:
    query = "select key, name, max(round) from files where kind = ? and round <= ? group by key"
    return {
        row["key"]: read(run.store.files / row["name"], lazy=False)
        for row in run.store.rows(query, (kind, round))
    }


def bench_of(
    config: dict[str, Any], data: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[Workbench, Method]:
    """The workbench and method of an experiment on some sites, to use single clients by hand."""
    experiment = eq.Experiment(**config, dataset=eq.from_sites(dict(data)))
    federation = federate(experiment.data, experiment.seed, experiment.dataset)
    return prepare(experiment, federation.task, federation.ids, federation)


def first_replies(bench: Workbench, method: Method) -> dict[str, Up]:
    """What every client answers in round 1."""
    server = server_of(bench)
    state = method.start(server)
    found = {}
    for client in server.ids:
        with bench.lending():
            answer = method.client(
                Client(bench, client, 1, 1, {}), method.deliver(server, state, client)
            )
            assert answer is not None
            found[client] = answer
    return found


def server_of(bench: Workbench) -> Server:
    federation = bench.federation
    assert federation is not None
    return Server(
        bench,
        federation.ids,
        dict(zip(federation.ids, map(int, federation.train.sizes), strict=True)),
        rounds=1,
        round=1,
    )


def averaged(ups: Mapping[str, Up], shares: Mapping[str, float]) -> dict[str, Tensor]:
    """The mean of uploaded models by shares."""
    return plain_mean([up.model for up in ups.values()], [shares[client] for client in ups])


def trained(method: Any, out: Path, model: str = "cnn", on: Any = None, **changes: Any) -> Run:
    """A small run on images (`on`: other sites) that keeps every checkpoint.

    `cnn` has batch norm.
    """
    return played(
        settings(method, model, **{"keep": 100, "evaluation": {"every": 0}, **changes}), out, on
    )
