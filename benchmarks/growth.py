"""Growth of cost with clients, cohort, rounds, parameters and evaluation.

Writes GROWTH.md from growth.json, which keeps the last result of every series.

    python benchmarks/growth.py                                      # all series, hours
    python benchmarks/growth.py --series clients-fedavg --largest 10000

On synthetic data (nothing here says how good a method is). The runs of a series live at once and
take turns round by round, as in paired.py; a round's growth is the median of the ratios to the same
round of the series' second run. In process, one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from bench import HERE, machine
from paired import Player, interval

WAIT_SECONDS = 3600.0
AT_ONCE = 1_000  # clients in a round that gives them a state
PER_CLIENT, FEATURES = 10, 20  # samples, numbers in each
Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """A quantity that grows, its sizes, and the experiment of each size."""

    title: str
    sizes: tuple[int, ...]
    experiment: Callable[[int], dict[str, Any]]
    # Before the timed rounds every client takes part once, so that each has a state.
    fill: bool = False
    laps: int = 15


def experiment(
    clients: int, method: str = "fedavg", cohort: int = 100, hidden: int = 32, **more: Any
) -> dict[str, Any]:
    """Return the experiment of one point of a series."""
    return {
        "data": {
            "synthetic": {"samples": PER_CLIENT * clients, "features": FEATURES},
            "clients": clients,
            "partition": "iid",
        },
        "model": {"name": "mlp", "hidden": [hidden]},
        "method": method,
        "participation": {"number": cohort},
        "evaluation": {"every": 0, "clients": "cohort"},
        "workers": 0,
        **more,
    }


CLIENTS = (100, 1_000, 10_000, 100_000)
SERIES = {
    "clients-fedavg": Series("clients, FedAvg, 100 a round", CLIENTS, experiment),
    "clients-scaffold": Series(
        "clients, SCAFFOLD (stateful), 100 a round",
        CLIENTS,
        lambda n: experiment(n, "scaffold"),
        fill=True,
    ),
    "clients-fedakd": Series(
        "clients, FedAKD (stateful), 100 a round",
        CLIENTS,
        lambda n: experiment(n, "fedakd"),
        fill=True,
    ),
    "cohort": Series(
        "clients in a round, of 10,000, FedAvg",
        (10, 100, 1_000, 2_000),
        lambda n: experiment(10_000, cohort=n),
    ),
    # a hidden layer of n units over 20 inputs, with 10 outputs, has 31 n + 10 parameters
    "parameters": Series(
        "parameters, FedAvg, 2 clients on 2 workers",
        (10**5, 10**6, 10**7, 10**8),
        lambda n: experiment(2, cohort=2, hidden=n // 31, workers=2),
        laps=4,
    ),
    "metrics": Series(
        "clients, all measured in every round",
        (100, 1_000, 10_000),
        lambda n: experiment(n, evaluation={"every": 1, "clients": "all"}),
        laps=6,
    ),
    # the round that measures comes behind those that are timed
    "measured": Series(
        "clients, all measured at the end",
        CLIENTS,
        lambda n: experiment(n, evaluation={"every": 0, "clients": "all"}),
        laps=3,
    ),
    "rounds": Series(
        "rounds of one run, 10 of 100 clients",
        (100, 1_000, 10_000),
        lambda n: experiment(100, cohort=10),
    ),
}


# Requirements: series, size, column, at most. Times are of an idle machine, and CPU seconds are
# what is measured.
ASKED = [
    ("clients-fedavg", 100_000, "ratio", 1.1),
    ("clients-scaffold", 100_000, "ratio", 1.1),
    ("clients-scaffold", 100_000, "memory", 2_048),
    ("clients-fedakd", 100_000, "memory", 2_048),
    ("clients-scaffold", 100_000, "in one folder", 10_000),
    ("clients-fedakd", 100_000, "in one folder", 10_000),
    ("clients-fedavg", 100_000, "startup", 15),
    ("clients-scaffold", 100_000, "startup", 15),
    ("clients-fedavg", 100_000, "resume", 15),
    ("clients-scaffold", 100_000, "resume", 15),
    ("metrics", 10_000, "show", 10),
    ("metrics", 10_000, "report", 10),
    ("rounds", 10_000, "show", 10),
    ("rounds", 10_000, "report", 10),
    ("clients-scaffold", 100_000, "report", 10),
    ("measured", 100_000, "show", 10),
    ("measured", 100_000, "report", 10),
    ("parameters", 10**8, "memory", 6_144),
]


def environment() -> dict[str, str]:
    """Return the environment of child processes."""
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def program(*words: str) -> list[str]:
    """Return the command of a child process."""
    return [sys.executable, str(HERE / "growing.py"), *words]


def measure(name: str, series: Series, largest: int) -> list[Row]:
    """One row per size."""
    sizes = [size for size in series.sizes if size <= largest]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        laps = {size: size if name == "rounds" else series.laps for size in sizes}
        with contextlib.ExitStack() as stack:
            players = {}
            for size in sizes:
                config = series.experiment(size)
                fill = math.ceil(config["data"]["clients"] / AT_ONCE) if series.fill else 0
                config["rounds"] = fill + laps[size] + 1
                spec = {
                    "folder": f"{folder}/{size}",
                    "experiment": config,
                    "fill": fill,
                    "laps": laps[size],
                }
                players[size] = Player(
                    str(size), program("play", json.dumps(spec)), environment(), Path(folder)
                )
                stack.callback(players[size].close)
                players[size].wait(WAIT_SECONDS)
                print(f"{name} {size}: ready", flush=True)
            found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
            for number in range(max(laps.values())):
                for size, player in players.items():
                    if number < laps[size]:
                        found[size].append(player.play(WAIT_SECONDS))
        for size in sizes:
            rows.append(
                {
                    "size": size,
                    **of_rounds(found, size, sizes, name),
                    **afterwards(Path(folder) / str(size)),
                }
            )
            print(name, rows[-1], flush=True)
    return rows


def of_rounds(
    found: dict[int, list[dict[str, float]]], size: int, sizes: list[int], name: str
) -> Row:
    """CPU and wall seconds of a round, and its ratio to the reference: the same round of the second
    size, or the first rounds of the same run.
    """
    cpu = [lap["cpu_seconds"] for lap in found[size]]
    tenth = max(1, len(cpu) // 10)
    reference = (
        cpu[1 : 1 + tenth]
        if name == "rounds"
        else [lap["cpu_seconds"] for lap in found[sizes[min(1, len(sizes) - 1)]]][1:]
    )
    own = cpu[-tenth:] if name == "rounds" else cpu[1:]
    shared = min(len(own), len(reference))
    ratio = interval([a / b for a, b in zip(own[-shared:], reference[-shared:], strict=True)])
    return {
        "cpu": float(np.median(own)),
        "wall": float(np.median([lap["seconds"] for lap in found[size][1:]])),
        "ratio": ratio,
    }


def afterwards(run: Path) -> Row:
    """The files of the run, and the cost of resuming and reading it.

    Seconds are of CPU.
    """
    facts = json.loads(run.with_name(f"{run.name}.json").read_text())
    contents = [[Path(place) / file for file in files] for place, _, files in os.walk(run)]
    everything = [path for files in contents for path in files]
    row: Row = {
        **facts,
        "files": len(everything),
        "in one folder": max(map(len, contents)),
        "bytes": sum(path.stat().st_size for path in everything),
    }
    resumed = subprocess.run(
        program("resume", str(run)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    row["resume"] = (
        float(resumed.stdout.split()[0])
        if resumed.stdout
        else resumed.stderr.strip().splitlines()[-1]
    )
    for command in ("show", "report"):
        before, began = children(), time.perf_counter()
        line = [sys.executable, "-m", "equipoise", command, str(run)]
        done = subprocess.run(
            line,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            cwd=run.parent,
        )
        row[command] = (
            children() - before if not done.returncode else done.stderr.strip().splitlines()[-1]
        )
        row[f"{command} wall"] = time.perf_counter() - began
    return row


def children() -> float:
    """Return the CPU seconds of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def exponent(rows: list[Row], what: str) -> str:
    """Of size, in the fit of a power to the measured values; the last two decades where there are
    more.

    >>> exponent([{"size": 10, "cpu": 2.0}, {"size": 100, "cpu": 20.0}], "cpu")
    '1.00'
    """
    known = [
        (row["size"], row[what])
        for row in rows
        if isinstance(row.get(what), int | float) and row[what] > 0
    ]
    if len(known) < 2:
        return ""
    x, y = np.log(np.array(known[-3:], dtype=np.float64)).T
    return f"{np.polyfit(x, y, 1)[0]:.2f}"


