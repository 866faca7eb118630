"""The same audit over every transport, on the command line, and as files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from typer.testing import CliRunner

import equipoise as eq
from equipoise.auditing import Findings
from equipoise.auditing.pictures import pictures
from equipoise.cli import app
from equipoise.cli.audit import show
from equipoise.data import Federation
from equipoise.experiment import Experiment
from equipoise.report.drawing import encoded
from equipoise.transports.inprocess import Separated

CONFIG = {"data": {"name": "digits", "partition": "dirichlet:0.3", "clients": 5}, "seed": 4}


@pytest.mark.thorough
def test_every_transport_finds_the_same(tmp_path: Path) -> None:
    here = eq.audit({**CONFIG, "workers": 0}).plain()

    def apart(federation: Federation, wanted: Experiment) -> Separated:
        return Separated(federation, tmp_path / "disk")

    assert eq.audit({**CONFIG, "workers": 0}, transport="loopback").plain() == here
    assert eq.audit({**CONFIG, "workers": 0}, transport=apart).plain() == here
    assert eq.audit({**CONFIG, "workers": 2}).plain() == here


@pytest.mark.slow
def test_many_features_over_workers(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = eq.from_sites(
        {
            name: (draw.normal(size=(40, 1, 10, 10)) + k, draw.integers(0, 2, 40))
            for k, name in enumerate("abc")
        }
    )
    here = eq.audit({"dataset": data, "workers": 0})
    assert here.plain() == eq.audit({"dataset": data, "workers": 2}).plain()
    assert here.verdict.dominant == "features"


def test_what_is_saved_reads_back(tmp_path: Path) -> None:
    found = eq.audit({**CONFIG, "workers": 0})
    found.save(tmp_path / "audit.json")
    again = Findings.read(tmp_path / "audit.json")
    assert (
        again.plain() == found.plain()
        and again.verdict == found.verdict
        and again.clients == found.clients
    )


def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for text in ("{", "[]", "{}", '{"clients": [{"labels": [1]}]}'):
        (tmp_path / "audit.json").write_text(text)
        with pytest.raises(ValueError, match="is damaged or of another version"):
            Findings.read(tmp_path / "audit.json")


def test_of_many_classes_twelve_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    data = {name: (draw.normal(size=(60, 3)), np.arange(60) % 15) for name in ("north", "south")}
    show(eq.audit({"dataset": eq.from_sites(data), "workers": 0}))
    printed = capsys.readouterr().out
    lines = [
        line.split() for line in printed[printed.index("samples by label") :].splitlines()[1:4]
    ]
    assert lines[0] == ["client", *map(str, range(12)), "..."]
    assert [len(line) for line in lines[1:]] == [13, 13]


def command(*words: str) -> str:
    result = CliRunner().invoke(app, ["audit", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_tables_and_a_verdict_and_writes_pictures(tmp_path: Path) -> None:
    words = [
        "--data",
        "digits",
        "--partition",
        "dirichlet:0.3",
        "--clients",
        "5",
        "--seed",
        "4",
        "--workers",
        "0",
    ]
    printed = command(*words, "--out", str(tmp_path / "out"))
    told = " ".join(printed.split())
    assert "The clients differ mainly in their labels" in told and "samples by label" in told
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"audit.json"} | {
        f"{name}.{kind}" for name in ("labels", "sizes", "map", "kl") for kind in ("png", "svg")
    }
    found = json.loads(command(*words, "--json"))
    assert found["verdict"]["dominant"] == "labels" and len(found["clients"]) == 5
    lines = [line.split() for line in printed[printed.index("samples by label") :].splitlines()[1:]]
    assert lines[0] == ["client", *"0123456789"]
    counts = Findings.read(tmp_path / "out" / "audit.json").counts.tolist()
    assert lines[1:6] == [
        [one["client"], *map(str, own)] for one, own in zip(found["clients"], counts, strict=True)
    ]
    assert found == json.loads((tmp_path / "out" / "audit.json").read_text())


@pytest.mark.thorough
def test_a_file_and_a_run_can_be_audited(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "data: {name: digits, partition: pow, clients: 5}\nmethod: {name: fedavg}\nworkers: 0\n"
    )
    assert "differ mainly in size" in " ".join(command(str(tmp_path / "x.yaml")).split())
    run = eq.run(
        {**CONFIG, "workers": 0, "rounds": 1, "model": {"name": "mlp", "hidden": [4]}},
        tmp_path / "run",
    )
    run.store.close()
    command(str(tmp_path / "run"), "--workers", "0")
    assert not (tmp_path / "run" / "audit.json").exists()  # other settings than the run's own
    command(str(tmp_path / "run"))
    assert (
        Findings.read(tmp_path / "run" / "audit.json").plain()
        == eq.audit({**CONFIG, "workers": 0}).plain()
    )
    told = CliRunner().invoke(
        app,
        ["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")],
        catch_exceptions=False,
    )
    page = (tmp_path / "page.html").read_text()
    assert (
        told.exit_code == 0
        and "The clients differ mainly in their labels" in page
        and "Map of the clients" in page
    )


@pytest.mark.parametrize("clients", [1, 4, 60, 300])
@pytest.mark.thorough
def test_pictures_of_few_and_many_clients(clients: int) -> None:
    draw = np.random.default_rng(0)
    data = {
        f"$client_{k}^2": (
            draw.normal(size=(6 + 30 * (k % 3), 3)),
            draw.integers(0, 3, 6 + 30 * (k % 3)),
        )
        for k in range(clients)
    }
    found = eq.audit({"dataset": eq.from_sites(data), "workers": 0})
    for title, text, drawing in pictures(found).values():
        assert (
            encoded(drawing, "png")[:4] == b"\x89PNG"
            and b"<svg" in encoded(drawing, "svg")
            and title
            and text
        )


@pytest.mark.parametrize("name", ["map", "kl"])
@pytest.mark.thorough
def test_names_beside_points_cover_neither_each_other_nor_a_point_nor_what_is_drawn(
    name: str,
) -> None:
    draw = np.random.default_rng(3)
    sizes = np.unique(np.geomspace(8, 400, 40).astype(int)).repeat(2)[:45]
    data = {
        f"site {k}": (draw.normal(size=(n, 3)) + draw.normal(size=3) / 9, draw.integers(0, 2, n))
        for k, n in enumerate(sizes)
    }
    figure = pictures(eq.audit({"dataset": eq.from_sites(data), "workers": 0}))[name][2]()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes = figure.axes[0]
    names = [text.get_window_extent(canvas.get_renderer()) for text in axes.texts]
    assert len(names) > 10 and not any(
        one.overlaps(other) for k, one in enumerate(names) for other in names[:k]
    )
    drawn = np.vstack([axes.transData.transform(one.get_offsets()) for one in axes.collections])
    for line in axes.lines:
        ends = axes.transData.transform(line.get_xydata())
        drawn = np.vstack([drawn, *(np.linspace(a, b, 50) for a, b in pairwise(ends))])
    assert not any(box.contains(x, y) for box in names for x, y in drawn)
    # sizes lie far apart, so the axis is logarithmic: several of its marks carry a number
    if name == "kl":
        low, high = axes.get_xlim()
        assert (
            axes.get_xscale() == "log" and sum(low < mark < high for mark in axes.get_xticks()) >= 3
        )
