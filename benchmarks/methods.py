"""Cost of a round of every registered method relative to FedAvg: CPU time and bytes, in one run.

Writes METHODS.md.

    EQUIPOISE_DATA=/folder/with/fashion_mnist.npz python benchmarks/methods.py

All methods live at once in this process, on one thread. In each repetition, in random order, FedAvg
plays a round and then the method plays one: a ratio is of two rounds that follow each other, so
whatever else the machine does meets both.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
from bench import HERE, machine
from equipoise import methods
from equipoise.storage.store import RoundRecord
from equipoise.training.workbench import one_thread
from stepping import stepped

CLIENTS, SAMPLES, NETWORK, BATCH, SEED = 10, 3_000, "moon_cnn", 32, 0
# Options under which a method does in the first rounds what it does later, or that keep a round
# within seconds.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedcog": {"start_round": 1, "steps": 50, "images": 64},
    "kdia": {"preset": "quick"},
    "fedsac": {"alone": 1},
}
NOTES = {
    "fedcog": "made images from round 1 on, 64 at most, 50 steps (defaults: from round 51 on, 256, 500 steps)",
    "kdia": "50 steps of the generator a round (default 2,000)",
    "fedsac": "without its measurement of importance, which comes once in 10 rounds, and without training alone before round 1",
    "finetune": "without the tuning after the last round",
    "poise": "without what follows the last round",
}


@dataclass
class Contender:
    """One method in motion."""

    name: str
    rounds: Iterator[Any]
    laps: list[float] = field(default_factory=list)  # CPU seconds
    ratios: list[float] = field(default_factory=list)  # to FedAvg's round just before
    record: RoundRecord | None = None

    def round(self) -> float:
        """Do one round and measure it."""
        began = time.process_time()
        _, self.record = next(self.rounds)
        return time.process_time() - began


def experiment(method: str, rounds: int) -> eq.Experiment:
    """Return the experiment of a method."""
    return eq.Experiment(
        data={
            "name": "fashion_mnist",
            "partition": "iid",
            "clients": CLIENTS,
            "samples": SAMPLES,
            "split": (0.7, 0.15, 0.15),
        },
        model=NETWORK,
        method={"name": method, **OPTIONS.get(method, {})},
        training={"lr": 0.05, "batch": BATCH},
        evaluation={"every": 0, "splits": ()},
        rounds=rounds,
        seed=SEED,
        workers=0,
    )


def run(names: list[str], repetitions: int, folder: Path) -> list[Contender]:
    """All repetitions; the first round of everyone warms up."""
    rounds = repetitions * len(names) + 3  # never the last, after which some methods do more
    found = [Contender(name, stepped(experiment(name, rounds), folder / name)) for name in names]
    reference = Contender("fedavg", stepped(experiment("fedavg", rounds), folder / "reference"))
    for one in (reference, *found):
        one.round()  # what precedes round 1
        one.round()
        print(f"{one.name}: ready", flush=True)
    order = random.Random(SEED)
    for repetition in range(repetitions):
        for one in order.sample(found, len(found)):
            base, own = reference.round(), one.round()
            one.laps.append(own)
            one.ratios.append(own / base)
            print(
                f"{repetition + 1}/{repetitions} {one.name}: {own:.2f} s, {own / base:.2f} of "
                f"FedAvg's {base:.2f} s",
                flush=True,
            )
    return found


def row(one: Contender, base: RoundRecord) -> str:
    """Return the row of the table."""
    record, listed = one.record, methods.describe(one.name)
    assert record is not None
    quarters = (
        statistics.quantiles(one.ratios, n=4, method="inclusive")
        if len(one.ratios) > 1
        else one.ratios * 3
    )
    cells = [
        one.name,
        f"{statistics.median(one.ratios):.2f} ({quarters[0]:.2f}-{quarters[2]:.2f})",
        listed["passes"],
        f"{record.bytes_up / base.bytes_up:.2f}",
        f"{record.bytes_down / base.bytes_down:.2f}",
        NOTES.get(one.name, ""),
    ]
    return "| " + " | ".join(cells) + " |"


def render(found: list[Contender], repetitions: int, load: str) -> str:
    """METHODS.md."""
    base = next(one.record for one in found if one.name == "fedavg")
    assert base is not None
    from equipoise.method import PASSES

    lines = [
        "# What the methods cost",
        "",
        f"Written by `python benchmarks/methods.py`, {date.today().isoformat()}, {machine()}; "
        f"torch {torch.__version__}, equipoise {eq.__version__}. Fashion-MNIST, {SAMPLES:,} "
        f"samples over {CLIENTS} clients of equal size, all in every round; `{NETWORK}`, batch "
        f"{BATCH}, one epoch, SGD; default hyper-parameters unless the last column says "
        "otherwise. In process, one thread, store and checkpoint on, nothing evaluated.",
        "",
        "CPU is a round's CPU time as a ratio to that of FedAvg's round just before it: the "
        f"median of {repetitions} such pairs, with the quartiles in brackets. The row `fedavg` is "
        "a second FedAvg beside the first: how far its ratio strays from 1 is the noise of this "
        f"table. Load of the machine meanwhile: {load}. Bytes are those of one round, up from and "
        f"down to all clients, as ratios to FedAvg's ({base.bytes_up:,} up, {base.bytes_down:,} "
        "down).",
        "",
        f"Passes are counted, not timed: {PASSES}. A pass with gradient costs about three "
        "without. What comes once before round 1 or after the last is not in the CPU column. "
        "With more epochs a ratio falls where a method adds passes once a round, and stays where "
        "it adds them to every epoch.",
        "",
        "| method | CPU, of FedAvg's | passes in a round | up | down | |",
        "|---|---|---|---|---|---|",
        *(row(one, base) for one in found),
        "",
        "How five of them compare with a plain loop over torch that makes the same passes: "
        "[PLAIN.md](PLAIN.md).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=methods.names(),
        help="default: all; fedavg is always among them",
    )
    parser.add_argument("--output", type=Path, default=HERE / "METHODS.md")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error(f"--repetitions: expected at least 1, got {options.repetitions}")
    names = [
        entry["name"]
        for entry in methods.listed()
        if options.methods is None or entry["name"] in ("fedavg", *options.methods)
    ]
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder, one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(names, options.repetitions, Path(folder))
    loads.append(os.getloadavg()[0])
    options.output.write_text(
        render(
            found, options.repetitions, f"{loads[0]:.1f} at the start, {loads[1]:.1f} at the end"
        )
    )
    print(options.output.read_text())


if __name__ == "__main__":
    main()
