"""Compare every quick variant with FedAvg and Standalone over three seeds; write docs/results.md.

    python experiments/quick_results.py [SYSTEM ...]

Finished runs stay in comparisons/quick and are not repeated.
"""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import equipoise
from equipoise.comparison import compare
from equipoise.metrics import collaborative_fairness, negative_transfer
from equipoise.runs import Run

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
UNIFORM = {"name": "fedavg", "average": "uniform"}
SYSTEMS: dict[str, list[Any]] = {  # what each system is compared with, besides Standalone
    "fedakd": ["fedavg"],
    "kdia": ["fedavg"],
    "fedequilibria": ["fedavg", UNIFORM],
    "fedekd": ["fedavg"],
    "corefed": ["fedavg", UNIFORM],
}
COLUMNS = {  # key of a number -> title and digits
    "average": ("average", 1),
    "worst": ("worst client", 1),
    "spread": ("std over clients", 1),
    "gain": ("gain on Standalone", 1),
    "harmed": ("clients harmed", 0),
    "cf": ("CF", 0),
}


def label(method: dict[str, Any]) -> str:
    """Return the name of a method in these tables."""
    if method["name"] == "fedavg" and method.get("average", "size") != "size":
        return f"{method['name']} ({method['average']})"
    return str(method["name"])


def rows(folder: Path) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Return the final numbers of each method and served model, one row per seed.

    Args:
        folder: The folder of a comparison.
    """
    runs = [Run(path) for path in sorted((folder / "runs").iterdir()) if (path / "run.db").exists()]
    alone = {}
    for run in runs:
        if run.config["method"]["name"] == "standalone":
            alone[run.config["seed"]] = run.final()
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for run in runs:
        assert run.status == "finished", f"{run.folder} is {run.status}"
        for model in run.models():
            row = _numbers(run, model, alone[run.config["seed"]])
            found.setdefault((label(run.config["method"]), model), []).append(row)
    return found


def _numbers(run: Run, model: str, alone: dict[str, float]) -> dict[str, float]:
    """Return the row of a served model; changes only where it can be compared with training alone.

    Args:
        run: The run.
        model: The served model.
        alone: Client -> accuracy of training alone with the same seed.
    """
    values = run.final(model=model)
    accuracies = np.array(list(values.values()))
    row = {
        "seed": run.config["seed"],
        "average": 100 * accuracies.mean(),
        "worst": 100 * accuracies.min(),
        "spread": 100 * accuracies.std(),
    }
    if values.keys() != alone.keys() or run.config["method"]["name"] == "standalone":
        return row
    before = np.array([alone[client] for client in values])
    change = negative_transfer(before, accuracies)
    return {
        **row,
        "gain": 100 * change["average"],
        "harmed": 100 * change["harmed"],
        "cf": collaborative_fairness(before, accuracies),
    }


def table(found: dict[tuple[str, str], list[dict[str, float]]]) -> str:
    """Return the table of means and ranges over seeds."""
    titles = ["method", "model", *(title for title, _ in COLUMNS.values())]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for (method, model), seeds in sorted(found.items(), key=lambda item: _position(*item[0])):
        cells = [_cell(seeds, key, digits) for key, (_, digits) in COLUMNS.items()]
        lines.append(f"| {method} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _position(method: str, model: str) -> tuple[bool, bool, str, str]:
    """Return the key by which rows are sorted: Standalone, FedAvg, others by name."""
    return method != "standalone", not method.startswith("fedavg"), method, model


def _cell(seeds: list[dict[str, float]], key: str, digits: int) -> str:
    """Return the mean of a number over seeds, and its range."""
    values = [row[key] for row in seeds if key in row and np.isfinite(row[key])]
    if not values:
        return "-"
    numbers = (np.mean(values), min(values), max(values))
    mean, lowest, highest = (f"{number:.{digits}f}" for number in numbers)
    return f"{mean} ({lowest} to {highest})"


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def main(systems: list[str]) -> None:
    """Run the experiments and write the page."""
    parts = []
    for system in SYSTEMS:
        folder = Path("comparisons/quick") / system
        config = yaml.safe_load((HERE / f"{system}-quick.yaml").read_text())
        if not systems or system in systems:
            compare(config, methods=[*SYSTEMS[system], config["method"]], seeds=SEEDS, out=folder)
        comment = (HERE / f"{system}-quick.yaml").read_text().splitlines()[0].removeprefix("# ")
        heading = f"## {system}\n\n`experiments/{system}-quick.yaml`. {comment}"
        parts.append(f"{heading}\n\n{table(rows(folder))}\n")
    intro = (
        (HERE / "results_intro.md")
        .read_text()
        .format(
            date=datetime.now(UTC).date(),
            cpu=processor(),
            torch=torch.__version__,
            version=equipoise.__version__,
            seeds=", ".join(map(str, SEEDS)),
        )
    )
    page = HERE.parent / "docs" / "results.md"
    # another script's table, behind these
    others = page.read_text().partition("<!-- made by experiments/accuracy.py -->")
    page.write_text(
        intro + "\n" + "\n".join(parts) + "".join(("\n", *others[1:]) if others[1] else "")
    )


if __name__ == "__main__":
    main(sys.argv[1:])
