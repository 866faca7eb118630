"""A small web server for one reader on this machine.

It listens on 127.0.0.1 and answers only requests with the token of its address, which other users
and other pages of the browser do not know. It serves a handful of addresses and no files, and
writes nothing. Connections are bounded in time and in number.
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
from urllib.parse import parse_qs

from equipoise.report.render import content_policy
from equipoise.storage.store import DATABASE, RunError
from equipoise.watch.gallery import Gallery
from equipoise.watch.pages import Page, run_page

MOST_CONNECTIONS = 16  # at a time; more are refused
# for a whole connection: drawing the page of a thousand clients on a busy machine takes a while
SECONDS = 60.0
QUIET_SECONDS = 10.0  # for which a connection may send nothing
# A page elsewhere could have its own host name lead here, so that no other name is accepted.
HOSTS = ("127.0.0.1", "localhost")
POLICY = "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"  # added to that of a page
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}


class WatchServer(ThreadingHTTPServer):
    """A server of the page of a run, or of the gallery of a folder.

    Args:
        folder: The folder of a run, or one that holds runs.
        port: The port at 127.0.0.1; 0 takes a free one.

    Raises:
        RunError: The port cannot be used.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        root = folder.resolve()
        self.gallery: Gallery | None = None
        if (root / DATABASE).exists():
            self.page = run_page(root)
        else:
            self.gallery = Gallery(root)
            self.page = self.gallery.page
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        self._deadlines: dict[Any, float] = {}  # connection -> when it is cut off
        self._guard = Lock()
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise RunError(
                f"--port {port} of 127.0.0.1 cannot be used ({error}); leave it out, and a free "
                "one is chosen"
            ) from error

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"

    def resolve(self, path: str) -> tuple[Page, str] | None:
        """Return the page that an address belongs to, and the part of it that is requested.

        None stands for a wrong token and for an unknown address.
        """
        first, *parts = path.partition("?")[0].split("/")
        token = parts[0] if parts else ""
        if first or not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        if len(parts) == 2:
            return self.page, parts[1]
        if len(parts) != 3 or self.gallery is None:
            return None
        member = self.gallery.member(parts[1])
        return None if member is None else (member, parts[2])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, if there are not too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._guard:
            self._deadlines[request] = time.monotonic() + SECONDS
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then make room for another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._deadlines.pop(request, None)
            self._free.release()

    def service_actions(self) -> None:
        """Cut off connections that take too long; a byte now and then would keep them open."""
        now = time.monotonic()
        with self._guard:
            late = [request for request, end in self._deadlines.items() if end < now]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects."""


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a browser."""

    server: WatchServer
    server_version = "equipoise"
    sys_version = ""
    timeout = QUIET_SECONDS

    def do_GET(self) -> None:
        """Answer with a page or with its state."""
        host = self.headers.get("Host", "")
        if host not in HOSTS and host.rpartition(":")[0] not in HOSTS:
            self._refuse("This server answers to 127.0.0.1 only.")
            return
        match = self.server.resolve(self.path)
        if match is None:
            self._refuse("Use the whole address that `equipoise watch` printed.")
            return
        page, part = match
        gallery = self.server.gallery
        if part == "overlay" and gallery is not None and page is gallery.page:
            runs = parse_qs(self.path.partition("?")[2]).get("run", [])
            self._answer(HTTPStatus.OK, "text/html", gallery.overlay(runs), live=False)
        elif part == "state":
            self._answer(HTTPStatus.OK, "application/json", json.dumps(asdict(page.state())))
        elif part == "":
            self._answer(HTTPStatus.OK, "text/html", page.html())
        else:
            self._refuse("Use the whole address that `equipoise watch` printed.")

    do_HEAD = do_GET

    def _refuse(self, reason: str) -> None:
        self._answer(HTTPStatus.FORBIDDEN, "text/plain", reason)

    def _answer(self, status: HTTPStatus, kind: str, text: str, live: bool = True) -> None:
        body = text.encode("utf-8", "replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            status = HTTPStatus.NOT_MODIFIED
            body = b""
        headers = {
            **SAFE_HEADERS,
            "Content-Security-Policy": f"{content_policy(live)}; {POLICY}",
            "ETag": tag,
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """List no requests: the terminal shows the address."""
