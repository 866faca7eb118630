"""Values of scikit-survival and lifelines, for `test_survival.py`.

python experiments/survival_reference.py > tests/metrics/survival_reference.json

It needs scikit-survival and lifelines, which are no dependencies; it imports nothing of Equipoise.
"""

from __future__ import annotations

import json
from typing import Any

import lifelines
import numpy as np
import sksurv
from lifelines import KaplanMeierFitter
from lifelines.utils import concordance_index
from sksurv.linear_model.coxph import BreslowEstimator
from sksurv.metrics import (
    brier_score,
    concordance_index_censored,
    concordance_index_ipcw,
    integrated_brier_score,
)

CASES = 12


def case(seed: int) -> dict[str, Any]:
    """Return one sample, with tied times and tied risks in some, and the values of both packages."""
    rng = np.random.default_rng(seed)
    patients = int(rng.integers(25, 50))
    time = rng.integers(1, 25 if seed % 2 else 900, patients).astype(float)
    event = rng.random(patients) < 0.5
    event[time == time.max()] = False
    risk = (
        rng.integers(0, 6, patients).astype(float)
        if seed % 3 == 0
        else rng.normal(size=patients).round(3)
    )
    records = np.array(
        list(zip(event, time, strict=True)), dtype=[("event", bool), ("time", float)]
    )
    start, end = np.percentile(time, [10, 90])
    points = np.linspace(start, min(end, time.max() - 1e-6), 100)
    functions = BreslowEstimator().fit(risk, event, time).get_survival_function(risk)
    low, high = functions[0].domain
    survival = np.array([function(np.clip(points, low, high)) for function in functions])
    survival[:, points < low] = 1.0
    return {
        "time": time.tolist(),
        "event": event.astype(int).tolist(),
        "risk": risk.tolist(),
        "points": points[[0, 40, 80, 99]].tolist(),
        "harrell_sksurv": concordance_index_censored(event, time, risk)[0],
        "harrell_lifelines": concordance_index(time, -risk, event),
        "ipcw": concordance_index_ipcw(records, records, risk)[0],
        "breslow": survival[:3][:, [0, 40, 80, 99]].tolist(),
        "brier": brier_score(records, records, survival, points)[1][[0, 40, 80, 99]].tolist(),
        "integrated_brier": integrated_brier_score(records, records, survival, points),
        "kaplan_meier": KaplanMeierFitter()
        .fit(time, event)
        .survival_function_at_times(points[[0, 40, 80, 99]])
        .tolist(),
    }


if __name__ == "__main__":
    versions = {"scikit-survival": sksurv.__version__, "lifelines": lifelines.__version__}
    print(json.dumps({"versions": versions, "cases": [case(seed) for seed in range(CASES)]}))
