"""Write the results of the study into docs/methods/poise.md, favourable or not.

python studies/poise/table.py
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

import settings
from equipoise.metrics import against_baseline, collaborative_fairness, over_seeds
from study import chosen, kept, known

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "poise.md"
BEGIN, END = "<!-- made by studies/poise/table.py -->", "<!-- end -->"
ALONE, POISE = "standalone", "poise"
NAMES = {
    POISE: "**Poise**",
    "poise, plain": "Poise, validation data not folded back",
    ALONE: "Standalone",
}
Record = dict[str, Any]


class Part:
    """The runs of a part of the study, with one network."""

    def __init__(self, part: str, model: str = "mlp") -> None:
        self.runs = {key[2:]: record for key, record in known().items() if key[:2] == (part, model)}
        self.settings = list(dict.fromkeys(key[0] for key in self.runs))
        self.methods = list(dict.fromkeys(key[1] for key in self.runs))

    def seeds(self, setting: str) -> list[int]:
        """Those for which every method was run."""
        found = sorted({key[2] for key in self.runs if key[0] == setting})
        return [
            seed
            for seed in found
            if all((setting, method, seed) in self.runs for method in self.methods)
        ]

    def complete(self) -> list[int]:
        """Seeds that are complete in every setting; further ones of a single setting are not among them."""
        needed = (
            settings.WITH_MLP
            if "digits" in self.settings and "cifar" not in self.settings
            else settings.WITH_LENET
        )
        return [
            seed
            for seed in settings.REPORT
            if all(seed in self.seeds(setting) for setting in needed)
        ]

    def used(self, setting: str) -> list[int]:
        """Return the seeds of a setting that are reported."""
        return self.seeds(setting) if setting == "hospitals" else self.complete()

    def of(self, setting: str, method: str, seeds: Sequence[int] | None = None) -> list[Record]:
        """Return the records of a method in a setting."""
        return [
            self.runs[setting, method, seed]
            for seed in (self.used(setting) if seeds is None else seeds)
        ]

    def diverged(self, setting: str, method: str) -> list[int]:
        """The seeds with which it came to no result."""
        return [
            seed for seed in self.used(setting) if "diverged" in self.runs[setting, method, seed]
        ]

    def standing(self, setting: str) -> list[str]:
        """The methods that came to a result with every seed."""
        return [method for method in self.methods if not self.diverged(setting, method)]

    def averages(self, setting: str, method: str) -> np.ndarray:
        """Return the average accuracy of each seed in per cent."""
        return 100 * np.array([np.mean(one["accuracy"]) for one in self.of(setting, method)])

    def changes(self, setting: str, method: str) -> np.ndarray:
        """Return the change of every client against training alone in percentage points."""
        pairs = zip(self.of(setting, method), self.of(setting, ALONE), strict=True)
        return 100 * np.array(
            [np.subtract(one["accuracy"], alone["accuracy"]) for one, alone in pairs]
        )

    def significant(self, setting: str, method: str) -> int:
        """Clients that are worse than alone by the exact one-sided test of McNemar at 5 %."""
        pairs = chain.from_iterable(
            zip(one["lost"], one["won"], strict=True)
            for one in self.of(setting, method)
            if "lost" in one
        )
        return sum(
            lost > won and binom.sf(lost - 1, lost + won, 0.5) <= 0.05 for lost, won in pairs
        )


def rows_of(part: Part, setting: str) -> list[str]:
    """Return the table of a setting."""
    lines = [
        "| method | average | worst client | change | worst change | below alone | of these significantly | CF | steps | bytes | Poise minus it |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    fedavg = part.of(setting, "fedavg")
    tests = against_baseline(
        {method: part.averages(setting, method) for method in part.standing(setting)}, POISE
    )
    for method in sorted(
        part.standing(setting), key=lambda name: -part.averages(setting, name).mean()
    ):
        own, change = part.of(setting, method), part.changes(setting, method)
        worst = np.mean([100 * min(one["accuracy"]) for one in own])
        cells = [NAMES.get(method, method), spread(part.averages(setting, method)), f"{worst:.1f}"]
        if method == ALONE:
            cells += ["", "", "", "", ""]
        else:
            cells += [
                f"{change.mean():+.1f}",
                f"{change.min():+.1f}",
                f"{(change < 0).sum()} of {change.size}",
            ]
            cells += [str(part.significant(setting, method)), fairness(part, setting, method)]
        cells += [
            ratio(own, fedavg, lambda one: one["steps"]),
            ratio(own, fedavg, lambda one: sum(one["bytes"])),
        ]
        cells.append(
            "" if method == POISE else difference(part, setting, method, tests[method].adjusted)
        )
        lines.append(f"| {' | '.join(cells)} |")
    for method in part.methods:
        if seeds := part.diverged(setting, method):
            lines.append(
                f"| {NAMES.get(method, method)} | diverged with seed {listed(seeds)} |{' |' * 9}"
            )
    return lines


def spread(values: np.ndarray) -> str:
    """Return mean and standard deviation over seeds as text."""
    return (
        f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
        if len(values) > 1
        else f"{values.mean():.1f}"
    )


def ratio(own: list[Record], other: list[Record], value: Callable[[Record], float]) -> str:
    """Return the mean ratio of a value to that of another method as text."""
    return f"{np.mean([value(a) / value(b) for a, b in zip(own, other, strict=True)]):.2f}"


def fairness(part: Part, setting: str, method: str) -> str:
    """Return the collaborative fairness of a method as text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            collaborative_fairness(alone["accuracy"], one["accuracy"])
            for one, alone in zip(part.of(setting, method), part.of(setting, ALONE), strict=True)
        ]
    return f"{np.nanmean(found):.0f}"


