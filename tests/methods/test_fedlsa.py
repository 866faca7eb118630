"""FedLsa: FedAvg on features of length 1 bit for bit, anchors and clients against plain float64
loops, and a head that stays.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.losses import separation
from equipoise.methods.fedlsa import FedLsa
from equipoise.models import Network, build
from equipoise.models.anchors import Anchors
from equipoise.records import Down
from equipoise.task import Task
from tests.helpers.digits import refused
from tests.helpers.images import (
    NETWORKS,
    at,
    bench,
    dropping,
    net_of,
    passes_of,
    plain_fit,
    play,
    shared,
)
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.problems import server_of, server_state
from tests.helpers.runs import sites

TASK = Task("classification", (1, 8, 8), 3)


class Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x.flatten(1), dim=1).reshape(x.shape)


def mapped() -> Network:
    """Features that are maps."""
    return Network(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 3)),
    )


def spherical(network: str) -> Callable[[], nn.Module]:
    """The same network, with the scaling as a layer of its own."""

    def made() -> Network:
        spec = {**NETWORKS, "map": mapped}[network]
        net = spec() if callable(spec) else build(spec, TASK)
        return Network(nn.Sequential(net.features, Unit()), net.head)

    return made


def as_hooked(tree: Any) -> dict[str, Tensor]:
    return {name.replace("features.0.", "features.", 1): value for name, value in tree.items()}


@pytest.mark.parametrize("network", [*NETWORKS, "map"])
def test_without_the_contrast_it_is_fedavg_on_features_of_length_1(
    tmp_path: Path, network: str
) -> None:
    models = {"models": {"model": mapped}} if network == "map" else {}
    off = play(
        FedLsa(lambda_anchor=0), tmp_path / "off", network if network != "map" else "mlp", **models
    )
    plain = play("fedavg", tmp_path / "plain", models={"model": spherical(network)})
    for round in (1, 2, 3):
        assert_equal(shared(off, round), as_hooked(shared(plain, round)))
    on = play(FedLsa(steps=5), tmp_path / "on", network if network != "map" else "mlp", **models)
    assert not torch.equal(
        shared(on)["head.weight" if network != "map" else "head.1.weight"],
        next(v for n, v in shared(off).items() if n.startswith("head") and n.endswith("weight")),
    )


@pytest.mark.parametrize("network", [*NETWORKS, "map"])
def test_anchors_and_features_have_length_1_and_features_keep_their_shape(network: str) -> None:
    models = {"models": {"model": mapped}} if network == "map" else {}
    workbench, method = bench(FedLsa(steps=3), network if network != "map" else "mlp", **models)
    state = method.start(server_of(workbench))
    client = at(workbench, "ada")
    features = client.features(client.load(state.model))
    assert (
        features.shape[1:]
        == state.anchors.shape[1:]
        == ((4, 6, 6) if network == "map" else features.shape[1:])
    )
    for rows in (features, state.anchors):
        torch.testing.assert_close(rows.flatten(1).norm(dim=1), torch.ones(len(rows)))


def test_features_that_are_all_zero_stay_so_and_training_stays_finite(tmp_path: Path) -> None:
    dark = {name: (0 * x, y) for name, (x, y) in sites().items()}
    run = play(
        FedLsa(steps=2),
        tmp_path / "run",
        models={
            "model": lambda: Network(
                nn.Sequential(nn.Flatten(), nn.Linear(64, 4, bias=False)), nn.Linear(4, 3)
            )
        },
        on=dark,
    )
    assert all(torch.isfinite(value).all() for value in shared(run).values())


def brute_separation(anchors: np.ndarray, temperature: float) -> float:
    total = 0.0
    for i, a in enumerate(anchors):
        total += math.log(
            np.mean([math.exp(a @ b / temperature) for j, b in enumerate(anchors) if j != i])
        )
    return total / len(anchors)


def test_the_separation_of_anchors() -> None:
    for size in (2, 3, 10):
        assert abs(float(separation(torch.eye(12)[:size], 0.1))) < 1e-6  # orthonormal
        # all equal: 1 / temperature
        assert float(separation(torch.ones(size, 1), 0.5)) == pytest.approx(2.0)
        rows = np.random.default_rng(size).standard_normal((size, 5))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        assert float(separation(torch.from_numpy(rows), 0.2)) == pytest.approx(
            brute_separation(rows, 0.2), rel=1e-12
        )


@pytest.mark.parametrize("network", [*NETWORKS, "map"])
def test_anchors_match_a_plain_loop_with_torch_optim_and_the_head_stays(network: str) -> None:
    models = {"models": {"model": mapped}} if network == "map" else {}
    method = FedLsa(steps=6, server_lr=0.02, alpha=0.7, temperature=0.4, anchor_dim=7)
    workbench, _ = bench(method, network if network != "map" else "mlp", **models)
    server = server_of(workbench)
    state = method.start(server)
    assert_equal(state.model, workbench.initial("model"))
    assert all(
        parameter.grad is None
        for model in workbench._lent
        if model.name == "model"
        for parameter in model.net.parameters()
    )
    head = copy.deepcopy(workbench.take("model").net.head).double().eval()
    assert all(parameter.requires_grad for parameter in server.load(state.model).net.parameters())
    plain = Anchors(3, 7, tuple(state.anchors.shape[1:])).double()
    plain.load_state_dict(dict(workbench.initial("anchors")))
    r, (first, _, second) = plain.vectors, plain.layers
    steps = torch.optim.SGD(plain.parameters(), lr=0.02)

    def points() -> Tensor:
        raw = (r @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
        return raw / raw.square().sum(1, keepdim=True).sqrt()

    for _ in range(6):
        a = points()
        logits = head(a.reshape(state.anchors.shape))
        total = torch.zeros((), dtype=torch.float64)
        for i in range(3):
            total = total - logits[i].softmax(0)[i].log()
            total = (
                total
                + 0.7
                * torch.stack([(a[i] @ a[j] / 0.4).exp() for j in range(3) if j != i]).mean().log()
            )
        steps.zero_grad()
        (total / 3).backward()
        steps.step()
    torch.testing.assert_close(
        state.anchors.flatten(1).double(), points().detach(), rtol=0, atol=1e-5
    )
    again = method.with_anchors(server, state)  # their generator continues from its last state
    assert not torch.equal(again.anchors, state.anchors)
    assert_equal(again.model, state.model)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_client_matches_a_plain_loop(network: str) -> None:
    weight, temperature = 0.7, 0.3
    method = FedLsa(lambda_anchor=weight, temperature=temperature, steps=3)
    workbench, _ = bench(method, network)
    state = method.start(server_of(workbench))
    client = at(workbench, "ada")
    found = method.client(client, Down(model=state.model, anchors=state.anchors)).model
    hooked = net_of(workbench)
    net = Network(hooked.features, hooked.head)
    net.features._forward_hooks.clear()
    anchors = state.anchors.flatten(1)

    class Both(nn.Module):
        """Logits and the contrast's, side by side, from one pass."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            h = net.features(x).flatten(1)
            h = h / h.square().sum(1, keepdim=True).clamp(min=1e-24).sqrt()
            return torch.cat([net.head(h), h @ anchors.T / temperature], 1)

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        own, near = outputs[:, :3], outputs[:, 3:]
        rows = torch.arange(len(y))
        return -(
            own.softmax(1)[rows, y].log().mean() + weight * near.softmax(1)[rows, y].log().mean()
        )

    both = Both()
    plain_fit(both, client.train, torch.optim.SGD(both.parameters(), lr=0.05), "ada", 1, loss)
    assert_near(found, dict(net.state_dict()), 2e-5)


