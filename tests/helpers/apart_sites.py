"""Sites that hold their data themselves, in folders of a test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise import simulate
from equipoise.experiment import experiment
from equipoise.runs import Run
from equipoise.server import ServerData
from equipoise.session import Session, resume_session
from equipoise.site import Site, SiteSettings
from equipoise.site.runtime import SiteRuntime
from equipoise.transports.apart import Apart
from tests.helpers.runs import folder_of, settings, sites

SCHEMA = {"classes": ["0", "1", "2"], "shape": [1, 8, 8]}


def apart_config(tmp: Path, method: Any, **more: Any) -> dict[str, Any]:
    """Return an experiment over one file per site, each of which is prepared alone."""
    config = settings(method, **{"rounds": 2, **more})
    folder = folder_of(tmp / "data", sites())
    data = {**config["data"], "name": folder, "schema": SCHEMA, "apart": True}
    return {**config, "data": {**data, **more.get("data", {})}}


@dataclass
class Network:
    """The sites of a test: each has its own file of data and its own folder.

    Attributes:
        folder: The folder of all sites.
        data: The folder of the files of data.
        runtime: Makes what performs the steps of a site.
        changes: Settings of single sites that differ, by name.
        ending: The ending of the files of data.
    """

    folder: Path
    data: Path
    runtime: Callable[..., Any] = SiteRuntime
    changes: Mapping[str, Mapping[str, Any]] | None = None
    ending: str = ".npz"

    def site(self, name: str) -> Site:
        own = SiteSettings(self.data / f"{name}{self.ending}", self.folder / name)
        own = replace(own, **(self.changes or {}).get(name, {}))
        return Site(name, own, self.runtime)

    def transport(self) -> Apart:
        names = sorted(path.stem for path in self.data.glob(f"*{self.ending}"))
        return Apart({name: self.site(name) for name in names})

    def states(self, run: Run) -> Path:
        """Return a folder with the states of all clients of a run."""
        merged = self.folder / "merged"
        shutil.rmtree(merged, ignore_errors=True)
        merged.mkdir()
        for states in self.folder.glob(f"*/{run.store.meta('run')}/states"):
            shutil.copytree(states, merged, dirs_exist_ok=True)
        return merged


def network_of(tmp: Path, **more: Any) -> Network:
    """Return the sites of `apart_config`."""
    return Network(tmp / "sites", tmp / "data", **more)


def run_apart(
    config: Mapping[str, Any],
    out: Path,
    transport: Apart,
    data: ServerData | None = None,
    callbacks: Any = None,
) -> Run:
    """Return the finished run of a session over sites."""
    with Session(experiment(config), transport, callbacks, data) as session:
        return session.start(out)


def resume_apart(folder: Path, transport: Apart, **more: Any) -> Run:
    """Continue the run of a session over sites."""
    return resume_session(folder, transport, **more)


def run_joined(config: Mapping[str, Any], out: Path) -> Run:
    """Return the finished run of the same experiment over the joined federation, in process."""
    return simulate.run(experiment(config), out, quiet=True)


def validation_of(config: Mapping[str, Any]) -> ServerData:
    """Return the validation data that a simulated server of the same experiment has."""
    with simulate.Simulation(experiment(config)) as simulation:
        federation = simulation.federation
        samples = simulate.Samples.of(federation, federation.server_validation)
    return ServerData(samples)
