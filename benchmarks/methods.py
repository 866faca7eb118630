"""What a round of each method costs in Equipoise, beside a plain loop that makes the same passes, and beside FedAvg; writes METHODS.md.

Both sides train on the same batches of the same clients from the same initial parameters, in one process and on one thread. One round of
every method, of both sides, then the next round: whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import plain_methods
import torch
from bench import CORES, HERE, machine
from measure import machine_seconds
from torch import Tensor, nn

import equipoise as eq
from equipoise.data import Federation, federate
from equipoise.models import Generator, build
from equipoise.rounds import Loop
from equipoise.runs.store import Store
from equipoise.simulate import prepare
from equipoise.streams import default_generator, torch_stream
from equipoise.transports.inprocess import InProcess
from equipoise.workbench import one_thread, prefers_channels_last

CLIENTS, BATCH, RATE, SEED = 10, 32, 0.05, 0
TARGET = 1.10
QUIET = 0.05  # share of the machine that others may use in a round whose wall time counts
EXPECTED = {"fedakd": (2.0, 3.2), "corefed": (1.2, 1.6)}


@dataclass(frozen=True)
class Case:
    """One method with its networks; the first is the one that FedAvg is compared with."""

    method: str
    models: dict[str, str]
    samples: int = 6_000
    options: dict[str, str] = field(default_factory=dict)

    @property
    def network(self) -> str:
        return next(iter(self.models.values()))

    def experiment(self, rounds: int) -> eq.Experiment:
        return eq.Experiment(
            data={"name": "fashion_mnist", "partition": "iid", "clients": CLIENTS, "samples": self.samples, "split": (1.0, 0.0, 0.0)},
            **({"model": self.network} if "model" in self.models else {"models": self.models}),
            method={"name": self.method, **self.options},
            training={"lr": RATE, "batch": BATCH},
            evaluation={"every": 0, "splits": ()},
            rounds=rounds,
            seed=SEED,
            workers=0,
        )


CASES = [
    Case("fedavg", {"model": "simple_cnn"}),
    Case("fedakd", {"model": "simple_cnn"}),
    Case("fedequilibria", {"model": "simple_cnn"}),
    Case("corefed", {"model": "simple_cnn"}),
    Case("fedavg", {"model": "moon_cnn"}),
    Case("kdia", {"model": "moon_cnn"}, options={"preset": "quick"}),
    # The private network takes some five times as long as the others: a quarter of the samples keeps the run short.
    Case("fedavg", {"model": "private_cnn"}, samples=1_500),
    Case("fedekd", {"private": "private_cnn", "proxy": "proxy_cnn"}, samples=1_500),
]


def ours(case: Case, federation: Federation, rounds: int, folder: Path) -> Iterator[list[Tensor]]:
    """Equipoise in process, store and checkpoint on, one round per step; nothing is evaluated."""
    experiment = case.experiment(rounds)
    bench, method = prepare(experiment, federation.task, federation)
    store = Store.create(folder, "", {})
    try:
        loop = Loop(experiment, method, bench, InProcess(bench, method), store)
        state = loop._start()
        for number in range(1, rounds + 1):
            state = loop._round(number, state)
            yield list(state.model.values())
    finally:
        store.close()


def plain(case: Case, federation: Federation, rounds: int) -> Iterator[list[Tensor]]:
    """The plain loop with the data, initial parameters and random numbers of Equipoise."""
    names = {"client": lambda number, client, purpose: ("client", number, federation.ids[client], purpose)}
    job = plain_methods.Job(
        x=federation.x,
        y=federation.y,
        parts=[torch.from_numpy(federation.train[client]).long() for client in range(CLIENTS)],
        network=lambda name: initial_network(case, name, federation.task),
        draw=lambda kind, *rest: torch_stream(SEED, *(names[kind](*rest) if kind in names else (kind, *rest))),
        rounds=rounds,
        batch=BATCH,
        rate=RATE,
    )
    return getattr(plain_methods, case.method)(job)


def initial_network(case: Case, name: str, task: eq.Task) -> nn.Module:
    with default_generator(SEED, "initial model", name):
        net = Generator((16, 4, 4), task.outputs) if name == "generator" else build(case.models[name], task)
    return net.to(memory_format=torch.channels_last) if prefers_channels_last(net, task) else net


@dataclass(frozen=True)
class Lap:
    """One round of one side."""

    wall: float
    cpu: float
    foreign: float  # share of the machine that others used meanwhile


def timed(side: Iterator[list[Tensor]]) -> tuple[Lap, list[Tensor]]:
    machine_before, cpu_before, wall_before = machine_seconds(), time.process_time(), time.perf_counter()
    model = next(side)
    wall, cpu = time.perf_counter() - wall_before, time.process_time() - cpu_before
    return Lap(wall, cpu, max(0.0, machine_seconds() - machine_before - cpu) / (wall * CORES)), model


@dataclass
class Measured:
    """The rounds of one case, without the first, which warms up, and how far apart the two models ended."""

    case: Case
    ours: list[Lap] = field(default_factory=list)
    plain: list[Lap] = field(default_factory=list)
    apart: float = 0.0

    def ratios(self, clock: str) -> list[float]:
        return [getattr(a, clock) / getattr(b, clock) for a, b in zip(self.ours, self.plain, strict=True)]

    def quiet_ratios(self) -> list[float]:
        """Of wall times, where others hardly used the machine in either round of a pair."""
        calm = [max(a.foreign, b.foreign) <= QUIET for a, b in zip(self.ours, self.plain, strict=True)]
        return [ratio for ratio, counts in zip(self.ratios("wall"), calm, strict=True) if counts]


def run(cases: list[Case], rounds: int, folder: Path) -> list[Measured]:
    """All rounds of all cases, interleaved; in every other round the plain loop goes first."""
    base = {case.samples: federate(case.experiment(1).data, SEED) for case in cases}
    results, order = [Measured(case) for case in cases], random.Random(SEED)
    sides = [
        {"ours": ours(case, base[case.samples], rounds, folder / str(place)), "plain": plain(case, base[case.samples], rounds)}
        for place, case in enumerate(cases)
    ]
    for number in range(rounds):
        for place in order.sample(range(len(cases)), len(cases)):
            result, models = results[place], {}
            for side in ("ours", "plain") if number % 2 else ("plain", "ours"):
                lap, models[side] = timed(sides[place][side])
                if number:
                    getattr(result, side).append(lap)
            result.apart = distance(models["ours"], models["plain"], result.case, base[result.case.samples].task)
            if number:
                print(f"round {number}/{rounds - 1} {result.case.method} {result.case.network}: {result.ratios('cpu')[-1]:.3f}", flush=True)
    return results


def distance(one: list[Tensor], other: list[Tensor], case: Case, task: eq.Task) -> float:
    """How far apart two models are, as a share of how far one came from the start."""
    name = "proxy" if "proxy" in case.models else "model"
    start = torch.cat([tensor.double().flatten() for tensor in initial_network(case, name, task).state_dict().values()])
    first, second = (torch.cat([tensor.double().flatten() for tensor in tensors]) for tensors in (one, other))
    return float((first - second).norm() / (first - start).norm())


def render(results: list[Measured], rounds: int) -> str:
    """METHODS.md."""
    reference = {result.case.network: result for result in results if result.case.method == "fedavg"}
    foreign = statistics.mean(lap.foreign for result in results for lap in (*result.ours, *result.plain))
    lines = [
        "# What the methods cost",
        "",
        "Written by `benchmarks/methods.py`. One round of Equipoise (in process, one thread, store and checkpoint on, nothing evaluated) "
        "beside a plain loop (`plain_methods.py`, all in memory) that makes the same passes over the same batches, on Fashion-MNIST: "
        f"{CLIENTS} clients of equal size, all in every round, batch {BATCH}, one epoch, SGD.",
        "",
        "Ratios are of CPU time, which other load on the machine disturbs least: the median over pairs of rounds, smallest and largest in "
        f"brackets. Wall time counts only where others used at most {QUIET:.0%} of the machine. `to FedAvg` compares with Equipoise's "
        "FedAvg on the same network and data, round by round. `apart` is the distance between the two final global models as a share of "
        "the distance they came: it shows that both sides did the same work.",
        "",
        f"{date.today().isoformat()}, {machine()}; torch {torch.__version__}; {rounds - 1} rounds after one that warms up; others used "
        f"{foreign:.0%} of the machine on average.",
        "",
        f"| method | network | samples | CPU-s, ours | plain | ratio (at most {TARGET:.2f}) | wall ratio | to FedAvg | expected | apart |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [row(result, reference[result.case.network]) for result in results]
    return "\n".join([*lines, "", "KDIA trains its generator for 50 steps per round (`preset=quick`) on both sides.", ""])


def row(result: Measured, reference: Measured) -> str:
    case, ratios, quiet = result.case, result.ratios("cpu"), result.quiet_ratios()
    middle = statistics.median(ratios)
    to_fedavg = statistics.median(a.cpu / b.cpu for a, b in zip(result.ours, reference.ours, strict=True))
    low, high = EXPECTED.get(case.method, (None, None))
    cells = [
        case.method,
        ", ".join(dict.fromkeys(case.models.values())),
        f"{case.samples:,}",
        f"{statistics.median(lap.cpu for lap in result.ours):.2f}",
        f"{statistics.median(lap.cpu for lap in result.plain):.2f}",
        f"{'' if middle <= TARGET else 'above: '}{middle:.3f} ({min(ratios):.3f}-{max(ratios):.3f})",
        f"{statistics.median(quiet):.3f} ({len(quiet)} of {len(ratios)})" if quiet else "disturbed",
        f"{to_fedavg:.2f}",
        "" if low is None else f"{low}-{high}",
        f"{result.apart:.0e}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="rounds of every method; the first warms up")
    parser.add_argument("--methods", nargs="+", choices=sorted({case.method for case in CASES}), help="with FedAvg on their networks")
    parser.add_argument("--output", type=Path, default=HERE / "METHODS.md")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds: expected at least 2, since the first is not counted, got {options.rounds}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wanted = [case for case in CASES if options.methods is None or case.method in options.methods]
    networks = {case.network for case in wanted}
    cases = [case for case in CASES if case in wanted or (case.method == "fedavg" and case.network in networks)]
    with tempfile.TemporaryDirectory() as folder, one_thread():
        results = run(cases, options.rounds, Path(folder))
    options.output.write_text(render(results, options.rounds))
    print(options.output.read_text())


if __name__ == "__main__":
    main()
