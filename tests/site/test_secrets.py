"""Secrets in the files of sites: none is in an answer, in the server's files or its output."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from equipoise.data import DataConfig, federate
from equipoise.data.patients.synthetic import write_patients
from equipoise.experiment import ConfigurationError
from equipoise.site import Site, SiteSettings
from equipoise.site.runtime import Result, SiteRuntime
from equipoise.transports.apart import Apart
from tests.helpers.answers import CommandLine
from tests.helpers.apart_sites import run_apart, run_joined

SECRET = "Patient4711"
SEED = 3
Planted = tuple[dict[str, Path], dict[str, Any]]


class Recorded:
    """A site whose answers are recorded."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.answers: list[bytes] = []

    def answer(self, data: bytes) -> bytes:
        self.answers.append(self.site.answer(data))
        return self.answers[-1]


def tables(folder: Path) -> Planted:
    """Write tables with secrets in a column and in cells that the schema does not know."""
    files = {}
    for number, site in enumerate(("north", "south")):
        lines = [f"age,ward,{SECRET}-diagnosis,sick"]
        for row in range(40):
            ward = f"{SECRET}-ward" if row % 10 == 0 else "ab"[row % 2]
            lines.append(f"{30 + row + number},{ward},{SECRET} {row},{'yes' if row % 3 else 'no'}")
        files[site] = folder / f"{site}.csv"
        files[site].write_text("\n".join(lines) + "\n")
    columns = [
        {"name": "age", "kind": "number", "gaps": False},
        {"name": "ward", "kind": "category", "categories": ["a", "b"], "gaps": False},
    ]
    return files, {"label": "sick", "classes": ["no", "yes"], "columns": columns}


def images(folder: Path) -> Planted:
    """Write images with secrets in their names and in their texts."""
    random = np.random.default_rng(0)
    text = PngInfo()
    text.add_text("Comment", SECRET)
    files = {}
    for site in ("north", "south"):
        for kind in ("ill", "well"):
            (folder / site / kind).mkdir(parents=True)
            for number in range(12):
                pixels = random.integers(0, 255, (8, 8), dtype=np.uint8)
                name = f"{SECRET}-{number}.png"
                Image.fromarray(pixels).save(folder / site / kind / name, pnginfo=text)
        files[site] = folder / site
    return files, {"classes": ["ill", "well"], "shape": [1, 8, 8]}


def histories(folder: Path) -> Planted:
    """Write histories with secrets as names of patients, and a code that the schema lacks."""
    write_patients(folder, seed=1, share=0.001, per_site=True)
    by_size = sorted(folder.iterdir(), key=lambda site: (site / "events.csv").stat().st_size)
    for site in by_size[:-2]:
        shutil.rmtree(site)
    files = {site.name: site for site in sorted(folder.iterdir())}
    names = federate(DataConfig(name=str(folder)), SEED).recipe["codes"][:20]
    for site in files.values():
        for file in ("patients.csv", "events.csv"):
            with (site / file).open(newline="") as source:
                header, *rows = list(csv.reader(source))
            patient = header.index("patient")
            for row in rows:
                row[patient] = f"{SECRET}-{row[patient]}"
            if file == "events.csv":
                unknown = list(rows[-1])
                unknown[header.index("code")] = f"{SECRET}-CODE"
                rows.append(unknown)
            with (site / file).open("w", newline="") as target:
                csv.writer(target).writerows([header, *rows])
    codes = [{"name": name, "centre": 50.0, "scale": 20.0} for name in names]
    return files, {"classes": ["no", "yes"], "codes": codes, "events": 10}


KINDS: dict[str, Callable[[Path], Planted]] = {
    "tables": tables,
    "images": images,
    "histories": histories,
}


def experiment_of(schema: dict[str, Any], folder: Path, method: str) -> dict[str, Any]:
    return {
        "data": {"name": str(folder), "apart": True, "schema": schema},
        "method": {"name": method},
        "model": "auto",
        "rounds": 1,
        "seed": SEED,
        "training": {"batch": 16, "epochs": 1},
    }


