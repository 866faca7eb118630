"""Groups of clients trained in stacks, against the same clients one after another, in one process.

    python benchmarks/stacks.py                          # all methods below on W6's shape
    python benchmarks/stacks.py fedprox --epochs 5

Both ways execute the same requests in turns, in random order. A ratio is of the CPU times of one turn; its
median and a bootstrap interval are printed. Both ways have the same bits, which is checked first.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import equipoise as eq
from equipoise.data.pipeline import federate_loaded
from equipoise.records import Down, pack
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.messages import Reply, Request
from equipoise.runtime.states import CarriedStates
from equipoise.session import job_of

METHODS = ("fedavg", "fedprox", "ditto", "scaffold", "feddyn", "feddc", "fedakd")
GROUP = 25
CLASSES = 2
RESAMPLED = 2000
SURE = 0.95


def executor_of(method: str, options: argparse.Namespace) -> ClientExecutor:
    """Return a client runtime with clients of equal size, whose labels follow a linear rule."""
    draw = np.random.default_rng(1)
    rule = draw.normal(size=options.columns)
    sites = {}
    for client in range(options.clients):
        x = draw.normal(size=(options.rows, options.columns)).astype(np.float32)
        y = (x @ rule + draw.normal(size=options.rows) > 0).astype(np.int64)
        y[:CLASSES] = range(CLASSES)
        sites[f"c{client:04d}"] = (x, y)
    experiment = eq.Experiment(
        data={"partition": "natural", "split": (1.0, 0.0, 0.0), "duplicates": "separate"},
        dataset=eq.from_sites(sites, kind="classification"),
        model={"name": "mlp", "hidden": options.hidden},
        method=method,
        training={"lr": 0.1, "batch": options.batch, "epochs": options.epochs},
        rounds=2,
    )
    federation = federate_loaded(experiment.data, experiment.seed, experiment.dataset)
    return ClientExecutor(job_of(experiment, "run"), federation, CarriedStates(), experiment)


def requests_of(executor: ClientExecutor) -> list[Request]:
    """Return the requests of round 1."""
    model = executor.bench.initial("model")
    mean_size = float(len(executor.federation.train[0]))
    down = Down(model=model, control=0 * model, mean_size=mean_size)
    return [Request(client, "client", down, 1, 2, exchange=1) for client in executor.federation.ids]


def one_by_one(executor: ClientExecutor, requests: list[Request]) -> list[Reply]:
    """Execute requests one after another."""
    return [executor.execute_catching(request) for request in requests]


def in_groups(executor: ClientExecutor, requests: list[Request]) -> list[Reply]:
    """Execute requests in groups."""
    replies: list[Reply] = []
    for first in range(0, len(requests), GROUP):
        replies += executor.execute_group(requests[first : first + GROUP])
    return replies


def check(executor: ClientExecutor, requests: list[Request]) -> None:
    """Compare the uploads of both ways, bit for bit."""
    pairs = zip(one_by_one(executor, requests), in_groups(executor, requests), strict=True)
    for one, other in pairs:
        for reply in (one, other):
            if reply.up is None:
                raise SystemExit(f"{reply.client}: {reply.error or reply.failure}")
        if b"".join(pack(one.up)) != b"".join(pack(other.up)):
            raise SystemExit(f"{one.client}: the uploads of both ways differ")


def cpu_seconds(way: Callable[..., Any], executor: ClientExecutor, requests: Any) -> float:
    """Return the CPU time of one way."""
    began = time.process_time()
    way(executor, requests)
    return time.process_time() - began


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return a bootstrap interval of the median."""
    draw = np.random.default_rng(2)
    samples = draw.choice(ratios, (RESAMPLED, len(ratios)))
    low, high = np.quantile(np.median(samples, 1), [(1 - SURE) / 2, (1 + SURE) / 2])
    return float(low), float(high)


def measure(method: str, options: argparse.Namespace) -> None:
    """Print the ratio of a method."""
    executor = executor_of(method, options)
    requests = requests_of(executor)
    check(executor, requests)
    order = random.Random(3)
    times: dict[str, list[float]] = {"one by one": [], "in groups": []}
    for _ in range(options.turns):
        ways: list[tuple[str, Any]] = [("one by one", one_by_one), ("in groups", in_groups)]
        order.shuffle(ways)
        for name, way in ways:
            times[name].append(cpu_seconds(way, executor, requests))
    ratios = [
        alone / grouped
        for alone, grouped in zip(times["one by one"], times["in groups"], strict=True)
    ]
    low, high = interval(ratios)
    each = 1000 * statistics.median(times["in groups"]) / len(requests)
    print(
        f"{method:10} {statistics.median(ratios):.2f} ({low:.2f}-{high:.2f}), "
        f"{each:.2f} ms per client in groups",
        flush=True,
    )


def main() -> None:
    """Read the options and measure each method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--columns", type=int, default=13)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64])
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for method in options.methods:
        measure(method, options)


if __name__ == "__main__":
    main()
