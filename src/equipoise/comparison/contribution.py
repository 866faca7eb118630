"""Contributions of clients, by training every coalition of them and by cheap estimates.

The value of a coalition is the main metric of the shared model that it trains, on the test data of
all clients together. All coalitions have the same prepared data, seed and settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from equipoise.data import Federation, Parts, federate
from equipoise.data.roster import roster_of
from equipoise.data.samples import Samples
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.experiment import experiment as experiment_from
from equipoise.experiment.build import prepare
from equipoise.method import Method
from equipoise.metrics import registry
from equipoise.metrics.shapley import (
    Coalition,
    coalitions,
    guided_shapley,
    leave_one_out,
    shapley_values,
)
from equipoise.runs import Run, read_result
from equipoise.runtime.client_evaluation import score
from equipoise.runtime.messages import Reply, Request
from equipoise.session import configuration
from equipoise.simulate import run as run_experiment
from equipoise.storage.checkpoint import load_server
from equipoise.storage.files import save_output
from equipoise.storage.store import RunError
from equipoise.streams import stream
from equipoise.training.workbench import Workbench, one_thread
from equipoise.transports.inprocess import InProcess
from equipoise.tree import Tree, combine
from equipoise.weighting import cosines

MOST_CLIENTS = 8  # for all coalitions: 256 runs
PERMUTATIONS = 10  # of GTG-Shapley: how often each client stands first in a round
TRUNCATION = 1e-3  # of GTG-Shapley, within and between rounds
VALUES = "coalitions.jsonl"
RESULT = "contribution.json"
EXACT = "shapley"
RECORDING = ("cffl", "cgsv", "fedave", "fedsac")  # methods that record contributions


@dataclass(frozen=True)
class Contributions:
    """Contributions of clients by several rules.

    Attributes:
        clients: The clients.
        metric: The metric that values coalitions.
        values: Rule -> client -> contribution; the exact Shapley values first.
        correlations: Rule -> Spearman's rank correlation with the exact values; NaN if a rule
            gives all clients the same.
        nobody: The value of the initial model.
        everyone: The value of the model of all clients.
        notes: Sentences about rules that have no values.
    """

    clients: list[str]
    metric: str
    values: dict[str, dict[str, float]]
    correlations: dict[str, float]
    nobody: float
    everyone: float
    notes: list[str] = field(default_factory=list)


@dataclass
class _Round:
    """The models of one round: the received one, and those that clients uploaded."""

    received: Tree
    uploaded: dict[str, Tree]


class _Recorder(InProcess):
    """A transport that remembers the models of every round."""

    def __init__(self, rounds: dict[int, _Round], federation: Federation, experiment: Any) -> None:
        super().__init__(federation, experiment)
        self.rounds = rounds

    def exchange(self, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
        """Execute requests; see `InProcess.exchange`."""
        replies = super().exchange(requests, deadline)
        for request, reply in zip(requests, replies, strict=True):
            is_model = reply.up is not None and isinstance(reply.up.get("model"), Tree)
            if request.step == "client" and is_model and "model" in request.down:
                assert reply.up is not None
                current = self.rounds.setdefault(request.round, _Round(request.down["model"], {}))
                current.uploaded[request.client] = reply.up["model"]
        return replies


def contribution(
    base: Experiment | Mapping[str, Any],
    out: str | Path,
    methods: Sequence[str] = RECORDING,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Contributions:
    """Compute how much each client contributes to the shared model.

    Values of coalitions are saved as they come, so that a second call continues.

    Args:
        base: The experiment.
        out: A folder for the values of coalitions and the result.
        methods: Methods that record contributions, which are compared with the exact ones.
        force: Train all coalitions of more than eight clients, too.
        progress: Called with the number of coalitions that are known, and of all.

    Raises:
        ConfigurationError: If there are more than eight clients, or the method has no shared model.
        RunError: If the folder belongs to another experiment.
    """
    experiment = base if isinstance(base, Experiment) else experiment_from(base)
    game = _Game.of(experiment, Path(out), force)
    values = game.values(progress or (lambda known, total: None))
    clients = list(game.federation.ids)
    rules = {
        EXACT: shapley_values(values, clients),
        "leave_one_out": leave_one_out(values, clients),
    }
    notes: list[str] = []
    rounds = game.rounds()
    if rounds:
        rules["gtg_shapley"] = _gtg(game, rounds, clients)
        rules["cosine"] = _mean_cosines(game, rounds, clients)
    else:
        notes.append("no estimate from uploads: the method uploads no models")
    for name in methods:
        rules |= _recorded(game, name, notes)
    correlations = {}
    for name, estimates in rules.items():
        if name != EXACT:
            correlations[name] = _correlation(rules[EXACT], estimates)
    result = Contributions(
        clients,
        game.metric,
        rules,
        correlations,
        values[frozenset()],
        values[frozenset(clients)],
        notes,
    )
    plain = json.dumps(_without_nan(asdict(result)), indent=1, allow_nan=False)
    save_output(Path(out) / RESULT, plain + "\n")
    return result


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass
class _Game:
    """The coalitions of the clients of an experiment.

    Attributes:
        experiment: The experiment.
        federation: The prepared data of all clients.
        folder: The folder of the values.
        bench: Networks for evaluation.
        method: The method.
    """

    experiment: Experiment
    federation: Federation
    folder: Path
    bench: Workbench
    method: Method

    @classmethod
    def of(cls, experiment: Experiment, folder: Path, force: bool) -> _Game:
        changes = {
            "workers": 0,
            "evaluation": experiment.evaluation.model_copy(update={"every": 0}),
        }
        experiment = experiment.model_copy(update=changes)
        federation = federate(
            experiment.data, experiment.seed, experiment.dataset, experiment.imports
        )
        experiment = experiment.with_model(federation.task.shape)
        count = len(federation.ids)
        if count > MOST_CLIENTS and not force:
            raise ConfigurationError(
                f"expected at most {MOST_CLIENTS} clients, whose coalitions need "
                f"{2**MOST_CLIENTS - 1} runs, got {count}, which need {2**count - 1:,}; use fewer "
                "clients, or --force"
            )
        if not len(federation.test.index) and not len(federation.shared_test):
            raise ConfigurationError("expected test data, got none; give data.split a test share")
        bench, method = prepare(experiment, federation.task, federation.ids, federation)
        if not method.shares_model:
            raise ConfigurationError(
                f"expected a method whose clients train a model together, got {method.title}; "
                "choose fedavg, say"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return cls(experiment, federation, folder, bench, method)

    @property
    def metric(self) -> str:
        """The metric that values coalitions."""
        settings = self.experiment.evaluation
        measured = registry.measured(self.federation.task, settings.metrics, settings.main)
        return registry.main_of(measured, settings.main)

    def values(self, progress: Callable[[int, int], None]) -> dict[Coalition, float]:
        """Return the value of every coalition; those that are not known yet are trained."""
        every = coalitions(self.federation.ids)
        known = self._read()
        for coalition in every:
            progress(len(known), len(every))
            if coalition not in known:
                began = time.perf_counter()
                known[coalition] = self._trained(coalition)
                self._append(coalition, known[coalition], time.perf_counter() - began)
        progress(len(known), len(every))
        return known

    def _trained(self, coalition: Coalition) -> float:
        """Train a coalition, or nobody, and return the value of its model."""
        if not coalition:
            return self.value(self.bench.initial("model"))
        scratch = self.folder / "training"
        shutil.rmtree(scratch, ignore_errors=True)
        connect = partial(_connected, sorted(coalition, key=self.federation.ids.index))
        run = run_experiment(self.experiment, scratch, None, connect, quiet=True)
        tree = _shared_model(run, self.method)
        run.store.close()
        shutil.rmtree(scratch, ignore_errors=True)
        return self.value(tree)

    def value(self, tree: Tree) -> float:
        """Return the value of a model on the test data of all clients; higher is better."""
        rows = self.federation.shared_test
        if not len(rows):
            rows = np.unique(self.federation.test.index)
        samples = Samples.of(self.federation, rows)
        with one_thread(), self.bench.lending():
            outputs = self.bench.outputs(self.bench.take(tree.model, tree), samples)
        metric = registry.find(self.metric, self.federation.task)
        value = score(self.federation.task, outputs, samples.y, [metric])[metric.name]
        return -value if metric.lower_is_better else value

    def rounds(self) -> list[_Round]:
        """Train all clients once more, and return the models of every round."""
        recorded: dict[int, _Round] = {}
        scratch = self.folder / "training"
        shutil.rmtree(scratch, ignore_errors=True)
        connect = partial(_Recorder, recorded)
        run = run_experiment(self.experiment, scratch, None, connect, quiet=True)
        run.store.close()
        shutil.rmtree(scratch, ignore_errors=True)
        return [recorded[number] for number in sorted(recorded)]

    def _identity(self) -> str:
        """Return a digest of experiment and data, to which values of coalitions belong."""
        content = configuration(self.experiment) + roster_of(self.federation).fingerprint
        return hashlib.sha256(content.encode()).hexdigest()

    def _read(self) -> dict[Coalition, float]:
        file = self.folder / VALUES
        if not file.exists():
            file.write_text(json.dumps({"experiment": self._identity()}) + "\n")
            return {}
        text = file.read_text(encoding="utf-8")
        if not text.endswith("\n"):  # a kill cut the last line off
            text = text[: text.rfind("\n") + 1]
            save_output(file, text)
        first, *lines = text.splitlines() or [""]
        try:
            owner = json.loads(first)["experiment"]
            rows = [json.loads(line) for line in lines]
            known = {frozenset(row["clients"]): float(row["value"]) for row in rows}
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{file} is damaged; remove it, or choose another --out") from None
        if owner != self._identity():
            raise RunError(
                f"{self.folder} holds coalitions of another experiment or other data; choose "
                "another --out"
            )
        return known

    def _append(self, coalition: Coalition, value: float, seconds: float) -> None:
        row = {"clients": sorted(coalition), "value": value, "seconds": round(seconds, 3)}
        with (self.folder / VALUES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _connected(clients: Sequence[str], federation: Federation, experiment: Experiment) -> InProcess:
    """Return a transport to some of the clients of a federation."""
    positions = [federation.ids.index(client) for client in clients]

    def chosen(parts: Parts) -> Parts:
        return Parts.of([parts[position] for position in positions])

    own = replace(
        federation,
        ids=tuple(clients),
        train=chosen(federation.train),
        validation=chosen(federation.validation),
        test=chosen(federation.test),
    )
    return InProcess(own, experiment)


def _shared_model(run: Run, method: Method) -> Tree:
    """Return the shared model that a run trained."""
    state = load_server(run.store)
    model = state.get("model")
    if not isinstance(model, Tree):
        raise ConfigurationError(
            f"expected a method whose server has a model, got {method.title}; choose fedavg, say"
        )
    return model


def _gtg(game: _Game, rounds: Sequence[_Round], clients: Sequence[str]) -> dict[str, float]:
    """Return GTG-Shapley: values of models that are rebuilt from the uploads of each round."""
    sizes = dict(zip(game.federation.ids, game.federation.train.sizes.tolist(), strict=True))
    totals = dict.fromkeys(clients, 0.0)
    rng = stream(game.experiment.seed, "gtg shapley")
    for current in rounds:
        members = [client for client in clients if client in current.uploaded]
        value = partial(_rebuilt_value, game, current, sizes)
        # Truncation between rounds: a round that moves nothing is left out.
        if abs(value(frozenset(members)) - value(frozenset())) < TRUNCATION:
            continue
        for client, own in guided_shapley(value, members, rng, PERMUTATIONS, TRUNCATION).items():
            totals[client] += own
    return totals


def _rebuilt_value(
    game: _Game, current: _Round, sizes: Mapping[str, int], coalition: Coalition
) -> float:
    """Return the value of the mean of a coalition's uploads; of the received model for nobody."""
    members = [client for client in current.uploaded if client in coalition]
    if not members:
        return game.value(current.received)
    weights = [float(sizes[client]) for client in members]
    mean = combine([current.uploaded[client] for client in members], weights, sum(weights))
    return game.value(mean)