def network(files: dict[str, Path], folder: Path) -> dict[str, Recorded]:
    """Return sites whose files have a secret name."""
    sites = {}
    for name, file in files.items():
        own = folder / f"{SECRET}-{name}" / f"{SECRET}{file.suffix}"
        own.parent.mkdir(parents=True)
        (shutil.copytree if file.is_dir() else shutil.copy)(file, own)
        sites[name] = Recorded(Site(name, SiteSettings(own, own.parent / "site"), SiteRuntime))
    return sites


def assert_nothing_leaves(sites: dict[str, Recorded], server: Path, output: str) -> None:
    """Search for the secret in all that leaves sites, and in all that the server has."""
    answers = [answer for site in sites.values() for answer in site.answers]
    assert len(answers) > 2
    stored = [path.read_bytes() for path in server.rglob("*") if path.is_file()]
    for data in (*answers, *stored, output.encode()):
        assert SECRET.lower().encode() not in data.lower()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick_cases("tables")
def test_no_secret_leaves_a_site_and_the_bits_are_those_of_one_federation(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    files, schema = KINDS[kind](together)
    sites = network(files, tmp_path)
    server = tmp_path / "server"
    runs = {}
    for method in ("standalone", "ditto"):
        config = experiment_of(schema, Path("hospitals"), method)
        runs[method] = run_apart(config, server / method, Apart(sites))
    here = run_joined(experiment_of(schema, together, "ditto"), tmp_path / "here")
    assert here.final() == runs["ditto"].final()
    for run in runs.values():
        run.store.close()
    equipoise = CommandLine(capfd, monkeypatch)
    assert equipoise("show", server / "ditto")[0] == 0
    folders = [server / "standalone", server / "ditto"]
    assert equipoise("report", *folders, "--out", server / "page.html")[0] == 0
    assert "gain" in (server / "page.html").read_text().lower()
    printed = capfd.readouterr()
    assert_nothing_leaves(sites, server, equipoise.printed + printed.out + printed.err)


@pytest.mark.parametrize("column", ["age", "sick"])
def test_a_cell_that_does_not_fit_is_named_in_the_log_of_the_site_only(
    column: str, tmp_path: Path
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    files, schema = tables(together)
    header, *rows = files["south"].read_text().splitlines()
    cells = rows[7].split(",")
    cells[header.split(",").index(column)] = SECRET
    rows[7] = ",".join(cells)
    files["south"].write_text("\n".join([header, *rows]) + "\n")
    sites = network(files, tmp_path)
    config = experiment_of(schema, Path("hospitals"), "fedavg")
    with pytest.raises(ConfigurationError, match="'south' refused the run: refused:data") as error:
        run_apart(config, tmp_path / "server", Apart(sites))
    assert SECRET not in str(error.value) and not (tmp_path / "server").exists()
    answers = [answer for site in sites.values() for answer in site.answers]
    assert SECRET.encode() not in b"".join(answers)
    assert SECRET in (sites["south"].site.settings.folder / "site.log").read_text()


def test_a_step_that_raises_with_a_cell_says_so_in_the_log_of_the_site_only(tmp_path: Path) -> None:
    together = tmp_path / "together"
    together.mkdir()
    files, schema = tables(together)
    sites = network(files, tmp_path)
    config = experiment_of(schema, Path("hospitals"), "fedavg")
    broken = sites["south"].site.runtime

    def perform(request: Any, deadline: float) -> Result:
        text = f"Traceback: ValueError: {SECRET}"
        return Result("raised", text=text)

    broken.perform = perform  # type: ignore[method-assign]
    run = run_apart(config, tmp_path / "server", Apart(sites))
    assert {row["reason"] for row in run.rejected()} == {"raised"}
    run.store.close()
    assert_nothing_leaves(sites, tmp_path / "server", "")
    assert SECRET in (sites["south"].site.settings.folder / "site.log").read_text()
