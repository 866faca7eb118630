"""A Simple Data Augmentation for Feature Distribution Skewed Federated Learning (FedRDN).

Yunlu Yan, Huazhu Fu, Yuexiang Li, Jinheng Xie, Jun Ma, Guang Yang and Lei Zhu. IEEE/CVF Conference on Computer Vision and Pattern
Recognition (CVPR), 2025. https://arxiv.org/abs/2306.09363, https://github.com/IAMJackYan/FedRDN
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

EPSILON = 1e-6  # a constant image has no deviation


@dataclass(frozen=True)
class FedRDN(Method):
    """Each training image is standardised by the channel statistics of a client drawn at random; outside training by the client's own.

    The statistics, a mean and a deviation per channel, are exchanged once before round 1; all clients have to take part in that.
    """

    paper = "Yan et al., A Simple Data Augmentation for Feature Distribution Skewed Federated Learning, CVPR 2025"
    family, year, fairness, passes = "features", 2025, "none", "E·T"
    needs = ("images",)
    exchanges = "1; once 1"

    # independent_per_batch: as the released code does
    draw: Literal["pair_per_image", "independent_per_batch"] = "pair_per_image"

    def check(self, task: Task) -> None:
        if len(task.shape) != 3 or task.shape[1] * task.shape[2] < 2:
            raise ValueError(
                f"FedRDN standardises the channels of images (channels, height, width) of two pixels or more, but the samples have shape "
                f"{task.shape}; choose another method, such as fedavg"
            )

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        ups = everyone.run(self.statistics, strict=True)
        own = {client: up.statistics for client, up in zip(ups.ids, ups, strict=True) if up.images}
        if not own:
            raise ValueError(
                "FedRDN needs the channel statistics of training images, but no client has any; give the clients training data"
            )
        # by id: a draw must not depend on the order of the clients
        pool = torch.stack([own[client] for client in sorted(own)])
        return state.with_(
            pool=pool,
            own=PerClient().put({client: own.get(client, pool.mean(0)) for client in ups.ids}),
        )

    def statistics(self, client: Client, down: Down) -> Up:
        """The means over images of each channel's mean and standard deviation (unbiased, over the image's pixels)."""
        total = torch.zeros(2, client.task.shape[0], dtype=torch.float64)
        for batch in client.batches() if len(client.train) else ():
            pixels = batch.x.double().flatten(2)
            total += torch.stack([pixels.mean(2).sum(0), pixels.std(2).sum(0)]).cpu()
        return Up(statistics=(total / max(1, len(client.train))).float(), images=len(client.train))

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        down = Down(pool=state.pool, own=state.own[client_id])
        # in the slot `inputs` it serves methods without one, too
        return down.with_(model=state.model) if "model" in state else down

    def inputs(self, client: Client, down: Down) -> Inputs | None:
        if "pool" not in down:
            return None  # while the statistics themselves are gathered
        pool = down.pool.to(client.device)

        def drawn(x: Tensor, generator: torch.Generator) -> Tensor:
            # one client for both; or one for the mean, one for the deviation
            shape = (len(x), 1) if self.draw == "pair_per_image" else (1, 2)
            who = torch.randint(len(pool), shape, generator=generator).to(x.device).expand(-1, 2)
            return standardised(x, pool[who[:, 0], 0], pool[who[:, 1], 1])

        return Inputs(
            train=drawn, other=Standardised(*down.own).to(client.device), random=len(pool) > 1
        )


def standardised(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """(x - mean) / (deviation + 1e-6) by channel; the statistics' last dimension is the channels, one before it the images."""
    return (x - mean[..., None, None]) / (deviation[..., None, None] + EPSILON)


class Standardised(nn.Module):
    """Images standardised by fixed statistics; they are buffers, so that an exported model carries them."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(self, x: Tensor) -> Tensor:
        return standardised(x, self.mean, self.std)
