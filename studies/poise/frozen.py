"""The test of the second form of Poise, as PROTOCOL.md fixes it.

    python studies/poise/frozen.py run --budget 480    # minutes of processor time; continues
    python studies/poise/frozen.py run --share 0 2     # half of it, for two processes at a time
    python studies/poise/frozen.py page                # writes the tables into docs/methods/poise.md
    python studies/poise/frozen.py plan                # the number of runs

Runs that frozen.jsonl holds are not repeated. The data sets must be available (EQUIPOISE_DATA).
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy import stats

import settings
import variants
from study import ALONE, OTHER, Shared, Study, known, with_validation

Cell = TypeVar("Cell")

RESULTS = Path(__file__).parent / "frozen.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "methods" / "poise.md"
BEGIN, END = "<!-- made by studies/poise/frozen.py -->", "<!-- end -->"
SEEDS = tuple(range(20, 30))
TUNING_SEEDS = (100, 101)
TUNING_SETTINGS = ("dirichlet-0.5", "ics-5")
NETWORKS = ("mlp", "lenet")
TUNING = "frozen tuning"
REGRESSION = "frozen regression"
REGRESSION_SETTINGS = ("diabetes", "retina")
LEVEL = 0.05
POISE = "poise"
# Rivals that tune for 0.9 R + 13.5 epochs after R rounds take about as many steps as Poise, except
# where clients are small: there Poise tunes for longer, and so do further rivals.
RIVAL, SAME_BASE = "ftH-equal + validation", "FedAvgM, ftH-equal + validation"
LONGER = {"breast": 62, "retina-classes": 42}  # epochs of tuning
LONGER_RIVALS = ("ftH-longer + validation", "FedAvgM, ftH-longer + validation")
USUAL_ROUNDS = 15
CONTROL = "standalone, other numbers"
VALIDATION = " + validation"
MEASURED = {"evaluation.metrics": ["accuracy", "loss"]}


@dataclass(frozen=True)
class Group:
    """Settings whose averages are taken together.

    Attributes:
        name: The name in tables.
        model: The network.
        rounds: The number of rounds; None for that of each setting.
        settings: The settings.
        seeds: The seeds.
        published: The published rivals; None for all.
        own: The other methods; None for all.
    """

    name: str
    model: str
    rounds: int | None
    settings: tuple[str, ...]
    seeds: tuple[int, ...]
    published: tuple[str, ...] | None = None
    own: tuple[str, ...] | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The labels of all methods."""
        own = OWN if self.own is None else self.own
        return (*own, *(PUBLISHED if self.published is None else self.published))

    @property
    def left_out(self) -> tuple[str, ...]:
        """The labels of published rivals that the group leaves out."""
        published = PUBLISHED if self.published is None else self.published
        return tuple(label for label in PUBLISHED if label not in published)

    @property
    def part(self) -> str:
        """The name of the part of the study under which its runs are stored."""
        return f"frozen {self.name}"


GROUPS = (
    Group(
        "mlp",
        "mlp",
        None,
        ("pow", "dirichlet-0.1", "dirichlet-0.5", "ics-5", "part", "digits", "hospitals"),
        SEEDS[:5],
    ),
    Group("other data", "mlp", None, ("breast", "retina-classes", "acs"), SEEDS),
    Group("office", "lenet", None, ("office",), SEEDS[:5]),
    Group("lenet", "lenet", None, ("dirichlet-0.5", "ics-5", "digits"), SEEDS[:5]),
    Group("mlp, 60 rounds", "mlp", 60, ("dirichlet-0.5", "ics-5"), SEEDS[:5]),
    Group(
        "lenet, 60 rounds",
        "lenet",
        60,
        ("dirichlet-0.5", "cifar"),
        SEEDS[:5],
        published=("ditto", "fedas"),
    ),
)


def _finetune(epochs: int, average: str = "none") -> dict[str, Any]:
    return {"name": "finetune", "tune_epochs": epochs, "tune_average": average}


