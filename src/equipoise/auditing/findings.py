"""Findings of an audit: one row per client, and a verdict, from summaries alone."""

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
from equipoise.data.message_text import some
from equipoise.storage.files import save_output
from equipoise.task import Task
from equipoise.validation.regular_files import check_regular


@dataclass(frozen=True)
class ClientRow:
    """One client compared with all data.

    Attributes:
        client: The client.
        samples: The number of its training samples.
        label_distance: The total variation of its label shares, 0 to 1.
        label_chance: The expected distance of a client of this size with equal labels.
        kl: The exact Gaussian KL to all data; None if there are too few samples.
        kl_chance: The expected KL of a client of this size with equal features.
        kl_beyond_labels: The KL to a client with its label shares and the classes of all clients.
        corrected: Theorem 2.2, corrected, at the observed shift.
        printed: Theorem 2.2 as printed.
        shrinkage: The share of all data in its covariance.
        flat: The number of directions in which it hardly varies.
        place: Its mean along the first two directions, in deviations of all data.
        note: Remarks on these numbers.
    """

    client: str
    samples: int
    label_distance: float
    label_chance: float
    kl: float | None
    kl_chance: float | None
    kl_beyond_labels: float | None
    corrected: float | None
    printed: float | None
    shrinkage: float
    flat: int
    place: tuple[float, float]
    note: str = ""


