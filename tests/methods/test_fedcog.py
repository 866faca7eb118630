"""FedCOG: FedAvg where it does not act, images against a plain float64 loop with torch.optim, and
what clients learn on them.
"""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.client import Client
from equipoise.composition import compose
from equipoise.losses import disagreement
from equipoise.losses.generation import lacking_labels
from equipoise.methods.fedcog import FedCOG
from equipoise.methods.fedequilibria import FedEquilibria
from equipoise.records import Down
from equipoise.streams import number, torch_stream
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree
from tests.helpers.counting import counted
from tests.helpers.digits import refused
from tests.helpers.images import NETWORKS, SEED, at, bench, net_of, own, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.runs import sites

QUICK: dict[str, Any] = {"start_round": 1, "steps": 3, "images": 20}
SKEWED = sites(labels={"ada": [0, 0, 0, 1], "bo": [2], "cy": [0, 1, 1, 2], "di": [0, 2]})


@pytest.mark.parametrize("network", NETWORKS)
def test_without_distillation_or_before_its_first_round_it_is_fedavg(
    tmp_path: Path, network: str
) -> None:
    plain = play("fedavg", tmp_path / "plain", network, on=SKEWED)
    off = play(FedCOG(**{**QUICK, "lambda_kd": 0}), tmp_path / "off", network, on=SKEWED)
    later = play(FedCOG(**{**QUICK, "start_round": 4}), tmp_path / "later", network, on=SKEWED)
    third = play(FedCOG(**{**QUICK, "start_round": 3}), tmp_path / "third", network, on=SKEWED)
    for round in (1, 2, 3):
        assert_equal(shared(plain, round), shared(off, round))
        assert_equal(shared(plain, round), shared(later, round))
    assert_equal(shared(plain, 2), shared(third, 2))
    assert not torch.equal(shared(plain)["head.weight"], shared(third)["head.weight"])
    assert not own(off, "previous") and not own(later, "previous")


def test_labels_are_shared_out_by_what_is_lacking_and_rounded_down() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        counts, images = draw.integers(0, 30, draw.integers(2, 12)), int(draw.integers(1, 300))
        lacking = [int(counts.max() - n) for n in counts]
        total = sum(lacking)
        expected = [math.floor(Fraction(images * n, total)) if total else 0 for n in lacking]
        assert (
            lacking_labels(torch.from_numpy(counts), images)
            .bincount(minlength=len(counts))
            .tolist()
            == expected
        )
    assert not len(lacking_labels(torch.tensor([4, 4, 4]), 256)) and not len(
        lacking_labels(torch.tensor([0, 0]), 256)
    )


def brute_disagreement(first: np.ndarray, second: np.ndarray) -> float:
    values = []
    for a, b in zip(first, second, strict=True):
        p, q = (
            np.clip(np.exp(z - z.max()) / np.exp(z - z.max()).sum(), 0.01, 0.99) for z in (a, b)
        )
        values.append(
            sum(
                0.5 * x * math.log(x / ((x + y) / 2)) + 0.5 * y * math.log(y / ((x + y) / 2))
                for x, y in zip(p, q, strict=True)
            )
        )
    return float(np.mean(values))


def test_disagreement_is_the_clamped_jensen_shannon_divergence() -> None:
    draw = np.random.default_rng(1)
    for scale in (0.1, 2.0, 30.0):
        first, second = scale * draw.standard_normal((2, 7, 4))
        found = float(disagreement(torch.from_numpy(first), torch.from_numpy(second)))
        assert found == pytest.approx(brute_disagreement(first, second), rel=1e-12) and found >= 0
        assert found == pytest.approx(
            float(disagreement(torch.from_numpy(second), torch.from_numpy(first))), rel=1e-12
        )
    assert float(disagreement(torch.from_numpy(first), torch.from_numpy(first))) == 0