def _mean_cosines(
    game: _Game, rounds: Sequence[_Round], clients: Sequence[str]
) -> dict[str, float]:
    """Return the mean cosine between a client's update and that of all, as in CGSV."""
    sizes = dict(zip(game.federation.ids, game.federation.train.sizes.tolist(), strict=True))
    values: dict[str, list[float]] = {client: [] for client in clients}
    for current in rounds:
        members = list(current.uploaded)
        steps = [current.uploaded[client] - current.received for client in members]
        weights = [float(sizes[client]) for client in members]
        whole = combine(steps, weights, sum(weights))
        vectors = np.stack([step.flat().numpy() for step in (*steps, whole)])
        towards_all = cosines(vectors @ vectors.T)[:-1, -1]
        for client, cosine in zip(members, towards_all.tolist(), strict=True):
            values[client].append(cosine)
    return {client: float(np.mean(own)) if own else math.nan for client, own in values.items()}


def _recorded(game: _Game, name: str, notes: list[str]) -> dict[str, dict[str, float]]:
    """Return the contributions that a method records on the same data; a refusal is a note."""
    folder = game.folder / f"run-{name}"
    try:
        finished = (folder / "run.db").exists() and Run(folder).status == "finished"
        if not finished:
            shutil.rmtree(folder, ignore_errors=True)
            config = {**game.experiment.model_dump(), "method": {"name": name}}
            own = experiment_from({**config, "dataset": game.experiment.dataset})
            run_experiment(own, folder, None, InProcess, quiet=True)
        recorded = read_result(Run(folder)).contributions
    except ValueError as error:
        notes.append(f"{name} was not run: {error}")
        return {}
    return {f"{name} ({key})": dict(values) for key, values in recorded.items()}


def _correlation(exact: Mapping[str, float], own: Mapping[str, float]) -> float:
    """Return Spearman's rank correlation; NaN if all values of one are the same."""
    clients = [client for client in exact if math.isfinite(own.get(client, math.nan))]
    first = [exact[client] for client in clients]
    second = [own[client] for client in clients]
    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(spearmanr(first, second).statistic)