COLUMNS = {
    "cpu": ("CPU s a round", "{:.3f}"),
    "wall": ("wall s a round", "{:.3f}"),
    "memory": ("peak MB", "{:,.0f}"),
    "files": ("files", "{:,}"),
    "in one folder": ("most in a folder", "{:,}"),
    "bytes": ("bytes on disk", "{:,}"),
    "startup": ("start-up", "{:.1f}"),
    "resume": ("resume", "{:.1f}"),
    "show": ("show", "{:.1f}"),
    "report": ("report", "{:.1f}"),
}


def table(name: str, found: dict[str, Any]) -> list[str]:
    """Return the table of a series."""
    rows = found["rows"]
    lines = [
        f"## {SERIES[name].title}",
        "",
        f"`{name}`, {found['date']}, {found['machine']}; load {found['load']}. {found.get('note', '')}".rstrip(),
        "",
        "| size | of the reference | " + " | ".join(title for title, _ in COLUMNS.values()) + " |",
        "|" + "---|" * (len(COLUMNS) + 2),
    ]
    for row in rows:
        cells = [
            form.format(row[what]) if isinstance(row[what], int | float) else str(row[what])
            for what, (_, form) in COLUMNS.items()
        ]
        lines.append(
            f"| {row['size']:,} | {row['ratio'][0]:.2f} "
            f"({row['ratio'][1]:.2f}-{row['ratio'][2]:.2f}) | {' | '.join(cells)} |"
        )
    return [*lines, "| exponent | | " + " | ".join(exponent(rows, what) for what in COLUMNS) + " |"]


