"""Gradients of fully connected networks by direct calls of torch's kernels.

Autograd records every operation and replays it, which costs as much as the arithmetic of a small
network. Here the kernels that autograd would run are called in the same order on the same operands,
so that results have the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all_modules

from equipoise.models import Model
from equipoise.models.network import Network

_relu_backward = torch.ops.aten.threshold_backward.default
_nll_backward = torch.ops.aten.nll_loss_backward.default
_MEAN = 1  # the number of this reduction in torch's kernels
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_IGNORED = -100  # the class that torch's cross-entropy ignores by default


class DenseNetwork:
    """Linear layers with ReLU between them, trained by cross-entropy.

    Attributes:
        layers: The linear layers, from the inputs to the logits.
        flattens: True if the network flattens its inputs.
    """

    def __init__(self, layers: list[nn.Linear], flattens: bool) -> None:
        self.layers = layers
        self.flattens = flattens
        self._weights = [layer.weight.detach() for layer in layers]
        self._biases = [layer.bias.detach() for layer in layers]
        self._one = torch.ones(())
        self._sizes: dict[int, Tensor] = {}  # batch size -> the same as a tensor

    @classmethod
    def of(cls, model: Model) -> DenseNetwork | None:
        """Return the network of a model; None if it has other parts or hooks.

        Args:
            model: The model.
        """
        modules = _modules(model.net)
        flattens = bool(modules) and _flattens(modules[0])
        layers = _linear_layers(modules[1:] if flattens else modules)
        if not layers or _has_hooks(model.net):
            return None
        trained = set(map(id, model.trained.values()))
        for layer in layers:
            for parameter in (layer.weight, layer.bias):
                if parameter is None or id(parameter) not in trained:
                    return None
                if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                    return None
        return cls(layers, flattens)

    def fits(self, x: Tensor) -> bool:
        """Return True if a batch has one row of numbers per sample, flattened if need be."""
        return x.dtype == torch.float32 and (self.flattens or x.dim() == 2)

    @torch.no_grad()
    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Set the gradients of the mean cross-entropy over a batch, and return that loss.

        Args:
            x: The inputs.
            y: The classes.
        """
        inputs = self._inputs_of_layers(x.flatten(1))
        scores = torch._log_softmax(inputs.pop(), 1, False)
        # The stub of this function expects the name of the reduction; the function, its number.
        loss: Tensor = torch._C._nn.nll_loss_nd(scores, y, None, _MEAN)  # type: ignore[arg-type]
        gradient = _nll_backward(
            self._one, scores, y, None, _MEAN, _IGNORED, self._as_tensor(len(y))
        )
        gradient = torch._log_softmax_backward_data(gradient, scores, 1, torch.float32)
        for position in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[position]
            layer.bias.grad = gradient.sum(0)
            layer.weight.grad = torch.mm(gradient.t(), inputs[position])
            if position:
                gradient = torch.mm(gradient, self._weights[position])
                gradient = _relu_backward(gradient, inputs[position], 0)
        return loss

    def _inputs_of_layers(self, x: Tensor) -> list[Tensor]:
        """Return the inputs of all layers, and the outputs of the last one."""
        values = [x]
        last = len(self.layers) - 1
        for position, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            x = torch._C._nn.linear(x, weight, bias)
            if position < last:
                x = torch.relu_(x)
            values.append(x)
        return values

    def _as_tensor(self, size: int) -> Tensor:
        if size not in self._sizes:
            self._sizes[size] = torch.tensor(float(size))
        return self._sizes[size]


def _modules(net: nn.Module) -> list[nn.Module]:
    """Return the modules of a network in their order; none if it is no plain sequence."""
    if type(net) is not Network:
        return []
    features = list(net.features) if type(net.features) is nn.Sequential else [net.features]
    return [module for module in (*features, net.head) if type(module) is not nn.Identity]


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def _linear_layers(modules: list[nn.Module]) -> list[nn.Linear]:
    """Return the linear layers of a sequence with ReLU between them; none of another."""
    layers = []
    for position, module in enumerate(modules):
        expected = nn.Linear if position % 2 == 0 else nn.ReLU
        if type(module) is not expected:
            return []
        if isinstance(module, nn.Linear):
            layers.append(module)
    ends_with_layer = len(modules) % 2 == 1
    return layers if ends_with_layer else []


def _has_hooks(net: nn.Module) -> bool:
    """Return True if a hook sees or changes what the modules of a network compute."""
    for kind in _HOOKS:
        if getattr(hooks_of_all_modules, f"_global{kind}"):
            return True
        if any(getattr(module, kind) for module in net.modules()):
            return True
    # Hooks of tensors, such as those that count or change gradients.
    return any(parameter._backward_hooks for parameter in net.parameters())
