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
from equipoise.data import DataConfig, Dataset
from equipoise.data.agreement import agreed_schema, check_scaling
from equipoise.data.pipeline import load as load_data
from equipoise.data.tables.encoding import outline
from equipoise.experiment import Experiment, load
from equipoise.experiment import experiment as experiment_from
from equipoise.runs.run import Run
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
    if dataset is None and not experiment.data.apart:
        dataset = load_data(experiment.data, experiment.imports)
    auditing = auditing_of(experiment, dataset, dimensions)
    with tempfile.TemporaryDirectory(prefix="equipoise-audit-") as folder:
        finished = run(auditing, Path(folder) / "audit", callbacks, transport, quiet=True)
        return findings_of(finished, auditing, dataset)


def findings_of(finished: Run, auditing: Experiment, dataset: Dataset | None = None) -> Findings:
    """Return the findings of a finished run of an audit, whose store is closed.

    Args:
        finished: The run.
        auditing: The experiment that was run; see `auditing_of`.
        dataset: The data, if they are on this machine.
    """
    store = finished.store
    state = load_server(store)
    task = finished.task
    name = store.meta("data")
    facts = store.meta("facts")
    recipe = store.meta("recipe")
    store.close()
    if auditing.data.apart:  # what was learnt from rows stays at the clients
        recipe = outline(agreed_schema(auditing.data.schema).inputs)
    columns = differing_columns(state, inputs_of(recipe))
    result = findings(state, task, name, auditing.seed, data_warnings(auditing, dataset))
    return replace(result, facts=facts or {}, columns=columns)


def auditing_of(audited: Experiment, dataset: Dataset | None, dimensions: int = 10) -> Experiment:
    """Return the experiment that audits the data of another one.

    Args:
        audited: The experiment.
        dataset: Its data; none if the clients prepare theirs alone: then columns and codes are
            those of the schema.
        dimensions: The number of directions in which clients are compared.

    Raises:
        ValueError: If clients prepare their tables alone, and the schema has no common scale.
    """
    data = audited.data
    # Scaling by each client, the default of training, would hide differences between clients.
    if _is_table(data, dataset) and data.normalise == "auto":
        data = data.model_copy(update={"normalise": _common_scaling(data)})
    return Experiment(
        data=data,
        dataset=dataset,
        method=Audit(
            dimensions=dimensions, samples="histories" if _has_codes(data, dataset) else "plain"
        ),
        model={"name": "mlp", "hidden": [1]},  # nothing is trained, but an experiment has a model
        evaluation={"every": 0, "splits": []},
        rounds=1,
        seed=audited.seed,
        workers=audited.workers,
        participation={"deadline": audited.participation.deadline},
    )


def _is_table(data: DataConfig, dataset: Dataset | None) -> bool:
    """Return True if samples have columns, by the data or by the schema."""
    if dataset is not None:
        return bool(dataset.columns)
    return data.schema is not None and bool(data.schema.inputs)


def _has_codes(data: DataConfig, dataset: Dataset | None) -> bool:
    """Return True if samples are patients' histories, by the data or by the schema."""
    if dataset is not None:
        return bool(dataset.codes)
    return data.schema is not None and bool(data.schema.codes)


def _common_scaling(data: DataConfig) -> str:
    """Return the scaling of tables by which clients can be compared."""
    if not data.apart:
        return "pooled"
    check_scaling(agreed_schema(data.schema))
    return "agreed"


def data_warnings(auditing: Experiment, dataset: Dataset | None) -> list[str]:
    """Return the notes on a data set, and a warning if its scaling hides differences."""
    notes = list(dataset.notes) if dataset is not None else []
    if not _is_table(auditing.data, dataset) or auditing.data.normalise != "client":
        return notes
    common = "agreed, with centre and scale in the schema" if auditing.data.apart else "pooled"
    return [
        *notes,
        "columns are scaled by each client's own mean and deviation (normalise: client), "
        f"which hides shifts; use normalise: {common}",
    ]
