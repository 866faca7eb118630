"""What the server of `equipoise watch` gives out, to whom, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import equipoise
from equipoise.comparison import formats
from equipoise.comparison.table import Comparison, Failure, opened
from equipoise.runs import Run
from equipoise.storage.store import RunError, Store
from equipoise.watch import pages, serving
from equipoise.watch.pages import Drawn, Page, State
from equipoise.watch.progress import Progress, progress_of
from equipoise.watch.serving import MOST_CONNECTIONS, WatchServer
from tests.helpers.stores import change, made_up_run


@contextmanager
def watched(folder: Path) -> Iterator[WatchServer]:
    with WatchServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: WatchServer,
    path: str = "",
    method: str = "GET",
    token: str | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], str]:
    """One request under the server's token, or another."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    try:
        connection.request(
            method, f"/{server.token if token is None else token}/{path}", headers=headers
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


def state(server: WatchServer, path: str = "") -> dict[str, Any]:
    status, _, text = ask(server, f"{path}state")
    assert status == 200
    return json.loads(text)


def links(server: WatchServer) -> dict[str, str]:
    """The gallery's members: name -> address."""
    return {
        unescape(name): address
        for address, name in re.findall(r'<a href="([0-9a-f]+/)">([^<]*)</a>', ask(server)[2])
    }


def test_only_who_knows_the_token_and_calls_us_by_our_name_is_answered(tmp_path: Path):
    with watched(made_up_run(tmp_path / "run")) as server:
        assert ask(server)[0] == ask(server, "state")[0] == 200
        host, port = server.server_address[:2]
        assert (
            host == "127.0.0.1"
            and str(port) in server.address
            and server.token in server.address
            and len(server.token) >= 32
        )
        for token in (
            "",
            "x",
            server.token[:-1],
            f"{server.token}x",
            server.token.swapcase(),
            "\xe4",
            "%00",
        ):
            refused = ask(
                server, token=token.encode("latin-1", "replace").decode("ascii", "ignore")
            )
            assert (
                refused[0] == 403 and "fedavg" not in refused[2] and server.token not in refused[2]
            )
        assert (
            ask(server, Host=f"localhost:{port}")[0] == ask(server, Host="127.0.0.1:9")[0] == 200
        ), "a tunnel has a port of its own"
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example:80", ""):
            assert ask(server, Host=name)[0] == 403
        for path in (
            "../",
            "%2e%2e/",
            "run.db",
            "files/",
            "state/x",
            "0123456789abcdef/",
            "experiment.yaml",
            "//",
            "state?x=/../",
        ):
            assert ask(server, path)[0] == (200 if path.startswith("state?") else 403), path
        for line in (
            b"GET x HTTP/1.0",
            b"GET / HTTP/1.0",
            b"GET //[ HTTP/1.0",
            b"GET /?/ HTTP/1.0",
            b"\x00\xff",
            b"GET",
            b"GET " + b"/" * 70000,
        ):
            with socket.create_connection(server.server_address[:2], timeout=30) as raw:
                raw.sendall(line + b"\r\nHost: 127.0.0.1\r\n\r\n")
                answer = raw.recv(100)
                assert answer and b" 200 " not in answer, line[:20]
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, method=method)[0] == 501


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path):
    with watched(made_up_run(tmp_path / "run")) as server:
        for path in ("", "state"):
            status, headers, text = ask(server, path)
            again = ask(server, path, **{"If-None-Match": headers["ETag"]})
            assert (status, again[0], again[2]) == (200, 304, "") and text
            assert ask(server, path, **{"If-None-Match": '"other"'})[0] == 200
            head = ask(server, path, method="HEAD")
            assert head[2] == "" and head[1]["Content-Length"] == headers["Content-Length"]
        assert (
            "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            and headers["Referrer-Policy"] == "no-referrer"
        )


def progress(run: Path) -> Progress:
    return progress_of(Run(run))


def test_rounds_failures_and_the_time_left_are_told_as_they_are_committed(tmp_path: Path):
    run = made_up_run(tmp_path / "run", rounds=9, finished=False)
    change(
        run,
        "delete from rounds where round > 4",
        "delete from seconds where round > 4",
        "insert into rejected values (2, 0, 1, 'b', 'timed out'), (4, 0, 1, 'a', 'lost'), "
        "(3, 0, 1, 'a', 'late')",
    )
    assert "round 4 of 9" in progress(run).words and "equipoise resume" in progress(run).words
    writing = Store(run, writing=True)
    try:
        found = progress(run)
        assert "round 4 of 9, about 4 s left" in found.words, "five rounds of 0.7 seconds"
        first, second = found.failed
        assert "client a" in first and "2 rounds, last in round 4: lost" in first
        assert "client b" in second and "round 2: timed out" in second
        with watched(run) as server:
            before = state(server)
            assert (before["status"], before["round"], before["rounds"]) == ("running", 4, 9)
            assert before["failed"] == list(found.failed)
            assert "the run is in progress" in ask(server)[2]
            writing.db.execute("insert into rejected values (4, 0, 1, '<b>', 'x')")
    finally:
        writing.close()
    with watched(run) as server:
        assert "client &lt;b&gt; did not count" in ask(server)[2]
    with sqlite3.connect(run / "run.db") as db:
        db.executemany(
            "insert into rejected values (1, 0, 1, ?, 'x')", [(f"c{k}",) for k in range(20)]
        )
    assert progress(run).failed[-1] == "and 15 more clients"


