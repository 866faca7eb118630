"""The bound: hand-written loops (loops.py) without any framework, one single-threaded process per
core.

Processes are forked once and inherit the data; parameters travel as flat vectors in shared memory.
A process takes the next clients of the round from a common counter, largest first, and adds their
trained parameters, weighted by samples, to its own row.
"""

from __future__ import annotations

import os
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

import torch
from torch import Tensor, multiprocessing

from loops import STACKS, Shared, by_hand, fedakd, fedavg, fill, flatten, recall, stacked_fedavg
from measure import Meter, arguments
from networks import count_correct, network
from workloads import Workload, cohorts, load, partition

PROCESSES = os.cpu_count() or 1
VARIANTS = (
    "bare",
    "fused",
    "foreach",
    "channels_last",
    "channels_last_bare",
    *STACKS,
    "by_hand",
    "channels_last_by_hand",
)


def work(rank: int, shared: Shared, counter: Synchronized[int], pipe: Connection) -> None:
    """One process: trains its share of a cohort, or counts correct answers on its share of the test
    images, until it receives None.
    """
    model = network(shared.workload.network, shared.seed)
    x_test, y_test = shared.x_test.chunk(PROCESSES)[rank], shared.y_test.chunk(PROCESSES)[rank]
    if shared.variant.startswith("channels_last"):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x_test = x_test.contiguous(memory_format=torch.channels_last)
    if shared.workload.method == "fedakd":
        train = fedakd(shared, model)
    elif shared.variant in STACKS:
        train = stacked_fedavg(shared, model)
    elif shared.variant.endswith("by_hand"):
        train = by_hand(shared, model)
    else:
        train = fedavg(shared, model)
    # After the networks are made, which seeds torch too: else all processes would shuffle alike.
    torch.manual_seed(shared.seed * PROCESSES + rank + 1)
    parameters = list(model.parameters())
    while task := pipe.recv():
        kind, clients = task
        if kind == "train":
            shared.sums[rank].zero_()
            size = STACKS.get(shared.variant, 1)
            while (first := take(counter, size)) < len(clients):
                shared.sums[rank] += train(clients[first : first + size])
            pipe.send(None)
        elif kind == "evaluate":
            fill(parameters, shared.model)
            pipe.send(count_correct(model, x_test, y_test))
        else:
            hits = 0
            for client in clients:
                fill(parameters, recall(shared, client))
                hits += count_correct(model, x_test, y_test)
            pipe.send(hits)


def take(counter: Synchronized[int], count: int) -> int:
    """The next free place in the cohort; the following ones are taken with it."""
    with counter.get_lock():
        counter.value += count
        return counter.value - count


def share(tensor: Tensor) -> Tensor:
    """Moves a tensor to memory that forked processes share."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def prepare(workload: Workload, variant: str, seed: int) -> Shared:
    """Loads the data and makes the vectors the processes share."""
    samples = load(workload)
    x, y, x_test, y_test = map(
        torch.from_numpy, (samples.x, samples.y, samples.x_test, samples.y_test)
    )
    if variant.startswith("channels_last"):
        x = x.contiguous(memory_format=torch.channels_last)
    model = share(flatten(network(workload.network, seed).parameters()))
    return Shared(
        workload,
        variant,
        seed,
        x,
        y,
        x_test,
        y_test,
        parts=[torch.from_numpy(part) for part in partition(workload, samples.y, seed)],
        model=model,
        sums=share(torch.zeros(PROCESSES, len(model))),
        met=share(torch.zeros(workload.clients, dtype=torch.bool)),
        personal_file=tempfile.TemporaryFile(),
    )


def main() -> None:
    """Runs the workload and prints its line."""
    workload, options = arguments(VARIANTS)
    torch.set_num_threads(1)
    meter = Meter()
    shared = prepare(workload, options.variant, options.seed)
    fork = multiprocessing.get_context("fork")
    counter, pipes = fork.Value("l", 0), []
    for rank in range(PROCESSES):
        here, there = fork.Pipe()
        fork.Process(target=work, args=(rank, shared, counter, there), daemon=True).start()
        pipes.append(here)

    def ask(kind: str, clients: list[int]) -> list[int]:
        counter.value = 0
        for pipe in pipes:
            pipe.send((kind, clients))
        return [pipe.recv() for pipe in pipes]

    correct, tested = 0, len(shared.y_test)
    chosen = cohorts(workload, options.rounds, options.seed)
    ask("evaluate", [])
    meter.start()
    for cohort in chosen:
        samples = sum(len(shared.parts[client]) for client in cohort)
        ask("train", sorted(cohort, key=lambda client: -len(shared.parts[client])))
        shared.model.copy_(shared.sums.sum(0) / samples)
        if workload.evaluate_each_round:
            correct = sum(ask("evaluate", []))
        meter.lap(samples * workload.epochs)
    if not workload.evaluate_each_round:
        correct = sum(ask("evaluate", []))
    extra = {}
    if workload.method == "fedakd":
        extra["personal_accuracy"] = sum(ask("personal", chosen[-1])) / tested / len(chosen[-1])
    meter.report("bound", workload, options, correct / tested, ("torch", "numpy"), **extra)


if __name__ == "__main__":
    main()