@dataclass(frozen=True)
class Findings:
    """The result of an audit.

    Attributes:
        data: The data set.
        clients: One row per client.
        verdict: The verdict.
        classes: The names of the classes, or of the bins of a number to predict.
        counts: Samples per client and class.
        dimensions: The number of directions in which features are compared.
        features: The number of features.
        variance: The share of the features' variance in these directions.
        warnings: Sentences about clients with few samples and about the data.
        facts: Facts about the data, as a run records them.
        columns: The columns of a table that differ most.
    """

    data: str
    clients: tuple[ClientRow, ...]
    verdict: Verdict
    classes: tuple[str, ...]
    counts: np.ndarray
    dimensions: int
    features: int
    variance: float
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[ColumnShift, ...] = ()

    @property
    def text(self) -> str:
        """The verdict, and the columns that differ most."""
        if not self.columns:
            return self.verdict.text
        named = "; ".join(map(str, self.columns))
        return f"{self.verdict.text} Columns that differ most between clients: {named}."

    def plain(self) -> dict[str, Any]:
        """Return the findings as plain data, for JSON."""
        clients = []
        for index, row in enumerate(self.clients):
            clients.append({**asdict(row), "labels": self.counts[index].tolist()})
        return {
            "data": self.data,
            "dimensions": self.dimensions,
            "features": self.features,
            "variance": self.variance,
            "classes": list(self.classes),
            "clients": clients,
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
        """Read the findings that `save` wrote.

        Raises:
            ValueError: If the file is damaged or of another version.
        """
        check_regular(file)
        try:
            return cls._from_plain(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{file} is damaged or of another version ({error}); "
                "remove it, or run `equipoise audit` again"
            ) from None

    @classmethod
    def _from_plain(cls, values: dict[str, Any]) -> Findings:
        """Return the findings of plain data, which are changed."""
        counts = []
        rows = []
        for row in values.pop("clients"):
            counts.append(row.pop("labels"))
            rows.append(ClientRow(**{**row, "place": tuple(row["place"])}))
        verdict = values.pop("verdict")
        for name, value in verdict.items():
            if isinstance(value, list):
                verdict[name] = tuple(value)
        # Audits of earlier versions name no columns.
        columns = [ColumnShift(**column) for column in values.pop("columns", ())]
        return cls(
            clients=tuple(rows),
            verdict=Verdict(**verdict),
            counts=np.array(counts, np.int64),
            classes=tuple(values.pop("classes")),
            warnings=tuple(values.pop("warnings")),
            columns=tuple(columns),
            **values,
        )


def findings(
    state: Mapping[str, Any],
    task: Task,
    data: str = "",
    seed: int = 0,
    warnings: Sequence[str] = (),
) -> Findings:
    """Return the findings that follow from the summaries of all clients.

    Args:
        state: The state of the server after an audit.
        task: The task.
        data: The name of the data set.
        seed: The seed of the verdict's resampling.
        warnings: Further warnings.
    """
    summaries = _Summaries.of(state)
    whole = summaries.whole
    groups = class_moments(
        summaries.numbers.sum(0), summaries.sums.sum(0), summaries.seconds.sum(0)
    )
    label_distance, label_chance = label_distances(summaries.counts)
    rows = []
    total = []
    beyond_labels = []
    for k, client in enumerate(state["clients"]):
        moments = summaries.of_client(k)
        full = distance(moments, whole)
        beyond = full
        if full.kl is not None:
            beyond = distance(moments, by_labels(summaries.numbers[k], groups, whole))
        total.append(math.nan if full.excess is None else full.excess)
        beyond_labels.append(math.nan if beyond.excess is None else beyond.excess)
        corrected = printed = None
        if full.kl is not None and not full.shrinkage:
            corrected, printed = approximations(moments, whole)
        rows.append(
            ClientRow(
                client=str(client),
                samples=int(summaries.sizes[k]),
                label_distance=float(label_distance[k]),
                label_chance=float(label_chance[k]),
                kl=full.kl,
                kl_chance=full.chance if full.kl is not None else None,
                kl_beyond_labels=beyond.kl,
                corrected=corrected,
                printed=printed,
                shrinkage=full.shrinkage,
                flat=full.flat,
                place=_position(moments, whole),
                note=note_on(full, moments.number, summaries.dimensions),
            )
        )
    has_samples = summaries.sizes > 0  # other clients have no labels to compare
    measured = Measured(
        sizes=summaries.sizes[has_samples],
        labels=(label_distance - label_chance)[has_samples],
        features=np.array(total)[has_samples],
        beyond=np.array(beyond_labels)[has_samples],
        imbalance=imbalance(summaries.sizes),
        dimensions=summaries.dimensions,
    )
    variance = float(np.trace(whole.cov) / state["total"]) if state["total"] > 0 else 1.0
    return Findings(
        data=data,
        clients=tuple(rows),
        verdict=judge(measured, seed),
        classes=_class_names(task, summaries.counts.shape[1]),
        counts=summaries.counts,
        dimensions=summaries.dimensions,
        features=int(state["width"]),
        variance=min(1.0, variance),
        warnings=(*warnings, *_warnings(rows, summaries.dimensions)),
    )


@dataclass(frozen=True)
class _Summaries:
    """The summaries of all clients, as arrays (clients x groups of samples x ...).

    Attributes:
        counts: Samples per client and class.
        numbers: Samples per client and group.
        sums: Sums of features.
        seconds: Sums of outer products of features.
    """

    counts: np.ndarray
    numbers: np.ndarray
    sums: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> _Summaries:
        return cls(
            np.asarray(state["counts"], np.int64),
            np.asarray(state["numbers"], np.int64),
            np.asarray(state["sums"], np.float64),
            np.asarray(state["seconds"], np.float64),
        )

    @property
    def sizes(self) -> np.ndarray:
        return np.asarray(self.counts.sum(1))

    @property
    def dimensions(self) -> int:
        return int(self.sums.shape[2])

    @property
    def whole(self) -> Moments:
        """The moments of all clients' samples."""
        return Moments.of(self.numbers.sum(), self.sums.sum((0, 1)), self.seconds.sum((0, 1)))

    def of_client(self, k: int) -> Moments:
        return Moments.of(self.numbers[k].sum(), self.sums[k].sum(0), self.seconds[k].sum(0))


def _position(moments: Moments, whole: Moments) -> tuple[float, float]:
    """Return a client's mean along the first two directions, in deviations of all data."""
    if not len(whole.mean) or not moments.number:
        return 0.0, 0.0
    scaled = (moments.mean - whole.mean) / np.sqrt(np.diag(whole.cov))
    return float(scaled[0]), float(scaled[1]) if len(scaled) > 1 else 0.0


def _class_names(task: Task, classes: int) -> tuple[str, ...]:
    """Return the names of the classes, or of the bins of a number to predict."""
    if task.class_names:
        return tuple(task.class_names)
    if task.classifies:
        return tuple(map(str, range(classes)))
    return tuple(f"{10 * number}-{10 * number + 10} %" for number in range(classes))


def class_moments(numbers: np.ndarray, sums: np.ndarray, seconds: np.ndarray) -> list[Moments]:
    """Return the moments of every class over all clients.

    The covariance of a class with few samples is shrunk towards the mean one within classes.
    """
    groups = [
        Moments.of(number, total, second)
        for number, total, second in zip(numbers, sums, seconds, strict=True)
    ]
    m = sums.shape[1]
    within = np.zeros((m, m))
    for group in groups:
        within = within + group.number * group.cov
    within = within / max(numbers.sum(), 1)
    shrunk = []
    for group in groups:
        share = shrinkage(group.number, m) if m else 0.0
        cov = (1 - share) * group.cov + share * within
        shrunk.append(Moments(group.number, group.mean, cov))
    return shrunk


def note_on(result: Distance, n: float, m: int) -> str:
    """Return remarks on a divergence: too few samples, shrinkage, flat directions.

    Args:
        result: The divergence.
        n: The number of samples.
        m: The number of dimensions.
    """
    if result.kl is None:
        return "too few samples"
    remarks = []
    if result.shrinkage:
        remarks.append(
            f"{int(n)} samples in {m} dimensions: "
            f"covariance shrunk by {100 * result.shrinkage:.0f} % towards that of all data"
        )
    if result.flat:
        remarks.append(f"{result.flat} of {m} directions hardly vary")
    return "; ".join(remarks)


def _warnings(rows: Sequence[ClientRow], m: int) -> list[str]:
    if not m:
        return ["no feature varies, so features cannot be compared"]
    warnings = []
    shrunk = [row.client for row in rows if row.shrinkage]
    if shrunk:
        warnings.append(
            f"{len(shrunk)} of {len(rows)} clients have fewer than {2 * m} samples in {m} "
            f"dimensions, so their covariances are shrunk towards that of all data: {some(shrunk)}"
        )
    unknown = [row.client for row in rows if row.kl is None]
    if unknown:
        warnings.append(
            f"{len(unknown)} of {len(rows)} clients have too few samples to compare their "
            f"features: {some(unknown)}"
        )
    return warnings
