"""Cost of a round of five methods in Equipoise and in a plain loop that makes the same passes.

Writes PLAIN.md.

Both sides train on the same batches of the same clients from the same initial parameters, in one
process and on one thread. They take turns client by client, and methods round by round: whatever
else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

import equipoise as eq
import plain_methods
from bench import CORES, HERE, machine
from equipoise.data import Federation, federate
from equipoise.models import Generator, build, shape_after
from equipoise.streams import default_generator, torch_stream
from equipoise.training.workbench import one_thread, prefers_channels_last
from hearing import Hearing
from measure import machine_seconds
from stepping import stepped

CLIENTS, BATCH, RATE, SEED = 10, 32, 0.05, 0
TARGET = 1.10
QUIET = 0.05  # share of the machine that others may use in a round whose wall time counts
MOST_APART = 0.5  # two models that share nothing but their start are about 1 apart
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
        """The name of the first network."""
        return next(iter(self.models.values()))

    def experiment(self, rounds: int) -> eq.Experiment:
        """Return the experiment of this case."""
        return eq.Experiment(
            data={
                "name": "fashion_mnist",
                "partition": "iid",
                "clients": CLIENTS,
                "samples": self.samples,
                "split": (1.0, 0.0, 0.0),
            },
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
    Case("corefed", {"model": "simple_cnn"}, options={"rep": "literal"}),
    Case("fedavg", {"model": "moon_cnn"}),
    Case("kdia", {"model": "moon_cnn"}, options={"preset": "quick"}),
    # The private network takes some five times as long as the others: a quarter of the samples
    # keeps the run short.
    Case("fedavg", {"model": "private_cnn"}, samples=1_500),
    Case("fedekd", {"private": "private_cnn", "proxy": "proxy_cnn"}, samples=1_500),
]


def ours(case: Case, rounds: int, folder: Path, watcher: Hearing) -> Iterator[list[Tensor]]:
    """Equipoise in process, store and checkpoint on, one round per step; nothing is evaluated."""
    steps = stepped(case.experiment(rounds + 1), folder, watcher)
    next(steps)  # what precedes round 1
    for state, _ in steps:
        yield list(state.model.values())


def plain(case: Case, federation: Federation, rounds: int) -> plain_methods.Steps:
    """The plain loop with the data, initial parameters and random numbers of Equipoise."""
    names = {
        "client": lambda number, client, purpose: (
            "client",
            number,
            federation.ids[client],
            purpose,
        )
    }
    job = plain_methods.Job(
        x=federation.x,
        y=federation.y,
        parts=[
            torch.tensor(federation.train[client], dtype=torch.int64) for client in range(CLIENTS)
        ],
        network=lambda name: initial_network(case, name, federation.task),
        draw=lambda kind, *rest: torch_stream(
            SEED, *(names[kind](*rest) if kind in names else (kind, *rest))
        ),
        rounds=rounds,
        batch=BATCH,
        rate=RATE,
    )
    return getattr(plain_methods, case.method)(job)


def initial_network(case: Case, name: str, task: eq.Task) -> nn.Module:
    """Return the network of a case with the initial weights of the library."""
    with default_generator(SEED, "initial model"):
        net: nn.Module = build(case.models.get(name, case.network), task)
        if name == "generator":  # drawn after the network whose features it makes
            net = Generator(shape_after(net.features, task.shape), task.outputs)
    return net.to(memory_format=torch.channels_last) if prefers_channels_last(net, task) else net


class Watch:
    """Wall and CPU time of two sides that take turns, and how much of the machine others used
    meanwhile.
    """

    def __init__(self) -> None:
        self.wall = {"ours": 0.0, "plain": 0.0}
        self.cpu = {"ours": 0.0, "plain": 0.0}
        self.machine = -machine_seconds()
        self.side, self.since = "ours", (time.perf_counter(), time.process_time())

    def turn(self, side: str) -> None:
        """From now on time is that of this side."""
        now = time.perf_counter(), time.process_time()
        self.wall[self.side] += now[0] - self.since[0]
        self.cpu[self.side] += now[1] - self.since[1]
        self.side, self.since = side, now

    def stop(self) -> None:
        """End the last turn."""
        self.turn(self.side)
        self.machine += machine_seconds()

    @property
    def foreign(self) -> float:
        """Return the share of the machine's time that other processes used."""
        return max(0.0, self.machine - sum(self.cpu.values())) / (sum(self.wall.values()) * CORES)


class Duel:
    """One case: the rounds of both sides, without the first, which warms up, and how far apart
    their models are.
    """

    def __init__(self, case: Case, federation: Federation, rounds: int, folder: Path) -> None:
        self.case, self.task = case, federation.task
        self.ours = ours(case, rounds, folder, Hearing(on_clients=self._between_clients))
        self.plain = plain(case, federation, rounds)
        self.laps: list[Watch] = []
        self.apart = 0.0

    def _between_clients(self, step: str, done: int, total: int) -> None:
        self.watch.turn("plain")
        next(self.plain)
        self.watch.turn("ours")

    def round(self, counts: bool) -> None:
        """Do one round of both sides in turns."""
        self.watch = Watch()
        model = next(self.ours)
        self.watch.turn("plain")
        other = next(self.plain)
        self.watch.stop()
        assert other is not None, "the plain loop asks more clients than Equipoise"
        self.apart = distance(model, other, self.case, self.task)
        if self.apart > MOST_APART:
            raise SystemExit(
                f"{self.case.method}: the models are {self.apart:.0%} of their way apart, so the "
                "plain loop does other work; mend it first"
            )
        if counts:
            self.laps.append(self.watch)

    def ratios(self) -> list[float]:
        """Of CPU times."""
        return [lap.cpu["ours"] / lap.cpu["plain"] for lap in self.laps]

    def quiet_ratios(self) -> list[float]:
        """Of wall times, in rounds in which others hardly used the machine."""
        return [lap.wall["ours"] / lap.wall["plain"] for lap in self.laps if lap.foreign <= QUIET]

    def seconds(self, side: str) -> float:
        """CPU time of a round."""
        return statistics.median(lap.cpu[side] for lap in self.laps)


