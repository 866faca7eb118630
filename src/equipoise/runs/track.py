"""Experiment trackers: callbacks that send the numbers of a run to MLflow, TensorBoard or W&B.

Every measurement is sent under model/split/metric/client at the step of its round, with the mean
over clients; aggregation weights under weight/client. The main metric of the main model
is also sent under main/mean and main/worst, so that runs of any method can be compared.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.callbacks import Callback, RunStart
from equipoise.experiment import ConfigurationError, Experiment, flat
from equipoise.runs.round_summary import summarise_round
from equipoise.storage.tables import RoundRecord
from equipoise.validation.names import nearest

MLFLOW_BATCH = 1000  # most metrics in one request
MLFLOW_VALUE = 500  # most characters of a parameter's value
_NOT_IN_MLFLOW_NAMES = re.compile(r"[^\w.\- :/]")


def tracker(kind: str, experiment: Experiment) -> Callback:
    """Return the callback that sends a run to a tracker.

    Args:
        kind: ``mlflow``, ``tensorboard`` or ``wandb``.
        experiment: The experiment whose settings are sent along.

    Raises:
        ConfigurationError: If the package is not installed or its store cannot be written.
        ValueError: If there is no such tracker.
    """
    if kind not in _TRACKERS:
        raise nearest("tracker", kind, list(_TRACKERS))
    return _TRACKERS[kind](experiment)


class _Tracker(Callback):
    """A tracker that takes numbers by name and step."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of a step."""
        raise NotImplementedError

    def on_round(self, record: RoundRecord) -> None:
        """Send the numbers of a round."""
        self.send(record.round, numbers(record, self.experiment.evaluation.main))


class TensorBoard(_Tracker):
    """Writes event files to the folder ``tensorboard`` of the run."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self.make_writer: Callable[[str], Any] = SummaryWriter

    def on_start(self, start: RunStart) -> None:
        """Open the event file and write the settings."""
        self.writer = self.make_writer(str(start.folder / "tensorboard"))
        lines = (f"    {key}: {value}" for key, value in parameters(self.experiment).items())
        self.writer.add_text("experiment", "\n".join(lines))

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        """Close the event file."""
        self.writer.close()


class MLflow(_Tracker):
    """Creates one MLflow run in the experiment ``equipoise/DATA``."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise _missing("mlflow") from None
        try:
            self.client = MlflowClient()
            name = f"equipoise/{experiment.data.name}"
            known = self.client.get_experiment_by_name(name)
            self.experiment_id = (
                self.client.create_experiment(name) if known is None else known.experiment_id
            )
        except MlflowException as error:
            raise ConfigurationError(
                f"--track mlflow: {error}; set MLFLOW_TRACKING_URI to a store that MLflow can write"
            ) from error

    def on_start(self, start: RunStart) -> None:
        """Create the MLflow run and send the settings."""
        from mlflow.entities import Param

        run = self.client.create_run(self.experiment_id, run_name=start.folder.name)
        self.run_id = run.info.run_id
        settings = [
            Param(key, str(value)[:MLFLOW_VALUE])
            for key, value in parameters(self.experiment).items()
        ]
        self.client.log_batch(self.run_id, params=settings)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of a step in batches."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_NOT_IN_MLFLOW_NAMES.sub("_", key), value, now, step)
            for key, value in values.items()
        ]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + MLFLOW_BATCH])

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        """Mark the MLflow run as finished, failed or killed."""
        status = "FINISHED"
        if error is not None:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
        self.client.set_terminated(self.run_id, status)


class WeightsAndBiases(_Tracker):
    """Creates one run of Weights & Biases in the project ``equipoise``.

    Its files go to the folder ``wandb`` of the run, unless WANDB_DIR names another. WANDB_MODE,
    WANDB_PROJECT and the other variables of Weights & Biases work as usual.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        self.wandb = wandb
        self.run: Any = None

    def on_start(self, start: RunStart) -> None:
        """Create the run and send the settings."""
        try:
            self.run = self.wandb.init(
                project=os.environ.get("WANDB_PROJECT", "equipoise"),
                group=self.experiment.data.name,
                name=start.folder.name,
                dir=os.environ.get("WANDB_DIR", str(start.folder)),
                config=parameters(self.experiment),
            )
        except self.wandb.Error as error:
            raise ConfigurationError(
                f"--track wandb: {error}; log in with `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of a step."""
        self.run.log(dict(values), step=step)

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        """Mark the run as finished or failed."""
        if self.run is not None:  # None if it could not be created
            self.run.finish(exit_code=0 if error is None else 1)


def numbers(record: RoundRecord, main: str | None = None) -> dict[str, float]:
    """Return the numbers of a round by name.

    Values that are not finite are left out, as trackers cannot plot them.

    Args:
        record: The round.
        main: The main metric, if the experiment names one.

    >>> rows = [
    ...     ("a", "global", "received", "test", "accuracy", 0.5),
    ...     ("b", "global", "received", "test", "accuracy", 1.0),
    ... ]
    >>> values = numbers(RoundRecord(1, 0, [], [], measurements=rows, main="global"))
    >>> values["global/test/accuracy/mean"], values["main/worst"]
    (0.75, 0.5)
    """
    values = _measurements(record)
    summary = summarise_round(record, main)
    if summary is not None:
        values["main/mean"] = summary.average
        values["main/worst"] = summary.worst
    for client, share in record.weights.items():
        values[f"weight/{client}"] = share
    for phase, seconds in record.seconds.items():
        values[f"seconds/{phase}"] = seconds
    values["bytes/down"] = float(record.bytes_down)
    values["bytes/up"] = float(record.bytes_up)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _measurements(record: RoundRecord) -> dict[str, float]:
    """Return every measurement, and the mean over clients of each metric."""
    measurements: dict[str, float] = {}
    by_metric: dict[str, list[float]] = {}
    for client, model, phase, split, metric, value in record.measurements:
        if phase == "final" and not record.finish:  # a copy of the values of the last round
            continue
        name = f"{model}/{split}/{metric}"
        if phase not in ("received", "final"):
            name = f"{model}/{phase}/{split}/{metric}"
        measurements[f"{name}/{client}"] = value
        by_metric.setdefault(name, []).append(value)
    for name, values in by_metric.items():
        measurements[f"{name}/mean"] = sum(values) / len(values)
    return measurements


def parameters(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration with dotted keys."""
    return flat(experiment.model_dump(mode="json"))


def _missing(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"--track {name} needs the package {name}, which is not installed; "
        "pip install 'equipoise[track]'"
    )


_TRACKERS: dict[str, Callable[[Experiment], Callback]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
