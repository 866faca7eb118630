"""Models that a site keeps after the last evaluation of a run, with all that they need."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from equipoise.client import Client
from equipoise.experiment import Experiment
from equipoise.experiment.build import prepare
from equipoise.method import Served
from equipoise.records import CannotSave, Down, Record, dump, parse
from equipoise.runtime.client_evaluation import network, served
from equipoise.runtime.evaluation_messages import ModelsEvaluated
from equipoise.runtime.executor import ClientExecutor
from equipoise.runtime.messages import Job, Reply, Request
from equipoise.site.checks import Refused, own_experiment
from equipoise.site.settings import SiteSettings
from equipoise.storage.files import RunError, sync
from equipoise.task import Task
from equipoise.validation.regular_files import check_regular

MODELS = "served.safetensors"  # what the server delivered last, and the state of the client
FACTS = "served.json"  # job, task, recipe with the schema, and the values of the last evaluation


def save_models(
    folder: Path, job: Job, executor: ClientExecutor, request: Request, reply: Reply
) -> None:
    """Save the models that a client serves at the last evaluation of a run.

    They follow from what the server delivered and from the client's state, so that these are
    written. The recipe has the client's own statistics and the schema.

    Args:
        folder: The folder of the run at the site.
        job: The message that opened the run.
        executor: The client runtime.
        request: The evaluation.
        reply: The reply to it.

    Raises:
        CannotSave: If the disk is full or not writable.
    """
    record = Record(
        down=request.down["down"],
        state=Record(executor.read_state(request)),
        round=request.round,
        attempt=request.attempt,
    )
    assert reply.up is not None
    models = ModelsEvaluated.of(reply.up).served
    main = [name for name, model in models.items() if model.main]
    facts = {
        "client": request.client,
        "job": job.text(),
        "task": asdict(executor.federation.task),
        "recipe": executor.federation.recipe,
        "models": list(models),
        "main": main[0] if main else "",
        "values": reply.measured,
    }
    try:
        _replace(folder / MODELS, dump(record))
        _replace(folder / FACTS, json.dumps(facts).encode())
    except OSError as error:
        raise CannotSave(f"cannot write the served models to {folder}: {error}") from error


def _replace(path: Path, data: bytes) -> None:
    """Replace a file at once, so that a kill leaves the old one or the new one."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_bytes(data)
        sync([partial])
        partial.replace(path)
        sync([path.parent])
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