def run(cases: list[Case], rounds: int, folder: Path) -> list[Duel]:
    """All rounds of all cases, in random order within a round."""
    base = {case.samples: federate(case.experiment(1).data, SEED) for case in cases}
    duels, order = (
        [
            Duel(case, base[case.samples], rounds, folder / str(place))
            for place, case in enumerate(cases)
        ],
        random.Random(SEED),
    )
    for number in range(rounds):
        for duel in order.sample(duels, len(duels)):
            duel.round(counts=number > 0)
            watch = duel.watch
            state = (
                f"{watch.cpu['ours']:.2f} s, plain {watch.cpu['plain']:.2f} s, others "
                f"{watch.foreign:.0%}, apart {duel.apart:.0e}"
            )
            print(f"round {number} {duel.case.method} {duel.case.network}: {state}", flush=True)
    return duels


def distance(one: list[Tensor], other: list[Tensor], case: Case, task: eq.Task) -> float:
    """Return the distance of two trained models, as a share of that of one from the start."""
    net = initial_network(case, "proxy" if "proxy" in case.models else "model", task)
    trained, entries = dict(net.named_parameters()), net.state_dict()

    def vector(tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat(
            [
                tensor.double().flatten()
                for name, tensor in zip(entries, tensors, strict=True)
                if name in trained
            ]
        )

    first, second = vector(one), vector(other)
    return float((first - second).norm() / (first - vector(entries.values())).norm())


def render(duels: list[Duel], rounds: int) -> str:
    """PLAIN.md."""
    reference = {duel.case.network: duel for duel in duels if duel.case.method == "fedavg"}
    foreign = statistics.mean(lap.foreign for duel in duels for lap in duel.laps)
    lines = [
        "# Five methods beside plain loops",
        "",
        "Written by `python benchmarks/duels.py`. One round of Equipoise (in process, one "
        "thread, store and checkpoint on, nothing evaluated) beside a plain loop "
        "(`plain_methods.py`, all in memory) that makes the same passes over the same batches, "
        f"on Fashion-MNIST: {CLIENTS} clients of equal size, all in every round, batch {BATCH}, "
        "one epoch, SGD. The two take turns client by client.",
        "",
        "Ratios are of CPU time, which other load on the machine disturbs least: the median over "
        "rounds, smallest and largest in brackets. Wall time counts only in rounds in which "
        f"others used at most {QUIET:.0%} of the machine. `to FedAvg` compares with Equipoise's "
        "FedAvg on the same network and data, round by round. `apart` is the distance between "
        "the two final global models as a share of the distance they came, parameters only: it "
        "shows that both sides did the same work.",
        "",
        f"{date.today().isoformat()}, {machine()}; torch {torch.__version__}; {rounds - 1} rounds "
        f"after one that warms up; others used {foreign:.0%} of the machine on average.",
        "",
        f"| method | network | samples | CPU-s, ours | plain | ratio (at most {TARGET:.2f}) | "
        "wall ratio | to FedAvg | expected | apart |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row(duel, reference[duel.case.network]) for duel in duels),
        "",
        "KDIA trains its generator for 50 steps per round (`preset=quick`) on both sides.",
        "",
        "Two methods magnify rounding, since the plain loop writes its losses with other "
        "operations: in FedAKD a sample that one side counts as correct and the other does not "
        "changes the order of all batches of that client's second stage; KDIA's generator begins "
        "Adam anew in every round, whose first steps follow the sign of a gradient however small.",
    ]
    return "\n".join(lines) + "\n"


def row(duel: Duel, reference: Duel) -> str:
    """Return the row of the table."""
    case, ratios, quiet = duel.case, duel.ratios(), duel.quiet_ratios()
    middle = statistics.median(ratios)
    to_fedavg = statistics.median(
        a.cpu["ours"] / b.cpu["ours"] for a, b in zip(duel.laps, reference.laps, strict=True)
    )
    cells = [
        case.method,
        ", ".join(case.models.values()),
        f"{case.samples:,}",
        f"{duel.seconds('ours'):.2f}",
        f"{duel.seconds('plain'):.2f}",
        f"{middle:.3f} "
        f"({min(ratios):.3f}-{max(ratios):.3f}){'' if middle <= TARGET else ', above'}",
        f"{statistics.median(quiet):.3f} ({len(quiet)} of {len(ratios)} rounds)"
        if quiet
        else "disturbed",
        f"{to_fedavg:.2f}",
        "-".join(map(str, EXPECTED.get(case.method, ()))),
        f"{duel.apart:.0e}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=4, help="rounds of every method; the first warms up"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=sorted({case.method for case in CASES}),
        help="with FedAvg on their networks",
    )
    parser.add_argument("--output", type=Path, default=HERE / "PLAIN.md")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(
            f"--rounds: expected at least 2, since the first is not counted, got {options.rounds}"
        )
    selected = [case for case in CASES if options.methods is None or case.method in options.methods]
    networks = {case.network for case in selected}
    cases = [
        case
        for case in CASES
        if case in selected or (case.method == "fedavg" and case.network in networks)
    ]
    with tempfile.TemporaryDirectory() as folder, one_thread():
        results = run(cases, options.rounds, Path(folder))
    options.output.write_text(render(results, options.rounds))
    print(options.output.read_text())


if __name__ == "__main__":
    main()