def difference(part: Part, setting: str, method: str, adjusted: float | None) -> str:
    """Return the difference between Poise and a method as text."""
    found = over_seeds(part.averages(setting, POISE) - part.averages(setting, method))
    low, high = found.low, found.high
    interval = f" [{low:+.1f}, {high:+.1f}]" if low is not None and high is not None else ""
    return f"{found.value:+.1f}{interval}" + (f", p {adjusted:.3f}" if adjusted is not None else "")


def report(part: Part, title: str) -> list[str]:
    """Return the section of a part."""
    seeds = part.complete()
    if not seeds:
        return [f"### {title}", "", "Not complete for any seed yet: no result.", ""]
    lines = [f"### {title}", "", *overview(part), "", *verdicts(part), ""]
    for setting in part.settings:
        used = part.used(setting)
        lines += [f"**{setting}**, seeds {listed(used)}.", "", *rows_of(part, setting), ""]
    return lines


def overview(part: Part) -> list[str]:
    """Averages of all methods in all settings, and who was harmed over all of them."""
    lines = [
        f"| average | {' | '.join(part.settings)} | below alone | significantly |",
        "|---" * (len(part.settings) + 3) + "|",
    ]
    for method in part.methods:
        cells = [
            f"{part.averages(setting, method).mean():.1f}"
            if method in part.standing(setting)
            else "diverged"
            for setting in part.settings
        ]
        harmed, all_of_them, significant = harm(part, method)
        cells += ["", ""] if method == ALONE else [f"{harmed} of {all_of_them}", str(significant)]
        lines.append(f"| {NAMES.get(method, method)} | {' | '.join(cells)} |")
    return lines


def harm(part: Part, method: str) -> tuple[int, int, int]:
    """Clients below training alone, of how many, and how many of them significantly, where it came to a result."""
    stood = [setting for setting in part.settings if method in part.standing(setting)]
    changes = [part.changes(setting, method) for setting in stood]
    return (
        sum(int((one < 0).sum()) for one in changes),
        sum(one.size for one in changes),
        sum(part.significant(setting, method) for setting in stood),
    )


def against_all(part: Part, method: str) -> tuple[int, int]:
    """Clients below training alone on training plus validation data, of how many."""
    pairs = [
        pair
        for name in part.settings
        for pair in zip(
            part.of(name, method), part.of(name, "standalone + validation"), strict=True
        )
    ]
    change = np.concatenate(
        [np.subtract(one["accuracy"], alone["accuracy"]) for one, alone in pairs]
    )
    return int((change < 0).sum()), change.size


