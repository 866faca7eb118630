"""The optimisers, and the one step that everything minimised here goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.training.settings import Training
from equipoise.tree import Tree

GradientHook = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Correction:
    """A gradient hook that subtracts one constant tree and adds another.

    A hook of this form is applied to the gradients of several clients at once.

    Attributes:
        minus: The tree to subtract, first; None subtracts nothing.
        plus: The tree to add; None adds nothing.

    Example:
        >>> hook = Correction(plus=Tree({"bias": torch.ones(2)}, "model"))
        >>> hook("bias", torch.tensor([0.5, 1.0])).tolist()
        [1.5, 2.0]
    """

    minus: Tree | None = None
    plus: Tree | None = None

    def __call__(self, name: str, gradient: Tensor) -> Tensor:
        """Return the corrected gradient of a tensor.

        Args:
            name: The name of the tensor.
            gradient: Its gradient.
        """
        if self.minus is not None:
            gradient = gradient - self.minus[name].to(gradient.device)
        if self.plus is not None:
            gradient = gradient + self.plus[name].to(gradient.device)
        return gradient


def backward(loss: Tensor) -> None:
    """Compute gradients as `loss.backward()` does, with a direct call of torch's engine."""
    torch.autograd.Variable._execution_engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), True, True
    )


class Stepper:
    """An optimiser over named tensors: backward, hook, clip, step, always in this order.

    The steps are torch's own fused kernels, called without `torch.optim`. That package imports a
    compiler on first use, which takes over a second per process, and costs more per step of a small
    model than the step itself. `Tensor.backward` has such a cost, too. Tests compare both with
    torch's own, number by number.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        training: Training,
        lr: float,
        state: Mapping[str, Any] | None = None,
        hook: GradientHook | None = None,
    ) -> None:
        self.names = list(tensors)
        self.tensors = list(tensors.values())
        self.training, self.lr, self.hook = training, lr, hook
        # The memory of the rule per tensor: a momentum of SGD, if it has one; two moments and a
        # count of steps of Adam.
        self.memory: dict[str, list[Tensor]] = {}
        for slot in _slots(training):
            self.memory[slot] = [
                _remembered(state, name, slot, tensor) for name, tensor in tensors.items()
            ]

    def step(self, loss: Tensor) -> None:
        """Compute gradients of a loss and update the tensors."""
        for tensor in self.tensors:
            tensor.grad = None
        backward(loss)
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Step along the gradients of the tensors; a tensor without one does not move."""
        if self.hook is not None:
            for name, tensor in zip(self.names, self.tensors, strict=True):
                if tensor.grad is not None:
                    tensor.grad = in_layout_of(self.hook(name, tensor.grad), tensor)
        if self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.tensors, self.training.clip)
        moving = [
            position for position, tensor in enumerate(self.tensors) if tensor.grad is not None
        ]
        if not moving:
            return
        tensors = [self.tensors[position] for position in moving]
        gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
        memory = {
            slot: [values[position] for position in moving] for slot, values in self.memory.items()
        }
        self.move(tensors, gradients, memory)

    def apply_gradients(self, gradients: list[Tensor]) -> None:
        """Step along gradients that were computed without autograd, which is switched off.

        Args:
            gradients: The gradient of each tensor, in their order and memory layout.
        """
        if self.hook is None and self.training.clip is None:
            self.move(self.tensors, gradients, self.memory)
            return
        for tensor, gradient in zip(self.tensors, gradients, strict=True):
            tensor.grad = gradient
        self.apply()

    def move(
        self, tensors: list[Tensor], gradients: list[Tensor], memory: Mapping[str, list[Tensor]]
    ) -> None:
        """Call the kernel of the optimiser on some tensors, or on parts of them.

        Args:
            tensors: The tensors, which are changed.
            gradients: Their gradients.
            memory: What the optimiser remembers of each of them, by slot; changed, too.
        """
        settings = self.training
        if settings.optimiser == "sgd":
            torch._fused_sgd_(
                tensors,
                gradients,
                memory.get("momentum", []),
                weight_decay=settings.weight_decay,
                momentum=settings.momentum,
                lr=self.lr,
                dampening=0.0,
                nesterov=settings.nesterov,
                maximize=False,
                is_first_step=False,
            )
            return
        torch._foreach_add_(memory["steps"], 1)
        kernel = torch._fused_adam_ if settings.optimiser == "adam" else torch._fused_adamw_
        kernel(
            tensors,
            gradients,
            memory["mean"],
            memory["square"],
            [],
            memory["steps"],
            lr=self.lr,
            beta1=settings.betas[0],
            beta2=settings.betas[1],
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the optimiser's memory as plain data, by name of the tensor."""
        if not self.memory:
            return {}
        states: dict[str, dict[str, Tensor]] = {name: {} for name in self.names}
        for slot, values in self.memory.items():
            for name, value in zip(self.names, values, strict=True):
                copy = value.detach().cpu().clone(memory_format=torch.contiguous_format)
                states[name][slot] = copy
        return states


def _slots(training: Training) -> tuple[str, ...]:
    """Return what an optimiser remembers of each tensor."""
    if training.optimiser != "sgd":
        return ("mean", "square", "steps")
    return ("momentum",) if training.momentum else ()


def _remembered(state: Mapping[str, Any] | None, name: str, slot: str, tensor: Tensor) -> Tensor:
    if state and slot in state.get(name, {}):
        saved: Tensor = state[name][slot].to(tensor.device)
        return saved.clone() if slot == "steps" else in_layout_of(saved.clone(), tensor)
    return torch.zeros((), device=tensor.device) if slot == "steps" else torch.zeros_like(tensor)


def in_layout_of(values: Tensor, tensor: Tensor) -> Tensor:
    """Return values in the memory layout of a tensor, since fused kernels pair raw memory."""
    if values.stride() == tensor.stride():
        return values
    return torch.empty_like(tensor).copy_(values)


def minimise(
    tensors: Mapping[str, Tensor] | Iterable[Tensor],
    loss: Callable[[int], Tensor],
    steps: int,
    *,
    lr: float,
    optimiser: Literal["sgd", "adam", "adamw"] = "adam",
    **options: Any,
) -> list[float]:
    """Minimise a loss over tensors in place, such as a generator, anchors or pixels.

    Args:
        tensors: The tensors, by name if they have one.
        loss: Returns the loss at a step.
        steps: The number of steps.
        lr: The learning rate.
        optimiser: The rule of the steps.
        **options: Further settings of `Training`.

    Returns:
        The loss at every step.
    """
    if isinstance(tensors, Mapping):
        named = dict(tensors)
    else:
        named = {str(position): tensor for position, tensor in enumerate(tensors)}
    stepper = Stepper(named, Training(optimiser=optimiser, lr=lr, **options), lr)
    losses = []
    for step in range(steps):
        value = loss(step)
        stepper.step(value)
        losses.append(float(value.detach()))
    return losses