def asked(everything: dict[str, Any]) -> list[str]:
    """The requirements and the measured values, at the required size or else at the largest that
    was measured.
    """
    titles = {what: title for what, (title, _) in COLUMNS.items()} | {
        "ratio": "a round, of one of the second size"
    }
    lines = ["| series | size | what | at most | found |", "|---|---|---|---|---|"]
    for name, size, what, most in ASKED:
        rows = everything.get(name, {}).get("rows", [])
        row = next((row for row in rows if row["size"] == size), rows[-1] if rows else None)
        found = "not measured" if row is None else row[what][0] if what == "ratio" else row[what]
        said = (
            found
            if isinstance(found, str)
            else f"{found:,.5g}{'' if found <= most else ', missed'}"
        )
        reached = "" if row is None or row["size"] == size else f" (at {row['size']:,})"
        lines.append(f"| {name} | {size:,} | {titles[what]} | {most:,} | {said}{reached} |")
    return lines


def render(everything: dict[str, Any]) -> str:
    """GROWTH.md."""
    lines = [
        "# How cost grows",
        "",
        "Written by `python benchmarks/growth.py`, from synthetic data. The runs of a table live "
        "at once and take turns round by round; `of the reference` is the median ratio of a "
        "round's CPU time to that of the same round of the second size (in the table of rounds: "
        "of the last tenth of the rounds to the first), with its bootstrap interval. Start-up "
        "(until round 1 begins), resume (until the next round begins), `show` and `report` are in "
        "CPU seconds, imports included. Memory is the peak of the process, or of all processes "
        "together where there are workers. The exponent is that of a power of the size, fitted to "
        "the last three sizes. In process (but for the table of parameters), one thread; the "
        "machine was busy with other work, as `load` says, so seconds of CPU count and wall times "
        "do not. Stateful runs begin with rounds in which every client is asked once, so that "
        "each has a state; these are not timed.",
    ]
    lines += ["", *asked(everything)]
    for name in SERIES:
        if name in everything:
            lines += ["", *table(name, everything[name])]
    missing = [name for name in SERIES if name not in everything]
    if missing:
        lines += [
            "",
            f"Not measured yet: {', '.join(f'`{name}`' for name in missing)} (`python "
            f"benchmarks/growth.py --series {' '.join(missing)}`).",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what the command line asks for; series not run keep their earlier results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES))
    parser.add_argument("--largest", type=int, default=10**9, help="leave out sizes above this")
    parser.add_argument(
        "--output", type=Path, default=HERE, help="folder of growth.json and GROWTH.md"
    )
    options = parser.parse_args()
    file = options.output / "growth.json"
    everything = json.loads(file.read_text()) if file.is_file() else {}
    for name in options.series:
        load = os.getloadavg()[0]
        rows = measure(name, SERIES[name], options.largest)
        everything[name] = {
            "date": date.today().isoformat(),
            "machine": machine(),
            "load": f"{load:.1f} to {os.getloadavg()[0]:.1f}",
            "rows": rows,
        }
        file.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")
        (options.output / "GROWTH.md").write_text(render(everything))


if __name__ == "__main__":
    main()
