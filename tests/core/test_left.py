"""What a run leaves: predictions, exported files, counts of scores and what is written about it."""

from __future__ import annotations

import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import equipoise as eq
from equipoise import mkl
from equipoise.data import federate
from equipoise.experiment import ConfigurationError
from equipoise.metrics import score_histograms
from equipoise.runs import Run, export
from equipoise.runs.scores import read_histograms
from equipoise.simulate import Simulation, _pool
from equipoise.storage.store import RunError, Store
from equipoise.task import Task
from equipoise.version import __version__
from tests.helpers.runs import played, settings, sites


class Guessing:
    """A run whose models answer with their inputs, and which says whose model was asked for."""

    main_model = "global"

    def __init__(self, kind: str = "table", task: Task = Task("classification", (2,), 2)) -> None:
        self.task, self.asked = task, list[Any]()
        self.recipe = {"kind": kind}

    def model(self, name: str, client: str | None, allow_imports: Any = ()) -> Any:
        self.asked.append((name, client, allow_imports))
        return torch.nn.Identity()


@pytest.fixture(autouse=True)
def inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files hold one number per line; the two outputs are that number and its negative."""

    def read(data: Path, recipe: Any, client: str | None) -> torch.Tensor:
        values = (
            torch.tensor([float(word) for word in data.read_text().split()])
            if data.is_file()
            else torch.tensor([1.0, 2.0])
        )
        return torch.stack([values, -values], 1)

    monkeypatch.setattr(export, "inputs_from", read)


def predictions(run: Guessing, *words: Any) -> tuple[list[str], list[list[Any]]]:
    return export.predictions(run, *words)  # type: ignore[arg-type]


def test_a_prediction_is_the_likeliest_class_and_all_shares(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("1 -1 0.25")
    run = Guessing()
    header, rows = predictions(run, tmp_path / "new.csv", None, "bo", ["mine"])
    assert header == ["sample", "prediction", "p(0)", "p(1)"] and run.asked == [
        ("global", "bo", ["mine"])
    ]
    shares = [1 / (1 + np.exp(-2 * value)) for value in (1, -1, 0.25)]
    assert rows == [
        [k, "01"[int(share < 0.5)], round(share, 6), round(1 - share, 6)]
        for k, share in enumerate(shares)
    ]
    named = Guessing(task=Task("classification", (2,), 2, ("no", "yes")))
    header, rows = predictions(named, tmp_path / "new.csv", "personal")
    assert (
        header[2:] == ["p(no)", "p(yes)"]
        and [row[1] for row in rows] == ["no", "yes", "no"]
        and named.asked == [("personal", None, ())]
    )
    (tmp_path / "empty.csv").write_text("")
    assert predictions(named, tmp_path / "empty.csv") == (header, [])


def test_a_prediction_may_be_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.csv").write_text("x")
    monkeypatch.setattr(export, "inputs_from", lambda *_: torch.tensor([[1.5], [2.5]]))
    assert predictions(Guessing(task=Task("regression", (2,), 1)), tmp_path / "new.csv") == (
        ["sample", "prediction"],
        [[0, 1.5], [1, 2.5]],
    )


def test_a_folder_of_sites_is_predicted_site_by_site_unless_a_client_is_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(RunError, match="no file .*nothing; give a CSV or NPZ file"):
        predictions(Guessing(), tmp_path / "nothing")
    (tmp_path / "sites").mkdir()
    with pytest.raises(
        RunError,
        match=(
            "sites holds no site files; give a CSV, NPZ or Parquet file, or a folder with one per "
            "site"
        ),
    ):
        predictions(Guessing(), tmp_path / "sites")
    (tmp_path / "sites" / "ada.csv").write_text("1 2")
    (tmp_path / "sites" / "bo.csv").write_text("-3")
    run = Guessing()
    header, rows = predictions(run, tmp_path / "sites", "personal")
    assert header[:3] == ["file", "sample", "prediction"] and [row[:3] for row in rows] == [
        ["ada.csv", 0, "0"],
        ["ada.csv", 1, "0"],
        ["bo.csv", 0, "1"],
    ]
    assert run.asked == [("personal", "ada", ()), ("personal", "bo", ())]
    predictions(run, tmp_path / "sites", "personal", "cy", ["mine"])
    assert run.asked[2:] == [("personal", "cy", ["mine"])] * 2


def test_images_are_named_by_their_file_and_patients_by_their_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        export, "new_images", lambda data: [tmp_path / "a" / "1.png", tmp_path / "2.png"]
    )
    header, rows = predictions(Guessing("image"), tmp_path)
    assert header[0] == "file" and [row[0] for row in rows] == ["a/1.png", "2.png"]
    (tmp_path / "2.png").write_text("1 2")
    assert [row[0] for row in predictions(Guessing("image"), tmp_path / "2.png")[1]] == [
        "1.png",
        "2.png",
    ]
    (tmp_path / "x.npz").write_text("1 2")
    header, rows = predictions(Guessing("image"), tmp_path / "x.npz")
    assert header[0] == "sample" and [row[0] for row in rows] == [0, 1]
    monkeypatch.setattr(
        export, "new_patients", lambda data, recipe: SimpleNamespace(ids=["p7", "p8"])
    )
    monkeypatch.setattr(
        export, "inputs_of", lambda patients, recipe: torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    )
    header, rows = predictions(Guessing("histories"), tmp_path)
    assert header[0] == "patient" and [row[:2] for row in rows] == [["p7", "1"], ["p8", "0"]]


# Counts of scores.


def counting(*changed: dict[str, Any]) -> Any:
    """A store with one row of counts for both classes of client a, changed where asked."""
    usual = {
        "client": "a",
        "model": "global",
        "split": "test",
        "score": 50,
        "found": 0,
        "mistaken": 0,
    }
    rows = [
        {**usual, "class": 0, "positives": 2, "negatives": 3},
        {**usual, "class": 1, "positives": 3, "negatives": 2},
    ]
    rows = [{**row, **change} for row, change in zip(rows, [*changed, {}, {}], strict=False)]
    return SimpleNamespace(
        folder=Path("run"),
        rows=lambda query, values=(): rows if "from curves" in query else [{"name": "curves"}],
    )


TASK = Task("classification", (3,), 2)


def test_counts_are_tables_of_one_model_and_split() -> None:
    older_format: Any = SimpleNamespace(rows=lambda query, values=(): [])
    assert read_histograms(older_format, TASK, "global", "test") == {}
    assert read_histograms(counting(), TASK, "personal", "test") == {}
    assert read_histograms(counting(), TASK, "global", "shared") == {}


@pytest.mark.parametrize(
    ("key", "value"), [("class", 2), ("class", -1), ("score", -1), ("score", score_histograms.BINS)]
)
def test_counts_of_a_class_or_score_that_cannot_be_are_refused(key: str, value: int) -> None:
    with pytest.raises(RunError, match=f"its counts of scores name class .*{value}"):
        read_histograms(counting({key: value}), TASK, "global", "test")
    others = counting({key: value}, {key: value})
    assert read_histograms(others, TASK, "other", "test") == {}


# Before and after a run.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return played(settings("fedavg", rounds=1), tmp_path_factory.mktemp("left") / "run")


def test_what_is_written_about_a_run(finished: Run) -> None:
    meta, names = finished.store.meta, list(sites())
    assert (
        meta("version") == __version__
        and meta("clients") == names == finished.clients
        and meta("status") == "finished"
    )
    assert meta("environment") == {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "mkl": mkl.mode(),
    }
    made = datetime.fromisoformat(meta("created"))
    assert (
        made.tzinfo is not None
        and 0 <= (datetime.now(UTC) - made).total_seconds() < 3600
        and made.microsecond == 0
    )
    assert (
        len(meta("run")) == 32
        and meta("fingerprint of") == "clients"
        and meta("method")["name"] == "fedavg"
        and not meta("shared test")
    )
    assert {name: sum(sizes) for name, sizes in meta("sizes").items()}.keys() == {
        "train",
        "validation",
        "test",
    }
    assert [sum(parts) for parts in zip(*meta("sizes").values(), strict=True)] == [
        len(y) for _, y in sites().values()
    ]
    assert (
        meta("not portable") == "its data set is a Python object" and 0 < meta("wall seconds") < 600
    )


def test_a_model_is_exported_with_its_name_and_a_card_beside_it(
    finished: Run, tmp_path: Path
) -> None:
    path, card = export.export(finished)
    assert (path, card) == (finished.folder / "global.safetensors", finished.folder / "global.md")
    path, card = export.export(finished, client="bo")
    assert path.name == "global-bo.safetensors" and card.read_text().startswith(
        "# global of client bo"
    )
    path, card = export.export(finished, "global", out=tmp_path / "deep" / "m.safetensors")
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"model": "global", "client": "", "run": "run"}
        assert all(
            torch.equal(opened.get_tensor(key), tensor)
            for key, tensor in finished.model("global").state_dict().items()
        )
    assert card == tmp_path / "deep" / "m.md"
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match="cannot write the model to .*; choose a file that can be written with --out"
    ):
        export.export(finished, out=tmp_path / "file" / "m.safetensors")
    with pytest.raises(RunError, match="no model 'personal' in .*; its method serves global"):
        finished.model("personal")


def test_the_card_of_a_model_says_how_it_was_trained_and_how_good_it_is(finished: Run) -> None:
    _, path = export.export(finished)
    card = path.read_text()
    parameters = sum(tensor.numel() for tensor in finished.model("global").parameters())
    assert str(finished.config["method"]) in card
    assert f"seed {finished.config['seed']}" in card
    assert f"rounds: {finished.last_round} of {finished.config['rounds']}" in card
    assert f"{parameters:,} parameters" in card
    for client, value in finished.final().items():
        assert f"{client}: {value:.4f} (majority class {finished.majority()[client]:.4f})" in card
    _, path = export.export(finished, client="bo")
    others = [client for client in finished.clients if client != "bo"]
    assert not any(f"{client}: " in path.read_text() for client in others)


def test_a_run_of_own_data_goes_on_with_them_alone_and_one_of_an_own_model_does_not(
    finished: Run, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    data, alone = (
        eq.from_sites(sites()),
        "cannot be resumed from its file alone: its {} is a Python object; call equipoise.resume",
    )

    def told(**meta: str) -> None:
        store = Store(folder, writing=True)
        for key, value in meta.items():
            store.set_meta(key.replace("_", " "), value)
        store.close()

    told(status="running")
    with pytest.raises(RunError, match=alone.format("data set")):
        eq.resume(folder)
    told(not_portable="its model is a Python object")
    with pytest.raises(RunError, match=alone.format("model")):
        eq.resume(folder, dataset=data)
    told(not_portable="its data set is a Python object")
    assert eq.resume(folder, dataset=data).last_round == 1


@pytest.mark.parametrize(("workers", "refused"), [(None, False), (0, False), (1, True)])
def test_what_cannot_be_rebuilt_in_a_worker_runs_in_process_unless_workers_are_asked_for(
    workers: int | None, refused: bool
) -> None:
    wanted = eq.Experiment(model=torch.nn.Linear(2, 2), workers=workers)
    if refused:
        with pytest.raises(
            ConfigurationError,
            match=(
                "workers: expected 0 because its model is a Python object and cannot be rebuilt in "
                "a worker process, got 1"
            ),
        ):
            _pool(wanted)
    else:
        assert _pool(wanted) is None


def test_a_simulation_names_its_model_and_closes_its_transport() -> None:
    closed: list[Any] = []

    def connect(federation: Any, wanted: Any) -> Any:
        return SimpleNamespace(federation=federation, wanted=wanted, close=lambda: closed.append(1))

    wanted = eq.Experiment(dataset=eq.from_sites(sites()), seed=4)
    with Simulation(wanted, None, connect) as simulation:
        assert (
            wanted.model == "auto"
            and simulation.experiment.model == "mlp"
            and simulation.transport.wanted is simulation.experiment
        )  # type: ignore[attr-defined]
        expected = federate(wanted.data, 4, wanted.dataset)
        assert (
            all(
                (one == other).all()
                for one, other in zip(simulation.federation.train, expected.train, strict=True)
            )
            and closed == []
        )
    assert closed == [1]