def verdicts(part: Part) -> list[str]:
    """What the numbers say, and no more."""
    lines, seeds = [], part.complete()
    others = [method for method in part.methods if method not in (POISE, "poise, plain")]
    for setting in part.settings:
        means = {
            method: part.averages(setting, method).mean()
            for method in others
            if method in part.standing(setting)
        }
        best = max(means, key=lambda name: means[name])
        gap = part.averages(setting, POISE) - part.averages(setting, best)
        sign = (
            "one seed"
            if len(gap) == 1
            else "above in every seed"
            if (gap > 0).all()
            else "below in every seed"
            if (gap < 0).all()
            else "not the same sign in every seed"
        )
        lines.append(
            f"- {setting}: the best of the others is {best} with {means[best]:.1f}; Poise minus it {gap.mean():+.2f} ({sign})."
        )
    one, noise = harm(part, POISE), harm(part, "standalone, other numbers")
    lines.append(
        f"- Below training alone, over all settings: Poise {one[0]} of {one[1]} clients ({one[2]} significantly); training alone with other "
        f"random numbers, the yardstick, {noise[0]} ({noise[2]})."
    )
    pairs = {
        name: against_all(part, name)
        for name in (POISE, "poise, plain", "finetune + validation")
        if name in part.methods
    }
    told = ", ".join(
        f"{NAMES.get(name, name)} {below} of {clients}" for name, (below, clients) in pairs.items()
    )
    lines.append(
        f"- Below training alone where that, too, has the validation data (counted, not tested): {told}."
    )
    if len(seeds) < 5:
        lines.append(
            f"- With {len(seeds)} complete seed{'s' if len(seeds) > 1 else ''} there is no test over seeds (five are needed): differences of averages decide nothing yet."
        )
    return lines


def listed(seeds: Sequence[int]) -> str:
    """Return seeds as text."""
    return ", ".join(map(str, seeds))


def folded() -> list[str]:
    """Return the table of ways to use the validation data."""
    part, alone = Part("fold"), "standalone + validation"
    lines = [
        "| with validation data | seed | average over settings | below training alone on the same data | worst change |",
        "|---|---|---|---|---|",
    ]
    for method in ("plain", "folded", "folded-all", "crossed"):
        for seed in settings.TUNING:
            if any(
                (setting, name, seed) not in part.runs
                for setting in part.settings
                for name in (method, alone)
            ):
                continue
            pairs = [
                (part.runs[setting, method, seed], part.runs[setting, alone, seed])
                for setting in part.settings
            ]
            change = 100 * np.concatenate(
                [np.subtract(one["accuracy"], other["accuracy"]) for one, other in pairs]
            )
            average = 100 * np.mean([np.mean(one["accuracy"]) for one, _ in pairs])
            lines.append(
                f"| {method} | {seed} | {average:.2f} | {(change < 0).sum()} of {change.size} | {change.min():+.1f} |"
            )
    return [*lines, "", f"By the protocol's rule: `{kept()}`."]


def liars() -> list[str]:
    """Return the table of priors with clients that lie."""
    part = Part("prior")
    lines = [
        "| prior | setting | average of the eight others | worst change against training alone |",
        "|---|---|---|---|",
    ]
    for setting in part.settings:
        seeds = part.seeds(setting)
        for method in [name for name in part.methods if name != ALONE]:
            pairs = zip(
                part.of(setting, method, seeds), part.of(setting, ALONE, seeds), strict=True
            )
            values = [
                (np.array(one["accuracy"])[2:], np.array(alone["accuracy"])[2:])
                for one, alone in pairs
            ]
            average, worst = (
                np.mean([one.mean() for one, _ in values]),
                min((one - alone).min() for one, alone in values),
            )
            lines.append(f"| {method} | {setting} | {100 * average:.1f} | {100 * worst:+.1f} |")
    return [
        *lines,
        "",
        f"Seeds {listed(part.seeds(part.settings[0]))}. By the protocol's rule: `{prior()}`.",
    ]


def prior() -> str:
    """`mean`, unless pooling is better when nobody lies and not worse when two do."""
    part = Part("prior")

    def others(method: str) -> float:
        return 100 * float(
            np.mean(
                [
                    one["accuracy"][2:]
                    for setting in part.settings
                    for one in part.of(setting, method, part.seeds(setting))
                ]
            )
        )

    gains = [
        others(f"pooled, {who}") - others(f"mean, {who}") for who in ("nobody lies", "two lie")
    ]
    return "pooled" if gains[0] > 0.2 and gains[1] >= -0.2 else "mean"


