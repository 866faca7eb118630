"""Pipes, sockets and devices in place of files are refused at once: no command waits for their
other end.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equipoise import simulate
from equipoise.experiment import ConfigurationError, load
from equipoise.records import read
from equipoise.runs import Run
from equipoise.runtime.states import FileStates
from equipoise.storage.files import check_entries
from equipoise.storage.lock import is_held
from equipoise.storage.store import RunError
from equipoise.transports.base import state_file, state_name
from equipoise.validation.regular_files import NotRegularFile, check_regular
from equipoise.watch.gallery import Gallery
from tests.helpers.answers import CommandLine, one_sentence
from tests.helpers.stores import made_up_run

PATIENCE = 60  # seconds: a command that waits for a pipe would wait for ever


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError("it waits for the other end of a pipe")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def equipoise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_a_pipe_a_socket_and_a_device_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotRegularFile, match="x is a pipe"):
        check_regular(pipe(tmp_path / "x"))
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(NotRegularFile, match="link is a pipe"):
        check_regular(tmp_path / "link")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tmp_path) if len(str(tmp_path)) > 90 else None
        server.bind(os.path.relpath(tmp_path / "s"))
        with pytest.raises(NotRegularFile, match="s is a socket"):
            check_regular(tmp_path / "s")
    with pytest.raises(NotRegularFile, match="zero is a device"):
        check_regular("/dev/zero")
    for fine in (tmp_path, tmp_path / "nothing", __file__):
        check_regular(fine)


# The folder of a run.

NAMES = ["run.db", "run.db-wal", "run.db-shm", "run.db-journal", "run.lock", "experiment.yaml"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thorough
def test_a_run_with_a_pipe_is_refused(name: str, tmp_path: Path, equipoise: CommandLine) -> None:
    run = made_up_run(tmp_path / "runs" / "run", finished=False)
    pipe(run / name)
    for command in ("resume", "show", "report", "export", "table"):
        said = one_sentence(equipoise(command, run))
        assert f"{name} is a pipe" in said
    assert f"{name} is a pipe" in one_sentence(
        equipoise("run", "--data", "digits", "--overwrite", "--out", run)
    )
    assert run.exists()
    assert not is_held(run)
    Gallery(run.parent).page.html()


@pytest.mark.parametrize("name", ["run.db.new", "run.lock", "experiment.yaml", "files"])
def test_a_new_run_does_not_begin_over_a_pipe(name: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    pipe(tmp_path / "run" / name)
    with pytest.raises(RunError, match=f"{name} is a pipe"):
        made_up_run(tmp_path / "run")


def test_a_socket_in_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_up_run(tmp_path / "run")
    (run / "run.lock").unlink()
    monkeypatch.chdir(run)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("run.lock")
        with pytest.raises(RunError, match="run.lock is a socket"):
            check_entries(run)


def test_a_pipe_for_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a pipe"):
        read(pipe(tmp_path / "server-r1a0.safetensors"))
    name = state_name("ada", 1, 0, 1)
    path = tmp_path / state_file(name)
    path.parent.mkdir()
    pipe(path)
    with pytest.raises(ValueError, match="is a pipe"):
        FileStates(tmp_path).read(name, "")


# What is written.


@pytest.mark.parametrize("name", ["report.html", "report-heatmap.png"])
@pytest.mark.thorough
def test_a_report_is_not_written_into_a_pipe(
    name: str, tmp_path: Path, equipoise: CommandLine
) -> None:
    run = made_up_run(tmp_path / "run")
    pipe(run / name)
    assert f"{name} is a pipe" in one_sentence(equipoise("report", run, "--png"))


@pytest.mark.parametrize("name", ["audit.json", "clients.png"])
@pytest.mark.thorough
def test_an_audit_is_not_written_into_a_pipe_or_a_link(
    name: str, tmp_path: Path, equipoise: CommandLine
) -> None:
    words = ("audit", "--data", "digits", "--clients", 2, "--workers", 0, "--out", tmp_path / "a")
    assert equipoise(*words)[0] == 0
    written = (
        tmp_path / "a" / name if name == "audit.json" else next((tmp_path / "a").glob("*.png"))
    )
    pipe(written)
    assert f"{written.name} is a pipe" in one_sentence(equipoise(*words))
    written.unlink()
    (tmp_path / "precious").write_text("mine")
    written.symlink_to(tmp_path / "precious")
    assert f"{written.name} is a symbolic link" in one_sentence(equipoise(*words))
    assert (tmp_path / "precious").read_text() == "mine"


# What is read.


@pytest.mark.parametrize(
    "words",
    [
        ("run", "PIPE"),
        ("compare", "PIPE"),
        ("audit", "PIPE"),
        ("run", "--data", "PIPE"),
        ("data", "check", "PIPE"),
        ("run", "--data", "TABLES", "--schema", "PIPE"),
        ("data", "check", "TABLES", "--schema", "PIPE"),
        ("data", "synthesise", "PIPE"),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_file_that_a_command_names_is_no_pipe(
    words: tuple[str, ...], tmp_path: Path, equipoise: CommandLine
) -> None:
    named = {"PIPE": pipe(tmp_path / "x.csv"), "TABLES": tmp_path / "sites"}
    (tmp_path / "sites").mkdir()
    for site in ("north", "south"):
        (tmp_path / "sites" / f"{site}.csv").write_text("a,label\n" + "1,0\n2,1\n" * 20)
    said = equipoise(*(named.get(word, word) for word in words))
    assert said[0] == 2 and "Traceback" not in said[1] and "x.csv" in said[1]


@pytest.mark.parametrize("name", ["b.csv", "b.npz", "b.parquet"])
def test_a_site_that_is_a_pipe_is_not_left_out_in_silence(
    name: str, tmp_path: Path, equipoise: CommandLine
) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "a.csv").write_text("a,label\n" + "1,0\n2,1\n" * 20)
    pipe(tmp_path / "sites" / name)
    assert f"{name} is a pipe" in one_sentence(
        equipoise("run", "--data", tmp_path / "sites", "--label", "label")
    )


@pytest.mark.thorough
def test_images_and_patients_that_are_pipes_are_refused(
    tmp_path: Path, equipoise: CommandLine
) -> None:
    from PIL import Image

    for site in ("a", "b"):
        (tmp_path / "images" / site / "cat").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "images" / site / "cat" / "1.png")
    pipe(tmp_path / "images" / "a" / "cat" / "2.png")
    assert "2.png is a pipe" in one_sentence(equipoise("run", "--data", tmp_path / "images"))
    assert equipoise("data", "synthesise", tmp_path / "patients", "--share", 0.001)[0] == 0
    events = next((tmp_path / "patients").rglob("events.csv"))
    pipe(events)
    assert "events.csv is a pipe" in one_sentence(equipoise("data", "check", tmp_path / "patients"))


def test_a_result_of_a_comparison_is_no_pipe(tmp_path: Path, equipoise: CommandLine) -> None:
    (tmp_path / "comparison").mkdir()
    pipe(tmp_path / "comparison" / "comparison.json")
    for command in ("report", "show"):
        said = equipoise(command, tmp_path / "comparison")
        assert said[0] == 2 and "Traceback" not in said[1]
    Gallery(tmp_path).page.html()


def test_a_configuration_in_python_is_no_pipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a pipe"):
        load(pipe(tmp_path / "x.yaml"))
    asks: list[Callable[[Path], object]] = [simulate.run, simulate.resume, Run]
    for ask in asks:
        with pytest.raises((ConfigurationError, RunError)):
            ask(tmp_path / "x.yaml")
    shutil.rmtree(tmp_path)
