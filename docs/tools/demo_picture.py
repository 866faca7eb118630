"""Draw docs/figures/demo.svg from the comparison of `make demo`: which clients gain, which lose.

python docs/tools/demo_picture.py comparisons/demo
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

import equipoise as eq

FIGURE = Path(__file__).parents[1] / "figures" / "demo.svg"
GAIN, LOSS, SAME = "#0072B2", "#D55E00", "#777777"  # safe for colour blindness
SHOWN = {"fedavg": "FedAvg", "fedakd": "FedAKD", "poise": "Poise"}


def gains(folder: Path) -> dict[str, dict[str, float]]:
    """Return the gain of each client in points, by method, for the first seed."""
    comparison = json.loads((folder / "comparison.json").read_text())
    result: dict[str, dict[str, float]] = {}
    for entry in comparison["entries"]:
        if entry["method"] not in SHOWN:
            continue
        together = eq.Run(folder / entry["run"]).final()
        alone = eq.Run(folder / entry["alone"]).final()
        values = {client: 100 * (together[client] - alone[client]) for client in alone}
        result.setdefault(entry["method"], values)
    return result


def draw(by_method: dict[str, dict[str, float]], target: Path) -> None:
    """Write the picture: a panel for each method, a bar for each client."""
    matplotlib.rcParams |= {"svg.hashsalt": "demo", "svg.fonttype": "none", "font.size": 10}
    figure, axes = plt.subplots(1, len(by_method), figsize=(8.4, 2.6), sharey=True)
    order = sorted(by_method["fedavg"], key=lambda client: by_method["fedavg"][client])
    for axis, (method, values) in zip(axes, by_method.items(), strict=True):
        heights = [values[client] for client in order]
        colours = [LOSS if v < 0 else GAIN if v > 0 else SAME for v in heights]
        axis.bar(range(len(order)), heights, color=colours)
        axis.axhline(0, color="#333333", linewidth=0.8)
        losers = sum(height < 0 for height in heights)
        axis.set_title(f"{SHOWN[method]}: {losers} of {len(order)} lose")
        axis.set_xticks(range(len(order)), order)
        axis.set_xlabel("client")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("gain over training alone,\npoints of accuracy")
    figure.tight_layout()
    figure.patch.set_facecolor("white")
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw(gains(Path(sys.argv[1])), FIGURE)
