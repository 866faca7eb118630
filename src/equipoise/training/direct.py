"""Gradients of small networks by direct calls of torch's kernels.

Autograd records every operation and replays it, which costs as much as the arithmetic of a small
network. Here the kernels that autograd would run are called in the same order on the same operands,
so that results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all_modules

from equipoise.losses.registry import squared_error
from equipoise.models import Model
from equipoise.models.network import Network
from equipoise.training.convolution import ConvolutionBlock

relu_backward = torch.ops.aten.threshold_backward.default
_nll_forward = torch.ops.aten.nll_loss_forward.default
_nll_backward = torch.ops.aten.nll_loss_backward.default
_mse_backward = torch.ops.aten.mse_loss_backward.default
_MEAN = 1  # the number of this reduction in torch's kernels
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_IGNORED = -100  # the class that torch's cross-entropy ignores by default
_ONE = torch.ones(())  # the gradient of a loss with respect to itself

# A function of outputs and targets that returns the loss and its gradient with respect to outputs.
LossGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class DirectNetwork:
    """Linear layers with ReLU between them, after blocks of convolutions if there are any.

    Attributes:
        blocks: The blocks of convolutions, from the inputs on.
        flattens: True if the network flattens the inputs of its linear layers.
        parameters: The weight and bias of each layer, in the order of the gradients.
        tensors: The same without autograd.
    """

    def __init__(
        self,
        net: nn.Module,
        blocks: list[ConvolutionBlock],
        flattens: bool,
        layers: list[nn.Linear],
    ) -> None:
        self.blocks = blocks
        self.flattens = flattens
        self.parameters: list[Tensor] = []
        for block in blocks:
            self.parameters += block.parameters
        for layer in layers:
            self.parameters += [layer.weight, layer.bias]
        self.tensors = [parameter.detach() for parameter in self.parameters]
        self._linear = self.tensors[2 * len(blocks) :]
        self._modules = list(net.modules())

    @property
    def is_dense(self) -> bool:
        """True if the network has linear layers only."""
        return not self.blocks

    @classmethod
    def of(cls, model: Model) -> DirectNetwork | None:
        """Return the network of a model; None if it has other parts, hooks or frozen parameters.

        Args:
            model: The model.
        """
        if model not in _networks:
            _networks[model] = cls._recognised(model)
        network = _networks[model]
        if network is None or not network._is_plain():
            return None
        return network

    @classmethod
    def _recognised(cls, model: Model) -> DirectNetwork | None:
        """Return the network of a model whose modules can be computed here, else None."""
        blocks, modules = _leading_blocks(_modules(model.net))
        flattens = bool(modules) and _flattens(modules[0])
        layers = _linear_layers(modules[1:] if flattens else modules)
        if not layers or any(layer.bias is None for layer in layers):
            return None
        if blocks and not flattens:
            return None  # Its linear layers act on the last dimension of images.
        network = cls(model.net, blocks, flattens, layers)
        # The optimiser pairs gradients with parameters by position.
        if list(map(id, network.parameters)) != list(map(id, model.trained.values())):
            return None
        for parameter in network.parameters:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                return None
        return network

    def _is_plain(self) -> bool:
        """Return True if no hook is registered now and every parameter is trained."""
        for kind in _HOOKS:
            if getattr(hooks_of_all_modules, f"_global{kind}"):
                return False
            for module in self._modules:
                if getattr(module, kind):
                    return False
        for parameter in self.parameters:
            # Hooks of tensors, such as those that count or change gradients.
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return False
            if not parameter.requires_grad:
                return False
        return True

    def fits(self, x: Tensor) -> bool:
        """Return True if a batch has images for convolutions, or a row of numbers per sample."""
        if x.dtype != torch.float32:
            return False
        if self.blocks:
            return x.dim() == 4
        return self.flattens or x.dim() == 2

    def gradients(self, x: Tensor, y: Tensor, loss: LossGradient) -> tuple[Tensor, list[Tensor]]:
        """Return the loss over a batch, and its gradients in the order of `parameters`.

        The caller switches autograd off.

        Args:
            x: The inputs.
            y: The targets.
            loss: The loss and its gradient; see `loss_gradient`.
        """
        passes = []
        for position, block in enumerate(self.blocks):
            weight, bias = self.tensors[2 * position : 2 * position + 2]
            passes.append(block.forward(x, weight, bias))
            x = passes[-1].outputs
        weights = self._linear[::2]
        inputs = inputs_of_layers(x.flatten(1), self._linear)
        value, gradient = loss(inputs.pop(), y)
        gradient, gradients = gradients_of_layers(gradient, inputs, weights)
        if passes:
            gradient = torch.mm(gradient, weights[0]).view_as(x)
        for position in range(len(passes) - 1, -1, -1):
            block = self.blocks[position]
            gradient, own = block.backward(passes[position], gradient, needs_inputs=position > 0)
            gradients = own + gradients
        return value, gradients


def gradients_of_layers(
    gradient: Tensor, inputs: list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradient of the first layer's outputs, and those of all weights and biases.

    Args:
        gradient: The gradient of the outputs.
        inputs: The inputs of the layers.
        weights: Their weights.
    """
    gradients: list[Tensor] = []  # from the last layer to the first, bias before weight
    for position in range(len(weights) - 1, -1, -1):
        gradients.append(gradient.sum(0))
        gradients.append(torch.mm(gradient.t(), inputs[position]))
        if position:
            gradient = torch.mm(gradient, weights[position])
            gradient = relu_backward(gradient, inputs[position], 0)
    gradients.reverse()
    return gradient, gradients


