"""The Flower client: any node plays the client whose number the message carries."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from networks import network
from workloads import WORKLOADS, load, partition

app = ClientApp()


@lru_cache(maxsize=1)
def prepare(name: str, seed: int) -> tuple[Tensor, Tensor, list[Tensor], nn.Module]:
    """Data and model, once per worker process."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    samples = load(workload)
    parts = [torch.from_numpy(part) for part in partition(workload, samples.y, seed)]
    return (
        torch.from_numpy(samples.x),
        torch.from_numpy(samples.y),
        parts,
        network(workload.network, seed),
    )


@app.train()
def train(message: Message, _: Context) -> Message:
    """Local SGD from the received parameters."""
    config = message.content["config"]
    workload = WORKLOADS[config["workload"]]
    x, y, parts, model = prepare(workload.name, config["seed"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=workload.rate)
    samples = parts[config["client"]]
    for _ in range(workload.epochs):
        for batch in samples[torch.randperm(len(samples))].split(workload.batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    metrics = MetricRecord({"num-examples": len(samples)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )
