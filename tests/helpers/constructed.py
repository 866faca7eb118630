"""Results of studies without any run: numbers drawn around a level for each row."""

from __future__ import annotations

import zlib

import numpy as np

from equipoise.study.definition import Study
from equipoise.study.plan import plan_study
from equipoise.study.records import Record, append_records
from equipoise.study.run import results_path


def constructed(study: Study, scale: str = "paper", methods=None, metric: str = "accuracy"):
    """Return records of all runs of a study at a scale, of some methods or of all."""
    records = []
    for run in plan_study(study, study.scale(scale)).runs:
        if run.method == "standalone":
            records.append(_record(run, "personal", True, 0.5, metric))
        elif run.method in (methods or study.file.methods):
            models = [row.model or "global" for row in study.rows if row.method == run.method]
            for number, model in enumerate(dict.fromkeys(models)):
                level = 0.55 + 0.3 * (zlib.crc32(f"{run.method}{model}".encode()) % 100) / 100
                records.append(_record(run, model, number == 0, level, metric))
    return records


def write_constructed(study: Study, scale: str = "paper", methods=None) -> None:
    """Write constructed results where a study's results lie."""
    append_records(results_path(study, scale), constructed(study, scale, methods))


def _record(run, model, main, level, metric):
    name = f"{run.method}-{run.condition}-{run.seed}"
    rng = np.random.default_rng(zlib.crc32(f"{name}{model}".encode()))
    values = np.clip(level + rng.normal(0, 0.03, 4), 0, 1)
    domains = ("amazon", "dslr", "caltech", "webcam")
    clients = [f"{domain}-0" for domain in domains]
    return Record(
        run=run.cell.name,
        method=run.method,
        condition=run.condition,
        seed=run.seed,
        model=model,
        main=main,
        metric=metric,
        values=dict(zip(clients, values.tolist(), strict=True)),
        test_sizes=dict.fromkeys(clients, 500),
        groups=dict(zip(clients, domains, strict=True)),
        rounds=[1, 2, 3],
        means=[level / 3, level / 2, float(values.mean())],
        deviations=[0.01, 0.02, float(values.std())],
        cost={"d_cos": float(1 - level), "d_man": 50 * level, "seconds": 10.0},
        contributions={"reputation": dict(zip(clients, (values**2).tolist(), strict=True))},
        version="0.0.0",
        created="2026-01-01T00:00:00+00:00",
        baseline=run.baseline,
        environment={"torch": "2", "cpu": "AVX2"},
    )
