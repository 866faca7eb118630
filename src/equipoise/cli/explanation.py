"""Uploads of a site when a method runs, measured on random numbers, for `site explain`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from equipoise import methods, simulate
from equipoise.cli import output
from equipoise.composition import parts
from equipoise.data import Federation, from_arrays
from equipoise.data.agreement import task_of
from equipoise.data.dataset import Dataset
from equipoise.experiment import ConfigurationError, Experiment, experiment, load
from equipoise.records import Record, pack
from equipoise.runtime import client_evaluation, wire
from equipoise.runtime.messages import Reply, Request
from equipoise.task import Task
from equipoise.training.stack import Deferral
from equipoise.transports.inprocess import InProcess
from equipoise.tree import Tree

ROUNDS = 3
SITES = ("here", "there", "yonder")
SAMPLES = 200  # of each site, so that histograms of 40 test samples are sent
COLUMNS = 13  # of a table without an experiment, as in the UCI heart-disease data
# Descriptions of entries that many methods upload.
_MEANINGS = {
    "model": "the trained model",
    "loss": "mean loss of training",
    "control": "mean gradient of training",
    "served": "names of models",
    "values of metrics": "accuracy and the like",
    "majority": "share of the most frequent class",
    "curves": "histogram of scores",
    "clinical": "sensitivity and the like",
}
# Parts of an experiment that decide the uploads of a site.
_TAKEN = ("model", "models", "training", "evaluation")


@dataclass(frozen=True)
class Upload:
    """An entry of an upload.

    Attributes:
        round: The round.
        step: The step of the method, or of the evaluation.
        entry: The name of the entry.
        content: A description of it.
        bytes: Its size.
    """

    round: int
    step: str
    entry: str
    content: str
    bytes: int


class _Recording(InProcess):
    """In process, with a list of the uploads of the first site."""

    uploads: list[Upload]

    def _execute(
        self, request: Request, deadline: float | None, deferral: Deferral | None = None
    ) -> Reply:
        reply = super()._execute(request, deadline, deferral)
        if request.client == SITES[0]:
            self.uploads += _uploads(request, reply)
        return reply


def _uploads(request: Request, reply: Reply) -> list[Upload]:
    """Return the entries of a reply."""
    step = "evaluation" if client_evaluation.handles(request.step) else request.step
    entries: dict[str, Any] = dict(reply.up or {})
    if reply.measured:
        entries["values of metrics"] = reply.measured
    uploads = []
    for name, value in entries.items():
        size = _size(Record(value=value))
        meaning = f"{_MEANINGS[name]}: " if name in _MEANINGS else ""
        uploads.append(Upload(request.round, step, name, meaning + _content(value), size))
    values = {**wire.to_wire(reply), "measured": []}
    uploads.append(Upload(request.round, step, "(envelope)", "times, steps", _size(Record(values))))
    return uploads


def _size(record: Record) -> int:
    return sum(map(len, pack(record)))


def _content(value: Any) -> str:
    """Describe a value in a few words.

    Example:
        >>> _content([1, 2])
        '2 entries'
    """
    if isinstance(value, Tree):
        tensors = list(value.values())
        return f"{len(tensors)} tensors, {sum(map(Tensor.numel, tensors)):,} numbers"
    if isinstance(value, Tensor):
        return f"{value.numel():,} numbers" if value.numel() != 1 else "a number"
    if isinstance(value, (Mapping, list, tuple)):
        return f"{len(value)} entries" if len(value) != 1 else "1 entry"
    return "a text" if isinstance(value, str) else "a number"


def measured(method: str, path: Path | None) -> list[Upload]:
    """Return the uploads of a site in a few rounds of a method, on random numbers.

    Args:
        method: The method.
        path: An experiment whose model, training and schema are used; None for a small table.

    Raises:
        ConfigurationError: If the experiment has no schema, or cannot be run with the method.
    """
    values = _values(method, path)
    recorder: list[_Recording] = []

    def connect(federation: Federation, experiment: Experiment) -> _Recording:
        transport = _Recording(federation, experiment)
        transport.uploads = []
        recorder.append(transport)
        return transport

    with tempfile.TemporaryDirectory() as folder:
        simulate.run(Experiment(**values), Path(folder) / "run", None, connect, quiet=True)
    return recorder[0].uploads


def _values(method: str, path: Path | None) -> dict[str, Any]:
    """Return the settings of an experiment over random numbers."""
    methods.find(method)  # an unknown name has the nearest one in its message
    task = Task("classification", (COLUMNS,), 2)
    values: dict[str, Any] = {"method": {"name": method}}
    if path is not None:
        content = load(path)
        whole = experiment(content)
        if whole.data.schema is None:
            raise ConfigurationError(
                f"{path}: expected an experiment with data.schema, from which inputs and classes "
                "follow, got none; leave --experiment out for a small table"
            )
        task = task_of(whole.data.schema)
        values |= {key: content[key] for key in _TAKEN if key in content}
        if type(parts(whole.build_method())[0]) is methods.find(method):
            values["method"] = content["method"]
    data = {"partition": "natural", "split": (0.6, 0.2, 0.2)}
    return values | {"data": data, "dataset": _random(task), "rounds": ROUNDS, "workers": 0}


def _random(task: Task) -> Dataset:
    """Return samples of random numbers that fit a task, of several sites."""
    draw = np.random.Generator(np.random.PCG64(0))
    count = SAMPLES * len(SITES)
    x = draw.random((count, *task.shape), dtype=np.float32)
    sites = np.repeat(SITES, SAMPLES)
    if task.classifies:
        y = np.arange(count) % task.outputs
        return from_arrays(x, y, name="random", sites=sites, kind="classification")
    return from_arrays(x, draw.random(count), name="random", sites=sites, kind="regression")


def show(method: str, path: Path | None) -> None:
    """Print the uploads of a site, with sizes and descriptions.

    Args:
        method: The method.
        path: An experiment whose model, training and schema are used; None for a small table.
    """
    uploads = measured(method, path)
    source = f"the model and schema of {path}" if path else f"a table of {COLUMNS} columns"
    summary = (methods.find(method).__doc__ or "").partition("\n")[0]
    output.say(f"{method}: {summary}", wrap=False)
    output.say(f"uploads of the site, measured with {source}:")
    output.table(["when", "step", "entry", "content", "bytes"], _rows(uploads))
    total = sum(upload.bytes for upload in uploads if upload.round == 2)
    output.say(f"a round in the middle sends {total:,} bytes.")
    for line in _WORDS:
        output.say(line)


_WORDS = (
    "Before the first round also: the task, the numbers of samples and classes by part of the "
    "data, and a digest of the prepared data.",
    "It stays here: rows, names of files, means and deviations, the state of this client, "
    "personal models, and texts of errors.",
    "The server sees every upload as it is. A model or a value that follows from few samples "
    "reveals something about each of them (docs/threat-model.md).",
)


def _rows(uploads: list[Upload]) -> list[list[Any]]:
    """Return a row per entry: those of the first, a middle and the last round, if they differ."""
    rounds: dict[tuple[str, str, str, int], list[int]] = {}
    for upload in uploads:
        key = (upload.step, upload.entry, upload.content, upload.bytes)
        rounds.setdefault(key, []).append(upload.round)
    rows = []
    for (step, entry, content, size), numbers in rounds.items():
        rows.append([_when(set(numbers)), step, entry, content, f"{size:,}"])
    return rows


def _when(rounds: set[int]) -> str:
    """Return when an entry is sent.

    Example:
        >>> _when({1, 2, 3}), _when({1}), _when({3})
        ('every round', 'first round', 'last round')
    """
    if rounds == set(range(1, ROUNDS + 1)):
        return "every round"
    if rounds == {1}:
        return "first round"
    if rounds == {ROUNDS}:
        return "last round"
    return "after the first round" if 1 not in rounds else "before the last round"
