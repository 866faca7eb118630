"""Settings of a site that hold whatever the experiment of a server says."""

from __future__ import annotations

from pathlib import Path

from equipoise import Experiment
from equipoise.session import Session
from equipoise.site import Site, SiteSettings
from equipoise.site.runtime import SiteRuntime
from equipoise.transports.apart import Apart

SCHEMA = {
    "label": "sick",
    "classes": ["no", "yes"],
    "columns": [{"name": "age", "kind": "number", "gaps": False}],
}


def table(path: Path) -> Path:
    """Write 200 rows, 40 of which become test samples."""
    rows = [f"{40 + i % 20},{'yes' if i % 20 > 9 else 'no'}" for i in range(200)]
    path.write_text("\n".join(["age,sick", *rows]) + "\n")
    return path


def test_histograms_leave_only_the_sites_that_allow_them(tmp_path: Path) -> None:
    sites = {}
    for name, leave in (("north", True), ("south", False)):
        settings = SiteSettings(table(tmp_path / f"{name}.csv"), tmp_path / name, histograms=leave)
        sites[name] = Site(name, settings, SiteRuntime)
    data = {"name": "hospitals", "apart": True, "schema": SCHEMA}
    experiment = Experiment(data=data, method="fedavg", rounds=1)
    with Session(experiment, Apart(sites)) as session:
        run = session.start(tmp_path / "run")
    assert run.status == "finished" and set(run.final()) == {"north", "south"}
    rows = run.store.db.execute("select distinct client from curves").fetchall()
    assert [client for (client,) in rows] == ["north"]
