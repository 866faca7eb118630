"""A run on disk, opened for reading: its configuration, its tables, its models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.data.roster import SHARED
from equipoise.metrics import registry
from equipoise.runs.scores import tables
from equipoise.storage.form import check_metadata, read_configuration
from equipoise.storage.lock import is_held
from equipoise.storage.outdated import outdated, with_its_defaults
from equipoise.storage.store import RunError, Store
from equipoise.storage.tables import CLIENT_PHASE
from equipoise.task import Task
from equipoise.validation.imports import Imports, permitted
from equipoise.validation.names import checked_name

if TYPE_CHECKING:
    from equipoise.experiment import Experiment

_COLUMNS = (
    "round",
    "client",
    "model",
    "phase",
    "split",
    "metric",
)  # of the long table, beside the value


def _selected(what: str, where: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return a query of the long table for rows with these values, and its parameters."""
    condition = " and ".join(f"{key} = ?" for key in where) or "1"
    return f"select {what} from measurements where {condition} order by rowid", list(where.values())


def _remember_metrics(folder: Path, facts: Any) -> None:
    """Register direction and unit of metrics that are not built in, as the run recorded them."""
    if facts is None:
        return
    try:
        for name, own in facts.items():
            registry.remember(name, own)
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(f"{folder} was not written by Equipoise: {error}") from None


