"""docs/architecture.md is true: its walk is that of a run, its tables are those of a store, and what it says of adding things works from a package outside."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.data import partitions, sets
from equipoise.metrics import registry
from equipoise.testing import check_method
from tests.helpers.runs import played, same_run, settings, sites

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "equipoise"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    below = PAGE.partition(f"## {heading}\n")[2]
    table = re.search(r"^\|.*?(?=\n\n)", below, re.DOTALL | re.MULTILINE)
    assert table is not None
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in table[0].splitlines()[2:]
    ]


def test_the_walk_is_that_of_a_run(tmp_path: Path) -> None:
    """Each function that the page names is called, for the first time, after the one before it; what the start calls like a round is not counted."""
    walk = [
        (file.strip("`"), function.strip("`"))
        for _, file, function, _ in rows("One round, from file to file")
    ]
    assert len(walk) > 20 and [int(row[0]) for row in rows("One round, from file to file")] == list(
        range(1, len(walk) + 1)
    )
    called: dict[tuple[str, str], None] = {}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{SOURCE}/"):
            key = (code.co_filename.removeprefix(f"{SOURCE}/"), code.co_qualname)
            if key == ("engine/rounds.py", "Loop._round"):
                for later in walk[walk.index(key) + 1 :]:
                    called.pop(later, None)
            called.setdefault(key, None)

    config = settings({"name": "fedavg"}, rounds=1)
    dataset = eq.from_sites(sites())
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        eq.run(eq.Experiment(**config, dataset=dataset), tmp_path / "run")
    finally:
        sys.setprofile(before)
    order = list(called)
    missing = [step for step in walk if step not in called]
    assert not missing
    assert [step for step in order if step in walk] == walk


def test_the_tables_are_those_of_a_store(tmp_path: Path) -> None:
    run = played(settings("fedavg", rounds=1), tmp_path / "run")
    there = {
        row["name"] for row in run.store.rows("select name from sqlite_master where type = 'table'")
    }
    assert {name.strip("`") for name, _ in rows("The store's tables")} == there


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_is_there(page: str) -> None:
    """Paths are given from the root of the repository, or from that of the package."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    spans = [
        span
        for span in re.findall(r"`([^`\s]+)`", text)
        if re.fullmatch(r"[\w./-]+(\.py|\.md|\.yaml|/)", span)
    ]
    links = [(ROOT / page).parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert len(spans) > 10
    named = [span for span in spans if "NAME" not in span and span != "hospitals/"]
    assert [
        span for span in named if not (ROOT / span).exists() and not (SOURCE / span).exists()
    ] == []
    assert [str(link) for link in links if not link.exists()] == []
    for span in spans:  # where any name may stand, the folder is there
        assert "NAME" not in span or any(
            (base / span).parent.is_dir() for base in (ROOT, SOURCE)
        ), span


@pytest.fixture
def addons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The code of the page as an installed package, with the entry points that the page gives it."""
    blocks = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
    folder = tmp_path / "site" / "my_addons"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    for name, text in blocks.items():
        if name != "pyproject.toml":
            (folder.parent / name).write_text(text)
    ((group, points),) = re.findall(
        r'\[project.entry-points."([\w.]+)"\]\n(.+)', blocks["pyproject.toml"]
    )
    information = folder.parent / "my_addons-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-addons\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{group}]\n{points.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_addons"]:
        del sys.modules[name]


def module(name: str) -> Any:
    return importlib.import_module(f"my_addons.{name}")


def test_a_method(addons: Path, tmp_path: Path) -> None:
    """By name in a file, without any permission but its entry point; it keeps the contract."""
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "method: my_addons.methods:Halved\ndata: {name: digits, clients: 3, samples: 120}\nrounds: 1\nworkers: 0\nseed: 2\n"
    )
    run = eq.run(str(file), tmp_path / "run")
    file.write_text(file.read_text().replace("my_addons.methods:Halved", "fedavg"))
    assert run.final("loss") != eq.run(str(file), tmp_path / "plain").final("loss")
    assert {
        result.outcome
        for result in check_method(module("methods").Halved, checks=["payload_travels", "repeats"])
    } == {"passed"}


def test_a_metric(addons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "METRICS", (*registry.METRICS, module("metrics").TOP_TWO))
    run = played(
        settings(
            "fedavg", rounds=1, evaluation={"metrics": ["accuracy", "top_two"], "main": "top_two"}
        ),
        tmp_path / "run",
    )
    assert run.main_metric == "top_two" and set(run.final()) == set(run.clients)
    assert all(
        0 <= run.final("accuracy")[client] <= value <= 1 for client, value in run.final().items()
    )


def test_a_data_set(addons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    y = np.arange(100) % 2
    stripes = np.where(np.arange(8) % 2, 200, 20)
    x = np.stack([np.broadcast_to(stripes if label else stripes[:, None], (8, 8)) for label in y])
    x = (x + draw.integers(0, 20, x.shape)).astype(np.uint8)[:, None]
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    monkeypatch.setitem(sets.ENTRIES, "stripes", module("sets").STRIPES)
    np.savez(tmp_path / "stripes.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
    wanted = {
        "model": {"name": "mlp", "hidden": [6]},
        "rounds": 2,
        "workers": 0,
        "training": {"lr": 0.1, "epochs": 3},
    }
    assert "stripes" in sets.names()
    run = eq.run(eq.Experiment(data={"name": "stripes", "clients": 2}, **wanted), tmp_path / "run")
    assert run.task.class_names == ("lying", "standing") and min(run.final().values()) > 0.9
    own = module("sets").two_sites(x.astype(np.float32) / 255, y)
    assert eq.run(
        eq.Experiment(dataset=own, data={"partition": "natural"}, **wanted), tmp_path / "own"
    ).clients == ["north", "south"]


def test_a_partition(addons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(partitions.PARTITIONS, "alternate", module("partitions").alternate)
    dealt = partitions.deal("alternate:2", partitions.Pool(np.zeros(10), 1), 3, 0)
    assert [part.tolist() for part in dealt.parts] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]
    data = {"name": "digits", "partition": "alternate:block=5", "clients": 4, "samples": 120}
    run = eq.run(eq.Experiment(data=data, rounds=1, workers=0), tmp_path / "run")
    assert len(run.clients) == 4
    with pytest.raises(ValueError, match="alternate has no parameter 'blok'.*block"):
        eq.Experiment(data={**data, "partition": "alternate:blok=5"})


def test_a_transport(addons: Path, tmp_path: Path) -> None:
    """The same run as in process, bit for bit, though clients are asked in another order."""
    backwards = module("transports").Backwards
    asked: list[str] = []

    class Seen(backwards):  # type: ignore[misc, valid-type]
        def _one(self, request: Any, deadline: Any) -> Any:
            asked.append(request.client)
            return super()._one(request, deadline)

    config = settings("scaffold", rounds=2)
    other = played(config, tmp_path / "other", transport=Seen)
    assert asked[:4] == ["di", "cy", "bo", "ada"]
    same_run(played(config, tmp_path / "here"), other)
