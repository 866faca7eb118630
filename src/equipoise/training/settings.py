"""The settings of a client's training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
    model_validator,
)
from torch import Tensor

from equipoise.losses.registry import DEFAULT, LOSSES, REGISTRY, default_of, resolve
from equipoise.task import Task
from equipoise.validation.imports import permission
from equipoise.validation.registry import import_name, plain_function
from equipoise.validation.settings import Settings


class Training(Settings):
    """Local training of one client in one round."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimiser: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="optimiser of local training"
    )
    lr: float = Field(default=0.1, gt=0, description="learning rate of round 1")
    lr_decay: float = Field(
        default=1.0, gt=0, le=1, description="factor on the learning rate per round"
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of sgd")
    nesterov: bool = Field(default=False, description="Nesterov momentum, of sgd")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="of adam and adamw")
    eps: float = Field(default=1e-8, gt=0, description="of adam and adamw")
    weight_decay: float = Field(default=0.0, ge=0, description="weight decay of the optimiser")
    batch: int = Field(default=32, ge=1, description="samples in a batch")
    epochs: int = Field(default=1, ge=1, description="passes over a client's data per round")
    steps: int | None = Field(
        default=None, ge=1, description="a number of steps in place of epochs"
    )
    clip: float | None = Field(default=None, gt=0, description="largest norm of a gradient")
    keep_optimiser: bool = Field(
        default=False,
        description="Standalone keeps its optimiser state between rounds, as in one uninterrupted "
        "training",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the networks in training; bfloat16 is tried in a child process first",
    )
    loss: Any = Field(
        default=DEFAULT,
        description="a loss's name, or a mapping with its name and options, or a function of "
        "outputs and targets; default: cross-entropy, squared error in regression, Cox or "
        "logistic hazard in survival analysis",
    )
    focal_gamma: float = Field(default=2.0, ge=0, description="of the loss focal")

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: Any) -> Any:
        resolve(loss, permission.get())
        if isinstance(loss, Mapping) and isinstance(loss["name"], str):
            return {**loss, "name": REGISTRY.portable(loss["name"])}
        return REGISTRY.portable(loss) if isinstance(loss, str) else loss

    @field_serializer("loss")
    def _plain_loss(self, loss: Any) -> Any:
        if isinstance(loss, Mapping):
            return {**loss, "name": self._plain_loss(loss["name"])}
        return plain_function(loss)

    @property
    def local_loss(self) -> str | None:
        """The name of the loss if only this process knows it; None if others know it."""
        loss = self.loss["name"] if isinstance(self.loss, Mapping) else self.loss
        if isinstance(loss, str):
            return loss if REGISTRY.is_local(loss) else None
        return resolve(loss)[0].name if import_name(loss) is None else None

    def supervised_loss(self, task: Task) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss of outputs and targets that training minimises in a task."""
        loss, options = resolve(self.loss)
        # Focal loss in regression is refused for new runs; runs of older versions used the
        # squared error in its place.
        if loss is LOSSES[DEFAULT] or not loss.fits(task):
            return default_of(task)
        if loss is LOSSES["focal"]:
            options = {"gamma": self.focal_gamma, **options}
        return partial(loss.function, **options)

    @model_validator(mode="after")
    def _options_fit(self) -> Training:
        if self.optimiser != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(
                f"momentum and nesterov belong to sgd, but optimiser is {self.optimiser}; "
                "drop them or choose sgd"
            )
        if self.nesterov and not self.momentum:
            raise ValueError(
                "nesterov needs momentum above 0, got 0; set training.momentum=0.9, say"
            )
        return self

    def changed(self, changes: Mapping[str, Any]) -> Training:
        """Return these settings with some changed and all checked again.

        Args:
            changes: New values by name. A number of epochs replaces a number of steps.

        Raises:
            TypeError: If there is no such setting.
        """
        unknown = [name for name in changes if name not in Training.model_fields]
        if unknown:
            raise TypeError(
                f"unknown training setting {unknown[0]!r}; "
                f"expected some of {', '.join(Training.model_fields)}"
            )
        by_epochs = {"steps": None} if "epochs" in changes else {}
        return Training(**{**dict(self), **by_epochs, **changes})

    def rate(self, round: int) -> float:
        """Return the learning rate of a round, counted from 1; `setup`, round 0, has that of 1."""
        return float(self.lr * self.lr_decay ** (max(1, round) - 1))

    @property
    def plain_sgd(self) -> bool:
        """True if an update is exactly the learning rate times a gradient.

        SCAFFOLD, FedDC and q-FedAvg are derived under this assumption.
        """
        return (
            self.optimiser == "sgd"
            and not self.momentum
            and not self.weight_decay
            and self.clip is None
        )
