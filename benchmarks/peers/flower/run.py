"""Flower's Ray simulation as a contender: one actor with one CPU per core, the server evaluates."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation

from measure import Meter, arguments
from networks import count_correct, network
from workloads import Workload, cohorts, load, partition


class FixedCohorts(FedAvg):
    """FedAvg with the cohorts of the workload instead of sampled ones."""

    def __init__(self, workload: Workload, options: Namespace) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.workload, self.seed = workload, options.seed
        self.chosen = cohorts(workload, options.rounds, options.seed)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per client of this round."""
        nodes, _ = sample_nodes(grid, self.workload.clients, self.workload.cohort)
        for client, node in zip(self.chosen[server_round - 1], nodes, strict=True):
            order = ConfigRecord(
                {"workload": self.workload.name, "seed": self.seed, "client": client}
            )
            content = RecordDict({"arrays": arrays, "config": order})
            yield Message(content, message_type=MessageType.TRAIN, dst_node_id=node)


def main() -> None:
    """Runs the workload and prints its line."""
    workload, options = arguments(("ray",))
    meter = Meter()
    samples = load(workload)
    x_test, y_test = torch.from_numpy(samples.x_test), torch.from_numpy(samples.y_test)
    sizes = [len(part) for part in partition(workload, samples.y, options.seed)]
    model = network(workload.network, options.seed)
    strategy = FixedCohorts(workload, options)
    accuracies = []

    def accuracy(arrays: ArrayRecord) -> float:
        model.load_state_dict(arrays.to_torch_state_dict())
        return count_correct(model, x_test, y_test) / len(y_test)

    def after_round(number: int, arrays: ArrayRecord) -> None:
        if number == 0:
            meter.start()
            return
        if workload.evaluate_each_round:
            accuracies.append(accuracy(arrays))
        meter.lap(workload.epochs * sum(sizes[client] for client in strategy.chosen[number - 1]))
        if number == options.rounds:
            accuracies.append(accuracy(arrays))
            # The actors end with the simulation, so their memory is counted now.
            meter.report(
                "flower", workload, options, accuracies[-1], ("flwr", "ray", "torch", "numpy")
            )

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, _: Context) -> None:
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=options.rounds,
            evaluate_fn=after_round,
        )

    # A Ray of its own: left alone it looks for one that was started before on this machine, and
    # waits long for one that is gone.
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"address": "local"},
    }
    run_simulation(
        server_app, client_app, num_supernodes=workload.clients, backend_config=resources
    )


if __name__ == "__main__":
    main()
