"""The diagonal of the empirical Fisher information."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from equipoise.losses.fisher_hooks import squares_by_hooks
from equipoise.models.network import evaluating
from equipoise.validation.arrays import Numbers, Values, like, tensor

Squares = dict[str, torch.Tensor]
# inputs passed at once: 42 colour images of 32 x 32, whose activations take some 200 MB in a
# ResNet-10
PASSED_NUMBERS = 1 << 17
STACKED_NUMBERS = 1 << 24  # per-sample gradients held at once by vmap: 64 MB in float32


def fisher_diagonal(
    model: nn.Module,
    x: Values,
    y: Numbers,
    *,
    fisher: Literal["sample", "batch"] = "sample",
    labels: Literal["observed", "model"] = "observed",
    batch: int | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Values]:
    """Return the mean squared gradient of the samples' losses per trainable parameter.

    See FedEquilibria, section 4.1. The loss is cross-entropy for integer y and squared error for
    floating y. The model is in evaluation mode, so that samples do not mix in a batch norm. It is
    not changed.

    Args:
        model: The network.
        x: The inputs.
        y: The targets.
        fisher: "batch" squares the mean gradient of each batch, a cheap approximation.
        labels: "model" draws labels from the model's predictions.
        batch: The batch size, 64 by default for fisher="batch". Otherwise the number of samples
            passed at once, by default as many as memory should hold, which does not change the
            result.
        generator: The generator of drawn labels.

    Returns:
        One tensor per parameter, by name.

    Raises:
        ValueError: If the model has no trainable parameters or the samples do not fit.

    >>> model = nn.Linear(1, 2)
    >>> _ = nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    >>> fisher_diagonal(model, torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1]))["weight"]
    tensor([[2.5000],
            [2.5000]])
    """
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not parameters:
        raise ValueError(
            "the Fisher diagonal needs a model with trainable parameters; all of this one's are "
            "frozen"
        )
    inputs, targets = tensor(x), tensor(y)
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ValueError(
            f"x and y need the same samples, and at least one; got {len(inputs)} and {len(targets)}"
        )
    size = (
        batch
        if batch is not None
        else 64
        if fisher == "batch"
        else max(1, PASSED_NUMBERS // inputs[0].numel())
    )
    if size < 1:
        raise ValueError(f"batch has to be at least 1; got {batch}")
    inputs = (
        inputs.to(next(iter(parameters.values())).dtype) if inputs.is_floating_point() else inputs
    )
    with evaluating(model):
        if labels == "model":
            targets = _drawn(model, inputs, targets, size, generator)
        by = _by_batches if fisher == "batch" else _by_samples
        sums = by(model, inputs, targets, size)
    return {
        name: like((sums[name] / len(inputs)).to(parameter.dtype), x)
        for name, parameter in parameters.items()
    }


def squares_by_loop(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> Squares:
    """Return sums of squared per-sample gradients, one sample at a time.

    It is the reference, and works for models that vmap cannot take.
    """
    return _by_batches(model, x, y, 1)


def squares_by_vmap(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> Squares:
    """Return sums of squared per-sample gradients by torch.func, some samples at a time."""
    parameters = _detached(model)
    gradients = vmap(grad(partial(_loss_of_one, model)), in_dims=(None, 0, 0))
    sums = _zeros(parameters)
    for samples, targets in _chunks(
        x,
        y,
        max(
            1,
            min(
                batch,
                STACKED_NUMBERS // sum(parameter.numel() for parameter in parameters.values()),
            ),
        ),
    ):
        for name, stacked in gradients(parameters, samples, targets).items():
            sums[name] += stacked.square().sum(0)
    return sums


def summed_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of losses: squared error for floating targets, otherwise cross-entropy."""
    if targets.is_floating_point():
        return functional.mse_loss(
            outputs, targets.to(outputs.dtype).reshape(outputs.shape), reduction="sum"
        )
    return functional.cross_entropy(outputs, targets, reduction="sum")


def _by_samples(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> Squares:
    return (
        _hooked(model, x, y, batch)
        or _stacked(model, x, y, batch)
        or squares_by_loop(model, x, y, batch)
    )


def _hooked(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> Squares | None:
    """Return the squares by hooks, or None if they do not agree with the loop on two samples.

    This catches what the rules do not foresee, such as a weight that is used outside of its layer,
    or samples that mix in a layer of the user.
    """
    by_hooks = partial(squares_by_hooks, model, _detached(model), summed_loss)
    trial = by_hooks(_chunks(x[:2], y[:2], 2))
    if trial is None:
        return None
    truth = squares_by_loop(model, x[:2], y[:2], 1)
    largest = {name: float(squares.max()) for name, squares in truth.items()}
    # a gradient that cancels to 0 is rounding noise either way
    slack = 1e-9 * max(largest.values())
    agree = all(
        torch.allclose(
            trial[name], squares, rtol=0, atol=1e-3 * largest[name] + slack, equal_nan=True
        )
        for name, squares in truth.items()
    )
    return by_hooks(_chunks(x, y, batch)) if agree else None


def _stacked(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> Squares | None:
    # torch.func cannot take packed sequences
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return None
    try:
        return squares_by_vmap(model, x, y, batch)
    except (RuntimeError, NotImplementedError):  # nor a computation that depends on the data
        return None


def _by_batches(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> Squares:
    """Return the squares of each batch's mean gradient, times the batch size."""
    parameters = {name: parameter.requires_grad_() for name, parameter in _detached(model).items()}
    sums = _zeros(parameters)
    for samples, targets in _chunks(x, y, batch):
        loss = summed_loss(functional_call(model, parameters, (samples,)), targets) / len(samples)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                sums[name].add_(gradient.double().square_(), alpha=len(samples))
    return sums


def _loss_of_one(
    model: nn.Module, parameters: Squares, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    return summed_loss(functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))


def _drawn(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    batch: int,
    generator: torch.Generator | None,
) -> torch.Tensor:
    if generator is None or y.is_floating_point():
        raise ValueError(
            'labels="model" needs a classification task and a generator to draw labels with; use '
            'labels="observed" otherwise'
        )
    with torch.no_grad():
        chances = torch.cat(
            [torch.softmax(model(samples), -1) for samples in torch.split(x, batch)]
        )
    return torch.multinomial(chances, 1, generator=generator).squeeze(1)


def _detached(model: nn.Module) -> Squares:
    return {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _zeros(parameters: Squares) -> Squares:
    return {
        name: torch.zeros_like(parameter, dtype=torch.float64, requires_grad=False)
        for name, parameter in parameters.items()
    }


def _chunks(
    x: torch.Tensor, y: torch.Tensor, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(torch.split(x, size), torch.split(y, size), strict=True)