def inputs_of_layers(x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Return the inputs of all layers, and the outputs of the last one.

    Args:
        x: The inputs, one row per sample.
        parameters: The weight and bias of each layer.
    """
    values = [x]
    last = len(parameters) - 2
    for position in range(0, len(parameters), 2):
        x = torch._C._nn.linear(x, parameters[position], parameters[position + 1])
        if position < last:
            x = torch.relu_(x)
        values.append(x)
    return values


# Networks are built once per process and serve many fits.
_networks: WeakKeyDictionary[Model, DirectNetwork | None] = WeakKeyDictionary()


def loss_gradient(supervise: Callable[[Tensor, Tensor], Tensor]) -> LossGradient | None:
    """Return the function that computes a loss of a task with its gradient; None if there is none.

    Args:
        supervise: The loss of outputs and targets.
    """
    return _LOSS_GRADIENTS.get(supervise)


def _cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch._log_softmax(outputs, 1, False)
    value, total_weight = _nll_forward(scores, y, None, _MEAN, _IGNORED)
    gradient = _nll_backward(_ONE, scores, y, None, _MEAN, _IGNORED, total_weight)
    return value, torch._log_softmax_backward_data(gradient, scores, 1, torch.float32)


def stacked_cross_entropy(outputs: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each client of a stack, and the gradient of the outputs.

    Args:
        outputs: The outputs, of shape (clients, batch, classes).
        y: The classes, of shape (clients, batch).
        scale: The gradient of the loss with respect to the cross-entropy.
    """
    clients, batch = y.shape
    scores = torch._log_softmax(outputs, 2, False)
    # The sum over a batch is made in blocks: only the same call has the same bits.
    values = []
    for own_scores, own_y in zip(scores.unbind(), y.unbind(), strict=True):
        values.append(_nll_forward(own_scores, own_y, None, _MEAN, _IGNORED)[0])
    flat_scores = scores.view(clients * batch, -1)
    weight = torch.full((), float(batch))
    gradient = _nll_backward(
        scale, flat_scores, y.reshape(-1), None, _MEAN, _IGNORED, weight
    ).view_as(scores)
    gradient = torch._log_softmax_backward_data(gradient, scores, 2, torch.float32)
    return torch.stack(values), gradient


def _squared_error(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    predictions = outputs.squeeze(-1)
    value = F.mse_loss(predictions, y)
    return value, _mse_backward(_ONE, predictions, y, _MEAN).view_as(outputs)


_LOSS_GRADIENTS: dict[Callable[..., Tensor], LossGradient] = {
    F.cross_entropy: _cross_entropy,
    squared_error: _squared_error,
}


def _modules(net: nn.Module) -> list[nn.Module]:
    """Return the modules of a network in their order; none if it is no plain sequence."""
    if type(net) is not Network:
        return []
    features = list(net.features) if type(net.features) is nn.Sequential else [net.features]
    return [module for module in (*features, net.head) if type(module) is not nn.Identity]


def _leading_blocks(
    modules: list[nn.Module],
) -> tuple[list[ConvolutionBlock], list[nn.Module]]:
    """Return the blocks of convolutions at the start of a sequence, and the modules after them."""
    blocks = []
    block = ConvolutionBlock.of(modules[:3])
    while block is not None:
        blocks.append(block)
        modules = modules[3:]
        block = ConvolutionBlock.of(modules[:3])
    return blocks, modules


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