def another(tree: Tree) -> Tree:
    """A model that answers otherwise."""
    draw = torch.Generator().manual_seed(3)
    return tree + tree.params.apply(lambda value: 0.5 * torch.randn(value.shape, generator=draw))


def made(
    workbench: Workbench, method: FedCOG, previous: Tree | None
) -> tuple[Client, Tensor, Tensor, Tensor]:
    client = at(workbench, "ada", state={} if previous is None else {"previous": previous})
    labels = lacking_labels(torch.bincount(client.train.y, minlength=3), method.images)
    return client, labels, *method.generated(client, Down(model=workbench.initial("model")), labels)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("first", [False, True])
def test_images_match_a_plain_loop_with_torch_optim(network: str, first: bool) -> None:
    """The images of the least loss, in float64, by Adam of torch's own.

    The loss swings at this rate, so that the best is not the last.
    """
    method = FedCOG(images=12, steps=9, pixel_lr=0.5, lambda_dis=2.0)
    workbench, _ = bench(method, network, on=SKEWED)
    previous = None if first else another(workbench.initial("model"))
    _, labels, images, answers = made(workbench, method, previous)
    shared_net = net_of(workbench).double().eval()
    own_net = net_of(workbench, previous).double().eval()
    pixels = (
        torch.randn(
            len(labels), 1, 8, 8, generator=torch_stream(SEED, "client", 1, "ada", "fedcog pixels")
        )
        .double()
        .requires_grad_()
    )
    adam, losses, seen = torch.optim.Adam([pixels], lr=0.5, betas=(0.5, 0.9)), [], []
    for _ in range(9):
        logits = shared_net(pixels)
        p, q = own_net(pixels).softmax(1).clamp(0.01, 0.99), logits.softmax(1).clamp(0.01, 0.99)
        gap = (0.5 * p * (2 * p / (p + q)).log() + 0.5 * q * (2 * q / (p + q)).log()).sum() / len(p)
        loss = -logits.log_softmax(1)[torch.arange(len(labels)), labels].mean() + 2.0 * (
            1 - gap.clamp(0, 1)
        )
        losses.append(float(loss.detach()))
        seen.append((pixels.detach().clone(), logits.detach().clone()))
        adam.zero_grad()
        loss.backward()
        adam.step()
    best = int(np.argmin(losses))
    torch.testing.assert_close(images.double(), seen[best][0], rtol=0, atol=1e-2)
    torch.testing.assert_close(answers.double(), seen[best][1], rtol=0, atol=2e-2)


