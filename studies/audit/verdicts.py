"""Verdicts of the audit on partitions of known kind, with five seeds each.

    python studies/audit/verdicts.py > verdicts.json

The criterion was fixed before the first run: the dominant kind is that of the partition, and for
ics size has to be found as well. The thresholds of the verdict were set on digits, MNIST,
Office-Caltech10 and heart disease with seed 101; none of their partitions is used here except those
of heart disease, with other seeds.
"""

from __future__ import annotations

import json
import sys

import equipoise as eq
from equipoise.data import DataConfig, load

SEEDS = (0, 1, 2, 3, 4)
SAMPLES = 12_000  # of Fashion-MNIST, drawn anew by each seed
CASES = (  # data, partition, clients, kind that dominates, kinds that have to be there
    ("fashion_mnist", "iid", 10, "none", ()),
    ("fashion_mnist", "pow:1", 10, "size", ("size",)),
    ("fashion_mnist", "bcs:5", 10, "features", ("features",)),
    ("fashion_mnist", "ics:2", 10, "features", ("features", "size")),
    ("fashion_mnist", "ics:5", 10, "features", ("features", "size")),
    ("fashion_mnist", "cla:600", 10, "labels", ("labels",)),
    ("fashion_mnist", "dirichlet:1", 10, "labels", ("labels",)),
    ("fashion_mnist", "dirichlet:3", 10, "labels", ("labels",)),
    ("digit_domains_subset", "domains:0.05", 20, "features", ("features",)),
    # Harder: small shifts, small clients, small tables.
    ("fashion_mnist", "bcs:1", 10, "features", ("features",)),
    ("fashion_mnist", "bcs:0.3", 10, "features", ("features",)),
    ("fashion_mnist", "dirichlet:10", 10, "labels", ("labels",)),
    ("fashion_mnist", "quantity:3", 10, "size", ("size",)),
    ("fashion_mnist", "dirichlet:1", 200, "labels", ("labels",)),
    ("fashion_mnist", "ics:5", 100, "features", ("features", "size")),
    ("uci_heart_disease", "dirichlet:0.5", 4, "labels", ("labels",)),
    ("uci_heart_disease", "pow:1", 4, "size", ("size",)),
    ("uci_heart_disease", "iid", 20, "none", ()),
)


def main() -> None:
    """Audit every partition and print the verdicts as JSON."""
    sets = {name: load(DataConfig(name=name)) for name in dict.fromkeys(case[0] for case in CASES)}
    found = []
    for name, partition, clients, dominant, kinds in CASES:
        for seed in SEEDS:
            data = {
                "name": name,
                "partition": partition,
                "clients": clients,
                "samples": SAMPLES if name == "fashion_mnist" else None,
            }
            case = {"data": name, "partition": partition, "clients": clients, "seed": seed}
            try:
                verdict = eq.audit(
                    {"data": data, "dataset": sets[name], "workers": 0, "seed": seed}
                ).verdict
            except ValueError as error:  # a partition that cannot be made with this seed
                found.append({**case, "not made": str(error)})
                continue
            right = verdict.dominant == dominant and set(kinds) <= set(verdict.kinds)
            found.append(
                {
                    **case,
                    "expected": dominant,
                    "verdict": verdict.dominant,
                    "kinds": verdict.kinds,
                    "right": right,
                    "sure": verdict.sure,
                    "agreement": verdict.agreement,
                    "explained": verdict.explained,
                    **verdict.severity,
                }
            )
            print(partition, seed, verdict.dominant, right, file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
