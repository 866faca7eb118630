"""What a client serves says for itself whether it is the same for all; no name decides anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import equipoise as eq
from equipoise.client import Client, Inputs
from equipoise.method import Cohort, Method, Served
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.runs.export import export
from equipoise.runtime.evaluation_messages import EvaluateModels
from equipoise.runtime.messages import Request
from equipoise.server import Server
from equipoise.storage.store import RunError
from equipoise.transports.inprocess import InProcess

DATA = {"name": "digits", "partition": "iid", "clients": 4, "test": "global"}


@dataclass(frozen=True)
class OwnDelivery(Method):
    """Client 0 is delivered the trained model, every other the initial one: under the name that
    FedAvg uses.
    """

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=state.model if client_id == "0" else server.initial())


class Shift(nn.Module):
    """Inputs moved by a constant of the client's."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.register_buffer("by", torch.tensor(by))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


@dataclass(frozen=True)
class OwnInputs(Method):
    """Every client's samples are moved by its number."""

    def inputs(self, client: Client, down: Down) -> Inputs:
        shift = Shift(float(client.id))
        return Inputs(train=lambda x, noise: shift(x), other=shift, random=False)


@dataclass(frozen=True)
class StateServed(Method):
    """Serves, under a name of FedAvg's, what only the client's own state holds."""

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        client.fit(model)
        client.state["mine"] = model
        return Up(model=model)

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        return {
            "teacher": client.load(client.state["mine"]),
            "global": Served(client.load(down.model), same_for_all=True),
        }


def experiment(method: Any, **more: Any) -> eq.Experiment:
    return eq.Experiment(
        **{
            "data": DATA,
            "method": method,
            "training": {"lr": 0.1},
            "rounds": 2,
            "workers": 0,
            **more,
        }
    )


def accuracy_on_shared(run: eq.Run, name: str, client: str, wanted: eq.Experiment) -> float:
    """Measured directly, without the engine."""
    from equipoise.data import federate

    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    places = torch.from_numpy(np.array(federation.shared_test, dtype=np.int64))
    with torch.no_grad():
        logits = run.model(name, client=client, experiment=wanted)(federation.x[places])
    return float((logits.argmax(1) == federation.y[places]).double().mean())


@pytest.mark.parametrize(
    "method", [OwnDelivery(), OwnInputs(), StateServed()], ids=lambda method: type(method).__name__
)
@pytest.mark.parametrize("splits", [(), ("train",)])
def test_a_model_that_differs_between_clients_is_measured_for_each(
    method: Method, splits: tuple[str, ...], tmp_path: Path
) -> None:
    wanted = experiment(method, evaluation={"splits": splits})
    run = eq.run(wanted, tmp_path / "run")
    name = run.main_model
    rows = {
        row["client"]: row["value"]
        for row in run.table(phase="final", split="shared", metric="accuracy", model=name)
    }
    assert set(rows) == set(run.clients)
    assert rows == {
        client: pytest.approx(accuracy_on_shared(run, name, client, wanted), abs=1e-9)
        for client in run.clients
    }
    assert len(set(rows.values())) > 1
    with pytest.raises(RunError, match="belongs to a client"):
        run.model(name, experiment=wanted)


def test_a_model_that_is_the_same_for_all_is_measured_once_for_all(tmp_path: Path) -> None:
    wanted = experiment(StateServed())
    run = eq.run(wanted, tmp_path / "run")
    rows = run.table(phase="final", split="shared", metric="accuracy", model="global")
    assert [row["client"] for row in rows] == ["all"]
    assert rows[0]["value"] == pytest.approx(
        accuracy_on_shared(run, "global", "2", wanted), abs=1e-9
    )
    assert run.model("global", experiment=wanted) is not None


