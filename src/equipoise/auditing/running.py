"""Runs of an audit, in a temporary folder like those of any method; its findings are kept."""

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
from equipoise.experiment import Experiment, load
from equipoise.experiment import experiment as experiment_from
from equipoise.simulate import Connect, run
from equipoise.storage.checkpoint import load_server
from equipoise.validation.imports import permitted


def audit(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    *,
    dimensions: int = 10,
    callbacks: Callback | Iterable[Callback] | None = None,
    transport: Connect | Literal["loopback"] | None = None,
    allow_imports: Iterable[str] = (),
) -> Findings:
    """Compare the clients of an experiment in size, labels and features.

    Args:
        experiment: An experiment, a mapping with the same keys, or the path of a YAML file. Only
            its data, their partition and the seed are used.
        dimensions: The number of leading directions of the features in which clients are compared.
        callbacks: Callbacks as for `run`.
        transport: The transport as for `run`.
        allow_imports: Packages from which code that a file names may be imported.

    Returns:
        One row per client, and a verdict.

    Raises:
        ValueError: If the experiment or its data are not valid.
    """
    if isinstance(experiment, (str, Path)):
        experiment = load(experiment)
    if not isinstance(experiment, Experiment):
        experiment = experiment_from(experiment, permitted(experiment, allow_imports))
    dataset = experiment.dataset
    if dataset is None:
        dataset = load_data(experiment.data, experiment.imports)
    auditing = auditing_of(experiment, dataset, dimensions)
    with tempfile.TemporaryDirectory(prefix="equipoise-audit-") as folder:
        finished = run(auditing, Path(folder) / "audit", callbacks, transport, quiet=True)
        store = finished.store
        state = load_server(store)
        task = finished.task
        name = store.meta("data")
        facts = store.meta("facts")
        recipe = store.meta("recipe")
        store.close()
    columns = differing_columns(state, inputs_of(recipe))
    result = findings(state, task, name, experiment.seed, data_warnings(auditing, dataset))
    return replace(result, facts=facts, columns=columns)


def auditing_of(audited: Experiment, dataset: Dataset, dimensions: int = 10) -> Experiment:
    """Return the experiment that audits the data of another one."""
    data = audited.data
    # Scaling by each client, the default of training, would hide differences between clients.
    if dataset.columns and data.normalise == "auto":
        data = data.model_copy(update={"normalise": "pooled"})
    return Experiment(
        data=data,
        dataset=dataset,
        method=Audit(dimensions=dimensions, samples="histories" if dataset.codes else "plain"),
        model={"name": "mlp", "hidden": [1]},  # nothing is trained, but an experiment has a model
        evaluation={"every": 0, "splits": []},
        rounds=1,
        seed=audited.seed,
        workers=audited.workers,
        participation={"deadline": audited.participation.deadline},
    )


def data_warnings(auditing: Experiment, dataset: Dataset) -> list[str]:
    """Return the notes on a data set, and a warning if its scaling hides differences."""
    notes = list(dataset.notes)
    if not dataset.columns or auditing.data.normalise != "client":
        return notes
    return [
        *notes,
        "columns are scaled by each client's own mean and deviation (normalise: client), "
        "which hides shifts; use normalise: pooled",
    ]
