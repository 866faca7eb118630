"""An audit is run like any method, in a folder that is removed afterwards; what is kept is what it found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from equipoise.auditing.columns import differing_columns, inputs_of
from equipoise.auditing.findings import Findings, findings
from equipoise.auditing.method import Audit
from equipoise.callbacks import Callback
from equipoise.data import Dataset
from equipoise.data.pipeline import load as load_data
from equipoise.experiment import Experiment, experiment, load
from equipoise.simulate import Connect, run
from equipoise.storage.checkpoint import load_server
from equipoise.validation.imports import permitted


def audit(
    given: Experiment | Mapping[str, Any] | str | Path,
    *,
    dimensions: int = 10,
    callbacks: Callback | Iterable[Callback] | None = None,
    transport: Connect | Literal["loopback"] | None = None,
    allow_imports: Iterable[str] = (),
) -> Findings:
    """How different the clients of an experiment are: `given` as for `run`; its data, their partition and the seed matter, nothing else.

    `dimensions`: how many leading directions of the features clients are compared in.
    """
    if isinstance(given, (str, Path)):
        given = load(given)
    wanted = (
        given
        if isinstance(given, Experiment)
        else experiment(given, permitted(given, allow_imports))
    )
    dataset = (
        wanted.dataset if wanted.dataset is not None else load_data(wanted.data, wanted.imports)
    )
    auditing = auditing_of(wanted, dataset, dimensions)
    with tempfile.TemporaryDirectory(prefix="equipoise-audit-") as folder:
        finished = run(auditing, Path(folder) / "audit", callbacks, transport, quiet=True)
        state, task, meta = load_server(finished.store), finished.task, finished.store.meta
        data, facts = meta("data"), meta("facts")
        columns = differing_columns(state, inputs_of(meta("recipe")))
        finished.store.close()
    return replace(
        findings(state, task, data, wanted.seed, _warnings(auditing, dataset)),
        facts=facts,
        columns=columns,
    )


def auditing_of(wanted: Experiment, dataset: Dataset, dimensions: int = 10) -> Experiment:
    """The experiment that audits the data of another."""
    data = wanted.data
    # each client's own scale, the default of training, would hide how clients differ
    if dataset.columns and data.normalise == "auto":
        data = data.model_copy(update={"normalise": "pooled"})
    return Experiment(
        data=data,
        dataset=dataset,
        method=Audit(dimensions=dimensions, samples="histories" if dataset.codes else "plain"),
        model={"name": "mlp", "hidden": [1]},  # nothing is trained, but an experiment has a model
        evaluation={"every": 0, "splits": []},
        rounds=1,
        seed=wanted.seed,
        workers=wanted.workers,
        participation={"deadline": wanted.participation.deadline},
    )


def _warnings(auditing: Experiment, dataset: Dataset) -> list[str]:
    notes = list(dataset.notes)
    if not dataset.columns or auditing.data.normalise != "client":
        return notes
    return [
        *notes,
        "columns are scaled by each client's own mean and deviation (normalise: client), which hides shifts; use normalise: pooled",
    ]