class SiteModels:
    """The models of a run at a site, read from the site's folder alone.

    Attributes:
        folder: The folder of the run at the site.
        task: The task.
        recipe: The preparation of inputs, with the site's own statistics and the schema.
        main_model: The served model that the site ends up using.
    """

    def __init__(self, site: Path, run: str) -> None:
        """Open the models that a site kept.

        Args:
            site: The folder of the site.
            run: The identifier of the run, or its beginning.

        Raises:
            RunError: If the site keeps no such models.
        """
        self.folder = _run_folder(site, run)
        try:
            facts = json.loads(_content(self.folder / FACTS))
            self.client = str(facts["client"])
            self.task = Task.of(facts["task"])
            self.recipe: dict[str, Any] = facts["recipe"]
            self.main_model = str(facts["main"])
            self.values: list[dict[str, Any]] = facts["values"]
            self._job = Job.of(facts["job"])
            self._record = parse(_content(self.folder / MODELS))
            self._check_form()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.folder} is damaged or holds no models of a site ({error}); "
                "restore it from a copy"
            ) from None

    def _check_form(self) -> None:
        """Read what is used later.

        Raises:
            ValueError: If an entry has another form.
            KeyError: If an entry is missing.
            TypeError: If an entry is of another type.
        """
        _all_names(self._job.experiment["method"])
        for row in self.values:
            if not isinstance(row["value"], float) or not isinstance(row["model"], str):
                raise ValueError("values of another form")
        for name in ("down", "state"):
            if not isinstance(self._record[name], Record):
                raise ValueError(f"{name}: expected a record")
        for name in ("round", "attempt"):
            if type(self._record[name]) is not int:
                raise ValueError(f"{name}: expected an integer")

    def models(self) -> list[str]:
        """Return the names of the served models."""
        return list(dict.fromkeys(row["model"] for row in self.values)) or [self.main_model]

    def model(
        self,
        name: str | None = None,
        client: str | None = None,
        experiment: Experiment | None = None,
        allow_imports: Iterable[str] = (),
    ) -> nn.Module:
        """Return a served model as a torch module.

        Args:
            name: The model; by default the one that the site ends up using.
            client: The site itself, if it is named.
            experiment: The experiment; by default the one that the site kept.
            allow_imports: The packages from which code that the run names may be imported.

        Raises:
            RunError: If there is no such model, or another client is named.
        """
        name = name or self.main_model
        self.check_client(client)
        if experiment is None:
            experiment = self._experiment(tuple(allow_imports))
        ids = [self.client, *_named_clients(experiment)]
        bench, method = prepare(experiment, self.task, ids)
        someone = Client(
            bench,
            self.client,
            self._record["round"],
            experiment.rounds,
            dict(self._record["state"]),
            self._record["attempt"],
        )
        models: dict[str, Served] = served(method, someone, Down(dict(self._record["down"])))
        if name not in models:
            raise RunError(
                f"no model {name!r} in {self.folder}; its method serves {', '.join(models)}"
            )
        return network(models[name], someone)

    def check_client(self, client: str | None) -> None:
        """Refuse the name of another client than this site.

        Raises:
            RunError: If it is another one.
        """
        if client not in (None, self.client):
            raise RunError(
                f"{self.folder} holds the models of {self.client!r}, not of {client!r}; "
                "leave --client out"
            )

    def _experiment(self, imports: tuple[str, ...]) -> Experiment:
        names = _all_names(self._job.experiment.get("method"))
        settings = SiteSettings(self.folder, self.folder, methods=tuple(names), imports=imports)
        try:
            return own_experiment(self._job, self.client, settings)
        except Refused as error:
            raise RunError(f"{self.folder} cannot be rebuilt: {error.text}") from None

    def card(self, name: str, net: nn.Module) -> str:
        """Return the text of the card of an exported model.

        Args:
            name: The name of the model.
            net: The model.
        """
        experiment = self._job.experiment
        task = self.task
        classes = f" ({', '.join(task.class_names)})" if task.class_names else ""
        lines = [f"# {name} of site {self.client}", ""]
        lines.append(f"- method: {experiment['method']}")
        lines.append(f"- rounds: {experiment['rounds']}, seed {experiment['seed']}")
        lines.append(
            f"- task: {task.kind}, input {tuple(task.shape)}, {task.outputs} outputs{classes}"
        )
        parameters = sum(parameter.numel() for parameter in net.parameters())
        architecture = experiment["models"] or experiment["model"]
        lines.append(f"- architecture: {architecture}, {parameters:,} parameters")
        for row in self.values:
            if row["model"] == name:
                lines.append(f"- {row['metric']} on {row['split']} data: {row['value']:.4f}")
        lines.append(f"- made by equipoise {self._job.version}, run {self._job.run}")
        lines.append("")
        command = f"equipoise predict --site {self.folder.parent.name} {self.folder.name} FILE"
        lines.append(f"Inputs must be prepared as in training; `{command}` does it.")
        return "\n".join(lines) + "\n"


def _all_names(spec: Any) -> list[str]:
    """Return the names of a method and of those composed with it; the site ran them itself."""
    names = [spec["name"]]
    for value in spec.values():
        if isinstance(value, dict) and "name" in value:
            names += _all_names(value)
    return names


def _named_clients(experiment: Experiment) -> list[str]:
    """Return the clients that have networks of their own."""
    names: list[str] = []
    for spec in experiment.architectures().values():
        if isinstance(spec, dict):
            names += spec.get("clients", {})
    return names


def _content(path: Path) -> bytes:
    try:
        check_regular(path)
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None


def _run_folder(site: Path, run: str) -> Path:
    """Return the folder of a run at a site, by the beginning of its identifier."""
    if not site.is_dir():
        raise RunError(f"no folder {site}; give the folder of a site with --site")
    folders = sorted(path.parent for path in site.glob(f"*/{FACTS}"))
    matching = [path for path in folders if path.name.startswith(run)]
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(path.name for path in folders[:8]) or "none"
    count = "several runs" if matching else "no run"
    raise RunError(f"{site} holds the models of {count} {run!r}; it has {listed}")
