"""VARIANTS.md from variants.json."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from workloads import WORKLOADS

Result = dict[str, Any]

# Time of ours to the bound at most, fastest peer to ours at least.
TARGETS = {"W1": (1.05, 1.25), "W2": (1.20, 1.8), "W3": (1.15, 1.8)}
NOT_PEERS = ("ours", "bound", "floor")
MEMORY_TARGET_MB = {"W4": 1536}
FIELDS = {
    *(
        "contender",
        "variant",
        "workload",
        "seconds",
        "samples",
        "cpu_seconds",
        "foreign",
        "start_seconds",
        "peak_mb",
    ),
    *("accuracy", "versions", "disturbed", "median_seconds", "attempts"),
}


def render(everything: dict[str, Any]) -> str:
    """The whole report."""
    parts = [
        "# One run after another",
        "Written by `benchmarks/bench.py`; `benchmarks/README.md` says what is measured and how. "
        "Seconds are per round: the median over repetitions of each run's median, and the fastest "
        "round. Ratios are medians over the interleaved repetitions. CPU-seconds are per round, "
        "memory is the peak of the summed proportional set sizes of all processes.",
    ]
    return (
        "\n\n".join([*parts, *(section(name, everything[name]) for name in sorted(everything))])
        + "\n"
    )


def section(name: str, found: dict[str, Any]) -> str:
    """One workload: table, ratios, what was skipped."""
    workload = WORKLOADS[name]
    runs = by_contender(found["runs"])
    lines = [
        f"## {name} `{workload.title}`",
        "",
        f"{found['date']}, {found['machine']}; {found['repetitions']} repetitions of "
        f"{found['rounds']} rounds.",
        "",
        "| contender | variant | s/round, median | min | samples/s | CPU-s | peak MB | accuracy | "
        "to bound | disturbed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for contender in sorted(runs, key=lambda contender: seconds(best(runs, contender))):
        for repeated in sorted(runs[contender].values(), key=seconds):
            lines.append(row(repeated, best(runs, "bound")))
    lines += ["", *verdicts(name, runs)]
    ours = best(runs, "ours")
    for run in sorted(found["dropped"], key=lambda run: run["median_seconds"]):
        against = (
            f", {run['median_seconds'] / ours[0]['median_seconds']:.2f} to ours in the same "
            "repetition"
            if ours
            else ""
        )
        accuracy = f"accuracy {run['accuracy']:.4f}, {run['peak_mb']:,.0f} MB"
        lines.append(
            f"- once only, {run['contender']} {run['variant']}: {run['median_seconds']:.3f} "
            f"s{against}; {accuracy}"
        )
    lines += [f"- skipped, {who}: {why}" for who, why in sorted(found["skipped"].items())]
    for contender in sorted(runs):
        run = best(runs, contender)[0]
        versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
        extras = "".join(
            f"; {key} {value:.4g}"
            for key, value in run.items()
            if key not in FIELDS and isinstance(value, int | float)
        )
        lines.append(f"- {contender}: {versions}; start {run['start_seconds']:.1f} s{extras}")
    return "\n".join(lines)


def by_contender(runs: list[Result]) -> dict[str, dict[str, list[Result]]]:
    """Repetitions by contender and variant."""
    grouped: dict[str, dict[str, list[Result]]] = {}
    for run in runs:
        grouped.setdefault(run["contender"], {}).setdefault(run["variant"], []).append(run)
    return grouped


def seconds(repeated: list[Result]) -> float:
    """Median over repetitions."""
    return float(median(run["median_seconds"] for run in repeated))


def best(runs: dict[str, dict[str, list[Result]]], contender: str) -> list[Result]:
    """The repetitions of a contender's fastest variant; none if it did not run."""
    return min(
        runs.get(contender, {"": []}).values(),
        key=lambda repeated: seconds(repeated) if repeated else 0.0,
    )


def ratio(numerator: list[Result], denominator: list[Result]) -> float:
    """Median over repetitions of the ratio of times; both took part in each.

    >>> ratio([{"median_seconds": 2.0}, {"median_seconds": 9.0}], [{"median_seconds": 1.0}, {"median_seconds": 3.0}])
    2.5
    """
    return float(
        median(
            a["median_seconds"] / b["median_seconds"]
            for a, b in zip(numerator, denominator, strict=True)
        )
    )


def row(repeated: list[Result], bound: list[Result]) -> str:
    """One line of the table."""
    middle = seconds(repeated)
    cells = [
        repeated[0]["contender"],
        repeated[0]["variant"],
        f"{middle:.3f}",
        f"{min(min(run['seconds']) for run in repeated):.3f}",
        f"{median(median(run['samples']) for run in repeated) / middle:,.0f}",
        f"{median(mean(run['cpu_seconds']) for run in repeated):.2f}",
        f"{max(run['peak_mb'] for run in repeated):,.0f}",
        f"{mean(run['accuracy'] for run in repeated):.4f}",
        f"{ratio(repeated, bound):.2f}" if bound else "",
        f"{sum(run['disturbed'] for run in repeated)} of {len(repeated)}",
    ]
    return "| " + " | ".join(cells) + " |"


def verdicts(name: str, runs: dict[str, dict[str, list[Result]]]) -> list[str]:
    """The requirements and the measured values."""
    ours, bound = best(runs, "ours"), best(runs, "bound")
    peers = [best(runs, contender) for contender in runs if contender not in NOT_PEERS]
    lines = []
    if ours and bound and name in TARGETS:
        lines.append(
            f"- ours to bound: {ratio(ours, bound):.2f} (asked: at most {TARGETS[name][0]:.2f})"
        )
    if ours and peers and name in TARGETS:
        fastest = min(peers, key=seconds)
        lines.append(
            f"- fastest peer ({fastest[0]['contender']} {fastest[0]['variant']}) to ours: "
            f"{ratio(fastest, ours):.2f} (asked: at least {TARGETS[name][1]:.2f})"
        )
        if floor := best(runs, "floor"):
            lines.append(
                "- the same peer to the floor (kernels without autograd): "
                f"{ratio(fastest, floor):.2f}"
            )
        others = [
            repeated
            for who in runs
            if who not in NOT_PEERS
            for repeated in runs[who].values()
            if repeated is not fastest
        ]
        lines += [
            f"- {one[0]['contender']} {one[0]['variant']} to ours: {ratio(one, ours):.2f}"
            for one in sorted(others, key=seconds)
        ]
    if ours and name in MEMORY_TARGET_MB:
        peak = max(run["peak_mb"] for run in ours)
        lines.append(
            f"- memory of ours: {peak:,.0f} MB (asked: under {MEMORY_TARGET_MB[name]:,} MB)"
        )
    return lines
