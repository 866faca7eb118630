"""Optimisers against torch's own, number by number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.records import Record, pack, unpack
from equipoise.training import Stepper, Training, backward, minimise

SETTINGS: dict[str, tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": ({}, torch.optim.SGD, {}),
    "sgd with weight decay": ({"weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.01},
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.01},
    ),
    "nesterov": (
        {"momentum": 0.8, "nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True},
    ),
    "adam": ({"optimiser": "adam"}, torch.optim.Adam, {}),
    "adam with options": (
        {"optimiser": "adam", "betas": (0.7, 0.95), "eps": 1e-3, "weight_decay": 0.1},
        torch.optim.Adam,
        {"betas": (0.7, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    ),
    "adamw": (
        {"optimiser": "adamw", "weight_decay": 0.1},
        torch.optim.AdamW,
        {"weight_decay": 0.1},
    ),
}


def problem() -> tuple[nn.Module, Tensor]:
    draw = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for parameter in net.parameters():
        nn.init.normal_(parameter, generator=draw)
    return net, torch.randn(8, 3, generator=draw)


def loss(net: nn.Module, x: Tensor) -> Tensor:
    value: Tensor = (net(x) - x[:, :2]).square().mean()
    return value


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_those_of_torch_also_when_interrupted(name: str) -> None:
    """Half of the steps by one stepper, half by another that is given the first one's memory,
    through the wire.
    """
    given, kind, options = SETTINGS[name]
    ours, x = problem()
    theirs, _ = problem()
    optimiser = kind(theirs.parameters(), lr=0.05, **options)
    state = None
    for _ in range(2):
        stepper = Stepper(dict(ours.named_parameters()), Training(**given), 0.05, state)
        for _ in range(4):
            stepper.step(loss(ours, x))
            optimiser.zero_grad()
            loss(theirs, x).backward()
            optimiser.step()
        state = unpack(bytearray(b"".join(pack(Record(state=stepper.state()))))).state
    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_lost_memory_would_be_noticed(name: str) -> None:
    ends = []
    for forget in (False, True):
        net, x = problem()
        state = None
        for _ in range(2):
            stepper = Stepper(
                dict(net.named_parameters()),
                Training(**SETTINGS[name][0]),
                0.05,
                None if forget else state,
            )
            stepper.step(loss(net, x))
            state = stepper.state()
        ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert not torch.allclose(ends[0], ends[1], atol=1e-4)


def test_plain_sgd_remembers_nothing_and_memory_is_a_copy() -> None:
    net, x = problem()
    plain = Stepper(dict(net.named_parameters()), Training(), 0.1)
    plain.step(loss(net, x))
    assert plain.state() == {}
    stepper = Stepper(dict(net.named_parameters()), Training(momentum=0.9), 0.1)
    stepper.step(loss(net, x))
    before = stepper.state()["0.weight"]["momentum"]
    kept = before.clone()
    stepper.step(loss(net, x))
    assert torch.equal(before, kept)


@pytest.mark.parametrize("given", [{}, {"momentum": 0.9}, {"optimiser": "adam"}])
def test_a_tensor_without_a_gradient_stays(given: dict[str, Any]) -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    stepper = Stepper({"unused": unused, "used": used}, Training(weight_decay=0.5, **given), 0.1)
    for _ in range(2):
        stepper.step(used.sum())
    assert unused.tolist() == [1, 1] and used.tolist() != [1, 1]
    Stepper({"unused": unused}, Training(**given), 0.1).apply()
    assert unused.tolist() == [1, 1]


def test_the_hook_comes_before_clipping() -> None:
    w = torch.zeros(2, requires_grad=True)
    stepper = Stepper(
        {"w": w},
        Training(clip=1.0),
        1.0,
        hook=lambda name, g: g + torch.tensor([0.0, 4.0]) if name == "w" else g,
    )
    stepper.step((w * torch.tensor([3.0, 0.0])).sum())
    torch.testing.assert_close(w.detach(), torch.tensor([-0.6, -0.8]), rtol=1e-4, atol=1e-5)


def test_clipping_uses_the_norm_over_all_tensors_and_leaves_small_gradients() -> None:
    a, b = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    Stepper({"a": a, "b": b}, Training(clip=2.5), 1.0).step(3 * a.sum() + 4 * b.sum())
    assert [a.item(), b.item()] == pytest.approx([-1.5, -2.0], rel=1e-4)
    small = torch.zeros(1, requires_grad=True)
    Stepper({"a": small}, Training(clip=2.5), 1.0).step(2 * small.sum())
    assert small.item() == -2


def test_the_rate_decays_by_round() -> None:
    assert [Training(lr=0.4, lr_decay=0.5).rate(number) for number in (1, 2, 3)] == [0.4, 0.2, 0.1]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({}, True),
        ({"momentum": 0.1}, False),
        ({"weight_decay": 0.1}, False),
        ({"clip": 1}, False),
        ({"optimiser": "adam"}, False),
    ],
)
def test_which_settings_step_along_the_gradient_itself(given: dict[str, Any], plain: bool) -> None:
    assert Training(**given).plain_sgd is plain


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"optimiser": "adam", "momentum": 0.9}, "belong to sgd, but optimiser is adam"),
        ({"nesterov": True}, "nesterov needs momentum above 0"),
        ({"lr": 0}, "greater than 0"),
        ({"clip": 0}, "greater than 0"),
        ({"epochs": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Training(**given)


def test_changed_settings_are_checked_and_epochs_replace_steps() -> None:
    base = Training(steps=7, lr=0.3)
    assert (base.changed({"epochs": 2}).steps, base.changed({"epochs": 2}).lr) == (None, 0.3)
    assert (
        base.changed({"batch": 4}).steps == 7 and base.changed({"epochs": 2, "steps": 3}).steps == 3
    )
    with pytest.raises(TypeError, match="unknown training setting 'epoch'"):
        base.changed({"epoch": 2})
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        base.changed({"batch": 0})


def test_minimise_finds_the_minimum_in_place() -> None:
    w = torch.tensor([4.0, -2.0], requires_grad=True)
    losses = minimise(
        [w], lambda step: (w - torch.tensor([1.0, 2.0])).square().sum(), 60, lr=0.2, optimiser="sgd"
    )
    torch.testing.assert_close(w.detach(), torch.tensor([1.0, 2.0]), atol=1e-4, rtol=0)
    assert losses[0] == 25 and len(losses) == 60 and losses[-1] < 1e-6
    seen: list[int] = []
    minimise({"w": w}, lambda step: seen.append(step) or w.sum(), 3, lr=0.1)
    assert seen == [0, 1, 2]


def test_backward_is_torchs_own() -> None:
    def gradients(run: bool) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2)
        ).to(memory_format=torch.channels_last)
        unused = torch.nn.Parameter(torch.ones(1))
        loss = net(torch.randn(5, 1, 4, 4)).square().mean()
        backward(loss) if run else loss.backward()
        return [p.grad for p in (*net.parameters(), unused)]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert (ours is None and theirs is None) or (
            ours is not None and theirs is not None and torch.equal(ours, theirs)
        )
    with pytest.raises(RuntimeError, match="does not require grad"):
        backward(torch.ones(()))


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("lr", [1e-9, 5.0], [0, -1, float("nan"), float("inf")]),
        ("lr_decay", [1e-9, 1.0], [0, 1.01]),
        ("momentum", [0.0, 0.99], [-0.1, 1.0]),
        ("eps", [1e-12], [0]),
        ("weight_decay", [0.0, 3.0], [-0.1]),
        ("batch", [1, 999], [0, 2.5]),
        ("epochs", [1, 99], [0]),
        ("steps", [None, 1], [0]),
        ("clip", [None, 1e-9], [0]),
        ("focal_gamma", [0.0, 5.0], [-0.1]),
        ("optimiser", ["sgd", "adam", "adamw"], ["rmsprop"]),
        ("precision", ["float32", "bfloat16"], ["float16"]),
        ("loss", ["default", "focal"], ["huber"]),
        ("rate", [], [0.1]),
    ],
)
def test_every_setting_at_its_bounds(name: str, taken: list[Any], refused: list[Any]) -> None:
    for value in taken:
        assert getattr(Training(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ValueError, match=name):
            Training(**{name: value})


def test_what_training_is_unless_said_otherwise() -> None:
    """Plain SGD over one epoch; Adam's numbers are torch's."""
    usual, adam = Training(), torch.optim.Adam([torch.zeros(1)])
    assert (usual.optimiser, usual.lr, usual.lr_decay, usual.batch, usual.epochs, usual.steps) == (
        "sgd",
        0.1,
        1.0,
        32,
        1,
        None,
    )
    assert (
        usual.momentum,
        usual.nesterov,
        usual.weight_decay,
        usual.clip,
        usual.keep_optimiser,
    ) == (0.0, False, 0.0, None, False)
    assert (usual.betas, usual.eps) == (
        adam.defaults["betas"],
        adam.defaults["eps"],
    ) and usual.focal_gamma == 2.0
    with pytest.raises(ValueError, match="belong to sgd, but optimiser is adamw"):
        Training(optimiser="adamw", nesterov=True)
    with pytest.raises(ValueError, match="frozen"):
        usual.lr = 0.2  # type: ignore[misc]
    assert [Training(lr=0.4, lr_decay=0.5).rate(number) for number in (0, 1)] == [0.4, 0.4]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("given", [{"momentum": 0.9}, {"optimiser": "adam"}])
def test_gradients_and_memory_in_another_layout_are_paired_by_index(
    memory_format: torch.memory_format, given: dict[str, Any]
) -> None:
    start = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    ours = start.clone().to(memory_format=memory_format).requires_grad_()
    theirs = start.clone().requires_grad_()
    optimiser = (
        torch.optim.Adam([theirs], lr=0.1)
        if "optimiser" in given
        else torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    )
    state = None
    for _ in range(3):
        stepper = Stepper(
            {"w": ours}, Training(**given), 0.1, state, hook=lambda name, g: g.contiguous() * 2
        )
        stepper.step(ours.square().sum())
        state = stepper.state()
        assert all(value.is_contiguous() for value in state["w"].values())
        optimiser.zero_grad()
        (2 * theirs.square().sum()).backward()
        optimiser.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)


def test_a_hook_is_not_asked_about_a_tensor_without_a_gradient_and_old_gradients_do_not_count() -> (
    None
):
    used, unused = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    used.grad = torch.full((1,), 100.0)
    asked: list[str] = []
    stepper = Stepper(
        {"used": used, "unused": unused},
        Training(),
        0.5,
        hook=lambda name, g: asked.append(name) or g,
    )
    stepper.step(used.sum())
    assert asked == ["used"] and used.item() == 0.5 and unused.item() == 1


def test_minimise_is_adam_unless_said_otherwise_and_takes_options() -> None:
    def end(kind: type[torch.optim.Optimizer], **options: Any) -> Tensor:
        w = torch.tensor([4.0, -2.0], requires_grad=True)
        optimiser = kind([w], lr=0.3, **options)
        for step in range(4):
            optimiser.zero_grad()
            ((step + 1) * w.square().sum()).backward()
            optimiser.step()
        return w.detach()

    for given, wanted in (
        ({}, end(torch.optim.Adam)),
        ({"optimiser": "adamw", "weight_decay": 0.1}, end(torch.optim.AdamW, weight_decay=0.1)),
        ({"optimiser": "sgd", "momentum": 0.5}, end(torch.optim.SGD, momentum=0.5)),
    ):
        w = torch.tensor([4.0, -2.0], requires_grad=True)
        losses = minimise(
            {"w": w}, lambda step, w=w: (step + 1) * w.square().sum(), 4, lr=0.3, **given
        )
        torch.testing.assert_close(w.detach(), wanted, rtol=1e-5, atol=1e-6)
        assert losses[0] == 20 and len(losses) == 4