def ablations() -> list[str]:
    """Return the table of ablations."""
    part = Part("ablations")
    if not part.runs:
        return ["Not run yet."]
    lines = [
        "| Poise, plain, but | setting | seeds | average | worst change | below alone |",
        "|---|---|---|---|---|---|",
    ]
    for setting in part.settings:
        seeds = part.seeds(setting)
        for method in [name for name in part.methods if name != ALONE] if seeds else []:
            own, alone = part.of(setting, method, seeds), part.of(setting, ALONE, seeds)
            change = 100 * np.array(
                [np.subtract(a["accuracy"], b["accuracy"]) for a, b in zip(own, alone, strict=True)]
            )
            average = 100 * np.mean([np.mean(one["accuracy"]) for one in own])
            lines.append(
                f"| {'as it is' if method == 'plain' else method} | {setting} | {len(seeds)} | {average:.1f} | {change.min():+.1f} | "
                f"{(change < 0).sum()} of {change.size} |"
            )
    return lines


def numbers() -> list[str]:
    """Return the table of regression results."""
    part = Part("regression")
    lines = [
        "| setting | method | root mean squared error | worst client | change | worst change | above alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in part.settings:
        seeds = part.seeds(setting)
        alone = np.array([one["rmse"] for one in part.of(setting, ALONE, seeds)])
        for method in part.methods if seeds else []:
            own = np.array([one["rmse"] for one in part.of(setting, method, seeds)])
            cells = [
                setting,
                NAMES.get(method, method),
                f"{own.mean():.3f}",
                f"{own.max(1).mean():.3f}",
            ]
            change = own - alone
            cells += (
                [""] * 3
                if method == ALONE
                else [
                    f"{change.mean():+.3f}",
                    f"{change.max():+.3f}",
                    f"{(change > 0).sum()} of {change.size}",
                ]
            )
            lines.append(f"| {' | '.join(cells)} |")
    verdict = []
    for setting in part.settings:
        errors = {
            method: np.mean([one["rmse"] for one in part.of(setting, method, part.seeds(setting))])
            for method in part.methods
        }
        best = min(
            (name for name in errors if not name.startswith("poise")), key=lambda name: errors[name]
        )
        word = "lower" if errors[POISE] < errors[best] else "higher"
        verdict.append(
            f"- {setting}: the best of the others is {best} with {errors[best]:.3f}; Poise's average error is {word}, {errors[POISE]:.3f}."
        )
    return [
        *lines,
        "",
        *verdict,
        "",
        "Lower is better; nothing is tested. Seeds "
        + "; ".join(f"{name}: {listed(part.seeds(name))}" for name in part.settings)
        + ".",
    ]


def missing() -> str:
    """Return a sentence about the parts that have not been run."""
    done = Counter(key[:2] for key in known())
    needed = {
        ("report", "mlp"): "all settings with `mlp`",
        ("ablations", "mlp"): "ablations",
        ("report", "lenet"): "`lenet`",
    }
    return "; ".join(f"{name}: {done.get(key, 0)} runs" for key, name in needed.items())


def page() -> str:
    """Return the whole page."""
    values = ", ".join(
        f"{label} {name.partition('.')[2]} {value}"
        for label, grid in chosen().items()
        for name, value in grid.items()
    )
    seconds = sum(record.get("seconds", [0, 0])[1] for record in known().values())
    lines = [
        f"Made by `python studies/poise/table.py` from `studies/poise/results.jsonl`: {len(known())} runs, {seconds / 60:.0f} minutes of one core. "
        "The [protocol](../../studies/poise/PROTOCOL_FIRST_FORM.md) was committed before the first run. Average: accuracy in per cent over clients, ± standard "
        "deviation over seeds. Below alone: clients with a lower accuracy than Standalone of the same seed; significantly by McNemar's one-sided "
        "test at 5 % on the client's own test samples, uncorrected. Steps and bytes: times FedAvg's. In the last column Student's t interval over seeds "
        "and, from five seeds on, p of the paired t test after Holm's correction.",
        "",
        f"Run so far: {missing()}. Report: seeds {listed(Part('report').complete()) or 'none'} are complete in all settings.",
        "",
        "### What tuning seeds decided",
        "",
        f"Rivals (seeds 100 and 101): {values}.",
        "",
        *folded(),
        "",
        "### Two of ten clients lie",
        "",
        *liars(),
        "",
        *report(Part("report"), "Multilayer perceptron"),
        *report(Part("report", "lenet"), "LeNet"),
        "### Regression",
        "",
        *numbers(),
        "",
        "### Ablations",
        "",
        *ablations(),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page()}\n\n{END}{rest.partition(END)[2]}")
