"""Runs of the studies of Poise: one line of JSON for each, as it ends.

Results that are stored are not run again. The data sets must be available (EQUIPOISE_DATA).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import settings
from equipoise import simulate
from equipoise.data import Dataset, Federation, Parts, federate
from equipoise.experiment import Experiment
from equipoise.runs import Run
from equipoise.storage.store import RunError

OTHER = 50_000  # added to the seed of training where the data stay
ALONE = "standalone"
KEY = ("part", "model", "setting", "method", "seed")
# Label -> the model that a shared run serves for it, None for the main one, and the share of its end.
Shared = dict[str, tuple[str | None, float]]


@lru_cache(maxsize=4)
def federation_of(setting: str, seed: int) -> Federation:
    """Return the federation of a setting and a seed."""
    experiment = Experiment(**settings.config(setting, {"name": "fedavg"}, seed))
    return federate(experiment.data, seed, dataset_of(setting))


def dataset_of(setting: str) -> Dataset | None:
    """Return the data of a setting that has them from Python; None for all others."""
    return settings.diabetes() if setting == "diabetes" else None


def with_validation(federation: Federation) -> Federation:
    """Return a federation whose validation data are training data; it has no others."""
    both = [
        np.concatenate(pair) for pair in zip(federation.train, federation.validation, strict=True)
    ]
    return replace(
        federation, train=Parts.of(both), validation=Parts.of([part[:0] for part in both])
    )


def known(results: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the stored runs: (part, model, setting, method, seed) -> record."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {key_of(record): record for record in map(json.loads, lines)}


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of a stored record."""
    return tuple(record[name] for name in KEY)


def named(key: tuple[Any, ...]) -> dict[str, Any]:
    """Return a key as a mapping."""
    return dict(zip(KEY, key, strict=True))


class Study:
    """Runs, one after another, each stored as it ends.

    Attributes:
        results: The file of results.
        done: The stored runs.
        right: Of training alone, which test samples each client gets right, by run.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.done = known(results)
        self.right: dict[tuple[Any, ...], list[np.ndarray]] = {}

    def one(
        self,
        part: str,
        setting: str,
        label: str,
        method: Any,
        seed: int,
        *,
        model: str = "mlp",
        change: Callable[[Federation], Federation] | None = None,
        compared: bool = True,
        other: int = 0,
        common: dict[str, Any] | None = None,
        shared: Shared | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Run one method with one setting and seed, unless its result is stored.

        Args:
            part: The part of the study.
            setting: The name of the data and training settings.
            label: The name of the method in tables.
            method: The method.
            seed: The seed of data and training.
            model: The network.
            change: Changes the federation.
            compared: Count the test samples that training alone gets right and this method does
                not, and the other way round.
            other: A number that is added to the seed of training; the data stay.
            common: Changes of settings that training alone has, too.
            shared: The methods whose results this one run gives, `label` among them.
            **changes: Changes of settings with dotted keys.
        """
        key = (part, model, setting, label, seed)
        if key not in self.done:
            if compared and label != ALONE:
                self.train_alone(part, setting, seed, model, common)
            self._run(key, method, change, compared, other, {**(common or {}), **changes}, shared)
        return self.done[key]

    def train_alone(
        self,
        part: str,
        setting: str,
        seed: int,
        model: str = "mlp",
        common: dict[str, Any] | None = None,
        change: Callable[[Federation], Federation] | None = None,
    ) -> None:
        """Train alone, again after a pause: later runs need the samples that it gets right."""
        key = (part, model, setting, ALONE, seed)
        if key not in self.right:
            self._run(key, {"name": "standalone"}, change, True, 0, common or {}, None)

    def _run(
        self,
        key: tuple[Any, ...],
        method: Any,
        change: Callable[[Federation], Federation] | None,
        compared: bool,
        other: int,
        changes: dict[str, Any],
        shared: Shared | None,
    ) -> None:
        """Run an experiment, and store a record of each method that it gives results of."""
        _, model, setting, label, seed = key
        config = settings.config(setting, method, seed + other, model, **changes)
        experiment = Experiment(**config, dataset=dataset_of(setting))
        plain = federation_of(setting, seed)
        federation = change(plain) if change is not None else plain
        methods = shared or {label: (None, 1.0)}
        began, cpu = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder, federation_replaced(federation):
            try:
                run = simulate.run(experiment, Path(folder) / "run")
            except RunError as error:
                if "not finite" not in str(error):
                    raise
                for name in methods:
                    self.keep({**named((*key[:3], name, seed)), "diverged": str(error)})
                return
            elapsed = time.perf_counter() - began, time.process_time() - cpu
            seconds = [round(value, 1) for value in elapsed]
            for name, (served, share) in methods.items():
                own = (*key[:3], name, seed)
                result = Result(run, experiment, federation, served or run.main_model, share)
                record = {**named(own), **result.record(), "seconds": seconds}
                if compared and federation.task.classifies:
                    record |= self._compared(own, result.right())
                self.keep(record)

    def _compared(self, key: tuple[Any, ...], right: list[np.ndarray]) -> dict[str, list[int]]:
        """Return how many test samples of each client are lost and won against training alone."""
        if key[3] == ALONE:
            self.right[key] = right
            return {}
        alone_key = (*key[:3], ALONE, key[4])
        if alone_key not in self.right:  # It diverged.
            return {}
        pairs = list(zip(self.right[alone_key], right, strict=True))
        return {
            "lost": [int((alone & ~own).sum()) for alone, own in pairs],
            "won": [int((~alone & own).sum()) for alone, own in pairs],
        }

    def keep(self, record: dict[str, Any]) -> None:
        """Append a record to the results."""
        if key_of(record) in self.done:
            return
        with self.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.done[key_of(record)] = record
        values = record.get("accuracy", record.get("rmse"))
        print(
            *key_of(record), "diverged" if values is None else f"{np.mean(values):.4f}", flush=True
        )


