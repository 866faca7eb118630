"""Hidden units: which entries belong to them in every network here, and that a unit left out gives
nothing.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.models import build, wrap
from equipoise.models.units import hidden_units, unit_counts, unit_rows, with_units
from equipoise.task import Task
from equipoise.tree import Tree

TASK = Task("classification", (1, 28, 28), 10)


def tree_of(net: nn.Module) -> Tree:
    trained = {name for name, _ in net.named_parameters()}
    return Tree(
        {name: entry.clone() for name, entry in net.state_dict().items()},
        "model",
        set(net.state_dict()) - trained,
    )


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ("mlp", [200, 200]),
        ("cnn", [16, 32, 64]),
        ("simple_cnn", [32, 64]),
        ("corefed_cnn", [64, 64, 384, 192]),
        ({"name": "moon_cnn", "split": "map"}, [6, 16, 120, 84, 84, 256]),
        ({"name": "resnet10", "width": 4}, [4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32]),
    ],
)
def test_every_layer_but_the_last_has_units(spec: object, counts: list[int]) -> None:
    net = build(spec, TASK)  # type: ignore[arg-type]
    units = hidden_units(net)
    assert unit_counts(units, tree_of(net)) == counts
    assert all(names[0] == f"{layer}.weight" for layer, names in units.items())
    norms = [name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
    claimed = [name for names in units.values() for name in names]
    for norm in norms:
        assert all(
            f"{norm}.{key}" in claimed for key in ("weight", "bias", "running_mean", "running_var")
        )
    assert len(claimed) == len(set(claimed)) and not any(
        name.startswith("head.") for name in claimed if isinstance(net.head, nn.Linear)
    )


def trained_statistics(net: nn.Module) -> None:
    """Norms as after some training: with shifts, and running statistics far from 0 and 1."""
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                if tensor is not None:
                    nn.init.uniform_(tensor, 0.5, 2)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(784, 5), nn.ReLU(), nn.Linear(5, 10)),
        nn.Sequential(
            nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 676, 10)
        ),
        nn.Sequential(
            nn.Conv2d(1, 5, 3),
            nn.BatchNorm2d(5, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(5 * 676, 10),
        ),
        nn.Sequential(nn.Flatten(), nn.Linear(784, 5), nn.LayerNorm(5), nn.Linear(5, 10)),
        nn.Sequential(
            nn.Conv2d(1, 5, 3, bias=False), nn.GroupNorm(1, 5), nn.Flatten(), nn.Linear(5 * 676, 10)
        ),
    ],
)
@pytest.mark.parametrize("mode", [True, False])
def test_a_unit_left_out_gives_zeros_and_the_others_are_whole(
    net: nn.Sequential, mode: bool
) -> None:
    trained_statistics(net)
    units, tree = hidden_units(net), tree_of(net)
    kept = torch.tensor([True, False, True, True, False])
    rows = unit_rows(units, tree, kept)
    masked = with_units(tree, units, kept)
    last = len(net) - 1
    assert set(rows) == {
        name for name in tree if not name.startswith(str(last)) and tree[name].ndim
    }
    for name in tree:
        if name in rows:
            assert not masked[name][~kept].any() and torch.equal(
                masked[name][kept], tree[name][kept]
            )
        else:
            assert torch.equal(masked[name], tree[name])
    assert masked.untrained == tree.untrained
    net.load_state_dict(dict(masked))
    hidden = net[:last].train(mode)(torch.randn(4, 1, 28, 28)).detach().reshape(4, 5, -1)
    assert not hidden[:, ~kept].any() and hidden[:, kept].any()


def test_a_norm_over_something_else_has_no_rows_and_a_single_layer_no_units() -> None:
    net = nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LayerNorm(2704), nn.Linear(2704, 3)
    )
    assert hidden_units(net) == {"1": ["1.weight", "1.bias"]}
    assert (
        hidden_units(nn.Linear(3, 2))
        == {}
        == hidden_units(wrap(nn.Linear(3, 2)))
        == hidden_units(nn.Identity())
    )
