"""FedGKD: its reduction to FedAvg, its buffer of models, and a plain reference of its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import methods
from equipoise.client import Client
from equipoise.method import Ups, Weights
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedgkd import FedGKD
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.tree import Tree
from tests.helpers.counting import counted
from tests.helpers.digits import (
    NETWORKS,
    batches_of,
    bench_for,
    few,
    finished,
    plain_epoch,
    plain_net,
    samples_of,
)
from tests.helpers.plain import assert_near, plain_mean, same


@pytest.mark.parametrize("network", NETWORKS)
def test_without_distillation_it_is_fedavg(tmp_path: Path, network: str) -> None:
    plain = finished("fedavg", tmp_path / "fedavg", network).model
    assert same(finished(FedGKD(gamma=0), tmp_path / "off", network).model, plain)
    assert not same(finished(FedGKD(), tmp_path / "on", network).model, plain)


def after_rounds(method: FedGKD, rounds: int) -> tuple[Server, list[Tree], State]:
    """The state after rounds in which the only reply of round t is the initial model times t + 1,
    and all global models so far.
    """
    bench = bench_for(method)
    first = bench.initial("model")
    server = Server(bench, ["0"], {"0": 10}, rounds=9)
    state, models = method.start(server), [first]
    for number in range(1, rounds + 1):
        server.round = number
        ups = Ups([("0", Up(model=first + number * first))])
        state = method.update(server, state, ups, Weights(np.ones(1)))
        models.append(ups[0].model)
    return server, models, state


@pytest.mark.parametrize(("buffer", "rounds"), [(5, 1), (5, 3), (5, 7), (2, 3), (3, 2)])
def test_the_teacher_is_the_mean_of_the_last_models_that_there_are(
    buffer: int, rounds: int
) -> None:
    server, models, state = after_rounds(FedGKD(buffer=buffer), rounds)
    last = models[-buffer:]
    assert len(state.past) == len(last) - 1, "the present model is not stored twice"
    assert_near(FedGKD().deliver(server, state, "0").teacher, plain_mean(last, [1] * len(last)))
    assert same(state.model, models[-1])


def test_a_buffer_of_equal_models_is_that_model() -> None:
    bench = bench_for()
    server, method = Server(bench, ["0"], {"0": 10}, rounds=9), FedGKD(buffer=3)
    state = method.start(server)
    for _ in range(4):
        state = method.update(
            server, state, Ups([("0", Up(model=bench.initial("model")))]), Weights(np.ones(1))
        )
    assert same(state.teacher, bench.initial("model"))


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_buffer_of_one_is_the_model_itself_and_is_sent_once(rounds: int) -> None:
    server, models, state = after_rounds(FedGKD(buffer=1), rounds)
    assert (
        set(FedGKD(buffer=1).deliver(server, state, "0")) == {"model"}
        and "teacher" not in state
        and not state.past
    )
    client, down = Client(server._bench, "0", 1, 9, {}), Down(model=models[-1])
    assert same(
        FedGKD(buffer=1).client(client, down).model,
        FedGKD().client(client, down.with_(teacher=models[-1])).model,
    )


def test_the_first_round_sends_one_model_too() -> None:
    server, _, state = after_rounds(FedGKD(), 0)
    assert set(FedGKD().deliver(server, state, "0")) == {"model"}


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_teacher_equal_to_the_student_adds_nothing_to_the_first_step(temperature: float) -> None:
    bench = bench_for(network="mlp", training={"steps": 1, "batch": 64})
    down = Down(model=bench.initial("model"))
    taught = (
        FedGKD(gamma=50, temperature=temperature).client(Client(bench, "0", 1, 2, {}), down).model
    )
    plain = FedAvg().client(Client(bench, "0", 1, 2, {}), down).model
    assert_near(taught, plain, 1e-6)
    elsewhere = down.with_(teacher=down.model + down.model)
    other = (
        FedGKD(gamma=50, temperature=temperature)
        .client(Client(bench, "0", 1, 2, {}), elsewhere)
        .model
    )
    assert (other - plain).norm() > 0.01


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_rounds_match_a_plain_reference(tmp_path: Path, network: str) -> None:
    gamma, temperature, rounds = 3.0, 2.0, 4
    run = eq.run(
        few(FedGKD(gamma=gamma, buffer=2, temperature=temperature), network, rounds=rounds),
        tmp_path / "run",
    )
    bench = bench_for(network=network)
    past: list[Any] = [bench.initial("model")]
    for number in range(1, rounds + 1):
        teacher = plain_net(bench, plain_mean(past[-2:], [1] * len(past[-2:]))).eval()
        uploads, sizes = [], []
        for client in run.clients:
            x, y = samples_of(bench, client)
            net = plain_net(bench, past[-1])

            def taught(
                features: Any, logits: Any, places: Any, x: Any = x, teacher: Any = teacher
            ) -> Any:
                with torch.no_grad():
                    target = (teacher(x[places]) / temperature).softmax(1)
                total = 0.0
                for p, q in zip(target, (logits / temperature).softmax(1), strict=True):
                    total = total + (p * (p.log() - q.log())).sum()
                return gamma / 2 * temperature**2 * total / len(places)

            plain_epoch(net, x, y, batches_of(client, number), taught)
            uploads.append(net.state_dict())
            sizes.append(len(y))
        past.append(plain_mean(uploads, sizes))
    assert_near(load_server(run.store).model, past[-1], 2e-5)


def test_random_inputs_are_answered_by_the_teacher_itself() -> None:
    data = {"name": "digits", "partition": "iid", "clients": 2, "samples": 120, "augment": ["flip"]}
    bench = bench_for(network="mlp", data=data, training={"steps": 1})
    down = Down(model=bench.initial("model"))
    taught, plain = (
        method.client(Client(bench, "0", 1, 2, {}), down).model
        for method in (FedGKD(gamma=50), FedAvg())
    )
    assert_near(taught, plain, 1e-6)


def test_another_weight_rule_may_weigh_its_replies(tmp_path: Path) -> None:
    run = eq.run(few(eq.compose(FedGKD(), weights=FedAvg(average="uniform"))), tmp_path / "run")
    assert {row["share"] for row in run.weights()} == {1 / 3}
    assert_near(
        load_server(run.store).teacher,
        plain_mean([load_server(run.store).model, *load_server(run.store).past], [1] * 4),
    )


def test_what_it_costs(tmp_path: Path) -> None:
    for gamma in (0.2, 0.0):
        with counted() as passes:
            run = eq.run(few(FedGKD(gamma=gamma), training={"epochs": 2}), tmp_path / str(gamma))
        samples = sum(run.store.meta("sizes")["train"])
        assert passes == {
            ("client", "gradient"): 3 * 2 * samples,
            **({("client", "forward"): 3 * samples} if gamma else {}),
        }
    sent = [row["bytes_down"] for row in eq.run(few(FedGKD()), tmp_path / "sent").rounds()]
    assert sent[1] == sent[2] == 2 * sent[0]  # the teacher travels from round 2 on


def test_regression_distils_by_squared_error(tmp_path: Path) -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    sites = {
        name: (
            draw.standard_normal((20, 3)).astype(np.float32),
            draw.standard_normal(20).astype(np.float32),
        )
        for name in "ab"
    }
    changes = {"dataset": eq.from_sites(sites, kind="regression"), "data": {"partition": "natural"}}
    found = [
        finished(FedGKD(gamma=gamma), tmp_path / str(gamma), "mlp", **changes).model
        for gamma in (0.0, 5.0)
    ]
    assert not same(*found)


@pytest.mark.parametrize(
    ("name", "value"), [("gamma", -0.1), ("buffer", 0), ("buffer", 1.5), ("temperature", 0)]
)
def test_bad_parameters_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"method.{name}"):
        methods.make("fedgkd", {name: value})


def test_what_is_served(tmp_path: Path) -> None:
    run = eq.run(few("fedgkd", "mlp", rounds=2, evaluation={"every": 1}), tmp_path / "run")
    assert run.models() == ["global"] and run.main_model == "global"
    assert same(run.model("global").state_dict(), load_server(run.store).model)