@dataclass(frozen=True)
class Result:
    """A served model of a finished run.

    Attributes:
        run: The run.
        experiment: Its experiment.
        federation: Its data.
        model: The name of the served model.
        share: The share of the end of the run that the model needs: 0 for that of the rounds.
    """

    run: Run
    experiment: Experiment
    federation: Federation
    model: str
    share: float

    def record(self) -> dict[str, Any]:
        """Return what is stored of every run."""
        metric = self.experiment.evaluation.metrics[0]
        steps = sum(row["steps"] for row in self.run.rounds())
        steps += round(self.share * sum(row["steps"] for row in self.run.finish()))
        rows = [*self.run.rounds(), *(self.run.finish() if self.share else [])]
        record: dict[str, Any] = {
            "served": self.model,
            metric: self._values(metric),
            "tests": [len(part) for part in self.federation.test],
            "samples": [len(part) for part in self.federation.train],
            "validation": self._values(metric, "validation"),
            "steps": steps,
            "bytes": [sum(row[way] for row in rows) for way in ("bytes_down", "bytes_up")],
        }
        if "loss" in self.experiment.evaluation.metrics:
            record["nll"] = self._values("loss")
        return record

    def _values(self, metric: str, split: str = "test") -> list[float]:
        values = self.run.final(metric, model=self.model, split=split)
        return [round(values[client], 6) for client in self.federation.ids if client in values]

    def right(self) -> list[np.ndarray]:
        """Return which test samples of each client the model gets right."""
        return [self._right_at(k, client) for k, client in enumerate(self.federation.ids)]

    def _right_at(self, k: int, client: str) -> np.ndarray:
        positions = torch.from_numpy(np.array(self.federation.test[k]))
        net = self.run.model(self.model, client=client, experiment=self.experiment)
        x, y = self.federation.x, self.federation.y
        with torch.no_grad():
            predicted = torch.cat([net(x[chunk]).argmax(1) for chunk in positions.split(256)])
        return (predicted == y[positions]).numpy()


class federation_replaced:
    """Within it, runs have these data: prepared once, or with other parts than their seed gives."""

    def __init__(self, federation: Federation) -> None:
        """Remember the data."""
        self.federation = federation

    def __enter__(self) -> None:
        """Replace the loading of data."""
        self.before = simulate.load_data
        simulate.load_data = lambda *_: (self.federation, None)

    def __exit__(self, *error: object) -> None:
        """Restore the loading of data."""
        simulate.load_data = self.before