def test_equal_anchors_draw_nothing_anywhere() -> None:
    """Their contrast is ln C whatever the features, so its gradient is zero."""
    workbench, _ = bench(FedLsa(), training={"lr": 0.05, "batch": 5, "steps": 1})
    anchors = torch.ones(3, 6) / 6**0.5
    for y in range(3):
        assert float(
            nn.functional.cross_entropy(torch.randn(1, 6) @ anchors.T / 0.1, torch.tensor([y]))
        ) == pytest.approx(math.log(3), rel=1e-5)
    down = Down(model=workbench.initial("model"), anchors=anchors)
    drawn, plain = (
        FedLsa(lambda_anchor=weight, temperature=1.0).client(at(workbench, "ada"), down).model
        for weight in (1.0, 0.0)
    )
    assert_near(drawn, plain, 1e-6)
    apart = (
        FedLsa(lambda_anchor=1.0, temperature=1.0)
        .client(at(workbench, "ada"), down.with_(anchors=torch.eye(6)[:3]))
        .model
    )
    assert (apart - plain).norm() > 1e-3


def test_anchors_are_trained_before_every_round_and_travel_down(tmp_path: Path) -> None:
    run = play(FedLsa(steps=5, anchor_dim=9), tmp_path / "run", training={"lr": 0.05, "batch": 5})
    states = [server_state(run, round) for round in (0, 1, 2, 3)]
    for before, after in itertools.pairwise(states):
        assert not torch.equal(before.anchors, after.anchors)
    model = 4 * sum(value.numel() for value in states[0].model.values())
    assert run.rounds()[0]["bytes_down"] == len(run.clients) * (model + 4 * 3 * 6)
    assert run.models() == ["global"] and run.main_model == "global"


