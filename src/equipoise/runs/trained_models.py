"""Trained models of a run, rebuilt from its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from equipoise.client import Client
from equipoise.engine.evaluation import alike
from equipoise.experiment import Experiment
from equipoise.experiment import experiment as experiment_from
from equipoise.experiment.build import prepare
from equipoise.method import Method, Served
from equipoise.records import State, read
from equipoise.runtime.client_evaluation import network, served
from equipoise.server import Server
from equipoise.storage.checkpoint import load_server
from equipoise.storage.store import RunError, Store
from equipoise.task import Task
from equipoise.training.workbench import Workbench
from equipoise.validation.imports import Imports


@dataclass(frozen=True)
class Checkpoint:
    """The last committed states of a run.

    Attributes:
        store: The store of the run.
        config: Its configuration.
        task: Its task.
        clients: The names of its clients.
    """

    store: Store
    config: Mapping[str, Any]
    task: Task
    clients: Sequence[str]

    def rebuild(self, experiment: Experiment | None, imports: Imports) -> tuple[Workbench, Method]:
        """Return the networks and the method of the run.

        Args:
            experiment: The experiment with its Python objects, if the caller has it.
            imports: The packages from which code that the configuration names may be imported.

        Raises:
            ConfigurationError: If the experiment does not fit the run, or is wrong.
            RunError: If the configuration lacks a Python object of the experiment.
        """
        if experiment is not None:
            return prepare(experiment, self.task, self.clients)
        try:
            return prepare(experiment_from(self.config, imports), self.task, self.clients)
        except ValueError as error:
            reason = self.store.meta("not portable")
            if reason is None:
                raise
            raise RunError(
                f"{self.store.folder} cannot be rebuilt from its file alone: {reason}; "
                "call run.model(..., experiment=experiment)"
            ) from error

    def model(self, name: str, client: str | None, bench: Workbench, method: Method) -> nn.Module:
        """Return a trained model.

        Args:
            name: The name of a served model.
            client: The client whose model it is; None for a model that all clients share.
            bench: The networks of the run.
            method: Its method.

        Raises:
            RunError: If there is no such model.
        """
        owner = self._open_client(bench, self.clients[0] if client is None else client)
        server = self._open_server(bench)
        state = load_server(self.store)
        models = self._served_models(method, owner, server, state, name)
        if name not in models:
            raise RunError(
                f"no model {name!r} in {self.store.folder}; its method serves {', '.join(models)}"
            )
        if client is None and not _is_common(models[name], method, server, state):
            raise RunError(
                f"model {name!r} belongs to a client; say which with --client "
                f"(in Python client=), {self.clients[0]!r}, say"
            )
        return network(models[name], owner)

    @property
    def _round(self) -> int:
        return max(0, self.store.last_round())

    def _open_server(self, bench: Workbench) -> Server:
        sizes = dict(zip(self.clients, self.store.meta("sizes")["train"], strict=True))
        return Server(bench, list(self.clients), sizes, self.config["rounds"], self._round)

    def _open_client(self, bench: Workbench, id: str) -> Client:
        """Return a client with its state, which is empty if the server does not have it."""
        self.store.check_files(id)
        saved = self.store.current("client", id).get(id)
        state = {}
        if saved is not None and saved.kept_at != "client":
            state = dict(read(saved.path, lazy=False))
        return Client(bench, id, self._round, self.config["rounds"], state)

    def _served_models(
        self, method: Method, client: Client, server: Server, state: State, name: str
    ) -> dict[str, Served]:
        """Return the models that a client serves.

        Raises:
            RunError: If the named model follows from a state that only the client has.
        """
        saved = self.store.current("client", client.id).get(client.id)
        is_remote = saved is not None and saved.kept_at == "client"
        models: dict[str, Served] = {}
        try:
            models = served(method, client, method.deliver(server, state, client.id))
        except Exception:  # Without the client's state a method may fail in any way.
            if not is_remote:
                raise
        if is_remote and not (name in models and models[name].same_for_all):
            raise RunError(
                f"model {name!r} of client {client.id!r} follows from a state on that client's own "
                "disk; export it there"
            )
        return models


def _is_common(model: Served, method: Method, server: Server, state: State) -> bool:
    """Return True if a served model is the same for all clients."""
    if not model.same_for_all:
        return False
    return alike(method.deliver(server, state, client) for client in server.ids)
