"""Squared per-sample gradients from one backward pass of a whole batch.

It handles linear, convolution and batch-norm layers. With input a and output gradient d of the
summed loss, a sample's weight gradient is d a' summed over positions. For a linear layer on flat
samples the squares add up without ever forming it: (d^2)' (a^2). Otherwise it is formed for a few
samples at a time, so that it stays in the processor's cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

Squares = dict[str, torch.Tensor]
Rule = Callable[[Any, torch.Tensor, torch.Tensor], Squares]
CACHED_NUMBERS = 1 << 19


def squares_by_hooks(
    model: nn.Module,
    parameters: Squares,
    summed_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> Squares | None:
    """Return sums of squared per-sample gradients in float64.

    Args:
        model: The network.
        parameters: Its trainable parameters by name.
        summed_loss: The sum of the samples' losses, from outputs and targets.
        batches: Inputs and targets.

    Returns:
        The sums by name, or None if the formulas do not hold for the model.
    """
    layers = _layers(model)
    if layers is None:
        return None
    anchor = torch.zeros((), dtype=next(iter(parameters.values())).dtype, requires_grad=True)
    sums = {
        name: torch.zeros_like(parameter, dtype=torch.float64)
        for name, parameter in parameters.items()
    }
    calls: Counter[nn.Module] = Counter()

    def forwarded(
        layer: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        calls[layer] += 1
        inputs = args[0].detach()
        # The parameters carry no gradient here, which spares their part of the backward pass; so
        # the first layers need a start.
        output = output if output.requires_grad else output + anchor

        def returned(gradient: torch.Tensor) -> None:
            rule, names = layers[layer]
            for part, squares in rule(layer, inputs, gradient).items():
                if part in names:
                    sums[names[part]] += squares

        output.register_hook(returned)  # type: ignore[no-untyped-call]
        return output

    handles = [layer.register_forward_hook(forwarded) for layer in layers]
    try:
        for samples, targets in batches:
            calls.clear()
            loss = summed_loss(functional_call(model, parameters, (samples,)), targets)
            # a layer used twice: its two gradients add up before they are squared
            if max(calls.values(), default=0) != 1:
                return None
            torch.autograd.grad(loss, anchor)
    finally:
        for handle in handles:
            handle.remove()
    return sums


def _layers(model: nn.Module) -> dict[nn.Module, tuple[Rule, dict[str, str]]] | None:
    """Return every layer with trainable parameters, its rule and its parameters' full names.

    None if a layer has no rule or shares parameters.
    """
    if len(list(model.named_parameters())) != len(
        list(model.named_parameters(remove_duplicate=False))
    ):
        return None
    layers: dict[nn.Module, tuple[Rule, dict[str, str]]] = {}
    for path, layer in model.named_modules():
        names = {
            part: f"{path}.{part}" if path else part
            for part, parameter in layer.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        if names:
            rule = _rule(layer)
            if rule is None:
                return None
            layers[layer] = rule, names
    return layers


def _rule(layer: nn.Module) -> Rule | None:
    # Exact types: a subclass may compute something else.
    if type(layer) is nn.Linear:
        return _linear
    if (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    ):
        return _convolution
    if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d) and layer.running_mean is not None:
        return _batch_norm
    return None


def _linear(layer: nn.Linear, x: torch.Tensor, gradient: torch.Tensor) -> Squares:
    inputs, gradients = (
        values.reshape(len(values), -1, values.shape[-1]).mT for values in (x, gradient)
    )
    return {
        "weight": _squared_products(gradients, inputs),
        "bias": gradients.sum(2).square().sum(0),
    }


def _convolution(layer: nn.Conv2d, x: torch.Tensor, gradient: torch.Tensor) -> Squares:
    gradients = gradient.flatten(2)
    total = torch.zeros(layer.out_channels, layer.weight[0].numel(), dtype=x.dtype)
    step = max(1, CACHED_NUMBERS // (total.shape[1] * gradients.shape[2]))
    for inputs, part in zip(torch.split(x, step), torch.split(gradients, step), strict=True):
        total += _squared_products(part, _patches(layer, inputs))
    return {"weight": total.reshape(layer.weight.shape), "bias": gradients.sum(2).square().sum(0)}


def _patches(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """Return the inputs of the kernel at every position, (batch, kernel inputs, positions).

    A strided copy is faster than torch's unfold.
    """
    rows, columns = (int(padding) for padding in layer.padding)
    windows = functional.pad(x, (columns, columns, rows, rows))
    for axis, (kernel, stride, spacing) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        windows = windows.unfold(axis, spacing * (kernel - 1) + 1, stride)[..., ::spacing]
    return windows.permute(0, 1, 4, 5, 2, 3).reshape(len(x), layer.weight[0].numel(), -1)


def _batch_norm(layer: nn.BatchNorm2d, x: torch.Tensor, gradient: torch.Tensor) -> Squares:
    normalised = functional.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps)
    products, gradients = (
        values.reshape(*values.shape[:2], -1).sum(2) for values in (gradient * normalised, gradient)
    )
    return {"weight": products.square().sum(0), "bias": gradients.square().sum(0)}


def _squared_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the sum over samples of the squared entries of left_i right_i'.

    Args:
        left: A tensor (batch, m, positions).
        right: A tensor (batch, n, positions).
    """
    if left.shape[2] == 1:
        return left.squeeze(2).square().T @ right.squeeze(2).square()
    total = torch.zeros(left.shape[1], right.shape[1], dtype=left.dtype)
    step = max(1, CACHED_NUMBERS // total.numel())
    for first, second in zip(torch.split(left, step), torch.split(right, step), strict=True):
        products = first @ second.mT
        total += products.square_().sum(0)
    return total
