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
            if self.path.startswith("/status/"):
                self.send_error(int(self.path.rpartition("/")[2]))
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.ranges else 0
            if start >= len(state.content):
                self.send_error(416)
                return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            if self.path != "/unsized":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.break_after is not None:
                body, state.break_after = body[: state.break_after], None
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def test_a_file_arrives_whole_with_progress_and_is_not_fetched_twice(
    server: Server, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = download(
        (server.url + "/f",), tmp_path / "f", MD5, lambda *report: seen.append(report)
    )
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


def test_the_next_address_is_tried_and_all_are_named_in_the_end(
    server: Server, tmp_path: Path
) -> None:
    assert download((server.url + "/missing", server.url + "/f"), tmp_path / "f", MD5).exists()
    with pytest.raises(OSError, match=r"/missing: HTTP Error 404.*equipoise data import"):
        download((server.url + "/missing",), tmp_path / "g", MD5)


@pytest.mark.parametrize(("status", "tries"), [(499, 1), (500, 3), (503, 3)])
def test_what_the_server_cannot_do_now_is_tried_three_times_and_what_it_refuses_once(
    server: Server, tmp_path: Path, status: int, tries: int
) -> None:
    with pytest.raises(OSError) as refused:
        download((f"{server.url}/status/{status}", server.url + "/missing"), tmp_path / "f", MD5)
    assert (
        len(server.asked) == tries + 1 and str(refused.value).count(f"HTTP Error {status}") == tries
    )
    assert str(refused.value).startswith("could not download f. Tried: "), (
        "nothing is kept of what never came"
    )


def test_what_arrived_is_kept_to_go_on_from(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.data.sets.download.ATTEMPTS", 1)
    server.break_after = 1000
    with pytest.raises(
        OSError,
        match=(
            r"f; 1,000 bytes are kept to continue from.*the connection broke after 1,000 of "
            r"1,024,000 bytes"
        ),
    ):
        download((server.url + "/f",), tmp_path / "f", MD5)
    assert [file.name for file in tmp_path.iterdir()] == ["f.part"] and len(server.asked) == 1
    seen: list[tuple[str, int, int | None]] = []
    download((server.url + "/f",), tmp_path / "f", MD5, lambda *report: seen.append(report))
    assert (
        seen[0][1] > 1000
        and seen[-1] == ("f", 1_024_000, 1_024_000)
        and {total for _, _, total in seen} == {1_024_000}
    )
    assert server.asked == [None, "bytes=1000-"] and (tmp_path / "f").read_bytes() == CONTENT


def test_a_server_that_tells_no_length(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert (
        download(
            (server.url + "/unsized",), tmp_path / "f", MD5, lambda *report: seen.append(report)
        ).read_bytes()
        == CONTENT
    )
    assert seen[-1] == ("f", 1_024_000, None)


def test_a_wrong_file_is_replaced_and_a_wrong_address_not_asked_again(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"another version")
    assert download((server.url + "/f",), tmp_path / "f", MD5).read_bytes() == CONTENT
    with pytest.raises(OSError, match=f"checksum {MD5} instead of 0+"):
        download((server.url + "/f", server.url + "/f"), tmp_path / "g", "0" * 32)
    assert server.asked == [None] * 3, "each address once, from the beginning"


def test_fetch_keeps_the_prepared_copy_only(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    x = np.zeros((4, 5, 5), np.uint8)
    np.savez(tmp_path / "made.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x[:1], y_test=[0])
    server.content = (tmp_path / "made.npz").read_bytes()
    remote = Remote(
        "tiny.npz", hashlib.md5(server.content).hexdigest(), (server.url + "/tiny.npz",)
    )
    entry = RegisteredSet(
        "tiny", "made here", (1, 5, 5), ("a", "b"), "4 / 1", "none", "here", images, (remote,)
    )
    assert store.fetch(entry) == tmp_path / "data" / "tiny.npz"
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["tiny.npz"]
    monkeypatch.setitem(sets.ENTRIES, "tiny", entry)
    assert sets.load("tiny").x.shape == (5, 1, 5, 5)