OWN: dict[str, dict[str, Any]] = {
    ALONE: {"name": "standalone"},
    CONTROL: {"name": "standalone"},
    "fedavg": {"name": "fedavg"},
    POISE: {"name": "poise"},
    "poise, first form": {"name": "poise", "variant": "one"},
    "ft10": _finetune(10),
    "ft27": _finetune(27),
    "ftH27": _finetune(27, "second_half"),
    f"standalone{VALIDATION}": {"name": "standalone"},
    f"fedavg{VALIDATION}": {"name": "fedavg"},
    f"ft10{VALIDATION}": _finetune(10),
    f"ft27{VALIDATION}": _finetune(27),
    f"ftH27{VALIDATION}": _finetune(27, "second_half"),
    RIVAL: _finetune(27, "second_half"),  # with 15 rounds the same
    SAME_BASE: {
        "name": "fedavgm",
        "beta": 0.5,
        "finish": _finetune(27, "second_half"),
    },
}
REGRESSION_METHODS = (
    ALONE,
    CONTROL,
    "fedavg",
    POISE,
    "poise, first form",
    "ftH27",
    f"ftH27{VALIDATION}",
)
# Published rivals with three values each; the first is the default.
PUBLISHED: dict[str, tuple[dict[str, Any], str, tuple[Any, ...]]] = {
    "ditto": ({"name": "ditto"}, "method.pull", (0.1, 0.01, 1.0)),
    "fedas": ({"name": "fedas"}, "method.align_lr", (0.01, 0.001, 0.1)),
    "fedakd": ({"name": "fedakd"}, "method.alpha", (1.0, 0.1, 0.3)),
    "fedekd": ({"name": "fedekd"}, "method.lambda_kd", (1.0, 0.1, 0.3)),
    "kdia": ({"name": "kdia", "preset": "quick"}, "method.lambda_kd", (0.5, 0.1, 2.0)),
    "feddc": ({"name": "feddc"}, "training.lr", (0.1, 0.05, 0.02)),
    "corefed": ({"name": "corefed"}, "method.lambda_con", (0.1, 0.01, 1.0)),
    "fedequilibria": ({"name": "fedequilibria"}, "method.t", (0.7, 0.3, 0.9)),
}
SGD = {"training.optimiser": "sgd"}  # FedDC needs it.
# One run of `variants.SeveralTunings` gives the results of four methods, bit for bit.
SHARED = {
    "fedavg": ("global", 0.0),
    "ft10": ("ft10", 10 / 27),
    "ft27": ("ft27", 1.0),
    "ftH27": ("personal", 1.0),
}


def run(budget: float, share: int = 0, shares: int = 1) -> None:
    """Run what is missing, until the budget in minutes of processor time is used.

    Args:
        budget: Minutes of processor time.
        share: Which share of the settings and seeds this process runs, from 0 on.
        shares: The number of processes that run at the same time.
    """
    study = Study(RESULTS)
    limit = time.process_time() + 60 * budget
    parts = (_tuning, _test, _numbers, _longer, _further)
    for work in (part(study, share, shares) for part in parts):
        for _ in work:
            if time.process_time() > limit:
                print("the budget is used; the same command continues")
                return
        if not is_tuned():
            print("another process has not finished tuning; the same command continues")
            return


def _tuning(study: Study, share: int, shares: int) -> Iterator[None]:
    """Run the values of the published rivals, of each network, on tuning seeds."""
    for model, seed, setting in _share_of(_tuning_cells(), share, shares):
        for label, (_, name, values) in PUBLISHED.items():
            for value in values:
                method, changes = _published(label, value)
                key = f"{label} {name}={value}"
                study.one(
                    TUNING, setting, key, method, seed, model=model, compared=False, **changes
                )
                yield


def _tuning_cells() -> list[tuple[str, int, str]]:
    return list(itertools.product(NETWORKS, TUNING_SEEDS, TUNING_SETTINGS))


