"""What an audit found: one row per client, and the verdict. Made from summaries alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.auditing.columns import ColumnShift
from equipoise.auditing.divergence import (
    Distance,
    Moments,
    approximations,
    by_labels,
    distance,
    imbalance,
    label_distances,
    shrinkage,
)
from equipoise.auditing.verdict import Measured, Verdict, judge
from equipoise.storage.files import save_output
from equipoise.task import Task
from equipoise.validation.regular_files import check_regular


@dataclass(frozen=True)
class ClientRow:
    """One client against the whole."""

    client: str
    samples: int
    label_distance: float  # total variation of label shares, 0 to 1
    label_chance: float  # what a client of this size would show if labels were alike
    kl: float | None  # exact Gaussian KL to the whole; None: too few to tell
    kl_chance: float | None  # what a client of this size would show if features were alike
    # KL to what its label shares would give with everybody's classes
    kl_beyond_labels: float | None
    corrected: float | None  # Theorem 2.2, corrected, at the observed shift
    printed: float | None  # Theorem 2.2 as printed
    shrinkage: float  # share of the whole in its covariance
    flat: int  # directions in which it hardly varies
    # its mean along the first two directions, in deviations of the whole
    place: tuple[float, float]
    note: str = ""


@dataclass(frozen=True)
class Findings:
    """The result of an audit."""

    data: str
    clients: tuple[ClientRow, ...]
    verdict: Verdict
    classes: tuple[str, ...]
    counts: np.ndarray  # clients x classes
    dimensions: int
    features: int
    variance: float  # share of the features' variance in these dimensions
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[ColumnShift, ...] = ()  # of a table: those that differ most

    @property
    def text(self) -> str:
        """The verdict, and the columns that differ most."""
        if not self.columns:
            return self.verdict.text
        named = "; ".join(map(str, self.columns))
        return f"{self.verdict.text} Columns that differ most between clients: {named}."

    def plain(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "data": self.data,
            "dimensions": self.dimensions,
            "features": self.features,
            "variance": self.variance,
            "classes": list(self.classes),
            "clients": [
                asdict(row) | {"labels": self.counts[place].tolist()}
                for place, row in enumerate(self.clients)
            ],
            "verdict": asdict(self.verdict),
            "warnings": list(self.warnings),
            "facts": dict(self.facts),
            "columns": [asdict(column) for column in self.columns],
        }

    def save(self, file: Path) -> None:
        """Write the findings as JSON; `read` reads them."""
        save_output(file, json.dumps(self.plain(), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> Findings:
        """What `save` wrote."""
        check_regular(file)
        try:
            given: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            counts = np.array([row.pop("labels") for row in given["clients"]], np.int64)
            rows = tuple(
                ClientRow(**{**row, "place": tuple(row["place"])}) for row in given.pop("clients")
            )
            verdict: dict[str, Any] = {
                name: tuple(v) if isinstance(v, list) else v
                for name, v in given.pop("verdict").items()
            }
            known: dict[str, Any] = {
                "classes": tuple(given.pop("classes")),
                "warnings": tuple(given.pop("warnings")),
                # Audits of earlier versions name no columns.
                "columns": tuple(ColumnShift(**one) for one in given.pop("columns", ())),
            }
            return cls(clients=rows, verdict=Verdict(**verdict), counts=counts, **known, **given)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{file} is damaged or of another version ({error}); remove it, or run `equipoise audit` again"
            ) from None


def findings(
    state: Mapping[str, Any],
    task: Task,
    data: str = "",
    seed: int = 0,
    warnings: Sequence[str] = (),
) -> Findings:
    """What the summaries that the server holds say."""
    counts, numbers = (np.asarray(state[name], np.int64) for name in ("counts", "numbers"))
    sums, seconds = (np.asarray(state[name], np.float64) for name in ("sums", "seconds"))
    sizes, m = counts.sum(1), sums.shape[2]
    whole = Moments.of(numbers.sum(), sums.sum((0, 1)), seconds.sum((0, 1)))
    groups = _groups(numbers.sum(0), sums.sum(0), seconds.sum(0))
    seen, by_chance = label_distances(counts)
    rows, total, beyond = [], [], []
    for k, client in enumerate(state["clients"]):
        own = Moments.of(numbers[k].sum(), sums[k].sum(0), seconds[k].sum(0))
        full = distance(own, whole)
        rest = distance(own, by_labels(numbers[k], groups, whole)) if full.kl is not None else full
        corrected, printed = (
            approximations(own, whole)
            if full.kl is not None and not full.shrinkage
            else (None, None)
        )
        place = (
            (own.mean - whole.mean) / np.sqrt(np.diag(whole.cov))
            if m and own.number
            else np.zeros(2)
        )
        rows.append(
            ClientRow(
                str(client), int(sizes[k]), float(seen[k]), float(by_chance[k]), full.kl, full.chance if full.kl is not None else None, rest.kl,
                corrected, printed, full.shrinkage, full.flat, (float(place[0]) if m else 0.0, float(place[1]) if m > 1 else 0.0),
                _note(full, own.number, m),
            )
        )  # fmt: skip
        total.append(_excess(full))
        beyond.append(_excess(rest))
    told = sizes > 0  # a client without samples says nothing of labels
    measured = Measured(
        sizes[told],
        (seen - by_chance)[told],
        np.array(total)[told],
        np.array(beyond)[told],
        imbalance(sizes),
        m,
    )
    names = tuple(task.class_names) or (
        tuple(map(str, range(counts.shape[1])))
        if task.classifies
        else tuple(f"{10 * b}-{10 * b + 10} %" for b in range(counts.shape[1]))
    )
    variance = float(np.trace(whole.cov) / state["total"]) if state["total"] > 0 else 1.0
    return Findings(
        data, tuple(rows), judge(measured, seed), names, counts, m, int(state["width"]), min(1.0, variance), (*warnings, *_warnings(rows, m))
    )  # fmt: skip


def _groups(numbers: np.ndarray, sums: np.ndarray, seconds: np.ndarray) -> list[Moments]:
    """Every class over all clients; one with few samples is drawn towards the mean covariance within classes."""
    found = [Moments.of(n, s, ss) for n, s, ss in zip(numbers, sums, seconds, strict=True)]
    m = sums.shape[1]
    within = sum((g.number * g.cov for g in found), np.zeros((m, m))) / max(numbers.sum(), 1)
    kept = []
    for group in found:
        share = shrinkage(group.number, m) if m else 0.0
        kept.append(Moments(group.number, group.mean, (1 - share) * group.cov + share * within))
    return kept


def _excess(found: Distance) -> float:
    return math.nan if found.excess is None else found.excess


def _note(found: Distance, n: float, m: int) -> str:
    if found.kl is None:
        return "too few to tell"
    said = []
    if found.shrinkage:
        said.append(
            f"{int(n)} samples in {m} dimensions: covariance drawn {100 * found.shrinkage:.0f} % to the whole's"
        )
    if found.flat:
        said.append(f"{found.flat} of {m} directions hardly vary here")
    return "; ".join(said)


def _warnings(rows: Sequence[ClientRow], m: int) -> list[str]:
    found = []
    shrunk, unknown = (
        [row.client for row in rows if row.shrinkage],
        [row.client for row in rows if row.kl is None],
    )
    if shrunk:
        found.append(
            f"{len(shrunk)} of {len(rows)} clients have fewer than {2 * m} samples in {m} dimensions, so their covariances are drawn towards the whole's: {_some(shrunk)}"
        )
    if unknown and m:
        found.append(
            f"{len(unknown)} of {len(rows)} clients have too few samples to tell how their features differ: {_some(unknown)}"
        )
    if not m:
        found.append("no feature varies, so features cannot be compared")
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