class Run:
    """The record of an experiment."""

    def __init__(
        self,
        folder: str | Path,
        imports: Imports | None = None,
        experiment: Experiment | None = None,
    ) -> None:
        """Open a run.

        Args:
            folder: Its folder.
            imports: What its configuration may import, if this process gave the experiment itself.
            experiment: The experiment that this process has just run, with its Python objects.

        Raises:
            RunError: If the folder holds no run, or a damaged one.
        """
        self.folder = Path(folder)
        self.store = Store(self.folder)
        check_metadata(self.folder, self.store.meta)
        _remember_metrics(self.folder, self.store.meta("metrics"))
        self._imports = imports or Imports()
        self._experiment = experiment

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.status}, round {self.last_round} of {self.config['rounds']})"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration: enough to repeat the run."""
        return with_its_defaults(read_configuration(self.folder), self.store.meta("defaults"))

    @property
    def status(self) -> str:
        """Return "finished", "running" while a process works on it, or "stopped"."""
        found = str(self.store.meta("status"))
        return "stopped" if found == "running" and not is_held(self.folder) else found

    @property
    def outdated(self) -> str | None:
        """Return why this version would compute other numbers; None if it would not."""
        return outdated(
            self.config, self.store.meta("version"), self.store.meta("task"), self.clients
        )

    @property
    def last_round(self) -> int:
        """The last committed round of training; 0 before the first."""
        rows = self.store.rows(
            "select max(round) as last from rounds where round <= ?", (self.config["rounds"],)
        )
        return int(rows[0]["last"] or 0)

    @property
    def stopped_early(self) -> bool:
        """True if a callback ended training before the last round of the experiment."""
        return self.status == "finished" and self.last_round < self.config["rounds"]

    @cached_property
    def task(self) -> Task:
        """The task: kind, shape of inputs, number of outputs, names of classes."""
        return Task.of(self.store.meta("task"))

    @cached_property
    def clients(self) -> list[str]:
        """The clients, in the order of the federation."""
        found = self.store.meta("clients")
        try:
            return [checked_name(client, "client id") for client in found]
        except (TypeError, ValueError) as error:
            raise RunError(f"{self.folder} was not written by Equipoise: {error}") from None

    @property
    def recipe(self) -> dict[str, Any]:
        """The preparation of inputs, by which new data are prepared in the same way."""
        recipe: dict[str, Any] = self.store.meta("recipe")
        return recipe

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Within it all reads see the run at one moment, also while it is in progress."""
        database = self.store.db
        if database.in_transaction:
            yield
            return
        database.execute("begin")
        try:
            yield
        finally:
            database.execute("rollback")

    def table(self, **where: Any) -> list[dict[str, Any]]:
        """Return the long table: one record per round, client, model, phase, split and metric.

        `pandas.DataFrame` takes it as it is.

        Args:
            where: Values of columns that select rows: `run.table(phase="final", split="test")`.

        Raises:
            TypeError: There is no such column.
        """
        for key in where:
            if key not in _COLUMNS:
                raise TypeError(
                    f"table: unknown column {key!r}; expected one of {', '.join(_COLUMNS)}"
                )
        return self.store.rows(*_selected("*", where))

    def columns(self, *names: str, **where: Any) -> list[tuple[Any, ...]]:
        """Return some columns of the table as plain tuples, which is fast for very many clients."""
        return self.store.tuples(*_selected(", ".join(names), where))

    def weights(self) -> list[dict[str, Any]]:
        """Return the share of each client in the aggregate of each round."""
        return self.store.rows("select * from weights order by rowid")

    def rounds(self) -> list[dict[str, Any]]:
        """Return one record per committed round: cohort, joined, bytes each way, seconds by phase."""
        return self._records(1, self.config["rounds"])

    def client_seconds(self) -> list[dict[str, Any]]:
        """Return the seconds that each client's steps took in each round of training.

        They are rows with round, client and seconds; none in runs of versions that did not record
        them.
        """
        rows = self.store.rows(
            "select round, phase, seconds from seconds "
            "where phase like ? and round between 1 and ? order by rowid",
            (f"{CLIENT_PHASE}%", self.config["rounds"]),
        )
        return [
            {
                "round": row["round"],
                "client": row["phase"].removeprefix(CLIENT_PHASE),
                "seconds": row["seconds"],
            }
            for row in rows
        ]

    def finish(self) -> list[dict[str, Any]]:
        """Return the records after the last round, as `rounds` does.

        Most methods have none. Clients that missed the final phase have one more.
        """
        return self._records(self.config["rounds"] + 1, 2**62)

    def _records(self, first: int, last: int) -> list[dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for row in self.store.rows(
            """select r.*, s.phase as timed, s.seconds
               from rounds as r left join seconds as s on s.round = r.round and s.phase not like ?
               where r.round between ? and ? order by r.round, s.rowid""",
            (f"{CLIENT_PHASE}%", first, last),
        ):
            phase, seconds = row.pop("timed"), row.pop("seconds")
            if row["round"] not in found:
                found[row["round"]] = {
                    **row,
                    "cohort": json.loads(row["cohort"]),
                    "joined": json.loads(row["joined"]),
                    "seconds": {},
                }
            if phase is not None:
                found[row["round"]]["seconds"][phase] = seconds
        return list(found.values())

    def rejected(self) -> list[dict[str, Any]]:
        """Return the replies that did not count, with the reason of each."""
        return self.store.rows("select * from rejected order by rowid")

    def replay(self) -> dict[str, Any]:
        """Return a configuration that repeats this run in process, bit for bit except for times.

        It scripts the cohort of every round, with the attempt that counted. It also scripts every
        reply that did not count for a reason that the simulated faults of the experiment do not
        cause again: a missed deadline, a lost site, a refused upload. Use it as
        `equipoise.run(run.replay())`.
        """
        from equipoise.engine.faults import FaultPlan
        from equipoise.experiment import Faults
        from equipoise.training import Training

        config = self.config
        # after the last round all are asked: no script is needed
        counted = {row["round"]: row for row in self.rounds() + self.finish()}
        cohorts = {
            row["round"]: {"clients": row["cohort"], "attempt": row["attempt"]}
            for row in self.rounds()
        }
        faults, sizes = (
            config.get("faults", {}),
            dict(zip(self.clients, self.store.meta("sizes")["train"], strict=True)),
        )
        plan = FaultPlan(Faults(**faults), Training(**config["training"]), config["seed"])
        lost = []
        for row in self.rejected():
            when = {key: row[key] for key in ("round", "attempt", "exchange", "client")}
            if (
                row["attempt"] == counted[row["round"]]["attempt"]
                and plan.missing(**when, samples=sizes[row["client"]])[0] is None
            ):
                lost.append({**when, "kind": "drop"})
        participation = config.get("participation", {})
        budget = config.get("budget")
        if budget is not None and self.status == "finished":
            # Another machine would spend the seconds in other rounds.
            budget = {**budget, "rounds": self.last_round}
        return {
            **config,
            **({} if budget is None else {"budget": budget}),
            "participation": {
                **participation,
                "script": {int(n): one for n, one in participation.get("script", {}).items()}
                | cohorts,
            },
            "faults": {**faults, "script": [*faults.get("script", ()), *lost]},
            "workers": 0,
        }

    def final(
        self, metric: str | None = None, model: str | None = None, split: str | None = None
    ) -> dict[str, float]:
        """Return client -> value at the end, or after the last measured round of a run in progress.

        A client for whose samples the metric does not exist is absent; NaN is the value of a model
        that has diverged.

        Args:
            metric: The metric; by default the main one of the run.
            model: The served model; by default the main one.
            split: The part of the data; by default the test data.
        """
        metric, model = metric or self.main_metric, model or self.main_model
        split = split or self.main_split
        selection = {"metric": metric, "model": model, "split": split}
        rows = []
        if self.store.last_round() > self.config["rounds"]:
            rows = self.columns("client", "value", phase="final", **selection)
        if not rows:
            last = self.columns("max(round)", phase="received", metric=metric, model=model)[0][0]
            rows = self.columns("client", "value", round=last, phase="received", **selection)
        return {client: float("nan") if value is None else value for client, value in rows}

    def majority(self) -> dict[str, float]:
        """Return client -> accuracy of always predicting the most frequent class of its test data.

        It is empty for a run of an older version.
        """
        return dict(
            self.columns(
                "client", "value", phase="reference", model="majority", split=self.main_split
            )
        )

    @property
    def test_sizes(self) -> dict[str, int]:
        """Client -> number of test samples, its own or those of the shared test set."""
        shared = self.store.meta("shared test")
        if shared:
            return dict.fromkeys([*self.clients, SHARED], int(shared))
        return dict(zip(self.clients, self.store.meta("sizes")["test"], strict=True))

    def counts(self, model: str | None = None) -> dict[str, Any]:
        """Return client -> histogram of scores (see `metrics.score_histograms`), of those that sent one.

        Args:
            model: The served model; by default the main one.
        """
        return tables(self.store, self.task, model or self.main_model, self.main_split)

    @property
    def main_metric(self) -> str:
        """The metric that results are about."""
        asked = self.config["evaluation"]
        return registry.main_of(
            registry.measured(self.task, asked["metrics"], asked.get("main")), asked.get("main")
        )

    @property
    def main_split(self) -> str:
        """Return "test" for the test data of each client, "shared" if there is a shared test set."""
        return "shared" if self.store.meta("shared test") else "test"

    @property
    def main_model(self) -> str:
        """The served model that clients end up using, as the method marks it."""
        marked = self.store.meta("main model")
        if marked is not None:
            return str(marked)
        names = self.models()  # a run of version 0.1, whose method marks none
        for name in ("personal", "global"):
            if name in names:
                return name
        return names[0] if names else "global"

    def models(self) -> list[str]:
        """Return the names of the served models that were measured."""
        rows = self.store.rows("select distinct model from measurements where phase = 'received'")
        return [row["model"] for row in rows]

    def model(
        self,
        name: str = "global",
        client: str | None = None,
        given: Any = None,
        allow_imports: Iterable[str] = (),
    ) -> Any:
        """A trained model as a loaded torch module: `run.model("global")`, `run.model("personal", client="3")`.

        A run that is opened from its folder and whose model or method was a Python object needs it again: `given` is the experiment it was
        started with. The run that `equipoise.run` has just returned still has it. Code that the run's file names is imported from the packages in `allow_imports` only.
        """
        from equipoise.client import Client
        from equipoise.engine.evaluation import alike
        from equipoise.experiment import experiment
        from equipoise.experiment.build import prepare
        from equipoise.records import read
        from equipoise.runtime.client_evaluation import network, served
        from equipoise.server import Server
        from equipoise.storage.checkpoint import load_server

        if self.store.last_round() < 0:
            raise RunError(f"{self.folder} has no checkpoint yet; wait for its first round")
        if client is not None and client not in self.clients:
            raise RunError(
                f"no client {client!r} in {self.folder}; it has {', '.join(self.clients[:12])}"
            )
        try:
            wanted = (
                given
                or self._experiment
                or experiment(self.config, self._imports | permitted(self.config, allow_imports))
            )
            bench, method = prepare(wanted, self.task, self.clients)
        except ValueError as error:
            reason = self.store.meta("not portable")
            if reason is None or given is not None:
                raise
            raise RunError(
                f"{self.folder} cannot be rebuilt from its file alone: {reason}; call run.model(..., given=experiment)"
            ) from error
        sizes = dict(zip(self.clients, self.store.meta("sizes")["train"], strict=True))
        round = max(0, self.store.last_round())
        server = Server(bench, self.clients, sizes, self.config["rounds"], round)
        who = client if client is not None else self.clients[0]
        self.store.check_files(who)
        saved = self.store.current("client", who).get(who)
        away = saved is not None and saved.kept_at == "client"
        state = {} if saved is None or away else dict(read(saved.path, lazy=False))
        someone = Client(bench, who, round, self.config["rounds"], state)
        saved_state = load_server(self.store)
        try:
            models = served(method, someone, method.deliver(server, saved_state, who))
        except Exception:  # whatever a method does without the state
            if not away:
                raise
            models = {}
        if away and not (name in models and models[name].same_for_all):
            raise RunError(
                f"model {name!r} of client {who!r} follows from a state that lies on that client's own disk; at a site: `equipoise predict --site FOLDER RUN`"
            )
        if name not in models:
            raise RunError(
                f"no model {name!r} in {self.folder}; its method serves {', '.join(models)}"
            )
        if client is None and not (
            models[name].same_for_all
            and alike(method.deliver(server, saved_state, other) for other in self.clients)
        ):
            raise RunError(
                f"model {name!r} belongs to a client; say which with --client (in Python client=), {self.clients[0]!r}, say"
            )
        return network(models[name], someone)