def is_tuned() -> bool:
    """Return True if all runs of the tuning are stored."""
    done = known(RESULTS)
    for model, seed, setting in _tuning_cells():
        for label, (_, name, values) in PUBLISHED.items():
            for value in values:
                if (TUNING, model, setting, f"{label} {name}={value}", seed) not in done:
                    return False
    return True


def _test(study: Study, share: int, shares: int) -> Iterator[None]:
    """Run the test seed by seed, so that seeds are complete when the budget ends."""
    cells = [
        (seed, group, setting)
        for seed in SEEDS
        for group in GROUPS
        if seed in group.seeds
        for setting in group.settings
    ]
    for seed, group, setting in _share_of(cells, share, shares):
        for label in group.methods:
            _one(study, group, setting, label, seed)
            yield


def _numbers(study: Study, share: int, shares: int) -> Iterator[None]:
    """Run the regressions, which are described and not tested."""
    cells = [(seed, setting) for seed in SEEDS for setting in REGRESSION_SETTINGS]
    for seed, setting in _share_of(cells, share, shares):
        for label in REGRESSION_METHODS:
            study.one(
                REGRESSION,
                setting,
                label,
                OWN[label],
                seed,
                change=with_validation if label.endswith(VALIDATION) else None,
                other=OTHER if label == CONTROL else 0,
                compared=False,
            )
            yield


def _longer(study: Study, share: int, shares: int) -> Iterator[None]:
    """Run fine-tuning with as many steps as Poise takes where clients are small."""
    group = next(group for group in GROUPS if set(LONGER) <= set(group.settings))
    cells = [(seed, setting) for seed in group.seeds for setting in LONGER]
    for seed, setting in _share_of(cells, share, shares):
        for label, base in zip(LONGER_RIVALS, (RIVAL, SAME_BASE), strict=True):
            method = tuned_for(OWN[base], LONGER[setting])
            study.one(
                group.part,
                setting,
                label,
                method,
                seed,
                model=group.model,
                change=with_validation,
                common=dict(MEASURED),
            )
            yield


def _further(study: Study, share: int, shares: int) -> Iterator[None]:
    """Run the published rivals that the protocol leaves out of a group."""
    cells = [
        (seed, group, setting)
        for group in GROUPS
        for seed in group.seeds
        for setting in group.settings
    ]
    for seed, group, setting in _share_of(cells, share, shares):
        for label in group.left_out:
            _one(study, group, setting, label, seed)
            yield


def _share_of(cells: Sequence[Cell], share: int, shares: int) -> Sequence[Cell]:
    """Return the cells of one process; all methods of a cell are compared within it."""
    return cells[share::shares]


def _one(study: Study, group: Group, setting: str, label: str, seed: int) -> None:
    if label in OWN:
        method, changes = OWN[label], {}
    else:
        method, changes = _published(label, chosen(label, group.model))
    common: dict[str, Any] = dict(MEASURED)
    if group.rounds is not None:
        common["rounds"] = group.rounds
    rounds = settings.config(setting, method, seed, **common)["rounds"]
    if label in (RIVAL, SAME_BASE):
        method = tuned_for(method, rival_epochs(rounds))
    shared = _shared(label, rounds)
    if shared is not None:
        method = variants.SeveralTunings()
    study.one(
        group.part,
        setting,
        label,
        method,
        seed,
        model=group.model,
        change=with_validation if label.endswith(VALIDATION) else None,
        other=OTHER if label == CONTROL else 0,
        common=common,
        shared=shared,
        **changes,
    )


def _shared(label: str, rounds: int) -> Shared | None:
    """Return the methods that share a run with this one; None if it has a run of its own."""
    suffix = VALIDATION if label.endswith(VALIDATION) else ""
    names = {f"{name}{suffix}": part for name, part in SHARED.items()}
    if suffix and rounds == USUAL_ROUNDS:
        names[RIVAL] = SHARED["ftH27"]
    return names if label in names else None


