"""Commands of the parties of a network, as they are typed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equipoise.cli import explanation
from equipoise.experiment import ConfigurationError
from equipoise.site.site import LOG
from equipoise.transports.nvflare import parties, processes
from equipoise.transports.nvflare.kits import Kit, open_kit
from equipoise.transports.nvflare.processes import PartyProcess, free_port
from tests.helpers.terminal import Terminal
from tests.network.consortium import LEAD, Consortium

SCHEMA = "{label: sick, classes: ['no', 'yes'], columns: [{name: age, kind: number, gaps: false}]}"


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Path]:
    """A file of 200 rows, and the schema that it fits."""
    data = tmp_path / "north.csv"
    rows = [f"{40 + i % 20},{'yes' if i % 20 > 9 else 'no'}" for i in range(200)]
    data.write_text("\n".join(["age,sick", *rows]) + "\n")
    schema = tmp_path / "schema.yaml"
    schema.write_text(SCHEMA)
    return data, schema


def last_command(text: str) -> list[str]:
    """Return the words of the last command that an output offers to copy."""
    commands = re.findall(r"^  equipoise (.+)$", text, re.MULTILINE)
    return str(commands[-1]).split()


# Enrolment


def test_a_hospital_joins_by_copying_the_commands_that_are_printed(
    equipoise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = f"localhost:{free_port()}"
    created = equipoise("network", "init", "consortium", "--name", "hearts", "--server", server)
    assert created.code == 0, created.err
    (fingerprint,) = re.findall(r"SHA256:[0-9A-F:]{95}", created.out)
    assert "no party" in equipoise("network", "status", "consortium").out

    words = re.search(r"^  equipoise (site request.+)$", created.out, re.MULTILINE)
    assert words is not None
    typed = words[1].replace("NAME", "va").replace("ORGANISATION", "veterans").split()
    requested = equipoise(*typed)
    assert requested.code == 0, requested.err
    (own,) = re.findall(r"SHA256:[0-9A-F:]{95}", requested.out)
    archive = Path("va/request/va.request.zip")
    assert archive.exists() and str(archive) in requested.out

    approved = equipoise("network", "approve", archive, "--folder", "consortium", "--yes")
    assert approved.code == 0, approved.err
    shown = " ".join(approved.out.split())
    assert all(text in shown for text in ("site va", "veterans", own, "400 days"))
    Path("consortium/signed/va.signed.zip").rename("va.signed.zip")  # it is sent back

    command = last_command(approved.out)
    assert command[-1] == fingerprint
    installed = equipoise(*command)
    assert installed.code == 0, installed.err
    kit = open_kit(Path("va"), "site")
    assert (kit.name, kit.organisation, kit.network) == ("va", "veterans", "hearts")
    assert f"{kit.server[0]}:{kit.server[1]}" == server
    assert last_command(installed.out)[:3] == ["site", "start", "va"]
    status = equipoise("network", "status", "consortium").out
    assert "va" in status and "veterans" in status and fingerprint in status


@pytest.fixture
def forgetful(copied: Consortium) -> Consortium:
    """A network that has forgotten the party whose request is approved anew."""
    (copied.network.folder / "signed" / "north.signed.zip").unlink()
    (copied.network.folder / "parties.json").write_text("[]")
    return copied


def test_the_consortium_is_asked_before_anything_is_signed(
    forgetful: Consortium, equipoise: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.confirm", lambda question: False)
    request = forgetful.sites["north"].folder / "request" / "north.request.zip"
    answer = equipoise("network", "approve", request, "--folder", forgetful.network.folder)
    assert answer.code == 1 and "nothing was signed" in answer.out
    assert forgetful.network.parties == []
    assert not (forgetful.network.folder / "signed" / "north.signed.zip").exists()


# Checks, logs and explanations


def test_a_check_names_what_was_loosened_and_ends_with_code_2(
    copied: Consortium, equipoise: Terminal, table: tuple[Path, Path]
) -> None:
    kit = copied.sites["north"]
    path = kit.startup / "local" / "authorization.json"
    path.write_text(path.read_text().replace('"byoc": "none"', '"byoc": "any"'))
    data, schema = table
    answer = equipoise("site", "check", kit.folder, "--data", data, "--schema", schema)
    assert answer.code == 2 and "lead.byoc" in answer.out
    assert "200 samples" in answer.out


def test_a_check_warns_of_fewer_rows_than_the_site_allows(
    copied: Consortium, equipoise: Terminal, table: tuple[Path, Path]
) -> None:
    kit = copied.sites["north"]
    path = kit.folder / "local" / "equipoise.yaml"
    path.write_text(path.read_text().replace("minimum_rows: 20", "minimum_rows: 201"))
    data, schema = table
    answer = equipoise("site", "check", kit.folder, "--data", data, "--schema", schema)
    assert "200 samples and minimum_rows is 201" in answer.out


def test_the_log_shows_the_last_entries_whole(copied: Consortium, equipoise: Terminal) -> None:
    kit = copied.sites["north"]
    assert "no message was refused" in equipoise("site", "log", kit.folder).out
    path = kit.folder / "states" / LOG
    path.parent.mkdir()
    path.write_text("1 refused:size 9 bytes\n2 raised Trace\n    more\n3 refused:step x\n")
    answer = equipoise("site", "log", kit.folder, "--lines", 2)
    assert answer.out.startswith("2 raised Trace") and "more" in answer.out
    assert "refused:size" not in answer.out and str(path) in answer.out


def test_an_explanation_lists_the_model_and_its_bytes(equipoise: Terminal) -> None:
    uploads = explanation.measured("scaffold", None)
    sizes = {upload.entry: upload.bytes for upload in uploads if upload.round == 2}
    assert sizes["model"] == sizes["control"] > 100_000
    assert {upload.entry for upload in uploads if upload.round == 3} >= {"curves", "majority"}
    assert "curves" not in sizes


def test_an_explanation_uses_model_schema_and_parameters_of_an_experiment(
    equipoise: Terminal, table: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(
        f"data: {{name: hospitals, apart: true, schema: {table[1]}}}\n"
        "model: {name: mlp, hidden: [4]}\nmethod: {name: ditto, pull: 0.5}\n"
    )
    answer = equipoise("site", "explain", "ditto", "--experiment", path)
    assert answer.code == 0, answer.err
    assert "18 numbers" in " ".join(answer.out.split()), "1 input, 4 hidden units, 2 classes"


# Running parties


def start(kit: Kit, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "equipoise", kit.kind, "start", str(kit.folder)]
    return subprocess.Popen(
        [*command, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    due = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < due
        time.sleep(0.1)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test, whatever happens."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def marks(kit: Kit) -> str:
    process = processes.running(kit)
    assert process is not None
    return process.mark


@pytest.mark.slow
def test_server_and_site_start_report_and_leave_nothing_behind(
    copied: Consortium,
    equipoise: Terminal,
    table: tuple[Path, Path],
    started: list[subprocess.Popen[str]],
) -> None:
    data, schema = table
    site = copied.sites["north"]
    server_process = start(copied.server)
    started.append(server_process)
    assert server_process.stdout is not None
    assert "listens on" in server_process.stdout.readline()

    checked = equipoise("site", "check", site.folder, "--data", data, "--schema", schema)
    assert checked.code == 0, checked.out + checked.err
    assert last_command(checked.out)[:2] == ["site", "start"]

    site_process = start(site, "--data", data, "--schema", schema)
    started.append(site_process)
    assert site_process.stdout is not None
    assert "north is registered" in site_process.stdout.readline()
    for kit in (copied.lead, copied.member):
        status = equipoise("network", "status", kit.folder)
        assert status.code == 0 and "north" in status.out

    again = equipoise("site", "start", site.folder, "--data", data)
    assert again.code == 2 and "runs already" in again.err

    left = [marks(site), marks(copied.server)]
    stopped = equipoise("site", "stop", site.folder)
    assert stopped.code == 0 and "has stopped" in stopped.out
    wait_for(lambda: site_process.poll() == 0)
    os.kill(server_process.pid, signal.SIGINT)  # Ctrl-C
    wait_for(lambda: server_process.poll() == 0)
    assert "was not running" in equipoise("server", "stop", copied.server.folder).out
    assert [processes.end_marked(mark) for mark in left] == [0, 0]
    for kit in (site, copied.server):
        for path in kit.folder.rglob("*"):
            assert not path.stat().st_mode & 0o077, path


def test_a_site_is_excluded_and_readmitted(copied: Consortium, equipoise: Terminal) -> None:
    folder = copied.server.folder
    assert "excluded sites: va" in equipoise("server", "exclude", folder, "va").out
    assert "north, va" in equipoise("server", "exclude", folder, "north").out
    answer = equipoise("server", "exclude", folder, "va", "--readmit")
    assert "excluded sites: north\n" in answer.out
    assert equipoise("server", "exclude", folder, "a b").code == 2


@pytest.mark.slow
def test_an_excluded_site_is_not_registered(copied: Consortium) -> None:
    parties.exclude(copied.server, "north")
    server = PartyProcess(copied.server)
    try:
        server.wait_until_ready()
        site = PartyProcess(copied.sites["north"])
        try:
            with pytest.raises(ConfigurationError):
                site.wait_until_ready(seconds=20)
            assert not site.ready
        finally:
            site.end()
    finally:
        server.end()
    log = (copied.server.startup / "log.txt").read_text()
    assert "Reject disabled client registration: north" in log


@pytest.mark.slow
def test_what_a_killed_command_left_is_ended_by_stop(
    copied: Consortium, equipoise: Terminal, started: list[subprocess.Popen[str]]
) -> None:
    process = start(copied.server)
    started.append(process)
    assert process.stdout is not None and "listens on" in process.stdout.readline()
    mark = marks(copied.server)
    process.kill()
    process.wait(timeout=30)
    assert "has stopped" in equipoise("server", "stop", copied.server.folder).out
    assert processes.end_marked(mark) == 0


def test_a_stranger_that_has_the_number_of_a_process_is_not_stopped(
    copied: Consortium, equipoise: Terminal
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path = copied.server.folder / "running.json"
        path.write_text(f'{{"pid": {other.pid}, "began": "1", "mark": "{"0" * 32}"}}')
        assert "was not running" in equipoise("server", "stop", copied.server.folder).out
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(timeout=10)


def test_a_lead_without_a_server_learns_that_it_cannot_be_reached(
    copied: Consortium, equipoise: Terminal
) -> None:
    answer = equipoise("network", "status", copied.lead.folder)
    assert answer.code == 2 and "cannot be reached" in answer.err and LEAD not in answer.out