def test_a_projection_lies_between_features_and_head(tmp_path: Path) -> None:
    run = play(FedLsa(steps=2, proj_dim=5), tmp_path / "run", "cnn")
    assert shared(run)["head.weight"].shape == (3, 5) and server_state(run).anchors.shape == (3, 5)
    net = run.model("global")
    torch.testing.assert_close(net.features(torch.randn(4, 1, 8, 8)).norm(dim=1), torch.ones(4))


def test_what_is_served_predicts_with_features_of_length_1(tmp_path: Path) -> None:
    run = play(FedLsa(steps=2), tmp_path / "run")
    net, x = run.model("global"), torch.randn(5, 1, 8, 8)
    hidden = torch.relu(x.flatten(1) @ net.features[1].weight.T + net.features[1].bias)
    expected = (
        hidden / hidden.norm(dim=1, keepdim=True).clamp_min(1e-12) @ net.head.weight.T
        + net.head.bias
    )
    torch.testing.assert_close(net(x), expected)


def test_what_it_costs(tmp_path: Path) -> None:
    assert passes_of(FedLsa(steps=5), tmp_path / "run", epochs=2) == {"client gradient": 2}


def test_the_server_takes_as_many_steps_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    workbench, _ = bench("fedlsa")
    asked: list[int] = []
    monkeypatch.setattr(
        "equipoise.server.Server.minimise",
        lambda self, tensors, loss, steps, **more: asked.append(steps),
    )
    FedLsa().start(server_of(workbench))
    FedLsa(lambda_anchor=0).start(server_of(workbench))  # nobody would look at its anchors
    assert asked == [500]


def test_bad_input_is_refused_before_round_1(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"method": FedLsa(), "workers": 0, "data": {"partition": "natural"}}
    whole = eq.Experiment(
        **wanted,
        model=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
        dataset=eq.from_sites(sites()),
    )
    assert "trained `head`, but the model's is Identity()" in refused(whole, tmp_path / "run")
    numbers = {name: (x, y.astype(np.float32)) for name, (x, y) in sites().items()}
    assert "FedLsa works on classes" in refused(
        eq.Experiment(**wanted, model="mlp", dataset=eq.from_sites(numbers, kind="regression")),
        tmp_path / "run",
    )
    FedLsa().check(Task("classification", (4,), 2))
    with pytest.raises(ValueError, match="takes two or more, but the task has 1"):
        FedLsa().check(Task("classification", (4,), 1))
    for name, value in (
        ("lambda_anchor", -1),
        ("temperature", 0),
        ("steps", 0),
        ("server_lr", 0),
        ("alpha", -1),
        ("proj_dim", -1),
    ):
        assert f"method.{name}" in refused(
            lambda name=name, value=value: eq.Experiment(method={"name": "fedlsa", name: value}),
            tmp_path / "run",
        )


def test_dropout_in_the_head_is_off_while_anchors_are_trained() -> None:
    net = dropping()
    with_dropout = {
        "model": lambda: Network(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), nn.Sequential(nn.Dropout(0.9), net.head)
        )
    }
    workbench, method = bench(FedLsa(steps=3), models=with_dropout)
    first, second = (method.start(server_of(workbench)).anchors for _ in range(2))
    assert torch.equal(first, second)