def test_without_parts_of_their_own_clients_are_not_asked_for_a_model_that_is_the_same_for_all(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    class Counting(InProcess):
        def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> Any:
            asked.extend(request.step for request in requests)
            return super().exchange(requests, deadline)

    wanted = experiment("fedavg", rounds=1, evaluation={"splits": ()})
    eq.run(wanted, tmp_path / "run", transport=Counting)
    assert asked.count(EvaluateModels.step) == 1


@dataclass(frozen=True)
class Marked(Method):
    main: str = "b"

    def serves(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        return {
            name: Served(client.load(down.model), same_for_all=True, main=name == self.main)
            for name in ("personal", "global", "b")
        }


@pytest.mark.parametrize(
    ("marked", "expected"), [("b", "b"), ("global", "global"), ("none of them", "personal")]
)
def test_the_main_model_is_the_marked_one_or_else_the_first(
    marked: str, expected: str, tmp_path: Path
) -> None:
    run = eq.run(experiment(Marked(marked)), tmp_path / "run")
    assert run.main_model == expected
    assert run.store.meta("main model") == expected


@dataclass(frozen=True)
class StateOfItsOwn(StateServed):
    """Asks for its state without a default, as a method may whose clients have all trained."""


def test_serves_is_never_called_with_an_invented_client(tmp_path: Path) -> None:
    run = eq.run(experiment(StateOfItsOwn(), evaluation={"splits": ()}), tmp_path / "run")
    assert len(run.table(phase="final", split="shared", metric="accuracy", model="teacher")) == 4


def test_run_model_and_export_apply_the_clients_inputs(tmp_path: Path) -> None:
    wanted = experiment(OwnInputs(), data={**DATA, "test": "local"}, rounds=3)
    run = eq.run(wanted, tmp_path / "run")
    from equipoise.data import federate

    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    measured = run.final("accuracy", "global")
    for place, client in enumerate(run.clients):
        own = torch.from_numpy(np.array(federation.test[place], dtype=np.int64))
        net = run.model("global", client=client, experiment=wanted)
        with torch.no_grad():
            right = (net(federation.x[own]).argmax(1) == federation.y[own]).double().mean()
        assert float(right) == pytest.approx(measured[client])
    path, _ = export(run, "global", "3", tmp_path / "out.safetensors", experiment=wanted)
    tensors = load_file(path)
    assert float(tensors["inputs.by"]) == 3.0
    fresh = run.model("global", client="0", experiment=wanted)
    fresh.load_state_dict(tensors)
    own = torch.from_numpy(np.array(federation.test[3], dtype=np.int64))
    with torch.no_grad():
        assert float(
            (fresh(federation.x[own]).argmax(1) == federation.y[own]).double().mean()
        ) == pytest.approx(measured["3"])


@dataclass(frozen=True)
class PlainInputs(Method):
    def inputs(self, client: Client, down: Down) -> Inputs:
        return Inputs(train=lambda x, noise: x + 1, other=lambda x: x + 1, random=False)


def test_inputs_that_a_file_cannot_hold_are_not_exported_silently(tmp_path: Path) -> None:
    wanted = experiment(PlainInputs(), rounds=1)
    run = eq.run(wanted, tmp_path / "run")
    with pytest.raises(RunError, match="torch module with buffers"):
        export(run, "global", "0", experiment=wanted)


@dataclass(frozen=True)
class DeliversNetworks(Method):
    """Loads a network for every client it delivers to."""

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        return Down(model=server.load(state.model))


def test_networks_taken_while_delivering_for_measurements_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.training.workbench import Workbench

    built: list[str] = []
    build = Workbench._build
    monkeypatch.setattr(
        Workbench, "_build", lambda self, key: built.append(key) or build(self, key)
    )
    eq.run(experiment(DeliversNetworks(), data={**DATA, "clients": 12}), tmp_path / "run")
    # the round's own deliveries hold one network per client at most; those of measurements hold one
    assert len(built) <= 14


@dataclass(frozen=True)
class RatesSeen(Method):
    """Records the learning rate that client and server see before round 1 and in every round."""

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        return state.with_(rates=[[server.lr, everyone.run(self.rate).numbers("rate").tolist()]])

    def rate(self, client: Client, down: Down) -> Up:
        return Up(rate=client.lr)


def test_the_learning_rate_of_the_setup_is_that_of_round_1(tmp_path: Path) -> None:
    from equipoise.storage.checkpoint import load_server

    run = eq.run(experiment(RatesSeen(), training={"lr": 0.1, "lr_decay": 0.5}), tmp_path / "run")
    assert load_server(run.store).rates == [[0.1, [0.1] * 4]]


def test_features_of_no_samples_have_the_features_shape() -> None:
    from equipoise.data import federate
    from equipoise.experiment.build import prepare

    wanted = experiment(
        "fedavg",
        model={"name": "cnn", "width": 2, "hidden": 7},
        data={**DATA, "split": (0.8, 0.0, 0.2)},
    )
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    bench, _ = prepare(wanted, federation.task, federation.ids, federation)
    client = Client(bench, "0", 1, 1, {})
    assert client.features(client.load(None), client.validation).shape == (0, 7)
    assert client.predict(client.load(None), client.validation).shape == (0, 10)


@dataclass(frozen=True)
class NeedsValidation(Method):
    needs = ("validation",)

    def observe(self, server: Server, state: State, ups: eq.Ups) -> State:
        model = server.load(ups[0].model)
        return state.with_(accuracy=server.accuracy(model), loss=server.loss(model))


def test_the_server_measures_on_its_validation_data(tmp_path: Path) -> None:
    from equipoise.data import federate
    from equipoise.storage.checkpoint import load_server

    wanted = experiment(NeedsValidation(), data={**DATA, "clients": 1}, rounds=1)
    run = eq.run(wanted, tmp_path / "run")
    federation = federate(wanted.data, wanted.seed, wanted.dataset)
    places = torch.from_numpy(np.array(federation.server_validation, dtype=np.int64))
    with torch.no_grad():
        logits = run.model("global", experiment=wanted)(federation.x[places])
    state = load_server(run.store)
    assert state.accuracy == pytest.approx(
        float((logits.argmax(1) == federation.y[places]).double().mean())
    )
    assert state.loss == pytest.approx(
        float(nn.functional.cross_entropy(logits, federation.y[places])), rel=1e-5
    )


def test_no_validation_samples_are_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=(
            "NeedsValidation measures models on validation data at the server, and there are none"
        ),
    ):
        eq.run(
            experiment(NeedsValidation(), data={**DATA, "split": (0.8, 0.0, 0.2)}), tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_method_that_did_not_ask_has_no_validation_data_by_accident(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Peeks(Method):
        def observe(self, server: Server, state: State, ups: eq.Ups) -> State:
            return state.with_(seen=len(server.validation))

    with pytest.raises(RuntimeError, match=r"needs = \(.validation.,\)"):
        eq.run(experiment(Peeks()), tmp_path / "run")
