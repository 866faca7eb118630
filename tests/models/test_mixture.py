"""A mixture of experts against the formula in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from equipoise.models import Mixture, Network, build
from equipoise.task import Task

TASK = Task("classification", (1, 8, 8), 3)
FACTORIES = {
    "alone": lambda: build({"name": "mlp", "hidden": [5]}, TASK),
    "global": lambda: build({"name": "cnn", "width": 2, "hidden": 4}, TASK),
}
EXPERTS = {"alone": "alone", "global": "global", "offsets": "global"}


def filled(weights: list[float], offsets: list[float]) -> tuple[Mixture, dict[str, Network]]:
    torch.manual_seed(0)
    nets = {name: build() for name, build in FACTORIES.items()}
    for net in nets.values():
        # batch-norm statistics that are not those at the start
        net.train()(torch.randn(20, 1, 8, 8))
    mixture = Mixture(
        nets,
        EXPERTS,
        torch.tensor(weights),
        {"offsets": torch.tensor(offsets, dtype=torch.float64)},
        TASK,
    )
    return mixture.eval(), {name: net.eval() for name, net in nets.items()}


def test_it_gives_the_logarithm_of_the_mixed_probabilities() -> None:
    mixture, nets = filled([0.2, 0.3, 0.5], [1.0, -2.0, 0.5])
    x = torch.randn(7, 1, 8, 8)
    with torch.no_grad():
        found = mixture(x).double().numpy()
        alone, shared = (nets[name](x).double().numpy() for name in ("alone", "global"))
    share = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)  # noqa: E731
    wanted = (
        0.2 * share(alone) + 0.3 * share(shared) + 0.5 * share(shared + np.array([1.0, -2.0, 0.5]))
    )
    np.testing.assert_allclose(np.exp(found), wanted, atol=1e-6)
    np.testing.assert_allclose(np.exp(found).sum(1), 1, atol=1e-6)


def test_an_expert_without_weight_is_as_if_it_were_not_there() -> None:
    mixture, nets = filled([1.0, 0.0, 0.0], [300.0, 0.0, 0.0])
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(mixture(x), nets["alone"](x).log_softmax(1))


def test_experts_that_share_a_network_share_its_pass() -> None:
    mixture, _ = filled([0.2, 0.3, 0.5], [0.0, 0.0, 0.0])
    passes = []
    for name, network in mixture.features.items():
        network.register_forward_hook(lambda *_, name=name: passes.append(name))
    mixture(torch.zeros(2, 1, 8, 8))
    assert passes == ["alone", "global"]


def test_of_numbers_it_gives_the_weighted_mean() -> None:
    task = Task("regression", (4,), 1)
    nets = {
        name: build({"name": "mlp", "hidden": [3]}, task).eval() for name in ("alone", "global")
    }
    mixture = Mixture(
        nets, EXPERTS, torch.tensor([0.2, 0.3, 0.5]), {"offsets": torch.tensor([2.0])}, task
    ).eval()
    x = torch.randn(6, 4)
    with torch.no_grad():
        alone, shared = (nets[name](x) for name in ("alone", "global"))
        torch.testing.assert_close(mixture(x), 0.2 * alone + 0.8 * shared + 0.5 * 2.0)


def test_one_file_holds_all_of_it(tmp_path: Path) -> None:
    mixture, _ = filled([0.2, 0.3, 0.5], [1.0, -2.0, 0.5])
    save_file(
        {name: tensor.contiguous() for name, tensor in mixture.state_dict().items()},
        tmp_path / "one.safetensors",
    )
    again = Mixture(
        {name: make() for name, make in FACTORIES.items()}, EXPERTS, torch.ones(3) / 3, {}, TASK
    )
    again.load_state_dict(load_file(tmp_path / "one.safetensors"))
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(again.eval()(x), mixture(x))
    assert not any(
        isinstance(parameter, nn.Parameter) for parameter in mixture.head.parameters()
    ), "weights and offsets are not trained"
