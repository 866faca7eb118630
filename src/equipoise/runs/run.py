"""A run on disk, opened for reading: its configuration, its tables, its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from equipoise.data.roster import SHARED
from equipoise.metrics import registry
from equipoise.runs.scores import read_group_histograms, read_histograms, read_life_tables
from equipoise.storage.form import check_metadata, clients_in, read_configuration
from equipoise.storage.lock import is_held
from equipoise.storage.outdated import outdated, with_its_defaults
from equipoise.storage.store import RunError, Store
from equipoise.storage.tables import CLIENT_PHASE
from equipoise.task import Task
from equipoise.validation.deprecation import renamed_argument
from equipoise.validation.imports import Imports, permitted
from equipoise.validation.names import checked_name

if TYPE_CHECKING:
    from equipoise.experiment import Experiment

Value = TypeVar("Value")
# Facts that a run needs all the time, and that never change; they are read at once.
_UNCHANGING = ("clients", "created", "data", "defaults", "metrics", "shared test", "task")
# The columns by which rows of the long table can be selected.
_COLUMNS = ("round", "client", "model", "phase", "split", "metric")


def _selection(columns: str, where: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return a query of the long table for rows with these values, and its parameters."""
    condition = " and ".join(f"{key} = ?" for key in where) or "1"
    query = f"select {columns} from measurements where {condition} order by rowid"
    return query, list(where.values())


def _remember_metrics(folder: Path, facts: Any) -> None:
    """Register direction and unit of metrics that are not built in, as the run recorded them."""
    if facts is None:
        return
    try:
        for name, fact in facts.items():
            registry.remember(name, fact)
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(f"{folder} was not written by Equipoise: {error}") from None


