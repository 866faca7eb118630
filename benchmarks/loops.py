"""Hand-written training loops of the bound: a function per method that trains clients and sums
their parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from networks import network
from workloads import Workload

STACKS = {"stacked_2": 2, "stacked_5": 5, "stacked_10": 10, "stacked_25": 25}

Trainer = Callable[[list[int]], Tensor]


@dataclass
class Shared:
    """Data that all processes see.

    Tensors that change are in shared memory, personal models in a file.
    """

    workload: Workload
    variant: str
    seed: int
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    parts: list[Tensor]
    model: Tensor
    sums: Tensor
    met: Tensor
    personal_file: IO[bytes]


def flatten(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in parameters])


@torch.no_grad()
def fill(parameters: Sequence[Tensor], vector: Tensor) -> None:
    """Writes a vector made by flatten into the parameters."""
    for p, piece in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
        p.copy_(piece.view_as(p))


def batches(samples: Tensor, workload: Workload) -> Iterator[Tensor]:
    """Sample indices of every step of one client."""
    for _ in range(workload.epochs):
        yield from samples[torch.randperm(len(samples))].split(workload.batch)


def stepper(parameters: Sequence[Tensor], variant: str, rate: float) -> Callable[[Tensor], None]:
    """A function that takes one SGD step on a loss: torch's optimiser, or nothing but a gradient
    and a subtraction.
    """
    if variant.endswith("bare") or variant in STACKS:

        def bare(loss: Tensor) -> None:
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, gradient in zip(parameters, gradients, strict=True):
                    p.add_(gradient, alpha=-rate)

        return bare
    optimiser = torch.optim.SGD(
        parameters, lr=rate, fused=variant != "foreach", foreach=variant == "foreach"
    )

    def step(loss: Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def fedavg(shared: Shared, model: nn.Sequential) -> Trainer:
    """Trains clients with autograd and an optimiser's step."""
    step = stepper(list(model.parameters()), shared.variant, shared.workload.rate)
    return one_by_one(shared, model, lambda x, y: step(functional.cross_entropy(model(x), y)))


def one_by_one(
    shared: Shared, model: nn.Sequential, step: Callable[[Tensor, Tensor], None]
) -> Trainer:
    """Trains clients one after another; returns the sum of their parameters weighted by samples."""
    parameters = list(model.parameters())

    def train(clients: list[int]) -> Tensor:
        total = torch.zeros_like(shared.model)
        for client in clients:
            samples = shared.parts[client]
            fill(parameters, shared.model)
            for batch in batches(samples, shared.workload):
                step(shared.x[batch], shared.y[batch])
            total += len(samples) * flatten(parameters)
        return total

    return train


def by_hand(shared: Shared, model: nn.Sequential) -> Trainer:
    """As fedavg without autograd: torch's kernels one by one, and the step of a linear layer inside
    the product that is its gradient.

    No loop for methods at large: it shows what the kernels alone cost.
    """
    rate = shared.workload.rate

    @torch.no_grad()
    def step(x: Tensor, y: Tensor) -> None:
        kept: list[tuple[Tensor, ...]] = []
        for layer in model:
            if isinstance(layer, nn.ReLU):
                kept.append((x.clamp_min_(0),))
            elif isinstance(layer, nn.MaxPool2d):
                before = x
                x, places = torch.ops.aten.max_pool2d_with_indices(before, [2, 2], [2, 2])
                kept.append((before, places))
            else:
                kept.append((x,))
                x = layer(x)
        gradient = x.softmax(1)
        gradient[torch.arange(len(y)), y] -= 1
        gradient /= len(y)
        for layer, (saved, *places) in zip(reversed(model), reversed(kept), strict=True):
            below = saved.data_ptr() != kept[0][0].data_ptr()  # the images need no gradient
            if isinstance(layer, nn.ReLU):
                gradient = torch.ops.aten.threshold_backward(gradient, saved, 0)
            elif isinstance(layer, nn.MaxPool2d):
                gradient = torch.ops.aten.max_pool2d_with_indices_backward(
                    gradient, saved, [2, 2], [2, 2], [0, 0], [1, 1], False, places[0]
                )
            elif isinstance(layer, nn.Flatten):
                gradient = gradient.view_as(saved) if below else gradient
            elif isinstance(layer, nn.Conv2d):
                needed = [below, True, True]
                gradient, weight, bias = torch.ops.aten.convolution_backward(
                    gradient,
                    saved,
                    layer.weight,
                    [len(layer.weight)],
                    [1, 1],
                    [0, 0],
                    [1, 1],
                    False,
                    [0, 0],
                    1,
                    needed,
                )
                layer.weight.sub_(weight, alpha=rate)
                layer.bias.sub_(bias, alpha=rate)
            else:
                above, gradient = gradient, gradient @ layer.weight if below else gradient
                layer.weight.addmm_(above.t(), saved, alpha=-rate)
                layer.bias.sub_(above.sum(0), alpha=rate)

    return one_by_one(shared, model, step)


