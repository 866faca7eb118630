"""A small web server for one reader on this machine.

It listens on 127.0.0.1, answers only who knows the token in the address (other users and other pages of the browser do not), knows a handful of
addresses and no file names, writes nothing, and gives every connection a bounded time and all of them a bounded number of threads.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import time
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any

from equipoise.storage.store import DATABASE, RunError
from equipoise.watch.gallery import Gallery
from equipoise.watch.pages import Page, run_page

AT_ONCE = 16  # connections; more are turned away
SECONDS = 60.0  # for a connection from its first byte to its last; drawing the page of a thousand clients on a busy machine takes its time
QUIET = 10.0  # seconds for which a connection may say nothing
HOSTS = (
    "127.0.0.1",
    "localhost",
)  # by which names we may be called: a page elsewhere could have its own name lead here
SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}


class Watcher(ThreadingHTTPServer):
    """Serves the page of a run, or the gallery of a folder."""

    daemon_threads = True
    request_queue_size = AT_ONCE

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        root = folder.resolve()
        self.gallery = None if (root / DATABASE).exists() else Gallery(root)
        self.page = self.gallery.page if self.gallery is not None else run_page(root)
        self._places, self._open, self._guard = (
            BoundedSemaphore(AT_ONCE),
            dict[Any, float](),
            Lock(),
        )
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise RunError(
                f"--port {port} of 127.0.0.1 cannot be used ({error}); leave it out, and a free one is chosen"
            ) from error

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"

    def found(self, path: str) -> tuple[Page, str] | None:
        """The page that an address belongs to, and what of it is asked for; None without the token or for an address that we do not know."""
        address = path.partition("?")[0]
        first, token, *rest = address.split("/") if "/" in address else (address, "")
        if first or not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        if len(rest) == 1:
            return self.page, rest[0]
        member = (
            self.gallery.member(rest[0]) if self.gallery is not None and len(rest) == 2 else None
        )
        return None if member is None else (member, rest[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._guard:
            self._open[request] = time.monotonic() + SECONDS
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._open.pop(request, None)
            self._places.release()

    def service_actions(self) -> None:
        """Cut off who takes too long; a byte now and then would outlast any wait for the next byte."""
        with self._guard:
            late = [request for request, end in self._open.items() if end < time.monotonic()]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error worth a word."""


class Handler(BaseHTTPRequestHandler):
    server: Watcher
    server_version, sys_version = "equipoise", ""
    timeout = QUIET

    def do_GET(self) -> None:
        if (
            self.headers.get("Host", "").rpartition(":")[0] not in HOSTS
            and self.headers.get("Host") not in HOSTS
        ):
            self._answer(
                HTTPStatus.FORBIDDEN, "text/plain", "This server answers to 127.0.0.1 only."
            )
            return
        found = self.server.found(self.path)
        if found is None or found[1] not in ("", "state"):
            self._answer(
                HTTPStatus.FORBIDDEN,
                "text/plain",
                "Use the whole address that `equipoise watch` printed.",
            )
            return
        page, what = found
        if what == "state":
            self._answer(HTTPStatus.OK, "application/json", json.dumps(asdict(page.state())))
        else:
            self._answer(HTTPStatus.OK, "text/html", page.html())

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            status, body = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        for name, value in {
            **SAFE,
            "ETag": tag,
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal belongs to the address; requests are not listed."""
