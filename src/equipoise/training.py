"""How a client trains: the settings, the optimisers, and the one step that everything minimised here goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

GradientHook = Callable[[str, Tensor], Tensor]


class Training(BaseModel):
    """Local training of one client in one round."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.05, gt=0, description="learning rate of round 1")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate per round")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    nesterov: bool = False
    betas: tuple[float, float] = Field((0.9, 0.999), description="of adam and adamw")
    eps: float = Field(1e-8, gt=0, description="of adam and adamw")
    weight_decay: float = Field(0.0, ge=0)
    batch: int = Field(32, ge=1)
    epochs: int = Field(1, ge=1)
    steps: int | None = Field(None, ge=1, description="a number of steps in place of epochs")
    clip: float | None = Field(None, gt=0, description="largest norm of a gradient")
    keep_optimiser: bool = Field(False, description="Standalone keeps its optimiser state between rounds: one uninterrupted training")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the networks in training; bfloat16 is tried in a child process first"
    )
    loss: Literal["default", "focal"] = Field("default", description="default: cross-entropy, or squared error in regression")
    focal_gamma: float = Field(2.0, ge=0)

    @model_validator(mode="after")
    def _options_fit(self) -> Training:
        if self.optimiser != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(f"momentum and nesterov belong to sgd, but optimiser is {self.optimiser}; drop them or choose sgd")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum above 0, got 0; set training.momentum=0.9, say")
        return self

    def changed(self, changes: Mapping[str, Any]) -> Training:
        """These settings with some changed and all checked again; epochs that are asked for stand in place of steps."""
        unknown = [name for name in changes if name not in Training.model_fields]
        if unknown:
            raise TypeError(f"unknown training setting {unknown[0]!r}; expected some of {', '.join(Training.model_fields)}")
        by_epochs = {"steps": None} if "epochs" in changes else {}
        return Training(**{**dict(self), **by_epochs, **changes})

    def rate(self, round: int) -> float:
        """The learning rate of a round, counted from 1; that of `setup` is round 1's."""
        return float(self.lr * self.lr_decay ** (max(1, round) - 1))  # round 0, the setup, trains as round 1 does

    @property
    def plain_sgd(self) -> bool:
        """Whether an update is exactly the learning rate times a gradient: what SCAFFOLD, FedDC and q-FedAvg rest on."""
        return self.optimiser == "sgd" and not self.momentum and not self.weight_decay and self.clip is None


def backward(loss: Tensor) -> None:
    """As `loss.backward()`, straight into torch's engine."""
    torch.autograd.Variable._execution_engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, True)


class Stepper:
    """An optimiser over named tensors: backward, hook, clip, step, always in this order.

    The steps are torch's own fused kernels, called without `torch.optim`: that package imports a compiler on first use (over a second per
    process) and costs more per step of a small model than the step itself. What `Tensor.backward` does before it calls the engine
    costs, too. Tests hold both to torch's own, number by number.
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
        # Per tensor what the rule remembers: SGD a momentum (if it has one), Adam two moments and a count of steps.
        self.memory: dict[str, list[Tensor]] = {
            slot: [_remembered(state, name, slot, tensor) for name, tensor in tensors.items()] for slot in _SLOTS[training.optimiser]
        }
        if training.optimiser == "sgd" and not training.momentum:
            self.memory = {}

    def step(self, loss: Tensor) -> None:
        for tensor in self.tensors:
            tensor.grad = None
        backward(loss)
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Step along the gradients that stand in the tensors; a tensor without one stays."""
        if self.hook is not None:
            for name, tensor in zip(self.names, self.tensors, strict=True):
                if tensor.grad is not None:
                    tensor.grad = _laid_out(self.hook(name, tensor.grad), tensor)
        if self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.tensors, self.training.clip)
        moving = [place for place, tensor in enumerate(self.tensors) if tensor.grad is not None]
        if not moving:
            return
        tensors = [self.tensors[place] for place in moving]
        gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
        memory = {slot: [values[place] for place in moving] for slot, values in self.memory.items()}
        settings = self.training
        if settings.optimiser == "sgd":
            torch._fused_sgd_(
                tensors, gradients, memory.get("momentum", []), weight_decay=settings.weight_decay, momentum=settings.momentum, lr=self.lr,
                dampening=0.0, nesterov=settings.nesterov, maximize=False, is_first_step=False,
            )  # fmt: skip
            return
        torch._foreach_add_(memory["steps"], 1)
        kernel = torch._fused_adam_ if settings.optimiser == "adam" else torch._fused_adamw_
        kernel(
            tensors, gradients, memory["mean"], memory["square"], [], memory["steps"], lr=self.lr, beta1=settings.betas[0], beta2=settings.betas[1],
            weight_decay=settings.weight_decay, eps=settings.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def state(self) -> dict[str, dict[str, Tensor]]:
        """The optimiser's memory as plain data, by name of the tensor."""
        return {
            name: {slot: values[place].detach().cpu().clone(memory_format=torch.contiguous_format) for slot, values in self.memory.items()}
            for place, name in enumerate(self.names)
            if self.memory
        }


_SLOTS = {"sgd": ("momentum",), "adam": ("mean", "square", "steps"), "adamw": ("mean", "square", "steps")}


def _remembered(state: Mapping[str, Any] | None, name: str, slot: str, tensor: Tensor) -> Tensor:
    if state and slot in state.get(name, {}):
        saved: Tensor = state[name][slot].to(tensor.device)
        return saved.clone() if slot == "steps" else _laid_out(saved.clone(), tensor)
    return torch.zeros((), device=tensor.device) if slot == "steps" else torch.zeros_like(tensor)


def _laid_out(values: Tensor, tensor: Tensor) -> Tensor:
    """The values in the memory layout of the tensor that they move: the fused kernels pair raw memory, not indices."""
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
    """Minimise `loss(step)` over tensors in place (a generator, anchors, pixels); returns the loss at every step."""
    named = dict(tensors) if isinstance(tensors, Mapping) else {str(place): tensor for place, tensor in enumerate(tensors)}
    stepper = Stepper(named, Training(optimiser=optimiser, lr=lr, **options), lr)
    losses = []
    for step in range(steps):
        value = loss(step)
        stepper.step(value)
        losses.append(float(value.detach()))
    return losses
