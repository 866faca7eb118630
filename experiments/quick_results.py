"""Runs every quick variant over three seeds beside FedAvg and Standalone, and writes docs/results.md as it came out.

    python experiments/quick_results.py [SYSTEM ...]

Finished runs are kept in comparisons/quick and not run again.
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


def label(method: dict[str, Any]) -> str:
    """A method's name, and what tells it from its defaults in these tables."""
    return (
        f"{method['name']} ({method['average']})"
        if method["name"] == "fedavg" and method.get("average", "size") != "size"
        else str(method["name"])
    )


def rows(folder: Path) -> dict[tuple[str, str], list[dict[str, float]]]:
    """(method, model) -> one row of numbers per seed, from the final measurements of every run in a comparison's folder."""
    runs = [Run(path) for path in sorted((folder / "runs").iterdir()) if (path / "run.db").exists()]
    alone = {
        run.config["seed"]: run.final()
        for run in runs
        if run.config["method"]["name"] == "standalone"
    }
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for run in runs:
        assert run.status == "finished", f"{run.folder} is {run.status}"
        for model in run.models():
            values = run.final(model=model)
            numbers = np.array(list(values.values()))
            row = {
                "seed": run.config["seed"],
                "average": 100 * numbers.mean(),
                "worst": 100 * numbers.min(),
                "spread": 100 * numbers.std(),
            }
            reference = alone[run.config["seed"]]
            if values.keys() == reference.keys() and run.config["method"]["name"] != "standalone":
                before, after = np.array([reference[client] for client in values]), numbers
                moved = negative_transfer(before, after)
                row |= {
                    "gain": 100 * moved["average"],
                    "harmed": 100 * moved["harmed"],
                    "cf": collaborative_fairness(before, after),
                }
            found.setdefault((label(run.config["method"]), model), []).append(row)
    return found


def table(found: dict[tuple[str, str], list[dict[str, float]]]) -> str:
    """Mean and range over seeds."""
    lines = [
        "| method | model | average | worst client | std over clients | gain on Standalone | clients harmed | CF |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (method, model), seeds in sorted(
        found.items(),
        key=lambda item: (item[0][0] != "standalone", not item[0][0].startswith("fedavg"), item[0]),
    ):
        cells = []
        for key, digits in (
            ("average", 1),
            ("worst", 1),
            ("spread", 1),
            ("gain", 1),
            ("harmed", 0),
            ("cf", 0),
        ):
            values = [row[key] for row in seeds if key in row and np.isfinite(row[key])]
            cells.append(
                f"{np.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
                if values
                else "-"
            )
        lines.append(f"| {method} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


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
        parts.append(
            f"## {system}\n\n`experiments/{system}-quick.yaml`. {comment}\n\n{table(rows(folder))}\n"
        )
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
