"""The numbers in a tracker are those in the store; real libraries, local files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from equipoise.callbacks import Callback
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.runs import Run
from equipoise.runs.track import numbers, parameters, tracker
from equipoise.simulate import run
from equipoise.storage.store import RoundRecord, RunError

WANTED = Experiment(
    data={"name": "digits", "clients": 3}, rounds=2, training={"steps": 2}, workers=0
)


class Burning(Callback):
    def on_round(self, record: RoundRecord) -> None:
        raise RuntimeError("the oven is on fire")


def tracked(kind: str, folder: Path) -> Run:
    return run(WANTED, folder, tracker(kind, WANTED))


def expected(finished: Run) -> dict[tuple[str, int], float]:
    rows = {
        (f"{r['model']}/{r['split']}/{r['metric']}/{r['client']}", r["round"]): r["value"]
        for r in finished.table(phase="received")
    }
    for number in range(1, WANTED.rounds + 1):
        values = [
            row["value"]
            for row in finished.table(
                phase="received", split="test", metric="accuracy", round=number
            )
        ]
        rows |= {
            ("main/mean", number): sum(values) / len(values),
            ("main/worst", number): min(values),
        }
    return rows | {(f"weight/{r['client']}", r["round"]): r["share"] for r in finished.weights()}


def test_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    finished = tracked("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(finished.folder / "tensorboard"))
    events.Reload()
    wanted = expected(finished)
    assert wanted
    (told,) = events.Tensors("experiment/text_summary")
    assert b"    data.clients: 3\n" in told.tensor_proto.string_val[0]
    for (name, step), value in wanted.items():
        assert {event.step: event.value for event in events.Scalars(name)}[step] == pytest.approx(
            value, rel=1e-6
        )
    values = [
        value
        for (name, step), value in wanted.items()
        if name.startswith("global/test/accuracy/") and step == 2
    ]
    assert events.Scalars("global/test/accuracy/mean")[-1].value == pytest.approx(
        sum(values) / 3, rel=1e-6
    )


@pytest.mark.thorough
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    from mlflow.tracking import MlflowClient

    began = time.time()
    finished = tracked("mlflow", tmp_path / "run")
    client = MlflowClient()
    (saved,) = client.search_runs([client.get_experiment_by_name("equipoise/digits").experiment_id])
    assert (
        saved.info.status == "FINISHED"
        and saved.data.params["data.clients"] == "3"
        and saved.data.params["method.name"] == "fedavg"
    )
    assert saved.data.params.keys() == parameters(WANTED).keys()
    for (name, step), value in expected(finished).items():
        history = client.get_metric_history(saved.info.run_id, name)
        assert {metric.step: metric.value for metric in history}[step] == value
        assert all(
            int(1000 * began) <= metric.timestamp <= 1000 * time.time() for metric in history
        )  # in milliseconds
    with pytest.raises(RuntimeError, match="oven"):
        run(WANTED, tmp_path / "other", [Burning(), tracker("mlflow", WANTED)])
    failed = client.search_runs([saved.info.experiment_id], "attributes.status = 'FAILED'")
    assert [one.info.run_name for one in failed] == ["other"]


class StandInRun:
    """A run of Weights & Biases that keeps what it receives."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.logged: dict[tuple[str, int], float] = {}
        self.exit_code: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged |= {(name, step): value for name, value in values.items()}

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


class StandInWandb(ModuleType):
    """The part of the module `wandb` that a tracker uses."""

    class Error(Exception):
        pass

    def __init__(self, refuses: bool = False) -> None:
        super().__init__("wandb")
        self.refuses = refuses
        self.runs: list[StandInRun] = []

    def init(self, **settings: Any) -> StandInRun:
        if self.refuses:
            raise self.Error("api_key not configured")
        self.runs.append(StandInRun(settings))
        return self.runs[-1]


def test_wandb_receives_settings_numbers_and_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wandb = StandInWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    finished = tracked("wandb", tmp_path / "run")
    (sent,) = wandb.runs
    assert sent.settings["name"] == "run" and sent.settings["dir"] == str(tmp_path / "run")
    assert sent.settings["config"]["data.clients"] == 3
    assert expected(finished).items() <= sent.logged.items()
    assert sent.exit_code == 0
    with pytest.raises(RuntimeError, match="oven"):
        run(WANTED, tmp_path / "other", [Burning(), tracker("wandb", WANTED)])
    assert wandb.runs[-1].exit_code == 1


def test_wandb_without_a_login_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", StandInWandb(refuses=True))
    with pytest.raises(ConfigurationError, match="api_key not configured.*WANDB_MODE=offline"):
        tracked("wandb", tmp_path / "run")


@pytest.mark.slow
def test_wandb_itself_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    finished = tracked("wandb", tmp_path / "run")
    assert list((finished.folder / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.parametrize("kind", ["mlflow", "tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_names_the_extra(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    for module in ("mlflow.exceptions", "torch.utils.tensorboard.writer", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"--track {kind} .*equipoise\[track\]"):
        tracker(kind, WANTED)


def test_the_main_metric_has_names_that_all_runs_share():
    rows = [
        (client, model, "received", split, metric, value)
        for model, plus in (("global", 0.0), ("personal", 0.1))
        for split, more in (("validation", 0.5), ("test", 0.0))
        for metric, values in (("loss", (1.0, 3.0)), ("auroc", (0.6, 0.8)), ("mae", (2.0, 4.0)))
        for client, value in zip("ab", (v + plus + more for v in values), strict=True)
    ]
    record = RoundRecord(1, 0, [], [], measurements=rows, main="personal")
    found = numbers(record)
    assert (found["main/mean"], found["main/worst"]) == (pytest.approx(0.8), pytest.approx(0.7)), (
        "auroc: the first that is not the loss"
    )
    assert (numbers(record, "loss")["main/mean"], numbers(record, "loss")["main/worst"]) == (
        pytest.approx(2.1),
        pytest.approx(3.1),
    )
    shared = RoundRecord(
        1,
        0,
        [],
        [],
        measurements=[*rows, ("all", "personal", "received", "shared", "auroc", 0.9)],
        main="personal",
    )
    assert numbers(shared)["main/mean"] == 0.9
    assert not any(name.startswith("main/") for name in numbers(RoundRecord(1, 0, [], [])))


def test_a_store_that_cannot_be_written_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    with pytest.raises(ConfigurationError, match=r"--track mlflow: .*MLFLOW_TRACKING_URI"):
        tracker("mlflow", WANTED)


def test_an_unknown_tracker_is_refused_with_the_nearest(tmp_path: Path):
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        tracker("tensorbord", WANTED)


def test_a_folder_that_holds_a_run_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "run.db").touch()
    with pytest.raises(RunError):
        run(WANTED, tmp_path, tracker("tensorboard", WANTED))
    assert not (tmp_path / "tensorboard").exists()