class Run:
    """The record of an experiment."""

    def __init__(
        self,
        folder: str | Path,
        imports: Imports | None = None,
        experiment: Experiment | None = None,
        checked: bool = True,
    ) -> None:
        """Open a run.

        Args:
            folder: Its folder.
            imports: What its configuration may import, if this process made the experiment.
            experiment: The experiment that this process has just run, with its Python objects.
            checked: False to check no more of its database than what is read of it, which is
                faster where hundreds of runs are listed.

        Raises:
            RunError: If the folder holds no run, or a damaged one.
        """
        self.folder = Path(folder)
        self.store = Store(self.folder, checked=checked)
        if checked:
            check_metadata(self.folder, self.store.facts)
        self._facts = self.store.facts(_UNCHANGING)
        _remember_metrics(self.folder, self._facts.get("metrics"))
        self._imports = imports or Imports()
        self._experiment = experiment

    def __repr__(self) -> str:
        progress = f"round {self.last_round} of {self.config['rounds']}"
        return f"Run({str(self.folder)!r}, {self.status}, {progress})"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration: enough to repeat the run."""
        return with_its_defaults(read_configuration(self.folder), self._facts.get("defaults"))

    @property
    def status(self) -> str:
        """Return "finished", "running" while a process works on it, or "stopped"."""
        status = str(self.store.meta("status"))
        if status == "running" and not is_held(self.folder):
            return "stopped"
        return status

    @property
    def held_out_rounds(self) -> int | None:
        """The last round up to which clients did not train on validation data; None: in none."""
        rounds = self.store.meta("held out rounds")
        return rounds if type(rounds) is int else None

    @property
    def outdated(self) -> str | None:
        """Return why this version would compute other numbers; None if it would not."""
        return outdated(self.config, self.store.meta("version"), self._facts["task"], self.clients)

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
        return Task.of(self._facts["task"])

    @property
    def data(self) -> str:
        """The name of the data."""
        return str(self._facts["data"])

    @property
    def created(self) -> str:
        """The time of creation in ISO format."""
        return str(self._facts["created"])

    @cached_property
    def clients(self) -> list[str]:
        """The clients, in the order of the federation."""
        clients = self._facts["clients"]
        try:
            return [checked_name(client, "client id") for client in clients]
        except (TypeError, ValueError) as error:
            raise RunError(f"{self.folder} was not written by Equipoise: {error}") from None

    @property
    def recipe(self) -> dict[str, Any]:
        """The preparation of inputs, by which new data are prepared in the same way."""
        recipe: dict[str, Any] = self.store.meta("recipe")
        return recipe

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Let all reads within this context see the run at one moment, even while it runs."""
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

        `pandas.DataFrame` accepts it.

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
        return self.store.rows(*_selection("*", where))

    def columns(self, *names: str, **where: Any) -> list[tuple[Any, ...]]:
        """Return some columns of the table as plain tuples, which is fast for very many clients."""
        return self.store.tuples(*_selection(", ".join(names), where))

    def weights(self) -> list[dict[str, Any]]:
        """Return the share of each client in the aggregate of each round."""
        return self.store.rows("select * from weights order by rowid")

    def rounds(self) -> list[dict[str, Any]]:
        """Return one record per committed round.

        A record has the cohort, the clients that joined, bytes each way and seconds by phase.
        """
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
        result = []
        for row in rows:
            client = row["phase"].removeprefix(CLIENT_PHASE)
            result.append({"round": row["round"], "client": client, "seconds": row["seconds"]})
        return result

    def finish(self) -> list[dict[str, Any]]:
        """Return the records after the last round, as `rounds` does.

        Most methods have none. Clients that missed the final phase have one more.
        """
        return self._records(self.config["rounds"] + 1, 2**62)

    def _records(self, first: int, last: int) -> list[dict[str, Any]]:
        """Return the records of rounds from `first` to `last`."""
        rows = self.store.rows(
            """select r.*, s.phase as timed, s.seconds
               from rounds as r left join seconds as s on s.round = r.round and s.phase not like ?
               where r.round between ? and ? order by r.round, s.rowid""",
            (f"{CLIENT_PHASE}%", first, last),
        )
        records: dict[int, dict[str, Any]] = {}
        for row in rows:  # A round has one row per phase.
            phase = row.pop("timed")
            seconds = row.pop("seconds")
            number = row["round"]
            if number not in records:
                cohort = clients_in(row["cohort"], self.folder)
                joined = clients_in(row["joined"], self.folder)
                records[number] = {**row, "cohort": cohort, "joined": joined, "seconds": {}}
            if phase is not None:
                records[number]["seconds"][phase] = seconds
        return list(records.values())

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
        config = dict(self.config)
        participation = config.get("participation", {})
        faults = config.get("faults", {})
        cohorts = {int(number): row for number, row in participation.get("script", {}).items()}
        for row in self.rounds():
            cohorts[row["round"]] = {"clients": row["cohort"], "attempt": row["attempt"]}
        lost = [*faults.get("script", ()), *self._lost_replies()]
        for client, number in self.store.restarted():
            lost.append({"round": max(1, number), "client": client, "kind": "restart"})
        config["participation"] = {**participation, "script": cohorts}
        config["faults"] = {**faults, "script": lost}
        config["workers"] = 0
        budget = config.get("budget")
        if budget is not None and self.status == "finished":
            # Another machine would spend the seconds in other rounds.
            config["budget"] = {**budget, "rounds": self.last_round}
        return config

    def _lost_replies(self) -> list[dict[str, Any]]:
        """Return the lost replies that simulated faults do not cause again, as scripted faults."""
        from equipoise.engine.faults import FaultPlan
        from equipoise.experiment import Faults
        from equipoise.training import Training

        faults = Faults(**self.config.get("faults", {}))
        plan = FaultPlan(faults, Training(**self.config["training"]), self.config["seed"])
        sizes = dict(zip(self.clients, self.store.meta("sizes")["train"], strict=True))
        attempts = {row["round"]: row["attempt"] for row in [*self.rounds(), *self.finish()]}
        lost = []
        for row in self.rejected():
            if row["attempt"] != attempts[row["round"]]:
                continue
            event = {key: row[key] for key in ("round", "attempt", "exchange", "client")}
            reason, _ = plan.missing(**event, samples=sizes[row["client"]])
            if reason is None:
                lost.append({**event, "kind": "drop"})
        return lost

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
        if not rows and self._is_unevaluated():
            return {}
        if not rows:
            last = self.columns("max(round)", phase="received", metric=metric, model=model)[0][0]
            rows = self.columns("client", "value", round=last, phase="received", **selection)
        return self._in_order(
            {client: float("nan") if value is None else value for client, value in rows}
        )

    def _in_order(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return values in the order of the clients; late evaluations are stored after others."""
        order = (*self.clients, SHARED)
        return {client: values[client] for client in order if client in values}

    def _is_unevaluated(self) -> bool:
        """Return True if the run is finished, but all clients missed its last evaluation.

        The values of the round before are not those of the models that clients now have.
        """
        return self.status == "finished" and set(self.clients) <= set(self.store.unevaluated())

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
        shared = self._facts["shared test"]
        if shared:
            return dict.fromkeys([*self.clients, SHARED], int(shared))
        return dict(zip(self.clients, self.store.meta("sizes")["test"], strict=True))

    def counts(self, model: str | None = None) -> dict[str, Any]:
        """Return client -> histogram of scores, of the clients that sent one.

        See `metrics.score_histograms`.

        Args:
            model: The served model; by default the main one.
        """
        model = model or self.main_model
        return self._in_order(read_histograms(self.store, self.task, model, self.main_split))

    def group_counts(self, model: str | None = None) -> dict[tuple[str, str, str], Any]:
        """Return client, column and group -> histogram of scores, of the groups that were sent.

        Args:
            model: The served model; by default the main one.
        """
        model = model or self.main_model
        return read_group_histograms(self.store, self.task, model, self.main_split)

    def life_tables(self, model: str | None = None) -> dict[str, Any]:
        """Return client -> life table of two risk groups, of the clients that sent one.

        See `metrics.life_tables`; there are none but in survival analysis.

        Args:
            model: The served model; by default the main one.
        """
        model = model or self.main_model
        return read_life_tables(self.store, self.task, model, self.main_split)

    @property
    def main_metric(self) -> str:
        """The metric that results are about."""
        evaluation = self.config["evaluation"]
        main = evaluation.get("main")
        metrics = registry.measured(self.task, evaluation["metrics"], main)
        return registry.main_of(metrics, main)

    @property
    def main_split(self) -> str:
        """The name of the test data: "shared" for a shared test set, "test" for each client's."""
        return "shared" if self._facts["shared test"] else "test"

    @property
    def main_model(self) -> str:
        """The served model that clients end up using, as the method marks it."""
        marked = self.store.meta("main model")
        if marked is not None:
            return str(marked)
        names = self.models()  # Methods of version 0.1 mark none.
        for name in ("personal", "global"):
            if name in names:
                return name
        return names[0] if names else "global"

    @property
    def is_measured(self) -> bool:
        """True if some served model was measured."""
        return bool(
            self.store.tuples("select 1 from measurements where phase = 'received' limit 1")
        )

    def models(self) -> list[str]:
        """Return the names of the served models that were measured."""
        rows = self.store.rows("select distinct model from measurements where phase = 'received'")
        return [row["model"] for row in rows]

    @renamed_argument("given", "experiment")
    def model(
        self,
        name: str = "global",
        client: str | None = None,
        experiment: Experiment | None = None,
        allow_imports: Iterable[str] = (),
    ) -> Any:
        """Return a trained model as a loaded torch module.

        Use it as `run.model("global")` or `run.model("personal", client="3")`.

        Args:
            name: The name of a served model.
            client: The client whose model it is; not needed if all clients have the same.
            experiment: The experiment that the run was started with. It is needed if its model or
                method was a Python object and the run was opened from its folder. The run that
                `equipoise.run` returned still has it.
            allow_imports: Packages whose code the file of the run may name.

        Raises:
            RunError: If there is no such model or client, or the model cannot be rebuilt.
        """
        from equipoise.runs.trained_models import Checkpoint

        if self.store.last_round() < 0:
            raise RunError(f"{self.folder} has no checkpoint yet; wait for its first round")
        if client is not None and client not in self.clients:
            raise RunError(
                f"no client {client!r} in {self.folder}; it has {', '.join(self.clients[:12])}"
            )
        imports = self._imports | permitted(self.config, allow_imports)
        checkpoint = Checkpoint(self.store, self.config, self.task, self.clients)
        bench, method = checkpoint.rebuild(experiment or self._experiment, imports)
        return checkpoint.model(name, client, bench, method)
