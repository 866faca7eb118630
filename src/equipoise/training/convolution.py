"""Blocks of a convolution, max-pooling and ReLU by direct calls of torch's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.training.steps import in_layout_of

_convolve = torch.ops.aten.convolution.default
_convolve_backward = torch.ops.aten.convolution_backward.default
_pool = torch.ops.aten.max_pool2d_with_indices.default
_pool_backward = torch.ops.aten.max_pool2d_with_indices_backward.default
_relu_backward = torch.ops.aten.threshold_backward.default
_NOT_TRANSPOSED = (False, [0, 0])


class ConvolutionBlock:
    """A convolution, max-pooling and ReLU.

    Attributes:
        parameters: The weight and bias of the convolution.
    """

    def __init__(self, convolution: nn.Conv2d, pooling: nn.MaxPool2d) -> None:
        assert convolution.bias is not None
        self.parameters: list[Tensor] = [convolution.weight, convolution.bias]
        self._channels = [convolution.out_channels]
        self._convolution_options: tuple[Any, ...] = (
            list(convolution.stride),
            list(convolution.padding),
            list(convolution.dilation),
            *_NOT_TRANSPOSED,
            convolution.groups,
        )
        self._pooling_options: tuple[Any, ...] = (
            _pair(pooling.kernel_size),
            _pair(pooling.stride),
            _pair(pooling.padding),
            _pair(pooling.dilation),
            pooling.ceil_mode,
        )

    @classmethod
    def of(cls, modules: Sequence[nn.Module]) -> ConvolutionBlock | None:
        """Return the block of three modules; None if they are others.

        Args:
            modules: At most three modules of a sequence.
        """
        if [type(module) for module in modules] != [nn.Conv2d, nn.MaxPool2d, nn.ReLU]:
            return None
        convolution, pooling, _ = modules
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(pooling, nn.MaxPool2d)
        if convolution.padding_mode != "zeros" or isinstance(convolution.padding, str):
            return None
        if convolution.bias is None or pooling.return_indices:
            return None
        return cls(convolution, pooling)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> ConvolutionPass:
        """Compute the outputs for a batch of images.

        Args:
            x: The images.
            weight: The weight of the convolution.
            bias: Its bias.
        """
        convolved = _convolve(x, weight, bias, *self._convolution_options)
        pooled, indices = _pool(convolved, *self._pooling_options)
        return ConvolutionPass(x, weight, convolved, indices, torch.relu_(pooled))

    def backward(
        self, own_pass: ConvolutionPass, gradient: Tensor, needs_inputs: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the gradient of the inputs if it is needed, and those of weight and bias.

        Args:
            own_pass: The forward pass.
            gradient: The gradient of its outputs.
            needs_inputs: True if the gradient of the inputs is needed.
        """
        gradient = _relu_backward(gradient, own_pass.outputs, 0)
        gradient = _pool_backward(
            gradient, own_pass.convolved, *self._pooling_options, own_pass.indices
        )
        inputs, weight, bias = _convolve_backward(
            gradient,
            own_pass.x,
            own_pass.weight,
            self._channels,
            *self._convolution_options,
            (needs_inputs, True, True),
        )
        return inputs, [in_layout_of(weight, own_pass.weight), bias]


@dataclass
class ConvolutionPass:
    """A forward pass through a block.

    Attributes:
        x: The inputs.
        weight: The weight of the convolution.
        convolved: The outputs of the convolution.
        indices: The positions of the largest values.
        outputs: The outputs of the block.
    """

    x: Tensor
    weight: Tensor
    convolved: Tensor
    indices: Tensor
    outputs: Tensor


def _pair(size: int | tuple[int, ...]) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)
