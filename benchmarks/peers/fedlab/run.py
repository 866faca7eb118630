"""FedLab's standalone simulation as a contender: one process, a thread per core."""

from __future__ import annotations

import logging
import os
import sys
from argparse import Namespace
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from measure import Meter, arguments
from networks import count_correct, network
from workloads import Workload, cohorts, load, partition

# FedLab imports torchvision for data sets that are not used here; there is no build of it for every
# torch.
for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
    sys.modules[name] = ModuleType(name)
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
sys.modules["torchvision"].datasets = sys.modules["torchvision.datasets"]

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from fedlab.utils.aggregator import Aggregators  # noqa: E402


class Clients(FedDataset):
    """The data loader of each client."""

    def __init__(self, x: Tensor, y: Tensor, parts: list[np.ndarray]) -> None:
        self.sets = [TensorDataset(x[part], y[part]) for part in parts]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        """Shuffled batches, as FedLab's own data sets give them."""
        return DataLoader(self.sets[id], batch_size=batch_size, shuffle=True)


class Trainer(SGDSerialClientTrainer):
    """Also sends the number of samples, for the weights."""

    def train(self, model_parameters: Tensor, train_loader: DataLoader) -> list[Tensor]:
        """Local SGD of one client."""
        return [
            *super().train(model_parameters, train_loader),
            torch.tensor(float(len(train_loader.dataset))),
        ]


class Handler(SyncServerHandler):
    """Averages by samples; the cohorts are those of the workload."""

    def __init__(self, model: nn.Module, workload: Workload, options: Namespace) -> None:
        super().__init__(model, options.rounds, workload.cohort / workload.clients)
        self.chosen = cohorts(workload, options.rounds, options.seed)

    @property
    def num_clients_per_round(self) -> int:
        """FedLab's own rounds a ratio down."""
        return len(self.chosen[0])

    def sample_clients(self) -> list[int]:
        """The cohort of this round."""
        return self.chosen[self.round]

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        """The mean of the replies weighted by samples."""
        self.set_model(
            Aggregators.fedavg_aggregate([up[0] for up in buffer], [float(up[1]) for up in buffer])
        )


class Pipeline(StandalonePipeline):
    """Laps, and evaluation where the workload asks for it."""

    def __init__(
        self,
        handler: Handler,
        trainer: Trainer,
        meter: Meter,
        workload: Workload,
        x_test: Tensor,
        y_test: Tensor,
    ) -> None:
        super().__init__(handler, trainer)
        self.meter, self.workload, self.x_test, self.y_test = meter, workload, x_test, y_test

    def accuracy(self) -> float:
        """Of the global model on the test images."""
        return count_correct(self.handler.model, self.x_test, self.y_test) / len(self.y_test)

    def evaluate(self) -> None:
        """Called by FedLab after each round."""
        if self.workload.evaluate_each_round:
            self.accuracy()
        cohort = self.handler.chosen[self.handler.round - 1]
        self.meter.lap(
            self.workload.epochs * sum(len(self.trainer.dataset.sets[client]) for client in cohort)
        )


def main() -> None:
    """Runs the workload and prints its line."""
    workload, options = arguments(("threads",))
    meter = Meter()
    logging.disable()
    torch.set_num_threads(os.cpu_count() or 1)
    samples = load(workload)
    model = network(workload.network, options.seed)
    trainer = Trainer(model, workload.clients)
    trainer.setup_dataset(
        Clients(
            torch.from_numpy(samples.x),
            torch.from_numpy(samples.y),
            partition(workload, samples.y, options.seed),
        )
    )
    trainer.setup_optim(workload.epochs, workload.batch, workload.rate)
    tests = torch.from_numpy(samples.x_test), torch.from_numpy(samples.y_test)
    pipeline = Pipeline(Handler(model, workload, options), trainer, meter, workload, *tests)
    meter.start()
    pipeline.main()
    meter.report("fedlab", workload, options, pipeline.accuracy(), ("fedlab", "torch", "numpy"))


if __name__ == "__main__":
    main()
