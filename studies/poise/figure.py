"""Draw docs/figures/poise.svg from the frozen test: averages, harm and likelihood by group.

python studies/poise/figure.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from frozen import (
    CONTROL,
    GROUPS,
    POISE,
    RESULTS,
    RIVAL,
    SAME_BASE,
    Results,
    difference,
    known,
)

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "poise.svg"
MARGIN = -0.5  # points of accuracy, from PROTOCOL.md
BLUE, ORANGE, GREY, GREEN = "#0072B2", "#D55E00", "#777777", "#009E73"


def draw(groups: Sequence[Results], target: Path) -> None:
    """Write the picture: a row for each group of settings.

    Args:
        groups: The groups with at least two complete seeds.
        target: The file.
    """
    matplotlib.rcParams |= {"svg.hashsalt": "poise", "svg.fonttype": "none", "font.size": 9}
    height = 1.8 + 0.5 * len(groups)
    figure, axes = plt.subplots(1, 3, figsize=(9.6, height), sharey=True, layout="constrained")
    averages(axes[0], groups)
    harm(axes[1], groups)
    likelihoods(axes[2], groups)
    axes[0].set_yticks(range(len(groups)), [one.group.name for one in groups])
    axes[0].invert_yaxis()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    figure.patch.set_facecolor("white")
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def averages(axis: Axes, groups: Sequence[Results]) -> None:
    """Draw Poise minus its rivals at equal steps, with intervals over seeds."""
    rivals = (
        (RIVAL, "minus fine-tuning", BLUE, -0.12),
        (SAME_BASE, "minus fine-tuning of FedAvgM", GREY, 0.12),
    )
    for rival, label, colour, shift in rivals:
        gaps = [difference(one.by_seed(POISE), one.by_seed(rival)) for one in groups]
        means = np.array([gap[0] for gap in gaps])
        reach = np.abs(np.array([gap[1:3] for gap in gaps]) - means[:, None]).T
        positions = np.arange(len(groups)) + shift
        axis.errorbar(means, positions, xerr=reach, fmt="o", color=colour, capsize=3, label=label)
    axis.axvline(0, color="#333333", linewidth=0.8)
    axis.axvline(MARGIN, color="#333333", linewidth=0.8, linestyle=":")
    axis.set_title("Average of Poise, points\n(right of 0: Poise is better)", fontsize=9)


def harm(axis: Axes, groups: Sequence[Results]) -> None:
    """Draw the share of clients that are significantly below training alone."""
    shown = (
        (POISE, "Poise", BLUE, "o", -0.24),
        (RIVAL, "fine-tuning", GREEN, "s", -0.08),
        (CONTROL, "alone, other random numbers", GREY, "^", 0.08),
        ("fedavg", "FedAvg", ORANGE, "D", 0.24),
    )
    for method, label, colour, marker, shift in shown:
        shares = []
        for one in groups:
            _, significant, clients = one.harmed(method)
            shares.append(100 * significant / clients if clients else np.nan)
        axis.plot(shares, np.arange(len(groups)) + shift, marker, color=colour, label=label)
    axis.axvline(5, color="#333333", linewidth=0.8, linestyle=":")
    axis.set_title("Clients significantly below\ntraining alone, %", fontsize=9)


def likelihoods(axis: Axes, groups: Sequence[Results]) -> None:
    """Draw the mean negative log-likelihood, in multiples of Poise's."""
    for method, label, colour, marker, shift in (
        (RIVAL, "fine-tuning", GREEN, "s", -0.12),
        (SAME_BASE, "fine-tuning of FedAvgM", GREY, "o", 0.12),
    ):
        ratios = [
            one.by_seed(method, "nll").mean() / one.by_seed(POISE, "nll").mean() for one in groups
        ]
        axis.plot(ratios, np.arange(len(groups)) + shift, marker, color=colour, label=label)
    axis.axvline(1, color=BLUE, linewidth=0.8, label="Poise")
    axis.set_title("Negative log-likelihood,\nmultiples of Poise's", fontsize=9)


def main() -> None:
    """Draw the groups that have at least two complete seeds."""
    done = known(RESULTS)
    groups = [Results.of(group, done) for group in GROUPS]
    draw([one for one in groups if len(one.seeds) >= 2], FIGURE)


if __name__ == "__main__":
    main()
