"""Experiment trackers: the numbers of a run, as they come, to MLflow or TensorBoard.

Every measurement goes under model/split/metric/client, with the mean over clients beside it, at the step of its round; weights under weight/client.
The main metric of the main model also goes under main/mean and main/worst, so that runs of any metric and method can be laid side by side.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.experiment import ConfigurationError, Experiment, flat
from equipoise.runs.summary import of_main
from equipoise.storage.store import DATABASE, RoundRecord
from equipoise.transports.base import Watcher
from equipoise.validation.names import nearest

Send = Callable[[int, Mapping[str, float]], None]
MLFLOW_BATCH, MLFLOW_VALUE = (
    1000,
    500,
)  # most metrics in one request, most characters of a parameter's value
_REFUSED = re.compile(r"[^\w.\- :/]")  # signs that MLflow does not take in names


@contextmanager
def tracking(kind: str, wanted: Experiment, folder: Path, watcher: Watcher) -> Iterator[Watcher]:
    """A watcher that also sends every round to a tracker; `kind` is mlflow or tensorboard."""
    if kind not in _TRACKERS:
        raise nearest("tracker", kind, list(_TRACKERS))
    # the run will refuse this folder; nothing must be tracked, or written into it
    if (folder / DATABASE).exists():
        yield watcher
        return
    with _TRACKERS[kind](wanted, folder) as send:

        def on_round(record: RoundRecord) -> None:
            send(record.round, numbers(record, wanted.evaluation.main))
            watcher.on_round(record)

        yield replace(watcher, on_round=on_round)


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


@contextmanager
def _tensorboard(wanted: Experiment, folder: Path) -> Iterator[Send]:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise _missing("tensorboard") from None
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        settings = "\n".join(f"    {key}: {value}" for key, value in parameters(wanted).items())
        writer.add_text("experiment", settings)

        def send(step: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        yield send


@contextmanager
def _mlflow(wanted: Experiment, folder: Path) -> Iterator[Send]:
    try:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise _missing("mlflow") from None
    try:
        client = MlflowClient()
        name = f"equipoise/{wanted.data.name}"
        known = client.get_experiment_by_name(name)
        run = client.create_run(
            known.experiment_id if known is not None else client.create_experiment(name),
            run_name=folder.name,
        )
        settings = [
            Param(key, str(value)[:MLFLOW_VALUE]) for key, value in parameters(wanted).items()
        ]
        client.log_batch(run.info.run_id, params=settings)
    except MlflowException as error:
        raise ConfigurationError(
            f"--track mlflow: {error}; set MLFLOW_TRACKING_URI to a store that MLflow can write"
        ) from error

    def send(step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            Metric(_REFUSED.sub("_", key), value, now, step) for key, value in values.items()
        ]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            client.log_batch(run.info.run_id, metrics=metrics[start : start + MLFLOW_BATCH])

    status = "FAILED"
    try:
        yield send
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        client.set_terminated(run.info.run_id, status)


def parameters(wanted: Experiment) -> dict[str, Any]:
    """The configuration with dotted keys."""
    return flat(wanted.model_dump(mode="json"))


def _missing(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"--track {name} needs the package {name}, which is not installed; pip install 'equipoise[track]'"
    )


_TRACKERS: dict[str, Callable[[Experiment, Path], Any]] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
}