def stacked_fedavg(shared: Shared, model: nn.Sequential) -> Trainer:
    """As fedavg for clients of equal size, all in one computation: grouped convolutions and batched
    matrix products.
    """

    def train(clients: list[int]) -> Tensor:
        n = len(clients)
        fill(list(model.parameters()), shared.model)
        stacks = [
            p.detach().expand(n, *p.shape).clone().requires_grad_() for p in model.parameters()
        ]
        step = stepper(stacks, shared.variant, shared.workload.rate)
        for columns in zip(
            *(batches(shared.parts[client], shared.workload) for client in clients), strict=True
        ):
            batch = torch.stack(columns, 1)
            outputs = stacked_forward(model, stacks, shared.x[batch])
            losses = functional.cross_entropy(
                outputs.flatten(0, 1), shared.y[batch].T.flatten(), reduction="sum"
            )
            step(losses / len(batch))
        size = len(shared.parts[clients[0]])
        return size * torch.cat([stack.detach().sum(0).reshape(-1) for stack in stacks])

    return train


def stacked_forward(model: nn.Sequential, stacks: list[Tensor], x: Tensor) -> Tensor:
    """Outputs (client, sample, class) for inputs (sample, client, channel, height, width) and one
    parameter stack per tensor.
    """
    n, remaining = x.shape[1], iter(stacks)
    x = x.flatten(1, 2)
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            weight, bias = next(remaining), next(remaining)
            x = functional.conv2d(x, weight.flatten(0, 1), bias.flatten(), groups=n)
        elif isinstance(layer, nn.Linear):
            weight, bias = next(remaining), next(remaining)
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        elif isinstance(layer, nn.Flatten):
            x = x.reshape(len(x), n, -1).transpose(0, 1)
        else:
            x = layer(x)
    return x


def fedakd(shared: Shared, model: nn.Sequential) -> Trainer:
    """FedAKD (Yu et al., KDD 2025, Algorithm 1) with alpha = beta = temperature = 1.

    Clients keep their models in a file.
    """
    workload, local = shared.workload, network(shared.workload.network, shared.seed)
    step, step_local = (
        stepper(list(m.parameters()), shared.variant, workload.rate) for m in (model, local)
    )

    def loss(outputs: Tensor, labels: Tensor, teacher: Tensor) -> Tensor:
        distillation = functional.kl_div(
            outputs.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True
        )
        return functional.cross_entropy(outputs, labels) + distillation

    def train(clients: list[int]) -> Tensor:
        total = torch.zeros_like(shared.model)
        for client in clients:
            x, y = shared.x[shared.parts[client]], shared.y[shared.parts[client]]
            fill(list(model.parameters()), shared.model)
            fill(list(local.parameters()), recall(shared, client))
            with torch.no_grad():
                teacher = model(x)
            for batch in batches(torch.arange(len(y)), workload):
                step_local(loss(local(x[batch]), y[batch], teacher[batch]))
            with torch.no_grad():
                teacher = local(x)
            correct = (teacher.argmax(1) == y).nonzero().flatten()
            for batch in batches(correct, workload) if len(correct) else ():
                step(loss(model(x[batch]), y[batch], teacher[batch]))
            keep(shared, client, flatten(local.parameters()))
            total += len(y) * flatten(model.parameters())
        return total

    return train


def recall(shared: Shared, client: int) -> Tensor:
    """The client's own model; the global one if it has none yet."""
    if not shared.met[client]:
        return shared.model
    size = shared.model.numel() * shared.model.element_size()
    return torch.from_numpy(
        np.frombuffer(
            bytearray(os.pread(shared.personal_file.fileno(), size, client * size)),
            dtype=np.float32,
        )
    )


def keep(shared: Shared, client: int, vector: Tensor) -> None:
    """Stores the client's own model."""
    os.pwrite(
        shared.personal_file.fileno(),
        vector.numpy().tobytes(),
        client * vector.numel() * vector.element_size(),
    )
    shared.met[client] = True
