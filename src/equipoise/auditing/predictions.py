"""Features of correctly and wrongly classified test samples, client by client.

This is Figure 2 of FedAKD (Yu et al., KDD 2025): features of the trained models are projected onto
their first principal component, and the densities of correct and of wrong samples at a client are
compared with those over all clients. The paper concludes that clients agree on what is classified
correctly and differ in what is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from equipoise.data import Federation
from equipoise.data.pipeline import federate
from equipoise.data.roster import roster_of
from equipoise.experiment import experiment as experiment_from
from equipoise.report.drawing import ALONE, COLOURS, DARK, name_points, short
from equipoise.report.pictures import Picture
from equipoise.runs import Run
from equipoise.runs.trained_models import Checkpoint
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError
from equipoise.validation.imports import permitted
from equipoise.validation.regular_files import check_regular

FILE = "predictions.json"
FEWEST = 5  # samples that a density is estimated from
POINTS = 400  # of the grid on which densities are compared
BATCH = 500
DRAWN = 2  # clients whose densities a figure shows, as in the paper
MARGIN = 4.0  # bandwidths by which the grid exceeds the samples
SETS = ("right", "wrong")


@dataclass(frozen=True)
class PredictionRow:
    """One client.

    Attributes:
        client: Its name.
        right: Number of test samples that its model classifies correctly.
        wrong: Number of the others.
        kl_right: Divergence KL(client ‖ all clients) of the correct samples, in nats; None if
            there are too few.
        kl_wrong: The same of the wrong ones.
    """

    client: str
    right: int
    wrong: int
    kl_right: float | None
    kl_wrong: float | None


@dataclass(frozen=True)
class PredictionFindings:
    """Densities of correct and wrong samples.

    Attributes:
        data: The data set.
        model: The served model.
        variance: Share of the features' variance in the first principal component.
        clients: One row per client.
        grid: Positions along the component.
        densities: "right" and "wrong" -> "all clients" or a client -> density on the grid. Of the
            clients, those with the largest divergence are there.
    """

    data: str
    model: str
    variance: float
    clients: tuple[PredictionRow, ...]
    grid: tuple[float, ...]
    densities: Mapping[str, Mapping[str, tuple[float, ...]]]

    @property
    def text(self) -> str:
        """Sentences about how far clients differ in correct and in wrong samples."""
        both = [
            (row.kl_right, row.kl_wrong)
            for row in self.clients
            if row.kl_right is not None and row.kl_wrong is not None
        ]
        if not both:
            return f"No client has {FEWEST} correct and {FEWEST} wrong test samples to compare."
        right, wrong = np.mean(both, axis=0)
        farther = sum(pair[1] > pair[0] for pair in both)
        return (
            f"Mean divergence of a client from all clients: {right:.3f} nats for correct samples, "
            f"{wrong:.3f} for wrong ones. At {farther} of {len(both)} clients wrong samples "
            "diverge more."
        )

    def plain(self) -> dict[str, Any]:
        """Return the findings as plain data, for JSON."""
        return {**asdict(self), "text": self.text}

    def save(self, file: Path) -> None:
        """Write the findings as JSON; `read` reads them."""
        save_output(file, json.dumps(self.plain(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, file: Path) -> PredictionFindings:
        """Read the findings that `save` wrote.

        Raises:
            ValueError: If the file is damaged or of another version.
        """
        check_regular(file)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            del content["text"]
            rows = tuple(PredictionRow(**row) for row in content.pop("clients"))
            return cls(**content, clients=rows)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{file} is damaged or of another version ({error}); "
                "remove it, or run `equipoise audit` again"
            ) from None


def audit_predictions(
    run: Run, model: str | None = None, allow_imports: Iterable[str] = ()
) -> PredictionFindings:
    """Compare clients in the features of correctly and wrongly classified test samples.

    Args:
        run: A run of a classification task with local test data, and a checkpoint.
        model: The served model; by default the main one.
        allow_imports: Packages from which code that the run's file names may be imported.

    Raises:
        RunError: If the task is no classification, clients have no test data of their own, the
            data have changed since, or the model has no features.
    """
    if not run.task.classifies:
        raise RunError(f"{run.folder} predicts a number; only classes can be right or wrong")
    model = model or run.main_model
    federation = _data_of(run, allow_imports)
    features, correct = _classified(run, federation, model, allow_imports)
    return compare_densities(federation.name, model, features, correct)


def _data_of(run: Run, allow_imports: Iterable[str]) -> Federation:
    built = experiment_from(run.config, permitted(run.config, allow_imports))
    federation = federate(built.data, built.seed, imports=built.imports)
    if roster_of(federation).fingerprint != run.store.meta("fingerprint"):
        raise RunError(
            f"{run.folder}: its data have changed since the run; run it again to audit its models"
        )
    if not len(federation.test.index):
        raise RunError(
            f"{run.folder}: its clients have no test data of their own to compare; give data.split "
            "a test share, and use test: local"
        )
    return federation


def _classified(
    run: Run, federation: Federation, model: str, allow_imports: Iterable[str]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return client -> features of its test samples, and client -> which are classified right."""
    imports = permitted(run.config, allow_imports)
    checkpoint = Checkpoint(run.store, run.config, run.task, run.clients)
    bench, method = checkpoint.rebuild(None, imports)
    features = {}
    correct = {}
    for client, rows in zip(federation.ids, federation.test, strict=True):
        net = checkpoint.model(model, client, bench, method)
        if not hasattr(net, "features") or not hasattr(net, "head"):
            raise RunError(f"{run.folder}: the model {model!r} has no features to compare")
        features[client], correct[client] = _outputs(net, federation, rows)
    return features, correct


