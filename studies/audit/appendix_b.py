"""Check of FedAKD's Appendix B on public data.

The real KL divergence is compared with the approximation of Theorem 2.2, and with random subsamples
of the same sizes.

    python studies/audit/appendix_b.py OUT      # a figure per data set in OUT; prints a table

Features are the first 10 principal components of pixels (Fashion-MNIST, ics:5) or of standardised
columns (the four hospitals). The paper uses 100 dimensions of an autoencoder of private data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import equipoise as eq
from equipoise.auditing.divergence import Moments, approximations, chance, distance
from equipoise.data import DataConfig, federate
from equipoise.report.drawing import COLOURS, encoded, new

M, SEED, CONTROLS = 10, 0, 20
CASES = {
    "fashion_mnist-ics5": DataConfig(
        name="fashion_mnist", partition="ics:5", clients=10, samples=24_000
    ),
    "hospitals": DataConfig(name="uci_heart_disease", normalise="pooled"),
}
TITLES = (
    "real KL",
    "corrected",
    "printed",
    "random subsample (mean of 20)",
    "by the digamma formula",
)


def main(out: Path) -> None:
    """Compute the numbers of the appendix and draw its figure."""
    out.mkdir(parents=True, exist_ok=True)
    print(f"| data | client | samples | {' | '.join(TITLES)} |")
    print("|---|---|---|---|---|---|---|---|")
    for name, config in CASES.items():
        rows = measured(config)
        for client, n, real, corrected, printed, control, expected in rows:
            numbers = (
                f"{real:.3f} | {corrected:.3f} | {printed:.3g} | {control:.3f} | {expected:.3f}"
            )
            print(f"| {name} | {client} | {n} | {numbers} |")
        for kind in ("png", "svg"):
            (out / f"appendix-b-{name}.{kind}").write_bytes(
                encoded(lambda rows=rows: figure(rows), kind)
            )  # type: ignore[misc]


def measured(config: DataConfig) -> list[tuple[str, int, float, float, float, float, float]]:
    """Return a row per client, in the order of the printed columns.

    All samples are on this machine, so that the control draws from all clients, as in the paper.
    """
    federation = federate(config, SEED)
    x = federation.x.flatten(1).double().numpy()
    whole_rows = federation.train.index
    centred = x[whole_rows] - x[whole_rows].mean(0)
    vectors = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :M]
    z = np.full((len(x), M), np.nan)
    z[whole_rows] = centred @ vectors
    whole = _moments(z[whole_rows])
    draw = np.random.default_rng(SEED)
    audited = {
        row.client: row
        for row in eq.audit({"data": config, "workers": 0, "seed": SEED}, dimensions=M).clients
    }
    rows = []
    for client, places in zip(federation.ids, federation.train, strict=True):
        own = _moments(z[places])
        real = distance(own, whole).kl
        # the audit saw summaries only
        assert real is not None and abs(real - (audited[client].kl or 0)) < 0.05 * real + 0.01
        corrected, printed = approximations(own, whole)
        controls = [
            distance(_moments(z[draw.choice(whole_rows, len(places), replace=False)]), whole).kl
            or 0.0
            for _ in range(CONTROLS)
        ]
        rows.append(
            (
                client,
                len(places),
                real,
                corrected,
                printed,
                float(np.mean(controls)),
                chance(len(places), M),
            )
        )
    return rows


def figure(rows: list[tuple[str, int, float, float, float, float, float]]) -> Figure:
    """Draw the figure."""
    made, axes = new(3.6)
    made.set_figwidth(5.6)
    order = sorted(rows, key=lambda row: -row[1])
    places = np.arange(len(order))
    for column, label, colour, style in (
        (2, "real KL", COLOURS[1], "o-"),
        (3, "Theorem 2.2, corrected", COLOURS[0], "s--"),
        (4, "as printed", COLOURS[3], "^:"),
        (5, "random subsample", COLOURS[2], "D-"),
    ):
        axes.plot(
            places,
            [row[column] for row in order],
            style,
            color=colour,
            label=label,
            markersize=4,
            linewidth=1.2,
        )
    # an expansion may be negative where a divergence is not
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_yticks(ticks := [-10, -1, -0.1, 0, 0.1, 1, 10], [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xticks(places, [f"{row[0]}\n{row[1]:,}" for row in order], fontsize=7)
    axes.set_xlabel("client, and its training samples")
    axes.set_ylabel("nats")
    made.legend(loc="outside lower center", ncols=2)
    return made


def _moments(z: np.ndarray) -> Moments:
    return Moments.of(len(z), z.sum(0), z.T @ z)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("appendix-b"))