@pytest.mark.parametrize("network", NETWORKS)
def test_stored_answers_are_those_of_the_stored_images(network: str) -> None:
    """Also where the loss was least before the last step: a rate of 30 overshoots at once."""
    method = FedCOG(images=12, steps=6, pixel_lr=30.0)
    workbench, _ = bench(method, network, on=SKEWED)
    client, labels, images, answers = made(workbench, method, another(workbench.initial("model")))
    with torch.no_grad():
        found = net_of(workbench).eval()(images)
        start = net_of(workbench).eval()(
            torch.randn(images.shape, generator=client.stream("fedcog pixels"))
        )
    torch.testing.assert_close(found, answers, rtol=1e-4, atol=1e-4)
    assert (
        nn.functional.cross_entropy(answers, labels)
        <= nn.functional.cross_entropy(start, labels) + 0.1
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_making_images_moves_no_weight(network: str) -> None:
    workbench, _ = bench(FedCOG(), network, on=SKEWED)
    previous = another(workbench.initial("model"))
    with workbench.lending():
        made(workbench, FedCOG(images=9, steps=4), previous)
        lent = list(workbench._lent)
        # gradients reach pixels alone
        assert all(parameter.grad is None for model in lent for parameter in model.net.parameters())
    assert_equal(lent[0].tree(), workbench.initial("model"))
    assert_equal(lent[1].tree(), previous)
    assert all(parameter.requires_grad for model in lent for parameter in model.net.parameters())


def test_disagreement_draws_images_to_where_the_two_models_differ() -> None:
    workbench, _ = bench(FedCOG(), "mlp", on=SKEWED)
    previous = another(workbench.initial("model"))
    gaps = []
    for weight in (0.0, 20.0):
        *_, images, answers = made(
            workbench, FedCOG(images=12, steps=60, lambda_dis=weight), previous
        )
        gaps.append(
            float(disagreement(net_of(workbench, previous).eval()(images).detach(), answers))
        )
    assert gaps[1] > gaps[0] + 0.01


@pytest.mark.parametrize("weighting", ["lambda", "ratio"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_client_matches_a_plain_loop(network: str, weighting: Any) -> None:
    method = FedCOG(**QUICK, lambda_kd=3.0, temperature=2.0, weighting=weighting)
    training = {"lr": 0.05, "batch": 5, "epochs": 2}
    workbench, _ = bench(method, network, on=SKEWED, training=training)
    previous = another(workbench.initial("model"))
    client, _, images, answers = made(workbench, method, previous)
    found = method.client(client, Down(model=workbench.initial("model"))).model
    counts = np.bincount(client.train.y.numpy(), minlength=3)
    lacking = int((counts.max() - counts).sum())
    real, taught = (
        (1.0, 3.0)
        if weighting == "lambda"
        else (np.array([len(client.train), lacking]) / (len(client.train) + lacking))
    )
    net = net_of(workbench)
    sgd, order, batches = (
        torch.optim.SGD(net.parameters(), lr=0.05),
        client.stream("batches"),
        client.stream("fedcog batches"),
    )
    waiting: list[Tensor] = []
    with torch.random.fork_rng():
        torch.manual_seed(number(SEED, "client", 1, "ada", "batches torch"))
        for _ in range(2):
            for places in torch.randperm(len(client.train), generator=order).split(5):
                waiting = waiting or list(torch.randperm(len(images), generator=batches).split(5))
                chosen = waiting.pop(0)
                net.train()
                loss = real * nn.functional.cross_entropy(
                    net(client.train.x[places]), client.train.y[places]
                )
                net.eval()
                target, student = (
                    (answers[chosen] / 2).softmax(1),
                    (net(images[chosen]) / 2).log_softmax(1),
                )
                loss = loss + taught * 4 * (target * (target.log() - student)).sum() / len(chosen)
                sgd.zero_grad()
                loss.backward()
                sgd.step()
    assert_near(found, dict(net.state_dict()), 5e-5)
    assert_equal(client.state["previous"], found)


def test_made_images_stay_out_of_batch_norm_statistics(tmp_path: Path) -> None:
    """At a rate that moves no weight the statistics are those of FedAvg."""
    still = {"training": {"lr": 1e-30, "batch": 5}}
    taught = play(FedCOG(**QUICK, lambda_kd=5.0), tmp_path / "a", "cnn", on=SKEWED, **still)
    plain = play("fedavg", tmp_path / "b", "cnn", on=SKEWED, **still)
    assert_equal(shared(taught).rest, shared(plain).rest)
    assert any("running_var" in name for name in shared(plain).rest)


def test_a_client_keeps_the_model_it_uploaded_last(tmp_path: Path) -> None:
    faults = {"script": [{"round": 3, "client": "ada", "kind": "drop"}]}
    run = play(FedCOG(**{**QUICK, "start_round": 2}), tmp_path / "run", on=SKEWED, faults=faults)
    first, second, third = (own(run, "previous", round) for round in (1, 2, 3))
    assert set(first) == set(run.clients)  # also of rounds before the first with images
    assert_equal(second["ada"], third["ada"])
    assert not torch.equal(first["ada"]["head.weight"], second["ada"]["head.weight"])
    assert run.models() == ["global"]


def test_a_balanced_client_trains_as_in_fedavg() -> None:
    even = {
        "ada": (np.zeros((6, 1, 8, 8), np.float32), np.array([0, 1, 2] * 2)),
        "bo": (np.ones((6, 1, 8, 8), np.float32), np.array([0, 1, 2] * 2)),
    }
    whole = {"data": {"split": (1.0, 0.0, 0.0), "partition": "natural", "duplicates": "separate"}}
    workbench, method = bench(FedCOG(**QUICK), on=even, **whole)
    down = Down(model=workbench.initial("model"))
    plain = net_of(workbench)
    client = at(workbench, "ada")
    assert len(client.train) == 6
    found = method.client(client, down).model
    client.fit(model := client.load(down.model))
    assert_equal(found, model.tree())
    assert not torch.equal(found["head.weight"], plain.head.weight)


def test_what_it_costs(tmp_path: Path) -> None:
    rounds, epochs, steps, images, batch = 3, 2, 4, 17, 5
    method = FedCOG(start_round=1, steps=steps, images=images)
    with counted() as passes:
        run = play(
            method,
            tmp_path / "run",
            on=SKEWED,
            rounds=rounds,
            training={"lr": 0.05, "batch": batch, "epochs": epochs},
        )
    workbench, _ = bench(method, on=SKEWED)
    expected = 0
    for name in run.clients:
        y = at(workbench, name).train.y
        count = len(lacking_labels(torch.bincount(y, minlength=3), images))
        sizes = [batch] * (count // batch) + ([count % batch] if count % batch else [])
        made_batches = sum((sizes * 99)[: epochs * math.ceil(len(y) / batch)])
        # No model of its own in the first round: the global one alone is asked.
        expected += rounds * (epochs * len(y) + made_batches) + (2 * rounds - 1) * steps * count
    assert passes == {("client", "gradient"): expected}


def test_a_run_that_ends_before_its_first_round_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "equipoise"):
        play(FedCOG(), tmp_path / "never", rounds=2)
        assert "makes images from round 51 on, but the run has 2 rounds" in caplog.text
        caplog.clear()
        play(FedCOG(**{**QUICK, "start_round": 2}), tmp_path / "last", rounds=2)
        assert "makes images" not in caplog.text


def test_bad_input_is_refused_before_round_1(tmp_path: Path) -> None:
    numbers = {name: (x, y.astype(np.float32)) for name, (x, y) in sites().items()}
    wanted = eq.Experiment(
        method="fedcog",
        model="mlp",
        data={"partition": "natural"},
        dataset=eq.from_sites(numbers, kind="regression"),
    )
    assert "FedCOG works on classes" in refused(wanted, tmp_path / "run")
    for name, value in (
        ("lambda_kd", -1),
        ("lambda_dis", -1),
        ("start_round", 0),
        ("images", 0),
        ("steps", 0),
        ("pixel_lr", 0),
        ("temperature", 0),
        ("weighting", "x"),
    ):
        assert f"method.{name}" in refused(
            lambda name=name, value=value: eq.Experiment(method={"name": "fedcog", name: value}),
            tmp_path / "run",
        )


def test_it_says_before_training_that_a_short_run_equals_fedavg() -> None:
    assert "round 51" in (advice := FedCOG().advice(50)) and "equals FedAvg" in advice
    assert FedCOG().advice(51) == "" == FedCOG(start_round=2).advice(2)
    assert "equals FedAvg" in compose(FedCOG(), weights=FedEquilibria()).advice(50)


@pytest.mark.parametrize("command", [["run", "--method"], ["compare", "--seeds", "1", "--methods"]])
def test_the_command_line_says_so_before_training(command: list[str]) -> None:
    answer = CliRunner().invoke(app, [*command, "fedcog", "--data", "digits", "--dry-run"])
    assert answer.exit_code == 0 and answer.output.count("equals FedAvg") == 1
    longer = [*command, "fedcog", "--data", "digits", "--dry-run", "--rounds", "51"]
    assert "equals FedAvg" not in CliRunner().invoke(app, longer).output