def _outputs(net: Any, federation: Federation, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    net.eval()
    features = []
    correct = []
    with torch.no_grad():
        for start in range(0, len(rows), BATCH):
            positions = torch.from_numpy(np.array(rows[start : start + BATCH], dtype=np.int64))
            own = net.features(federation.x[positions])
            predicted = net.head(own).argmax(1)
            features.append(own.flatten(1).double().numpy())
            correct.append((predicted == federation.y[positions]).numpy())
    if not features:
        return np.zeros((0, 0)), np.zeros(0, bool)
    return np.concatenate(features), np.concatenate(correct)


def compare_densities(
    data: str, model: str, features: Mapping[str, np.ndarray], correct: Mapping[str, np.ndarray]
) -> PredictionFindings:
    """Compare densities along the first principal component of all clients' features.

    Args:
        data: Name of the data set.
        model: Name of the served model.
        features: Client -> features of its test samples.
        correct: Client -> True for each sample that is classified correctly.
    """
    axis, centre, variance = _component([own for own in features.values() if len(own)])
    projected = {
        client: (own - centre) @ axis if len(own) else np.zeros(0)
        for client, own in features.items()
    }
    everything = np.concatenate(list(projected.values()))
    margin = MARGIN * float(everything.std())
    grid = np.linspace(everything.min() - margin, everything.max() + margin, POINTS)
    divergences: dict[str, dict[str, float | None]] = {}
    densities: dict[str, dict[str, tuple[float, ...]]] = {}
    for name in SETS:
        values = {
            client: own[correct[client] == (name == "right")] for client, own in projected.items()
        }
        divergences[name], densities[name] = _compared(values, grid)
    rows = []
    for client, own in correct.items():
        right = int(own.sum())
        both = (divergences["right"][client], divergences["wrong"][client])
        rows.append(PredictionRow(client, right, len(own) - right, *both))
    positions = tuple(np.round(grid, 6).tolist())
    return PredictionFindings(data, model, round(variance, 6), tuple(rows), positions, densities)


def _component(features: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the first principal component, the mean, and its share of the variance."""
    stacked = np.concatenate(list(features))
    centre = stacked.mean(0)
    _, lengths, directions = np.linalg.svd(stacked - centre, full_matrices=False)
    axis = directions[0]
    # The sign of a component is arbitrary: its largest entry is positive here.
    axis = axis * np.sign(axis[np.abs(axis).argmax()])
    total = float((lengths**2).sum())
    return axis, centre, float(lengths[0] ** 2) / total if total else math.nan


def _compared(
    values: Mapping[str, np.ndarray], grid: np.ndarray
) -> tuple[dict[str, float | None], dict[str, tuple[float, ...]]]:
    """Return client -> divergence from all clients, and the densities that a figure shows."""
    whole = _density(np.concatenate(list(values.values())), grid)
    own = {client: _density(numbers, grid) for client, numbers in values.items()}
    divergences: dict[str, float | None] = {}
    for client, density in own.items():
        divergences[client] = None
        if density is not None and whole is not None:
            divergences[client] = round(_divergence(density, whole, grid), 6)
    known = {client: value for client, value in divergences.items() if value is not None}
    farthest = sorted(known, key=lambda client: -known[client])[:DRAWN]
    shown = {"all clients": whole} | {client: own[client] for client in farthest}
    drawn = {}
    for name, density in shown.items():
        if density is not None:
            drawn[name] = tuple(np.round(np.exp(density), 6).tolist())
    return divergences, drawn


def _density(values: np.ndarray, grid: np.ndarray) -> np.ndarray | None:
    """Return the logarithm of a Gaussian kernel density (Scott's bandwidth) on the grid.

    None if there are too few values, or all are equal.
    """
    if len(values) < FEWEST or np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())):
        return None
    return np.asarray(stats.gaussian_kde(values).logpdf(grid))


def _divergence(density: np.ndarray, reference: np.ndarray, grid: np.ndarray) -> float:
    """Return the divergence KL(density ‖ reference) of two log-densities, in nats."""
    return max(0.0, float(np.trapezoid(np.exp(density) * (density - reference), grid)))


def picture(findings: PredictionFindings) -> Picture:
    """Return the figure: densities of correct and of wrong samples, and both divergences."""
    return Picture(
        "Correct and wrong samples",
        f"Densities of test samples of model {findings.model} along the first principal component "
        f"of its features ({100 * findings.variance:.0f} % of their variance), for all clients and "
        f"for those that differ most. {findings.text}",
        lambda: draw(findings),
    )


def draw(findings: PredictionFindings) -> Figure:
    """Draw the three panels of the figure."""
    figure = Figure(figsize=(9.2, 3.1), layout="constrained")
    right, wrong, both = figure.subplots(1, 3)
    for axes, name, title in ((right, "right", "correct"), (wrong, "wrong", "wrong")):
        _draw_densities(axes, findings, name)
        axes.set_title(f"{title} samples", fontsize=9)
    points = []
    for row in findings.clients:
        if row.kl_right is not None and row.kl_wrong is not None:
            points.append((row.client, row.kl_right, row.kl_wrong))
    both.set_title("divergence from all clients", fontsize=9)
    both.set_xlabel("KL of correct samples, nats")
    both.set_ylabel("KL of wrong samples, nats")
    if points:
        both.scatter([p[1] for p in points], [p[2] for p in points], s=22, color=COLOURS[0])
        most = 1.1 * max(max(p[1:]) for p in points) or 1.0
        both.set(xlim=(0, most), ylim=(0, most))
        both.axline((0, 0), slope=1, color=ALONE, linewidth=1)
        if len(points) <= 10:
            name_points(both, points)
    return figure


def _draw_densities(axes: Axes, findings: PredictionFindings, name: str) -> None:
    for position, (owner, density) in enumerate(findings.densities[name].items()):
        is_whole = position == 0
        axes.plot(
            findings.grid,
            density,
            color=DARK if is_whole else COLOURS[position],
            linewidth=2.2 if is_whole else 1.4,
            linestyle="-" if is_whole else "--",
            label=short(owner),
        )
    axes.set_xlabel("first principal component")
    axes.set_ylabel("density")
    if findings.densities[name]:
        axes.legend(fontsize=7)
