"""Apple's pfl as a contender: one single-threaded process per core, or one process with a thread
per core.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import Namespace
from itertools import chain

from measure import Meter, arguments
from workloads import Workload, cohorts, load, partition

CORES = os.cpu_count() or 1


def start_others() -> list[subprocess.Popen[bytes]]:
    """Starts this script again for every further core and tells each process its place in the
    group, as pfl documents.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        # Only the first address is listened on; the others are counted.
        os.environ["PFL_WORKER_ADDRESSES"] = ",".join(
            [f"localhost:{free.getsockname()[1]}"] * CORES
        )
    os.environ["PFL_WORKER_RANK"] = "0"
    places = ({**os.environ, "PFL_WORKER_RANK": str(rank)} for rank in range(1, CORES))
    return [
        subprocess.Popen([sys.executable, *sys.argv], env=place, stdout=subprocess.DEVNULL)
        for place in places
    ]


def simulate(workload: Workload, options: Namespace, meter: Meter) -> float:
    """Runs the rounds and returns the accuracy of the last model."""
    # pfl joins the group of processes when it is imported, so the environment has to be set before.
    import dataclasses

    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    from networks import count_correct, network

    torch.set_num_threads(1 if options.variant == "processes" else CORES)
    samples = load(workload)
    x, y, x_test, y_test = map(
        torch.from_numpy, (samples.x, samples.y, samples.x_test, samples.y_test)
    )
    parts = [torch.from_numpy(part) for part in partition(workload, samples.y, options.seed)]
    chosen = cohorts(workload, options.rounds, options.seed)
    sizes = {client: len(part) for client, part in enumerate(parts)}

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network(workload.network, options.seed)

        def loss(self, x, y):
            return torch.nn.functional.cross_entropy(self.layers(x), y)

        @torch.no_grad()
        def metrics(self, x, y):
            return {"accuracy": Weighted(int((self.layers(x).argmax(1) == y).sum()), len(y))}

    class TrainingOnly(FederatedAveraging):
        """pfl would measure every client before and after training in round 1, work no other
        contender does.
        """

        def get_next_central_contexts(self, *args, **named):
            contexts, model, metrics = super().get_next_central_contexts(*args, **named)
            return (
                contexts and tuple(dataclasses.replace(c, do_evaluation=False) for c in contexts),
                model,
                metrics,
            )

    class EvaluationEachRound(CentralEvaluationCallback):
        """pfl's own measures before round 1 and leaves round 1 out."""

        def on_train_begin(self, *, model):
            self._eval(model)
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            return self._eval(model)

    class Laps(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            meter.start()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            meter.lap(workload.epochs * sum(sizes[client] for client in chosen[central_iteration]))
            return False, Metrics()

    def client_data(client: int) -> PyTorchTensorDataset:
        order = parts[client][torch.randperm(sizes[client])]
        return PyTorchTensorDataset((x[order], y[order]))

    equal = len(set(sizes.values())) == 1
    clients = FederatedDataset(
        client_data, MinimizeReuseUserSampler(list(chain(*chosen))), None if equal else sizes
    )
    module = Network()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    evaluation = EvaluationEachRound(
        PyTorchTensorDataset((x_test, y_test)), NNEvalHyperParams(local_batch_size=500)
    )
    TrainingOnly().run(
        algorithm_params=NNAlgorithmParams(
            options.rounds,
            evaluation_frequency=1,
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=workload.batch,
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.rate,
        ),
        callbacks=[*([evaluation] if workload.evaluate_each_round else []), Laps()],
        send_metrics_to_platform=False,
    )
    return count_correct(module.layers, x_test, y_test) / len(y_test)


def main() -> None:
    """Runs the workload; the first process prints the line."""
    workload, options = arguments(("processes", "threads"))
    first = "PFL_WORKER_RANK" not in os.environ
    meter = Meter()
    others = start_others() if first and options.variant == "processes" else []
    accuracy = simulate(workload, options, meter)
    if first:
        meter.report("pfl", workload, options, accuracy, ("pfl", "torch", "numpy"))
    for other in others:
        other.wait(timeout=60)


if __name__ == "__main__":
    main()
