"""Downloads against a server in this process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from equipoise.data import sets
from equipoise.data.sets import store
from equipoise.data.sets.download import download
from equipoise.data.sets.registered import RegisteredSet, Remote, images

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Server:
    url: str
    content: bytes = CONTENT
    ranges: bool = True
    break_after: int | None = None  # of the first answer
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append(asked)
            if self.path == "/missing":
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.ranges else 0
            if start >= len(state.content):
                self.send_error(416)
                return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.break_after is not None:
                body, state.break_after = body[: state.break_after], None
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def test_a_file_arrives_whole_with_progress_and_is_not_fetched_twice(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = download((server.url + "/f",), tmp_path / "f", MD5, lambda *report: seen.append(report))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("f", len(CONTENT), len(CONTENT))
    download((server.url + "/f",), tmp_path / "f", MD5)
    assert len(server.asked) == 1


def test_a_broken_connection_is_resumed_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.break_after = 300_000
    assert download((server.url + "/f",), tmp_path / "f", MD5).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_a_partial_file_from_an_earlier_run_is_gone_on_from(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(CONTENT[:1000])
    assert download((server.url + "/f",), tmp_path / "f", MD5).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]
    (tmp_path / "g.part").write_bytes(CONTENT)
    assert download((server.url + "/g",), tmp_path / "g", MD5).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "f.part").write_bytes(b"old rubbish")
    assert download((server.url + "/f",), tmp_path / "f", MD5).read_bytes() == CONTENT


def test_a_tampered_file_is_refused_and_nothing_is_left(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(OSError, match=f"instead of {MD5}"):
        download((server.url + "/f",), tmp_path / "f", MD5)
    assert list(tmp_path.iterdir()) == []


def test_the_next_address_is_tried_and_all_are_named_in_the_end(server: Server, tmp_path: Path) -> None:
    assert download((server.url + "/missing", server.url + "/f"), tmp_path / "f", MD5).exists()
    with pytest.raises(OSError, match=r"/missing: HTTP Error 404.*equipoise data import"):
        download((server.url + "/missing",), tmp_path / "g", MD5)


def test_fetch_keeps_the_prepared_copy_only(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    x = np.zeros((4, 5, 5), np.uint8)
    np.savez(tmp_path / "made.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x[:1], y_test=[0])
    server.content = (tmp_path / "made.npz").read_bytes()
    remote = Remote("tiny.npz", hashlib.md5(server.content).hexdigest(), (server.url + "/tiny.npz",))
    entry = RegisteredSet("tiny", "made here", (1, 5, 5), ("a", "b"), "4 / 1", "none", "here", images, (remote,))
    assert store.fetch(entry) == tmp_path / "data" / "tiny.npz"
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["tiny.npz"]
    monkeypatch.setitem(sets.ENTRIES, "tiny", entry)
    assert sets.load("tiny").x.shape == (5, 1, 5, 5)
