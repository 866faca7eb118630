"""Supervised losses by name, for `training.loss`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from equipoise.losses.distillation import focal_loss
from equipoise.metrics.survival_likelihood import cox, logistic_hazard, survival_loss
from equipoise.task import Task
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.names import UnknownName, nearest, quoted
from equipoise.validation.registry import Registry
from equipoise.validation.settings import plain_reason

Function = Callable[..., Tensor]
Needs = Literal["classes", "values", "survival", "log risks", "hazards", "any"]
DEFAULT = "default"


@dataclass(frozen=True)
class SupervisedLoss:
    """A loss of outputs and targets: the mean over a batch, at least 0.

    Attributes:
        name: Its name.
        function: A function ``(outputs, targets, *, options)`` of logits (batch, classes) and
            labels (batch,), or in regression of values (batch, 1) and targets (batch,). In survival
            analysis targets are times, negative where censored.
            Keyword-only parameters are its options.
        needs: The tasks it fits: "classes", "values" (regression), "survival", "log risks"
            (survival with one output), "hazards" (survival with several outputs) or "any".
    """

    name: str
    function: Function
    needs: Needs = "any"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(
                f"loss {self.name!r}: expected a function, got {quoted(self.function)}"
            )
        if self.needs not in get_args(Needs):
            raise ValueError(
                f"loss {self.name!r}: needs: expected one of {', '.join(get_args(Needs))}, got "
                f"{quoted(self.needs)}"
            )

    def __call__(self, outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """Return the mean over a batch."""
        return self.function(outputs, targets, **options)

    @property
    def options(self) -> dict[str, Any]:
        """Its options with their defaults."""
        return {
            parameter.name: parameter.default
            for parameter in inspect.signature(self.function).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    def fits(self, task: Task) -> bool:
        """Return True if it can be minimised in a task."""
        if self.needs == "any":
            return True
        if not task.survives:
            return self.needs == ("classes" if task.classifies else "values")
        return self.needs in ("survival", "log risks" if task.outputs == 1 else "hazards")


def default_of(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a task for which the user chose none."""
    if task.classifies:
        return F.cross_entropy
    return survival_loss if task.survives else squared_error


def default(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return cross-entropy, or squared error in regression."""
    return (
        squared_error(outputs, targets)
        if targets.is_floating_point()
        else F.cross_entropy(outputs, targets)
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of a single output."""
    return F.mse_loss(outputs.squeeze(-1), targets)


def focal(
    outputs: Tensor, targets: Tensor, *, gamma: Annotated[float, Field(ge=0)] = 2.0
) -> Tensor:
    """Return the focal loss, in which certain samples count less (Lin et al., ICCV 2017)."""
    value: Tensor = focal_loss(outputs, targets, gamma)
    return value


def label_smoothing(
    outputs: Tensor, targets: Tensor, *, smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
) -> Tensor:
    """Return cross-entropy with smoothed labels (Szegedy et al., CVPR 2016)."""
    return F.cross_entropy(outputs, targets, label_smoothing=smoothing)


LOSSES = {
    DEFAULT: SupervisedLoss(DEFAULT, default),
    "focal": SupervisedLoss("focal", focal, "classes"),
    "label_smoothing": SupervisedLoss("label_smoothing", label_smoothing, "classes"),
    "cox": SupervisedLoss("cox", cox, "log risks"),
    "logistic_hazard": SupervisedLoss("logistic_hazard", logistic_hazard, "hazards"),
}


def as_loss(loss: Any, name: str) -> SupervisedLoss:
    """Return a loss as it is, or a plain function as a loss for any task."""
    return loss if isinstance(loss, SupervisedLoss) else SupervisedLoss(name, loss)


def _load(name: str, path: str, imports: Imports) -> SupervisedLoss:
    loss = imports.load(
        path, "loss", SupervisedLoss, makes="mean of outputs and targets", instance=True
    )
    return as_loss(loss, name)


REGISTRY: Registry[SupervisedLoss] = Registry("loss", "equipoise.losses", LOSSES, _load)


def resolve(spec: Any, imports: Imports = OWN) -> tuple[SupervisedLoss, dict[str, Any]]:
    """Return the loss that `training.loss` names or holds, and its options.

    Args:
        spec: A name, "package.module:name", a mapping with `name` and options, a function or a
            SupervisedLoss.
        imports: The packages that may be imported.

    Raises:
        UnknownName: If there is no such loss or option.
        NotAllowed: If a file names code of a package that is not allowed.
    """
    options = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    named = options.pop("name", None)
    if isinstance(named, str):
        loss = REGISTRY.find(named, imports)
    elif callable(named):
        loss = as_loss(named, getattr(named, "__name__", "loss"))
    else:
        raise UnknownName(
            "unknown loss: expected a name, a mapping with `name`, or a function of outputs and "
            f"targets, got {quoted(spec)}"
        )
    return loss, {option: _checked(loss, option, value) for option, value in options.items()}


def _checked(loss: SupervisedLoss, option: str, value: Any) -> Any:
    """Return the value of an option, converted to its type."""
    if option not in loss.options:
        raise nearest(f"option of loss {loss.name!r}", option, list(loss.options))
    hint = get_type_hints(loss.function, include_extras=True).get(option, Any)
    try:
        return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
    except ValidationError as error:
        reason = plain_reason(error.errors()[0]["msg"])
        raise ValueError(f"{option} of loss {loss.name!r}: {reason}, got {quoted(value)}") from None


def try_loss(loss: Callable[[Tensor, Tensor], Tensor], task: Task) -> None:
    """Refuse a function that does not return one number for a batch, before training starts.

    Raises:
        ValueError: If it cannot be computed or returns something else.
    """
    outputs = torch.zeros(2, task.outputs, requires_grad=True)
    targets = torch.zeros(2, dtype=torch.int64 if task.classifies else torch.float32)
    try:
        value = loss(outputs, targets)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"training.loss: it cannot be computed for a batch of 2 ({error})"
        ) from error
    if not isinstance(value, Tensor) or value.shape != () or not value.requires_grad:
        received = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else quoted(value)
        )
        raise ValueError(
            "training.loss: expected the mean over a batch, a tensor of shape () with a "
            f"gradient, got {received}"
        )