def rival_epochs(rounds: int) -> int:
    """Return the epochs of tuning with which a rival takes about as many steps as Poise."""
    return round(0.9 * rounds + 13.5)


def tuned_for(method: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Return fine-tuning, or a method that it finishes, with so many epochs."""
    if "finish" in method:
        return {**method, "finish": tuned_for(method["finish"], epochs)}
    return {**method, "tune_epochs": epochs}


def _published(label: str, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a rival with a value of its parameter, and the changes of training settings."""
    method, name, _ = PUBLISHED[label]
    changes = dict(SGD) if label == "feddc" else {}
    if name.startswith("method."):
        method = {**method, name.removeprefix("method."): value}
    else:
        changes[name] = value
    return method, changes


def chosen(label: str, model: str) -> Any:
    """Return the value with the highest validation accuracy; on a tie, the first."""
    done = known(RESULTS)
    _, name, values = PUBLISHED[label]
    scores = []
    for value in values:
        runs = [
            done.get((TUNING, model, setting, f"{label} {name}={value}", seed), {})
            for setting in TUNING_SETTINGS
            for seed in TUNING_SEEDS
        ]
        diverged = any("validation" not in record for record in runs)
        accuracies = [] if diverged else [np.mean(record["validation"]) for record in runs]
        scores.append(-1.0 if diverged else float(np.mean(accuracies)))
    return values[int(np.argmax(scores))]


@dataclass(frozen=True)
class Results:
    """The runs of a group whose seeds are complete.

    Attributes:
        group: The group.
        runs: (setting, method, seed) -> record.
        seeds: The complete seeds.
    """

    group: Group
    runs: dict[tuple[str, str, int], dict[str, Any]]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, group: Group, done: dict[tuple[Any, ...], dict[str, Any]]) -> Results:
        """Return the runs of a group among all stored ones."""
        runs = {key[2:]: one for key, one in done.items() if key[0] == group.part}
        seeds = []
        for seed in group.seeds:
            cells = [(s, label, seed) for s in group.settings for label in group.methods]
            if all(cell in runs for cell in cells):
                seeds.append(seed)
        return cls(group, runs, tuple(seeds))

    def of_method(self, label: str) -> list[dict[str, Any]] | None:
        """Return the runs of a method by seed and setting; None if one diverged."""
        records = [
            self.runs[setting, label, seed]
            for seed in self.seeds
            for setting in self.group.settings
        ]
        return None if any("diverged" in one for one in records) else records

    def by_seed(self, label: str, name: str = "accuracy") -> np.ndarray:
        """Return the mean over clients and settings for each seed; NaN if a run diverged."""
        records = self.of_method(label)
        if records is None:
            return np.full(len(self.seeds), np.nan)
        means = np.array([np.mean(one[name]) for one in records])
        return means.reshape(len(self.seeds), -1).mean(1)

    def harmed(self, label: str) -> tuple[int, int, int]:
        """Return clients below training alone, how many significantly, and how many there are.

        All are 0 if a run of the method, or of training alone, diverged.
        """
        below = significant = clients = 0
        records, references = self.of_method(label), self.of_method(ALONE)
        if records is None or references is None:
            return 0, 0, 0
        for one, alone in zip(records, references, strict=True):
            change = np.subtract(one["accuracy"], alone["accuracy"])
            below += int((change < 0).sum())
            clients += len(change)
            for lost, won in zip(one["lost"], one["won"], strict=True):
                significant += mcnemar(lost, won) < LEVEL
        return below, significant, clients


def mcnemar(lost: int, won: int) -> float:
    """Return p of the exact one-sided test that as many samples were won as lost."""
    return float(stats.binom.sf(lost - 1, lost + won, 0.5)) if lost else 1.0


