"""Experiment trackers: callbacks that send the numbers of a run to MLflow or TensorBoard.

Every measurement is sent under model/split/metric/client at the step of its round, with the mean
over clients beside it; aggregation weights under weight/client. The main metric of the main model
is also sent under main/mean and main/worst, so that runs of any method can be compared.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.callbacks import Callback, RunStart
from equipoise.experiment import ConfigurationError, Experiment, flat
from equipoise.runs.summary import of_main
from equipoise.storage.tables import RoundRecord
from equipoise.validation.names import nearest

MLFLOW_BATCH = 1000  # most metrics in one request
MLFLOW_VALUE = 500  # most characters of a parameter's value
_NOT_IN_MLFLOW_NAMES = re.compile(r"[^\w.\- :/]")


def tracker(kind: str, experiment: Experiment) -> Callback:
    """Return the callback that sends a run to a tracker.

    Args:
        kind: ``mlflow`` or ``tensorboard``.
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
        raise NotImplementedError

    def on_round(self, record: RoundRecord) -> None:
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
        self.writer = self.make_writer(str(start.folder / "tensorboard"))
        lines = (f"    {key}: {value}" for key, value in parameters(self.experiment).items())
        self.writer.add_text("experiment", "\n".join(lines))

    def send(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def on_end(self, folder: Path, error: BaseException | None) -> None:
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
        from mlflow.entities import Param

        run = self.client.create_run(self.experiment_id, run_name=start.folder.name)
        self.run_id = run.info.run_id
        settings = [
            Param(key, str(value)[:MLFLOW_VALUE])
            for key, value in parameters(self.experiment).items()
        ]
        self.client.log_batch(self.run_id, params=settings)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_NOT_IN_MLFLOW_NAMES.sub("_", key), value, now, step)
            for key, value in values.items()
        ]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + MLFLOW_BATCH])

    def on_end(self, folder: Path, error: BaseException | None) -> None:
        status = "FINISHED"
        if error is not None:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
        self.client.set_terminated(self.run_id, status)


def numbers(record: RoundRecord, main: str | None = None) -> dict[str, float]:
    """What a round adds, by name; values that are not finite are left out, as trackers cannot plot them. `main` is the main metric asked for.

    >>> rows = [("a", "global", "received", "test", "accuracy", 0.5), ("b", "global", "received", "test", "accuracy", 1.0)]
    >>> numbers(RoundRecord(1, 0, [], [], measurements=rows))
    {'global/test/accuracy/a': 0.5, 'global/test/accuracy/b': 1.0, 'global/test/accuracy/mean': 0.75, 'bytes/down': 0.0, 'bytes/up': 0.0}
    >>> numbers(RoundRecord(1, 0, [], [], measurements=rows, main="global"))["main/worst"]
    0.5
    """
    found: dict[str, float] = {}
    groups: dict[str, list[float]] = {}
    for client, model, phase, split, metric, value in record.measurements:
        if phase == "final" and not record.finish:  # the last round's values once more
            continue
        name = (
            f"{model}/{split}/{metric}"
            if phase in ("received", "final")
            else f"{model}/{phase}/{split}/{metric}"
        )
        found[f"{name}/{client}"] = value
        groups.setdefault(name, []).append(value)
    found |= {f"{name}/mean": sum(values) / len(values) for name, values in groups.items()}
    judged, shown = of_main(record, main)
    if judged is not None and shown:
        found |= {
            "main/mean": sum(shown) / len(shown),
            "main/worst": max(shown) if judged.lower_is_better else min(shown),
        }
    found |= {f"weight/{client}": share for client, share in record.weights.items()}
    found |= {f"seconds/{phase}": seconds for phase, seconds in record.seconds.items()}
    found |= {"bytes/down": float(record.bytes_down), "bytes/up": float(record.bytes_up)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def parameters(wanted: Experiment) -> dict[str, Any]:
    """The configuration with dotted keys."""
    return flat(wanted.model_dump(mode="json"))


def _missing(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"--track {name} needs the package {name}, which is not installed; pip install 'equipoise[track]'"
    )


_TRACKERS: dict[str, Callable[[Experiment], Callback]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
}
