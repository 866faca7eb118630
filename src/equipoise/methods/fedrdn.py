"""FedRDN (Yan et al., 2025).

Yunlu Yan, Huazhu Fu, Yuexiang Li, Jinheng Xie, Jun Ma, Guang Yang and Lei Zhu. A Simple Data
Augmentation for Feature Distribution Skewed Federated Learning. IEEE/CVF Conference on Computer
Vision and Pattern Recognition (CVPR), 2025. https://arxiv.org/abs/2306.09363,
https://github.com/IAMJackYan/FedRDN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.client import Client, Inputs
from equipoise.method import Cohort, Method
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.task import Task

EPSILON = 1e-6  # A constant image has no deviation.


@dataclass(frozen=True)
class FedRDN(Method):
    """Standardise each training image by the channel statistics of a randomly drawn client.

    Outside of training a client uses its own statistics. The statistics, a mean and a deviation
    per channel, are exchanged once before round 1; all clients have to take part in that.

    Attributes:
        draw: One client per image, or, as in the released code, one client for the mean and one
            for the deviation of a whole batch.
    """

    paper = (
        "Yan et al., A Simple Data Augmentation for Feature Distribution Skewed Federated "
        "Learning, CVPR 2025"
    )
    family = "features"
    year = 2025
    fairness = "none"
    passes = "E·T"
    needs = ("images",)
    exchanges = "1; once 1"

    draw: Literal["pair_per_image", "independent_per_batch"] = "pair_per_image"

    def check(self, task: Task) -> None:
        """Refuse samples that are not images of two or more pixels."""
        if len(task.shape) != 3 or task.shape[1] * task.shape[2] < 2:
            raise ValueError(
                "FedRDN standardises the channels of images (channels, height, width) of two "
                f"pixels or more, but the samples have shape {task.shape}; choose another method, "
                "such as fedavg"
            )

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        """Collect the channel statistics of all clients.

        A client without images takes the mean of the others.
        """
        ups = everyone.run(self.statistics, strict=True)
        own = {client: up.statistics for client, up in zip(ups.ids, ups, strict=True) if up.images}
        if not own:
            raise ValueError(
                "FedRDN needs the channel statistics of training images, but no client has any; "
                "give the clients training data"
            )
        # Sorted by id: a draw must not depend on the order of the clients.
        pool = torch.stack([own[client] for client in sorted(own)])
        statistics = {client: own.get(client, pool.mean(0)) for client in ups.ids}
        return state.with_(pool=pool, own=PerClient().put(statistics))

    def statistics(self, client: Client, down: Down) -> Up:
        """Report the mean over images of each channel's mean and standard deviation.

        The deviation is the unbiased one over the pixels of an image.
        """
        images = len(client.train)
        total = torch.zeros(2, client.task.shape[0], dtype=torch.float64)
        if images:
            for batch in client.batches():
                pixels = batch.x.double().flatten(2)
                total += torch.stack([pixels.mean(2).sum(0), pixels.std(2).sum(0)]).cpu()
        return Up(statistics=(total / max(1, images)).float(), images=images)

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send all statistics, the client's own, and the model if the method has one."""
        down = Down(pool=state.pool, own=state.own[client_id])
        if "model" not in state:  # The inputs of a method that has no global model.
            return down
        return down.with_(model=state.model)

    def inputs(self, client: Client, down: Down) -> Inputs | None:
        """Return the transform of inputs; None while the statistics are collected."""
        if "pool" not in down:
            return None
        pool = down.pool.to(client.device)

        def standardise(x: Tensor, generator: torch.Generator) -> Tensor:
            shape = (len(x), 1) if self.draw == "pair_per_image" else (1, 2)
            drawn = torch.randint(len(pool), shape, generator=generator).to(x.device)
            drawn = drawn.expand(-1, 2)  # the clients of the mean and of the deviation
            return standardised(x, pool[drawn[:, 0], 0], pool[drawn[:, 1], 1])

        own = Standardised(*down.own).to(client.device)
        return Inputs(train=standardise, other=own, random=len(pool) > 1)


def standardised(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return (x - mean) / (deviation + 1e-6) by channel.

    Args:
        x: The images.
        mean: The means; the last dimension is the channel, one before it the image.
        deviation: The standard deviations, in the same shape.
    """
    return (x - mean[..., None, None]) / (deviation[..., None, None] + EPSILON)


class Standardised(nn.Module):
    """Standardisation of images by fixed statistics.

    The statistics are buffers, so that an exported model contains them.

    Args:
        mean: The mean of each channel.
        std: The standard deviation of each channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised images."""
        return standardised(x, self.mean, self.std)