def difference(values: np.ndarray, others: np.ndarray) -> tuple[float, float, float, float]:
    """Return mean, 95 % interval (Student) and p of paired differences, in points.

    All but the mean are NaN with fewer than two seeds, and all where a run diverged.
    """
    gap = 100 * (values - others)
    if len(gap) < 2 or not np.isfinite(gap).all():
        return float(gap.mean()), float("nan"), float("nan"), float("nan")
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    half = stats.t.ppf(0.975, len(gap) - 1) * error
    test = stats.ttest_rel(values, others)
    return float(gap.mean()), float(gap.mean() - half), float(gap.mean() + half), float(test.pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Return p values after Holm's correction; those that are NaN are no tests.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = [position for position in np.argsort(values) if np.isfinite(values[position])]
    corrected = [float("nan")] * len(values)
    highest = 0.0
    for rank, position in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * values[position]))
        corrected[position] = round(highest, 10)
    return corrected


def tables() -> str:
    """Return the tables of all groups, and the primary comparison."""
    lines = []
    done = known(RESULTS)
    groups = [Results.of(group, done) for group in GROUPS]
    for results in groups:
        lines += [*_table(results), ""]
    return "\n".join([*lines, *_primary([one for one in groups if len(one.seeds) >= 2])])


def _table(results: Results) -> list[str]:
    lines = [
        f"**{results.group.name}**, seeds {', '.join(map(str, results.seeds)) or 'none yet'}",
        "",
        "| method | average | worst client | below alone | significantly | NLL | steps | bytes |"
        " Poise minus it | p |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    if not results.seeds:
        return lines
    labels = [name for name in results.group.methods if results.of_method(name) is not None]
    rivals = [name for name in labels if name != POISE]
    gaps = {name: difference(results.by_seed(POISE), results.by_seed(name)) for name in rivals}
    corrected = dict(zip(rivals, holm([gap[3] for gap in gaps.values()]), strict=True))
    for name in sorted(labels, key=lambda name: -results.by_seed(name).mean()):
        cells = _cells(results, name)
        if name in gaps:
            cells += [_gap(gaps[name]), _p(corrected[name])]
        else:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    diverged = [name for name in results.group.methods if name not in labels]
    if diverged:
        lines += ["", f"Without a row, because a run diverged: {', '.join(diverged)}."]
    return lines


def _cells(results: Results, name: str) -> list[str]:
    records = results.of_method(name) or []
    worst = 100 * np.mean([min(one["accuracy"]) for one in records])
    steps = _ratio(results, name, "steps")
    sent = _ratio(results, name, "bytes")
    harm = ["", ""]
    if name != ALONE:
        below, significant, clients = results.harmed(name)
        harm = [f"{below} of {clients}", str(significant)]
    return [
        f"**{name}**" if name == POISE else name,
        f"{100 * results.by_seed(name).mean():.2f}",
        f"{worst:.1f}",
        *harm,
        f"{results.by_seed(name, 'nll').mean():.3f}",
        f"{steps:.2f}",
        f"{sent:.2f}",
    ]


def _ratio(results: Results, name: str, cost: str, to: str = "fedavg") -> float:
    """Return a cost of a method as a multiple of another's; NaN if a run of either diverged."""
    own, other = results.of_method(name), results.of_method(to)
    if own is None or other is None:
        return float("nan")
    pairs = zip(own, other, strict=True)
    return float(np.mean([np.sum(one[cost]) / np.sum(two[cost]) for one, two in pairs]))


def _gap(gap: tuple[float, float, float, float]) -> str:
    mean, low, high, _ = gap
    if not np.isfinite(mean):
        return "a run diverged"
    return f"{mean:+.2f}" + (f" [{low:+.2f}, {high:+.2f}]" if np.isfinite(low) else "")


def _p(value: float) -> str:
    if not np.isfinite(value):
        return "–"
    return f"{value:.3f}" if value >= 0.0005 else "< 0.001"


def _primary(groups: Sequence[Results]) -> list[str]:
    """Return the comparisons that the protocol fixes: the averages, and harmed clients."""
    lines = [
        f"| group | Poise minus {RIVAL} | p | Poise minus {SAME_BASE} | p |"
        f" significantly harmed: Poise, {CONTROL} | p |",
        "|---|---|---|---|---|---|---|",
    ]
    columns = [_average_cells(groups, RIVAL), _average_cells(groups, SAME_BASE), _harm(groups)]
    for group, *cells in zip(groups, *columns, strict=True):
        lines.append(f"| {group.group.name} | {' | '.join(cells)} |")
    return lines


def _average_cells(groups: Sequence[Results], rival: str) -> list[str]:
    """Return the difference of Poise and a rival with its corrected p, group by group."""
    gaps = [difference(one.by_seed(POISE), one.by_seed(rival)) for one in groups]
    corrected = holm([gap[3] for gap in gaps])
    return [f"{_gap(gap)} | {_p(p)}" for gap, p in zip(gaps, corrected, strict=True)]


def _harm(groups: Sequence[Results]) -> list[str]:
    """Return the clients that Poise and the control harm, with the corrected p."""
    tests = []
    for one in groups:
        (_, own, clients), (_, control, _) = one.harmed(POISE), one.harmed(CONTROL)
        if not clients:
            tests.append((own, control, clients, float("nan")))
            continue
        table = [[own, clients - own], [control, clients - control]]
        tests.append((own, control, clients, float(stats.fisher_exact(table, "less").pvalue)))
    corrected = holm([test[3] for test in tests])
    return [
        f"{own}, {control} of {clients} | {_p(p)}"
        for (own, control, clients, _), p in zip(tests, corrected, strict=True)
    ]


def plan() -> str:
    """Return the number of runs of each part."""
    values = sum(len(values) for _, _, values in PUBLISHED.values())
    tuning = 2 * len(TUNING_SEEDS) * len(TUNING_SETTINGS) * values
    lines = [f"tuning: {tuning} runs"]
    for group in GROUPS:
        runs = len(group.seeds) * len(group.settings) * len(group.methods)
        lines.append(f"{group.name}: {runs} runs")
    return "\n".join(lines)


def page() -> str:
    """Return what the page of Poise shows of the test."""
    lines = [
        f"Made by `python studies/poise/frozen.py page` from `studies/poise/frozen.jsonl`: "
        f"{len(known(RESULTS))} results, {_hours():.1f} hours of one core.",
        "",
        tables(),
        "",
        "### Rivals with as many steps where clients are small",
        "",
        *_longer_table(),
        "",
        "### Published rivals that the protocol leaves out",
        "",
        *_further_table(),
        "",
        "### Regression",
        "",
        *_regression(),
        "",
        "### Values that tuning chose",
        "",
        *_choices(),
    ]
    return "\n".join(lines)


def _hours() -> float:
    """Return the processor time of all runs; a run whose models serve several methods counts once."""
    seconds: dict[tuple[Any, ...], float] = {}
    for key, record in known(RESULTS).items():
        part, model, setting, label, seed = key
        is_shared = label.removesuffix(VALIDATION) in SHARED or label == RIVAL
        name = f"shared{VALIDATION * label.endswith(VALIDATION)}" if is_shared else label
        wall, processor = record.get("seconds", (0.0, 0.0))
        seconds[part, model, setting, name, seed, wall, processor] = processor
    return sum(seconds.values()) / 3600


def _longer_table() -> list[str]:
    """Return the differences to rivals that tune for as long as Poise where clients are small."""
    group = next(group for group in GROUPS if set(LONGER) <= set(group.settings))
    lines = [
        "| setting | rival | seeds | Poise minus it | p, uncorrected | NLL: Poise, rival |"
        " Poise's steps over its |",
        "|---|---|---|---|---|---|---|",
    ]
    done = known(RESULTS)
    for setting in LONGER:
        for label in LONGER_RIVALS:
            one = replace(group, settings=(setting,), own=(POISE, label), published=())
            results = Results.of(one, done)
            if not results.seeds:
                continue
            gap = difference(results.by_seed(POISE), results.by_seed(label))
            nll = [f"{results.by_seed(name, 'nll').mean():.3f}" for name in (POISE, label)]
            cells = [setting, label, str(len(results.seeds)), _gap(gap), _p(gap[3])]
            cells += [", ".join(nll), f"{_ratio(results, POISE, 'steps', to=label):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _further_table() -> list[str]:
    """Return the results of published rivals that the protocol leaves out of a group."""
    lines = [
        "| group | rival | seeds | average | below alone | significantly | NLL | steps |"
        " Poise minus it | p, uncorrected |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    done = known(RESULTS)
    for group in GROUPS:
        for label in group.left_out:
            own = (ALONE, "fedavg", POISE, label)
            results = Results.of(replace(group, own=own, published=()), done)
            if not results.seeds:
                continue
            cells = [group.name, label, str(len(results.seeds)), *_further_cells(results, label)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _further_cells(results: Results, label: str) -> list[str]:
    if results.of_method(label) is None:
        return ["a run diverged", "", "", "", "", "", ""]
    _, average, _, below, significant, nll, steps, _ = _cells(results, label)
    gap = difference(results.by_seed(POISE), results.by_seed(label))
    return [average, below, significant, nll, steps, _gap(gap), _p(gap[3])]


def _choices() -> list[str]:
    """Return the table of the chosen values of published rivals."""
    lines = ["| rival | parameter | MLP | LeNet |", "|---|---|---|---|"]
    for label, (_, name, _) in PUBLISHED.items():
        values = [str(chosen(label, model)) for model in NETWORKS]
        lines.append(f"| {label} | `{name}` | {' | '.join(values)} |")
    return lines


def _regression() -> list[str]:
    """Return the table of the root mean squared errors."""
    done = known(RESULTS)
    lines = [
        "| setting | method | seeds | error | change | worst change | clients above alone | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting in REGRESSION_SETTINGS:
        seeds = [
            seed
            for seed in SEEDS
            if all((REGRESSION, "mlp", setting, name, seed) in done for name in REGRESSION_METHODS)
        ]
        for name in REGRESSION_METHODS if seeds else ():
            own, alone, plain = (
                [done[REGRESSION, "mlp", setting, label, seed] for seed in seeds]
                for label in (name, ALONE, "fedavg")
            )
            errors = np.concatenate([one["rmse"] for one in own])
            change = errors - np.concatenate([one["rmse"] for one in alone])
            steps = np.mean([a["steps"] / b["steps"] for a, b in zip(own, plain, strict=True)])
            lines.append(
                f"| {setting} | {f'**{name}**' if name == POISE else name} | {len(seeds)} | "
                f"{errors.mean():.3f} | {change.mean():+.3f} | {change.max():+.3f} | "
                f"{(change > 0).sum()} of {len(change)} | {steps:.2f} |"
            )
    return lines


def main() -> None:
    """Run the test, or show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("page", help="write the tables into the page of Poise")
    commands.add_parser("plan", help="print the number of runs")
    running = commands.add_parser("run", help="run what is missing")
    running.add_argument(
        "--budget", type=float, default=480.0, help="minutes of processor time at most"
    )
    running.add_argument(
        "--share",
        type=int,
        nargs=2,
        default=(0, 1),
        metavar=("K", "N"),
        help="run share K, from 0 on, of N that run at the same time",
    )
    arguments = parser.parse_args()
    if arguments.command == "plan":
        print(plan())
    elif arguments.command == "page":
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{page()}\n\n{END}{rest.partition(END)[2]}")
    else:
        torch.set_num_threads(1)
        run(arguments.budget, *arguments.share)


if __name__ == "__main__":
    main()