def test_all_parts_of_a_page_show_the_same_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A round that is committed while the page is drawn must be in none of its parts."""
    run = made_up_run(tmp_path / "run", rounds=6, clients=2, finished=False)
    change(
        run,
        *(
            f"delete from {table} where round > 3"
            for table in ("rounds", "measurements", "weights")
        ),
        "update measurements set value = 0.01 * round",
    )
    writing = Store(run, writing=True)
    committed: list[int] = []
    original = Run.columns

    def commits_meanwhile(self: Run, *names: str, **where: Any) -> list[tuple[Any, ...]]:
        if len(committed) < 3:
            number = 4 + len(committed)
            committed.append(number)
            change(
                run,
                f"insert into rounds select {number}, attempt, cohort, joined, bytes_down, "
                "bytes_up, steps, skipped, virtual_seconds from rounds where round = 3",
                f"insert into measurements select {number}, client, model, phase, split, metric, "
                "0.9 from measurements where round = 3",
            )
        return original(self, *names, **where)

    monkeypatch.setattr(Run, "columns", commits_meanwhile)
    try:
        with watched(run) as server:
            page = ask(server)[2]
    finally:
        writing.close()
    assert committed == [4, 5, 6]
    shown = set(re.findall(r"round (\d) of 6", page)) | set(re.findall(r"<dd>(\d) of 6</dd>", page))
    assert shown == {"3"}, "the bar, the head and the remark"
    assert "90.0" not in page, "no card and no caption has a value of a later round"
    assert page.count("3.0 %") >= 3


def test_a_run_that_has_measured_nothing_yet_and_one_that_cannot_be_read_have_a_page(
    tmp_path: Path,
):
    run = made_up_run(tmp_path / "run", rounds=1, finished=False)
    with watched(run) as server:
        assert "was stopped after round 0 of 1" in ask(server)[2]
    writing = Store(run, writing=True)
    with watched(run) as server:
        assert "Nothing is measured yet." in ask(server)[2] and state(server)["status"] == "running"
        writing.close()
        (run / "run.db").write_bytes(b"nothing")
        time.sleep(pages.FRESH)
        deadline = time.monotonic() + 60
        while state(server)["status"] != "damaged":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ask(server)[0] == 200


@pytest.mark.thorough
def test_a_folder_is_a_gallery(tmp_path: Path):
    names = ["<i>x & y", "Krankenhaus Süd 病院", "fedavg"]
    for name in names:
        made_up_run(tmp_path / name)
    made_up_run(tmp_path / "reg", regression=True)
    made_up_run(tmp_path / "stopped", finished=False)
    for method in ("standalone", "fedprox"):
        made_up_run(tmp_path / "both" / "runs" / method, method)
        made_up_run(tmp_path / "half" / "runs" / method, method)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_bytes(b"x")
    (tmp_path / "other").mkdir()
    entries = opened(
        [tmp_path / "both" / "runs" / method for method in ("standalone", "fedprox")]
    ).entries
    formats.save(
        Comparison(entries, "fedprox", [Failure("fedavg", "iid", 0, "no")], tmp_path / "both")
    )
    with watched(tmp_path) as server:
        page, found = ask(server)[2], links(server)
        assert set(found) == {
            *names,
            "reg",
            "stopped",
            "both",
            "broken",
            "half/runs/standalone",
            "half/runs/fedprox",
        }
        assert (
            "<i>" not in page
            and "RMSE: average" in page
            and "stopped after round 2 of 3" in page
            and "cannot be read" in page
        )
        assert "comparison of 2 methods on digits" in page and "1 run failed" in page
        for address in found.values():
            status, _, text = ask(server, address)
            assert (
                status == 200 and 'href="../"' in text and ask(server, f"{address}state")[0] == 200
            )
        assert ">Methods</h2>" in ask(server, found["both"])[2]
        before = state(server)["version"]
        made_up_run(tmp_path / "new")
        deadline = time.monotonic() + 60
        while state(server)["version"] == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "new" in links(server)
    with watched(tmp_path / "both") as server:
        assert set(links(server)) == {"both", "runs/standalone", "runs/fedprox"}
    (tmp_path / "empty").mkdir()
    with watched(tmp_path / "empty") as server:
        assert "no run in this folder yet" in ask(server)[2]


def test_nothing_outside_the_folder_is_shown(tmp_path: Path):
    outside = made_up_run(tmp_path / "outside" / "secret", "standalone", level=0.1)
    inside = tmp_path / "inside"
    made_up_run(inside / "fedavg")
    (inside / "link").symlink_to(outside)
    (inside / "runs").symlink_to(tmp_path / "outside")
    (inside / "database").mkdir()
    (inside / "database" / "run.db").symlink_to(outside / "run.db")
    for name, run in (
        ("far", str(outside)),
        ("up", "../../outside/secret"),
        ("by-link", "../link"),
    ):
        (inside / name).mkdir()
        entry = {"method": "standalone", "run": run, "alone": None, "setting": {}}
        (inside / name / "comparison.json").write_text(
            json.dumps(
                {
                    "format": 1,
                    "entries": [entry],
                    "failures": [],
                    "baseline": "standalone",
                    "level": 0.95,
                }
            )
        )
    with watched(inside) as server:
        found = links(server)
        assert set(found) == {"fedavg", "far", "up", "by-link"}
        assert "No run of training alone is known" in ask(server, found["fedavg"])[2], (
            "the link beside it is not followed"
        )
        for name in ("far", "up", "by-link"):
            assert "which is not inside" in ask(server, found[name])[2]
        shutil.rmtree(inside / "fedavg")
        (inside / "fedavg").symlink_to(outside)
        deadline = time.monotonic() + 60
        while "fedavg" in links(server):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ask(server, found["fedavg"])[0] == 403, (
            "its page was known before, and is not any more"
        )


@pytest.mark.thorough
def test_looking_changes_nothing_of_a_run(tmp_path: Path):
    for name, finished in (("whole", True), ("cut", False)):
        made_up_run(tmp_path / name, finished=finished)

    def files() -> dict[str, bytes]:
        # SQLite's own working files are left next to a database that was read.
        return {
            str(p): p.read_bytes()
            for p in tmp_path.rglob("*")
            if p.is_file() and not p.name.endswith(("-shm", "-wal"))
        }

    before = files()
    with watched(tmp_path) as server:
        for address in links(server).values():
            assert ask(server, address)[0] == 200
    assert files() == before


@pytest.mark.thorough
def test_threads_and_time_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with watched(made_up_run(tmp_path / "run")) as server:
        ask(server)
        before = threading.active_count()
        idle = [
            socket.create_connection(server.server_address[:2], timeout=30)
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        turned_away = 0
        for connection in idle[
            MOST_CONNECTIONS:
        ]:  # in order: the first ones have taken every place
            turned_away += connection.recv(1) == b""
        assert (
            turned_away == 2 * MOST_CONNECTIONS
            and threading.active_count() <= before + MOST_CONNECTIONS
        )
        for connection in idle:
            connection.close()
        deadline = time.monotonic() + 60
        while threading.active_count() > before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert ask(server)[0] == 200
        monkeypatch.setattr(serving, "SECONDS", 0.3)
        with socket.create_connection(server.server_address[:2], timeout=30) as slow:
            with pytest.raises(OSError):
                for _ in range(2000):  # a byte now and then, for ever
                    slow.sendall(b"G")
                    time.sleep(0.02)
            assert threading.active_count() <= before + 1


def test_a_page_is_not_drawn_more_often_than_its_run_can_bear():
    clock, looked, drawn = [0.0], [0], [0]
    status = ["running"]

    def look() -> State:
        looked[0] += 1
        return State(str(looked[0]), status[0], "")

    def draw() -> Drawn:
        drawn[0] += 1
        clock[0] += 1.0
        return State(str(looked[0]), status[0], ""), f"page {looked[0]}"

    page = Page(look, draw, clock=lambda: clock[0])
    first = page.html()
    for _ in range(39):
        clock[0] += 0.1
        page.state()
        assert page.html() == first and drawn[0] == 1, "a page that took a second stands for four"
    assert looked[0] <= 11, "nor is the run looked at more often than every 0.4 seconds"
    clock[0] += 0.2
    assert page.html() != first
    status[0] = "finished"
    clock[0] += 1
    assert page.html() and drawn[0] == 3, "the end is shown at once"


def test_a_page_has_the_version_of_what_it_shows():
    """The run may continue between the reading and the drawing."""
    page = Page(lambda: State("1", "running", ""), lambda: (State("2", "running", ""), "page"))
    assert page.html() == "page" and page.state().version == "2"


@pytest.mark.thorough
def test_ctrl_c_ends_it_cleanly(tmp_path: Path):
    run = made_up_run(tmp_path / "run")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(equipoise.__file__).parent.parent),
        "COLUMNS": "300",
    }
    # Tests that run in the background of a shell ignore SIGINT, and so would their children.
    program = (
        "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('equipoise', run_name='__main__')"
    )
    command = [sys.executable, "-c", program, "watch", str(run)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            address = process.stdout.readline().split()[1]
            host, port = address.removeprefix("http://").split("/")[0].split(":")
            # somebody who is still connected does not keep it
            with socket.create_connection((host, int(port)), timeout=30):
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "") and "the runs continue" in out


def test_what_cannot_be_watched_gets_a_sentence(tmp_path: Path):
    with (
        watched(made_up_run(tmp_path / "run")) as server,
        pytest.raises(RunError, match="cannot be used .* leave it out"),
    ):
        WatchServer(tmp_path, server.server_address[1])
    from equipoise.cli.watch import watch

    with pytest.raises(RunError, match="no folder .*nowhere; name the folder of a run"):
        watch(tmp_path / "nowhere")
